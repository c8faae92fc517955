"""`dump` of a file that a disk returns in part; the transcript of `dump` has the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs import dump as dump_file
from jobs.console.result import ExitCode
from jobs.storage.model import Reader
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.commands import Run


class BadSector(Reader):
    """A reader that fails like a disk with one bad sector."""

    def __init__(self, raw: bytes, bad: range) -> None:
        self.size = len(raw)
        self._raw = raw
        self._bad = bad

    def read(self, position: int, length: int) -> bytes:
        if position < self._bad.stop and position + length > self._bad.start:
            raise OSError(5, "Input/output error")
        return self._raw[position : position + length]


def test_an_unreadable_sector_is_damage_and_later_records_are_printed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [a_record(b"x" * 900) for _ in range(30)]
    raw = a_segment(records, 65536, sealed=True)
    path = tmp_path / ("0" * 20)
    path.write_bytes(raw)

    class Storage:
        @contextmanager
        def open(self, _: str) -> Iterator[BadSector]:
            yield BadSector(raw, range(8192, 12288))

    monkeypatch.setattr(dump_file, "storage_for", lambda *_: Storage())
    outcome = run("dump", path)

    assert outcome.code is ExitCode.DAMAGE
    assert "# UNREADABLE 4096 bytes cannot be read at position 8192: Input/output error" in outcome.out
    assert "sealed segment" in outcome.out
    assert outcome.out.count("  record  ") > 20
