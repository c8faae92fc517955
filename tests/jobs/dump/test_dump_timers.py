"""`dump` of the timer's files."""

from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from rmq_formats.timer_files import SLOT, UNIT, Slot
from tests.golden import StoreOf
from tests.support.commands import Run, overwrite


@pytest.fixture
def store(situation: StoreOf) -> Path:
    return situation("b551-timerwheel") / "store"


def test_a_wheel_shows_the_slots_that_were_used(store: Path, run: Run) -> None:
    outcome = run("dump", "--json", store / "timerwheel")
    *slots, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [slot["messages"] for slot in slots] == [1, 2, 1, 1, 1, 3, 4, 4, 10]
    assert all(slot["offset"] == slot["slot"] * SLOT.size for slot in slots)
    assert end["end"] == "9 of 1,209,600 slots were ever used; times for timerPrecisionMs=1000"
    assert "slot 225635: 3 due 2026-11-21 14:40:35.000Z, units 860 to 1512" in run("dump", store / "timerwheel").out


def test_a_log_shows_its_units_at_their_positions(store: Path, run: Run) -> None:
    path = store / "timerlog/00000000000000001200"
    outcome = run("dump", "--json", path)
    *units, end = outcome.lines

    assert outcome.code is ExitCode.CLEAN
    assert [unit["offset"] for unit in units] == list(range(1200, 1564, UNIT.size))
    assert [unit["previous"] for unit in units] == [1016, 1068, 1120, 1200, 1252, 1304, 1356]
    assert (end["offset"], end["end"]) == (1564, "nothing is written after this")
    text = run("dump", path).out
    assert "record of 421 bytes at offset 11200, takes a message back; before it 1356" in text
    assert "end of the file" in run("dump", store / "timerlog/00000000000000000600").out


def test_damage_is_named_and_what_follows_is_shown(store: Path, tmp_path: Path, run: Run) -> None:
    log = tmp_path / "timerlog" / f"{1200:020d}"
    log.parent.mkdir()
    log.write_bytes((store / "timerlog" / log.name).read_bytes())
    overwrite(log, UNIT.size, b"\x01\x02\x03\x04")
    overwrite(log, 2 * UNIT.size, b"\x01")
    wheel = tmp_path / "timerwheel"
    wheel.write_bytes(bytes(SLOT.size) + SLOT.pack(*Slot(2, 0, 0, 1)) + b"odd")
    outcome = run("dump", "--json", log)
    of_wheel = run("dump", wheel)

    assert outcome.code is of_wheel.code is ExitCode.DAMAGE
    assert [(line["kind"], line["offset"], line["size"]) for line in outcome.lines[:3]] == [
        ("unit", 1200, UNIT.size),
        ("damage", 1252, 2 * UNIT.size),
        ("unit", 1356, UNIT.size),
    ]
    assert "time 2 is not of this slot" in of_wheel.out
    assert "3 bytes after the last slot" in of_wheel.out


def test_a_terabyte_of_nothing_is_refused_at_once(tmp_path: Path, run: Run) -> None:
    """No broker makes such a wheel; a log ends where nothing is written."""
    for name in ("timerwheel", "log"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)

    assert run("dump", tmp_path / "timerwheel").code is ExitCode.FAILED
    assert "nothing is written" in run("dump", "--as", "timerlog", tmp_path / "log").out
