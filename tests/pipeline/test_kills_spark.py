"""Whole commands, with their JVM and Python workers, killed as `test_kills.py` kills runs by the hundred."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.pipeline.broker import Broker, some_records
from tests.pipeline.killing import FAULTS, judge

KILLS = int(os.environ.get("SPARK_KILLS", "3"))
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.campaign


def started(root: Path) -> "subprocess.Popen[bytes]":
    """Start the command in a session of its own."""
    command = [
        sys.executable,
        "-m",
        "jobs.launch",
        "ingest",
        str(root / "store"),
        "--lake",
        str(root / "lake"),
        "--quiet",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    )


def below(parent: int) -> Iterator[int]:
    """Yield every process that *parent* has started, and those that they have."""
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from below(int(child))


def kill(processes: list[int]) -> None:
    """Kill them all."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_a_command_killed_at_any_moment_is_made_good_by_the_next(tmp_path: Path) -> None:
    """Driver, JVM and workers at once."""
    random = Random(1)
    broker = Broker(tmp_path / "store", history=tmp_path / "history")
    broker.append(some_records(200))
    began = time.monotonic()
    assert started(tmp_path).wait() == 0
    took = time.monotonic() - began
    for number in range(KILLS):
        broker.append(some_records(200, seed=number + 2))
        process = started(tmp_path)
        time.sleep(took * (0.4 + 0.6 * random.random()))
        kill([process.pid, *below(process.pid)])
        process.wait()

    assert started(tmp_path).wait() == 0
    verdict = judge(tmp_path)
    assert not any(verdict[fault] for fault in FAULTS), verdict
    assert verdict["rows"] == verdict["history"] == 200 * (KILLS + 1)


def test_a_python_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """Spark runs its task again; the files of the first attempt are not committed."""
    Broker(tmp_path / "store", history=tmp_path / "history").append(some_records(200))
    process = started(tmp_path)
    killed = 0
    while process.poll() is None and not killed:
        daemons = [one for one in below(process.pid) if "pyspark.daemon" in _command_of(one)]
        workers = [worker for daemon in daemons for worker in below(daemon)]
        kill(workers)
        killed += len(workers)

    assert process.wait() == 0
    assert killed
    verdict = judge(tmp_path)
    assert (verdict["lost"], verdict["twice"], verdict["other"]) == (0, 0, 0)
    assert verdict["rows"] == verdict["history"]


def _command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
