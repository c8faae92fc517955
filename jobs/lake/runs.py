"""
Runs: how the rows of a store are written to the lake exactly once.

The row in `runs` that names a run's manifest is the commit point: before it, the run can be discarded, and its
files are garbage; afterwards any process can complete the run from the manifest alone. docs/internals/guarantees.md
describes the protocol.

After a crash a broker may truncate its log and write other records at the same offsets, as may a slave that becomes
master. The rows that the lake has of the truncated part are then superseded. They are moved, and never deleted: they
are copied to `superseded_messages`, in a commit before the one that removes them from `messages`, so they are always in
at least one of the two tables. The files with these rows are determined when the commit is made: other files may
contain the rows by then.
"""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from jobs.console.result import OtherRunActiveError
from jobs.lake.commit import (
    VECTORS_ONLY_LOCAL_ERROR,
    FileShare,
    LaterEntries,
    LaterUnits,
    ObsoleteRows,
    RemovedRows,
    SnapshotRewrite,
    TransactionTakenError,
    abort_file_replacements,
    commit,
    file_paths,
    find_newest_transaction,
    list_files_with_rows,
    open_table,
    refuse_lost_files,
    rewrite_without_rows,
)
from jobs.lake.lake import BACKFILLED_KEY, FILLED_KEY, FULL_STATE_KEY, UNDONE_KEY, Lake
from jobs.lake.lake_stores import Expiry, LakeStore
from jobs.lake.manifest import (
    BROKER_CONFIG_STATE,
    COMMAND_ID_KEY,
    MANIFEST_DIRECTORY,
    QUEUES_STATE,
    Manifest,
    SupersededRows,
    read_plain_queue_ends,
    storing_manifest,
)
from jobs.lake.run_rows import (
    DONE_STATE,
    EXPIRED_STATE,
    PREPARED_STATE,
    append_run_row,
    done_transaction_app,
    expiry_app,
    find_prepared_row,
    read_manifest,
)
from jobs.lake.snapshot_files import SnapshotFile, read_batches, table_for_rewriting
from jobs.lake.snapshots import UnsupportedTableError, read_newest_transaction
from jobs.lake.table_file import MERGED_MARK, AddedFile, FileNaming, TableFile
from jobs.lake.tables import (
    CONSUME_QUEUE,
    INDEX_ENTRIES,
    LOG_PIECES,
    MESSAGES,
    PRODUCT_TABLES,
    QUARANTINE,
    RUNS,
    SUPERSEDED_MESSAGES,
    TRACES,
    WRITTEN_BY_RUNS,
    Table,
)
from jobs.storage.locations import is_local
from jobs.store.record_places import Fingerprint
from jobs.store.release import RELEASE_SETTING
from jobs.store.selection import TOPIC_CHOICES_KEY, Selection, TopicChoices
from rmq_formats.indexfile.layout import IndexHeader

UNKNOWN_PIECE = "unknown"  # kind of rows of `log_pieces`: bytes that the lake does not have
_NEWEST_KEPT = 32
# Columns from which `LaterUnits` and `LaterEntries` are recognized.
_OF_UNDONE_ROWS = (
    *("store_id", "topic", "queue_id", "queue_offset", "physical_offset", "status", "batch_count"),
    *("index_file", "entry"),
)
_REWRITTEN = (MESSAGES.name, CONSUME_QUEUE.name, LOG_PIECES.name)
_DEAD_AFTER_MS = 600_000  # a commit takes milliseconds


def refuse_taken_run(lake: Lake, store_id: str, run: int, cause: Exception) -> None:
    """Raise `OtherRunActiveError` from *cause*, a missing file, if another run with this number deleted the file."""
    if find_newest_transaction(lake, RUNS.name, store_id) >= run:
        raise _faster_run_error(lake, store_id, run) from cause


def prepare_run(lake: Lake, manifest: Manifest) -> None:
    """Commit to *manifest*; raise `OtherRunActiveError` if another run with this number was faster."""
    if find_newest_transaction(lake, RUNS.name, manifest.store_id) >= manifest.run:  # it may have deleted our files
        discard_files(lake, manifest.tables)
        raise _faster_run_error(lake, manifest.store_id, manifest.run)
    for table, actions in manifest.tables.items():
        refuse_lost_files(lake, table, actions)
    try:
        _append_prepared(lake, manifest, (manifest.store_id, manifest.run))
    except TransactionTakenError as error:
        discard_files(lake, manifest.tables)
        raise _faster_run_error(lake, manifest.store_id, manifest.run) from error


