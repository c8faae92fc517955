"""
Terms of a DLedger log: a new leader takes entries back, and what it leaves of them is not read.

Seen in real groups of three: the old leader's last entries, which no other member had, stay in its log after what the
new leader wrote over the first of them, each where it says that it stands (`tests/oracle/test_group.py`).
"""

import errno
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.layout import DLEDGER_ENTRY
from rmq_formats.commitlog.segment import LEFTOVER, LOWEST_TERM, Framing, PieceKind, SegmentBytes, walk
from tests.rmq_formats.builders import a_blank, a_record, framed, placed
from tests.rmq_formats.strategies import mutations
from tests.rmq_formats.test_scan import BASE, WINDOWS, scanned

_RECORD, _WAITING, _BLANK = PieceKind.RECORD, PieceKind.WAITING, PieceKind.BLANK


def entries(terms: Sequence[int], body: bytes = b"hello") -> bytes:
    log = b""
    for number, record in enumerate(placed([a_record(body)] * len(terms), BASE, Framing.DLEDGER)):
        entry = bytearray(framed(record, Framing.DLEDGER, number))
        at = DLEDGER_ENTRY.offset("term")
        entry[at : at + 8] = terms[number].to_bytes(8, signed=True)
        log += entry
    return log


@pytest.mark.parametrize("rest", [b"", bytes(500), a_blank(500, Framing.DLEDGER)], ids=["none", "zeros", "stale end"])
def test_an_entry_of_a_lower_term_than_the_one_before_it_waits(rest: bytes) -> None:
    raw = entries([1, 2, 2, 1, 1]) + rest
    pieces = list(walk(raw, BASE, Framing.DLEDGER))
    size = len(entries([1]))

    assert [piece.kind for piece in pieces] == [_RECORD] * 3 + [_WAITING]
    assert pieces[-1][1:] == (BASE + 3 * size, len(raw) - 3 * size, LEFTOVER)
    assert scanned(raw, Framing.DLEDGER) == pieces


@pytest.mark.parametrize("terms", [[-1, -1, -1], [-1, 0, 3], [-7, -1]])
@pytest.mark.parametrize("start", [0, 1])
def test_terms_begin_below_zero_where_nobody_had_to_be_elected(terms: list[int], start: int) -> None:
    """A group of one leads with term -1 up to 4.7.1."""
    raw = entries(terms) + bytes(500)
    size = len(entries([0]))
    pieces = list(walk(raw, BASE, Framing.DLEDGER, start=start * size))

    assert [piece.kind for piece in pieces] == [_RECORD] * (len(terms) - start) + [PieceKind.UNWRITTEN]
    assert scanned(raw, Framing.DLEDGER, start=start * size) == pieces


def test_a_record_that_is_not_whole_yet_waits_although_a_leftover_follows_it() -> None:
    """It is being written over entries of its own size."""
    raw = bytearray(entries([1, 2, 2, 1]))
    size = len(raw) // 4
    raw[3 * size - 5 : 3 * size] = bytes(5)
    pieces = list(walk(bytes(raw), BASE, Framing.DLEDGER))

    assert [piece.kind for piece in pieces] == [_RECORD, _RECORD, _WAITING]
    assert scanned(bytes(raw), Framing.DLEDGER) == pieces


def test_a_later_run_that_begins_at_a_leftover_does_not_take_it_either() -> None:
    """It looks after itself for the term of the entry that ends there, however long that is."""
    raw = entries([1, 2, 1], body=bytes(range(256)) * 5000)
    start = len(raw) // 3 * 2
    pieces = list(walk(raw, BASE, Framing.DLEDGER, start=start))

    assert [piece.kind for piece in pieces] == [_WAITING]
    assert scanned(raw, Framing.DLEDGER, start=start) == pieces


