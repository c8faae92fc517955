"""What waits in the timer's files, whichever file counts and however long a slot is."""

import shutil
from pathlib import Path

import pytest

from jobs.store.store import list_store
from jobs.store.waiting import TimerState, timer_state, waiting_units
from rmq_formats.errors import CorruptData
from rmq_formats.timer_files import PROGRESS, SLOT, UNIT, Slot, TimerUnit
from tests.golden import StoreOf
from tests.support.commands import overwrite


@pytest.fixture
def store(situation: StoreOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(situation("b551-timerwheel") / "store", tmp_path / "store"))


def state_of(store: Path) -> TimerState:
    state = timer_state(list_store(str(store)))
    assert state is not None
    return state


def units_of(store: Path) -> list[TimerUnit]:
    return list(waiting_units(list_store(str(store)), state_of(store)))


def test_waiting_are_the_slots_from_the_read_time_on(store: Path) -> None:
    """The broker said 21; one unit takes a message back, whose own unit stays."""
    state = state_of(store)

    assert (state.wheel, state.waiting, state.precision_ms) == ("timerwheel", 21, 1000)
    assert state.due == (1795272035000, 1795272050000)
    assert [sum(unit.takes_back is back for unit in units_of(store)) for back in (False, True)] == [22, 1]


def test_the_snapshot_of_the_largest_position_counts(store: Path) -> None:
    """The plain wheel is all zeros then, as timerWheelSnapshotFlush leaves it."""
    wheel = store / "timerwheel"
    wheel.rename(store / "timerwheel.1564")
    for name in ("timerwheel", "timerwheel.988"):
        with (store / name).open("wb") as file:
            file.truncate((store / "timerwheel.1564").stat().st_size)
    state = state_of(store)

    assert (state.wheel, state.waiting) == ("timerwheel.1564", 21)


def test_slots_of_half_a_second_are_known_by_their_units(tmp_path: Path) -> None:
    """No file says timerPrecisionMs; with the default, what was delivered would wait."""
    due = 1_795_272_035_500
    slot, unit = Slot(due // 500, 0, 0, 1), TimerUnit(UNIT.size, -1, 1, due - 4000, 4000, 0, 100, 7)
    wheel = bytearray(64 * SLOT.size)
    place = slot.time % 64 * SLOT.size
    wheel[place : place + SLOT.size] = SLOT.pack(*slot)
    for folder in ("timerlog", "config", "commitlog"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(64))
    (tmp_path / "timerwheel").write_bytes(wheel)
    (tmp_path / "timerlog" / f"{0:020d}").write_bytes(UNIT.pack(*unit) + bytes(100))
    waiting = []
    for read_until in (due, due + 500):
        (tmp_path / "config/timercheck").write_bytes(PROGRESS.pack(read_until, 0, 0, 0, 0, 0, 0))
        state = state_of(tmp_path)
        waiting.append((state.precision_ms, state.waiting))

    assert waiting == [(500, 1), (500, 0)]


@pytest.mark.parametrize("missing", ["timerwheel", "config/timercheck"])
def test_without_a_wheel_or_its_progress_nothing_is_said(store: Path, missing: str) -> None:
    (store / missing).unlink()

    assert timer_state(list_store(str(store))) is None


def test_a_wheel_that_leads_nowhere_is_damage_in_a_closed_store_alone(store: Path) -> None:
    """After a loss of power the wheel's page may be on the disk, and the log's not yet."""
    overwrite(store / "timerlog" / f"{1200:020d}", 1512 - 1200, bytes(UNIT.size))
    with pytest.raises(CorruptData, match="at offset 1512"):
        units_of(store)
    (store / "abort").touch()
    assert len(units_of(store)) == 18


def test_a_damaged_unit_is_named_with_its_file(store: Path) -> None:
    overwrite(store / "timerlog" / f"{600:020d}", 808 - 600, b"\1")
    with pytest.raises(CorruptData) as raised:
        units_of(store)

    assert (raised.value.offset, raised.value.file) == (808, f"{store}/timerlog/{600:020d}")