def replace_prepared_manifest(lake: Lake, manifest: Manifest, replaced: Manifest) -> None:
    """
    Replace the prepared manifest *replaced* by *manifest*, of the same run, in one commit.

    Raises `OtherRunActiveError` if another process was faster: a transaction counts these commits.
    """
    app = f"{manifest.store_id}/replaced"
    number = find_newest_transaction(lake, RUNS.name, app)
    if read_manifest(lake, replaced.store_id, replaced.run) != replaced:
        raise _faster_run_error(lake, replaced.store_id, replaced.run)
    prepared = ObsoleteRows({"store_id": replaced.store_id, "run": replaced.run, "state": PREPARED_STATE})
    change = rewrite_without_rows(lake, RUNS, [prepared], (replaced.store_id, replaced.run))
    try:
        _append_prepared(lake, manifest, (app, number + 1), change)
    except TransactionTakenError as error:
        raise _faster_run_error(lake, replaced.store_id, replaced.run) from error


def _append_prepared(
    lake: Lake, manifest: Manifest, transaction: tuple[str, int], rewrite: SnapshotRewrite | None = None
) -> None:
    rules = cast("dict[str, Any]", manifest.state.get("index", {})).get("rules")
    full_state = cast("dict[str, Any]", manifest.state.get(BROKER_CONFIG_STATE) or {}).get(FULL_STATE_KEY)
    undone = manifest.undone_from
    detail = {
        "counts": dict(manifest.counts),
        "gaps": list(manifest.gaps),
        COMMAND_ID_KEY: manifest.state.get(COMMAND_ID_KEY),
        TOPIC_CHOICES_KEY: TopicChoices.from_state(manifest.state, manifest.selection).state,
        **({RELEASE_SETTING: rules[-1][1]} if rules else {}),
        **({FULL_STATE_KEY: full_state[0]} if full_state else {}),
        **({FILLED_KEY: [one.to_dict() for one in manifest.filled]} if manifest.filled else {}),
        **({BACKFILLED_KEY: [one.to_dict() for one in manifest.backfilled]} if manifest.backfilled else {}),
        **({UNDONE_KEY: {"first_run": undone, "from": manifest.to_offset}} if undone is not None else {}),
    }
    values = {
        "from_offset": manifest.from_offset,
        "to_offset": manifest.to_offset,
        "messages": manifest.counts.get("messages", 0),
        "detail": json.dumps(detail),
    }
    naming = FileNaming(manifest.store_id, manifest.run)
    with storing_manifest(lake, naming, manifest.to_json(), manifest.tables) as path:
        append_run_row(lake, naming, manifest.broker, PREPARED_STATE, transaction, rewrite, manifest=path, **values)


def discard_files(lake: Lake, files: Mapping[str, Iterable[AddedFile]]) -> None:
    """Delete the files, by table, of a run that lost to another one, or that will not be prepared."""
    for table, actions in files.items():
        for action in actions:
            lake.delete(f"{table}/{action.path}")


def _faster_run_error(lake: Lake, store_id: str, run: int) -> OtherRunActiveError:
    row = find_prepared_row(lake, store_id, run)
    by_whom = f" on {row['host']} at {row['time']:%Y-%m-%d %H:%M:%S} UTC" if row else ""
    return OtherRunActiveError(
        f"run {run} of this store was prepared by another process{by_whom}. Run the command again"
    )


def commit_prepared(lake: Lake, manifest: Manifest) -> dict[str, int]:
    """Commit a prepared run to the tables that do not have it yet, and mark the run as done."""
    transaction = (manifest.store_id, manifest.run)
    note = {"store_id": manifest.store_id, "run": str(manifest.run)}
    gone = []
    if manifest.superseded is not None:
        # Copy the rows before any table loses them: after a kill, readers may find them twice, but never miss them.
        copy_superseded_rows(lake, manifest.superseded, transaction, note)
        gone = [manifest.superseded.obsolete_rows]
    versions = {}
    changed = tables_with_superseded_rows(manifest.tables_before)
    for table in PRODUCT_TABLES:
        actions = manifest.tables.get(table.name, ())
        removed = [*(gone if table.name in changed else ()), *_list_replaced_rows(manifest, table)]
        undone = list(_list_undone_rows(lake, manifest, table))
        find_share = partial(_find_undone_share, lake, table, undone) if undone else _find_unknown_share
        removed += undone
        change = rewrite_without_rows(lake, table, removed, transaction, find_share) if removed else None
        if table.name not in manifest.tables and change is None:
            continue
        with suppress(TransactionTakenError):  # another process committed it
            versions[table.name] = commit(lake, table, actions, transaction, note, change)
    naming, done = FileNaming(*transaction), (done_transaction_app(manifest.store_id), manifest.run)
    with suppress(TransactionTakenError):  # another process finished it
        append_run_row(lake, naming, manifest.broker, DONE_STATE, done, detail=json.dumps({"versions": versions}))
    return versions


