"""Write lakes, and read them without Spark."""

import json
import shutil
import struct
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from jobs.diff import DiffSummary, diff
from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.tables import WRITTEN_BY_RUNS
from jobs.requests.diff import DiffRequest
from jobs.requests.ingest import IngestRequest
from jobs.requests.restore import RestoreRequest
from jobs.restore.run import RestoreSummary, restore
from jobs.store.workers import SerialWorkers, Workers
from rmq_formats.commitlog.record import MessageRecord, encode_record, record_from_row
from tests.golden import release_of
from tests.support.broker import Broker, some_records
from tests.support.stores import log_folders, read_store_records, tree_state

REGISTRATION_MARK = "-0-registered-"


def delta_extension() -> Path:
    """Return DuckDB's reader of Delta tables. Lazy import: the released environment, which runs recipes, lacks it."""
    import duckdb_extension_delta

    return next(Path(duckdb_extension_delta.__path__[0]).rglob("*.duckdb_extension"))


class LakeOfBroker:
    """A store with a broker that writes it, and the lake that runs fill from it."""

    def __init__(self, root: Path, lake: str = "lake", *, dispatches: bool = False) -> None:
        self.root, self.name_of_lake = root, lake
        self.broker = Broker(root / "store", dispatches=dispatches)

    @property
    def path(self) -> Path:
        return self.root / self.name_of_lake

    @property
    def lake(self) -> Lake:
        return Lake(str(self.path))

    def copied(self, root: Path) -> Self:
        """Copy the store and the lake to another directory."""
        other = copy(self)
        other.root, other.broker = root, self.broker.copied(root / "store")
        shutil.copytree(self.path, other.path)
        return other

    def grow(self, count: int = 20) -> list[int]:
        """Append messages to the log, and return their offsets."""
        return [record.physical_offset for record in self.broker.append(some_records(count, seed=self.broker.offset))]

    def run(self) -> Summary:
        return ingest_store(self.broker.root, self.path, "b")


def ingest_store(
    store: Path | str,
    lake: Path | str,
    broker: str | None = None,
    **options: Any,  # noqa: ANN401 - fields of the request
) -> Summary:
    return ingest(IngestRequest(str(store), str(lake), broker, **options), SerialWorkers())


def ingest_into_own_lake(
    store: Path,
    broker: str | None = "b",
    workers: Workers | None = None,
    **options: Any,  # noqa: ANN401 - fields of the request
) -> Summary:
    return ingest(IngestRequest(str(store), str(store.parent / "lake"), broker, **options), workers or SerialWorkers())


def restore_log(lake: Path, out: Path, **options: Any) -> RestoreSummary:  # noqa: ANN401 - fields of the request
    """Restore the log of a lake's only store, without queues and index."""
    usual: dict[str, Any] = {"with_queues": False, "with_index": False}
    return restore(RestoreRequest(Lake(str(lake)), out, **(usual | options)), SerialWorkers())


def compare_with_lake(store: Path, lake: Path, commitlog: Sequence[str] = ()) -> DiffSummary:
    return diff(DiffRequest(str(store), str(lake), commitlog=commitlog), SerialWorkers())


def request_of(name: str, store: Path, lake: Path, **options: Any) -> IngestRequest:  # noqa: ANN401 - fields
    """Return the request that ingests a golden store with its own release, and with its name as the broker."""
    usual: dict[str, Any] = {"commitlog": log_folders(store), "release": release_of(name)}
    return IngestRequest(str(store), str(lake), name, **(usual | options))


def dataset_of(location: Path) -> Dataset:
    """
    Open a table with `deltalake`, and its files with Arrow's own file system.

    The file system of `deltalake` is written in Python. If a thread of Arrow releases one of its files while the
    interpreter ends, the process is aborted (SIGABRT), after all of its output.
    """
    return DeltaTable(location).to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(location), LocalFileSystem()))


def table_of(location: Path, columns: Sequence[str] | None = None) -> pa.Table:
    return dataset_of(location).to_table(columns=columns)


def rows_of(lake: Path, table: str = "messages", order: str = "physical_offset") -> list[dict[str, Any]]:
    if not (lake / table / "_delta_log").exists():
        return []
    found: list[dict[str, Any]] = table_of(lake / table).sort_by(order).to_pylist()
    return found


def raw_rows(lake: Path, table: str = "messages") -> list[tuple[int, bytes]]:
    return [(row["physical_offset"], encode_record(record_from_row(row))) for row in rows_of(lake, table)]


def encode_rows(records: Iterable[MessageRecord]) -> list[tuple[int, bytes]]:
    """Return the offsets and the bytes of records, in the form of `raw_rows`."""
    return [(record.physical_offset, encode_record(record)) for record in records]


