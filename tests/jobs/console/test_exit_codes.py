"""The numbers that scripts branch on."""

import pytest

from jobs.console.exit_codes import ExitCode, worst


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
    expected = {
        "CLEAN": 0,
        "FAILED": 1,
        "USAGE": 2,
        "DAMAGE": 3,
        "MISMATCH": 4,
        "NOT_FOUND": 5,
        "HELD": 6,
        "INTERRUPTED": 130,
    }

    assert expected == {code.name: code.value for code in ExitCode}
