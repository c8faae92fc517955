"""
The queues: how many messages each can reach, and which records its ends name.

A queue's files are filled from the front, and the newest one ends in zeros: a search by halves finds its last unit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from jobs.inspect.problems import Problems
from jobs.store.queue_files import KINDS, StoredQueue, features_of, file_sizes, queues_of_files, stored_queues
from jobs.store.store import Store
from rmq_formats.consumequeue.unit import BatchUnit, QueueKind, QueueName, Unit
from rmq_formats.errors import FormatError


@dataclass(slots=True)
class QueueReport:
    """One queue."""

    kind: QueueKind
    topic: str
    queue_id: int
    files: int
    bytes: int
    first_unit: int = 0  # number of the first unit on disk
    next_unit: int = 0  # number of the unit that the broker writes next
    min_offset: int = 0  # as mqadmin's topicStatus prints it: units of deleted segments are left out
    max_offset: int = 0
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None
    left_over: int = 0  # units at the end whose messages a promotion took back; not among the others

    @property
    def units(self) -> int:
        """How many units are on disk."""
        return self.next_unit - self.first_unit


@dataclass(slots=True)
class QueuesReport:
    """All queues."""

    queues: list[QueueReport] = field(default_factory=list)
    ext_files: int = 0
    in_rocksdb: bool = False
    units_in_rocksdb: int = 0  # of queues that have no files
    deleted_topics: set[str] = field(default_factory=set)  # whose messages the log still has

    @property
    def topics(self) -> set[str]:
        """The topics that have queues."""
        return {queue.topic for queue in self.queues}

    def known_records(self) -> Iterator[int]:
        """Yield the physical offsets of records that the ends of queues name."""
        for queue in self.queues:
            ends = (queue.first_physical_offset, queue.last_physical_offset)
            yield from (offset for offset in ends if offset is not None)


def inspect_queues(store: Store, problems: Problems) -> QueuesReport:
    """Look at the ends of every queue."""
    database = features_of(store).queue_database
    queues, error = _readable(store)
    with problems.noted(f"{store.root}/{database}"):
        if error is not None:
            raise error
    in_files = sum(len(queue.files) for queue in queues if not queue.in_rocksdb)
    sizes = {KINDS[kind]: size for kind, size in file_sizes(store).items() if kind in KINDS}
    report = QueuesReport(
        ext_files=len(store.queue_files) - in_files,
        in_rocksdb=database is not None,
        units_in_rocksdb=sum(queue.capacity - queue.start for queue in queues if queue.in_rocksdb),
    )
    for queue in queues:
        found = QueueReport(
            queue.name.kind,
            queue.name.topic,
            queue.name.queue_id,
            0 if queue.in_rocksdb else len(queue.files),
            0 if queue.in_rocksdb else sum(file.size for file in queue.files),
        )
        report.queues.append(found)
        if not queue.in_rocksdb:
            _check_files(queue, problems, sizes.get(queue.name.kind))
        with problems.noted(queue.files[0].location):
            _find_ends(found, queue, store.start_offset)
    return report


def _readable(store: Store) -> tuple[list[StoredQueue], FormatError | None]:
    """Return the queues that can be read, and why those in RocksDB cannot."""
    try:
        return stored_queues(store), None
    except FormatError as error:
        return queues_of_files(store.queue_files, store.storage), error


def _check_files(queue: StoredQueue, problems: Problems, size: int | None) -> None:
    for file in queue.files:
        if file.size % queue.unit_size:
            problems.note(file.location, f"{file.size} bytes, not a multiple of a unit's {queue.unit_size}")
        if file.base_offset % queue.unit_size:
            problems.note(file.location, f"its name is not a multiple of a unit's {queue.unit_size} bytes")
    for before, after in pairwise(queue.files):
        if before.end != after.base_offset and before.size == size:
            problems.gap(after.location, f"the file before it ends at {before.end}")
    for file in queue.files:
        if size is not None and file.size and file.size != size:
            how = "cut short" if file.size < size else "too long"
            text = f"{how}: {file.size} bytes long, the others {size}: a broker would not load this queue"
            problems.damage(file.location, text)


def _find_ends(report: QueueReport, queue: StoredQueue, log_start: int) -> None:
    report.first_unit, report.next_unit = queue.start, queue.written_end()
    first = queue.unit(queue.start)
    if first is not None and not (isinstance(first, Unit) and first.is_pre_blank):  # units that fill up a first file
        report.first_physical_offset = first.physical_offset
    if first is not None and first.physical_offset < log_start:
        report.min_offset = queue.first_from(log_start, report.next_unit)
        first = queue.unit(report.min_offset)
    else:
        report.min_offset = queue.start
    if queue.is_batch:
        report.min_offset = first.base_offset if isinstance(first, BatchUnit) else 0
    _find_last(report, queue)


def _find_last(report: QueueReport, queue: StoredQueue) -> None:
    last = queue.unit(report.next_unit - 1) if report.units else None
    report.last_physical_offset = last.physical_offset if last else None
    report.max_offset = last.base_offset + last.batch_count if isinstance(last, BatchUnit) else report.next_unit


def drop_left_over(report: QueuesReport, store: Store, is_left_over: Callable[[int], bool]) -> int:
    """Drop the units at the ends of queues that point to records left over after the log's end; return their number."""
    queues = {queue.name: queue for queue in _readable(store)[0]}
    for found in report.queues:
        queue = queues[QueueName(found.kind, found.topic, found.queue_id)]
        while found.last_physical_offset is not None and is_left_over(found.last_physical_offset):
            found.next_unit -= 1
            found.left_over += 1
            _find_last(found, queue)
    return sum(found.left_over for found in report.queues)
