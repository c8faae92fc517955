"""Segments that a broker still writes, truncations by a new leader, and bridges over lost ranges."""

import errno
from collections.abc import Callable, Iterable, Sequence
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_formats.broker_start import find_walk_end
from rmq_formats.commitlog.layout import DLEDGER_ENTRY, MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import (
    LostMessage,
    build_bridge,
    build_bridge_to_segment_end,
    encode_record,
    new_record,
)
from rmq_formats.commitlog.scan import scan
from rmq_formats.commitlog.segment import (
    LEFTOVER_REASON,
    LOWEST_TERM,
    STALE_REASON,
    Framing,
    Piece,
    PieceKind,
    SegmentBytes,
    TailEvidence,
    walk,
    walk_segment,
)
from rmq_formats.release import Release
from tests.rmq_formats.builders import damage, frame_record, make_blank, make_log, make_record, place_records
from tests.rmq_formats.strategies import FRAMINGS, mutations
from tests.rmq_formats.test_scan import BASE, WINDOWS, flatten, scanned

PAGE = 64


class GrowingFile:
    """A file to which more bytes are written before each page of each read; unwritten bytes are zeros."""

    def __init__(self, raw: bytes, written: int, steps: Iterable[int]) -> None:
        self._raw = raw
        self._written = written
        self._steps = iter(steps)

    def read(self, position: int, length: int) -> bytes:
        """Read like a kernel, which may copy a page before, and the next page after the broker has filled it."""
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


def scanned_growing(file: GrowingFile, size: int, framing: Framing) -> list[Piece]:
    found = scan(file.read, 0, size, size, _BASE, framing, final=False, window=300, read_into=file.read_into)
    return [item if isinstance(item, Piece) else Piece(PieceKind.RECORD, 0, item.positions.size) for item in found]


@pytest.mark.parametrize("reads", [walked, scanned_growing])
@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=12),
    framing=FRAMINGS,
    sealed=st.booleans(),
    written=st.integers(0, 4000),
    steps=_STEPS,
)
@example(bodies=[b"a", b"b"], framing=Framing.PLAIN, sealed=False, written=0, steps=[0, 0, 0, 3000])
@example(bodies=[b"a"], framing=Framing.PLAIN, sealed=True, written=0, steps=[0, 0, 0, 3000])
def test_bytes_that_a_broker_is_writing_are_not_damage(  # noqa: PLR0913, PLR0917 - a segment, and the steps of a broker
    reads: _Reads, bodies: list[bytes], framing: Framing, sealed: bool, written: int, steps: list[int]
) -> None:
    raw = make_log([make_record(body, properties=b"KEYS\x01k\x02") for body in bodies], _BASE, framing)
    raw += make_blank(200, framing) if sealed else bytes(200)

    found = reads(GrowingFile(raw, written, steps), len(raw), framing)

    assert {piece.kind for piece in found[:-1]} <= {PieceKind.RECORD}
    assert found[-1].kind is not PieceKind.DAMAGE


_SIZE = make_record(b"x" * 60).total_size


@pytest.mark.parametrize("is_proven", [False, True])
def test_records_confirmed_by_queues_are_not_leftovers_after_a_clock_change(is_proven: bool) -> None:
    """An older record after damage in an open segment is a leftover, unless queues point past the damage."""
    whole = make_log([make_record(b"x" * 60, store_timestamp=time) for time in (9000, 9001, 4000, 4001)], _BASE)
    raw = whole[:_SIZE] + bytes(_SIZE) + whole[2 * _SIZE :] + bytes(100)  # the second record is zeroed
    requests: list[tuple[int, int]] = []

    def why_left_over(gap: int, record: object) -> str:
        requests.append((gap, getattr(record, "physical_offset", -1)))
        return "" if is_proven else STALE_REASON

    expected = [PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.RECORD, PieceKind.RECORD, PieceKind.UNWRITTEN]
    log = SegmentBytes.from_buffer(raw, _BASE)
    by_walk = list(walk_segment(log, evidence=TailEvidence(why_left_over)))
    by_scan = flatten(
        scan(log.read, 0, len(raw), len(raw), _BASE, final=False, window=300, evidence=TailEvidence(why_left_over))
    )

    assert [piece.kind for piece in by_walk] == (expected if is_proven else [PieceKind.RECORD, PieceKind.WAITING])
    assert by_scan == by_walk
    assert set(requests) == {(_BASE + _SIZE, _BASE + 2 * _SIZE)}


