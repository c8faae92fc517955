"""
The compacted logs of a store: of each queue of a topic with cleanup.policy=COMPACTION a log of its own, and its units.

A file of such a log and the file of its units have one name, the offset that the log's begins at.
"""

from itertools import groupby
from typing import NamedTuple

from jobs.store.queue_files import QueueFile, StoredQueue
from jobs.store.store import Segment, Store, StoredFile
from rmq_formats.consumequeue.unit import QueueKind, QueueName
from rmq_formats.store import FileKind


class CompactedFile(NamedTuple):
    """A file of a queue's compacted log, and that of its units; a whole store has both or none."""

    topic: str
    queue_id: int
    name: str
    log: StoredFile | None
    units: StoredFile | None

    def store(self, store: Store) -> Store:
        """Return the log's file as a store of one segment: zeros may end each file, not the newest alone."""
        if self.log is None:
            return Store(store.root, storage=store.storage)
        base = self.log.about.base_offset or 0
        segment = Segment(self.log.location, base, self.log.size, base + self.log.size)
        return Store(store.root, (segment,), storage=store.storage)

    def queue(self, store: Store) -> StoredQueue:
        """Return its units as a queue that begins here; they are not numbered, each says which message it is of."""
        files = () if self.units is None else (QueueFile(self.units.location, 0, self.units.size),)
        return StoredQueue(QueueName(QueueKind.BATCH, self.topic, self.queue_id), files, store.storage)


def compacted_queues(store: Store) -> list[list[CompactedFile]]:
    """Return the files of each queue that has a compacted log, in their order."""
    logs, units = (
        {_place(file): file for file in store.of_kind(kind)}
        for kind in (FileKind.COMPACTION_LOG, FileKind.COMPACTION_QUEUE)
    )
    places = sorted({*logs, *units})
    files = [CompactedFile(*place, logs.get(place), units.get(place)) for place in places]
    return [list(group) for _, group in groupby(files, key=lambda file: (file.topic, file.queue_id))]


def _place(file: StoredFile) -> tuple[str, int, str]:
    *_, topic, queue_id, name = file.about.path.split("/")
    return topic, int(queue_id), name
