"""Tests the exit of this process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import ROOT

_PROGRAM = """
from jobs.console.process import exit_process
try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt:
    exit_process(130)
"""


def test_an_interrupt_in_code_from_text_does_not_replace_the_exit_code_by_a_signal(tmp_path: Path) -> None:
    """Only a module that runs by `-m`, as the tool does, ends by SIGINT then."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run([sys.executable, "-m", "program"], check=False, cwd=tmp_path, env=environment)

    assert 130 == done.returncode