def test_in_a_segment_that_is_followed_terms_say_nothing() -> None:
    """Later segments go when an earlier one is written again: a term that falls there is damage to a header."""
    raw = entries([1, 2, 1]) + a_blank(100, Framing.DLEDGER)
    pieces = list(walk(raw, BASE, Framing.DLEDGER, final=True))

    assert [piece.kind for piece in pieces] == [_RECORD] * 3 + [_BLANK]
    assert scanned(raw, Framing.DLEDGER, final=True) == pieces


def test_damage_says_nothing_of_terms_wherever_a_range_begins() -> None:
    """A term that is wrong itself must not hide what a range that begins after the damage would find."""
    raw = bytearray(entries([1, 900, 1, 1, 1]))
    size = len(raw) // 5
    raw[2 * size : 3 * size] = bytes([255]) * size
    whole = list(walk(bytes(raw), BASE, Framing.DLEDGER))
    kinds = [_RECORD, _RECORD, PieceKind.DAMAGE, _RECORD, _RECORD]

    assert [piece.kind for piece in whole] == kinds
    assert scanned(bytes(raw), Framing.DLEDGER) == whole
    assert scanned(bytes(raw), Framing.DLEDGER, window=64) == whole
    assert scanned(bytes(raw), Framing.DLEDGER, start=3 * size) == whole[3:]


def test_an_entry_whose_record_is_damaged_still_says_its_term() -> None:
    """Its header adds up: a lower term after it is a leftover."""
    raw = bytearray(entries([2, 2, 2, 1]))
    size = len(raw) // 4
    raw[2 * size + DLEDGER_ENTRY.size + 4] = 0  # the record's magic
    pieces = list(walk(bytes(raw), BASE, Framing.DLEDGER))

    assert [piece.kind for piece in pieces] == [_RECORD, _RECORD, PieceKind.DAMAGE, _WAITING]
    assert scanned(bytes(raw), Framing.DLEDGER) == pieces


def test_the_first_entry_of_a_segment_says_its_term() -> None:
    first = entries([3])

    assert SegmentBytes.of(first, BASE, Framing.DLEDGER).term_before(len(first)) == 3


def test_a_bad_sector_says_no_term() -> None:
    segment = SegmentBytes(_failing(OSError(errno.EIO, "bad sector")), 4096, BASE, Framing.DLEDGER)

    assert segment.term_before(200) == LOWEST_TERM


@pytest.mark.parametrize("error", [FileNotFoundError("deleted"), PermissionError("denied"), OSError("a network")])
def test_a_file_that_cannot_be_reached_is_no_damage(error: OSError) -> None:
    """Whoever reads must know: a deleted file, a denial and a network that fails say nothing of the bytes."""
    segment = SegmentBytes(_failing(error), 4096, BASE, Framing.DLEDGER)

    with pytest.raises(type(error)):
        segment.term_before(200)


def _failing(error: OSError) -> Callable[[int, int], bytes]:
    def read(_position: int, _length: int) -> bytes:
        raise error

    return read


def test_a_plain_log_has_no_terms() -> None:
    assert SegmentBytes.of(entries([3]), BASE).term_before(len(entries([3]))) == LOWEST_TERM


_TERMS = st.one_of(st.integers(-1, 3), st.sampled_from([-(1 << 63), LOWEST_TERM, (1 << 63) - 1]))


@given(terms=st.lists(_TERMS, max_size=6), data=st.data(), window=WINDOWS, final=st.booleans())
def test_the_compiled_walk_knows_the_same_leftovers(
    terms: list[int], data: st.DataObject, window: int, final: bool
) -> None:
    size = len(entries([0]))
    raw = entries(terms) + data.draw(st.sampled_from([b"", bytes(100), a_blank(100, Framing.DLEDGER)]))
    raw = data.draw(mutations(raw)) if data.draw(st.booleans()) else raw
    start = min(data.draw(st.integers(0, len(terms))) * size, len(raw))

    assert scanned(raw, Framing.DLEDGER, start=start, window=window, final=final) == list(
        walk(raw, BASE, Framing.DLEDGER, start=start, final=final)
    )
