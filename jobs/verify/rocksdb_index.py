"""
An index in RocksDB, where a store has no index files: every row compared with the keys of the log.

After a kill rows may be missing that were in memory; the next start makes them from the log. Rows of messages that
retention deleted stay until RocksDB drops them by their age.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.lake.findings import INDEX, Finding
from jobs.products.index.key_row import KeyRow, collect_keys
from jobs.products.queues.settings import known_releases
from jobs.storage.locations import join
from jobs.storage.scratch import scratch_for
from jobs.store.features import features_of
from jobs.store.ranges import plan_ranges
from jobs.store.retention import ListedLog
from jobs.store.rocksdb import open_database
from jobs.store.store import Store
from jobs.store.workers import Workers
from jobs.verify.findings import PartReport, unreadable_database
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.hashing import index_key_hash
from rmq_formats.indexfile.keys import IndexKey
from rmq_formats.rocksdb.index import FAMILY, LAST_OFFSET_KEY, LAST_TIME_KEY, decode_index_row

MISSING_ROWS = "missing_index_rows"
ROWS_OF_NOTHING = "index_rows_of_no_message"
ODD_ROWS = "damaged_index_rows"
_KEY_PLACE = np.dtype([("physical_offset", "<i8"), ("key_hash", "<i4")])
"""A key's message, as both kinds of index name it."""


class _RocksIndex(NamedTuple):
    """All rows of the index in RocksDB."""

    folder: str
    places: NDArray[np.void]
    odd_rows: int  # that are none of an index


def verify_rocksdb_index(
    workers: Workers, store: Store, release: str | None, range_size: int, scratch_location: str | None
) -> PartReport | None:
    """Return the findings on a store's index in RocksDB; None if it has none."""
    try:
        index = _index_of(store)
    except UnsupportedFormat as error:
        return PartReport(numbers={"files": 0}, unverified=str(error))
    except FormatError as error:
        return PartReport([unreadable_database(INDEX, error, store)], {"files": 0})
    if index is None:
        return None
    rules = known_releases(store, release).value.rules
    log = ListedLog(store, plan_ranges(store, range_size=range_size))
    with scratch_for(scratch_location, workers.options) as scratch:
        row = collect_keys(workers, log, rules, scratch)
        keys = _places(row)
    return _compared(index, keys, row, store)


def _index_of(store: Store) -> _RocksIndex | None:
    """Return the index that a store has in RocksDB; None where it has no such rows."""
    folder = features_of(store).other_database
    if folder is None:
        return None
    places: list[tuple[int, int]] = []
    odd = 0
    with open_database(join(store.root, folder), store.storage) as database:
        for key, value in database.items(FAMILY):
            if key not in {LAST_OFFSET_KEY, LAST_TIME_KEY}:
                try:
                    row = decode_index_row(key, value)
                except FormatError:
                    odd += 1
                else:
                    hash_ = index_key_hash(IndexKey(row.topic, row.key, row.kind).text)
                    places.append((row.physical_offset, hash_))
    if not places and not odd:
        return None
    return _RocksIndex(folder, np.array(places, _KEY_PLACE), odd)


def _places(row: KeyRow) -> NDArray[np.void]:
    places = np.empty(len(row), _KEY_PLACE)
    at = 0
    for part in row.parts(0, len(row)):
        for block in row.source.blocks(part):
            end = at + len(block.keys)
            for name in _KEY_PLACE.names or ():
                places[name][at:end] = block.keys[name]
            at = end
    return np.unique(places)


def _compared(index: _RocksIndex, keys: NDArray[np.void], row: KeyRow, store: Store) -> PartReport:
    stored = np.unique(index.places)
    missing, extra = np.setdiff1d(keys, stored), np.setdiff1d(stored, keys)
    extra = extra[extra["physical_offset"] >= row.start_offset]
    lost = np.zeros(len(extra), np.bool_)
    for start, end in row.lost:
        lost |= (extra["physical_offset"] >= start) & (extra["physical_offset"] < end)
    numbers = {"files": 0, "rows": len(index.places), "keys": len(keys), "messages": row.records, "behind": 0}
    notes = [f"the index is in RocksDB ({index.folder}, indexRocksDBEnable), and there are no index files"]
    findings = []
    if len(missing) and not store.is_closed:
        numbers["behind"] = len(missing)
        notes.append("rows that are missing were in memory when the broker was killed; its next start makes them")
    elif len(missing):
        findings.append(_finding(index, MISSING_ROWS, missing, "rows were lost, or the index was off for a while"))
    if lost.any():
        cause = "the log has lost these messages; their rows stay"
        findings.append(_finding(index, ROWS_OF_NOTHING, extra[lost], cause, is_stored=True))
    if not lost.all():
        cause = "a row was overwritten, or the database is of another log"
        findings.append(_finding(index, ROWS_OF_NOTHING, extra[~lost], cause, is_stored=True))
    if index.odd_rows:
        text, cause = f"{index.odd_rows} rows", "their keys are none of an index"
        findings.append(Finding(INDEX, ODD_ROWS, index.folder, None, "rows", text, "keys", cause, index.odd_rows))
    return PartReport(findings, numbers, notes)


def _finding(
    index: _RocksIndex, kind: str, places: NDArray[np.void], cause: str, *, is_stored: bool = False
) -> Finding:
    first = int(places["physical_offset"].min())
    text = f"{len(places)} rows, the first of offset {first}"
    found, expected = (text, "messages with these keys") if is_stored else ("none", text)
    return Finding(INDEX, kind, index.folder, None, "rows", found, expected, cause, len(places), first)
