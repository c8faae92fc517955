"""
Retention of a lake: `optimize --keep` removes rows of messages that are older than a time.

A message is as old as its store timestamp. Its rows are removed from all tables. Rows that describe other bytes of the
log, or have no message, are removed once every message before them is removed.

One row in `runs` is the commit point: it states which messages have expired. Afterwards these rows are removed from
each table in a separate commit, which may run concurrently with runs and other engines. If it is interrupted, the next
`optimize` repeats it. Readers call missing messages expired, not lost, as soon as that row exists. The watermark of a
store does not change, so later runs do not read the messages again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.console.result import OtherRunActiveError
from jobs.lake.commit import (
    ExpiredRows,
    FileShare,
    TransactionTakenError,
    commit,
    list_files_with_rows,
    open_table,
    read_snapshot,
    rewrite_without_rows,
)
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import Expiry, LakeStore, list_broker_stores
from jobs.lake.run_rows import expiry_app
from jobs.lake.runs import find_unfinished_run, finish_expiry, is_expiry_finished, record_expiry, vectors_error
from jobs.lake.snapshot_files import SnapshotFile, list_snapshot_files, read_batches
from jobs.lake.snapshots import read_newest_transaction
from jobs.lake.tables import (
    CONSUME_QUEUE,
    DEAD_LETTERS,
    INDEX_ENTRIES,
    LOG_PIECES,
    MESSAGES,
    QUARANTINE,
    SUPERSEDED_MESSAGES,
    TRACES,
    Table,
)
from jobs.storage.locations import is_local
from rmq_formats.trace import TRACE_TOPIC

_ATTEMPTS = 20
_PLACE = ("store_id", "topic", "physical_offset", "store_timestamp")
EXPIRING_TABLES = (
    *(MESSAGES, QUARANTINE, CONSUME_QUEUE, INDEX_ENTRIES, LOG_PIECES, SUPERSEDED_MESSAGES, DEAD_LETTERS),
)
_MS = 1000


class Retention(NamedTuple):
    """The time for which messages are kept, in seconds: by topic, and for all other topics."""

    others_s: float | None = None  # None: forever
    topics_s: Mapping[str, float] = {}

    def cutoffs_at(self, now_ms: int) -> dict[str, int]:
        """Return the time before which messages have expired, by topic; "" stands for all other topics."""
        seconds = {**({} if self.others_s is None else {"": self.others_s}), **self.topics_s}
        return {topic: now_ms - round(kept * _MS) for topic, kept in seconds.items()}


class ExpirySummary(NamedTuple):
    """The rows of a store that have expired."""

    broker: str
    store_id: str
    messages: int  # that have expired since the previous expiry
    to_offset: int  # every message before this offset has expired
    tables: tuple[str, ...] = ()  # that have lost rows


def remove_expired_rows(
    lake: Lake,
    retention: Retention,
    typed_tables: Sequence[tuple[str, Table]] = (),
    *,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> Iterator[ExpirySummary]:
    """
    Remove the expired rows of all stores, including those of an interrupted expiry.

    Each of the *typed tables* has its topic. With *dry_run*, rows are only counted.
    """
    cutoffs = retention.cutoffs_at(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    for store in list_broker_stores(lake):
        # Old messages may have been added since the previous expiry: from a gap, or from a store that was read late.
        expiry = plan_expiry(lake, store, cutoffs) if cutoffs or store.expiry else None
        lake_store = store if expiry is None else replace(store, expiry=expiry)
        if lake_store.expiry is None:
            continue
        messages = 0 if expiry is None else expiry.messages
        if dry_run:
            yield ExpirySummary(store.broker, store.store_id, messages, lake_store.expiry.to_offset)
            continue
        if expiry is not None:
            _refuse_deletion_vectors(lake, expiry.rows_of(store.store_id))
            record_expiry(lake, store, expiry)
        yield ExpirySummary(
            store.broker,
            store.store_id,
            messages,
            lake_store.expiry.to_offset,
            tuple(_remove_rows(lake, lake_store, typed_tables)),
        )


def plan_expiry(lake: Lake, store: LakeStore, cutoffs: Mapping[str, int]) -> Expiry | None:
    """Return the next expiry of a store; None if no message has expired since the previous one."""
    if store.newest_manifest is None:
        return None
    before = store.expiry or Expiry(0, {}, 0, 0, 0)
    default = before.cutoffs.get("", 0)
    merged = {
        topic: max(cutoffs.get(topic, cutoffs.get("", 0)), before.cutoffs.get(topic, default))
        for topic in sorted({*cutoffs, *before.cutoffs, ""})
    }
    rows = ExpiredRows(store.store_id, merged, 0)
    unfinished = find_unfinished_run(lake, store)  # its messages may not be in the tables yet
    log_end = store.newest_manifest.to_offset if unfinished is None else unfinished.from_offset

    def count(snapshot: DeltaTable) -> tuple[int, int, int]:
        """Return the number of expired messages, the end of the last one, and the offset of the first other one."""
        messages, until, first_kept = 0, 0, log_end
        for file in list_snapshot_files(lake, snapshot):
            may_be_first = file.minimum("physical_offset", 0) < first_kept
            is_old = file.minimum("store_timestamp", 0) < rows.newest_cutoff
            if not file.may_have("store_id", store.store_id) or not (may_be_first or is_old):
                continue
            for batch in read_batches(lake, MESSAGES, file, (*_PLACE, "total_size")):
                is_ours = pc.fill_null(pc.equal(batch.column("store_id"), store.store_id), fill_value=False)
                ours = batch.filter(is_ours)
                offsets, expired = ours.column("physical_offset"), _mask_messages(rows, ours)
                messages += pc.sum(expired).as_py() or 0
                ends = pc.add(offsets, pc.fill_null(ours.column("total_size").cast(pa.int64()), 1))
                until = max(until, pc.max(ends.filter(expired)).as_py() or 0)
                first_kept = min(first_kept, pc.min(offsets.filter(pc.invert(expired))).as_py() or first_kept)
        return messages, until, first_kept

    messages, until, first_kept = read_snapshot(lake, MESSAGES.name, count) or (0, 0, 0)
    if not messages:
        return None
    return Expiry(before.number + 1, merged, max(first_kept, before.to_offset), max(until, before.until), messages)


def _mask_messages(rows: ExpiredRows, batch: pa.RecordBatch) -> pa.Array:
    expired = rows.mask_messages(batch.column("store_timestamp"), batch.column("topic"))
    return pc.fill_null(expired, fill_value=False)


def _remove_rows(lake: Lake, store: LakeStore, typed_tables: Sequence[tuple[str, Table]]) -> Iterator[str]:
    """Remove the expired rows of a store from all tables; yield the tables that had some."""
    assert store.expiry is not None
    rows = store.expiry.rows_of(store.store_id)
    is_finished = is_expiry_finished(lake, store)
    # The topic of a trace is that of the message that it is about.
    of_one_topic = [(TRACE_TOPIC, TRACES), *typed_tables] if not is_finished else typed_tables
    # A run of `type` may have read messages before they expired.
    for table in EXPIRING_TABLES if not is_finished else (DEAD_LETTERS,):
        if _remove_from_table(lake, table, rows):
            yield table.name
    for topic, table in of_one_topic:
        cutoff = rows.cutoffs.get(topic, rows.cutoffs.get("", 0))
        if _remove_from_table(lake, table, rows._replace(cutoffs={"": cutoff})):
            yield table.name
    if not is_finished:
        finish_expiry(lake, store, store.expiry)


def _remove_from_table(lake: Lake, table: Table, rows: ExpiredRows) -> bool:
    """Remove expired rows from a table, and return whether it had any."""
    shares: dict[tuple[str, bytes], FileShare] = {}

    def find_share(file: SnapshotFile) -> FileShare:
        if file.identity not in shares:
            shares[file.identity] = _find_share(lake, table, file, rows)
        return shares[file.identity]

    app = expiry_app(rows.store_id)
    for _ in range(_ATTEMPTS):
        snapshot = open_table(lake, table.name)
        try:
            found = [] if snapshot is None else list_files_with_rows(lake, snapshot, [rows], table)
            if snapshot is None or all(find_share(file) is FileShare.NONE for file in found):
                return False
            transaction = app, read_newest_transaction(snapshot, app) + 1
            change = rewrite_without_rows(lake, table, [rows], (rows.store_id, 0), find_share)
            commit(lake, table, (), transaction, {"expired": str(rows.to_offset)}, change)
        except (TransactionTakenError, FileNotFoundError):  # another process has rewritten files: look again
            continue
        return True
    raise OtherRunActiveError(f"{lake.locate(table.name)}: other processes rewrite this table. Run the command again")


def _find_share(lake: Lake, table: Table, file: SnapshotFile, rows: ExpiredRows) -> FileShare:
    names = [name for name in (*_PLACE, "length") if name in table.schema.names]
    live = expired = 0
    for batch in read_batches(lake, table, file, names):
        live += batch.num_rows
        expired += pc.sum(rows.mask_rows(batch)).as_py() or 0
    return FileShare.NONE if not expired else FileShare.ALL if live == expired else FileShare.SOME


def _refuse_deletion_vectors(lake: Lake, rows: ExpiredRows) -> None:
    """Raise `UnsupportedTableError` if rows would have to be removed from files that cannot be replaced."""
    for table in () if is_local(lake.location) else (*EXPIRING_TABLES, TRACES):
        snapshot = open_table(lake, table.name)
        touched = list_files_with_rows(lake, snapshot, [rows], table) if snapshot is not None else ()
        if any(file.kept_row_mask is not None for file in touched):
            raise vectors_error(lake, table.name, "some of their rows have expired; nothing was removed")
