"""Run verbs as a user does, in this process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs import cli
from jobs.exit_codes import ExitCode


class Outcome(NamedTuple):
    """What a command left: its code, and what it wrote."""

    code: ExitCode
    out: str
    err: str

    @property
    def document(self) -> Any:  # noqa: ANN401 - JSON
        """The JSON document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The NDJSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


def runner(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs one command line."""

    def run(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return run


def copy_of(store: Path, folder: Path) -> Path:
    """Copy what a broker wrote of a golden store, to be broken."""
    return Path(shutil.copytree(store, folder / store.name, ignore=shutil.ignore_patterns("EXPECT")))


def overwrite(path: Path, position: int, raw: bytes) -> None:
    """Change some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(raw)


def state_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Take a folder's files with their times, to see that nothing was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
