"""`dump` of a partly unreadable file; the transcript of `dump` covers the rest."""

import errno
from pathlib import Path

from jobs.console.result import ExitCode
from tests.rmq_formats.builders import make_record, make_segment
from tests.support.commands import Run
from tests.support.meanwhile import fail_reads_of_first_segment


def test_an_unreadable_sector_is_damage_and_later_records_are_printed(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "commitlog" / f"{0:020}"
    path.parent.mkdir()
    path.write_bytes(make_segment([make_record(b"x" * 900) for _ in range(30)], 65536, sealed=True))

    with fail_reads_of_first_segment(errno.EIO, lambda offset, size: offset < 12288 and offset + size > 8192):
        outcome = run("dump", path)

    assert outcome.code is ExitCode.DAMAGE
    assert "# UNREADABLE 4096 bytes cannot be read at position 8192: Input/output error" in outcome.out
    assert "sealed segment" in outcome.out
    assert outcome.out.count("  record  ") > 20
