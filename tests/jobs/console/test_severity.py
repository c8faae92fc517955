"""The one vocabulary of severity: words, order, exit codes."""

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.console.severity import Severity, worst_of


@pytest.mark.parametrize(
    ("severity", "code"),
    [
        (Severity.HEALTHY, ExitCode.CLEAN),
        (Severity.NOT_VERIFIED, ExitCode.CLEAN),
        (Severity.BEHIND, ExitCode.CLEAN),
        (Severity.GAP, ExitCode.DAMAGE),
        (Severity.DAMAGE, ExitCode.DAMAGE),
        (Severity.CONTRADICTION, ExitCode.MISMATCH),
        (Severity.NOT_ACCESSIBLE, ExitCode.FAILED),
    ],
)
def test_a_severity_has_one_exit_code(severity: Severity, code: ExitCode) -> None:
    assert severity.exit_code is code
    assert severity.is_alarm == (code is not ExitCode.CLEAN)


def test_the_worst_is_the_last_in_the_order() -> None:
    assert worst_of([]) is Severity.HEALTHY
    assert worst_of([Severity.GAP, Severity.HEALTHY, Severity.CONTRADICTION, Severity.BEHIND]) is Severity.CONTRADICTION
    assert worst_of(Severity) is Severity.NOT_ACCESSIBLE
