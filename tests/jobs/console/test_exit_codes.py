"""The numbers that scripts branch on, and the words of severity that lead to them."""

import pytest

from jobs.console.exit_codes import ExitCode, worst
from jobs.console.severity import Severity


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
