"""Run commands in this process, and campaigns in programs that can fork."""

import io
import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from jobs.command_line import cli
from jobs.console.result import ExitCode

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


def runner(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return run


def run_in_process(*words: str | Path) -> Outcome:
    """Run a command line without a fixture that captures its output."""
    buffers = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(buffer, "utf-8", "surrogateescape", write_through=True) for buffer in buffers)
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(word) for word in words])
    return Outcome(code, *(buffer.getvalue().decode("utf-8", "surrogateescape") for buffer in buffers))


def ignore_spark_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands run in this process even if other tests have started a session."""
    monkeypatch.setattr("jobs.launch.engine.is_spark_requested", lambda: False)


def packages_loaded_by(*arguments: str | Path) -> set[str]:
    """Run a command line in a new process, which must succeed, and return the packages that it imported."""
    program = (
        "import json, sys\n"
        "from jobs.command_line import cli\n"
        "code = cli.main(sys.argv[1:])\n"
        "json.dump([code, [*sys.modules]], sys.stderr)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, check=True)
    code, modules = json.loads(finished.stderr)
    assert code == ExitCode.CLEAN
    return {name.partition(".")[0] for name in modules}


def copy_store(store: Path, directory: Path) -> Path:
    return Path(shutil.copytree(store, directory / store.name, ignore=shutil.ignore_patterns("EXPECT")))


def overwrite(path: Path, position: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(raw)


def measure_peak(work: Callable[[], T]) -> tuple[T, int]:
    """Return the result of *work*, and its peak memory in Python and numpy, without that of Arrow."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_campaign(module: str, *arguments: object) -> dict[str, Any]:
    with start_campaigns(module) as campaign:
        return campaign(*arguments)


@contextmanager
def start_campaigns(module: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start a program that imports and compiles once, and runs a campaign for each line of its standard input."""
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def result(*arguments: object) -> dict[str, Any]:
            print(*arguments, file=requests, flush=True)
            found: dict[str, Any] = json.loads(answers.readline())
            print(*arguments, {name: value for name, value in found.items() if name != "bad"})
            return found

        yield result
