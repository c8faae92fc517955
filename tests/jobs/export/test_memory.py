"""Bodies of gigabytes in a few KB of log, and large ones, do not take a machine down: whole commands, every process."""

import os
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from rmq_formats.flags import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.memory import watched

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
