"""
Which of a store's queue files are right, and which are lost: `rebuild-consumequeue --lost-only`.

All queues are rebuilt, and each file is compared with the store's own. What is the same stays; what differs stays, too,
where the comparison with the log has nothing against it (units of deleted messages, leftovers after the queue's end). A
file in which nothing is of this log stops everything.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.join import Joined, join
from jobs.products.queues.settings import QueueSettings
from jobs.products.queues.topics import topic_table
from jobs.rebuild.queues import EXTENSION, BuiltFile, BuiltQueue
from jobs.store.epochs import promotion_of
from jobs.store.queue_files import keeps_light_in_rocksdb
from jobs.store.store import Store, StoredFile
from jobs.store.workers import Workers
from rmq_formats.consumequeue.build import UNITS
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.store import name_of_offset

# What is no fault of a queue's file: its record is lost in the log, or its topic was deleted.
_NOT_OF_THE_FILE = frozenset(
    {
        DifferenceKind.LOST_RECORD,
        DifferenceKind.DAMAGED_RECORD,
        DifferenceKind.DELETED_TOPIC,
    }
)


@dataclass(slots=True)
class LostQueues:
    """The selected files; those that are not needed are deleted from the output."""

    queues: list[BuiltQueue] = field(default_factory=list)  # with the files that are to be installed only
    kept: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    equal: int = 0
    doubtful: list[str] = field(default_factory=list)  # queues that would lose units, were they made again
    has_lost_end: bool = False  # last units lead to records after the end of the log of a store that was closed

    @property
    def proof(self) -> str:
        """The proof that the rebuilt files are right."""
        if not self.equal:
            return "not proven: no file of the store was rebuilt and equal"
        return f"{self.equal} files of the store were rebuilt and are equal, byte for byte"


def select_lost(
    workers: Workers, store: Store, settings: QueueSettings, built: Sequence[BuiltQueue], out: Path
) -> LostQueues:
    """Return which of the *built* files the store needs, and delete the others."""
    joined = join(workers, store, settings.rules)
    wrong = _wrong_files(joined, settings)
    topics = topic_table(store)
    has_light_files = not keeps_light_in_rocksdb(store, joined.queues)
    real = {path_in_output(file.about.path): file for file in store.queue_files}
    selected = LostQueues(has_lost_end=_has_lost_end(store, joined))
    for queue in built:
        is_file = has_light_files or not queue.name.topic.startswith(LMQ_PREFIX)
        if topics.is_deleted(queue.name.topic) or not is_file:
            _delete(out, queue.files)
            continue
        needed = [
            file for file in queue.files if _is_needed(file, queue, real.get(file.path), wrong, store, out, selected)
        ]
        if any(_is_extension(file) for file in queue.files) and needed:
            needed = list(queue.files)  # units name addresses in the extension: both are of one make
            replaced = [file.path for file in queue.files if file.path in real]
            selected.replaced += [path for path in replaced if path not in selected.replaced]
            selected.kept = [path for path in selected.kept if path not in set(replaced)]
        if any(file.path in selected.replaced for file in needed) and _loses_units(queue, joined):
            selected.doubtful.append(queue.name.path)
        _delete(out, (file for file in queue.files if file not in needed))
        if needed:
            selected.queues.append(replace(queue, files=needed))
    if selected.contradictions:
        for queue in selected.queues:
            _delete(out, queue.files)
        selected.queues = []
    return selected


def spare_doubtful(lost: LostQueues, out: Path) -> None:
    """Leave queues as they are that would lose units: delete their files from the output."""
    for queue in [queue for queue in lost.queues if queue.name.path in lost.doubtful]:
        _delete(out, queue.files)
        lost.queues.remove(queue)
        of_queue = {file.path for file in queue.files}
        lost.replaced = [path for path in lost.replaced if path not in of_queue]


def _loses_units(queue: BuiltQueue, joined: Joined) -> bool:
    """
    Return whether the store's own queue has units in their places that the queue made again has not.

    Then a bit of a record may have changed that no checksum covers: its topic, its queue, its queue offset.
    """
    own = [difference for difference in joined.differences if difference.queue == queue.name]
    misplaced = sum(one.times for one in own if one.kind is DifferenceKind.MISPLACED)
    end = queue.first_queue_offset + queue.units + queue.blanks
    return queue.misplaced > misplaced or any(one.kind is DifferenceKind.FOREIGN and one.position >= end for one in own)


def path_in_output(path: str) -> str:
    """Return the path of a store's queue file in the output: plain queues lie there without their folder."""
    return path.removeprefix(f"{QueueKind.PLAIN}/")


