"""Arguments of the Python functions that the command line would refuse."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.console.result import RequestError
from jobs.library import ingest, verify
from tests.golden import StoreOf
from tests.support.lakes import rows_of


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (ingest, {"max_rate": -1}),
        (ingest, {"max_rate": 0}),
        (ingest, {"settle_ms": -1}),
        (verify, {"max_rate": -1}),
        (verify, {"hash_slots": 0}),
        (verify, {"index_num": 1}),
    ],
)
def test_a_number_below_the_limit_of_its_option_is_refused(
    function: Callable[..., object], wrong: dict[str, Any], golden: StoreOf, tmp_path: Path
) -> None:
    """A negative rate made each read wait until the end of time."""
    call = partial(ingest, lake=tmp_path / "lake") if function is ingest else function

    with pytest.raises(RequestError, match=f"{next(iter(wrong))} is .* must be at least"):
        call(golden("b533-base"), **wrong)


def test_a_string_is_one_topic_or_one_directory(golden: StoreOf, tmp_path: Path) -> None:
    """Each letter was a topic."""
    store = Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))
    (store / "commitlog").rename(tmp_path / "log")
    ingest(store, tmp_path / "lake", topics="T1", commitlog=str(tmp_path / "log"))

    assert {"T1"} == {row["topic"] for row in rows_of(tmp_path / "lake", "messages", "topic")}
