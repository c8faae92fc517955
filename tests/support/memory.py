"""What a command and every process below it hold in memory together."""

import ctypes
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import children_of

_LOOK_S = 0.05
_KCMP, _KCMP_VM = {"x86_64": 312, "aarch64": 272}, 1  # system call, and what it compares: address spaces


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
            peak = max(peak, _kib(process.pid) + sum(_kib_below(process.pid)))
            time.sleep(_LOOK_S)
    return Used(process.returncode, peak >> 10, said.read_text())


def _kib_below(parent: int) -> Iterator[int]:
    """Yield what each process below one holds; not of one that begins as its parent, in whose memory it still is."""
    for child in children_of(parent):
        if not _is_within(child, parent):
            yield _kib(child)
        yield from _kib_below(child)


def _is_within(child: int, parent: int) -> bool:
    """Return whether a process has the address space of its parent (`vfork`): the kernel counts it for both."""
    call = _KCMP.get(platform.machine())
    return call is not None and ctypes.CDLL(None).syscall(call, child, parent, _KCMP_VM, 0, 0) == 0


def _kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
