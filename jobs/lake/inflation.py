"""
Compressed bodies of rows that are there already, inflated: `body_inflated` for a lake that was made without it.

A file whose rows lack it is written again with it, in the same order; all other columns keep their values. To readers
of changes such a row is another one: Delta's log says so.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from deltalake import DeltaTable

from jobs.lake.bodies import is_to_inflate, with_inflated
from jobs.lake.commit import TransactionTakenError, commit_layout, ensure_table, open_table
from jobs.lake.compaction import MergedFile
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import StoredFile, batches, files, plain_batches, with_their_columns, written_again
from jobs.lake.table_file import Action
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, MESSAGES, SUPERSEDED_MESSAGES, TIERED, Table
from jobs.lake.writers import NO_VECTORS, Rewrite
from jobs.storage.locations import is_local

WITH_BODIES = (MESSAGES, TIERED, SUPERSEDED_MESSAGES)
_LOOKED_AT = ("is_compressed", "sys_flag", "body", BODY_INFLATED, BODY_ERROR)
_ATTEMPTS = 3  # while others rewrite files


class Inflation(NamedTuple):
    """A file, and what a task needs to inflate its bodies."""

    lake: Lake
    table: Table
    file: StoredFile
    dry_run: bool


class Inflated(NamedTuple):
    """How many bodies a file lacked; the file in its place."""

    bodies: int
    action: Action | None


Inflate = Callable[[Sequence[Inflation]], list[Inflated]]


def inflate(lake: Lake, table: Table, work: Inflate, *, dry_run: bool = False) -> int:
    """Add the inflated bodies that a table lacks; return how many."""
    if open_table(lake, table.name) is None:
        return 0
    if not dry_run:
        ensure_table(lake, table)
    done: list[Inflated] = []

    def rewrite(snapshot: DeltaTable) -> Rewrite:
        done.clear()
        rows = with_their_columns(snapshot, table)
        stored = files(lake, snapshot)
        if not is_local(lake.location) and any(file.vector for file in stored):
            raise OSError(f"{lake.locate(table.name)}: {NO_VECTORS}")
        results = work([Inflation(lake, rows, file, dry_run) for file in stored])
        done.extend(results)
        changed = [(file, one.action) for file, one in zip(stored, results, strict=True) if one.action is not None]
        return Rewrite(tuple(file for file, _ in changed), tuple(action for _, action in changed))

    for _ in range(_ATTEMPTS):
        with suppress(TransactionTakenError):  # tried again; after the last attempt an error is raised
            commit_layout(lake, table, rewrite, layout="inflated", data_change=True)
            return sum(one.bodies for one in done)
    raise OSError(f"{lake.locate(table.name)}: other processes rewrite its files again and again; run this later")


def inflate_file(work: Inflation) -> Inflated:
    """Write a file again with the bodies that it lacks, in a task."""
    bodies = sum(_lacking(work))
    if not bodies or work.dry_run:
        return Inflated(bodies, None)

    def write(table: Table) -> Action | None:
        stored = batches(work.lake, table, work.file)
        file = MergedFile(work.lake, table, f"inflated-{uuid4()}.parquet", {})
        return file.fill(rows for batch in stored for rows in with_inflated(batch))

    return Inflated(bodies, written_again(work.table, write))


def _lacking(work: Inflation) -> Iterator[int]:
    flags = plain_batches(work.lake, work.table, work.file, ("is_compressed",))
    if not any(batch.column("is_compressed").true_count for batch in flags):
        return
    for batch in plain_batches(work.lake, work.table, work.file, _LOOKED_AT):
        lacks = is_to_inflate(batch)
        for name in (BODY_INFLATED, BODY_ERROR):
            lacks &= ~np.asarray(batch.column(name).is_valid())
        yield int(np.count_nonzero(lacks))
