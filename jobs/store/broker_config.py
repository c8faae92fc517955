"""
A broker's topics, groups, and their progress: from JSON files, or from RocksDB.

After a switch to RocksDB the JSON files are still there. A broker then takes the file only where it counts more changes
than the database does, and so do we.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum, unique
from itertools import chain
from typing import NamedTuple, TypeAlias

from jobs.store.config_files import CONFIG_FOLDER, TOPIC_TABLE, TOPICS_FILE, config_files, objects
from jobs.store.rocksdb_config import OFFSETS, ConfigTable, RocksConfig, rocksdb_config
from jobs.store.store import Store
from rmq_formats.config_json import decode_config
from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC
from rmq_formats.errors import CorruptData, FormatError

_GROUPS_FILE = "subscriptionGroup.json"
_GROUP_TABLE = "subscriptionGroupTable"
CONSUMERS_FILE = "consumerOffset.json"
_LIGHT_FILE = "lmqConsumerOffset.json"
_LIGHT_TABLE = "lmqOffsetTable"
_DELAY_FILE = "delayOffset.json"
_NUMBER = re.compile("-?[0-9]{1,20}")  # of a queue; a longer one is invalid

_Table = Mapping[str, Mapping[str, object]]


@unique
class ReaderKind(StrEnum):
    """The kinds of readers of a queue. The values are in the lake."""

    CONSUMER = "consumer"
    PULL = "pull"
    DELAY = "delay"


class Progress(NamedTuple):
    """How far a reader of a queue is."""

    kind: ReaderKind
    consumer_group: str | None  # None of a delay level, which the broker itself reads
    topic: str
    queue_id: int
    next_offset: int
    place: str  # the file, or the database, below the store's root


QueueOffsets: TypeAlias = "array[int]"
"""Queue ids, each followed by the next offset there: there may be a million, each of which would be two objects."""


def packed(by_queue: Mapping[int, int]) -> QueueOffsets:
    """Return offsets by queues as numbers, by queue ids."""
    return array("q", chain.from_iterable(sorted(by_queue.items())))


def unpacked(offsets: QueueOffsets) -> Iterator[tuple[int, int]]:
    """Yield queue ids and offsets."""
    return zip(offsets[::2], offsets[1::2], strict=True)


class Reader(NamedTuple):
    """How far a reader is in the queues of a topic."""

    kind: ReaderKind
    consumer_group: str | None
    topic: str
    offsets: QueueOffsets
    place: str


class BrokerConfig(NamedTuple):
    """The readable part of a broker's configuration."""

    topics: _Table
    groups: _Table
    readers: tuple[Reader, ...]
    unread: str | None  # why something is missing; None where nothing is

    @property
    def progress(self) -> Iterator[Progress]:
        """Yield each reader's next offset in each queue."""
        for kind, group, topic, offsets, place in self.readers:
            yield from (Progress(kind, group, topic, *one, place) for one in unpacked(offsets))


def broker_config(store: Store) -> BrokerConfig:
    """Return a store's configuration; tables that cannot be read are named, and left out."""
    parts = _Parts(store)
    topics, _ = parts.table(ConfigTable.TOPICS, TOPICS_FILE, TOPIC_TABLE)
    groups, _ = parts.table(ConfigTable.GROUPS, _GROUPS_FILE, _GROUP_TABLE)
    readers = (*parts.consumers(), *parts.light(), *parts.pulls(), *parts.delays())
    return BrokerConfig(topics, groups, readers, parts.unread)


class _Parts:
    """The tables of a store, one after another; remembers the first that cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = {file.name: file.data for file in config_files(store)}
        self.unread: str | None = None

    def table(self, table: ConfigTable, file: str, name: str) -> tuple[_Table, str]:
        config, stored = self._json(file), self._database(table)
        if stored is not None and stored.counts_beside(config):
            return stored.rows, stored.folder
        return dict(objects((config or {}).get(name))), f"{CONFIG_FOLDER}/{file}"

    def consumers(self) -> Iterator[Reader]:
        rows, place = self.table(ConfigTable.CONSUMER_OFFSETS, CONSUMERS_FILE, OFFSETS)
        yield from self._of_groups(ReaderKind.CONSUMER, _by_queue(rows, place), place)

    def light(self) -> Iterator[Reader]:
        """Yield how far consumers of light queues are, which have one queue each."""
        config, place = self._json(_LIGHT_FILE) or {}, f"{CONFIG_FOLDER}/{_LIGHT_FILE}"
        yield from self._of_groups(ReaderKind.CONSUMER, objects(config.get(OFFSETS)), place)
        table = config.get(_LIGHT_TABLE)
        of_one_queue = table.items() if isinstance(table, dict) else ()
        yield from self._of_groups(ReaderKind.CONSUMER, ((name, {"0": offset}) for name, offset in of_one_queue), place)

    def pulls(self) -> Iterator[Reader]:
        """Yield how far consumers have pulled, which only configManagerVersion=v2 keeps."""
        stored = self._database(ConfigTable.PULL_OFFSETS)
        if stored is not None:
            yield from self._of_groups(ReaderKind.PULL, _by_queue(stored.rows, stored.folder), stored.folder)

    def delays(self) -> Iterator[Reader]:
        """Yield how far each level of delayed messages is delivered."""
        table, place = (self._json(_DELAY_FILE) or {}).get(OFFSETS), f"{CONFIG_FOLDER}/{_DELAY_FILE}"
        levels = table.items() if isinstance(table, dict) else ()
        queues = ((int(level) - 1, offset) for level, offset in levels if _NUMBER.fullmatch(level))
        checked = self._checked(((one, offset) for one, offset in queues if one >= 0), f"{place}: {SCHEDULE_TOPIC}")
        yield Reader(ReaderKind.DELAY, None, SCHEDULE_TOPIC, checked, place)

    def _of_groups(
        self, kind: ReaderKind, tables: Iterator[tuple[str, Mapping[str, object]]], place: str
    ) -> Iterator[Reader]:
        for name, offsets in tables:
            topic, _, group = name.partition("@")
            queues = ((int(queue), offset) for queue, offset in offsets.items() if _NUMBER.fullmatch(queue))
            yield Reader(kind, group, topic, self._checked(queues, f"{place}: {name}"), place)

    def _checked(self, queues: Iterable[tuple[int, object]], reader: str) -> QueueOffsets:
        """Return the offsets that a broker could load; note a number that it could not."""
        checked: dict[int, int] = {}
        for queue_id, offset in queues:
            if isinstance(offset, int) and _fits(queue_id, 32) and _fits(offset, 64):
                checked[queue_id] = offset
            elif isinstance(offset, int | float):
                self._note(f"{reader} queue {queue_id} has the offset {offset}, which no broker stores")
        return packed(checked)

    def _json(self, name: str) -> dict[str, object] | None:
        data = self._files.get(name)
        if data is None:
            return None
        try:
            return decode_config(data)
        except CorruptData as error:
            self._note(f"{CONFIG_FOLDER}/{name}: {error}")
            return None

    def _database(self, table: ConfigTable) -> RocksConfig | None:
        try:
            return rocksdb_config(self._store, table)
        except FormatError as error:
            self._note(str(error))
            return None

    def _note(self, why: str) -> None:
        self.unread = self.unread or why


def _fits(number: int, bits: int) -> bool:
    return -1 << bits - 1 <= number < 1 << bits - 1


def _by_queue(rows: _Table, place: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield queue id → offset of each `topic@group`: RocksDB has one level more than the file."""
    if place.endswith(".json"):
        yield from rows.items()
    else:
        for name, row in rows.items():
            yield from objects({name: row.get(OFFSETS)})
