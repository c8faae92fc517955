"""
What the driver does before any task runs, on a store of 100 TB, and what it keeps: only the newest file is opened.

`python -m benchmarks.planning [SEGMENTS [QUEUE_FILES]]` prints JSON: CPU seconds, peak memory, tasks, and the size of
the commit. The listing is made up; its files are not on any disk.
"""

import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

from benchmarks.measuring import peak_mb, provenance
from jobs.lake.identity import Comparison, compare
from jobs.lake.runs import KnownStore, Manifest, thinned
from jobs.lake.table_file import Action
from jobs.storage.model import FileInfo
from jobs.store.queue_files import stored_queues
from jobs.store.ranges import describe, holes, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store, list_store
from rmq_formats.store import name_of_offset

_SEGMENT = 1 << 30
_QUEUE_FILE = 6_000_000
_FILES_A_QUEUE = 10
_QUEUES_A_TOPIC = 8

T = TypeVar("T")


class _Written:
    """A file that was written to, for whoever looks at its first bytes."""

    def read(self, position: int, length: int) -> bytes:
        """Return what is no zeros."""
        del position
        return b"\x01" * length


class _Made:
    """A storage that knows names and sizes; what it opens was written to."""

    def __init__(self, segments: int, queue_files: int) -> None:
        self._files = [FileInfo(f"commitlog/{name_of_offset(n * _SEGMENT)}", _SEGMENT, 0) for n in range(segments)]
        self._files += [FileInfo(_queue_file(number), _QUEUE_FILE, 0) for number in range(queue_files)]
        self._files.sort()

    def list_files(self, location: str) -> list[FileInfo]:
        """Return what a walk through the directories would find."""
        del location
        return self._files

    def open(self, location: str) -> AbstractContextManager[_Written]:
        """Return a file."""
        del location
        return nullcontext(_Written())


def _queue_file(number: int) -> str:
    queue, file = divmod(number, _FILES_A_QUEUE)
    topic, queue_id = divmod(queue, _QUEUES_A_TOPIC)
    return f"consumequeue/Topic{topic:05d}/{queue_id}/{name_of_offset(file * _QUEUE_FILE)}"


def measure(segments: int = 100_000, queue_files: int = 200_000) -> dict[str, Any]:
    """Plan a whole store, and a run that goes on in it; return the figures."""
    seconds: dict[str, float] = {}
    peaks: dict[str, int] = {"the program": peak_mb()}

    def timed(step: str, work: Callable[[], T]) -> T:
        began = time.process_time()  # it all computes: other work on the machine does not count
        result = work()
        seconds[step] = round(time.process_time() - began, 3)
        peaks[step] = peak_mb()
        return result

    made = _Made(segments, queue_files)
    with patch("jobs.storage.storage_of", lambda *_: made):
        store: Store = timed("listing", lambda: list_store("/store"))
        ranges = timed("planning everything", lambda: plan_ranges(store))
        late = timed("planning the last segment", lambda: plan_ranges(store, (segments - 1) * _SEGMENT))
    timed("holes", lambda: list(holes(store.segments)))
    queues = timed("queues", lambda: stored_queues(store))
    plan = timed("describing", lambda: describe(ranges))
    tasks = timed("tasks, pickled", lambda: sum(len(pickle.dumps(range_)) for range_ in ranges))
    manifest = _manifest(len(ranges))
    stored = timed("manifest", manifest.to_json)
    timed("manifest read", lambda: Manifest.from_json(stored))
    known = KnownStore("store", "broker", (), manifest)
    timed("fingerprints", lambda: _compare(known, store))
    return {
        **provenance(),
        "segments": segments,
        "queue_files": queue_files,
        "queues": len(queues),
        "plan": plan,
        "ranges_of_the_last_segment": len(late),
        "seconds": seconds,
        "peak_MB_after": peaks,
        "bytes_of_all_tasks": tasks,
        "manifest_bytes": len(stored),
        "fingerprints": len(manifest.fingerprints),
    }


def _compare(known: KnownStore, store: Store) -> Comparison:
    """Find each fingerprint's segment; its bytes are taken as read."""
    with patch("jobs.storage.storage_of", _missing):
        return compare(known, store)


def _missing(*_: object) -> NoReturn:
    raise FileNotFoundError


def _manifest(ranges: int) -> Manifest:
    """Return what a run over so many ranges commits: one file of messages each."""
    statistics = json.dumps({"numRecords": 1_000_000, "minValues": dict.fromkeys("abcdefghijklmnop", "0" * 20)})
    actions = tuple(
        Action(f"{'0' * 36}-1-{number:020d}-{'0' * 36}.parquet", 200_000_000, 1_760_000_000_000, statistics, 1_000_000)
        for number in range(ranges)
    )
    fingerprints = thinned(Fingerprint(number << 28, 1000, "0" * 64) for number in range(2 * ranges))
    return Manifest("store", "broker", 1, 0, ranges << 28, None, fingerprints, {"messages": actions})


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=1))
