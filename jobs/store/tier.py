"""
The tier that a broker copies messages to: for each queue a log of its own, and its units; and an index.

Records have the offset that they have there, so each queue is a small store: segments of any size, each beginning where
the one before it ends, and files of units.
"""

from collections.abc import Mapping
from typing import NamedTuple

from jobs.storage import AnyStorage
from jobs.storage.local import Care
from jobs.storage.locations import normalise
from jobs.store.store import Segment, Store, StoredFile, files_below, segments_of
from rmq_formats.store import FileKind, first_offset

_INDEX_FOLDER = "/rmq_sys_INDEX/0/INDEX"  # below a broker's place: it looks like a queue of a topic


class TierQueue(NamedTuple):
    """One queue of a tier."""

    place: str  # folder of its broker in the tier: a cluster's, then a broker's
    topic: str
    queue_id: int
    store: Store  # its log and its units

    @property
    def broker(self) -> str:
        """The name of the broker that copies to it."""
        return self.place.rpartition("/")[2]


class Tier(NamedTuple):
    """Everything that brokers have copied to one place."""

    root: str
    queues: list[TierQueue]
    index_files: dict[str, tuple[Segment, ...]]  # the index files of each broker, by its place
    storage: AnyStorage


def list_tier(root: str, options: Mapping[str, str], care: Care | None = None) -> Tier:
    """Return the tier at *root*, of all brokers that have one there."""
    storage = AnyStorage(dict(options), care)
    root = normalise(root)
    logs: dict[str, list[StoredFile]] = {}
    units: dict[str, list[StoredFile]] = {}
    index: dict[str, list[StoredFile]] = {}
    for file in files_below(root, storage):
        folder, _, name = file.about.path.rpartition("/")
        place, _, _ = folder.rpartition("/")
        about = file.about._replace(base_offset=first_offset(name))
        if file.about.kind is FileKind.TIERED_LOG:
            logs.setdefault(place, []).append(file._replace(about=about))
        elif file.about.kind is FileKind.TIERED_QUEUE:
            units.setdefault(place, []).append(file._replace(about=about._replace(kind=FileKind.CONSUME_QUEUE)))
        elif about.base_offset is not None and folder.endswith(_INDEX_FOLDER):
            index.setdefault(folder.removesuffix(_INDEX_FOLDER), []).append(file._replace(about=about))
    places = sorted({*logs, *units})
    return Tier(
        root,
        [_queue(root, place, storage, logs.get(place, []), units.get(place, [])) for place in places],
        {place: segments_of(files) for place, files in index.items()},
        storage,
    )


def _queue(root: str, place: str, storage: AnyStorage, log: list[StoredFile], units: list[StoredFile]) -> TierQueue:
    folder, _, number = place.rpartition("/")
    folder, _, topic = folder.rpartition("/")
    queue_id = int(number) if number.isascii() and number.isdecimal() else -1
    named = [file._replace(about=file.about._replace(topic=topic, queue_id=queue_id)) for file in units]
    return TierQueue(folder, topic, queue_id, Store(root, segments_of(log), tuple(named), storage=storage))
