"""Other files of real brokers: those of the timer, the index of a tier, and epochs."""

from pathlib import Path

import numpy as np
import pytest

from rmq_formats import tier_index
from rmq_formats.broker_conf import Epoch, decode_epochs
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.tier_index import ENTRY, HEADER, decode_tier_index
from rmq_formats.timer_files import (
    MAX_WHEEL_SIZE,
    SLOT,
    TIMER_LOG_END,
    UNIT,
    Slot,
    TimerUnit,
    decode_timer_unit,
    used_slots,
)
from tests.golden import StoreOf
from tests.rmq_formats.builders import damage, make_reader

# Of 5.5.1: the second unit of a slot, and the end of a file.
_UNIT = "00000034000000000000003400000001000001a1fe8c9af0000007d000000000000008dc0000015304d117170000000000000000"
_END = "0000001c" + "00" * 8 + "cbd43194"


def slots_of(wheel: bytes) -> dict[int, Slot]:
    return dict(used_slots(make_reader(wheel), len(wheel)))


def test_a_timer_unit_is_decoded_and_encoded() -> None:
    data = bytes.fromhex(_UNIT)

    assert decode_timer_unit(data, 104) == TimerUnit(52, 52, 1, 1795271990000, 2000, 2268, 339, 80811799, 0)
    assert UNIT.pack(*decode_timer_unit(data, 104) or ()) == data


@pytest.mark.parametrize(("flags", "rolled", "cancels"), [(1, False, False), (3, True, False), (5, False, True)])
def test_flags_of_a_timer_unit_show_whether_it_is_rolled_or_cancels(flags: int, rolled: bool, cancels: bool) -> None:
    unit = TimerUnit(52, 52, flags, 1795271990000, 2000, 2268, 339, 80811799)

    assert decode_timer_unit(UNIT.pack(*unit), 104) == unit
    assert (unit.is_rolled, unit.is_cancellation, unit.due_ms) == (rolled, cancels, 1795271992000)


@pytest.mark.parametrize("data", [b"", bytes(10), bytes(52), bytes.fromhex(_END), bytes.fromhex(_END) + bytes(36)])
def test_zeros_and_end_marks_are_not_timer_units(data: bytes) -> None:
    assert decode_timer_unit(data, 0) is None


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"unit_size": 53}, 104),
        ({"flags": 0}, 104),
        ({"flags": 8}, 104),
        ({"previous": 104}, 104),
        ({"previous": -2}, 104),
    ],
)
def test_malformed_timer_units_are_rejected(change: dict[str, int], at: int) -> None:
    """A unit must point to an earlier one, so that every chain ends."""
    unit = decode_timer_unit(bytes.fromhex(_UNIT), 104)
    assert unit is not None
    with pytest.raises(CorruptData) as raised:
        decode_timer_unit(UNIT.pack(*unit._replace(**change)), at)

    assert raised.value.offset == at
    with pytest.raises(NeedMoreData):
        decode_timer_unit(bytes.fromhex(_UNIT)[:51], at)


def test_slots_are_found_in_every_window_of_a_wheel() -> None:
    count = 3 << 15
    wheel = bytearray(count * SLOT.size)
    used = {0: Slot(count, 0, 0, 1), 1 << 15: Slot(1 << 15, 1, 2, 3), count - 1: Slot(count - 1, -1, -1, -1)}
    for number, slot in used.items():
        wheel[number * SLOT.size : (number + 1) * SLOT.size] = SLOT.pack(*slot)

    assert slots_of(bytes(wheel)) == used
    assert slots_of(bytes(wheel[:-1])) == {number: used[number] for number in (0, 1 << 15)}


def test_an_oversized_timer_wheel_is_not_read() -> None:
    with pytest.raises(CorruptData, match="1,073,741,825 bytes"):
        next(used_slots(lambda _position, _length: pytest.fail("it was read"), MAX_WHEEL_SIZE + 1))

    assert (SLOT.size, UNIT.size, TIMER_LOG_END.size) == (32, 52, 16)


