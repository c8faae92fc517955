"""The memory of a question does not grow with the number of messages that match it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.lakes import table_of
from tests.support.query_lakes import write_entries, write_messages
from tests.support.query_stores import RELEASE, Sent, stored, write_store

COPIES = 60_000
MIB = 1 << 20
ASKED = (
    ("by-key", "-t", "Orders", "-k", "common", "-p", "T"),
    ("by-key", "-t", "Orders", "-k", "k"),
    ("list", "-t", "Orders"),
    ("list", "-k", "k"),
    ("list", "--tag", "common"),
    ("mqadmin", "queryMsgByKey", "-t", "Orders", "-k", "k"),
    ("by-offset", "-t", "Orders", "-i", "0", "-o", "7"),
)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two lakes, one with eight times the messages of the other, all under one key and one tag."""
    folder = tmp_path_factory.mktemp("memory")
    records = stored([Sent(keys=("k",), unique_key="id", tags="common")])
    write_messages(folder / "one", write_store(folder / "store", records), RELEASE)
    write_entries(folder / "one", records, RELEASE)
    return _repeated(folder, COPIES), _repeated(folder, COPIES * 8)


def _repeated(folder: Path, count: int) -> Path:
    lake = folder / f"lake-{count}"
    for table in ("messages", "index_entries"):
        rows = table_of(folder / "one" / table)
        for start in range(0, count, COPIES):
            numbers = pa.array(np.repeat(np.arange(start, start + COPIES), rows.num_rows), pa.int64())
            some = rows.take(pa.array(np.tile(np.arange(rows.num_rows), COPIES)))
            for name in {"physical_offset", "queue_offset"} & {*some.schema.names}:
                at = some.schema.get_field_index(name)
                some = some.set_column(at, some.schema.field(name), numbers)
            write_deltalake(lake / table, some, mode="append")
    return lake


def _peak(lake: Path, words: tuple[str, ...]) -> int:
    """Return the peak memory of a query in a process of its own."""
    verb, *rest = words
    place = ("--lake", str(lake), "--quiet")
    line = ["query", verb, *place, *rest] if verb == "mqadmin" else ["query", verb, *rest, *place]
    program = (
        "import sys\n"
        "from jobs.command import cli\n"
        "code = cli.main(sys.argv[1:])\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(peak.split()[1], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, *line], capture_output=True, check=True, timeout=300)
    assert ended.stdout
    return int(ended.stderr.split()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux's /proc")
@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_peak_memory_does_not_follow_the_number_of_matches(lakes: tuple[Path, Path], words: tuple[str, ...]) -> None:
    small, large = (_peak(lake, words) for lake in lakes)

    assert large < small * 1.2 + 16 * MIB
    assert large < 300 * MIB
