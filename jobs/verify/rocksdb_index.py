"""
Compares every row of an index in RocksDB, which a store has instead of index files, with the keys of the log.

After a kill, rows that were only in memory are missing; the next start rebuilds them from the log. Rows of messages
that retention has deleted stay until RocksDB drops them because of their age.

The rows of a database are sorted by their hour and topic, keys of the log by their offset. So one group of tasks reads
ranges of rows and writes them, sorted by offset, to scratch files. In another group, each task compares the keys of a
range of the log with its rows, of which every scratch file has some. Memory does not grow with the index.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from jobs.console.amounts import count_text
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, Finding
from jobs.products.index.key_sequence import KeyPart, KeySequence, collect_keys, read_key_blocks
from jobs.storage.scratch import Scratch
from jobs.store.queue_storage import rocksdbstore_directory
from jobs.store.ranges import Range, plan_ranges
from jobs.store.release import determine_writers
from jobs.store.rocksdb import KeyRange, StoredDatabase
from jobs.store.store import Store, relist_store
from jobs.store.workers import Workers
from jobs.verify.report import PartReport, unreadable_database_finding
from rmq_formats.arrays import are_inside
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.properties import MAX_LONG
from rmq_formats.rocksdb.build import HASHED_KEY, hash_index_rows
from rmq_formats.rocksdb.layout import INDEX_FAMILY, LAST_OFFSET_KEY, LAST_TIME_KEY

ROWS_PER_TASK = 1 << 20  # rows, or keys, that a task has in memory
ROWS_PER_SAMPLE = 1 << 12
_PROGRESS = (LAST_OFFSET_KEY, LAST_TIME_KEY)
_MISSING, _OF_LOST, _OF_NOTHING = "missing", "of lost messages", "of nothing"
_CAUSES = {
    _MISSING: (kinds.MISSING_INDEX_ROWS, "rows were lost, or the index was disabled for a while"),
    _OF_LOST: (kinds.ORPHANED_INDEX_ROWS, "the log has lost these messages; their rows remain in the database"),
    _OF_NOTHING: (kinds.ORPHANED_INDEX_ROWS, "a row was overwritten, or the database belongs to another log"),
}


def verify_rocksdb_index(
    workers: Workers, store: Store, ranges: Sequence[Range], release: str | None, scratch: Scratch
) -> PartReport | None:
    """Return the findings on a store's index in RocksDB; None if it has none."""
    directory = rocksdbstore_directory(store)
    if directory is None:
        return None
    stored = StoredDatabase.in_directory(store, directory)
    try:
        few = stored.database.rows(INDEX_FAMILY, batch_size=4)
        if not any(key not in _PROGRESS for keys, _ in few for key in keys):
            return None
        rows = sort_rows(workers, stored, scratch)
        now = store
        if not store.has_clean_shutdown:  # a running broker may have created or deleted the segment of a row since
            now = relist_store(store)
            ranges = plan_ranges(now)
        rules = determine_writers(store, release).value.rules
        keys = collect_keys(workers, now, ranges, rules, scratch)
        compared = compare_rows(workers, rows, keys, scratch)
    except UnsupportedFormat as error:
        return PartReport(numbers={"files": 0}, unverified=str(error))
    except FormatError as error:
        return PartReport([unreadable_database_finding(INDEX, error, store)], {"files": 0})
    return _report(rows, compared, keys, directory, store)


class SortedRows(NamedTuple):
    """Rows of a range of the database: their messages' offsets and key hashes, in a scratch file, sorted by offset."""

    file: str
    sample: NDArray[np.int64]  # the offsets of rows number 0, ROWS_PER_SAMPLE, 2 * ROWS_PER_SAMPLE, …
    row_count: int
    invalid_count: int  # rows without a valid key, which are not in the file


def sort_rows(workers: Workers, stored: StoredDatabase, scratch: Scratch) -> list[SortedRows]:
    """Write all rows to scratch files."""
    ranges = stored.database.plan_key_ranges(INDEX_FAMILY, ROWS_PER_TASK)
    found = workers.map(ranges, partial(_sort_range, stored, scratch), "sorting the rows of the index")
    return [rows for some in found for rows in some]


