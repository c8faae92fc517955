"""What the process that forks Spark's workers has done before it forks the first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.launch import worker_daemon

_SHOWN = """
import os, sys
from jobs.launch.worker_daemon import prepare
prepare()
names = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
print("numba" in sys.modules, "pandas" in sys.modules, names - {"python", "python3", "jemalloc_bg_thd"} - {sys.argv[1]})
"""


def _prepared(module: str) -> str:
    name = Path(sys.executable).resolve().name[:15]  # as the kernel cuts it
    command = [sys.executable, "-c", _SHOWN, name]
    environment = {**os.environ, worker_daemon.MODULE: module, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not worker_daemon.IS_SAFE, reason="nothing is imported before a fork there")
@pytest.mark.parametrize(("module", "is_there"), [("jobs.products.loaded", True), ("no.such.module", False)])
def test_modules_are_imported_without_pandas_and_without_a_thread_that_a_fork_loses(
    module: str, *, is_there: bool
) -> None:
    """What cannot be imported is left to the task that needs it. Jemalloc's threads remain: it prepares for forks."""
    assert f"{is_there} False set()\n" == _prepared(module)