def _list_replaced_rows(manifest: Manifest, table: Table) -> list[ObsoleteRows]:
    """Return the rows about damage in ranges that a run has filled, and those about bytes that it has read."""
    if table not in {QUARANTINE, LOG_PIECES} or table.name not in manifest.tables:
        return []
    whose = {"store_id": manifest.store_id}
    replaced = [ObsoleteRows(whose, one.start, one.end) for one in manifest.filled]
    if table == LOG_PIECES and Selection.from_manifest(manifest.selection).topic_filter is None:
        # The lake may have bytes that could belong to any message only if no topic is left out.
        replaced += [ObsoleteRows({**whose, "kind": UNKNOWN_PIECE}, one.start, one.end) for one in manifest.backfilled]
    return replaced


def _list_undone_rows(lake: Lake, manifest: Manifest, table: Table) -> Iterator[RemovedRows]:
    """Yield the rows of the runs that a run has undone; its own state is that of the run before them."""
    first, store_id = manifest.undone_from, manifest.store_id
    if first is None or table.name not in manifest.tables:
        return
    if table == CONSUME_QUEUE:
        queues = cast("dict[str, Any]", manifest.state.get(QUEUES_STATE) or {"dispatched": 0, "queues": []})
        yield LaterUnits(store_id, queues["dispatched"], read_plain_queue_ends(lake, queues))
    elif table == INDEX_ENTRIES:
        index = cast("dict[str, Any]", manifest.state.get("index") or {"file": 0, "header": None})
        yield LaterEntries(store_id, index["file"], IndexHeader(*(index["header"] or ())).entry_count)
    elif "physical_offset" in table.schema.names:
        yield ObsoleteRows({"store_id": store_id}, manifest.to_offset)
    else:
        yield from (ObsoleteRows({"store_id": store_id, "run": run}) for run in range(first, manifest.run))


def _find_unknown_share(_: SnapshotFile) -> FileShare:
    """Return that some rows are removed: without reading the file, their share is unknown."""
    return FileShare.SOME


def _find_undone_share(lake: Lake, table: Table, undone: Sequence[RemovedRows], file: SnapshotFile) -> FileShare:
    """Return how many rows of a file are undone; most files with units or index entries of a store have none."""
    if table not in {CONSUME_QUEUE, INDEX_ENTRIES}:
        return FileShare.SOME
    names = [name for name in _OF_UNDONE_ROWS if name in table.schema.names]
    count = gone = 0
    for batch in read_batches(lake, table, file, names):
        count += batch.num_rows
        gone += sum(one.mask_rows(batch).true_count for one in undone)
    return FileShare.NONE if not gone else FileShare.ALL if gone == count else FileShare.SOME


def tables_with_superseded_rows(newest_runs: Mapping[str, int]) -> frozenset[str]:
    """
    Return the tables that contain superseded rows; *newest_runs* has the store's newest run in each table.

    Traces were introduced later than the others, and few stores have any: the table is included if the store has rows
    there.
    """
    return frozenset({*_REWRITTEN, *([TRACES.name] if newest_runs.get(TRACES.name) else ())})


def refuse_deletion_vectors(lake: Lake, superseded: SupersededRows) -> None:
    """Raise `UnsupportedTableError` if rows would have to be removed from files that cannot be replaced."""
    for name in () if is_local(lake.location) else (*_REWRITTEN, TRACES.name):
        snapshot = open_table(lake, name)
        touched = list_files_with_rows(lake, snapshot, [superseded.obsolete_rows]) if snapshot is not None else ()
        if any(file.kept_row_mask is not None for file in touched):
            reason = f"the log has different records starting at offset {superseded.from_offset}; nothing was written"
            raise vectors_error(lake, name, reason)


