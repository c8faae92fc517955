"""
How a broker writes an index file: one put after the other. The readable truth that the compiled build is held to.

Two details decide bytes unexpectedly: a new file begins with the end of the previous one as its begin, so
that its first entry counts seconds from there; and the roll comes before any look at the message, so that a message
without keys may create a file.

The keys under which a broker indexes a message: its UNIQ_KEY, the words of its KEYS, and from 5.4.0 its TAGS. What is
hashed is one text for each: `topic#key`, and `topic#T#tags`. The topic is the stored one: a delayed or half message is
found under the system topic that it waits in.
"""

from enum import StrEnum, unique
from typing import NamedTuple, Self

from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader, decode_header
from rmq_formats.layout import Buffer
from rmq_formats.properties import KEYS, TAGS, UNIQ_KEY, java_long, parse_properties, split_keys
from rmq_formats.release import HashSlotCount, Release

MAX_INT = (1 << 31) - 1


def time_diff_s(begin_timestamp: int, store_timestamp: int) -> int:
    """Return the seconds that an entry stores, in Java's integers: wrapped, truncated toward zero, then clamped."""
    if begin_timestamp <= 0:
        return 0
    return min(max(java_long(store_timestamp - begin_timestamp), 0) // 1000, MAX_INT)


class IndexFile:
    """One file, in memory."""

    def __init__(self, geometry: Geometry, data: bytearray, header: IndexHeader) -> None:
        """Take *data* as the mapping and *header* as what the broker knows; see `created` and `loaded`."""
        self.geometry = geometry
        self.header = header
        self._data = data

    @classmethod
    def created(cls, geometry: Geometry, previous: IndexHeader | None = None) -> Self:
        """Return a new file after one whose header is *previous*."""
        file = cls(geometry, bytearray(geometry.file_size), IndexHeader(index_count=1))
        # IndexFile's constructor: values that are not positive are not handed on.
        offset = max(previous.end_physical_offset, 0) if previous else 0
        timestamp = max(previous.end_timestamp, 0) if previous else 0
        file.header = IndexHeader(timestamp, timestamp, offset, offset, 0, 1)
        HEADER.struct.pack_into(file._data, 0, *file.header._replace(index_count=0))
        return file

    @classmethod
    def loaded(cls, geometry: Geometry, data: Buffer) -> Self:
        """Return a file as a starting broker maps it: shorter ones are filled with zeros, longer ones cut."""
        content = bytearray(memoryview(data)[: geometry.file_size])
        content.extend(bytes(geometry.file_size - len(content)))
        header = decode_header(content)
        return cls(geometry, content, header._replace(index_count=max(header.index_count, 1)))

    @property
    def is_full(self) -> bool:
        """Whether a put would be refused."""
        return self.header.index_count >= self.geometry.index_num

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put."""
        return self.header.index_count <= 1

    def put(self, key_hash: int, physical_offset: int, store_timestamp: int, counting: HashSlotCount) -> bool:
        """Put one key as `IndexFile#putKey` does; False when the file is full."""
        if self.is_full:
            return False
        header = self.header
        number = header.index_count
        slot_at = self.geometry.slot_position(self.geometry.slot_of(key_hash))
        (previous,) = map(int, SLOT.unpack(self._data, slot_at))
        # The broker accepts the number of the entry that it is about to write; it takes a damaged file for that.
        if previous <= 0 or previous > number:
            previous = 0
        diff = time_diff_s(header.begin_timestamp, store_timestamp)
        ENTRY.struct.pack_into(
            self._data, self.geometry.entry_position(number), key_hash, physical_offset, diff, previous
        )
        SLOT.struct.pack_into(self._data, slot_at, number)
        is_first = number <= 1
        counts = counting is HashSlotCount.EVERY_PUT or previous == 0
        self.header = IndexHeader(
            begin_timestamp=store_timestamp if is_first else header.begin_timestamp,
            end_timestamp=store_timestamp,
            begin_physical_offset=physical_offset if is_first else header.begin_physical_offset,
            end_physical_offset=physical_offset,
            hash_slot_count=header.hash_slot_count + counts,
            index_count=number + 1,
        )
        HEADER.struct.pack_into(self._data, 0, *self.header)
        return True

    def encode(self, empty_index_count: int | None = None) -> bytes:
        """Return the file's bytes; a clean stop leaves *empty_index_count* in a file without entries."""
        data = bytes(self._data)
        if not self.is_empty or empty_index_count is None:
            return data
        return HEADER.pack(*self.header._replace(index_count=empty_index_count)) + data[HEADER.size :]


TOPIC_SEPARATOR = "#"
TAG_MARK = "T"


@unique
class KeyKind(StrEnum):
    """Which property a key comes from."""

    UNIQUE = "unique"
    KEY = "key"
    TAG = "tag"


class IndexKey(NamedTuple):
    """One key of a message."""

    topic: str
    key: str
    kind: KeyKind

    @property
    def text(self) -> str:
        """The text that is hashed."""
        return tag_text(self.topic, self.key) if self.kind is KeyKind.TAG else key_text(self.topic, self.key)


def key_text(topic: str, key: str) -> str:
    """Return the text that is hashed for a key or a unique key."""
    return f"{topic}{TOPIC_SEPARATOR}{key}"


def tag_text(topic: str, tags: str) -> str:
    """Return the text that is hashed for the full TAGS property (5.4.0+)."""
    return f"{topic}{TOPIC_SEPARATOR}{TAG_MARK}{TOPIC_SEPARATOR}{tags}"


def typed_index_keys(record: MessageRecord, release: Release) -> list[IndexKey]:
    """Return the keys of *record* in the order in which *release* puts them; duplicates in KEYS stay."""
    # A rollback is the only record that IndexService#buildIndex leaves out; PREPARED is indexed in every release.
    if transaction_type(record.sys_flag) is TransactionType.ROLLBACK:
        return []
    properties = parse_properties(record.properties_raw, release.property_parser)
    topic = record.topic
    keys = [IndexKey(topic, key, KeyKind.KEY) for key in split_keys(properties.get(KEYS, ""))]
    if UNIQ_KEY in properties:
        keys.insert(0, IndexKey(topic, properties[UNIQ_KEY], KeyKind.UNIQUE))
    if release.indexes_tags and properties.get(TAGS):
        keys.append(IndexKey(topic, properties[TAGS], KeyKind.TAG))
    return keys


def index_keys(record: MessageRecord, release: Release) -> list[str]:
    """Return the texts that *release* hashes for *record*, in the order in which it puts them."""
    return [key.text for key in typed_index_keys(record, release)]
