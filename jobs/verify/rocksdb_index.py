"""
An index in RocksDB, where a store has no index files: every row compared with the keys of the log.

After a kill rows may be missing that were in memory; the next start makes them from the log. Rows of messages that
retention deleted stay until RocksDB drops them by their age.

Rows are sorted by their hour and topic, keys by their offset. So rows are divided into scratch files by ranges of the
log, of about as many keys each, and one range is compared after another: memory does not grow with the index.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.lake.findings import INDEX, Finding
from jobs.products.index.key_row import KeyRow, collect_keys, key_blocks
from jobs.products.queues.settings import known_releases
from jobs.storage.locations import join
from jobs.storage.scratch import Scratch, scratch_for
from jobs.store.chain import ListedLog
from jobs.store.queue_files import features_of
from jobs.store.ranges import plan_ranges
from jobs.store.rocksdb import Database, open_database
from jobs.store.store import Store
from jobs.store.workers import Workers
from jobs.verify.findings import MISSING_ROWS, ODD_ROWS, ROWS_OF_NOTHING, PartReport, unreadable_database
from rmq_formats.errors import FormatError, UnsupportedFormat
from rmq_formats.rocksdb.build import KEY_PLACE, key_places
from rmq_formats.rocksdb.layout import INDEX_FAMILY, LAST_OFFSET_KEY, LAST_TIME_KEY

KEYS_AT_ONCE = 1 << 20  # keys of a range of the log whose rows are compared together
_MOST_RANGES = 256  # each is a scratch file that is open while rows are divided
_PROGRESS = (LAST_OFFSET_KEY, LAST_TIME_KEY)


def verify_rocksdb_index(
    workers: Workers, store: Store, release: str | None, range_size: int, scratch_location: str | Scratch | None
) -> PartReport | None:
    """Return the findings on a store's index in RocksDB; None if it has none."""
    folder = features_of(store).other_database
    if folder is None:
        return None
    try:
        with open_database(join(store.root, folder), store.storage) as database:
            if not any(key not in _PROGRESS for rows in database.rows(INDEX_FAMILY, at_once=4) for key in rows.keys):
                return None
            rules = known_releases(store, release).value.rules
            log = ListedLog(store, plan_ranges(store, range_size=range_size))
            with scratch_for(scratch_location, workers.options) as scratch:
                comparison = _Comparison(collect_keys(workers, log, rules, scratch), scratch)
                comparison.run(database)
    except UnsupportedFormat as error:
        return PartReport(numbers={"files": 0}, unverified=str(error))
    except FormatError as error:
        return PartReport([unreadable_database(INDEX, error, store)], {"files": 0})
    return comparison.report(folder, store)


@dataclass(slots=True)
class _Tally:
    """Places that only one side has."""

    count: int = 0
    first: int | None = None  # the lowest offset

    def add(self, offsets: NDArray[np.int64]) -> None:
        if offsets.size:
            lowest = int(offsets.min())
            self.first = lowest if self.first is None else min(self.first, lowest)
            self.count += offsets.size

    def finding(self, folder: str, kind: str, cause: str, *, is_stored: bool = False) -> Finding:
        text = f"{self.count} rows, the first of offset {self.first}"
        found, expected = (text, "messages with these keys") if is_stored else ("none", text)
        return Finding(INDEX, kind, folder, None, "rows", found, expected, cause, self.count, self.first)


