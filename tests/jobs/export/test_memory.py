"""A few KB of log that are gigabytes when decompressed do not take a machine down: whole commands, every process."""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_formats.flags import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.memory import watched

GIBIBYTE = 1024  # MiB
BODIES, SIZE = 12, 256 << 20
PLACES = ("ndjson", "parquet", "parquet with a condition on bodies")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]  # a peak is a measurement: a busy machine moves it


@pytest.fixture
def bombs(tmp_path: Path) -> Path:
    """Make a store of bodies that are 8 KB each as they are stored, and 256 MiB each when decompressed."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("what a process holds is read from Linux's /proc")
    body = pa.Codec("zstd").compress(bytes(SIZE), asbytes=True)
    flag = COMPRESSED | (CompressionType.ZSTD << COMPRESSION_TYPE_SHIFT)
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    broker.append(a_record(body, sys_flag=flag) for _ in range(BODIES))
    return broker.root


@pytest.mark.parametrize("how", PLACES)
def test_an_export_of_bombs_takes_less_than_a_gibibyte(bombs: Path, tmp_path: Path, how: str) -> None:
    """It took 11 GB. As in the environment that users get, which has no pandas."""
    blocked = tmp_path / "blocked" / "pandas"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('pandas is not installed')\n")
    environment = {**os.environ, "PYTHONPATH": f"{blocked.parent}{os.pathsep}{Path.cwd()}"}
    where = ["--where", "length(body) >= 0"] if "condition" in how else []
    out = tmp_path / "out"
    options = ["--store", str(bombs), "--format", how.partition(" ")[0], "--out", str(out), *where]
    used = watched([sys.executable, "-m", "jobs.main", "export", *options], environment, tmp_path / "said")
    print(how, used.peak_mib, "MiB")

    assert used.code == 0, used.err
    assert f"{BODIES} bodies are left as they are stored" in used.err
    assert used.peak_mib < GIBIBYTE
