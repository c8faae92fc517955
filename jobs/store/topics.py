"""
Decides whether the broker has deleted a topic of which the log has messages, or has lost the topic's queues.

`deleteTopic` removes the topic's entry in `config/topics.json` and its queue directories; its messages stay in the log
for as long as their segments exist, and no broker rebuilds their units. That is not damage. A lost queue directory
looks the same. The table of topics distinguishes the two if it exists and is newer than the messages: each change of it
has a time (`dataVersion`), and its backup is the table before the last change. A lake may have recorded earlier
versions of the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, unique
from typing import NamedTuple

from jobs.store.broker_config import (
    BACKUP_SUFFIX,
    CONFIG_DIRECTORY,
    TOPIC_TABLE,
    TOPICS_FILE,
    ConfigTable,
    read_broker_config,
    read_json_config,
    read_rocksdb_config,
)
from jobs.store.store import Store
from rmq_formats.broker_conf import change_counter, change_time, decode_json_config
from rmq_formats.consumequeue.dispatch import ABANDONED_TOPIC, SCHEDULE_TOPIC
from rmq_formats.errors import FormatError, UnsupportedFormat, skip_lost_file

# Topics that brokers of some releases use without an entry in the table.
_SYSTEM = ("rmq_sys_", "RMQ_SYS_", "%LMQ%", SCHEDULE_TOPIC, ABANDONED_TOPIC, "CID_RMQ_SYS_")

_UNKNOWN_SETBACK_MS = 3_600_000  # assumed where the log is not read


def is_system_topic(topic: str) -> bool:
    """Return whether brokers use a topic without an entry in the table of topics."""
    return topic.startswith(_SYSTEM)


@unique
class TopicFate(Enum):
    """The fate of a topic whose messages have no queue."""

    ALIVE = "alive"  # the broker knows it: its queue is lost
    DELETED = "deleted"
    UNDECIDED = "undecided"


class TopicEvidence(NamedTuple):
    """The topics that the broker knows, and the evidence."""

    listed_topics: frozenset[str] | None = None  # None without a table, or if it contradicts the queue directories
    topics_with_queues: frozenset[str] = frozenset()
    changed_ms: int | None = None  # when the table was last changed
    last_absent_ms: Mapping[str, int] = {}  # the last time at which an earlier table lacked a topic
    is_recorded: bool = False  # the table comes from the lake, and the broker may have changed its own table since
    lake_note: str = ""  # added if a lake does not help either
    doubt_reason: str = ""  # why the table does not show which topics were deleted
    unsupported_reason: str = ""  # why the table cannot be read here, although a broker could
    database_error: FormatError | None = None  # the damage of the database that has the table
    clock_setback_ms: int | None = None  # by how much the broker's clock was set back; None: the log was not read

    def fate(self, topic: str, newest_ms: int) -> TopicFate:
        """Return the fate of a topic whose messages, the newest stored at *newest_ms*, have no queue."""
        if topic in self.topics_with_queues or is_system_topic(topic):
            return TopicFate.ALIVE
        if self.listed_topics is None:
            return TopicFate.UNDECIDED
        if topic in self.listed_topics:
            return TopicFate.DELETED if self._was_absent_after(topic, newest_ms) else TopicFate.ALIVE
        # The topic existed when its newest message was stored. An older table may not have it yet.
        is_newer = self.changed_ms is not None and self.changed_ms >= newest_ms
        return TopicFate.DELETED if is_newer else TopicFate.UNDECIDED

    def fate_of_earlier(self, topic: str, newest_ms: int) -> TopicFate:
        """
        Return the fate of a topic's messages from before its queues restarted at 0.

        The newest of them was stored at *newest_ms*: a table without a later change shows no deletion.
        """
        if is_system_topic(topic):
            return TopicFate.ALIVE
        if self.listed_topics is None or topic not in self.listed_topics or self.changed_ms is None:
            return TopicFate.UNDECIDED
        # After a setback of the clock, a later change of the table may have an earlier time.
        setback_ms = _UNKNOWN_SETBACK_MS if self.clock_setback_ms is None else self.clock_setback_ms
        if self.changed_ms < newest_ms - setback_ms:
            return TopicFate.UNDECIDED if self.is_recorded else TopicFate.ALIVE
        return TopicFate.DELETED if self._was_absent_after(topic, newest_ms) else TopicFate.UNDECIDED

    def _was_absent_after(self, topic: str, newest_ms: int) -> bool:
        """Return whether a table lacked the topic after its messages up to *newest_ms*, and not before them."""
        return self.last_absent_ms.get(topic, -1) >= newest_ms + (self.clock_setback_ms or 0)

    def explain_undecided(self, topic: str) -> str:
        """Return why it is undecided whether a topic was deleted."""
        if self.listed_topics is None:
            reason = self.doubt_reason
        elif self.changed_ms is None:
            reason = "the topic table does not state when it was changed"
        elif topic in self.listed_topics:
            was = "may have been" if self.clock_setback_ms else "was"
            reason = (
                f"the topic table {was} changed after these messages were stored, and does not show which topics "
                "changed"
            )
        else:
            reason = "the topic table is older than the newest of these messages"
        return reason + self.lake_note


def find_newest_time_by_topic(queues: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return when the newest message of each topic was stored, given that of each queue with its topic."""
    newest: dict[str, int] = {}
    for topic, newest_ms in queues:
        newest[topic] = max(newest_ms, newest.get(topic, newest_ms))
    return newest


