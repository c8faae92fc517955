"""Predictions of the broker's next start by `inspect` and `verify`, on damaged stores of real brokers."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.console.result import ExitCode
from jobs.diagnosis.log_check import MAX_TIME_STEP_MS, RangeCheck, find_stray_times
from rmq_formats.commitlog.scan import RawRecords
from tests.golden import StoreOf, golden_stores
from tests.support.commands import Run, copy_store
from tests.support.fault_kinds import records_in, set_store_times

_TIME = 1_795_160_458_000
_FAR = (MAX_TIME_STEP_MS + 1, 40 * MAX_TIME_STEP_MS, 1 << 45)
_STEPS = st.sampled_from([0, 1, -1, 5000, -5000, *_FAR, *(-far for far in _FAR)])


def _count_stray_times(times: list[int], cuts: list[int], groups: int) -> list[int]:
    """Return the numbers of stray times in a log that is divided into ranges, each read in groups."""
    ranges = []
    for start, end in pairwise(sorted({0, len(times), *(cut for cut in cuts if cut < len(times))})):
        one = RangeCheck()
        for at in range(start, end, groups):
            part = np.array(times[at : min(at + groups, end)], np.int64)
            positions, sizes = np.arange(part.size, dtype=np.int64) * 100, np.full(part.size, 100, np.int32)
            one.add_times(RawRecords(np.zeros(1, np.uint8), at * 100, positions, sizes), part)
        ranges.append(one)
    return sorted(stray.offset // 100 for each in find_stray_times(ranges) for stray in each)


@given(steps=st.lists(_STEPS, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4), groups=st.integers(1, 5))
def test_stray_times_do_not_depend_on_the_division_of_the_log(steps: list[int], cuts: list[int], groups: int) -> None:
    """A stray time is far from both of its neighbours, which are close to each other."""
    times = [_TIME + sum(steps[:number]) for number in range(len(steps) + 1)]
    expected = [
        number
        for number in range(1, len(times) - 1)
        if min(abs(times[number] - times[number - 1]), abs(times[number] - times[number + 1])) > MAX_TIME_STEP_MS
        and abs(times[number + 1] - times[number - 1]) <= MAX_TIME_STEP_MS
    ]
    assert _count_stray_times(times, cuts, groups) == expected


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return copy_store(golden("b533-direct"), tmp_path)


def _find_record_without_key(store: Path) -> int:
    """Return the number of a record in the middle of the log without an index entry."""
    records = [record.record for record in records_in(store)]
    names = (b"KEYS\1", b"UNIQ_KEY\1")
    return next(
        number
        for number, record in enumerate(records[5:-5], 5)
        if not any(name in record.properties_raw for name in names)
    )


@pytest.mark.parametrize("bit", [31, 36, 45, 62])
def test_a_changed_bit_in_a_store_time_is_damage_even_without_a_key(store: Path, bit: int, run: Run) -> None:
    number = _find_record_without_key(store)
    place = records_in(store)[number].record.physical_offset
    set_store_times(store, lambda at, one: one.store_timestamp ^ (1 << bit if at == number else 0))

    outcome = run("verify", "--engine", "here", "--json", store)

    found = [(finding["kind"], finding["field"], finding["log_offset"]) for finding in outcome.document["findings"]]
    assert ("wrong_store_time", "store_timestamp", place) in found
    assert outcome.code is ExitCode.DAMAGE


def test_a_wrong_time_not_explained_by_one_bit_is_undecided(store: Path, run: Run) -> None:
    """The clock may have been wrong for one message; the store is neither damaged nor healthy."""
    number = _find_record_without_key(store)
    set_store_times(store, lambda at, one: one.store_timestamp + (123_456_789_012 if at == number else 0))

    outcome = run("verify", "--engine", "here", "--json", store)

    assert [finding["kind"] for finding in outcome.document["findings"]] == []
    assert "undecided" in outcome.document["unverified"]["log"]
    assert outcome.document["severity"] == "not verified"


@pytest.mark.parametrize("name", golden_stores("clock"))
def test_a_clock_that_was_adjusted_is_healthy(golden: StoreOf, name: str, run: Run) -> None:
    """Store times that jump by years and stay there, as real brokers stored them."""
    outcome = run("verify", "--engine", "here", "--json", golden(name))

    assert outcome.code is ExitCode.CLEAN
    assert "log" not in outcome.document["unverified"]