def _sort_range(stored: StoredDatabase, scratch: Scratch, keys: KeyRange) -> list[SortedRows]:
    """Write the rows of a range of keys to scratch files; a range may have more rows than the database says."""
    written, waiting, invalid = [], list[NDArray[np.void]](), 0
    for places, invalid_count in _read_places(stored, keys):
        waiting.append(places)
        invalid += invalid_count
        if sum(map(len, waiting)) >= ROWS_PER_TASK:
            written.append(_write_sorted(waiting, invalid, scratch))
            waiting, invalid = [], 0
    return [*written, _write_sorted(waiting, invalid, scratch)]


def _read_places(stored: StoredDatabase, keys: KeyRange) -> Iterator[tuple[NDArray[np.void], int]]:
    """Yield offsets and key hashes of the rows of a range of keys, and the number of rows without a valid key."""
    start, end = keys
    for row_keys, values in stored.database.rows(INDEX_FAMILY, start):
        own = len(row_keys) if end is None else bisect_left(row_keys, end)
        progress = sum(row_keys[:own].count(key) for key in _PROGRESS)
        places = hash_index_rows(row_keys[:own], values[:own])
        yield places, own - progress - len(places)
        if own < len(row_keys):
            return


def _write_sorted(some: Sequence[NDArray[np.void]], invalid_count: int, scratch: Scratch) -> SortedRows:
    places = np.concatenate([np.empty(0, HASHED_KEY), *some])
    places = places[np.argsort(places["physical_offset"], kind="stable")]
    file = f"rows-{uuid4()}"
    with scratch.create(file) as sink:
        sink.write(places.view(np.uint8).data)
    return SortedRows(file, places["physical_offset"][::ROWS_PER_SAMPLE].copy(), len(places), invalid_count)


# The number of rows or keys that only one side has, and the lowest log offset of these, by reason.
RowDifferences = dict[str, tuple[int, int]]


def _add_differences(differences: RowDifferences, more: RowDifferences) -> RowDifferences:
    """Add *more* counts to *differences*, by reason, and return these."""
    for reason, (count, lowest) in more.items():
        before, lowest_before = differences.get(reason, (0, MAX_LONG))
        differences[reason] = before + count, min(lowest, lowest_before)
    return differences


class _LogRange(NamedTuple):
    """A range of the log, with its keys, and the parts of scratch files that have its rows."""

    start: int
    last: int
    keys: list[KeyPart]
    rows: list[KeyPart]
    has_keys: bool  # False after the last key of the log


def compare_rows(
    workers: Workers, rows: Sequence[SortedRows], keys: KeySequence, scratch: Scratch
) -> tuple[int, RowDifferences]:
    """Return the number of different keys of the log, and the differences between rows and keys."""
    task = partial(_compare_range, scratch, keys.lost_ranges)
    found = workers.map(list(_plan_log_ranges(rows, keys)), task, "comparing the rows of the index")
    return sum(count for count, _ in found), reduce(_add_differences, (differences for _, differences in found), {})


