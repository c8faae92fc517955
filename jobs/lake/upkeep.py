"""
Lake maintenance: `optimize` merges small files and deletes obsolete ones, and some runs do this for their store.

A process that follows a store for months needs no other maintenance.

Many small files are merged into a few large ones with the same rows, in an order that suits readers. A run every few
minutes leaves a small file per table and run. The files of each store are merged in log order, so that minimum and
maximum of offsets and times remain selective. Delta's log marks such a commit as not changing data. The replaced files
stay on disk for readers of older versions, until the vacuum.

Index entries are clustered by their hash instead, so that a lookup opens few files regardless of the number of index
files. The files of a run have hashes from the whole range. The range is halved recursively like a binary tree; a file
belongs to the smallest *node* that contains all of its hashes (each level is three halvings). If a node has many files,
their rows move to files of the nodes on the next level, each of which covers at most an eighth of the range. So a row
is rewritten once per level, log8(files) times in all, and a lookup opens fewer than CROWDED_NODE_FILES files per level.
New files stay in the root node until there are enough of them.

Measured against `optimize` of deltalake, with 96 files of 20,000 entries of two stores and four rounds: a lookup opens
4.0 files here, 22.8 after `z_order` (which rewrote three times the bytes) and 32 after `compact`.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, groupby
from math import ceil
from pathlib import Path
from threading import Event
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs.console.log import log_message
from jobs.console.process import raise_if_stopped, stop_thread_on_event
from jobs.lake.commit import (
    CHECKPOINT_INTERVAL,
    CLUSTERED_PREFIX,
    FILE_RETENTION_PROPERTY,
    LOG_RETENTION_PROPERTY,
    ONE_DAY_INTERVAL,
    REMOVAL_TRANSACTION,
    TABLE_PROPERTIES,
    Savings,
    TransactionTakenError,
    commit,
    file_paths,
    find_newest_transaction,
    keeps_replaced_files_briefly,
    merge_by_spark,
    open_table,
    read_rows,
    set_properties,
    shorten_log,
)
from jobs.lake.features import needs_spark, refuse_unsupported_features
from jobs.lake.integrity import find_newest_run_by_table, refuse_unsupported_tables
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.manifest import Manifest
from jobs.lake.runs import commit_prepared, delete_manifests_up_to, find_unfinished_run
from jobs.lake.snapshot_files import (
    SnapshotFile,
    list_snapshot_files,
    may_have_deletion_vectors,
    read_batches,
    table_for_rewriting,
)
from jobs.lake.snapshots import cache_snapshots, deltalake_errors_as_oserror, read_newest_transaction
from jobs.lake.table_file import MERGED_MARK, AddedFile, FileNaming, TableFile
from jobs.lake.tables import (
    INDEX_FILES,
    MESSAGES,
    RUNS,
    TYPING_APPLICATION,
    TYPING_TABLES,
    TYPINGS,
    WRITTEN_BY_RUNS,
    Table,
)
from jobs.lake.thinning import THINNED_PREFIX, RunPeriods, arrange_states, plan_thinning
from jobs.lake.topic_layout import TOPIC_PREFIX, divide_by_topic
from jobs.storage.locations import is_local, local_path
from jobs.storage.paths import is_regular_file
from jobs.store.workers import Workers
from rmq_formats.errors import NotAStore
from rmq_formats.properties import MAX_LONG, MIN_LONG

SMALL_FILE_BYTES = 32 << 20  # bytes: a file below may be merged
MERGED_FILE_BYTES = 128 << 20  # bytes that a merged file is filled up to
MERGED_STATES_BYTES = 32 << 20  # the same for states: most of their rows will be thinned out in some days
_SORTED_TOGETHER = 64  # files that are sorted by topic in one commit
_THINNED_LEVEL = 8  # compression of states that are kept for long
_THINNED_AT_ONCE = 64 << 20  # bytes of files that a run thins out
MAX_SMALL_FILES = 16  # a run merges the small files of its store once there are this many
_MAX_TINY_FILES = 256  # a run that writes this many tiny files of a table merges them itself
_TINY_FILE_BYTES = 32 << 10  # a reader takes longer to open such a file than to read it
RETENTION_HOURS = 24 * 7
_GROUP_ROWS = 1 << 18
_SORTED_ROWS = 2 << 20  # rows that are sorted in memory; a larger file is sorted piece by piece
_VECTOR_FILE = "deletion_vector_"  # part of the names of deletion vector files
_ID_LENGTH = 36  # length of a store's id, with which the name of a run's file begins
_MERGED_GROUP = 64 << 20  # bytes of rows of a row group
CROWDED_NODE_FILES = 4  # a node with this many files is merged
_TOGETHER = 8  # files of a node that are read together
_MOST_ROWS = 2 << 20  # rows in a file of a node, which is sorted in memory
_STEP = 3  # halvings per level
_BITS = 31  # bits of a hash, which is never negative
_MANIFESTS_KEPT = 64
_RUNS_BETWEEN_VACUUMS = 64
_MOST_TURNS = 4  # a large table is merged at least once in this many runs
_ROWS_MERGED_FAST = 1 << 20  # a merge of more rows takes seconds
_HOURS = 24
_RUNS_KEPT = 12
_LEAST_KEPT_S, _MOST_KEPT_S = 3600, 7 * 24 * 3600
_LEAST_MESSAGES_KEPT_S = 25 * 3600  # a stream of messages that is resumed once a day needs each commit
_SECONDS = re.compile(r"interval (\d+) seconds")
_KEPT_SHORTER = (RUNS, INDEX_FILES)  # readers need them only briefly: a quarter of the time is enough
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_NEWEST_CHECKPOINTS_KEPT = 4
_OLDER_CHECKPOINTS_STEP = 4  # every fourth of the older checkpoints is kept

HashRange = range  # a range of hashes
_TOP = HashRange(1 << _BITS)

# Files that a task merges into one, and its name. If there is a range, only rows with hashes in it are merged.
MergeGroup = tuple[Sequence[SnapshotFile], str, HashRange | None]
MergeFiles = Callable[[Callable[[MergeGroup], AddedFile | None], Sequence[MergeGroup]], list[AddedFile | None]]
PlanMerges = Callable[[Sequence[SnapshotFile]], list[MergeGroup]]


def merge_here(merge: Callable[[MergeGroup], AddedFile | None], groups: Sequence[MergeGroup]) -> list[AddedFile | None]:
    """Merge groups of files one by one, in this process."""
    return list(map(merge, groups))


def merge_small_files(
    lake: Lake,
    table: Table,
    *,
    least_files: int = 2,
    naming: FileNaming | None = None,
    merge: MergeFiles = merge_here,
) -> Savings:
    """
    Merge the small files of a table.

    With the *naming* of a run, only files of its store are merged, into files with the run's name, and only if
    there are at least *least_files*; merging them into a much larger file would rewrite its rows every few runs. If the
    table has Delta's row ids or clustering, Delta's own OPTIMIZE merges the files of all stores.
    """
    snapshot = open_table(lake, table.name)
    if snapshot is not None and needs_spark(snapshot):
        refuse_unsupported_features(lake, snapshot, table)
        stored = list_snapshot_files(lake, snapshot, table)
        if sum(file.size < SMALL_FILE_BYTES and not is_clustered(file) for file in stored) >= least_files:
            with suppress(CommitFailedError):  # another process has merged: the next upkeep looks again
                return merge_by_spark(snapshot, table.name, small_bytes=SMALL_FILE_BYTES, large_bytes=MERGED_FILE_BYTES)
        return Savings(table.name)

    def plan(stored: Sequence[SnapshotFile]) -> list[MergeGroup]:
        small = _list_mergeable(lake, table, stored)
        most = MERGED_STATES_BYTES if table.state_key else MERGED_FILE_BYTES
        chosen = _choose_for_run(small, naming.store_id, least_files, most) if naming else _group_files(small, most)
        return [
            (some, naming.new_file_name(MERGED_MARK) if naming else f"compacted-{uuid4()}.parquet", None)
            for some in chosen
        ]

    return rewrite_files(lake, table, plan, merge)


def rewrite_files(lake: Lake, table: Table, plan: PlanMerges, merge: MergeFiles) -> Savings:
    """Replace files of a table in one commit, as grouped by *plan*; nothing happens if another process was faster."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return Savings(table.name)
    refuse_unsupported_features(lake, snapshot, table)
    transaction = REMOVAL_TRANSACTION, read_newest_transaction(snapshot, REMOVAL_TRANSACTION) + 1
    groups = plan(_list_rewritable(lake, snapshot, table))
    removed = {file.path: file for files, *_ in groups for file in files}  # several groups may each take rows of one
    if not removed:
        return Savings(table.name)

    def remove_unchanged(now: DeltaTable) -> tuple[list[SnapshotFile], list[AddedFile]]:
        there = {file.identity for file in list_snapshot_files(lake, now, table)}
        if any(file.identity not in there for file in removed.values()):
            raise TransactionTakenError(f"{table.name} is being rewritten by another process")
        return list(removed.values()), []

    try:
        task = partial(merge_group, lake, table_for_rewriting(snapshot, table))
        written = [action for action in merge(task, groups) if action is not None]
    except FileNotFoundError:
        now = open_table(lake, table.name)
        if now is not None and removed.keys() <= file_paths(now):
            raise
        return Savings(table.name)  # another process has rewritten the table and deleted the files
    try:
        commit(lake, table, written, transaction, {"layout": "compacted"}, remove_unchanged, data_change=False)
    except TransactionTakenError:
        for action in written:
            lake.delete(f"{table.name}/{action.path}")
        return Savings(table.name)
    before, after = (sum(file.size for file in some) for some in (removed.values(), written))
    return Savings(table.name, len(removed), len(written), before, after)


