"""The files of a store's queues: which there are, and their units by position."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.storage import AnyStorage
from jobs.storage.model import Storage
from jobs.store.store import Store
from rmq_formats.consumequeue.build import UNITS
from rmq_formats.consumequeue.layout import DEFAULT_FILE_SIZE
from rmq_formats.consumequeue.unit import QueueKind, QueueName
from rmq_formats.store import FileKind, StoreFile

Units = NDArray[np.void]

KINDS = {FileKind.CONSUME_QUEUE: QueueKind.PLAIN, FileKind.BATCH_CONSUME_QUEUE: QueueKind.BATCH}
GONE = -1  # in every field of a unit whose file the broker deleted after we listed it
_FIRST_LOOK = 25  # units; a queue that has none or few new ones costs half a kilobyte
_LARGEST_LOOK = 1 << 16


class QueueFile(NamedTuple):
    """One file of a queue."""

    location: str
    base_offset: int  # logical
    size: int

    @property
    def end(self) -> int:
        """The logical offset behind the file."""
        return self.base_offset + self.size


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue and its files, in order; positions count units from the queue's beginning."""

    name: QueueName
    files: tuple[QueueFile, ...]
    storage: Storage = field(default_factory=AnyStorage, repr=False, compare=False)
    extension: tuple[QueueFile, ...] = ()

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return self.name.kind.layout.size

    @property
    def start(self) -> int:
        """The position of the first unit that a file holds."""
        return self.files[0].base_offset // self.unit_size

    @property
    def capacity(self) -> int:
        """The position behind the last unit that the files could hold."""
        return self.files[-1].end // self.unit_size

    def read(self, start: int, stop: int) -> Units:
        """Return the units at positions [*start*, *stop*); where no file is, they are zero."""
        units = np.zeros(max(stop - start, 0), UNITS[self.name.kind])
        data = units.view(np.uint8)
        first, last = start * self.unit_size, stop * self.unit_size
        for file in self.files:
            begin, end = max(first, file.base_offset), min(last, file.end)
            if begin < end:
                part = self._read_file(file, begin - file.base_offset, end - begin)
                data[begin - first : begin - first + part.size] = part
        return units

    def _read_file(self, file: QueueFile, position: int, size: int) -> NDArray[np.uint8]:
        try:
            with self.storage.open(file.location) as reader:
                return np.frombuffer(reader.read(position, size), np.uint8)
        except FileNotFoundError:
            return np.full(size, GONE & 0xFF, np.uint8)

    def next_written(self, position: int) -> int:
        """Return the position of the next unit that may not be zeros; where files end in holes, none is read."""
        at = position * self.unit_size
        for file in self.files:
            if file.end <= at:
                continue
            start = max(at - file.base_offset, 0)
            try:
                with self.storage.open(file.location) as reader:
                    found = reader.next_written(start)
            except FileNotFoundError:
                continue
            if found < file.size:
                return max((file.base_offset + found) // self.unit_size, position)
        return self.capacity

    def file_at(self, position: int) -> QueueFile | None:
        """Return the file that holds the unit at *position*."""
        at = position * self.unit_size
        return next((file for file in self.files if file.base_offset <= at < file.end), None)

    def written_end(self, known: int | None = None) -> int:
        """
        Return the position behind the last unit of the unbroken row that ends the queue.

        With *known*, the row is followed from there, a few units at a time. Without, it is searched in the last file
        that has any: there are units first, then zeros.
        """
        if known is not None:
            return self._follow(max(known, self.start))
        for file in reversed(self.files):
            start = file.base_offset // self.unit_size
            if is_written(self.read(start, start + 1)).all():
                return self._follow(self._search(start, file.end // self.unit_size))
        return self.start

    def _search(self, low: int, high: int) -> int:
        """Return a position in (*low*, *high*] such that the unit before it is written."""
        while high - low > _FIRST_LOOK:
            middle = (low + high) // 2
            if is_written(self.read(middle, middle + 1)).all():
                low = middle
            else:
                high = middle
        return low + 1

    def _follow(self, position: int) -> int:
        look = _FIRST_LOOK
        while position < self.capacity:
            written = is_written(self.read(position, min(position + look, self.capacity)))
            if not written.all():
                return position + int(written.argmin())
            position += written.size
            look = min(look * 4, _LARGEST_LOOK)
        return position


def is_written(units: Units) -> NDArray[np.bool_]:
    """Tell of each unit whether the broker takes it for one when it looks for a queue's end."""
    written: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    return written


def is_gone(units: Units) -> NDArray[np.bool_]:
    """Tell of each unit whether its file was deleted after it was listed."""
    gone: NDArray[np.bool_] = (
        (units["physical_offset"] == GONE) & (units["size"] == GONE) & (units["tags_code"] == GONE)
    )
    return gone


def stored_queues(store: Store) -> list[StoredQueue]:
    """Return the queues that have files, sorted by name."""
    files: dict[QueueName, list[QueueFile]] = {}
    extensions: dict[tuple[str, int], list[QueueFile]] = {}
    for stored in store.queue_files:
        about = stored.about
        file = QueueFile(stored.location, about.base_offset or 0, stored.size)
        if about.kind in KINDS:
            files.setdefault(_name(about), []).append(file)
        else:
            extensions.setdefault((about.topic or "", about.queue_id or 0), []).append(file)
    return [
        StoredQueue(
            name,
            tuple(sorted(files[name], key=lambda file: file.base_offset)),
            store.storage,
            tuple(sorted(extensions.get((name.topic, name.queue_id), ()), key=lambda file: file.base_offset)),
        )
        for name in sorted(files)
    ]


def _name(about: StoreFile) -> QueueName:
    return QueueName(KINDS[about.kind], about.topic or "", about.queue_id or 0)


def file_sizes(store: Store) -> dict[FileKind, int]:
    """Return the size that most files of each kind of queue have."""
    sizes: dict[FileKind, Counter[int]] = {}
    for stored in store.queue_files:
        sizes.setdefault(stored.about.kind, Counter())[stored.size] += 1
    return {kind: max(counter, key=lambda size: (counter[size], size)) for kind, counter in sizes.items()}


def plain_file_size(store: Store, configured: int | None = None) -> int:
    """Return the size of a plain queue's files: as given, as the files are, or the broker's default."""
    return configured or file_sizes(store).get(FileKind.CONSUME_QUEUE) or DEFAULT_FILE_SIZE


def chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [*start*, *stop*), none larger than *size*."""
    for at in range(start, stop, size):
        yield at, min(at + size, stop)


__all__: Sequence[str] = (
    "KINDS",
    "QueueFile",
    "StoredQueue",
    "Units",
    "chunks",
    "file_sizes",
    "is_gone",
    "is_written",
    "plain_file_size",
    "stored_queues",
)
