"""Store times that are far from those of their neighbors, and undecided findings."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.diagnosis.findings import QUEUES, Finding
from jobs.diagnosis.log_check import MAX_TIME_STEP_MS, RangeCheck, find_stray_times
from rmq_formats.commitlog.scan import RawRecords

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
            positions = np.arange(part.size, dtype=np.int64) * 100
            sizes = np.full(part.size, 100, np.int32)
            one.add_times(RawRecords(np.zeros(1, np.uint8), at * 100, positions, sizes), part)
        ranges.append(one)
    return sorted(stray.offset // 100 for each in find_stray_times(ranges) for stray in each)


@given(steps=st.lists(_STEPS, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4), groups=st.integers(1, 5))
def test_stray_times_do_not_depend_on_the_division_of_the_log(steps: list[int], cuts: list[int], groups: int) -> None:
    """A stray time is far from both of its neighbors, which are close to each other."""
    times = [_TIME + sum(steps[:number]) for number in range(len(steps) + 1)]
    expected = [
        number
        for number in range(1, len(times) - 1)
        if min(abs(times[number] - times[number - 1]), abs(times[number] - times[number + 1])) > MAX_TIME_STEP_MS
        and abs(times[number + 1] - times[number - 1]) <= MAX_TIME_STEP_MS
    ]

    assert _count_stray_times(times, cuts, groups) == expected


def test_only_the_field_says_that_a_cause_is_undecided() -> None:
    finding = Finding(QUEUES, "dangling", "consumequeue/T/0/0", 0, "unit", "1", "2", "a or b", is_undecided=True)
    decided = finding._replace(cause="undecided topics were deleted", is_undecided=False)

    assert "undecided: a or b" == finding.cause_text == finding.to_dict()["cause"]
    assert "dangling: consumequeue/T/0/0 @0 unit: 1, expected 2 - undecided: a or b" == finding.text
    assert "undecided topics were deleted" == decided.to_row()["cause"]
    assert "is_undecided" not in finding.to_row()
    assert not decided._replace(is_undecided=True).as_consequence_of(finding).is_undecided
