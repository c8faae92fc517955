"""The compiled scan yields the same pieces as the scalar walk, for any window, division and damage."""

import errno
import gc
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from weakref import ref

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rmq_formats.commitlog.framing import DISK_BLOCK_SIZE
from rmq_formats.commitlog.kernels import count_settled_records
from rmq_formats.commitlog.layout import MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.record import MessageRecord, decode_record, encode_record, has_right_body_crc
from rmq_formats.commitlog.scan import IO_ERROR, WINDOW_SIZE, RawRecords, scan
from rmq_formats.commitlog.segment import LEFTOVER_REASON, Framing, Piece, PieceKind, SegmentBytes, walk, walk_segment
from rmq_formats.errors import CorruptData, FormatError
from tests.rmq_formats.builders import (
    PRODUCER,
    PRODUCER_V6,
    STORED,
    make_blank,
    make_log,
    make_reader,
    make_record,
    make_segment,
    place_records,
)
from tests.rmq_formats.reference import group_of
from tests.rmq_formats.strategies import FRAMINGS, I64, mutations, records

BASE = 1 << 40
WINDOWS = st.sampled_from([1, 64, 200, 300, 512, 777, 1 << 16])


def flatten(items: Iterator[RawRecords | Piece], framing: Framing = Framing.PLAIN) -> list[Piece]:
    """Return all pieces, including records, and check that each record's bytes are in the buffer of its group."""
    pieces = []
    for item in items:
        if isinstance(item, Piece):
            pieces.append(item)
            continue
        for at, size in zip(item.positions.tolist(), item.sizes.tolist(), strict=True):
            record = decode_record(item.buffer[:].data, at, item.base_offset + at)
            assert record.total_size == size
            start = item.base_offset + at - framing.header_size
            pieces.append(Piece(PieceKind.RECORD, start, size + framing.header_size))
    return pieces


def scanned(
    segment: bytes,
    framing: Framing = Framing.PLAIN,
    *,
    start: int = 0,
    end: int | None = None,
    size: int | None = None,
    **options: Any,  # noqa: ANN401 - arguments of scan
) -> list[Piece]:
    size = len(segment) if size is None else size
    options.setdefault("final", False)
    return flatten(
        scan(make_reader(segment), start, size if end is None else end, size, BASE, framing, **options), framing
    )


