"""Read errors after the comparison of a store: the prediction of the broker's next start reads files again."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import jobs.inspect.inspection
import jobs.verify.run
from jobs.console.result import ExitCode
from jobs.requests.verify import VerifyRequest
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.meanwhile import refuse_to_open

_SEGMENT = "commitlog/00000000000000049152"  # the newest one: a prediction always reads it


def _fail_from(module: object, name: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail at a segment as soon as a function of a module is called."""
    function: Callable[..., object] = getattr(module, name)

    def fail(*arguments: object, **options: object) -> object:
        refuse_to_open(f"/{_SEGMENT}", code, monkeypatch)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, fail)


def test_a_disk_error_after_the_comparison_is_damage(golden: StoreOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict was healthy, with exit code 0."""
    _fail_from(jobs.verify.run, "predict_store_start", errno.EIO, monkeypatch)

    verdict = verify(VerifyRequest(str(golden("b551-base"))), SerialWorkers())

    assert [("unreadable_range", _SEGMENT)] == [(one.kind, one.file) for one in verdict.findings]
    assert ExitCode.DAMAGE == verdict.exit_code
    assert verdict.start is not None
    assert verdict.start.starts is None


def test_any_other_error_after_the_comparison_ends_the_command(
    golden: StoreOf, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    store: Path = golden("b551-base")
    _fail_from(jobs.verify.run, "predict_store_start", errno.EACCES, monkeypatch)

    code, _, err = run("verify", store)

    assert ExitCode.FAILED == code
    assert _SEGMENT in err


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_inspect_reports_an_error_of_the_prediction(
    golden: StoreOf, monkeypatch: pytest.MonkeyPatch, run: Run, code: int
) -> None:
    _fail_from(jobs.inspect.inspection, "predict_start_by_own_walk", code, monkeypatch)

    exit_code, out, _ = run("inspect", golden("b551-base"))

    assert ExitCode.CLEAN != exit_code
    assert _SEGMENT in out.partition("OTHER")[2]
