"""
Whether the broker has deleted a topic that the log has messages of, or has lost its queues.

`deleteTopic` removes the topic's entry in `config/topics.json` and its queue folders; its messages stay in the log for
as long as their segments live, and no broker rebuilds their units. That is not damage. A queue folder that is lost
looks the same. The table of topics tells them apart, as far as it is there and newer than the messages: each change of
it has a time (`dataVersion`), and its backup is the table before the last change.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, unique
from typing import NamedTuple

from jobs.store.broker_config import (
    BACKUP,
    CONFIG_FOLDER,
    TOPIC_TABLE,
    TOPICS_FILE,
    ConfigTable,
    broker_config,
    read_json,
    rocksdb_config,
)
from jobs.store.store import Store
from rmq_formats.broker_conf import change_time
from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC
from rmq_formats.errors import FormatError, UnsupportedFormat

# Topics that brokers of some releases use without an entry in the table.
_SYSTEM = ("rmq_sys_", "RMQ_SYS_", "%LMQ%", SCHEDULE_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC", "CID_RMQ_SYS_")


@unique
class Fate(Enum):
    """What became of a topic whose messages have no queue."""

    ALIVE = "alive"  # the broker knows it: its queue is lost
    DELETED = "deleted"
    UNDECIDED = "undecided"


class TopicTable(NamedTuple):
    """The topics that the broker knows, and what says so."""

    listed: frozenset[str] | None = None  # None: no table, or one that contradicts the queue folders
    with_queues: frozenset[str] = frozenset()
    changed_ms: int | None = None  # when the table was last changed
    earlier: frozenset[str] | None = None  # the topics before the last change
    earlier_ms: int | None = None  # when that table was changed
    doubt: str = ""  # why the table does not tell which topics were deleted
    unsupported: str = ""  # why the table cannot be read here, though a broker could

    def fate(self, topic: str, newest_ms: int) -> Fate:
        """Return what became of a topic whose messages, the newest stored at *newest_ms*, have no queue."""
        if topic in self.with_queues or topic.startswith(_SYSTEM):
            return Fate.ALIVE
        if self.listed is None:
            return Fate.UNDECIDED
        if topic in self.listed:
            return Fate.ALIVE
        # The topic was there when its newest message was stored. A table that is older may not have it yet.
        is_newer = self.changed_ms is not None and self.changed_ms >= newest_ms
        return Fate.DELETED if is_newer else Fate.UNDECIDED

    def fate_of_earlier(self, topic: str, newest_ms: int) -> Fate:
        """
        Return what became of a topic's messages before its queues began at 0 once more.

        The newest of them was stored at *newest_ms*: a table that has not changed since knows of no deletion.
        """
        if topic.startswith(_SYSTEM):
            return Fate.ALIVE
        if self.listed is None or topic not in self.listed or self.changed_ms is None:
            return Fate.UNDECIDED
        if self.changed_ms < newest_ms:
            return Fate.ALIVE
        was_absent = self.earlier is not None and topic not in self.earlier and (self.earlier_ms or 0) >= newest_ms
        return Fate.DELETED if was_absent else Fate.UNDECIDED

    def explain(self, topic: str) -> str:
        """Return why it is undecided whether a topic was deleted."""
        if self.listed is None:
            return self.doubt
        if topic in self.listed:
            return "the table of topics was changed after these messages, and does not name the change"
        return "the table of topics is older than the newest of these messages"


def newest_times(queues: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return when the newest message of each topic was stored, given that of each queue with its topic."""
    newest: dict[str, int] = {}
    for topic, newest_ms in queues:
        newest[topic] = max(newest_ms, newest.get(topic, newest_ms))
    return newest


def known_topics(store: Store) -> frozenset[str]:
    """Return the topics that the broker's configuration lists or that have queues; the log may have others."""
    return frozenset(broker_config(store).topics).union(
        file.about.topic for file in store.queue_files if file.about.topic
    )


def topic_table(store: Store) -> TopicTable:
    """Return the broker's table of topics; an old copy of it, which lacks topics that have queues, says nothing."""
    with_queues = frozenset(file.about.topic for file in store.queue_files if file.about.topic)
    try:
        table = _current_table(store)
    except UnsupportedFormat as error:
        return TopicTable(None, with_queues, doubt=error.reason, unsupported=error.reason)
    except FormatError as error:
        return TopicTable(None, with_queues, doubt=f"the table of topics cannot be read: {error.reason}")
    if table is None:
        path = f"{CONFIG_FOLDER}/{TOPICS_FILE}"
        doubt = f"{path} cannot be read" if store.other_file(path) else f"there is no {path}"
        return TopicTable(None, with_queues, doubt=doubt)
    topics, changed_ms = table
    unlisted = sorted(topic for topic in with_queues - topics if not topic.startswith(_SYSTEM))
    if unlisted:
        return TopicTable(None, with_queues, doubt=f"the table of topics lacks {unlisted[0]!r}, which has queues")
    before = _table_of(read_json(store, TOPICS_FILE + BACKUP))
    return TopicTable(topics, with_queues, changed_ms, *(before or ()))


_Table = tuple[frozenset[str], int | None]
"""The topics, and when the table was changed."""


def _current_table(store: Store) -> _Table | None:
    """Return the table that a broker would load; `FormatError` for one in a database that cannot be read."""
    config = read_json(store, TOPICS_FILE)
    stored = rocksdb_config(store, ConfigTable.TOPICS)
    if stored is not None and stored.rows and stored.counts_beside(config):
        return frozenset(stored.rows), stored.changed_ms
    return _table_of(config)


def _table_of(config: Mapping[str, object] | None) -> _Table | None:
    table = (config or {}).get(TOPIC_TABLE)
    return (frozenset(table), change_time(config or {})) if isinstance(table, dict) and table else None
