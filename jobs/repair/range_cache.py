"""
Caches the results of reading ranges of the log during a repair.

A repair reads the log to verify it before, as planned, and after, and to rebuild queue and index files. Most segments
are the same files each time. So the result of a task for a range is cached, and reused as long as the segment is the
same file (device, inode, size, time) and the task is the same, with equal arguments. Unless a result depends only on
the log, all other files of the store must be unchanged as well.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from jobs.diagnosis.log_check import new_range_check
from jobs.products.index.key_sequence import new_range_key_collector
from jobs.products.queues.unit_files import new_range_unit_collector
from jobs.storage.locations import local_path
from jobs.store.chain import run_range
from jobs.store.ranges import Range
from jobs.store.running_broker import FileState, list_file_states
from jobs.store.workers import Item, Result, Sizes, Task, Workers
from rmq_formats.store import INDEX_DIRECTORY

_OF_LOG_ALONE = frozenset({new_range_check, new_range_key_collector, new_range_unit_collector})


class CachingWorkers:
    """Workers that run a task on a range of the log only if its result is not cached."""

    def __init__(self, workers: Workers, root: Path) -> None:
        """Run tasks with *workers*, on ranges of the log of the store at *root*."""
        self._workers, self._root = workers, root
        self.options, self.width, self.processes = workers.options, workers.width, workers.processes
        self._known: dict[bytes, bytes] = {}  # pickled: a caller may change a result
        self.has_repeated = False  # read by `ingest` only

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on each item, or return the cached result of its range."""
        ranges = [item for item in items if isinstance(item, Range)]
        if not ranges or len(ranges) < len(items):
            return self._workers.map(items, task, label, sizes)
        return cast("list[Result]", self._map_ranges(ranges, task, label, sizes))

    def _map_ranges(self, ranges: Sequence[Range], task: Task[Any, Any], label: str, sizes: Sizes) -> list[Any]:
        # The result of each collector of a pass is cached separately, with the facts of the range.
        new_collectors = task.keywords["new_collectors"] if isinstance(task, partial) and task.func is run_range else []
        parts = new_collectors or [task]
        try:
            pickled = [pickle.dumps(part) for part in parts]
        except (pickle.PicklingError, AttributeError, TypeError):  # a task of this process alone
            return self._workers.map(ranges, task, label, sizes)
        keys = self._hash_dependencies(ranges, parts, pickled)
        found = {key: self._known[key] for row in keys for key in row if key in self._known}
        new = [number for number, row in enumerate(keys) if not found.keys() >= {*row}]
        # Collectors that have seen all these ranges are left out.
        needed = [at for at in range(len(parts)) if any(keys[number][at] not in found for number in new)]
        if new_collectors:
            task = partial(run_range, new_collectors=[parts[at] for at in needed])
        some = [sizes[number] for number in new] if sizes else ()
        results = self._workers.map([ranges[number] for number in new], task, label, some) if new else []
        for number, result in zip(new, results, strict=True):
            for place, at in enumerate(needed):
                one = result._replace(payload=result.payload[place]) if new_collectors else result
                found[keys[number][at]] = pickle.dumps(one)
        unchanged = self._hash_dependencies(ranges, parts, pickled)
        for before, after in zip(keys, unchanged, strict=True):
            self._known |= {key: found[key] for key in before} if before == after else {}
        whole = []
        for range_, row in zip(ranges, keys, strict=True):
            cached = [pickle.loads(found[key]) for key in row]  # noqa: S301 - pickled by this process
            first, payload = cached[0], tuple(one.payload for one in cached if new_collectors)
            whole.append(first._replace(range=range_, payload=payload) if new_collectors else first)
        return whole

    def _hash_dependencies(
        self, ranges: Sequence[Range], parts: Sequence[object], pickled: Sequence[bytes]
    ) -> list[tuple[bytes, ...]]:
        """Return, for each range and part of the task, a hash of everything on which the result depends."""
        paths = {range_.location: Path(local_path(range_.location)) for range_ in ranges}
        files = {location: FileState.read(path) for location, path in paths.items()}
        logs = {path.resolve().parent for path in paths.values()}
        others = {*logs, self._root / INDEX_DIRECTORY}
        listed = [*list_file_states(self._root)]
        excluded = {directory for directory in {path.parent for path, _ in listed} if directory.resolve() in others}
        rest = [one for one in listed if one[0].parent not in excluded]
        state = sha256(repr(rest).encode()).digest()
        functions = [part.func if isinstance(part, partial) else part for part in parts]
        rows = []
        for range_ in ranges:
            described = f"{files[range_.location]} {replace(range_, location='')}".encode()
            # Queues are evidence of where the newest segments end.
            states = [b"" if range_.final and function in _OF_LOG_ALONE else state for function in functions]
            rows.append(tuple(sha256(described + a + b).digest() for a, b in zip(states, pickled, strict=True)))
        return rows
