"""What a command and every process below it hold in memory together."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import processes_below

_LOOK_S = 0.05


class Used(NamedTuple):
    """How a command ended, and the most memory that it had at once."""

    code: int
    peak_mib: int
    err: str


def watched(command: Sequence[str], environment: Mapping[str, str], said: Path) -> Used:
    """Run a command to its end; what it says goes into a file. Pages that processes share count once (`Pss`)."""
    peak = 0
    with said.open("w") as err:
        process = subprocess.Popen(command, env=environment, stdout=err, stderr=err)
        while process.poll() is None:
            peak = max(peak, sum(map(_kib, [process.pid, *processes_below(process.pid)])))
            time.sleep(_LOOK_S)
    return Used(process.returncode, peak >> 10, said.read_text())


def _kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