class _Comparison:
    """Compares the rows of an index with the keys of the log."""

    def __init__(self, row: KeyRow, scratch: Scratch) -> None:
        self._row = row
        self._scratch = scratch
        self._rows = self._odd_rows = self._keys = 0
        self._missing, self._of_lost, self._of_nothing = _Tally(), _Tally(), _Tally()

    def run(self, database: Database) -> None:
        """Divide the rows, then compare each range of the log."""
        row = self._row
        step = max(KEYS_AT_ONCE, -(-len(row) // _MOST_RANGES))
        bounds = sorted({row.keys(at, at + 1)[0].physical_offset for at in range(step, len(row), step)})
        self._divide(database, np.array(bounds, np.int64))
        numbers = [0, *map(row.find, bounds), len(row)]
        for part in range(len(bounds) + 1):
            keys = self._keys_of(numbers[part], numbers[part + 1])
            stored = self._rows_of(part)
            self._keys += len(keys)
            self._missing.add(np.setdiff1d(keys, stored)["physical_offset"])
            self._add_extra(np.setdiff1d(stored, keys)["physical_offset"])

    def _divide(self, database: Database, bounds: NDArray[np.int64]) -> None:
        last = self._row.keys(len(self._row) - 1, len(self._row))
        end = last[0].physical_offset if last else -1
        with ExitStack() as stack:
            files = [stack.enter_context(self._scratch.create(_name(part))) for part in range(len(bounds) + 1)]
            for rows in database.rows(INDEX_FAMILY):
                progress = sum(key in _PROGRESS for key in rows.keys)
                places = key_places(rows.keys, rows.values)
                self._rows += len(places)
                self._odd_rows += len(rows.keys) - progress - len(places)
                self._add_extra(places["physical_offset"][places["physical_offset"] > end])
                within = (places["physical_offset"] >= self._row.start_offset) & (places["physical_offset"] <= end)
                places = places[within]
                parts = np.searchsorted(bounds, places["physical_offset"], side="right")
                for part in np.unique(parts).tolist():
                    files[part].write(places[parts == part].tobytes())

    def _rows_of(self, part: int) -> NDArray[np.void]:
        with self._scratch.open(_name(part)) as file:
            data = bytes(file.read(0, file.size))
        self._scratch.delete(_name(part))
        return np.unique(np.frombuffer(data, KEY_PLACE))

    def _keys_of(self, start: int, end: int) -> NDArray[np.void]:
        places = np.empty(end - start, KEY_PLACE)
        at = 0
        for part in self._row.parts(start, end):
            for keys, _ in key_blocks(self._row.scratch, part):
                for name in KEY_PLACE.names or ():
                    places[name][at : at + len(keys)] = keys[name]
                at += len(keys)
        return np.unique(places[:at])

    def _add_extra(self, offsets: NDArray[np.int64]) -> None:
        lost = np.zeros(len(offsets), np.bool_)
        for start, end in self._row.lost:
            lost |= (offsets >= start) & (offsets < end)
        self._of_lost.add(offsets[lost])
        self._of_nothing.add(offsets[~lost])

    def report(self, folder: str, store: Store) -> PartReport:
        """Return the findings."""
        numbers = {"files": 0, "rows": self._rows, "keys": self._keys, "messages": self._row.records, "behind": 0}
        notes = [f"the index is in RocksDB ({folder}, indexRocksDBEnable), and there are no index files"]
        findings = []
        if self._missing.count and not store.is_closed:
            numbers["behind"] = self._missing.count
            notes.append("rows that are missing were in memory when the broker was killed; its next start makes them")
        elif self._missing.count:
            cause = "rows were lost, or the index was off for a while"
            findings.append(self._missing.finding(folder, MISSING_ROWS, cause))
        if self._of_lost.count:
            cause = "the log has lost these messages; their rows stay"
            findings.append(self._of_lost.finding(folder, ROWS_OF_NOTHING, cause, is_stored=True))
        if self._of_nothing.count:
            cause = "a row was overwritten, or the database is of another log"
            findings.append(self._of_nothing.finding(folder, ROWS_OF_NOTHING, cause, is_stored=True))
        if self._odd_rows:
            text, cause = f"{self._odd_rows} rows", "their keys are not keys of an index"
            findings.append(Finding(INDEX, ODD_ROWS, folder, None, "rows", text, "keys", cause, self._odd_rows))
        return PartReport(findings, numbers, notes)


def _name(part: int) -> str:
    return f"rows-{part:04d}"
