"""
Rows of a truncated part of the log: they are moved to another table, and never deleted.

After a crash a broker may truncate its log and write other records at the same offsets, as may a slave that becomes
master. The rows that the lake has of the truncated part are then outdated. They are copied to `superseded_messages`, in
a commit before the one that removes them from `messages`, so they are always in at least one of the two tables.

The files with these rows are determined when the commit is made: other files may contain the rows by then.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.lake.commit import (
    VECTORS_ONLY_LOCAL_ERROR,
    SnapshotRewrite,
    TransactionTakenError,
    commit,
    newest_committed_transaction,
    open_table,
)
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import (
    SnapshotFile,
    list_snapshot_files,
    read_batches,
    table_for_rewriting,
)
from jobs.lake.snapshots import UnsupportedTableError, read_newest_transaction
from jobs.lake.table_file import AddedFile, FileNaming, TableFile
from jobs.lake.tables import CONSUME_QUEUE, LOG_PIECES, MESSAGES, SUPERSEDED_MESSAGES, TRACES, Table
from jobs.storage.locations import is_local

_REWRITTEN = (MESSAGES.name, CONSUME_QUEUE.name, LOG_PIECES.name)


class ObsoleteRows(NamedTuple):
    """Rows that a commit removes from a table: those with certain column values, from an offset of the log on."""

    values: Mapping[str, str | int]
    from_offset: int | None = None  # None: wherever they are

    def mask_rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Return which rows these are; a row that lacks one of these values was written by another engine."""
        conditions = [pc.equal(rows.column(name), value) for name, value in self.values.items()]
        if self.from_offset is not None:
            conditions.append(pc.greater_equal(rows.column("physical_offset"), self.from_offset))
        return pc.fill_null(reduce(pc.and_, conditions), fill_value=False)

    def may_be_in_file(self, file: SnapshotFile) -> bool:
        """Return whether a file may contain such rows, according to Delta's log."""
        reaches = self.from_offset is None or file.maximum("physical_offset", self.from_offset) >= self.from_offset
        return reaches and all(file.may_have(*named) for named in self.values.items())


class Superseded(NamedTuple):
    """Outdated rows of a store, and the run that found them."""

    store_id: str
    run: int
    from_offset: int  # the log differs from here on
    to_offset: int  # the rows reached up to here
    why: str = ""

    @property
    def obsolete_rows(self) -> ObsoleteRows:
        """The rows."""
        return ObsoleteRows({"store_id": self.store_id}, self.from_offset)


def tables_with_superseded_rows(before: Mapping[str, int]) -> frozenset[str]:
    """
    Return the tables that contain superseded rows; *before* has the store's newest run in each table.

    Traces were introduced later than the others, and few stores have any: the table is included if the store has rows
    there.
    """
    return frozenset({*_REWRITTEN, *([TRACES.name] if before.get(TRACES.name) else ())})


def refuse_deletion_vectors(lake: Lake, superseded: Superseded) -> None:
    """Raise `UnsupportedTableError` if rows would have to be removed from files that cannot be replaced."""
    for name in () if is_local(lake.location) else (*_REWRITTEN, TRACES.name):
        snapshot = open_table(lake, name)
        touched = _touched(lake, snapshot, [superseded.obsolete_rows]) if snapshot is not None else ()
        if any(file.vector is not None for file in touched):
            location = lake.locate(name)
            raise UnsupportedTableError(
                f"{location}: {VECTORS_ONLY_LOCAL_ERROR}, and the log has different records from offset "
                f"{superseded.from_offset} on; nothing was written. Run in Spark SQL: REORG TABLE delta.`{location}` "
                "APPLY (PURGE)"
            )


def copy_superseded_rows(
    lake: Lake, superseded: Superseded, transaction: tuple[str, int], note: Mapping[str, str]
) -> None:
    """Copy the superseded rows to their own table, once."""
    app, number = transaction
    if newest_committed_transaction(lake, SUPERSEDED_MESSAGES.name, app) >= number:
        return
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None or read_newest_transaction(snapshot, app) >= number:
        return  # already removed from there, so copied before
    naming = FileNaming(superseded.store_id, superseded.run)
    constants = {"superseded_by_run": superseded.run}
    touched = _touched(lake, snapshot, [superseded.obsolete_rows])
    rows = table_for_rewriting(snapshot, MESSAGES)
    theirs = rows.columns[len(MESSAGES.columns) :]
    moved = replace(SUPERSEDED_MESSAGES, columns=(*SUPERSEDED_MESSAGES.columns, *theirs), has_foreign_rows=True)
    read = (batch for stored in touched for batch in read_batches(lake, rows, stored))
    file = TableFile(lake, moved, naming.new_file_name("superseded"), constants)
    action = file.write_all(batch.filter(superseded.obsolete_rows.mask_rows(batch)) for batch in read)
    with suppress(TransactionTakenError):  # another run has moved the same rows
        commit(lake, moved, [action] if action else [], transaction, note)


def rewrite_without_rows(
    lake: Lake, table: Table, obsolete: Sequence[ObsoleteRows], transaction: tuple[str, int]
) -> SnapshotRewrite:
    """Return the function, called by a commit, that removes obsolete rows from a snapshot of *table*."""
    naming = FileNaming(*transaction)
    written: dict[tuple[str, bytes], AddedFile | None] = {}  # a commit may need several snapshots

    def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.invert(reduce(pc.or_, (one.mask_rows(batch) for one in obsolete))))

    def rewrite(snapshot: DeltaTable) -> tuple[list[SnapshotFile], list[AddedFile]]:
        removed = {file.identity: file for file in _touched(lake, snapshot, obsolete, table)}
        rows = table_for_rewriting(snapshot, table)
        for key in removed.keys() - written.keys():
            file = TableFile(lake, rows, naming.new_file_name("kept"), {})
            written[key] = file.write_all(map(kept, read_batches(lake, rows, removed[key])))
        return list(removed.values()), [action for key in removed if (action := written[key]) is not None]

    return rewrite


def _touched(
    lake: Lake, snapshot: DeltaTable, obsolete: Sequence[ObsoleteRows], table: Table | None = None
) -> list[SnapshotFile]:
    """Return the files that may contain obsolete rows, in log order."""
    found = [
        file for file in list_snapshot_files(lake, snapshot, table) if any(one.may_be_in_file(file) for one in obsolete)
    ]
    return sorted(found, key=lambda file: int(file.minimum("physical_offset", 0)))
