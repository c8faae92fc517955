"""Campaigns: programs that may fork, as they start nothing before, and whose results are kept with their commit."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def result_of(module: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    print(*arguments, {name: value for name, value in result.items() if name != "bad"})
    return result


@contextmanager
def campaigns(module: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start a program that does a campaign for each line that it reads: what it imports and compiles, it does once."""
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def result(*arguments: object) -> dict[str, Any]:
            print(*arguments, file=asked, flush=True)
            found: dict[str, Any] = json.loads(answers.readline())
            print(*arguments, {name: value for name, value in found.items() if name != "bad"})
            return found

        yield result


def keep(result: Mapping[str, Any], path: Path) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    path.write_text(json.dumps({"commit": commit, **result}, indent=2) + "\n", encoding="utf-8")
