"""Which queue offsets a broker says that a queue holds; `tests/oracle` holds the rule to real brokers."""

import pytest

from rmq_formats.release import Release
from tests.rmq_formats.reference import queue_bounds

OLD, NEW = Release.of("4.9.8"), Release.of("5.0.0")


def bounds(log_start: int, release: Release, *, start: int = 10, units: int = 25) -> tuple[int, int]:
    """Ask for a queue of files of ten units, whose n-th unit points at n * 100."""
    return queue_bounds(start, start + 10, start + units, lambda position: position * 100, log_start, release)


@pytest.mark.parametrize("release", [OLD, NEW])
@pytest.mark.parametrize(("log_start", "minimum"), [(0, 10), (1000, 10), (1001, 11), (1900, 19)])
def test_the_minimum_is_the_first_unit_into_the_log(log_start: int, minimum: int, release: Release) -> None:
    assert bounds(log_start, release) == (minimum, 35)


@pytest.mark.parametrize("release", [OLD, NEW])
def test_where_the_first_file_has_no_such_unit_the_minimum_stays_0(release: Release) -> None:
    assert bounds(2000, release) == (0, 35)


@pytest.mark.parametrize(("release", "minimum"), [(OLD, 0), (NEW, 35)])
def test_a_queue_that_has_nothing_left_begins_at_its_end_from_5_0_0_on(release: Release, minimum: int) -> None:
    """Before, its minimum stays 0."""
    assert bounds(3401, release) == (minimum, 35)


def test_a_queue_shorter_than_a_file_ends_where_its_units_end() -> None:
    assert bounds(1200, OLD, units=4) == (12, 14)
    assert bounds(0, NEW, start=0, units=0) == (0, 0)
