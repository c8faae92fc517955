"""
Segments: the chain of records, the end of a segment, and bytes that are not a record.

Read from top to bottom, this file explains a CommitLog.
"""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.framing import DISK_BLOCK_SIZE, detect_framing, find_framing
from rmq_formats.commitlog.layout import BLANK, DLEDGER_ENTRY, MAGIC_BLANK, MAGIC_V2
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.commitlog.segment import (
    END_BY_LAST_PIECE,
    FOREIGN_BYTES_REASON,
    Framing,
    Piece,
    PieceKind,
    SegmentBytes,
    SegmentEnd,
    is_fully_written,
    walk,
    walk_segment,
)
from rmq_formats.release import Release
from tests.golden import StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import (
    STORED,
    damage,
    make_blank,
    make_log,
    make_reader,
    make_record,
    make_segment,
    place_records,
)
from tests.rmq_formats.strategies import FRAMINGS, mutations, records
from tests.rmq_formats.test_scan import BASE, scanned
from tests.support.stores import walk_store

PLAIN, DLEDGER = Framing.PLAIN, Framing.DLEDGER
RECORD, DAMAGE, BLANK_PIECE = PieceKind.RECORD, PieceKind.DAMAGE, PieceKind.BLANK
UNWRITTEN, WAITING = PieceKind.UNWRITTEN, PieceKind.WAITING

ONE = make_record(b"one")
TWO = make_record(b"two two")
THREE = make_record(b"three three three")


def kinds(pieces: list[Piece]) -> list[PieceKind]:
    return [piece.kind for piece in pieces]


ERASED = b"\xff" * (48 + ONE.total_size)
OLDER = THREE._replace(store_timestamp=STORED - 1)
LETTERS = {"R": RECORD, "B": BLANK_PIECE, "U": UNWRITTEN, "D": DAMAGE, "W": WAITING}
CASES = {
    "full, so the broker has sealed it": (make_segment([ONE, TWO], sealed=True), "RRB"),
    "a blank of eight bytes": (make_log([ONE]) + make_blank(8), "RB"),
    # Brokers up to 4.9.0 leave stale bytes after a blank: complete records of earlier messages, with valid offsets.
    "a record after a blank": (
        make_log([ONE])
        + make_blank(BLANK.size + TWO.total_size)[: BLANK.size]
        + encode_record(TWO._replace(physical_offset=ONE.total_size + BLANK.size)),
        "RB",
    ),
    # As after any damage: in an open segment, an older record is a leftover of a truncation.
    "leftovers after a false blank": (
        damage(make_segment([ONE, TWO, OLDER]), ONE.total_size, BLANK.pack(8, MAGIC_BLANK)),
        "RB",
    ),
    "zeros after the last record": (make_segment([ONE]), "RU"),
    # The broker copies a record from front to back, and the first bytes of its size are zeros.
    "the size of a record": (make_log([ONE, TWO])[: ONE.total_size + 4].ljust(4096, b"\0"), "RW"),
    "a record without its last byte": (make_log([ONE, TWO])[:-1].ljust(4096, b"\0"), "RW"),
    "zeros alone, made ahead of need": (bytes(4096), "U"),
    "nothing": (b"", ""),
    "cut off after a record": (make_log([ONE, TWO]), "RR"),
    # A body may contain a copy of a log: only the chain identifies messages.
    "a record in a body": (make_segment([make_record(encode_record(ONE._replace(physical_offset=88))), TWO]), "RRU"),
    "both versions": (make_segment([ONE, make_record(topic="%RETRY%" + "g" * 150, magic_code=MAGIC_V2), TWO]), "RRRU"),
    "a wrong body, which the next record vouches for": (damage(make_segment([ONE, TWO]), 88), "RRU"),
    "a wrong body, for which nobody vouches": (damage(make_segment([TWO]), 88), "W"),
    "a wrong body behind damage": (damage(damage(make_segment([ONE, TWO, THREE]), 0), ONE.total_size + 88), "DRU"),
    "damage before the blank": (damage(make_segment([ONE, TWO], sealed=True), ONE.total_size), "RDB"),
    "a copy of a record elsewhere": (b"\xff" * 10 + encode_record(ONE) + bytes(100), "W"),
    "a blank that names other bytes after damage": (b"\xff" * 20 + BLANK.pack(7, MAGIC_BLANK) + bytes(50), "W"),
    # Recovery moves the write position back, but does not delete the bytes after it.
    "a live tail that is not zeros": (make_segment([ONE, TWO])[: ONE.total_size] + b"\x01" * 300, "RW"),
    # Leftovers are complete and at valid offsets, but were stored before the records that overwrote their neighbors.
    "leftovers of a truncation": (damage(make_segment([ONE, TWO, OLDER]), ONE.total_size), "RW"),
}
FINAL = {
    "zeros in a segment that others follow": (make_segment([ONE]), PLAIN, "RD"),
    "an older record after damage": (damage(make_segment([ONE, TWO, OLDER]), ONE.total_size), PLAIN, "RDRD"),
    "cut off inside a record": (make_log([ONE, TWO])[:-3], PLAIN, "RD"),
    "cut off inside an entry": (make_log([ONE, TWO], 0, DLEDGER)[:-3], DLEDGER, "RD"),
    # An entry with a changed magic code keeps its size, so it is not the end of the file.
    "an entry with the magic of an end": (
        damage(make_segment([ONE, TWO, THREE], framing=DLEDGER, sealed=True), 48 + ONE.total_size, b"\xff\xff\xff\xff"),
        DLEDGER,
        "RDRB",
    ),
    "a wrong magic before the end of the file": (
        damage(make_segment([ONE, TWO], framing=DLEDGER, sealed=True), 48 + ONE.total_size, bytes(4)),
        DLEDGER,
        "RDB",
    ),
    # A page of ones begins like the end of a file, but an end contains the number of remaining bytes.
    "an erased page": (
        damage(make_segment([ONE, ONE, ONE], framing=DLEDGER, sealed=True), 48 + ONE.total_size, ERASED),
        DLEDGER,
        "RDRB",
    ),
}


