"""
Compares every row of an index in RocksDB, which a store has instead of index files, with the keys of the log.

After a kill, rows that were only in memory are missing; the next start rebuilds them from the log. Rows of messages
that retention has deleted stay until RocksDB drops them because of their age.

Rows are sorted by their hour and topic, keys by their offset. So rows are divided into scratch files by ranges of the
log that have about equal numbers of keys, and the ranges are compared one after the other: memory does not grow with
the index.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from jobs.console.amounts import count_text
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, Finding
from jobs.products.index.key_sequence import KeySequence, collect_keys, read_key_blocks
from jobs.storage.locations import join_location
from jobs.storage.scratch import Scratch
from jobs.store.queue_storage import rocksdbstore_directory
from jobs.store.ranges import Range, plan_ranges
from jobs.store.release import determine_writers
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store, relist_store
from jobs.store.workers import Workers
from jobs.verify.report import PartReport, unreadable_database_finding
from rmq_formats.arrays import are_inside
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.properties import MAX_LONG
from rmq_formats.rocksdb.build import HASHED_KEY, hash_index_rows
from rmq_formats.rocksdb.layout import INDEX_FAMILY, LAST_OFFSET_KEY, LAST_TIME_KEY

KEYS_PER_PORTION = 1 << 20  # keys of a range of the log whose rows are compared together
_MOST_RANGES = 256  # each range has a scratch file that is open while rows are divided
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
    try:
        with open_database(join_location(store.root, directory), store.storage) as database:
            if not any(key not in _PROGRESS for keys, _ in database.rows(INDEX_FAMILY, batch_size=4) for key in keys):
                return None
            now = store
            if not store.has_clean_shutdown:  # a running broker may have created or deleted the segment of a row since
                now = relist_store(store)
                ranges = plan_ranges(now)
            rules = determine_writers(store, release).value.rules
            keys = collect_keys(workers, now, ranges, rules, scratch)
            compared = compare_rows(database, keys, scratch)
    except UnsupportedFormat as error:
        return PartReport(numbers={"files": 0}, unverified=str(error))
    except FormatError as error:
        return PartReport([unreadable_database_finding(INDEX, error, store)], {"files": 0})
    return _report(*compared, keys, directory, store)


# The number of rows or keys that only one side has, and the lowest log offset of these, by reason.
RowDifferences = dict[str, tuple[int, int]]


def _add(differences: RowDifferences, reason: str, offsets: NDArray[np.int64]) -> None:
    if offsets.size:
        count, lowest = differences.get(reason, (0, MAX_LONG))
        differences[reason] = count + offsets.size, min(lowest, int(offsets.min()))


def _add_unexplained_rows(differences: RowDifferences, offsets: NDArray[np.int64], keys: KeySequence) -> None:
    """Add rows that no key explains, either because the log has lost their messages or because the rows are wrong."""
    lost = are_inside(offsets, keys.lost_ranges)
    _add(differences, _OF_LOST, offsets[lost])
    _add(differences, _OF_NOTHING, offsets[~lost])


def compare_rows(database: Database, keys: KeySequence, scratch: Scratch) -> tuple[dict[str, int], RowDifferences]:
    """
    Divide the rows of an index, then compare those of each range of the log with its keys.

    Return the numbers of rows, of keys and of rows with invalid keys, and the differences.
    """
    differences: RowDifferences = {}
    step = max(KEYS_PER_PORTION, -(-len(keys) // _MOST_RANGES))
    bounds = sorted({keys.read_keys(at, at + 1)[0].physical_offset for at in range(step, len(keys), step)})
    row_count, invalid_count = _divide(database, keys, np.array(bounds, np.int64), scratch, differences)
    key_count = 0
    for part, (start, end) in enumerate(pairwise([0, *map(keys.find_first_key, bounds), len(keys)])):
        places, at = np.empty(end - start, HASHED_KEY), 0
        for some in keys.list_parts(start, end):
            for block, _ in read_key_blocks(keys.scratch, some):
                for name in HASHED_KEY.names or ():
                    places[name][at : at + len(block)] = block[name]
                at += len(block)
        wanted = np.unique(places[:at])
        with scratch.open(_name(part)) as file:
            stored = np.unique(np.frombuffer(bytes(file.read(0, file.size)), HASHED_KEY))
        scratch.delete(_name(part))
        key_count += len(wanted)
        _add(differences, _MISSING, np.setdiff1d(wanted, stored)["physical_offset"])
        _add_unexplained_rows(differences, np.setdiff1d(stored, wanted)["physical_offset"], keys)
    return {"rows": row_count, "keys": key_count, "invalid": invalid_count}, differences


def _divide(
    database: Database, keys: KeySequence, bounds: NDArray[np.int64], scratch: Scratch, differences: RowDifferences
) -> tuple[int, int]:
    """Write the rows of each part of the log to a file; return the numbers of all rows and of those without a key."""
    last = keys.read_keys(len(keys) - 1, len(keys))
    end = last[0].physical_offset if last else -1
    row_count = invalid_count = 0
    with ExitStack() as stack:
        files = [stack.enter_context(scratch.create(_name(part))) for part in range(len(bounds) + 1)]
        for row_keys, values in database.rows(INDEX_FAMILY):
            progress = sum(key in _PROGRESS for key in row_keys)
            places = hash_index_rows(row_keys, values)
            row_count += len(places)
            invalid_count += len(row_keys) - progress - len(places)
            _add_unexplained_rows(differences, places["physical_offset"][places["physical_offset"] > end], keys)
            places = places[(places["physical_offset"] >= keys.start_offset) & (places["physical_offset"] <= end)]
            parts = np.searchsorted(bounds, places["physical_offset"], side="right")
            for part in np.unique(parts).tolist():
                files[part].write(places[parts == part].tobytes())
    return row_count, invalid_count


def _name(part: int) -> str:
    return f"rows-{part:04d}"


def _report(
    counts: Mapping[str, int], differences: RowDifferences, keys: KeySequence, directory: str, store: Store
) -> PartReport:
    """Return the report on an index in RocksDB, from the *counts* and differences of `compare_rows`."""
    numbers = {"files": 0, "rows": counts["rows"], "keys": counts["keys"], "messages": keys.record_count, "behind": 0}
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
    if invalid := counts["invalid"]:
        text, cause = count_text(invalid, "row"), "the keys of these rows are not valid index keys"
        findings.append(
            Finding(INDEX, kinds.DAMAGED_INDEX_ROWS, directory, None, "rows", text, "valid keys", cause, invalid)
        )
    return PartReport(findings, numbers, notes)