def _list_rewritable(lake: Lake, snapshot: DeltaTable, table: Table) -> list[SnapshotFile]:
    stored = list_snapshot_files(lake, snapshot, table)
    # See `commit.VECTORS_ONLY_LOCAL_ERROR`.
    return [file for file in stored if file.kept_row_mask is None or is_local(lake.location)]


def cluster_by_hash(lake: Lake, table: Table, merge: MergeFiles = merge_here) -> Savings:
    """Move rows of a sorted table down until no node is crowded; each round is a separate, valid commit."""
    column, snapshot = table.sorted_by, open_table(lake, table.name)
    # Delta clusters a table with its features itself, or the table's owner does not want it.
    if column is None or snapshot is None or needs_spark(snapshot):
        return Savings(table.name)

    saved, plan = Savings(table.name), partial(_plan_clustering, column)
    while (done := rewrite_files(lake, table, plan, merge)).merged:
        saved = saved.plus(done)
    return saved


def thin_states(
    lake: Lake, table: Table, store_ids: Iterable[str], merge: MergeFiles = merge_here, most_bytes: int | None = None
) -> Savings:
    """Remove old states of stores that are not kept, in one commit per store; *most_bytes* limits the work for each."""
    saved, snapshot = Savings(table.name), open_table(lake, table.name)
    if not table.state_key or snapshot is None or needs_spark(snapshot):
        return saved
    now_ms = int(time.time() * 1000)
    for periods in (RunPeriods.read(lake, store_id, now_ms) for store_id in store_ids):

        def plan(stored: Sequence[SnapshotFile], periods: RunPeriods = periods) -> list[MergeGroup]:
            return [*plan_thinning(periods, stored, MERGED_STATES_BYTES, most_bytes)]

        def merge_thinned(
            task: Callable[..., AddedFile | None], groups: Sequence[MergeGroup], periods: RunPeriods = periods
        ) -> list[AddedFile | None]:
            return merge(partial(task, periods=periods), groups)

        saved = saved.plus(rewrite_files(lake, table, plan, merge_thinned))
    return saved