def vectors_error(lake: Lake, table: str, reason: str) -> UnsupportedTableError:
    """Return the error for a table with deletion vectors of another engine, whose rows cannot be removed."""
    location = lake.locate(table)
    return UnsupportedTableError(
        f"{location}: {VECTORS_ONLY_LOCAL_ERROR}, and {reason}. Run in Spark SQL: REORG TABLE delta.`{location}` "
        "APPLY (PURGE)"
    )


def copy_superseded_rows(
    lake: Lake, superseded: SupersededRows, transaction: tuple[str, int], note: Mapping[str, str]
) -> None:
    """Copy the superseded rows to their own table, once."""
    app, number = transaction
    if find_newest_transaction(lake, SUPERSEDED_MESSAGES.name, app) >= number:
        return
    snapshot = open_table(lake, MESSAGES.name)
    if snapshot is None or read_newest_transaction(snapshot, app) >= number:
        return  # already removed from there, so copied before
    naming = FileNaming(superseded.store_id, superseded.run)
    constants = {"superseded_by_run": superseded.run}
    touched = list_files_with_rows(lake, snapshot, [superseded.obsolete_rows])
    rows = table_for_rewriting(snapshot, MESSAGES)
    theirs = rows.columns[len(MESSAGES.columns) :]
    moved = replace(SUPERSEDED_MESSAGES, columns=(*SUPERSEDED_MESSAGES.columns, *theirs), has_foreign_rows=True)
    read = (batch for stored in touched for batch in read_batches(lake, rows, stored))
    file = TableFile(lake, moved, naming.new_file_name("superseded"), constants)
    action = file.write_all(batch.filter(superseded.obsolete_rows.mask_rows(batch)) for batch in read)
    with suppress(TransactionTakenError):  # another run has moved the same rows
        commit(lake, moved, [action] if action else [], transaction, note)


def record_expiry(lake: Lake, store: LakeStore, expiry: Expiry) -> None:
    """
    Record which rows of a store have expired; they can then be removed from each table.

    The row replaces that of the previous expiry. Raises `OtherRunActiveError` if another process was faster.
    """
    naming = FileNaming(store.store_id, 0)
    before = ObsoleteRows({"store_id": store.store_id, "run": 0, "state": EXPIRED_STATE})
    change = rewrite_without_rows(lake, RUNS, [before], naming)
    detail, transaction = json.dumps({"expired": expiry._asdict()}), (expiry_app(store.store_id), expiry.number)
    try:
        append_run_row(lake, naming, store.broker, EXPIRED_STATE, transaction, change, detail=detail)
    except TransactionTakenError as error:
        raise OtherRunActiveError(
            f"another process removes expired rows of broker {store.broker} at this moment. Run the command again"
        ) from error


def finish_expiry(lake: Lake, store: LakeStore, expiry: Expiry) -> None:
    """Note that all tables have lost the rows of an expiry."""
    run = store.newest_manifest.run if store.newest_manifest else 0
    transaction = (f"{expiry_app(store.store_id)}/done", expiry.number)
    naming, detail = FileNaming(store.store_id, run), json.dumps({"expired": expiry._asdict()})
    with suppress(TransactionTakenError):  # another process finished it
        append_run_row(
            lake, naming, store.broker, EXPIRED_STATE, transaction, to_offset=expiry.to_offset, detail=detail
        )


def is_expiry_finished(lake: Lake, store: LakeStore) -> bool:
    """Return whether all tables have lost the rows that have expired."""
    number = store.expiry.number if store.expiry else 0
    return find_newest_transaction(lake, RUNS.name, f"{expiry_app(store.store_id)}/done") >= number


def find_unfinished_run(lake: Lake, store: LakeStore) -> Manifest | None:
    """Return the prepared run that is not marked as done, if any."""
    done = find_newest_transaction(lake, RUNS.name, done_transaction_app(store.store_id))
    return store.newest_manifest if store.newest_manifest and store.newest_manifest.run > done else None


