"""Campaigns: programs that may fork, as they start nothing before, and whose results are kept with their commit."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def result_of(module: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout)
    print(*arguments, {name: value for name, value in result.items() if name != "bad"})
    return result


def keep(result: Mapping[str, Any], path: Path) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    path.write_text(json.dumps({"commit": commit, **result}, indent=2) + "\n", encoding="utf-8")
