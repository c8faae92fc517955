"""Releases up to 4.4, and 4.9.2, start without a file of another length and all files after it."""

from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.golden import StoreOf
from tests.rmq_formats.stores import segment_files
from tests.support.commands import Run, copy_of


@pytest.mark.parametrize("number", [0, -1])
def test_a_lengthened_segment_that_the_broker_leaves_out_is_not_healthy(
    golden: StoreOf, tmp_path: Path, run: Run, number: int
) -> None:
    """Every record can be read, and the broker serves none from there on."""
    store = copy_of(golden("b420-base"), tmp_path)
    segment = segment_files(store)[number]
    with segment.open("ab") as file:
        file.write(bytes(4096))

    verified = run("verify", "--engine", "here", "--json", store)
    looked = run("inspect", "--json", store)

    (finding,) = verified.document["findings"]
    assert (finding["kind"], Path(finding["file"]).name) == ("wrong_file_size", segment.name)
    assert "starts without this file" in finding["cause"]
    assert verified.code is ExitCode.DAMAGE
    assert looked.code is ExitCode.DAMAGE
