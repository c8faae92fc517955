"""The result of a campaign, kept with the commit that it was made on."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def keep(result: Mapping[str, Any], path: Path) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    path.write_text(json.dumps({"commit": commit, **result}, indent=2) + "\n", encoding="utf-8")