def _plan_log_ranges(rows: Sequence[SortedRows], keys: KeySequence) -> Iterator[_LogRange]:
    """Divide the log into ranges that each have few keys and few rows; the last one is after the last key."""
    newest = keys.read_keys(len(keys) - 1, len(keys))
    end = newest[0].physical_offset + 1 if newest else keys.start_offset
    bounds = {keys.read_keys(at, at + 1)[0].physical_offset for at in range(ROWS_PER_TASK, len(keys), ROWS_PER_TASK)}
    samples = np.sort(np.concatenate([np.empty(0, np.int64), *(some.sample for some in rows)]))
    bounds.update(samples[ROWS_PER_TASK // ROWS_PER_SAMPLE :: ROWS_PER_TASK // ROWS_PER_SAMPLE].tolist())
    inner = sorted(bound for bound in bounds if keys.start_offset < bound < end)
    later = sorted(bound for bound in bounds if bound > end)
    for low, high in pairwise([keys.start_offset, *inner, end, *later, MAX_LONG]):
        own = keys.list_parts(keys.find_first_key(low), keys.find_first_key(high)) if low < end else []
        last = high if high == MAX_LONG else high - 1
        yield _LogRange(low, last, own, [part for some in rows for part in _find_part(some, low, last)], low < end)


def _find_part(rows: SortedRows, start: int, last: int) -> Iterator[KeyPart]:
    """Yield the part of a scratch file with all rows of a range of the log; it may have others at its ends."""
    first = max(int(np.searchsorted(rows.sample, start)) - 1, 0) * ROWS_PER_SAMPLE
    stop = min(int(np.searchsorted(rows.sample, last, "right")) * ROWS_PER_SAMPLE, rows.row_count)
    if first < stop:
        yield KeyPart(rows.file, first, stop - first)


def _compare_range(
    scratch: Scratch, lost_ranges: Sequence[tuple[int, int]], compared: _LogRange
) -> tuple[int, RowDifferences]:
    """Return the number of different keys of a range of the log, and the differences between its rows and its keys."""
    wanted = [
        block[list(HASHED_KEY.names or ())].astype(HASHED_KEY)
        for part in compared.keys
        for block, _ in read_key_blocks(scratch, part)
    ]
    stored = [_read_part(scratch, part, compared.start, compared.last) for part in compared.rows]
    key_count = sum(map(len, wanted))
    places = np.concatenate([np.empty(0, HASHED_KEY), *wanted, *stored])
    order = np.lexsort((places["key_hash"], places["physical_offset"]))
    places = places[order]
    if not compared.has_keys:  # every row counts, also those of the same message and hash
        return 0, _explain_rows(places["physical_offset"], lost_ranges)
    firsts = np.flatnonzero(np.append(True, places[1:] != places[:-1])[: len(places)])
    are_keys = np.logical_or.reduceat(order < key_count, firsts)
    are_rows = np.logical_or.reduceat(order >= key_count, firsts)
    offsets = places["physical_offset"][firsts]
    missing = offsets[are_keys & ~are_rows]
    differences = {_MISSING: (missing.size, int(missing[0]))} if missing.size else {}
    return int(np.count_nonzero(are_keys)), differences | _explain_rows(offsets[are_rows & ~are_keys], lost_ranges)


def _read_part(scratch: Scratch, part: KeyPart, start: int, last: int) -> NDArray[np.void]:
    """Return the rows of a part of a scratch file that are in a range of the log."""
    places = np.empty(part.key_count, HASHED_KEY)
    with scratch.open(part.file) as file:
        scratch.read_into(file, part.file, part.first_key * HASHED_KEY.itemsize, places.view(np.uint8).data)
    offsets = places["physical_offset"]
    return places[np.searchsorted(offsets, start) : np.searchsorted(offsets, last, "right")]


def _explain_rows(offsets: NDArray[np.int64], lost_ranges: Sequence[tuple[int, int]]) -> RowDifferences:
    """Return rows without keys by their reasons: the log has lost their messages, or the rows are wrong."""
    lost = are_inside(offsets, lost_ranges)
    groups = {_OF_LOST: offsets[lost], _OF_NOTHING: offsets[~lost]}
    return {reason: (some.size, int(some.min())) for reason, some in groups.items() if some.size}


def _report(
    rows: Sequence[SortedRows], compared: tuple[int, RowDifferences], keys: KeySequence, directory: str, store: Store
) -> PartReport:
    """Return the report on an index in RocksDB, from what `compare_rows` has returned."""
    key_count, differences = compared
    numbers = {
        "files": 0,
        "rows": sum(some.row_count for some in rows),
        "keys": key_count,
        "messages": keys.record_count,
        "behind": 0,
    }
    notes = [f"the index is in RocksDB ({directory}, indexRocksDBEnable); the store has no index files"]
    if _MISSING in differences and not store.has_clean_shutdown:
        numbers["behind"], _ = differences.pop(_MISSING)
        notes.append("the missing rows were in memory when the broker was killed; it writes them at its next start")
    findings = []
    for reason, (kind, cause) in _CAUSES.items():
        if reason in differences:
            count, first = differences[reason]
            text = f"{count_text(count, 'row')}, the first for log offset {first}"
            values = ("none", text) if reason == _MISSING else (text, "messages with these keys")
            findings.append(Finding(INDEX, kind, directory, None, "rows", *values, cause, count, first))
    if invalid := sum(some.invalid_count for some in rows):
        text, cause = count_text(invalid, "row"), "the keys of these rows are not valid index keys"
        findings.append(
            Finding(INDEX, kinds.DAMAGED_INDEX_ROWS, directory, None, "rows", text, "valid keys", cause, invalid)
        )
    return PartReport(findings, numbers, notes)
