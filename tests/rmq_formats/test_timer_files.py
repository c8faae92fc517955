"""The timer's wheel, log and progress, as a real broker wrote them."""

import json
from pathlib import Path

import pytest

from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.properties import parse_properties
from rmq_formats.release import Release
from rmq_formats.timer_files import (
    END,
    LARGEST_WHEEL,
    PROGRESS,
    SLOT,
    UNIT,
    Progress,
    Slot,
    TimerUnit,
    decode_progress,
    decode_timer_unit,
    written_slots,
)
from tests.golden import StoreOf
from tests.support.stores import records_of, segments_of

# Of 5.5.1: the second unit of a slot, and the end of a file.
_UNIT = "00000034000000000000003400000001000001a1fe8c9af0000007d000000000000008dc0000015304d117170000000000000000"
_END = "0000001c" + "00" * 8 + "cbd43194"


@pytest.fixture
def store(situation: StoreOf) -> Path:
    """Give a store of 5.5.1 with messages that were delivered, that wait, that were rolled and taken back."""
    return situation("b551-timerwheel")


def slots_of(wheel: bytes) -> dict[int, Slot]:
    return dict(written_slots(lambda position, length: wheel[position : position + length], len(wheel)))


def units_of(folder: Path) -> dict[int, TimerUnit]:
    found = {}
    for path in sorted(folder.iterdir()):
        data, base = path.read_bytes(), int(path.name)
        for position in range(0, len(data), UNIT.size):
            unit = decode_timer_unit(data[position : position + UNIT.size], base + position)
            if unit is None:
                break
            found[base + position] = unit
    return found


def test_what_waits_is_what_the_broker_counted(store: Path) -> None:
    """Slots from the read time on: their numbers, and their units less the message that was taken back, twice."""
    answer = json.loads((store / "EXPECT.json").read_text())["beforeStop"]["timer"]
    progress = decode_progress((store / "store/config/timercheck").read_bytes())
    slots = slots_of((store / "store/timerwheel").read_bytes())
    units = units_of(store / "store/timerlog")
    waiting = [slot for slot in slots.values() if slot.due_ms() >= progress.read_timestamp]
    chained = []
    for slot in waiting:
        first = at = slot.last
        while at >= 0:
            chained.append(units[at])
            assert units[at].due_ms == slot.due_ms()
            first, at = at, units[at].previous
        assert first == slot.first

    assert all(slot.time % (2 * answer["slotsTotal"]) == number for number, slot in slots.items())
    assert progress.queue_offset == answer["currQueueOffset"] == len(units)
    assert sum(slot.messages for slot in waiting) == answer["allNum"] == 21
    assert len(chained) - 2 * sum(unit.takes_back for unit in chained) == 21
    assert sum(unit.is_rolled for unit in chained) == 10


def test_every_unit_leads_to_a_record_of_the_timers_topic(store: Path) -> None:
    parser = Release.of("5.5.1").property_parser
    records = {record.physical_offset: record for record, _ in records_of(segments_of(store / "store"))}

    for unit in units_of(store / "store/timerlog").values():
        record = records[unit.physical_offset]
        due = int(parse_properties(record.properties_raw, parser)["TIMER_OUT_MS"])
        assert (record.topic, record.total_size) == ("rmq_sys_wheel_timer", unit.record_size)
        assert due > unit.due_ms if unit.is_rolled else due // 1000 * 1000 == unit.due_ms


def test_a_unit_is_its_bytes() -> None:
    data = bytes.fromhex(_UNIT)

    assert decode_timer_unit(data, 104) == TimerUnit(52, 52, 1, 1795271990000, 2000, 2268, 339, 80811799, 0)
    assert UNIT.pack(*decode_timer_unit(data, 104) or ()) == data


@pytest.mark.parametrize("data", [b"", bytes(10), bytes(52), bytes.fromhex(_END), bytes.fromhex(_END) + bytes(36)])
def test_zeros_and_the_end_of_a_file_are_no_unit(data: bytes) -> None:
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
def test_other_bytes_are_no_unit(change: dict[str, int], at: int) -> None:
    """A unit leads back, never forward: whoever follows it comes to an end."""
    unit = decode_timer_unit(bytes.fromhex(_UNIT), 104)
    assert unit is not None
    with pytest.raises(CorruptData) as raised:
        decode_timer_unit(UNIT.pack(*unit._replace(**change)), at)

    assert raised.value.offset == at


def test_a_unit_that_is_cut_off_is_said_to_be() -> None:
    with pytest.raises(NeedMoreData):
        decode_timer_unit(bytes.fromhex(_UNIT)[:51], 104)


def test_slots_are_found_in_any_window_of_a_wheel() -> None:
    count = 3 << 15
    wheel = bytearray(count * SLOT.size)
    used = {0: Slot(count, 0, 0, 1), 1 << 15: Slot(1 << 15, 1, 2, 3), count - 1: Slot(count - 1, -1, -1, -1)}
    for number, slot in used.items():
        wheel[number * SLOT.size : (number + 1) * SLOT.size] = SLOT.pack(*slot)

    assert slots_of(bytes(wheel)) == used
    assert slots_of(bytes(wheel[:-1])) == {number: used[number] for number in (0, 1 << 15)}


def test_a_wheel_that_no_broker_makes_is_not_read() -> None:
    with pytest.raises(CorruptData, match="1,073,741,825 bytes"):
        next(written_slots(lambda _position, _length: pytest.fail("it was read"), LARGEST_WHEEL + 1))


def test_progress_is_seven_numbers() -> None:
    assert decode_progress(PROGRESS.pack(*range(1, 8)) + bytes(100)) == Progress(1, 2, 3, 4, 5, 6, 7)
    assert (SLOT.size, UNIT.size, END.size) == (32, 52, 16)
