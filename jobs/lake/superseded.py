"""
Rows of a log that its broker took back: moved out of the way, never thrown away.

After a crash a broker may cut off the end of its log and write other records at the same offsets; so may a slave that
becomes master. What the lake has from before was true once and is true no more. Such rows go to
`superseded_messages`, in a commit before the one that takes them out of `messages`: at no moment are they in neither.

Which files hold them is asked of the table when the commit is made, not of the run that found out: meanwhile other
files may hold the same rows.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.lake.commit import Rewrite, TransactionTakenError, commit, committed_transaction, open_table
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import batches, files
from jobs.lake.table_file import Action, FileNaming, TableFile
from jobs.lake.tables import CONSUME_QUEUE, LOG_PIECES, MESSAGES, SUPERSEDED_MESSAGES, Table

REWRITTEN = (MESSAGES.name, CONSUME_QUEUE.name, LOG_PIECES.name)


class Superseded(NamedTuple):
    """Which rows of a store are true no more, and which run found out."""

    store_id: str
    run: int
    from_offset: int  # the log differs from here on
    to_offset: int  # the rows reached up to here
    why: str = ""

    def of_table(self, rows: pa.RecordBatch) -> pa.Array:
        """Tell which rows these are."""
        return pc.and_(
            pc.equal(rows.column("store_id"), self.store_id),
            pc.greater_equal(rows.column("physical_offset"), self.from_offset),
        )


def move_rows(lake: Lake, superseded: Superseded, transaction: tuple[str, int], note: Mapping[str, str]) -> None:
    """Copy the superseded rows to their own table, once."""
    app, number = transaction
    if committed_transaction(lake, SUPERSEDED_MESSAGES.name, app) >= number:
        return
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None or (snapshot.transaction_version(app) or 0) >= number:
        return  # they are gone from there: they were copied before
    naming = FileNaming(superseded.store_id, superseded.run)
    constants = {"superseded_by_run": superseded.run}
    with TableFile(lake, SUPERSEDED_MESSAGES, naming.name("superseded"), constants) as file:
        for path in _touched(snapshot, superseded):
            for batch in batches(lake, MESSAGES, path):
                file.write(batch.filter(superseded.of_table(batch)))
        action = file.close()
    with suppress(TransactionTakenError):
        commit(lake, SUPERSEDED_MESSAGES, [action] if action else [], transaction, note)


def rewritten(
    lake: Lake, table: Table, superseded: Superseded, transaction: tuple[str, int]
) -> Callable[[DeltaTable], Rewrite] | None:
    """Return how a commit takes the superseded rows out of *table*; None for tables that keep theirs."""
    if table.name not in REWRITTEN:
        return None
    naming = FileNaming(*transaction)

    def rewrite(snapshot: DeltaTable) -> Rewrite:
        removed: list[str] = []
        added: list[Action] = []
        for path in _touched(snapshot, superseded):
            with TableFile(lake, table, naming.name("kept"), {}) as file:
                for batch in batches(lake, table, path):
                    file.write(batch.filter(pc.invert(superseded.of_table(batch))))
                action = file.close()
            removed.append(path)
            added += [action] if action else []
        return Rewrite(tuple(removed), tuple(added))

    return rewrite


def _touched(snapshot: DeltaTable, superseded: Superseded) -> list[str]:
    """Return the files that may hold superseded rows, in the order of the log."""
    found = [
        file
        for file in files(snapshot)
        if file.may_hold(superseded.store_id)
        and file.high("physical_offset", superseded.to_offset) >= superseded.from_offset
    ]
    return [file.path for file in sorted(found, key=lambda file: int(file.low("physical_offset", 0)))]
