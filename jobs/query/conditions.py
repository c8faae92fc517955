"""The conditions of queries: a filter of a list, and a key; and whether a message meets them."""

from typing import NamedTuple

from jobs.query.message import Message
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.indexfile.keys import IndexKey, KeyKind, index_keys
from rmq_formats.properties import MAX_LONG, index_key_hash
from rmq_formats.release import Release

MIN_TIME, MAX_TIME = -MAX_LONG - 1, MAX_LONG


class ListConditions(NamedTuple):
    """The filter of a list of messages; None: any."""

    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    body_text: str | None = None  # text that the body contains, byte by byte
    begin: int = MIN_TIME  # ms, both included
    end: int = MAX_TIME
    queue_id: int | None = None  # a queue of the topic

    @property
    def is_search(self) -> bool:
        """Whether the filter has conditions other than topic and time."""
        return (self.key, self.tag, self.body_text) != (None, None, None)

    def matches_except_topic(self, message: Message) -> bool:
        """Return whether a message matches, regardless of its topic."""
        return (
            self.begin <= message.record.store_timestamp <= self.end
            and self.queue_id in {None, message.record.queue_id}
            and (self.tag is None or message.tags == self.tag)
            and (self.key is None or self.key in {*message.keys, message.unique_key})
            and (self.body_text is None or self.body_text.encode() in (message.body_within() or message.record.body))
        )


class KeyQuery(NamedTuple):
    """The messages requested by a key."""

    kind: KeyKind
    topic: str
    key: str
    begin: int = MIN_TIME  # ms, store time
    end: int = MAX_TIME

    def hashed_text(self, release: Release) -> str:
        """Return the text whose hash the index entries of *release* have."""
        is_marked = self.kind is KeyKind.UNIQUE and bool(release.implementation)
        return IndexKey(self.topic, self.key, self.kind, is_marked).text

    def is_kept_by_client(self, message: Message) -> bool:
        """Return whether a client keeps a message of the broker's answer; brokers do not index rollbacks."""
        is_indexed = message.transaction is not TransactionType.ROLLBACK
        return is_indexed and message.topic == self.topic and has_key(message, self.kind, self.key)

    def matches(self, message: Message) -> bool:
        """Return whether a message of the log matches."""
        return self.begin <= message.record.store_timestamp <= self.end and self.is_kept_by_client(message)

    def count_index_entries(self, message: Message) -> int:
        """Return the number of entries of a message in a broker's index; 1 for a tag if tags are not indexed."""
        if self.kind is KeyKind.TAG and not message.release.indexes_tags:
            return 1
        return index_keys(message.record, message.release).count(self.hashed_text(message.release))


def has_key(message: Message, kind: KeyKind, key: str) -> bool:
    """Return whether a message has *key* as a key of this kind."""
    if kind is KeyKind.UNIQUE:
        return message.unique_key == key
    return message.tags == key if kind is KeyKind.TAG else key in message.keys


def count_entries_with_hash(message: Message, key_hash: int) -> int:
    """Return the number of a message's entries with a hash in a broker's index, for all of its keys."""
    return sum(index_key_hash(key) == key_hash for key in index_keys(message.record, message.release))