@pytest.mark.parametrize(
    ("raw", "framing", "final", "expected"),
    [(raw, PLAIN, False, letters) for raw, letters in CASES.values()]
    + [(raw, framing, True, letters) for raw, framing, letters in FINAL.values()],
    ids=[*CASES, *FINAL],
)
def test_a_walk_splits_a_segment_into_pieces(raw: bytes, framing: Framing, final: bool, expected: str) -> None:
    pieces = list(walk(raw, 0, framing, final=final))

    assert kinds(pieces) == [LETTERS[letter] for letter in expected]
    assert sum(piece.size for piece in pieces) == len(raw)
    if pieces:
        ends = {"B": SegmentEnd.SEALED, "D": SegmentEnd.DAMAGED}

        assert END_BY_LAST_PIECE[pieces[-1].kind] is ends.get(expected[-1], SegmentEnd.OPEN)


@pytest.mark.parametrize("stated", [-5, 8, 99, 101, (1 << 31) - 1])
def test_a_blank_with_a_wrong_size_ends_the_segment_if_no_record_follows(stated: int) -> None:
    """No broker checks the size, and a file that was truncated in its blank is still complete."""
    assert kinds(list(walk(make_log([ONE]) + BLANK.pack(stated, MAGIC_BLANK) + bytes(92), 0))) == [RECORD, BLANK_PIECE]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("stated", [-5, 8, TWO.total_size, 4096, (1 << 31) - 1])
def test_a_blank_with_a_wrong_size_does_not_hide_records(stated: int, final: bool) -> None:
    """Every blank of a broker has the right size, so this one is probably a record with a changed magic code."""
    whole = make_segment([ONE, TWO, THREE], sealed=True)
    raw = damage(whole, ONE.total_size, BLANK.pack(stated, MAGIC_BLANK))

    pieces = list(walk(raw, 0, final=final))

    assert kinds(pieces) == [RECORD, DAMAGE, RECORD, BLANK_PIECE]
    assert [piece.offset for piece in pieces] == [piece.offset for piece in walk(whole, 0)]
    assert "CBD43194" in pieces[1].reason


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (make_segment([ONE]), PLAIN),
        (make_blank(16), PLAIN),
        (bytes(16), PLAIN),
        (b"\0\0\0\1", PLAIN),
        (make_segment([ONE], framing=DLEDGER), DLEDGER),
        (make_blank(16, DLEDGER), DLEDGER),
        (b"\xff" * 4096, PLAIN),
    ],
    ids=["record", "blank", "zeros", "too short to tell", "entry", "end", "erased page"],
)
def test_first_bytes_determine_the_framing_of_a_segment(segment: bytes, expected: Framing) -> None:
    assert detect_framing(segment) is expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": 2}, "entry header has magic 2"),
        ({"pos": 1}, "pos 1,"),
        ({"size": 7}, "size 7,"),
        ({"size": ONE.total_size + 56, "body_length": ONE.total_size + 8}, "around a record"),
    ],
)
def test_a_dledger_header_must_match_its_record(changes: dict[str, int], reason: str) -> None:
    """Its CRCs are always 0, but its sizes and its offset can be checked."""
    raw = bytearray(make_segment([ONE, TWO], base_offset=BASE, framing=DLEDGER))
    for field, value in changes.items():
        width = 8 if field == "pos" else 4
        at = DLEDGER_ENTRY.offset(field)
        raw[at : at + width] = value.to_bytes(width, "big")

    pieces = list(walk(raw, BASE, DLEDGER))

    assert kinds(pieces) == [DAMAGE, RECORD, UNWRITTEN]
    assert reason in pieces[0].reason
    assert scanned(bytes(raw), DLEDGER) == pieces


