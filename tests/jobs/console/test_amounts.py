"""Amounts as people read them."""

import pytest

from jobs.console.amounts import counted, duration_text, rate_text, size_text
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.result import Result
from jobs.console.severity import Severity


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (57_539, "56.2 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 60, "5,120.0 PiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_it_fills(size: int, text: str) -> None:
    assert text == size_text(size)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.251, "0.25 s"), (9.5, "9.50 s"), (12.34, "12.3 s"), (125, "2 min 5 s"), (4321, "1 h 12 min")],
)
def test_a_duration_has_the_units_that_it_needs(seconds: float, text: str) -> None:
    assert text == duration_text(seconds)


@pytest.mark.parametrize(
    ("number", "noun", "text"), [(1, "file", "1 file"), (1200, "file", "1,200 files"), (2, "key", "2 keys")]
)
def test_a_number_agrees_with_what_it_counts(number: int, noun: str, text: str) -> None:
    assert text == counted(number, noun)
    assert "2 entries" == counted(2, "entry")


def test_a_result_says_what_how_much_and_how_fast() -> None:
    result = Result(Severity.NOT_VERIFIED, "65 messages", 2.0, 4 << 20, "done")

    assert "65 messages, 4.0 MiB in 2.00 s, 2.0 MiB/s" == result.amount
    assert result.line("ingest").startswith("ingest: ")
    assert "at once" == rate_text(5, 0)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 3], 3),
        ([3, 4, 0], 4),
        ([3, 4, 1, 0], 1),
    ],
)
def test_a_failure_outweighs_a_mismatch_outweighs_damage(codes: list[int], expected: int) -> None:
    assert expected == worst(ExitCode(code) for code in codes)


def test_the_numbers_are_those_that_are_documented() -> None:
    names = ("CLEAN", "FAILED", "USAGE", "DAMAGE", "MISMATCH", "NOT_FOUND", "HELD", "INTERRUPTED")

    assert dict(zip(names, (0, 1, 2, 3, 4, 5, 6, 130), strict=True)) == {code.name: code.value for code in ExitCode}


def test_a_severity_has_one_word_and_one_exit_code() -> None:
    words = ("healthy", "not verified", "behind", "gap", "damage", "contradiction", "not accessible")
    codes = dict(zip(words, (0, 0, 0, 3, 3, 4, 1), strict=True))

    assert codes == {severity.value: severity.exit_code for severity in Severity}
    assert [word for word, code in codes.items() if code] == [one.value for one in Severity if one.is_alarm]
    assert list(words) == [one.value for one in sorted(Severity, key=lambda one: one.rank)]
