"""The table of what releases do differently."""

import pytest

from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.properties import PropertyParser
from rmq_formats.release import NEWEST, OLDEST, SWITCHES, Release, Version, release_at, rules_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.3.3", (5, 3, 3, 0)),
        (" V5_3_3 ", (5, 3, 3, 0)),
        ("4.0.0-incubating", (4, 0, 0, 0)),
        ("5.0.0-ALPHA", (5, 0, 0, -2)),
        ("5.0.0-preview", (5, 0, 0, -3)),
    ],
)
def test_versions_are_read_in_every_spelling_that_rocketmq_uses(text: str, expected: tuple[int, ...]) -> None:
    assert Version.parse(text) == expected


@pytest.mark.parametrize("text", ["", "5", "5.3", "five", "5.3.3.1", "5.3.99999999"])
def test_anything_else_is_no_version(text: str) -> None:
    with pytest.raises(UnsupportedFormat, match=r"5\.3\.3"):
        Version.parse(text)


def test_versions_sort_by_age() -> None:
    """5.0.0 was announced three times before it was released."""
    ages = ["4.9.8", "5.0.0-PREVIEW", "5.0.0-ALPHA", "5.0.0-BETA", "5.0.0", "5.0.1", "5.1.0"]

    assert sorted(set(ages), key=Version.parse) == ages
    assert [str(Version.parse(age)) for age in ages] == ages


def test_every_switch_has_an_oldest_value_and_changes_in_order_of_age() -> None:
    for steps in SWITCHES.values():
        oldest, *later = steps
        versions = [Version.parse(since) for since in later]

        assert oldest == ""
        assert versions == sorted(versions)
        assert all(before != after for before, after in zip(steps.values(), list(steps.values())[1:], strict=False))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("4.0.0", PropertyParser.SPLIT),
        ("4.9.0", PropertyParser.SPLIT),
        ("4.9.1", PropertyParser.SCAN),
        ("4.9.8", PropertyParser.SCAN),
        ("5.0.0-PREVIEW", PropertyParser.SPLIT),
        ("5.0.0-ALPHA", PropertyParser.SCAN),
        ("5.5.1", PropertyParser.SCAN),
    ],
)
def test_the_parser_changed_twice(version: str, expected: PropertyParser) -> None:
    """The first preview of 5.0.0 was older than 4.9.1 in this."""
    assert Release.of(version).property_parser is expected


def test_an_unpublished_number_behaves_like_the_newest_release_before_it() -> None:
    """Somebody's own build of 5.3.9 is no reason to refuse."""
    assert Release.of("5.3.9").indexes_tags is False
    assert Release.of("6.0.0").indexes_tags is True


def test_rules_must_ascend() -> None:
    assert release_at(rules_of((100, OLDEST), (200, NEWEST)), 50) is OLDEST
    assert release_at(rules_of((100, OLDEST), (200, NEWEST)), 200) is NEWEST
    with pytest.raises(CorruptData, match="ascend"):
        rules_of((100, OLDEST), (100, NEWEST))
    with pytest.raises(CorruptData, match="ascend"):
        rules_of()