@pytest.mark.parametrize("is_end", [False, True])
def test_an_old_blank_after_the_end_of_a_truncated_log_is_not_damage(is_end: bool) -> None:
    """Recovery truncates the log and deletes the next file; the blank before that file remains."""
    records = [make_record(b"x" * 60, store_timestamp=9000 + number) for number in range(2)]
    whole = make_log(records, _BASE) + make_blank(200)
    raw = whole[:_SIZE] + b"0" * _SIZE + whole[2 * _SIZE :]
    log = SegmentBytes.from_buffer(raw, _BASE)
    evidence = TailEvidence(is_log_end=lambda offset: is_end and offset == _BASE + _SIZE)

    by_walk = list(walk_segment(log, evidence=evidence))
    by_scan = flatten(scan(log.read, 0, len(raw), len(raw), _BASE, final=False, window=300, evidence=evidence))

    damaged = [PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.BLANK]

    assert [piece.kind for piece in by_walk] == ([PieceKind.RECORD, PieceKind.WAITING] if is_end else damaged)
    assert by_scan == by_walk


def entries(terms: Sequence[int], body: bytes = b"hello") -> bytes:
    log = b""
    for number, record in enumerate(place_records([make_record(body)] * len(terms), BASE, Framing.DLEDGER)):
        entry = bytearray(frame_record(record, Framing.DLEDGER, number))
        at = DLEDGER_ENTRY.offset("term")
        entry[at : at + 8] = terms[number].to_bytes(8, signed=True)
        log += entry
    return log


_ENTRY = len(entries([0]))
_LONG = bytes(range(256)) * 5000
_WRONG_TERM = damage(entries([1, 900, 1, 1, 1]), 2 * _ENTRY, b"\xff" * _ENTRY)
TERMS = {
    "a lower term than the one before": (entries([1, 2, 2, 1, 1]), 0, False, "RRRW"),
    "a lower term before zeros": (entries([1, 2, 2, 1, 1]) + bytes(500), 0, False, "RRRW"),
    "a lower term before a stale end": (entries([1, 2, 2, 1, 1]) + make_blank(500, Framing.DLEDGER), 0, False, "RRRW"),
    # Up to 4.7.1, a group with one member, which is never elected, has term -1.
    "terms below zero": (entries([-1, -1, -1]) + bytes(500), 0, False, "RRRU"),
    "terms from below zero on": (entries([-1, 0, 3]) + bytes(500), _ENTRY, False, "RRU"),
    "terms below -1": (entries([-7, -1]) + bytes(500), 0, False, "RRU"),
    # It overwrites entries of the same size.
    "a record that is not whole yet before a leftover": (
        damage(entries([1, 2, 2, 1]), 3 * _ENTRY - 5, bytes(5)),
        *(0, False, "RRW"),
    ),
    # A later run finds the term of the entry that ends there, regardless of its size.
    "a start at a leftover": (entries([1, 2, 1], _LONG), 2 * len(entries([0], _LONG)), False, "W"),
    # Later segments are deleted when an earlier one is rewritten, so a decreasing term there is a damaged header.
    "a segment that is followed": (entries([1, 2, 1]) + make_blank(100, Framing.DLEDGER), 0, True, "RRRB"),
    # A wrong term must not hide records that a range after the damage would find.
    "a wrong term before damage": (_WRONG_TERM, 0, False, "RRDRR"),
    "a start after that damage": (_WRONG_TERM, 3 * _ENTRY, False, "RR"),
    # If the header of an entry with a damaged record is valid, a lower term after it is a leftover.
    "a damaged record": (damage(entries([2, 2, 2, 1]), 2 * _ENTRY + DLEDGER_ENTRY.size + 4, b"\0"), 0, False, "RRDW"),
}


@pytest.mark.parametrize("case", TERMS)
def test_terms_distinguish_leftovers_from_the_log(case: str) -> None:
    raw, start, final, letters = TERMS[case]
    pieces = list(walk(raw, BASE, Framing.DLEDGER, start=start, final=final))

    assert "".join(piece.kind.name[0] for piece in pieces) == letters
    assert pieces[-1].reason == LEFTOVER_REASON or "lower term" not in case
    for window in (64, 1 << 20):
        assert scanned(raw, Framing.DLEDGER, start=start, final=final, window=window) == pieces


def test_a_bad_sector_has_no_term_and_unavailable_files_are_not_damage() -> None:
    disk_error = Mock(side_effect=OSError(errno.EIO, "bad sector"))

    assert SegmentBytes(disk_error, 4096, BASE, Framing.DLEDGER).term_before(200) == LOWEST_TERM
    for error in (FileNotFoundError("deleted"), PermissionError("denied"), OSError("a network")):
        with pytest.raises(type(error)):
            SegmentBytes(Mock(side_effect=error), 4096, BASE, Framing.DLEDGER).term_before(200)