def sort_by_topic(lake: Lake, table: Table, merge: MergeFiles = merge_here) -> Savings:
    """Rewrite all files of messages that do not have the layout by topic yet, some of them in each commit."""
    saved, snapshot = Savings(table.name), open_table(lake, table.name)
    if snapshot is None or needs_spark(snapshot):
        return saved

    def merge_sorted(task: Callable[..., AddedFile | None], groups: Sequence[MergeGroup]) -> list[AddedFile | None]:
        return merge(partial(task, by_topic=True), groups)

    while (done := rewrite_files(lake, table, _plan_topics, merge_sorted)).merged:
        saved = saved.plus(done)
    return saved


def _plan_topics(stored: Sequence[SnapshotFile]) -> list[MergeGroup]:
    unsorted = [file for file in stored if file.row_count and not file.path.startswith(TOPIC_PREFIX)]
    return [([file], f"{TOPIC_PREFIX}{uuid4()}.parquet", None) for file in unsorted[:_SORTED_TOGETHER]]


def _plan_clustering(column: str, stored: Sequence[SnapshotFile]) -> list[MergeGroup]:
    # The name keeps the file out of merges in log order, which would widen its range.
    return [
        (some, f"{CLUSTERED_PREFIX}{uuid4()}.parquet", part)
        for node, some in _find_crowded_nodes(stored, column)
        for part in _divide_node(node, some, column)
    ]


def _find_crowded_nodes(stored: Sequence[SnapshotFile], column: str) -> Iterator[tuple[HashRange, list[SnapshotFile]]]:
    """Yield nodes with many files of one store, with a limited number of these files at a time."""
    of_node: dict[tuple[str, HashRange], list[SnapshotFile]] = defaultdict(list)
    for file in sorted(stored, key=lambda one: one.path):
        store = file.minimum("store_id", "")
        if file.row_count and store and store == file.maximum("store_id", ""):
            of_node[store, _node_of(file, column)].append(file)
    for (_, node), there in of_node.items():
        for start in range(0, len(there) if len(there) >= CROWDED_NODE_FILES else 0, _TOGETHER):
            some = there[start : start + _TOGETHER]
            if len(some) > 1:
                yield node, some