def test_the_last_record_is_complete_if_its_body_and_end_are_written() -> None:
    assert is_fully_written(ONE)
    assert not is_fully_written(ONE._replace(properties_raw=b"KEYS\x01order\0"))
    assert not is_fully_written(ONE._replace(body=b"onE"))


@pytest.mark.parametrize(
    ("head", "is_foreign"),
    [
        (b"\x8a\x13\xf0\x01\x97\x00\x5c\x01", True),  # encrypted
        (b"PK\x03\x04\x14\x00\x00\x00", True),  # an archive
        (b"\x00\x00\x01\x2c\xda\xa3\x20\xa7", False),  # a record
        (b"\x00\x00\x01\x2c\xda\xa3\x00\x00", False),  # a broker writes its magic
        (b"\x00\x00\x01\x2c\x00\x00\x00\x00", False),
        (b"\x00\x00\x00\x01\x00\x00\x01\x5c", False),  # an entry of DLedger
    ],
)
def test_a_segment_that_a_broker_cannot_have_begun_is_reported(head: bytes, is_foreign: bool) -> None:
    """A log of random bytes was one that a broker is still writing."""
    (piece,) = walk(head + bytes([7]) * 92, 0)

    assert WAITING == piece.kind
    assert is_foreign == (piece.reason == FOREIGN_BYTES_REASON)
    assert is_foreign == piece.may_lack_messages


def test_a_walk_from_the_middle_uses_the_given_store_time_to_find_leftovers() -> None:
    raw = damage(make_segment([ONE, TWO]), 0)

    assert kinds(list(walk(raw, 0, store_timestamp=STORED))) == [DAMAGE, RECORD, UNWRITTEN]
    assert kinds(list(walk(raw, 0, store_timestamp=STORED + 1))) == [WAITING]


def test_a_walk_reads_at_most_one_record_or_window_per_call() -> None:
    """Neither a gigabyte of zeros nor a corrupt size may allocate a gigabyte."""
    calls: list[int] = []
    raw = bytearray(make_segment([ONE], size=3 << 20))
    raw[ONE.total_size : ONE.total_size + 8] = (2 << 20).to_bytes(4, "big") + b"\xda\xa3\x20\xa8"

    pieces = list(walk_segment(SegmentBytes(make_reader(raw, calls), len(raw), 0)))

    assert kinds(pieces) == [RECORD, WAITING]
    assert max(calls) <= (1 << 20) + 3


def test_a_walk_skips_holes_of_sparse_files() -> None:
    calls: list[int] = []
    raw = make_segment([ONE], size=4096)
    log = SegmentBytes(make_reader(raw, calls), 1 << 40, 0, next_written=lambda at: at if at < len(raw) else 1 << 40)

    assert kinds(list(walk_segment(log))) == [RECORD, UNWRITTEN]
    assert len(calls) < 100


@pytest.mark.parametrize("shift", range(-4, 5))
def test_records_are_found_across_windows(shift: int) -> None:
    at = (1 << 20) + shift
    raw = b"\xff" * at + encode_record(ONE._replace(physical_offset=at)) + bytes(100)

    assert kinds(list(walk(raw, 0))) == [DAMAGE, RECORD, UNWRITTEN]


def test_a_walk_ends_where_a_file_was_truncated_meanwhile() -> None:
    raw = make_segment([ONE, TWO])
    shrunk = SegmentBytes(make_reader(raw[: ONE.total_size]), 4096, 0)

    pieces = list(walk_segment(shrunk))

    assert pieces[0] == Piece(RECORD, 0, ONE.total_size)
    assert END_BY_LAST_PIECE[pieces[-1].kind] is SegmentEnd.OPEN


