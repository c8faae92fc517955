"""Axes: ticks at round numbers and round times."""

import pytest

from jobs.report.axes import duration_name, round_duration, round_step, time_ticks


@pytest.mark.parametrize(("highest", "step"), [(49, 20), (85, 50), (8, 2), (1_000_000, 500_000), (0.9, 0.5), (31, 10)])
def test_ticks_lie_at_round_numbers(highest: float, step: float) -> None:
    assert step == pytest.approx(round_step(highest))


@pytest.mark.parametrize(
    ("least", "duration", "name"),
    [
        (455, 500, "500 ms"),
        (1, 1, "1 ms"),
        (61_000, 120_000, "2 min"),
        (4_000_000, 7_200_000, "2 h"),
        (1e8, 172_800_000, "2 d"),
    ],
)
def test_a_bucket_is_as_wide_as_people_would_make_it(least: float, duration: int, name: str) -> None:
    assert (duration, name) == (round_duration(least), duration_name(duration))


def test_ticks_lie_at_round_times() -> None:
    evening = 1_763_675_100_000  # 2025-11-20 21:45:00 UTC
    labels = [tick.label for tick in time_ticks(evening, evening + 5 * 3_600_000)]

    assert ["22:00", "23:00", "11-21 00:00", "01:00", "02:00"] == labels