def _node_of(file: SnapshotFile, column: str) -> HashRange:
    """Return the node of a file; files written by runs belong to the root, even with few hashes."""
    held = _hashes_of(file, column)
    if not is_clustered(file):
        return _TOP
    # The common leading bits of both limits select the smallest node with both, _STEP bits per level.
    steps = (_BITS - (held[0] ^ held[-1]).bit_length()) // _STEP
    width = len(_TOP) >> _STEP * steps
    return HashRange(held[0] // width * width, (held[0] // width + 1) * width)


def _hashes_of(file: SnapshotFile, column: str) -> HashRange:
    low, high = file.minimum(column, 0), file.maximum(column, _TOP[-1])
    return HashRange(low, high + 1) if 0 <= low <= high < _TOP.stop else _TOP


def _divide_node(node: HashRange, files: Sequence[SnapshotFile], column: str) -> Iterator[HashRange]:
    """Yield this node, or nodes below it, so that a task can sort the rows of each in memory."""
    width = len(node) >> _STEP
    if sum(file.row_count * _share_within(file, node, column) for file in files) <= _MOST_ROWS or not width:
        yield node
        return
    for low in node[::width]:
        yield from _divide_node(HashRange(low, low + width), files, column)


def _share_within(file: SnapshotFile, node: HashRange, column: str) -> float:
    """Return the share of a file's rows in a node, assuming that the hashes of a file are spread evenly."""
    held = _hashes_of(file, column)
    return max(min(held.stop, node.stop) - max(held.start, node.start), 0) / len(held)


def estimate_savings(lake: Lake, table: Table, *, by_topic: bool = False) -> Savings:
    """
    Estimate the effect of merging, clustering and `vacuum`; the size of merged files is not known in advance.

    Later rounds of the clustering are planned from the expected limits and sizes of the files of earlier ones.
    """
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return Savings(table.name, bytes_after=None)
    saved = Savings(table.name, vacuumed=vacuum(lake, table, dry_run=True))
    column = None if needs_spark(snapshot) else table.sorted_by
    stored = _list_rewritable(lake, snapshot, table)
    groups: list[MergeGroup] = [
        (some, str(uuid4()), None) for some in _group_files(_list_mergeable(lake, table, stored), MERGED_FILE_BYTES)
    ]
    while True:
        removed = {file.path: file for files, *_ in groups for file in files}
        expected = [_expected_file(group, column or "") for group in groups]
        added = [file for file in expected if file.row_count]
        saved = saved.plus(Savings(table.name, len(removed), len(added), sum(file.size for file in removed.values())))
        stored = [*(file for file in stored if file.path not in removed), *added]
        groups = _plan_clustering(column, stored) if column else _plan_topics(stored) if by_topic else []
        if not groups:
            return saved._replace(bytes_after=None)


def _expected_file(group: MergeGroup, column: str) -> SnapshotFile:
    files, name, part = group
    held = [_hashes_of(file, column) for file in files]
    node = part or _TOP
    low, high = max(node.start, min(one.start for one in held)), min(node[-1], max(one[-1] for one in held))
    rows, size = (
        round(sum(count * _share_within(file, node, column) for file, count in zip(files, counts, strict=True)))
        for counts in ([file.row_count for file in files], [file.size for file in files])
    )
    store_id = files[0].minimum("store_id", "")
    return SnapshotFile(name, size, rows, {"store_id": store_id, column: low}, {"store_id": store_id, column: high})


def _choose_for_run(
    small: Iterable[SnapshotFile], store_id: str, many: int, most_bytes: int
) -> list[list[SnapshotFile]]:
    """Return groups of the smallest files: a large file waits until the smaller ones together have its size."""
    mine = [file for file in small if _store(file).startswith(store_id)]
    # Files merge once the smaller ones weigh as much as the largest of the group: each merge of a byte at least doubles
    # its file, so that a byte is rewritten about log2(MERGED_FILE_BYTES / first size) times, not once per run.
    largest = count = weight = total = 0
    for number, size in enumerate(sorted(file.size for file in mine), 1):
        total += size
        if 2 * size <= total:
            largest, count, weight = size, number, total
    if count < many and weight < SMALL_FILE_BYTES:
        return []
    return list(_group_files((file for file in mine if file.size <= largest), most_bytes))


def is_clustered(file: SnapshotFile) -> bool:
    """Return whether a file covers a narrow range of hashes."""
    return file.path.startswith(CLUSTERED_PREFIX)


def _list_mergeable(lake: Lake, table: Table, stored: Iterable[SnapshotFile]) -> list[SnapshotFile]:
    left = (CLUSTERED_PREFIX, THINNED_PREFIX, *_spared_prefixes(lake, table))
    small = [file for file in stored if is_small_file(file, table) and not file.path.startswith(left)]
    return sorted(small, key=lambda file: (_store(file), file.minimum("physical_offset", 0), file.path))


def is_small_file(file: SnapshotFile, table: Table) -> bool:
    """Return whether a file may be merged with others; in a sorted table, a file with many short rows is not."""
    return file.size < SMALL_FILE_BYTES and (table.sorted_by is None or file.row_count < _MOST_ROWS // 2)


def _spared_prefixes(lake: Lake, table: Table) -> tuple[str, ...]:
    """
    Return the beginnings of the names of files that are never merged.

    Of `runs`: newest runs and registrations. Of `typings`: the newest run of `type`.

    A process that checks whether a commit was its own looks for its file. And each run reads all registrations: in a
    merged file, it would have to read them among hundreds of thousands of rows.
    """
    if table.name == TYPINGS.name:
        return (f"{TYPING_APPLICATION}-{find_newest_transaction(lake, TYPINGS.name, TYPING_APPLICATION)}-",)
    if table.name != RUNS.name:
        return ()
    snapshot = open_table(lake, RUNS.name)
    newest: dict[str, int] = {}
    for path in file_paths(snapshot) if snapshot is not None else ():
        store_id, run = path[:_ID_LENGTH], path[_ID_LENGTH + 1 :].partition("-")[0]
        if run.isdigit():
            newest[store_id] = max(newest.get(store_id, 0), int(run))
    return tuple(f"{store_id}-{number}-" for store_id, run in newest.items() for number in (0, run))


def _store(file: SnapshotFile) -> str:
    """Return the store of a file's rows; files are merged only with files of the same store."""
    low, high = file.minimum("store_id", ""), file.maximum("store_id", "")
    return str(low) if low == high else f"{low}-{high}"


def _group_files(small: Iterable[SnapshotFile], most_bytes: int) -> Iterator[list[SnapshotFile]]:
    """Yield files to be merged into one: consecutive files of one store, up to a size."""
    for _, of_store in groupby(small, key=_store):
        group: list[SnapshotFile] = []
        for file in of_store:
            if group and sum(member.size for member in group) + file.size > most_bytes:
                if len(group) > 1:
                    yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def merge_group(
    lake: Lake, table: Table, group: MergeGroup, *, periods: RunPeriods | None = None, by_topic: bool = False
) -> AddedFile | None:
    """Merge several files into one; None if another engine has deleted all of their rows."""
    files, name, hash_range = group
    rows = chain.from_iterable(_read_rows(lake, table, file, hash_range) for file in files)
    if by_topic:
        return TableFile(lake, table, name, {}, _MERGED_GROUP).write_groups(divide_by_topic(rows))
    if table.state_key:
        packed = (
            table if periods is None else replace(table, compression_level=_THINNED_LEVEL, page_bytes=_MERGED_GROUP)
        )
        return TableFile(lake, packed, name, {}, _MERGED_GROUP).write_all(arrange_states(rows, table, periods))
    return TableFile(lake, table, name, {}, _MERGED_GROUP).write_all(
        rows if table.sorted_by is None else _sorted_rows(rows, table.sorted_by)
    )


def _read_rows(lake: Lake, table: Table, file: SnapshotFile, node: HashRange | None) -> Iterator[pa.RecordBatch]:
    raise_if_stopped()
    column = table.sorted_by
    if node is None or column is None:
        yield from read_batches(lake, table, file)
        return
    # A row of another engine may have no valid hash: it counts as the nearest one of its file, and is in one node only.
    held = _hashes_of(file, column)
    low, high = max(node.start, held.start), min(node.stop, held.stop) - 1
    limits = (MIN_LONG if low == held.start else low, MAX_LONG if high == held[-1] else high)
    for batch in read_batches(lake, table, file, (), {column: limits}):
        hashes = pc.min_element_wise(pc.max_element_wise(batch.column(column), held.start), held[-1])
        yield batch.filter(pc.and_(pc.greater_equal(hashes, node.start), pc.less(hashes, node.stop)))


def _sorted_rows(rows: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
    """Yield all rows in the order of a column; too many rows are sorted in parts."""

    def sort_held_rows() -> Iterator[pa.RecordBatch]:
        whole = pa.concat_batches(held)
        held.clear()
        order = pc.sort_indices(whole, [(column, "ascending")])
        for start in range(0, whole.num_rows, _GROUP_ROWS):
            yield whole.take(order[start : start + _GROUP_ROWS])

    held: list[pa.RecordBatch] = []
    for batch in rows:
        held.append(batch)
        if sum(map(len, held)) >= _SORTED_ROWS:
            yield from sort_held_rows()
    if held:
        yield from sort_held_rows()


def vacuum(lake: Lake, table: Table, store_id: str = "", *, dry_run: bool = False) -> int:
    """
    Delete files that no version of the last days references, and files that were never committed; return their number.

    Nothing is deleted while a run of the lake is prepared and not done: only its manifest references its files. Delta's
    log forgets removed files when they are old enough to be deleted, so the directory is listed. `deltalake` would take
    another engine's deletion vectors for such files: they are left to that engine's VACUUM. It also follows links out
    of the lake: files behind links are not deleted.

    After a run of a store, only this store's files are deleted, as soon as the retention of a followed table allows.
    The others wait for a day: an unreferenced file may have been written hours ago by the first run of another store.
    """
    snapshot = open_table(lake, table.name)
    is_brief = snapshot is not None and keeps_replaced_files_briefly(snapshot)
    if snapshot is None or (store_id and not is_brief):
        return 0
    hours: int | None = None if store_id else 24 if is_brief else RETENTION_HOURS
    try:
        if hours is not None:
            snapshot.vacuum(hours, dry_run=True)
    except DeltaError:  # the table demands more: files are kept as another engine has configured it
        hours = None
    found = _vacuum(lake, table, snapshot, hours)
    names = _select_deletable(lake, table, snapshot, (name for name in found if name.startswith(store_id)))
    if not store_id and len(names) == len(found) and not needs_spark(snapshot):
        changed = None if dry_run else open_table(lake, table.name, is_private=True)
        return len(_vacuum(lake, table, changed or snapshot, hours, dry_run=dry_run))
    for name in () if dry_run else names:
        lake.delete(f"{table.name}/{name}")
    return len(names)


def _vacuum(lake: Lake, table: Table, snapshot: DeltaTable, hours: int | None, *, dry_run: bool = True) -> list[str]:
    with deltalake_errors_as_oserror(lake.locate(table.name), lake.options, "vacuumed"):
        return snapshot.vacuum(hours, dry_run=dry_run, full=True)


def _select_deletable(lake: Lake, table: Table, snapshot: DeltaTable, found: Iterable[str]) -> list[str]:
    """Return the obsolete files that are neither deletion vectors of another engine nor behind a link."""
    vectors, location = may_have_deletion_vectors(snapshot), lake.locate(table.name)
    left = [name for name in found if not (vectors and _VECTOR_FILE in name)]
    if not is_local(location):
        return left
    root = Path(local_path(location)).resolve()
    return [name for name in left if is_regular_file(path := root / name) and path.parent == path.parent.resolve()]


@cache_snapshots()
def optimize(
    location: str,
    workers: Workers,
    typed_tables: Sequence[Table] = (),
    *,
    by_topic: bool = False,
    dry_run: bool = False,
) -> list[Savings]:
    """
    Finish prepared runs, merge small files, delete obsolete ones (*dry_run*: only count); return the savings.

    *by_topic*: sort messages by topic, which rewrites all files that are not sorted yet.

    Of the *typed tables* and the other tables of `type`, only small files are merged and replaced files deleted.
    """
    lake = Lake(location, workers.options)
    if open_table(lake, RUNS.name) is None:
        reason = "not a lake: it has no table `runs`"
        raise NotAStore(reason, None, lake.location)
    refuse_unsupported_tables(lake, WRITTEN_BY_RUNS)

    of_type = [*(TYPING_TABLES if open_table(lake, TYPINGS.name) is not None else ()), *typed_tables]
    refuse_unsupported_tables(lake, of_type)
    if dry_run:
        tables = (*WRITTEN_BY_RUNS, *of_type)
        return [estimate_savings(lake, table, by_topic=by_topic and table is MESSAGES) for table in tables]
    stores = list_lake_stores(lake)
    store_ids = [store.store_id for store in stores]
    for store in stores:
        leftover = find_unfinished_run(lake, store)  # only its manifest names its files: the vacuum would delete them
        if leftover is not None:
            find_newest_run_by_table(lake, store, is_done=False)
            commit_prepared(lake, leftover)

    def merge(task: Callable[[MergeGroup], AddedFile | None], groups: Sequence[MergeGroup]) -> list[AddedFile | None]:
        return workers.map(groups, task, "merging files")

    saved = []
    for table in WRITTEN_BY_RUNS:
        merged = merge_small_files(lake, table, merge=merge).plus(cluster_by_hash(lake, table, merge))
        merged = merged.plus(thin_states(lake, table, store_ids, merge))
        merged = merged.plus(sort_by_topic(lake, table, merge)) if by_topic and table is MESSAGES else merged
        saved.append(merged._replace(vacuumed=vacuum(lake, table)))
    for table in of_type:
        merged = merge_small_files(lake, table, merge=merge)
        saved.append(merged._replace(vacuumed=vacuum(lake, table)))
    return saved


def merge_and_vacuum(lake: Lake, manifest: Manifest) -> list[Exception]:
    """
    Merge a store's small files if there are many, and delete long obsolete ones; most runs do nothing here.

    Return the errors of tables: the run is committed, and an unreadable file must not stop the maintenance of other
    tables.
    """
    due = [table for number, table in enumerate(WRITTEN_BY_RUNS) if _is_due(manifest, table, number)]
    background = _background.get()
    large = [] if background is None else [table for table in due if _takes_seconds(lake, manifest, table)]
    errors = _merge_tables(lake, manifest, [table for table in due if table not in large])
    if background is not None:
        errors += background.merge(lake, manifest, large)
    if manifest.run % MAX_SMALL_FILES:
        return errors
    with _collecting_errors(errors):
        elapsed_s = _measure_runs(lake, manifest.store_id, manifest.run - MAX_SMALL_FILES)
        for table in WRITTEN_BY_RUNS if elapsed_s >= _LEAST_KEPT_S / 4 else ():
            with _collecting_errors(errors):
                _adapt_retention(lake, table, elapsed_s / MAX_SMALL_FILES)
                _shorten_log(lake, table)
                vacuum(lake, table, manifest.store_id)
        is_long_upkeep = manifest.run % _RUNS_BETWEEN_VACUUMS == 0
        is_any_at_work = is_long_upkeep and any(find_unfinished_run(lake, store) for store in list_lake_stores(lake))
        for table in WRITTEN_BY_RUNS if is_long_upkeep else ():
            with _collecting_errors(errors):
                thin_states(lake, table, [manifest.store_id], most_bytes=_THINNED_AT_ONCE)
                vacuum(lake, table, manifest.store_id)
                _thin_checkpoints(lake, table)
                if not is_any_at_work:
                    vacuum(lake, table)
        delete_manifests_up_to(lake, manifest.store_id, manifest.run - _MANIFESTS_KEPT, manifest.state_files)
    return errors


def _merge_tables(lake: Lake, manifest: Manifest, tables: Iterable[Table]) -> list[Exception]:
    naming = FileNaming(manifest.store_id, manifest.run)
    errors: list[Exception] = []
    for table in tables:
        with _collecting_errors(errors):
            merge_small_files(lake, table, least_files=MAX_SMALL_FILES, naming=naming)
    return errors


def _takes_seconds(lake: Lake, manifest: Manifest, table: Table) -> bool:
    """Return whether a merge of a table's files takes long in this process: a run writes many rows."""
    rows = manifest.counts.get(table.name, 0) * MAX_SMALL_FILES  # of `consume_queue`, many rows have few bytes
    if rows < _ROWS_MERGED_FAST and not _writes_many_rows(manifest, table):
        return False
    snapshot = open_table(lake, table.name)
    return snapshot is not None and not needs_spark(snapshot)


class _BackgroundMerges:
    """Merges in a thread, one at a time. Files are replaced in separate commits, as if by another process."""

    def __init__(self, stop: Event) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=stop_thread_on_event, initargs=(stop,))
        self._merging: Future[list[Exception]] | None = None
        self._due: list[Table] = []

    def merge(self, lake: Lake, manifest: Manifest, tables: Iterable[Table]) -> list[Exception]:
        """Merge the files of *tables* once the previous merge has ended; return the errors of finished merges."""
        self._due = list(dict.fromkeys((*self._due, *tables)))
        if self._merging is not None and not self._merging.done():
            return []  # the next run starts the merges that are due by then
        errors = self.finish()
        if self._due:
            due, self._due = self._due, []
            self._merging = self._pool.submit(_merge_tables, lake, manifest, due)
        return errors

    def wait(self) -> None:
        """Wait until the running merge has ended."""
        if self._merging is not None:
            wait([self._merging])

    def finish(self) -> list[Exception]:
        """Wait for the running merge, and return its errors."""
        merging, self._merging = self._merging, None
        return merging.result() if merging is not None else []

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)


_background: ContextVar[_BackgroundMerges | None] = ContextVar("background", default=None)


@contextmanager
def merge_in_background() -> Iterator[None]:
    """
    Run merges that take seconds in another thread until the block ends, so that runs of this thread do not wait.

    Otherwise the messages that arrive during such a merge would wait for it. After an error, the merge is stopped.
    """
    stop = Event()
    merges = _BackgroundMerges(stop)
    before = _background.set(merges)
    try:
        yield
        for error in merges.finish():
            log_message(f"rmq-lake: maintenance of the lake failed; a later run retries it: {error}", "warning")
    except BaseException:
        stop.set()
        raise
    finally:
        _background.reset(before)
        merges.close()


def await_background_merges() -> None:
    """Wait until this thread's merges have ended: uncommitted files can then be deleted."""
    background = _background.get()
    if background is not None:
        background.wait()


@contextmanager
def _collecting_errors(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, DeltaError, pa.ArrowException) as error:  # any: the run, which is committed, reports it
        errors.append(error)


def _is_due(manifest: Manifest, table: Table, number: int) -> bool:
    """
    Return whether small files of a table are merged after a run; *number* is its place among the tables of runs.

    A run that reads a large log writes two files of `log_pieces` for each segment, with a few rows each.
    The next step waits for a merge. If runs write many rows, files are merged as soon as their sum is not small, and
    messages and index in different runs: merging sixteen runs of 100,000 messages took six seconds of one run.
    """
    count = len(manifest.tables.get(table.name, ()))
    if count >= _MAX_TINY_FILES and _size_of_files(manifest, table) < count * _TINY_FILE_BYTES:
        return True
    if not _writes_many_rows(manifest, table):
        return manifest.run % MAX_SMALL_FILES == 0
    turns = max(min(_MOST_TURNS, SMALL_FILE_BYTES // _size_of_files(manifest, table)), 2)
    return (manifest.run + number + 2) % turns == 0


def _writes_many_rows(manifest: Manifest, table: Table) -> bool:
    return _size_of_files(manifest, table) >= SMALL_FILE_BYTES // MAX_SMALL_FILES


def _size_of_files(manifest: Manifest, table: Table) -> int:
    return sum(action.size for action in manifest.tables.get(table.name, ()))


def _thin_checkpoints(lake: Lake, table: Table) -> None:
    """
    Delete three out of four older checkpoints of a log that gets a commit every few seconds.

    Each checkpoint lists every replaced file that is still kept. Readers need only the newest one; time travel replays
    more commits. Files that another engine writes have other names, or are in a log that it owns.
    """
    snapshot = open_table(lake, table.name)
    if snapshot is None or not keeps_replaced_files_briefly(snapshot) or needs_spark(snapshot):
        return
    log = f"{table.name}/_delta_log"
    found = [int(name[1]) for info in lake.list_files(log) if (name := _CHECKPOINT.fullmatch(info.name))]
    older = sorted(found)[:-_NEWEST_CHECKPOINTS_KEPT]
    newest = {version // CHECKPOINT_INTERVAL: version for version in older}  # an object store has more
    for version in older:
        place = version // CHECKPOINT_INTERVAL
        if place % _OLDER_CHECKPOINTS_STEP or version != newest[place]:
            lake.delete(f"{log}/{version:020d}.checkpoint.parquet")


def _measure_runs(lake: Lake, store_id: str, first_run: int) -> float:
    """Return the seconds since a run of a store was prepared, or since the store was registered."""
    wanted = (pc.field("store_id") == store_id) & (pc.field("run") == first_run)
    times = [time for (time,) in read_rows(lake, RUNS.name, ["time"], wanted)]
    return (datetime.now(UTC) - max(times)).total_seconds() if times else 0


def _adapt_retention(lake: Lake, table: Table, run_interval_s: float) -> None:
    """
    Configure a table to keep replaced files, and the entries of its log, for about as long as _RUNS_KEPT runs take.

    So the number of files does not grow with the number of runs. A value in other units than seconds was set by a user
    or for a followed table, unless it is the initial value of a table.
    """
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return
    there = snapshot.metadata().configuration
    least_s = _LEAST_MESSAGES_KEPT_S if table is MESSAGES else _LEAST_KEPT_S // _share_kept(table)
    initial = TABLE_PROPERTIES[FILE_RETENTION_PROPERTY]
    current, of_log = there.get(FILE_RETENTION_PROPERTY, ""), there.get(LOG_RETENTION_PROPERTY)
    found = _SECONDS.fullmatch(current)
    current_s = int(found[1]) if found else _MOST_KEPT_S
    if of_log != current or not (current == initial or (found and least_s <= current_s <= _MOST_KEPT_S)):
        return
    kept_s = min(max(round(run_interval_s * _RUNS_KEPT) // _share_kept(table), least_s), _MOST_KEPT_S)
    if not current_s / 2 < kept_s < current_s * 2:
        interval = f"interval {kept_s} seconds"
        changed = open_table(lake, table.name, is_private=True)
        with suppress(CommitFailedError):  # another process commits at this moment; a later run tries again
            if changed is not None:
                set_properties(changed, {FILE_RETENTION_PROPERTY: interval, LOG_RETENTION_PROPERTY: interval})


def _share_kept(table: Table) -> int:
    return 4 if table in _KEPT_SHORTER else 1


def _shorten_log(lake: Lake, table: Table) -> None:
    """Write a checkpoint of a table, and delete the earlier entries of its log that are no longer kept."""
    snapshot = open_table(lake, table.name)
    if snapshot is not None and keeps_replaced_files_briefly(snapshot) and not needs_spark(snapshot):
        shorten_log(lake, table.name, snapshot)


def shorten_file_retention(lake: Lake, step_interval_s: float) -> None:
    """
    Configure tables that get a commit every few seconds for weeks to keep few obsolete files.

    Each commit lists the log, which keeps about 3,600 steps: one hour if steps are a second apart, one day at most.
    Replaced files are kept for the same time: each step leaves one per table.
    """
    hours = min(max(ceil(step_interval_s), 1), _HOURS)
    for table in WRITTEN_BY_RUNS:
        snapshot = open_table(lake, table.name, is_private=True)
        if snapshot is None:
            continue
        there = snapshot.metadata().configuration
        # Values that users set stay: Delta refuses a log that is kept for a shorter time than the files.
        ours = {TABLE_PROPERTIES[FILE_RETENTION_PROPERTY], ONE_DAY_INTERVAL}  # one day: set by earlier versions
        if there.get(FILE_RETENTION_PROPERTY, ONE_DAY_INTERVAL) not in ours:
            continue
        kept = f"interval {hours * 60 // _share_kept(table)} minutes"
        short = {FILE_RETENTION_PROPERTY: kept}
        if there.get(LOG_RETENTION_PROPERTY) == TABLE_PROPERTIES[LOG_RETENTION_PROPERTY]:
            short[LOG_RETENTION_PROPERTY] = kept
        with suppress(CommitFailedError):  # another process commits at this moment; the next start tries again
            set_properties(snapshot, short)