def stored_by_blocks(raw: bytes, block: int) -> Callable[[int], int]:
    """Return a function like SEEK_DATA of a file system that does not store blocks of zeros."""

    def next_written(position: int) -> int:
        behind = raw[position:].lstrip(b"\0")
        return max(position, (len(raw) - len(behind)) // block * block) if behind else len(raw)

    return next_written


@st.composite
def segments(draw: st.DrawFn) -> tuple[bytes, Framing]:
    framing = draw(FRAMINGS)
    some = draw(st.lists(records() | st.builds(make_record, body=st.binary(max_size=40)), max_size=5))
    if draw(st.booleans()):  # the last record is not whole yet
        some.append(make_record()._replace(body=bytes(len(make_record().body))))
    raw = make_log(some, BASE, framing)
    tail = draw(st.sampled_from(["", "zeros", "blank", "stale blank", "stale record", "false blank"]))
    if tail == "zeros":
        raw += bytes(draw(st.integers(1, 600)))
    elif tail == "stale record":
        stale = make_log([make_record()], BASE + len(raw) + 8, framing)
        raw += make_blank(8 + len(stale), framing)[:8] + stale
    elif tail:
        raw += make_blank(8 + draw(st.integers(0, 300)), framing)
    if tail == "stale blank":
        raw = raw[:-1] + b"\1"
    elif tail == "false blank":
        raw += make_log([make_record()], BASE + len(raw), framing)
    return draw(mutations(raw)) if draw(st.booleans()) else raw, framing


@given(
    segment=segments(),
    window=WINDOWS,
    final=st.booleans(),
    timestamp=st.none() | I64 | st.just(STORED),
    block=st.sampled_from([None, 1, 16, 100]),
    cuts=st.just([]) | st.lists(st.integers(0, 1500), max_size=3),
)
@settings(max_examples=300)
def test_scans_of_consecutive_ranges_find_the_same_pieces_as_one_scalar_walk(  # noqa: PLR0913, PLR0917 - a file and its use
    segment: tuple[bytes, Framing], window: int, final: bool, timestamp: int | None, block: int | None, cuts: list[int]
) -> None:
    raw, framing = segment
    next_written = stored_by_blocks(raw, block) if block else int
    found: list[Piece] = []
    position, newest = 0, timestamp
    for end in sorted({*(cut for cut in cuts if cut < len(raw)), len(raw)}):
        if position < end:
            found += scanned(
                raw,
                framing,
                start=position,
                end=end,
                window=window,
                final=final,
                store_timestamp=newest,
                next_written=next_written,
            )
            position = found[-1].end - BASE
            whole = [piece for piece in found if piece.kind is PieceKind.RECORD]
            if whole:
                at = whole[-1].offset - BASE + framing.header_size
                newest = decode_record(raw, at).store_timestamp

    assert found == list(walk(raw, BASE, framing, final=final, store_timestamp=timestamp))


@given(
    segment=segments(),
    window=WINDOWS,
    start=st.integers(0, 1500),
    end=st.integers(0, 1500),
    block=st.sampled_from([1, 16, 100]),
)
@settings(max_examples=200)
def test_a_range_without_a_known_boundary_starts_at_the_first_valid_record(
    segment: tuple[bytes, Framing], window: int, start: int, end: int, block: int
) -> None:
    raw, framing = segment
    end = min(end, len(raw))
    holes = stored_by_blocks(raw, block)
    found = scanned(
        raw, framing, start=start, end=end, window=window, final=True, starts_anywhere=True, next_written=holes
    )
    if not found:
        assert not [at for at in range(start, end) if _proves_itself(raw, at, framing)]
        return
    first = found[0].offset - BASE

    assert _proves_itself(raw, first, framing)
    assert not [at for at in range(start, first) if _proves_itself(raw, at, framing)]
    whole = walk(raw, BASE, framing, final=True, start=first)

    assert found == [piece for piece in whole if piece.offset < BASE + end]


NEVER = 1 << 62


@pytest.mark.parametrize(
    ("delays", "limit", "ahead", "expected"),
    [
        *(((0, -5, 9, 0), limit, NEVER, count) for limit, count in ((-1, 0), (0, 2), (8, 2), (9, 4))),
        # A time after *ahead* is from a wrong clock, and delays no later record.
        *(((0, 1000, 0, 5), *limits) for limits in ((0, 1000, 1), (0, 999, 3), (5, 999, 4))),
    ],
)
def test_records_after_a_recent_one_are_not_settled(
    delays: tuple[int, ...], limit: int, ahead: int, expected: int
) -> None:
    """The order of the log is kept. An IPv6 host moves the position of the store time."""
    hosts = (PRODUCER, PRODUCER_V6, PRODUCER_V6, PRODUCER)
    pairs = zip(hosts, delays, strict=True)
    group = group_of(
        place_records([make_record(born_host=host, store_timestamp=STORED + delay) for host, delay in pairs], BASE)
    )

    assert count_settled_records(group.buffer, group.positions, STORED + limit, STORED + ahead) == expected


def _proves_itself(raw: bytes, position: int, framing: Framing) -> bool:
    """Return whether a walk from here begins with a record whose body is right."""
    try:
        return has_right_body_crc(SegmentBytes.from_buffer(raw, BASE, framing).record_at(position))
    except FormatError:
        return False


LENGTHS = st.sampled_from([-(1 << 31), -1, 0, 1, 6, 90, 91, 127, 128, 255, (1 << 31) - 1])


@pytest.mark.parametrize("magic_code", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("framing", Framing)
@given(at=st.integers(0, 120), size=st.sampled_from([1, 2, 4]), value=LENGTHS)
def test_wrong_lengths_are_rejected_as_by_the_decoder(
    magic_code: int, framing: Framing, at: int, size: int, value: int
) -> None:
    record = make_record(b"x" * 9, magic_code=magic_code)
    raw = bytearray(make_log([record, make_record()], BASE, framing) + bytes(50))
    raw[at : at + size] = value.to_bytes(8, "big", signed=True)[-size:]

    assert scanned(bytes(raw), framing) == list(walk(bytes(raw), BASE, framing))


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, None])
def test_only_disk_errors_count_as_damage(number: int | None) -> None:
    raw, _ = _log_of_some_blocks()
    asked = 0

    def read(position: int, length: int) -> bytes:
        nonlocal asked
        asked += 1
        if position + length > 5 * DISK_BLOCK_SIZE:
            raise OSError(number, "no answer") if number else OSError("AWS Error NETWORK_CONNECTION")
        return raw[position : position + length]

    with pytest.raises(OSError, match=r"no answer|NETWORK_CONNECTION"):
        list(scan(read, 0, len(raw), len(raw), BASE, final=True, window=DISK_BLOCK_SIZE))

    assert asked < 20


