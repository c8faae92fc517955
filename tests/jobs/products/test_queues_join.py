"""The join of queues with a log: what is left between the runs that ranges have matched."""

import tracemalloc
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jobs.products.queues.join import gaps_between, matched_runs
from jobs.products.queues.range_matcher import RangeMatches

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


@given(RUNS, st.integers(0, 40), st.integers(0, 80))
def test_gaps_are_the_places_that_no_run_covers(runs: list[tuple[int, int]], start: int, end: int) -> None:
    end = max([start, end, *(at + length for at, length in runs)])
    covered = {place for at, length in runs for place in range(at, at + length)}
    matched = np.array(sorted(runs), np.int64).reshape(-1, 2)
    gaps = list(gaps_between(start, end, matched))

    assert [place for gap in gaps for place in range(*gap)] == sorted(set(range(start, end)) - covered)
    assert all(before[1] < after[0] for before, after in pairwise(gaps))


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.integers(1, 9)), max_size=6), max_size=6))
def test_runs_of_all_ranges_are_put_together_by_queue(ranges: list[list[tuple[int, int, int]]]) -> None:
    matches = [RangeMatches(matched=np.array(runs, np.int64).reshape(-1, 3)) for runs in ranges]
    found = {number: runs.tolist() for number, runs in matched_runs(matches).items()}
    every = sorted(run for runs in ranges for run in runs)
    expected = {number: [run[1] for run in every if run[0] == number] for number, _, _ in every}

    assert {number: [position for position, _ in runs] for number, runs in found.items()} == expected


def test_a_pair_of_a_range_and_a_queue_takes_a_hundred_bytes_of_the_driver_at_most() -> None:
    """It took 416 bytes: two tuples of Python's numbers beside the arrays."""
    queues, ranges = 500, 200
    matches = [
        RangeMatches(matched=np.array([(queue, 10 * number, 10) for queue in range(queues)], np.int64))
        for number in range(ranges)
    ]
    tracemalloc.start()
    gaps = [
        gap for number, runs in matched_runs(matches).items() for gap in gaps_between(0, 10 * ranges + number, runs)
    ]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(gaps) == queues - 1
    assert peak < 100 * queues * ranges
