"""Bodies of gigabytes in a few KB of log, and large ones, do not take a machine down: whole commands, every process."""

import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest

from benchmarks.measuring import children_of
from rmq_formats.commitlog.layout import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker

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


GIBIBYTE = 1024  # MiB
BODIES, SIZE = 12, 256 << 20
MESSAGES, LARGE = 60, 4 << 20
PLACES = ("ndjson", "parquet", "parquet with a condition on bodies")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]  # a peak is a measurement: a busy machine moves it


@pytest.fixture
def bombs(tmp_path: Path) -> Path:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("what a process holds is read from Linux's /proc")
    body = pa.Codec("zstd").compress(bytes(SIZE), asbytes=True)
    flag = COMPRESSED | (CompressionType.ZSTD << COMPRESSION_TYPE_SHIFT)
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    broker.append(a_record(body, sys_flag=flag) for _ in range(BODIES))
    return broker.root


@pytest.fixture
def large(tmp_path: Path) -> Path:
    random = Random(1)
    broker = Broker(tmp_path / "store", segment_size=64 << 20)
    broker.append(a_record(random.randbytes(LARGE)) for _ in range(MESSAGES))
    return broker.root


@pytest.mark.parametrize("how", PLACES)
def test_an_export_of_bombs_takes_less_than_a_gibibyte(bombs: Path, tmp_path: Path, how: str) -> None:
    said = _exported(bombs, tmp_path, how)

    assert f"{BODIES} bodies are left as they are stored" in said


def test_an_export_of_large_messages_takes_little_more_than_a_gibibyte(large: Path, tmp_path: Path) -> None:
    said = _exported(large, tmp_path, PLACES[-1], limit_mib=1200)

    assert f"{MESSAGES} messages" in said


def _exported(store: Path, folder: Path, how: str, limit_mib: int = GIBIBYTE) -> str:
    """Export twice, as the first run compiles what others find compiled, and return what the command said."""
    blocked = folder / "blocked" / "pandas"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('pandas is not installed')\n")
    environment = {**os.environ, "PYTHONPATH": f"{blocked.parent}{os.pathsep}{Path.cwd()}"}
    where = ["--where", "length(body) >= 0"] if "condition" in how else []
    options = ["--store", str(store), "--format", how.partition(" ")[0], *where]
    command = [sys.executable, "-m", "jobs.main", "export", *options]
    _, used = (watched([*command, "--out", str(folder / out)], environment, folder / "said") for out in ("a", "b"))
    print(how, used.peak_mib, "MiB")

    assert used.code == 0, used.err
    assert used.peak_mib < limit_mib
    return used.err
