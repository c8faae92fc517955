"""A segment is read while a broker writes it: nothing that it is about to write, or has just written, is damage."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_formats.commitlog.scan import scan
from rmq_formats.commitlog.segment import Framing, Piece, PieceKind, SegmentBytes, walk, walk_segment
from tests.rmq_formats.builders import a_blank, a_record, log_of
from tests.rmq_formats.strategies import FRAMINGS
from tests.rmq_formats.test_scan import flat

PAGE = 64


class GrowingFile:
    """Bytes of which more are written before each page of each read; what is not written yet is zero."""

    def __init__(self, raw: bytes, written: int, steps: Iterable[int]) -> None:
        self._raw = raw
        self._written = written
        self._steps = iter(steps)

    def read(self, position: int, length: int) -> bytes:
        """Read as a kernel does: a page may be copied before the broker fills it, and the next one after that."""
        end = min(position + length, len(self._raw))
        parts = []
        while position < end:
            stop = min((position // PAGE + 1) * PAGE, end)
            self._written += next(self._steps, 0)
            seen = max(min(stop, self._written) - position, 0)
            parts.append(self._raw[position : position + seen].ljust(stop - position, b"\0"))
            position = stop
        return b"".join(parts)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer the same way."""
        data = self.read(position, buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)


_BASE = 1 << 30
_STEPS = st.lists(st.sampled_from([0, 0, 1, 7, 64, 150, 400, 3000]), max_size=120)
_Reads = Callable[[GrowingFile, int, Framing], list[Piece]]


def walked(file: GrowingFile, size: int, framing: Framing) -> list[Piece]:
    return list(walk_segment(SegmentBytes(file.read, size, _BASE, framing)))


def scanned(file: GrowingFile, size: int, framing: Framing) -> list[Piece]:
    found = scan(file.read, 0, size, size, _BASE, framing, final=False, window=300, read_into=file.read_into)
    return [item if isinstance(item, Piece) else Piece(PieceKind.RECORD, 0, item.positions.size) for item in found]


@pytest.mark.parametrize("reads", [walked, scanned])
@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=12),
    framing=FRAMINGS,
    sealed=st.booleans(),
    written=st.integers(0, 4000),
    steps=_STEPS,
)
@example(bodies=[b"a", b"b"], framing=Framing.PLAIN, sealed=False, written=0, steps=[0, 0, 0, 3000])
@example(bodies=[b"a"], framing=Framing.PLAIN, sealed=True, written=0, steps=[0, 0, 0, 3000])
def test_what_a_broker_writes_meanwhile_is_not_damage(  # noqa: PLR0913, PLR0917 - a segment, and a broker's steps
    reads: _Reads, bodies: list[bytes], framing: Framing, sealed: bool, written: int, steps: list[int]
) -> None:
    """Whatever the moment at which each page is read: the log has records, and an end that is open or sealed."""
    raw = log_of([a_record(body, properties=b"KEYS\x01k\x02") for body in bodies], _BASE, framing)
    raw += a_blank(200, framing) if sealed else bytes(200)

    found = reads(GrowingFile(raw, written, steps), len(raw), framing)

    assert {piece.kind for piece in found[:-1]} <= {PieceKind.RECORD}
    assert found[-1].kind is not PieceKind.DAMAGE


@pytest.mark.parametrize("reads", [walked, scanned])
def test_bytes_that_no_broker_fills_are_still_damage(reads: _Reads) -> None:
    """Zeros in place of a record that others follow: a second look at them finds none."""
    some = [a_record(bytes([65 + number]) * 90) for number in range(5)]
    raw = bytearray(log_of(some, _BASE))
    raw[some[0].total_size : 2 * some[0].total_size] = bytes(some[0].total_size)

    kinds = [piece.kind for piece in reads(GrowingFile(bytes(raw), len(raw), []), len(raw), Framing.PLAIN)]

    assert kinds.count(PieceKind.DAMAGE) == 1


def _times(*times: int) -> bytes:
    return log_of([a_record(b"x" * 60, store_timestamp=time) for time in times], _BASE)


def _with_second_record_zeroed(raw: bytes, size: int) -> bytes:
    return raw[:size] + bytes(size) + raw[2 * size :] + bytes(100)


_SIZE = a_record(b"x" * 60).total_size


@pytest.mark.parametrize("is_proven", [False, True])
def test_a_clock_that_stepped_back_does_not_make_a_leftover_of_what_queues_prove(is_proven: bool) -> None:
    """After damage in an open segment an older record is left over from a cut, unless queues lead over the damage."""
    raw = _with_second_record_zeroed(_times(9000, 9001, 4000, 4001), _SIZE)
    asked: list[tuple[int, int]] = []

    def leads_to(gap: int, record: object) -> bool:
        asked.append((gap, getattr(record, "physical_offset", -1)))
        return is_proven

    expected = [PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.RECORD, PieceKind.RECORD, PieceKind.UNWRITTEN]
    log = SegmentBytes.of(raw, _BASE)
    by_walk = list(walk_segment(log, leads_to=leads_to))
    by_scan = flat(scan(log.read, 0, len(raw), len(raw), _BASE, final=False, window=300, leads_to=leads_to))

    assert [piece.kind for piece in by_walk] == (expected if is_proven else [PieceKind.RECORD, PieceKind.WAITING])
    assert by_scan == by_walk
    assert set(asked) == {(_BASE + _SIZE, _BASE + 2 * _SIZE)}


def _reasons(pieces: Iterable[Piece]) -> set[str]:
    return {piece.reason for piece in pieces if piece.kind is PieceKind.WAITING}


def test_records_that_are_left_over_are_named_so() -> None:
    """They differ from a record that is being written, behind which there is none yet."""
    left_over = _with_second_record_zeroed(_times(9000, 9001, 4000), _SIZE)
    half_written = _times(9000, 9001)[: 2 * _SIZE - 40] + bytes(200)

    assert "left over" in "".join(_reasons(walk(left_over, _BASE)))
    assert "left over" not in "".join(_reasons(walk(half_written, _BASE)))