_TERMS = st.one_of(st.integers(-1, 3), st.sampled_from([-(1 << 63), LOWEST_TERM, (1 << 63) - 1]))


@given(terms=st.lists(_TERMS, max_size=6), data=st.data(), window=WINDOWS, final=st.booleans())
def test_scan_finds_the_same_leftovers_as_the_scalar_walk(
    terms: list[int], data: st.DataObject, window: int, final: bool
) -> None:
    size = len(entries([0]))
    raw = entries(terms) + data.draw(st.sampled_from([b"", bytes(100), make_blank(100, Framing.DLEDGER)]))
    raw = data.draw(mutations(raw)) if data.draw(st.booleans()) else raw
    start = min(data.draw(st.integers(0, len(terms))) * size, len(raw))

    assert scanned(raw, Framing.DLEDGER, start=start, window=window, final=final) == list(
        walk(raw, BASE, Framing.DLEDGER, start=start, final=final)
    )


BRIDGED = 1 << 20  # the start of the log with a hole


def bridged_record(place: int) -> bytes:
    return encode_record(new_record(topic=b"T", magic_code=MAGIC_V1, body=b"body", physical_offset=BRIDGED + place))


FIRST = bridged_record(0)
START = BRIDGED + len(FIRST)


@pytest.mark.parametrize(
    ("size", "lost", "tiles"),
    [
        (500, [], 1),
        (92, [], 1),
        (500, [LostMessage(START, 500, "T1", 3, 7)], 1),
        (500, [LostMessage(START, 200, "T1", 3, 7), LostMessage(START + 200, 300, "%LMQ%x", 0, 0)], 2),
        (500, [LostMessage(START + 200, 150, "T1", 3, 7)], 3),
        (500, [LostMessage(START, 500, "t" * 128, 3, 7)], 1),  # larger than the limit of a record of the first version
        (500, [LostMessage(START + 50, 150, "T1", 3, 7)], 1),  # 50 bytes before it are too few for a record
        (500, [LostMessage(START, 300, "T1", 3, 7), LostMessage(START + 200, 300, "T1", 3, 8)], 1),  # they overlap
    ],
)
def test_brokers_read_past_a_bridge_and_our_readers_treat_it_as_a_hole(
    size: int, lost: Sequence[LostMessage], tiles: int
) -> None:
    over = build_bridge(START, START + size, lost, 9)

    assert over is not None
    segment = FIRST + over + bridged_record(len(FIRST) + size)

    stop = find_walk_end(
        lambda at, length: segment[at : at + length], 0, len(segment), Release.from_version("5.3.3"), len(segment)
    )
    pieces = list(walk(segment, BRIDGED))
    scanned = scan(lambda at, length: segment[at : at + length], 0, len(segment), len(segment), BRIDGED, final=True)

    assert stop[0]
    assert len(segment) == stop[1]
    assert [PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.RECORD] == [piece.kind for piece in pieces]
    assert START == pieces[1].offset
    assert size == pieces[1].size
    assert [pieces[1]] == [item for item in scanned if isinstance(item, Piece)]
    assert tiles == sum(over.count(magic.to_bytes(4, "big", signed=True)) for magic in (MAGIC_V1, MAGIC_V2))


@pytest.mark.parametrize("size", [8, 60, 99, 100, 4096])
def test_a_bridge_to_the_end_of_a_segment_ends_with_a_blank(size: int) -> None:
    segment = FIRST + build_bridge_to_segment_end(START, START + size, [], 9)

    stop = find_walk_end(lambda at, length: segment[at : at + length], 0, len(segment), Release.from_version("5.3.3"))

    assert len(FIRST) + size == len(segment)
    assert stop[0] == 0


@pytest.mark.parametrize("field", ["flag", "body", "properties", "negative length"])
def test_messages_that_resemble_a_bridge_are_messages(field: str) -> None:
    flag = int.from_bytes(b"LOST") - (field == "flag")
    body = b"\0\1" if field == "body" else b"\0\0"
    properties = b"A\1B" if field == "properties" else b""
    made = new_record(
        topic=b"T", magic_code=MAGIC_V1, flag=flag, body=body, properties=properties, physical_offset=BRIDGED
    )
    raw = encode_record(made._replace(properties_length=-1) if field == "negative length" else made)

    scanned = flatten(scan(lambda at, length: raw[at : at + length], 0, len(raw), len(raw), BRIDGED, final=True))

    assert [PieceKind.RECORD] == [piece.kind for piece in walk(raw, BRIDGED)]
    assert [PieceKind.RECORD] == [piece.kind for piece in scanned]
