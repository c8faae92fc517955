"""
The queues: how many messages each can reach, and which records its ends name.

A queue's files are filled from the front, and the newest one ends in zeros: a search by halves finds its last unit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from jobs.inspect.problems import Problems
from jobs.store.store import Store, StoredFile
from rmq_formats.consumequeue.unit import BatchUnit, QueueKind, Unit, decode_batch_unit, decode_unit
from rmq_formats.layout import Buffer
from rmq_formats.store import FileKind

_KINDS = {FileKind.CONSUME_QUEUE: QueueKind.PLAIN, FileKind.BATCH_CONSUME_QUEUE: QueueKind.BATCH}
_DECODE: dict[QueueKind, Callable[[bytes], Unit | BatchUnit]] = {
    QueueKind.PLAIN: decode_unit,
    QueueKind.BATCH: decode_batch_unit,
}


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
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None

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

    @property
    def topics(self) -> set[str]:
        """The topics that have queues."""
        return {queue.topic for queue in self.queues}

    def known_records(self) -> Iterator[int]:
        """Yield the physical offsets of records that the ends of queues name."""
        for queue in self.queues:
            yield from (
                offset for offset in (queue.first_physical_offset, queue.last_physical_offset) if offset is not None
            )


class _File(NamedTuple):
    """A file of one queue, and how to read units from it."""

    file: StoredFile
    kind: QueueKind
    read: Callable[[int, int], Buffer]

    @property
    def room(self) -> int:
        """How many units the file has room for."""
        return self.file.size // self.kind.layout.size

    def unit(self, number: int) -> Unit | BatchUnit:
        """Return one unit."""
        size = self.kind.layout.size
        return _DECODE[self.kind](bytes(self.read(number * size, size)))

    def written(self) -> int:
        """Return how many units are written: they are filled from the front."""
        low, high = 0, self.room
        while low < high:
            middle = (low + high) // 2
            if self.unit(middle).is_written:
                low = middle + 1
            else:
                high = middle
        return low


def inspect_queues(store: Store, problems: Problems) -> QueuesReport:
    """Look at the ends of every queue."""
    plain = [file for file in store.queue_files if file.about.kind in _KINDS]
    others = [file for file in store.other_files if file.about.path.startswith("consumequeue/")]
    report = QueuesReport(
        ext_files=len(store.queue_files) - len(plain),
        in_rocksdb=any(file.about.kind is FileKind.ROCKSDB for file in others),
    )
    for (kind, topic, queue_id), group in groupby(sorted(plain, key=_queue_order), key=_queue_of):
        files = list(group)
        queue = QueueReport(_KINDS[kind], topic, queue_id, len(files), sum(file.size for file in files))
        report.queues.append(queue)
        _check_files(files, queue.kind.layout.size, problems)
        with problems.noted(files[0].location):
            _find_ends(queue, files, store)
    return report


def _queue_of(file: StoredFile) -> tuple[FileKind, str, int]:
    about = file.about
    return about.kind, about.topic or "", about.queue_id or 0


def _queue_order(file: StoredFile) -> tuple[FileKind, str, int, int]:
    return (*_queue_of(file), file.about.base_offset or 0)


def _check_files(files: Sequence[StoredFile], unit_size: int, problems: Problems) -> None:
    for file in files:
        if file.size % unit_size:
            problems.warn(file.location, f"{file.size} bytes are no whole number of units of {unit_size}")
        if (file.about.base_offset or 0) % unit_size:
            problems.warn(file.location, f"its name is no multiple of a unit's {unit_size} bytes")
    for before, after in pairwise(files):
        end = (before.about.base_offset or 0) + before.size
        if end != after.about.base_offset:
            problems.damage(after.location, f"the file before it ends at {end}")


def _find_ends(queue: QueueReport, files: Sequence[StoredFile], store: Store) -> None:
    size = queue.kind.layout.size
    first, *_ = files
    queue.first_unit = (first.about.base_offset or 0) // size
    queue.next_unit = queue.first_unit
    with store.open(first) as reader:
        queue.first_physical_offset = _first_real(_File(first, queue.kind, reader.read))
    for file in reversed(files):
        with store.open(file) as reader:
            read = _File(file, queue.kind, reader.read)
            written = read.written()
            if written:
                queue.next_unit = (file.about.base_offset or 0) // size + written
                queue.last_physical_offset = read.unit(written - 1).physical_offset
                return


def _first_real(file: _File) -> int | None:
    """Return the physical offset of the first unit that is none of those that fill up a queue's first file."""
    if not file.room:
        return None
    unit = file.unit(0)
    is_pre_blank = isinstance(unit, Unit) and unit.is_pre_blank
    return unit.physical_offset if unit.is_written and not is_pre_blank else None
