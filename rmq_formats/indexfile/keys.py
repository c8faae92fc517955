"""
The keys under which a broker indexes a message: its UNIQ_KEY, the words of its KEYS, and from 5.4.0 its TAGS.

The hashed text is `topic#key`, or `topic#T#tags`. The topic is the stored one: a delayed or half message is indexed
under the system topic in which it is stored.
"""

from enum import StrEnum, unique
from typing import NamedTuple

from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import KEYS, TAGS, UNIQ_KEY, parse_properties, split_keys
from rmq_formats.release import Release

TOPIC_SEPARATOR = "#"
TAG_MARK = "T"
UNIQUE_MARK = "U"


@unique
class KeyKind(StrEnum):
    """The property from which a key comes."""

    UNIQUE = "unique"
    KEY = "key"
    TAG = "tag"


class IndexKey(NamedTuple):
    """One key of a message."""

    topic: str
    key: str
    kind: KeyKind
    is_marked: bool = False  # whether its text marks it as a unique key, as rocketmq-rust does

    @property
    def text(self) -> str:
        """The text that is hashed."""
        if self.kind is KeyKind.TAG:
            return tag_text(self.topic, self.key)
        return key_text(self.topic, f"{UNIQUE_MARK}{TOPIC_SEPARATOR}{self.key}" if self.is_marked else self.key)


def key_text(topic: str, key: str) -> str:
    """Return the text that is hashed for a key or a unique key."""
    return f"{topic}{TOPIC_SEPARATOR}{key}"


def tag_text(topic: str, tags: str) -> str:
    """Return the text that is hashed for the full TAGS property (5.4.0+)."""
    return f"{topic}{TOPIC_SEPARATOR}{TAG_MARK}{TOPIC_SEPARATOR}{tags}"


def typed_index_keys(record: MessageRecord, release: Release) -> list[IndexKey]:
    """Return the keys of *record* in the order in which *release* writes them; duplicates in KEYS are kept."""
    # A rollback is the only record that IndexService#buildIndex leaves out; PREPARED is indexed in every release.
    if transaction_type(record.sys_flag) is TransactionType.ROLLBACK:
        return []
    properties = parse_properties(record.properties_raw, release.property_parser)
    topic = record.topic
    keys = [IndexKey(topic, key, KeyKind.KEY) for key in split_keys(properties.get(KEYS, ""))]
    if UNIQ_KEY in properties:
        keys.insert(0, IndexKey(topic, properties[UNIQ_KEY], KeyKind.UNIQUE, bool(release.implementation)))
    if release.indexes_tags and properties.get(TAGS):
        keys.append(IndexKey(topic, properties[TAGS], KeyKind.TAG))
    return keys


def index_keys(record: MessageRecord, release: Release) -> list[str]:
    """Return the texts that *release* hashes for *record*, in the order in which it indexes them."""
    return [key.text for key in typed_index_keys(record, release)]