def delete_files_outside_manifest(lake: Lake, manifest: Manifest) -> None:
    """
    Delete files of this run's attempts that are not part of it; they can never be committed.

    Call this only when the run is prepared: until then, another attempt with the same number may still win.
    """
    naming = FileNaming(manifest.store_id, manifest.run)
    dead_before = time.time() * 1000 - _DEAD_AFTER_MS
    for table in WRITTEN_BY_RUNS:
        # Listed once: a file that another process writes later may be committed, because nothing aborts its commit.
        names = _file_names(lake, table.name)
        merged_prefix = f"{naming.prefix}{MERGED_MARK}-"  # the prefix of files that the run merged after it was done
        if any(name.startswith(merged_prefix) for name in names):
            abort_file_replacements(lake, table)  # otherwise a slow process may still commit it
        log = f"{table.name}/_delta_log"
        for info in lake.list_files(log):  # unfinished commits: `deltalake` begins their names with '#'
            if ("#" in info.name or ".json.attempt-" in info.name) and info.modified_ms < dead_before:
                lake.delete(f"{log}/{info.name}")
        kept_names = {action.path for action in manifest.tables.get(table.name, ())}
        _delete_uncommitted(lake, table.name, {name for name in names if name.startswith(naming.prefix)} - kept_names)
    row = find_prepared_row(lake, manifest.store_id, manifest.run)
    kept = {
        (path or "").removeprefix(f"{MANIFEST_DIRECTORY}/") for path in (row and row["manifest"], *manifest.state_files)
    }
    for name in _file_names(lake, MANIFEST_DIRECTORY):
        # A file that is being created has a dot before its name.
        if name not in kept and name.removeprefix(".").startswith(naming.prefix):
            lake.delete(f"{MANIFEST_DIRECTORY}/{name}")


def delete_uncommitted_files(lake: Lake, table: str, naming: FileNaming) -> None:
    """Delete files of a run that no version of a table has."""
    _delete_uncommitted(lake, table, {name for name in _file_names(lake, table) if name.startswith(naming.prefix)})


def _delete_uncommitted(lake: Lake, table: str, names: Collection[str]) -> None:
    snapshot = open_table(lake, table)
    for name in sorted(set(names).difference(file_paths(snapshot) if snapshot is not None else ())):
        lake.delete(f"{table}/{name}")


def has_leftover_files(lake: Lake, store: LakeStore) -> bool:
    """Return whether an attempt of the store's next run has left files."""
    prefix = FileNaming(store.store_id, store.next_run).prefix
    directories = (*(table.name for table in WRITTEN_BY_RUNS), MANIFEST_DIRECTORY)
    return any(
        name.lstrip(".").startswith(prefix) for directory in directories for name in _file_names(lake, directory)
    )


def delete_manifests_up_to(lake: Lake, store_id: str, newest_run: int, needed: Collection[str] = ()) -> None:
    """Delete the manifests and state files of runs up to *newest_run*, except the *needed* ones."""
    prefix = f"{store_id}-"
    for name in _file_names(lake, MANIFEST_DIRECTORY):
        run = name.removeprefix(prefix).partition("-")[0]
        is_needed = f"{MANIFEST_DIRECTORY}/{name}" in needed
        if name.startswith(prefix) and run.isdigit() and int(run) <= newest_run and not is_needed:
            lake.delete(f"{MANIFEST_DIRECTORY}/{name}")


def _file_names(lake: Lake, directory: str) -> Sequence[str]:
    return [info.name for info in lake.list_files(directory)]


def thin_fingerprints(fingerprints: Iterable[Fingerprint]) -> tuple[Fingerprint, ...]:
    """
    Keep the newest fingerprints, and fewer of the older ones: a few dozen are enough to identify a store.

    The log is divided into fixed cells that grow with their distance from its end; repeated thinning keeps one
    fingerprint in each.
    """
    newest_first = sorted(set(fingerprints), reverse=True)
    kept = {("newest", offset): fingerprint for offset, fingerprint in enumerate(newest_first[:_NEWEST_KEPT])}
    for fingerprint in newest_first[_NEWEST_KEPT:]:
        distance = newest_first[0].offset - fingerprint.offset
        # A cell has 2^bits bytes, a quarter to a half of the distance from the newest, so that each doubling of the
        # distance has two or three cells: a log of 1 TiB in segments of 1 GiB keeps about thirty fingerprints.
        bits = max(distance.bit_length() - 2, 0)
        kept.setdefault((str(bits), fingerprint.offset >> bits), fingerprint)
    return tuple(sorted(kept.values(), reverse=True))
