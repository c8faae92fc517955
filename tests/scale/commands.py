"""Run the launcher as a user does: another process, from another directory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.scale.servers import ADDRESS

ROOT = Path(__file__).parent.parent.parent
_SECONDS = 500


class Ended(NamedTuple):
    """How a command ended, and everything it said."""

    code: int
    out: str
    err: str


def rmq_lake(*arguments: str, **environment: str) -> Ended:
    """Run one command line."""
    known = {
        name: value for name, value in os.environ.items() if not name.startswith(("RMQ_LAKE_", "PYSPARK", "SPARK"))
    }
    answer = subprocess.run(
        [sys.executable, "-m", "jobs.launch", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env={**known, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": ADDRESS, **environment},
    )
    return Ended(answer.returncode, answer.stdout, answer.stderr)
