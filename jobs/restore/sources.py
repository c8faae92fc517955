"""Which Parquet files of a table there are: what a snapshot names and the lake lacks is said, not stumbled over."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.lake.commit import open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, files, has_footer, plain_batches
from jobs.lake.snapshots import Row
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, RECORD_CRC, Table

DROPPED = "another engine has dropped it"
LATER = frozenset({RECORD_CRC, BODY_ERROR, BODY_INFLATED})  # columns that tables of earlier versions lack
LOST, UNREADABLE = "is missing", "is no Parquet file any more"


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a table that may hold a store's rows."""

    lake: Lake
    table: Table
    files: tuple[StoredFile, ...] = ()  # that are there, in the order of the log
    lost: Mapping[str, str] = field(default_factory=dict)  # path below the lake → what is wrong with it
    lost_files: tuple[StoredFile, ...] = ()

    def rows(self, store_id: str, kind: type[Row], needed: Sequence[str]) -> Iterator[Row]:
        """
        Yield a store's rows of a small table, by the columns that *kind* names.

        Those are left out in which another engine has emptied a *needed* column.
        """
        for file in self.files:
            for batch in plain_batches(self.lake, self.table, file, [*kind._fields, "store_id"]):
                for row in batch.to_pylist():
                    if row["store_id"] == store_id and all(row[name] is not None for name in needed):
                        yield kind._make(row[name] for name in kind._fields)


def source_of(lake: Lake, table: Table, store_id: str) -> Source:
    """Return the files of a table, and which of them are lost."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return Source(lake, table)
    wanted = [file for file in files(lake, snapshot) if file.may_have("store_id", store_id)]
    wanted.sort(key=lambda file: int(file.low("physical_offset", 0)))
    sizes = {info.name: info.size for info in lake.list_files(table.name)}
    wrong = {file.path: reason for file in wanted if (reason := _what_is_wrong(lake, table, file, sizes))}
    dropped = frozenset({*table.schema.names} - {field.name for field in snapshot.schema().fields})
    return Source(
        lake,
        table,
        tuple(file for file in wanted if file.path not in wrong),
        {
            **{f"{table.name}/{name}": reason for name, reason in wrong.items()},
            **{f"{table.name}, column {name}:": DROPPED for name in sorted(dropped - LATER)},
        },
        tuple(file for file in wanted if file.path in wrong),
    )


def _what_is_wrong(lake: Lake, table: Table, file: StoredFile, sizes: Mapping[str, int]) -> str | None:
    """Return why a file cannot be read; its footer is read where it is not as long as Delta's log says."""
    if file.path not in sizes:
        return LOST
    return None if sizes[file.path] == file.size or has_footer(lake, table, file) else UNREADABLE
