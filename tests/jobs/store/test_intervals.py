"""Intervals, compared with sets of numbers."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.store.intervals import (
    Interval,
    find_interval,
    find_overlapping,
    is_covered,
    merge_and_find_overlaps,
    merge_intervals,
    uncovered_parts,
)

_BOUND = st.integers(0, 30)
SOME = st.lists(st.tuples(_BOUND, st.integers(1, 8)).map(lambda one: (one[0], one[0] + one[1])), max_size=8)
RANGE = st.tuples(_BOUND, _BOUND).map(sorted)


def numbers_in(intervals: list[Interval]) -> set[int]:
    return {number for start, end in intervals for number in range(start, end)}


@given(SOME)
def test_merged_intervals_have_the_same_numbers_and_do_not_touch(intervals: list[Interval]) -> None:
    merged = merge_intervals(intervals)

    assert numbers_in(intervals) == numbers_in(merged)
    assert all(before[1] < after[0] for before, after in pairwise(merged))


@given(SOME)
def test_parts_that_are_covered_twice_are_found(intervals: list[Interval]) -> None:
    bounds = np.array(intervals, np.int64).reshape(-1, 2)
    merged, twice = merge_and_find_overlaps([(bounds[:, 0], bounds[:, 1])])
    counts = [number for start, end in intervals for number in range(start, end)]
    expected = {number for number in counts if counts.count(number) > 1}

    assert merge_intervals(intervals) == merged
    assert expected == numbers_in(twice)


@given(SOME, RANGE)
def test_uncovered_parts_complete_the_covered_ones(intervals: list[Interval], bounds: list[int]) -> None:
    start, end = bounds
    parts = list(uncovered_parts(sorted(intervals), start, end))

    assert set(range(start, end)) - numbers_in(intervals) == numbers_in(parts)
    assert is_covered(intervals, start, end) == (not parts)


@given(SOME, RANGE)
def test_an_interval_is_found_by_a_number_and_by_an_overlapping_range(
    intervals: list[Interval], bounds: list[int]
) -> None:
    merged, (start, end) = merge_intervals(intervals), bounds
    expected = [one for one in merged if one[0] < end and one[1] > start]

    assert expected == list(find_overlapping(merged, start, end))
    assert next((one for one in merged if one[0] <= start < one[1]), None) == find_interval(merged, start)
