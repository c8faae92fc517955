"""Which Parquet files of a table there are: what a snapshot names and the lake lacks is said, not stumbled over."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, batches, files
from jobs.lake.tables import Table
from jobs.lake.vectors import Vector, vectors

LOST, UNREADABLE = "is missing", "is no Parquet file any more"


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a table that may hold a store's rows."""

    lake: Lake
    table: Table
    files: tuple[StoredFile, ...] = ()  # that are there, in the order of the log
    lost: Mapping[str, str] = field(default_factory=dict)  # path below the lake → what is wrong with it
    lost_files: tuple[StoredFile, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    is_there: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the files that are there."""
        return tuple(file.path for file in self.files)

    def rows(self, store_id: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield a store's rows; of a small table."""
        wanted = [*columns, "store_id"]
        for file in self.files:
            for batch in batches(self.lake, self.table, file.path, self.vectors.get(file.path), wanted):
                yield from (row for row in batch.to_pylist() if row["store_id"] == store_id)


def source_of(lake: Lake, table: Table, store_id: str) -> Source:
    """Return the files of a table, and which of them are lost."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return Source(lake, table, is_there=False)
    wanted = [file for file in files(snapshot) if file.may_hold(store_id)]
    wanted.sort(key=lambda file: int(file.low("physical_offset", 0)))
    sizes = {info.name: info.size for info in lake.list_files(table.name)}
    wrong = {file.path: reason for file in wanted if (reason := _what_is_wrong(lake, table, file, sizes))}
    return Source(
        lake,
        table,
        tuple(file for file in wanted if file.path not in wrong),
        {f"{table.name}/{name}": reason for name, reason in wrong.items()},
        tuple(file for file in wanted if file.path in wrong),
        vectors(lake, snapshot),
    )


def _what_is_wrong(lake: Lake, table: Table, file: StoredFile, sizes: Mapping[str, int]) -> str | None:
    """Return why a file cannot be read; its footer is read where it is not as long as Delta's log says."""
    if file.path not in sizes:
        return LOST
    if sizes[file.path] == file.size:
        return None
    try:
        with lake.arrow_file(f"{table.name}/{file.path}") as source:
            pq.read_metadata(source)
    except (pa.ArrowInvalid, OSError):
        return UNREADABLE
    return None
