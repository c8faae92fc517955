"""The conditions of questions: messages under a key, and the messages of a list."""

from typing import NamedTuple

from jobs.query.message import Message
from rmq_formats.flags import TransactionType
from rmq_formats.hashing import MAX_LONG, index_key_hash
from rmq_formats.indexfile.keys import KeyKind, index_keys, key_text, tag_text

MIN_TIME = 0
MAX_TIME = MAX_LONG


class Wanted(NamedTuple):
    """The messages that a list shows; None: any."""

    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    words: str | None = None  # that the body holds, byte by byte
    begin: int = MIN_TIME  # ms, both included
    end: int = MAX_TIME
    queue_id: int | None = None  # of the topic

    @property
    def is_search(self) -> bool:
        """Whether a condition other than topic and time limits the list."""
        return (self.key, self.tag, self.words) != (None, None, None)

    def takes(self, message: Message) -> bool:
        """Return whether a message is wanted, whichever topic it has."""
        if not self.begin <= message.record.store_timestamp <= self.end:
            return False
        if self.queue_id not in {None, message.record.queue_id}:
            return False
        if self.tag is not None and message.tags != self.tag:
            return False
        if self.key is not None and self.key not in {*message.keys, message.unique_key}:
            return False
        return self.words is None or self.words.encode() in (message.body_within() or message.record.body)


class KeyWanted(NamedTuple):
    """The messages that are asked for by a key."""

    kind: KeyKind
    topic: str
    key: str
    begin: int = MIN_TIME  # ms, store time
    end: int = MAX_TIME

    @property
    def text(self) -> str:
        """The text that index entries have the hash of."""
        of_kind = tag_text if self.kind is KeyKind.TAG else key_text
        return of_kind(self.topic, self.key)

    def has_key(self, message: Message) -> bool:
        """
        Return whether a client keeps a message of the broker's answer, whenever it was stored: entries have own times.

        No broker indexes a rollback.
        """
        is_indexed = message.transaction is not TransactionType.ROLLBACK
        return is_indexed and message.topic == self.topic and says(message, self.kind, self.key)

    def takes(self, message: Message) -> bool:
        """Return whether a message of the log is asked for."""
        return self.begin <= message.record.store_timestamp <= self.end and self.has_key(message)

    def times_indexed(self, message: Message) -> int:
        """Return the number of entries for a message in a broker's index; 1 for a tag where none is indexed."""
        if self.kind is KeyKind.TAG and not message.release.indexes_tags:
            return 1
        return index_keys(message.record, message.release).count(self.text)


def says(message: Message, kind: KeyKind, key: str) -> bool:
    """Return whether a message has *key* as a key of that kind."""
    if kind is KeyKind.UNIQUE:
        return message.unique_key == key
    return message.tags == key if kind is KeyKind.TAG else key in message.keys


def entries_under(message: Message, key_hash: int) -> int:
    """Return the number of entries for a message under a hash in a broker's index, whichever keys they are of."""
    return sum(index_key_hash(key) == key_hash for key in index_keys(message.record, message.release))
