"""
Which topics of a log the broker has deleted.

`deleteTopic` removes the topic's entry in `config/topics.json` and its queue folders; its messages stay in the log for
as long as their segments live, and no broker makes their units again. That is no damage.
"""

from typing import NamedTuple

from jobs.store.broker_config import broker_config
from jobs.store.config_files import TOPIC_TABLE, TOPICS_FILE, read_config
from jobs.store.store import Store
from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC

# Topics that brokers of some releases use without an entry in the table.
_SYSTEM = ("rmq_sys_", "RMQ_SYS_", "%LMQ%", SCHEDULE_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC", "CID_RMQ_SYS_")


class TopicTable(NamedTuple):
    """The topics that the broker knows; None where there is no table, or one that contradicts the queue folders."""

    listed: frozenset[str] | None = None
    with_queues: frozenset[str] = frozenset()

    def is_deleted(self, topic: str) -> bool:
        """Return whether the broker has deleted a topic that the log has messages of."""
        if self.listed is None or topic.startswith(_SYSTEM):
            return False
        return topic not in self.listed and topic not in self.with_queues


def known_topics(store: Store) -> frozenset[str]:
    """Return the topics that the broker's configuration lists or that have queues; the log may have others."""
    table = (read_config(store, TOPICS_FILE) or {}).get(TOPIC_TABLE)
    with_queues = frozenset(file.about.topic for file in store.queue_files if file.about.topic)
    return with_queues.union(broker_config(store).topics, table if isinstance(table, dict) else ())


def topic_table(store: Store) -> TopicTable:
    """Return the broker's table of topics; an old copy of it, which lacks topics that have queues, says nothing."""
    table = (read_config(store, TOPICS_FILE) or {}).get(TOPIC_TABLE)
    with_queues = frozenset(file.about.topic for file in store.queue_files if file.about.topic)
    if not isinstance(table, dict) or not table:
        return TopicTable(None, with_queues)
    listed = frozenset(table)
    is_old = any(topic not in listed and not topic.startswith(_SYSTEM) for topic in with_queues)
    return TopicTable(None if is_old else listed, with_queues)
