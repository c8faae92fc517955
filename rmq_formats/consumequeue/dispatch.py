"""
The units that a record adds to queues.

The dispatcher adds one unit for each record to the queue that the record names. Exceptions: prepared and rolled back
records add no unit, a record of a BatchCQ topic adds a batch unit, and with multi-dispatch a record is added to several
queues. Besides offset and size, a unit contains one number, `tags_code`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import NamedTuple

from rmq_formats.commitlog.layout import INNER_BATCH, TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.layout import (
    BATCH_COMPACTED_OFFSET,
    BATCH_UNIT,
    MAX_EXT_ADDRESS,
    MAX_QUEUE_OFFSET,
    PRE_BLANK_SIZE,
    UNIT,
)
from rmq_formats.errors import CorruptData
from rmq_formats.layout import Buffer, Layout
from rmq_formats.properties import (
    DELAY,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    TAGS,
    java_hash,
    parse_java_integer,
    parse_properties,
    wrap_to_java_long,
)
from rmq_formats.release import NEWEST, Release, release_at

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
ABANDONED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that the producer never decided
LMQ_PREFIX = "%LMQ%"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
MULTI_DISPATCH_SEPARATOR = ","
# TopicValidator#SYSTEM_TOPIC_SET, all releases together; topics of retries are the groups' own.
_SYSTEM_TOPICS = frozenset({
    "TBW102", SCHEDULE_TOPIC, "BenchmarkTest", ABANDONED_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
})  # fmt: skip

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # messageDelayLevel
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY_WITHOUT_LEVELS_MS = 1000
_LONGEST_NAME = 255  # bytes, on every file system a broker runs on


@unique
class QueueKind(StrEnum):
    """The kinds of queues with files of units; the values are the names of their directories."""

    PLAIN = "consumequeue"
    BATCH = "batchconsumequeue"

    @property
    def layout(self) -> Layout:
        """The layout of this kind's units."""
        return BATCH_UNIT if self is QueueKind.BATCH else UNIT


class QueueName(NamedTuple):
    """One queue of a store."""

    kind: QueueKind
    topic: str
    queue_id: int

    @property
    def path(self) -> str:
        """The directory of its files, below the store's root."""
        return f"{self.kind}/{self.topic}/{self.queue_id}"

    @property
    def is_safe_path(self) -> bool:
        """Whether the name is a single directory: a record's topic may be any text, such as `../x`."""
        encoded = self.topic.encode("utf-8", "surrogatepass")
        is_name = self.topic not in {"", ".", ".."} and not set(self.topic) & {"/", "\0"}
        return is_name and len(encoded) <= _LONGEST_NAME


class Unit(NamedTuple):
    """One unit of a plain queue."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_written(self) -> bool:
        """Whether the broker accepts the unit when it searches for a queue's end."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_pre_blank(self) -> bool:
        """Whether the unit is before a queue's first message."""
        return self == PRE_BLANK

    @property
    def has_ext_address(self) -> bool:
        """Whether `tags_code` is an address in the extension file."""
        return self.tags_code <= MAX_EXT_ADDRESS


PRE_BLANK = Unit(0, PRE_BLANK_SIZE, 0)


class BatchUnit(NamedTuple):
    """One unit of a BatchConsumeQueue, for a record that contains several messages."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    batch_count: int
    compacted_offset: int = BATCH_COMPACTED_OFFSET
    reserved: int = 0

    @property
    def is_written(self) -> bool:
        """Whether the broker accepts the unit when it searches for a queue's end."""
        return self.physical_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.batch_count > 0


def decode_unit(buffer: Buffer, position: int = 0) -> Unit:
    """Return the unit of a plain queue at *position*."""
    return Unit(*map(int, UNIT.unpack(buffer, position)))


def decode_batch_unit(buffer: Buffer, position: int = 0) -> BatchUnit:
    """Return the unit of a BatchConsumeQueue at *position*."""
    return BatchUnit(*map(int, BATCH_UNIT.unpack(buffer, position)))


@dataclass(frozen=True, slots=True)
class UnitRules:
    """The rules for units that records do not show: the release that wrote them, and the broker's configuration."""

    releases: Sequence[tuple[int, Release]] = ((0, NEWEST),)  # ascending offsets, and the release that wrote after each
    delay_levels: str = DEFAULT_DELAY_LEVELS
    batch_topics: frozenset[str] = frozenset()  # topics with the attribute queue.type=BatchCQ
    multi_dispatch: bool = True  # enableMultiDispatch: a record that lists queue offsets shows that it was on
    lmq: bool = True  # enableLmq
    in_rocksdb: bool = (
        False  # storeType=defaultRocksDB: a batch has a plain unit, and no queue's name has to be a directory
    )

    def release_at(self, physical_offset: int) -> Release:
        """Return the release that wrote the record at *physical_offset*."""
        return release_at(self.releases, physical_offset)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level, starting with level 1."""
        return parse_delay_levels(self.delay_levels)


class ExpectedUnit(NamedTuple):
    """A unit that the dispatcher creates for a record."""

    queue: QueueName
    queue_offset: int  # for a batch unit, the queue offset of its first message
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    batch_count: int = 0  # only for batch units
    is_multi_dispatched: bool = False  # written by multi-dispatch; these units have no extension unit

    @property
    def unit(self) -> Unit | BatchUnit:
        """The unit itself."""
        if self.queue.kind is QueueKind.PLAIN:
            return Unit(self.physical_offset, self.size, self.tags_code)
        return BatchUnit(
            self.physical_offset, self.size, self.tags_code, self.store_timestamp, self.queue_offset, self.batch_count
        )

    @property
    def encoded(self) -> bytes:
        """The unit's bytes."""
        return self.queue.kind.layout.pack(*self.unit)


