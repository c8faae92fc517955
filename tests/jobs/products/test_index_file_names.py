"""Names of rebuilt index files: times that sort where the files belong, whatever is on either side."""

from datetime import UTC, timedelta, timezone

import pytest

from jobs.products.index.file_names import detect_zone, name_of_time, names_between

CHINA = timezone(timedelta(hours=8))
DAY = "19700101000000"  # and milliseconds


@pytest.mark.parametrize(
    ("time", "zone", "name"),
    [
        (0, UTC, "19700101000000000"),
        (1_700_000_000_123, CHINA, "20231115061320123"),
        (1 << 62, UTC, "99991231235959999"),
        (-1 << 62, UTC, "00010101000000000"),
    ],
)
def test_a_file_is_named_after_its_first_message(time: int, zone: timezone, name: str) -> None:
    assert name_of_time(time, zone) == name


@pytest.mark.parametrize(
    ("times", "before", "following", "ends"),
    [
        ([5, 9], "", "", ["005", "009"]),
        ([5, 5, 5], "", "", ["005", "006", "007"]),
        ([5], "005", "", ["006"]),
        ([10, 20], "", "012", ["010", "011"]),
        ([10, 20], "009", "011", ["0091", "0092"]),
        ([5, 6], "005", "006", ["0051", "0052"]),
        ([5] * 10, "005", "006", [f"005{number:02d}" for number in range(1, 11)]),
    ],
)
def test_files_sort_between_their_neighbours(times: list[int], before: str, following: str, ends: list[str]) -> None:
    names = names_between(times, UTC, DAY + before if before else "", DAY + following if following else "")

    assert names == [DAY + end for end in ends]


@pytest.mark.parametrize(("files", "following"), [(2, "0052"), (100, "006")])
def test_where_no_names_are_left_that_is_said(files: int, following: str) -> None:
    """A broker reads a name as a number of 64 bits: twenty digits may be too many."""
    with pytest.raises(OSError, match=f"no {files} names sort between {DAY}005 and {DAY}{following}"):
        names_between([5] * files, UTC, f"{DAY}005", DAY + following)


def test_the_zone_is_that_of_most_names() -> None:
    times = [1_700_000_000_000, 1_700_000_100_000, 1_700_000_200_000]
    named = [(name_of_time(time, CHINA), time) for time in times]

    assert detect_zone([*named, (name_of_time(times[0], UTC), times[0])]) == CHINA
    assert detect_zone([("0", times[0]), (name_of_time(times[0] + 420_000, UTC), times[0])]) is None
    assert detect_zone([(name_of_time(times[0], UTC), times[0])]) is UTC
