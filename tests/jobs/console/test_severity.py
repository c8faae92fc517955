"""The one vocabulary of severity: words, order, exit codes."""

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.console.severity import Severity


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