_FOLDER = "tiered/212d6b50_DefaultCluster/b0/rmq_sys_INDEX/0/INDEX"
_SLOTS = 50  # tieredStoreIndexFileMaxHashSlotNum of the store


@pytest.fixture
def place(situation: StoreOf) -> Path:
    return situation("b550-tiered")


def files(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((place / _FOLDER).iterdir(), key=lambda path: path.name[-20:])]


def test_time_differences_are_rounded_toward_zero(place: Path) -> None:
    index = decode_tier_index(files(place)[0])
    begin = index.begin_timestamp
    times = np.array([begin - 1999, begin - 999, begin, begin + 999, begin + 1000], np.int64)

    assert [-1, 0, 0, 0, 1] == index.time_diffs_s(times).tolist()


@pytest.mark.parametrize(
    ("position", "raw", "field"),
    [
        (HEADER.offset("slots_used"), b"\0\0\0\7", "slots_used"),
        (HEADER.offset("entry_count"), b"\0\0\0\7", "entry_count"),
        (HEADER.size + tier_index.SLOT.size, b"\0\0\0\7", "slot 1"),
        (HEADER.size + tier_index.SLOT.size * 2 + 4, b"\0\0\0\7", "slot 2"),
        (HEADER.size + tier_index.SLOT.size * 2 + 4, b"\xff\xff\xff\xe4", "slot 2"),
        (HEADER.size + tier_index.SLOT.size * _SLOTS, b"\0\0\0\7", "entry 0 key_hash"),
        (HEADER.size + tier_index.SLOT.size * _SLOTS, b"\xff", "entry 0 key_hash"),
    ],
)
def test_a_contradiction_within_a_file_is_located(place: Path, position: int, raw: bytes, field: str) -> None:
    (difference,) = decode_tier_index(damage(files(place)[0], position, raw)).find_contradictions()

    assert (field, 1) == (difference.field, difference.times)
    assert difference.found != difference.expected


def test_a_truncated_file_is_reported_with_its_expected_size(place: Path) -> None:
    data = files(place)[0]
    index = decode_tier_index(data[:-30])
    (difference,) = index.find_contradictions()

    assert (str(len(data) - 30), str(len(data))) == (difference.found, difference.expected)
    assert index.entry_count - 2 == len(index.entries)
    assert index.entry_position(len(index.entries)) == len(data) - 2 * ENTRY.size


@pytest.mark.parametrize(
    ("position", "raw", "why"),
    [
        *((0, raw, "magic") for raw in (b"\xbc\xc5\x02\x89", bytes(4))),
        *((HEADER.size, slot.to_bytes(4, "big"), "cannot begin") for slot in (0, HEADER.size, HEADER.size + 1)),
    ],
)
def test_unfinished_files_and_invalid_first_slots_are_rejected(
    place: Path, position: int, raw: bytes, why: str
) -> None:
    with pytest.raises(CorruptData, match=why):
        decode_tier_index(damage(files(place)[0], position, raw))


@pytest.mark.parametrize(
    "size", [0, HEADER.size, HEADER.size + tier_index.SLOT.size - 1, HEADER.size + tier_index.SLOT.size * _SLOTS - 1]
)
def test_a_file_that_ends_within_its_slots_is_incomplete(place: Path, size: int) -> None:
    with pytest.raises(NeedMoreData):
        decode_tier_index(files(place)[0][:size])


# As RocketMQ 5.5.1 wrote it, before and after a failover.
FIRST = b"1\n1725254278\n1-0\n"
SECOND = b"2\n1005756896\n1-0\n2-20340\n"


def test_epochs_start_at_the_first_offset_of_their_master() -> None:
    assert decode_epochs(FIRST) == (Epoch(1, 0),)
    assert decode_epochs(SECOND) == (Epoch(1, 0), Epoch(2, 20340))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1\n",
        b"2\n1725254278\n1-0\n",
        SECOND.replace(b"20340", b"20341"),
        b"1\n1\none-0\n",
        b"1\n1\n1-0-0\n",
        b"\xff",
    ],
    ids=["empty", "no CRC", "other count", "other offset", "no number", "three numbers", "no text"],
)
def test_malformed_epoch_files_are_rejected(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_epochs(raw)