class Disk:
    """A file with unreadable blocks."""

    def __init__(self, raw: bytes, *bad: int) -> None:
        self._raw = raw
        self._bad = bad

    def read(self, position: int, length: int) -> bytes:
        """Read like a disk: a request that includes a bad block fails completely."""
        if any(
            position < (block + 1) * DISK_BLOCK_SIZE and block * DISK_BLOCK_SIZE < position + length
            for block in self._bad
        ):
            raise OSError(errno.EIO, "Input/output error")
        return self._raw[position : position + length]

    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target[: len(data)] = data
        return len(data)


def _log_of_some_blocks() -> tuple[bytes, list[MessageRecord]]:
    """Return a sealed segment of 16 blocks with records of about a third of one."""
    some = place_records([make_record(bytes([65 + i]) * (1200 + 13 * i)) for i in range(40)], BASE)
    return make_segment(some, 16 * DISK_BLOCK_SIZE, BASE, sealed=True), some


@pytest.mark.sample(12)
@pytest.mark.parametrize("window", [100, DISK_BLOCK_SIZE, 3 * DISK_BLOCK_SIZE + 5, 1 << 20])
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("bad", [(3,), (0,), (2, 3, 7), (15,), (5, 6, 7, 8)])
def test_unreadable_bytes_are_damage_and_the_rest_is_read(window: int, into: bool, bad: tuple[int, ...]) -> None:
    raw, some = _log_of_some_blocks()
    disk = Disk(raw, *bad)
    read_into = disk.read_into if into else None
    found = flatten(scan(disk.read, 0, len(raw), len(raw), BASE, final=True, window=window, read_into=read_into))
    lost = [
        record
        for record in some
        if any(
            record.physical_offset - BASE < (block + 1) * DISK_BLOCK_SIZE
            and block * DISK_BLOCK_SIZE < record.end_offset - BASE
            for block in bad
        )
    ]
    whole = [piece.offset for piece in found if piece.kind is PieceKind.RECORD]

    assert whole == [record.physical_offset for record in some if record not in lost]
    damage = [piece for piece in found if piece.kind is PieceKind.DAMAGE]

    assert sum(piece.size for piece in damage) >= sum(record.total_size for record in lost)
    assert {piece.reason for piece in damage} == {IO_ERROR}
    assert [piece.offset for piece in found] == [BASE, *(piece.end for piece in found)][: len(found)]
    assert found[-1].end == BASE + len(raw)