@given(st.lists(records(), max_size=4), FRAMINGS, st.booleans(), st.integers(0, 1 << 62))
def test_every_log_is_walked_record_by_record(
    messages: list[MessageRecord], framing: Framing, sealed: bool, base_offset: int
) -> None:
    log = make_log(messages, base_offset, framing)
    raw = log + (make_blank(64, framing) if sealed else bytes(64))
    segment = SegmentBytes.from_buffer(raw, base_offset, framing)

    pieces = list(walk_segment(segment, final=sealed))

    found = [segment.record_at(piece.offset - base_offset) for piece in pieces if piece.kind is RECORD]
    wanted = place_records(messages, base_offset, framing)
    if not sealed and messages and not is_fully_written(wanted[-1]):
        assert kinds(pieces)[-1] is WAITING
        wanted.pop()

    assert found == wanted


@given(st.data(), FRAMINGS, st.booleans())
def test_pieces_cover_a_segment_with_any_damage_and_records_before_it_are_not_lost(
    data: st.DataObject, framing: Framing, final: bool
) -> None:
    whole = make_segment([ONE, TWO, THREE], 700, 1000, framing, sealed=data.draw(st.booleans()))
    raw = data.draw(mutations(whole))
    segment = SegmentBytes.from_buffer(raw, 1000, framing)

    pieces = list(walk_segment(segment, final=final))

    first = next((i for i, (old, new) in enumerate(zip(whole, raw, strict=False)) if old != new), len(raw))
    before = [one for one in walk(whole, 1000, framing) if one.end <= 1000 + first and one.kind is RECORD]

    assert pieces[: len(before)] == before
    assert [piece.offset for piece in pieces] == [1000, *(piece.end for piece in pieces)][: len(pieces)]
    assert sum(piece.size for piece in pieces) == len(raw)
    for piece in pieces:
        assert piece.size > 0
        if piece.kind is RECORD:
            record = segment.record_at(piece.offset - 1000)

            assert framing.header_size + record.total_size == piece.size


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", golden_stores("base", "direct", "expired", "crash-later", "types", "dledger"))
def test_stale_bytes_after_a_blank_depend_on_the_release(golden: StoreOf, name: str) -> None:
    """A blank is accepted with any bytes after it: up to 4.9.0, old bytes of the encoder follow it."""
    behind = b"".join(
        bytes(segment.read(pieces[-1].offset - segment.base_offset + BLANK.size, segment.size))
        for segment, pieces in walk_store(golden(name))
        if pieces[-1].kind is BLANK_PIECE
    )

    assert any(behind) == Release.from_version(release_of(name)).stale_blank


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("head", [b"", b"\xff" * 8, b"\0\0\0\1" * 2, b"\0" * 4 + b"\1" * 60, b"\0" * 64])
def test_framing_is_found_after_damaged_first_bytes(framing: Framing, head: bytes) -> None:
    segment = bytearray(make_segment([ONE, TWO, THREE], 2048, 1 << 20, framing))
    segment[: len(head)] = head

    assert framing is find_framing(lambda at, size: bytes(segment[at : at + size]), len(segment), 1 << 20)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("bad_blocks", [1, 2])
def test_framing_is_found_after_an_unreadable_first_block(framing: Framing, bad_blocks: int) -> None:
    """If more blocks are unreadable, the framing cannot be determined."""
    segment = make_segment([make_record(b"x" * 3000)] * 4, 4 * DISK_BLOCK_SIZE, 1 << 20, framing)

    def read(at: int, size: int) -> bytes:
        if at < bad_blocks * DISK_BLOCK_SIZE:
            raise OSError(errno.EIO, f"{size} bytes at {at}")
        return segment[at : at + size]

    assert find_framing(read, len(segment), 1 << 20) is (framing if bad_blocks == 1 else Framing.PLAIN)


def test_two_blocks_of_zeros_suffice_to_recognize_a_preallocated_file() -> None:
    looked = []

    def read(at: int, size: int) -> bytes:
        looked.append(at + size)
        return bytes(size)

    assert find_framing(read, 1 << 30, 0) is Framing.PLAIN
    assert max(looked) <= 2 * DISK_BLOCK_SIZE


def test_a_deleted_file_is_not_damage() -> None:
    """Retention may delete a file during a read; the caller must be able to tell this from damage."""

    def read(at: int, size: int) -> bytes:
        raise FileNotFoundError(errno.ENOENT, f"{size} bytes at {at}")

    with pytest.raises(FileNotFoundError):
        find_framing(read, 1024, 0)
