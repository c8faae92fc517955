"""A range of a log that a broker writes to while it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.storage.local import LocalReader
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from tests.rmq_formats.builders import a_record, log_of

_PAGE = 4096
_SIZE = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    raw = log_of([a_record(bytes([65 + number]) * 900) for number in range(20)], 0).ljust(_SIZE, b"\0")
    (tmp_path / f"{0:020d}").write_bytes(raw)
    return raw


@contextmanager
def filled_late(start: int, end: int) -> Iterator[None]:
    """Let the first look at a file see zeros where the broker is about to write."""
    read_into = LocalReader.read_into
    looks = 0

    def torn(self: LocalReader, position: int, buffer: memoryview) -> int:
        nonlocal looks
        count = read_into(self, position, buffer)
        if position <= start and end <= position + len(buffer):
            looks += 1
            if looks == 1:
                buffer[start - position : end - position] = bytes(end - start)
        return count

    with patch.object(LocalReader, "read_into", torn):
        yield
    assert looks > 0


def read(tmp_path: Path, *, final: bool = False) -> tuple[int, list[PieceKind]]:
    reader = RangeReader(Range(str(tmp_path / f"{0:020d}"), 0, _SIZE, 0, _SIZE, sync=False, final=final))
    others = [item.kind for item in reader.pieces() if isinstance(item, Piece)]
    return reader.seen.records, others


@pytest.mark.parametrize("start", [2 * _PAGE - 700, 2 * _PAGE - 1100, 2 * _PAGE - 30])
def test_a_page_that_was_read_before_the_broker_filled_it_is_read_again(log: bytes, tmp_path: Path, start: int) -> None:
    assert any(log[start : 2 * _PAGE])
    with filled_late(start, 2 * _PAGE):
        assert read(tmp_path) == (20, [PieceKind.UNWRITTEN])


def test_what_stays_damaged_is_damage(log: bytes, tmp_path: Path) -> None:
    damaged = bytearray(log)
    damaged[2 * _PAGE - 1100 : 2 * _PAGE] = bytes(1100)
    (tmp_path / f"{0:020d}").write_bytes(damaged)
    records, others = read(tmp_path)

    assert records < 20
    assert others == [PieceKind.DAMAGE, PieceKind.UNWRITTEN]


@pytest.mark.parametrize("page", [1, 80, 150])
def test_a_page_without_a_checksum_is_read_again_too(tmp_path: Path, page: int) -> None:
    raw = log_of([a_record(properties=b"KEYS\x01" + b"k" * 16_000) for _ in range(40)], 0)
    (tmp_path / f"{0:020d}").write_bytes(raw.ljust(_SIZE, b"\0"))
    assert set(raw[page * _PAGE : (page + 1) * _PAGE]) == set(b"k")

    reader = RangeReader(Range(str(tmp_path / f"{0:020d}"), 0, _SIZE, 0, _SIZE, sync=False, final=False))
    with filled_late(page * _PAGE, (page + 1) * _PAGE):
        seen = [_bytes_of(item) for item in reader.pieces() if isinstance(item, Records)]

    assert raw == b"".join(seen)


def _bytes_of(records: Records) -> bytes:
    return records.buffer[int(records.positions[0]) : int(records.positions[-1]) + int(records.sizes[-1])].tobytes()