def test_an_unreadable_block_at_the_end_of_a_live_log_is_damage_and_the_bytes_after_it_are_left_for_later() -> None:
    """Unwritten bytes after the block are recognized; no other record contradicts the block."""
    raw = make_segment(place_records([make_record(b"a" * 1000) for _ in range(6)], BASE), 4 * DISK_BLOCK_SIZE, BASE)
    found = flatten(scan(Disk(raw, 1).read, 0, len(raw), len(raw), BASE, final=False))
    kinds = [(piece.kind, piece.offset - BASE) for piece in found[-2:]]

    assert kinds == [(PieceKind.DAMAGE, found[-2].offset - BASE), (PieceKind.UNWRITTEN, 2 * DISK_BLOCK_SIZE)]
    assert found[-2].reason == IO_ERROR


@pytest.mark.parametrize("bad", [1, 3])
def test_an_unreadable_block_in_unwritten_space_leaves_the_tail_waiting(bad: int) -> None:
    """If not all zeros are readable, they are not reported as unwritten; the records before them are read."""
    some = place_records([make_record(b"a" * 1000) for _ in range(2)], BASE)
    raw = make_segment(some, 4 * DISK_BLOCK_SIZE, BASE)
    found = flatten(scan(Disk(raw, bad).read, 0, len(raw), len(raw), BASE, final=False, window=300))

    assert [piece.kind for piece in found] == [PieceKind.RECORD, PieceKind.RECORD, PieceKind.WAITING]


@given(segment=segments(), shorter=st.integers(1, 1500), window=WINDOWS, final=st.booleans())
def test_a_file_truncated_during_a_scan_is_scanned_to_its_new_end(
    segment: tuple[bytes, Framing], shorter: int, window: int, final: bool
) -> None:
    raw, framing = segment
    expected = list(walk(raw, BASE, framing, final=final))
    if expected and expected[-1].kind is PieceKind.BLANK:  # the listing still contains the missing bytes
        behind = expected[-1].offset - BASE + 1
        assume(SegmentBytes.from_buffer(raw, BASE, framing).find_record(behind) is None)
    found = scanned(raw, framing, size=len(raw) + shorter, window=window, final=final)
    if found and found[-1].reason == LEFTOVER_REASON:  # truncated entries are not read
        found[-1] = found[-1]._replace(size=len(raw) - (found[-1].offset - BASE))

    assert found == expected


def test_a_large_record_does_not_enlarge_later_groups() -> None:
    some = [make_record(b"x" * 10_000), *(make_record() for _ in range(90)), make_record(b"y" * 10_000)]
    raw = make_log(some, BASE)
    for group in scan(make_reader(raw), 0, len(raw), len(raw), BASE, final=True, window=512):
        assert isinstance(group, RawRecords)
        assert int(group.sizes[:-1].sum()) <= 512


def test_a_record_size_beyond_the_segment_is_not_allocated() -> None:
    requested: list[int] = []
    record = make_record()._replace(physical_offset=BASE, total_size=(1 << 31) - 1)
    raw = make_log([make_record()], BASE + 200).rjust(1000, b"\0")
    raw = encode_record(record) + raw[200:]

    assert [
        piece.kind
        for piece in flatten(scan(make_reader(raw, requested), 0, len(raw), len(raw), BASE, final=True, window=256))
    ]
    assert max(requested) <= 256


def test_groups_remain_valid_after_the_scan() -> None:
    raw = make_log([make_record(bytes([65 + i]) * 50) for i in range(9)], BASE)
    groups = list(scan(make_reader(raw), 0, len(raw), len(raw), BASE, final=True, window=500))

    assert len(groups) > 1
    positions = [group.base_offset + at for group in groups if isinstance(group, RawRecords) for at in group.positions]

    assert positions == [piece.offset for piece in walk(raw, BASE, final=True)]