def list_known_topics(store: Store) -> frozenset[str]:
    """Return the topics that the broker's configuration lists or that have queues; the log may have others."""
    found = {file.path_facts.topic for file in store.queue_files if file.path_facts.topic}
    with skip_lost_file():  # an unreadable configuration file is reported when its own table is written
        found |= read_broker_config(store).topics.keys()
    return frozenset(found)


class RecordedTopics(NamedTuple):
    """An earlier table of topics."""

    topics: frozenset[str]
    changed_ms: int | None  # when the table was changed
    counter: int = 0  # the number of changes; 0 if the table does not count them

    def is_derived_from(self, recorded: "RecordedTopics") -> bool:
        """Return whether a broker derived this table from a *recorded* one: it is neither an old copy nor recreated."""
        is_later = (self.changed_ms or 0) > (recorded.changed_ms or 0)
        return self == recorded or (is_later and (not self.counter or self.counter >= recorded.counter))


def recorded_topics_in(versions: Iterable[bytes]) -> tuple[RecordedTopics, ...]:
    """Return the tables in versions of `config/topics.json` that have a time of change."""
    found = []
    for data in versions:
        with suppress(FormatError):  # truncated while a run read it
            found.append(_table_of(decode_json_config(data)))
    return tuple(table for table in found if table is not None and table.changed_ms is not None)


def collect_topic_evidence(store: Store, recorded: Sequence[RecordedTopics] | None = None) -> TopicEvidence:
    """
    Return the broker's table of topics; an old copy, which lacks topics that have queues, is not used.

    *recorded* are a lake's tables, the newest last: the newest replaces a table that is lost, outdated or recreated.
    """
    with_queues = frozenset(file.path_facts.topic for file in store.queue_files if file.path_facts.topic)
    try:
        stored = read_rocksdb_config(store, ConfigTable.TOPICS)
    except UnsupportedFormat as error:
        return TopicEvidence(None, with_queues, doubt_reason=error.reason, unsupported_reason=error.reason)
    except FormatError as error:
        doubt = f"the topic table cannot be read: {error.reason}"
        return TopicEvidence(None, with_queues, doubt_reason=doubt, database_error=error)
    config = read_json_config(store, TOPICS_FILE)
    table, newest = _table_of(config), recorded[-1] if recorded else None
    if stored is not None and stored.rows and stored.overrides_json_file(config):
        table, newest = RecordedTopics(frozenset(stored.rows), stored.changed_ms), None  # a lake records files alone
    is_recorded = newest is not None and (table is None or not table.is_derived_from(newest))
    if newest is not None and is_recorded:
        is_begun_anew = table is not None and (table.changed_ms or 0) > (newest.changed_ms or 0)
        table = newest._replace(topics=newest.topics | table.topics) if table is not None and is_begun_anew else newest
    asked = "" if recorded is None else ", and no topic table in the lake shows whether the topic was deleted"
    if table is None:
        path = f"{CONFIG_DIRECTORY}/{TOPICS_FILE}"
        doubt = f"{path} cannot be read" if store.other_file(path) else f"{path} is missing"
        return TopicEvidence(None, with_queues, lake_note=asked, doubt_reason=doubt)
    unlisted = sorted(topic for topic in with_queues - table.topics if not is_system_topic(topic))
    if unlisted:
        doubt = f"the topic table is incomplete: it lacks {unlisted[0]!r}, which has queues"
        return TopicEvidence(None, with_queues, lake_note=asked, doubt_reason=doubt)
    absent: dict[str, int] = {}
    backup = _table_of(read_json_config(store, TOPICS_FILE + BACKUP_SUFFIX))
    for before in (*(recorded or ()), *([backup] if backup else ())):
        lacking = table.topics - before.topics
        absent |= {topic: max(before.changed_ms or 0, absent.get(topic, 0)) for topic in lacking}
    return TopicEvidence(table.topics, with_queues, table.changed_ms, absent, is_recorded, asked)


def _table_of(config: Mapping[str, object] | None) -> RecordedTopics | None:
    values = config or {}
    table = values.get(TOPIC_TABLE)
    if not isinstance(table, dict) or not table:
        return None
    return RecordedTopics(frozenset(table), change_time(values), change_counter(values))