def logical_offset(queue_offset: int) -> int:
    """Return the logical offset of the unit of *queue_offset*; -1 if no queue is that long."""
    return queue_offset * UNIT.size if abs(queue_offset) <= MAX_QUEUE_OFFSET else -1


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of each level of a `messageDelayLevel` text, starting with level 1."""
    # ScheduleMessageService#parseDelayLevel splits by one space and takes the last character for the time unit.
    delays = []
    for item in text.split(" "):
        number = parse_java_integer(item[:-1])
        if item[-1:] not in _DELAY_UNITS_MS or number is None:
            raise CorruptData(f"messageDelayLevel {text!r}: {item!r} is not a delay such as 10s, 5m, 2h, 1d")
        delays.append(number * _DELAY_UNITS_MS[item[-1]])
    return tuple(delays)


def compute_tags_code(
    topic: str, properties: Mapping[str, str], store_timestamp: int, delays_ms: Sequence[int]
) -> int | None:
    """Return the tags code of a unit; None where the broker refuses the record for its delay."""
    if topic == SCHEDULE_TOPIC and DELAY in properties:
        level = parse_java_integer(properties[DELAY], bits=32)
        if level is None:
            return None
        if level > 0:
            return wrap_to_java_long(store_timestamp + delay_ms(level, delays_ms))
    tags = properties.get(TAGS, "")
    return java_hash(tags) if tags else 0


def delay_ms(level: int, delays_ms: Sequence[int]) -> int:
    """Return the delay of *level*: of the highest level if there are fewer levels, or one second without any."""
    level = min(level, len(delays_ms))
    return delays_ms[level - 1] if level > 0 else _DELAY_WITHOUT_LEVELS_MS


def expected_units(record: MessageRecord, rules: UnitRules) -> Iterator[ExpectedUnit]:
    """Yield the units of *record* in the order in which the dispatcher appends them."""
    if transaction_type(record.sys_flag) in (TransactionType.PREPARED, TransactionType.ROLLBACK):
        return
    release = rules.release_at(record.physical_offset)
    properties = parse_properties(record.properties_raw, release.property_parser)
    topic = record.topic
    code = compute_tags_code(topic, properties, record.store_timestamp, rules.delays_ms)
    if code is None:
        return
    place = (record.physical_offset, record.total_size, code, record.store_timestamp)
    if not rules.in_rocksdb and (topic in rules.batch_topics or record.sys_flag & INNER_BATCH):
        base_offset = parse_java_integer(properties.get(INNER_BASE))
        batch_count = parse_java_integer(properties.get(INNER_NUM), bits=16)
        if base_offset is not None and batch_count is not None and min(base_offset, batch_count) >= 0:
            yield ExpectedUnit(QueueName(QueueKind.BATCH, topic, record.queue_id), base_offset, *place, batch_count)
        return
    yield ExpectedUnit(QueueName(QueueKind.PLAIN, topic, record.queue_id), record.queue_offset, *place)
    is_left_out = release.multi_dispatch_excludes_topics and is_left_out_of_multi_dispatch(topic)
    if rules.multi_dispatch and release.multi_dispatch and not is_left_out:
        for name, queue_offset in multi_dispatch_queues(properties, with_slashes=rules.in_rocksdb):
            queue_id = 0 if rules.lmq and name.startswith(LMQ_PREFIX) else record.queue_id
            queue = QueueName(QueueKind.PLAIN, name, queue_id)
            yield ExpectedUnit(queue, queue_offset, *place, is_multi_dispatched=True)


def is_system_topic(topic: str) -> bool:
    """Return whether a broker made a topic for itself."""
    return topic in _SYSTEM_TOPICS or topic.lower().startswith(SYSTEM_PREFIX)


def is_left_out_of_multi_dispatch(topic: str) -> bool:
    """Return whether records of *topic* appear in no further queue, in releases that leave some topics out."""
    return topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) or topic == SCHEDULE_TOPIC


def multi_dispatch_queues(properties: Mapping[str, str], *, with_slashes: bool = False) -> Iterator[tuple[str, int]]:
    """
    Yield name and queue offset of each additional queue of a record.

    If an offset is not a number, the broker continues with the next record. A name with a slash is skipped: only some
    releases do so, but no release can read such a queue again. With *with_slashes* it is not skipped, because RocksDB
    has keys instead of directories.
    """
    names = _java_split(properties.get(INNER_MULTI_DISPATCH, ""))
    offsets = _java_split(properties.get(INNER_MULTI_QUEUE_OFFSET, ""))
    if len(names) != len(offsets):
        return
    for name, text in zip(names, offsets, strict=True):
        queue_offset = parse_java_integer(text)
        if queue_offset is None:
            return
        if with_slashes or "/" not in name:
            yield name, queue_offset


def _java_split(text: str) -> list[str]:
    """Split as Java does: empty parts at the end are dropped, and a blank text has no parts."""
    parts = text.rstrip(MULTI_DISPATCH_SEPARATOR)
    return parts.split(MULTI_DISPATCH_SEPARATOR) if parts and text.strip() else []


def walk_units(buffer: Buffer) -> Iterator[Unit]:
    """Yield the units of a plain queue's file that are written, up to the first that is not."""
    for position in range(0, len(buffer) - UNIT.size + 1, UNIT.size):
        unit = decode_unit(buffer, position)
        if not unit.is_written:
            return
        yield unit
