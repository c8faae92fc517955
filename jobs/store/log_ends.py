"""
The two ends of a log, by queues and index files: whether more is missing there than a broker deletes itself.

Retention deletes a segment, and in the same minute every queue file and index file that leads only to messages before
the new beginning, but for the last one of its kind. Queues of a store that was closed lead to no record after the end.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jobs.store.epochs import promotion_of
from jobs.store.queue_files import StoredQueue, queues_of_files
from jobs.store.record_places import find_record
from jobs.store.store import Store, StoredFile
from rmq_formats.consumequeue.unit import Unit
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import HEADER, decode_header

FARTHEST = 1 << 30  # bytes after the log's end that a unit may lead to and still say something about it


class Outlived(NamedTuple):
    """A file that should have been deleted with the segment it leads to, and the newest offset that it leads to."""

    file: str
    newest_offset: int


class LostStart(NamedTuple):
    """Evidence that a log began earlier, and was not cut by retention."""

    start: int  # of the log, now
    files: tuple[Outlived, ...]

    @property
    def text(self) -> str:
        """The proof in words."""
        count = len(self.files)
        what = f"{self.files[0].file} leads" if count == 1 else f"{count} files, {self.files[0].file} first, lead"
        return f"{what} only to messages before offset {self.start}; a broker deletes such files with the segment"


def lost_start(store: Store) -> LostStart | None:
    """Return evidence that segments before the first one were not deleted by retention; None without any."""
    if not store.segments or not store.start_offset:
        return None
    queues = queues_of_files(store.queue_files, store)
    found = sorted([*_index_files(store), *_queue_files(queues, store.start_offset)])
    return LostStart(store.start_offset, tuple(found)) if found else None


def _index_files(store: Store) -> Iterator[Outlived]:
    """Yield the oldest files that outlived their messages; one after others of messages in the log is another log's."""
    for file in store.index_files[:-1]:
        newest = _newest_of(file, store)
        if newest is None or not 0 < newest < store.start_offset:
            return
        yield Outlived(file.about.path, newest)


def _newest_of(file: StoredFile, store: Store) -> int | None:
    try:
        with store.open(file) as reader:
            return decode_header(bytes(reader.read(0, HEADER.size))).end_physical_offset
    except (FormatError, FileNotFoundError):
        return None


def _queue_files(queues: Iterable[StoredQueue], log_start: int) -> Iterator[Outlived]:
    for queue in queues:
        if len(queue.files) == 1:
            continue
        first = queue.files[0]
        unit = queue.unit(first.end // queue.unit_size - 1)
        is_of_log = isinstance(unit, Unit) and not unit.is_pre_blank
        if is_of_log and unit is not None and 0 <= unit.physical_offset < log_start:
            yield Outlived(f"{queue.name.path}/{first.location.rpartition('/')[2]}", unit.physical_offset)


def has_lost_end(store: Store, newest: int, log_end: int) -> bool:
    """Return whether queues or index files of a closed store lead to *newest*, after the log's end, and nothing is."""
    if not log_end <= newest < log_end + FARTHEST or find_record(store, newest) is not None:
        return False
    promotion = promotion_of(store, log_end)
    return promotion is None or not promotion.explains(newest)
