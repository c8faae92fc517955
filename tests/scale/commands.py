"""Run verbs as users do, in another process; and what a lake must hold after them."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.released import Ended
from tests.support.stores import records_of, segments_of

ROOT = Path(__file__).parent.parent.parent
_SECONDS = 1000  # of a busy machine; on an idle one, a tenth of it


def rmq_lake(*arguments: str, **environment: str) -> Ended:
    return _run("jobs.main", *arguments, **environment)


def in_one_application(spark_options: Sequence[str], steps: Sequence[Any], **environment: str) -> list[Any]:
    """Run steps in one application (see `tests.scale.application`) and return their results."""
    options = shlex.join(spark_options)
    ended = _run("tests.scale.application", json.dumps(steps), RMQ_LAKE_SPARK_OPTIONS=options, **environment)
    if ended.code:
        raise OSError(ended.err)
    results: list[Any] = json.loads(ended.out)
    return results


def expected_rows(store: Path) -> list[tuple[int, bytes]]:
    return [(record.physical_offset, raw) for record, raw in records_of(segments_of(store))]


def _run(module: str, *arguments: str, **environment: str) -> Ended:
    known = {
        name: value for name, value in os.environ.items() if not name.startswith(("RMQ_LAKE_", "PYSPARK", "SPARK"))
    }
    answer = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
    )
    return Ended(answer.returncode, answer.stdout, answer.stderr)