@pytest.mark.parametrize("is_left_early", [False, True])
def test_a_finished_scan_releases_its_buffer(is_left_early: bool) -> None:
    """Each range once kept its buffer until the next garbage collection."""
    raw = make_log([make_record(), make_record()], BASE)
    gc.disable()
    try:
        pieces = iter(scan(make_reader(raw), 0, len(raw), len(raw), BASE, final=True))
        buffers = [ref(group.buffer.base) for group in islice(pieces, 1) if isinstance(group, RawRecords)]

        assert buffers[0]() is not None
        if not is_left_early:
            list(pieces)
        del pieces

        assert buffers[0]() is None
    finally:
        gc.enable()


def test_offsets_beyond_64_bits_are_rejected() -> None:
    with pytest.raises(CorruptData, match="64-bit offset"):
        list(scan(make_reader(b""), 0, 0, 1 << 30, (1 << 63) - 1, final=True))


def test_zeros_after_a_live_log_are_read_only_once() -> None:
    raw = make_segment([make_record()], 1 << 20)
    counted: list[int] = []

    found = flatten(scan(make_reader(raw, counted), 0, len(raw), len(raw), 0, final=False, window=4096))

    assert [piece.kind for piece in found] == [PieceKind.RECORD, PieceKind.UNWRITTEN]
    assert sum(counted) < 1.1 * len(raw)


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("claimed", [20 << 20, 500_000_000, (1 << 30) - 1000])
def test_a_record_with_a_huge_wrong_size_is_damage_and_is_not_read(framing: Framing, claimed: int) -> None:
    log = bytearray(make_log([make_record(), make_record(), make_record()], BASE, framing))
    piece_size = len(log) // 3
    header_size = framing.header_size
    log[piece_size + header_size : piece_size + header_size + 4] = claimed.to_bytes(4)
    if header_size:
        log[piece_size + 4 : piece_size + 8] = (claimed + header_size).to_bytes(4)
        log[piece_size + header_size - 4 : piece_size + header_size] = claimed.to_bytes(4)
    size = 1 << 30
    lengths: list[int] = []

    def read(position: int, length: int) -> bytes:
        lengths.append(length)
        length = min(length, size - position)
        return bytes(log[position : position + length]).ljust(length, b"\0")

    def next_written(position: int) -> int:
        return position if position < len(log) else size

    walked = list(walk_segment(SegmentBytes(read, size, BASE, framing, next_written)))
    compiled = flatten(scan(read, 0, size, size, BASE, framing, final=False, next_written=next_written), framing)

    assert [piece.kind for piece in walked] == [
        PieceKind.RECORD,
        PieceKind.DAMAGE,
        PieceKind.RECORD,
        PieceKind.UNWRITTEN,
    ]
    assert f"total_size is {claimed}, but the fields add up to" in walked[1].reason
    assert compiled == walked
    assert max(lengths) <= WINDOW_SIZE


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("behind", ["record", "zeros", "blank", "garbage", "record behind garbage", "nothing"])
@pytest.mark.parametrize("final", [False, True])
def test_bytes_after_a_range_decide_whether_its_last_record_is_complete(
    framing: Framing, behind: str, final: bool
) -> None:
    torn = make_record()._replace(body=bytes(len(make_record().body)))
    raw = make_log([make_record(), torn], BASE, framing)
    end = len(raw)
    if behind.startswith("record"):
        gap = b"\1" * 60 if "garbage" in behind else b""
        raw += gap + make_log([make_record()], BASE + end + len(gap), framing)
    else:
        raw += {"zeros": bytes(99), "blank": make_blank(40, framing), "garbage": b"\1" * 99, "nothing": b""}[behind]
    expected = list(walk(raw, BASE, framing, final=final))
    for cut in (end - 1, end):
        first = scanned(raw, framing, end=cut, final=final)
        start = first[-1].end - BASE

        assert first + scanned(raw, framing, start=start, final=final, store_timestamp=STORED) == expected