def _wrong_files(joined: Joined, settings: QueueSettings) -> set[str]:
    """Return the files, by their paths in the output, that the comparison with the log has something against."""
    found = set()
    for difference in joined.differences:
        if difference.kind in _NOT_OF_THE_FILE or _leads_beyond(difference, joined):
            continue  # the log has lost what the unit leads to
        name = difference.queue
        size, unit = settings.file_sizes[name.kind], name.kind.layout.size
        first, last = (at * unit // size for at in (difference.position, difference.position + difference.times - 1))
        found |= {f"{path_in_output(name.path)}/{name_of_offset(n * size)}" for n in range(first, last + 1)}
    return found


def _has_lost_end(store: Store, joined: Joined) -> bool:
    """Return whether last units lead to records that the log has lost, and that no promotion took back."""
    offsets = [difference.log_offset for difference in joined.differences if _leads_beyond(difference, joined)]
    promotion = promotion_of(store, joined.log_end) if offsets else None
    return any(promotion is None or not promotion.explains(offset) for offset in offsets)


def _leads_beyond(difference: Difference, joined: Joined) -> bool:
    """Return whether the difference is at the queue's end and points after the log's end."""
    is_last = difference.position + difference.times >= joined.ends[difference.queue]
    return difference.kind is DifferenceKind.BEHIND_LOG and is_last


def _is_needed(  # noqa: PLR0913, PLR0917 - what decides
    file: BuiltFile,
    queue: BuiltQueue,
    real: StoredFile | None,
    wrong: set[str],
    store: Store,
    out: Path,
    selected: LostQueues,
) -> bool:
    """Return whether a built file is needed, and note whether the store's own is kept, replaced or a contradiction."""
    if real is None:
        return True
    if real.size == file.size:
        content, own = (out / file.path).read_bytes(), _content(real, store)
        if content == own:
            selected.equal += 1
            selected.kept.append(file.path)
            return False
        if file.path not in wrong or _is_extension(file):
            selected.kept.append(file.path)
            return False
        if not _has_common_units(queue.name, content, own):
            selected.contradictions.append(file.path)
            return False
    selected.replaced.append(file.path)
    return True


def _content(file: StoredFile, store: Store) -> bytes:
    with store.open(file) as reader:
        return bytes(reader.read(0, file.size))


def _has_common_units(name: QueueName, built: bytes, own: bytes) -> bool:
    """Return whether any unit of the store's own file is of this log; one that holds nothing contradicts nothing."""
    units, stored = (
        np.frombuffer(data, UNITS[name.kind], len(data) // UNITS[name.kind].itemsize) for data in (built, own)
    )
    offsets = units["physical_offset"][units["tags_code"] != 0]
    written = stored[stored["physical_offset"] > 0]
    return not written.size or bool(np.isin(written["physical_offset"], offsets).any())


def _is_extension(file: BuiltFile) -> bool:
    return file.path.startswith(f"{EXTENSION}/")


def _delete(out: Path, files: Iterable[BuiltFile]) -> None:
    for file in files:
        path = out / file.path
        path.unlink(missing_ok=True)
        for folder in _folders(path, out):
            if any(folder.iterdir()):
                break
            folder.rmdir()


def _folders(path: Path, out: Path) -> Iterator[Path]:
    yield from (folder for folder in path.parents if folder.is_relative_to(out) and folder != out)
