"""An export holds few decompressed bodies in memory, and reports the bodies that it leaves compressed."""

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
import tracemalloc
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.measuring import children_of
from jobs.console.rows import RowFormat
from jobs.export.condition import parse_condition
from jobs.export.export import ExportRequest, ExportSummary, PartTask, export, plan_export
from jobs.export.items import ANY_TIME, COLUMNS, LogItem, decoded_slices
from jobs.query.place import Place
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType
from rmq_formats.commitlog.segment import Piece
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.query_stores import RELEASE, Sent, stored, write_lake, write_store
from tests.support.stores import flip

LIMIT = 1 << 16
SMALL, LARGE, CUT = (b"small", bytes(LIMIT), bytes(LIMIT + 1))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, ExportRequest]:
    packed = [Sent(keys=("k",), body=zlib.compress(body), sys_flag=COMPRESSED) for body in (SMALL, LARGE, CUT)]
    broken = Sent(keys=("k",), body=b"no stream", sys_flag=COMPRESSED)
    store = write_store(tmp_path / "store", stored([*packed, broken]))
    write_lake(store, tmp_path / "lake")
    return {
        "store": ExportRequest(Place(store=str(store))),
        "lake": ExportRequest(Place(lake=str(tmp_path / "lake"))),
    }


def _export(source: ExportRequest, out: Path, form: RowFormat) -> ExportSummary:
    return export(replace(source, out=out, form=form, limit=LIMIT), plan_export(source, {}), SerialWorkers())


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_body_larger_than_the_limit_is_named(place: str, places: dict[str, ExportRequest], tmp_path: Path) -> None:
    summary = _export(places[place], tmp_path / "out", RowFormat.NDJSON)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    _export(places[place], tmp_path / "table", RowFormat.PARQUET)
    table = pq.read_table(tmp_path / "table").to_pylist()

    assert [SMALL, LARGE] == [b64decode(row["decoded_body_base64"]) for row in rows[:2]]
    assert [(None, None)] * 2 == [(row["decoded_body_base64"], row["decoded_body_text"]) for row in rows[2:]]
    assert [None, None] == [row["body_error"] for row in rows[:2]]
    assert f"larger than {LIMIT} bytes" in rows[2]["body_error"]
    assert "not a zlib stream" in rows[3]["body_error"]
    assert CUT == zlib.decompress(b64decode(rows[2]["body_base64"]))
    offsets = [int(row["physical_offset"]) for row in rows[2:]]
    assert (2, offsets) == (summary.undecoded.count, [place.offset for place in summary.undecoded.places])
    assert [SMALL, LARGE] == [row["body"] for row in table[:2]]
    assert CUT == zlib.decompress(table[2]["body"])
    assert [row["body_error"] for row in rows] == [row["body_error"] for row in table]
    assert [SMALL.decode(), LARGE.decode(), None, None] == [row["body_text"] for row in table]


def test_a_batch_of_bombs_is_cut_into_slices_of_the_budget() -> None:
    stored_ = [zlib.compress(bytes(LIMIT)) for _ in range(10)]
    batch = pa.RecordBatch.from_pydict({"body": stored_, "sys_flag": [COMPRESSED] * 10})
    found = [len(bodies) for _, bodies in decoded_slices(batch, LIMIT, budget=3 * LIMIT)]

    assert [3, 3, 3, 1] == found


@pytest.mark.parametrize("how", ["with a condition", "parquet", "by times"])
def test_an_export_of_large_bodies_holds_one_batch_and_one_slice(how: str, tmp_path: Path) -> None:
    size = 4 << 20
    broker = Broker(tmp_path / "store", segment_size=64 << 20)
    broker.append(a_record(bytes(size)) for _ in range(15))
    between = (0, ANY_TIME[1]) if how == "by times" else ANY_TIME
    [item] = plan_export(ExportRequest(Place(store=str(broker.root)), between=between), {}).items
    condition = parse_condition("length(body) > 0") if how == "with a condition" else None
    task = PartTask(tmp_path, RowFormat.PARQUET, RELEASE, condition=condition)
    next(item.read())  # what is loaded once
    tracemalloc.start()
    try:
        assert task((0, item)).messages == 15
        peak = tracemalloc.get_traced_memory()[1]  # of Python and numpy; Arrow's columns of slices are not in it
    finally:
        tracemalloc.stop()

    assert peak < 4 * size + (2 << 20)  # the bytes of a record, its row, the last record of all, a body


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_condition_sees_no_text_of_a_body_larger_than_the_limit_and_it_is_named(
    place: str, places: dict[str, ExportRequest], tmp_path: Path
) -> None:
    condition = parse_condition(f"body_text IS NULL OR length(body) = {LIMIT}")
    summary = _export(replace(places[place], condition=condition), tmp_path / "out", RowFormat.NDJSON)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]

    assert [1, 2, 3] == [row["queue_offset"] for row in rows]
    assert (3, 2) == (summary.messages, summary.undecoded.count)


@pytest.mark.parametrize(("since", "messages", "damaged"), [(0, 3, 1), (300, 1, 1), (900, 0, 0)])
def test_an_export_by_times_reads_a_segment_once(
    since: int, messages: int, damaged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = stored([Sent(body=bytes(50)) for _ in range(4)])
    store = write_store(tmp_path / "store", records)
    flip(store / "commitlog" / f"{0:020d}", records[2].physical_offset + 90)  # its body
    reads = []

    def read(item: LogItem, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch | Piece]:
        reads.append(columns)
        return real(item, columns)

    real = LogItem.read
    monkeypatch.setattr(LogItem, "read", read)
    asked = ExportRequest(Place(store=str(store)), between=(records[0].store_timestamp + since, ANY_TIME[1]))
    summary = export(replace(asked, out=tmp_path / "out"), plan_export(asked, {}), SerialWorkers())

    assert [COLUMNS] == reads
    found = [(place.offset, place.size) for place in summary.damaged]
    assert (messages, [(records[2].physical_offset, records[2].total_size)] * damaged) == (summary.messages, found)


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


# Bodies of gigabytes in a few KB of log, and large ones, do not take a machine down: whole commands, every process.
# A peak is a measurement: a busy machine moves it.
GIBIBYTE = 1024  # MiB
BODIES, SIZE = 12, 256 << 20
MESSAGES, LARGE_SIZE = 60, 4 << 20
PLACES = ("ndjson", "parquet", "parquet with a condition on bodies")


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
    broker.append(a_record(random.randbytes(LARGE_SIZE)) for _ in range(MESSAGES))
    return broker.root


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", PLACES)
def test_an_export_of_bombs_takes_less_than_a_gibibyte(bombs: Path, tmp_path: Path, how: str) -> None:
    said = _exported(bombs, tmp_path, how)

    assert f"{BODIES} bodies are left as they are stored" in said


@pytest.mark.campaign
@pytest.mark.timeout(1800)
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