def state_without_locks(lake: Path) -> dict[str, tuple[str, int, int]]:
    """Return the state of a lake's files, to detect any write except those to lock files."""
    return {path: state for path, state in tree_state(lake).items() if "_locks" not in path}


def gaps_of(lake: Path) -> list[tuple[int, int]]:
    details = [json.loads(row["detail"]) for row in rows_of(lake, "runs", "time") if row["state"] == "prepared"]
    return [(gap["from"], gap["to"]) for detail in details for gap in detail["gaps"]]


def list_leftovers(lake: Path) -> list[str]:
    """
    Return every file of the lake that no table and no run refers to, and that vacuum would not delete.

    The file of a killed registration is not listed, because no run can identify it: vacuum deletes it. Nor is an
    unfinished commit (with a '#' in its name), which may belong to a running process: it is deleted when it is old.
    """
    found = []
    for table in (table.name for table in WRITTEN_BY_RUNS):
        if not (lake / table / "_delta_log").exists():
            continue
        known = set(DeltaTable(lake / table).file_uris())
        for log in (lake / table / "_delta_log").glob("*.json"):
            for line in log.read_text().splitlines():
                removed = json.loads(line).get("remove")
                known |= {str(lake / table / removed["path"])} if removed else set()
        for checkpoint in (lake / table / "_delta_log").glob(
            "*.checkpoint.parquet"
        ):  # removals that are no longer in the log
            removals = pq.read_table(checkpoint, columns=["remove"])["remove"].combine_chunks().drop_null()
            known |= {str(lake / table / removed["path"]) for removed in removals.to_pylist()}
        found += [
            str(path)
            for path in (lake / table).glob("*.parquet")
            if str(path) not in known and REGISTRATION_MARK not in path.name
        ]
        names = ("*.json", "*.checkpoint.parquet", "_last_checkpoint", "*.crc")  # Delta in Spark writes checksums
        logged = {path for name in names for path in (lake / table / "_delta_log").glob(name)}
        found += [
            str(path) for path in (lake / table / "_delta_log").iterdir() if path not in logged and "#" not in path.name
        ]
    manifests = {row["manifest"] for row in rows_of(lake, "runs", "time")}
    found += [str(path) for path in (lake / "_manifests").glob("*") if f"_manifests/{path.name}" not in manifests]
    return [name.removeprefix(str(lake)) for name in found]


SLOTS, ENTRIES = 100, 20  # of every golden store
ENTRY = struct.Struct(">iqii")  # written by hand, independent of the product's layout


def read_index_entries(store: Path) -> list[tuple[int, int, int, int, int, int]]:
    found = []
    for ordinal, path in enumerate(sorted((store / "index").iterdir())):
        content = path.read_bytes()
        (count,) = struct.unpack_from(">i", content, 36)
        found += [
            (ordinal, number, *ENTRY.unpack_from(content, 40 + 4 * SLOTS + 20 * number)) for number in range(1, count)
        ]
    return found


def lake_entries(lake: Path) -> list[tuple[int, int, int, int, int, int]]:
    columns = ["index_file", "entry", "key_hash", "physical_offset", "time_diff_s", "prev_entry"]
    table = table_of(lake / "index_entries", columns)
    return sorted(tuple(row[column] for column in columns) for row in table.to_pylist())


def newest_headers(lake: Path) -> list[dict[str, Any]]:
    rows = table_of(lake / "index_files").to_pylist()
    newest = {row["index_file"]: row for row in sorted(rows, key=lambda row: row["run"])}
    return [newest[ordinal] for ordinal in sorted(newest)]


def shorten_index_file(store: Path, path: Path, entries: int) -> bytes:
    """Reduce an index file to its first *entries*, as it was earlier; return its current content."""
    whole, at = path.read_bytes(), 40 + 4 * SLOTS
    kept = [ENTRY.unpack_from(whole, at + 20 * number) for number in range(1, entries + 1)]
    last = next(record for record, _ in read_store_records(store) if record.physical_offset == kept[-1][1])
    slots = {key_hash % SLOTS: number for number, (key_hash, *_) in enumerate(kept, 1)}
    begin, start = struct.unpack_from(">q8xq", whole)
    header = struct.pack(">4q2i", begin, last.store_timestamp, start, last.physical_offset, len(slots), entries + 1)
    table = struct.pack(f">{SLOTS}i", *(slots.get(slot, 0) for slot in range(SLOTS)))
    path.write_bytes((header + table + whole[at : at + 20 * (entries + 1)]).ljust(len(whole), b"\0"))
    return whole
