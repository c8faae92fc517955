"""
Stores that brokers may write, drawn from a grammar: `draw_store` returns the one of a seed, as of a published release.

A store has messages (`MESSAGES`), segments, events between its messages (`EVENTS`), and an end of its log (`ENDS`). To
add a production, write a function and add it to one of these tables, with the releases that write it. The expected
queues and index files come from `tests.rmq_formats.reference`, which appends unit by unit and entry by entry; the files
of expired messages are deleted as retention does.
"""

import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rocksdict import Options, Rdict

from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK, MAGIC_V2, TransactionType
from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.consumequeue.dispatch import ExpectedUnit, QueueKind, UnitRules, expected_units
from rmq_formats.detection import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.properties import CRC_SIZE, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from rmq_formats.release import PUBLISHED, Release, Rules, make_rules, release_at
from rmq_formats.store import Checkpoint, encode_checkpoint, file_name_of_offset
from tests.rmq_formats.builders import BROKER_V6, PRODUCER_V6, STORED, encode_properties, make_record
from tests.rmq_formats.reference import BatchConsumeQueue, ConsumeQueue, IndexWriter
from tests.support.stores import read_files
from tests.support.timer_wheel import PRECISION_MS, TimerWheel

QUEUE_FILE_SIZE, BATCH_FILE_SIZE = 200, 460
UNITS_IN_FILE = 10
GEOMETRY = Geometry(7, 9)
_FIRST_OFFSETS = (0, 0, 0, 1, 1 << 28)  # in segments
_TIME_STEPS = (0, 0, 1, 100, 100, 3000, -1, -700, -40_000)  # ms
_KEY_NAMES = frozenset({"KEYS", "UNIQ_KEY", "TAGS"})  # the properties that an index has
_TIMERS = Release.from_version("5.0.0")
_TABLE_WRITTEN_AT_STOP = Release.from_version("5.1.4")
_BATCHES, _TYPES_OF_COMPRESSION = map(Release.from_version, ("4.1.0", "4.9.4"))
_ENCODER_BYTES = b"TAGS\x01old\x02KEYS\x01stale\x02" + bytes(30)  # what may be left in the encoder's buffer


class Message(NamedTuple):
    """A message before it is placed in the log: the fields of its record, and its properties as they are stored."""

    fields: Mapping[str, Any]
    properties: bytes
    light_queues: tuple[str, ...] = ()  # of a multi-dispatch message, whose properties are completed when it is placed


class TopicTable(NamedTuple):
    """A version of the table of topics."""

    changed_ms: int
    topics: frozenset[str]


@dataclass
class Draft:
    """A store while it is drawn."""

    random: Random
    release: Release
    segment_size: int
    next_offset: int
    time: int = STORED
    records: list[MessageRecord] = field(default_factory=list)
    segments: dict[int, bytearray] = field(default_factory=dict)
    queue_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    first_queue_offset: int = 0
    rules: list[tuple[int, Release]] = field(default_factory=list)  # the releases that stored messages, from offsets on
    restarts: list[tuple[int, str]] = field(default_factory=list)  # paths of queues that begin again, from offsets on
    is_clock_set_back: bool = True
    restarted_topics: set[str] = field(default_factory=set)
    tables: list["TopicTable"] = field(default_factory=list)  # the versions of the table of topics
    has_keys: bool = True  # without keys, the only index file has no entry
    messages: dict[str, "Production"] = field(default_factory=dict)  # those that may be drawn
    timers: TimerWheel | None = None

    def __post_init__(self) -> None:
        self.rules = self.rules or [(0, self.release)]

    def take_queue_offset(self, topic: str, queue_id: int) -> int:
        first = 0 if topic in self.restarted_topics else self.first_queue_offset
        number = self.queue_offsets.get((topic, queue_id), first)
        self.queue_offsets[topic, queue_id] = number + 1
        return number

    def change_topics(self, *, created: str = "", deleted: str = "") -> None:
        """Write a new version of the table of topics if it does not have, or lacks, the topic already."""
        before = self.tables[-1].topics if self.tables else frozenset({"TBW102"})
        if (after := (before | {created}) - {"", deleted}) != before:
            self.tables.append(TopicTable(self.time, after))

    def serialize(self, properties: Mapping[str, str]) -> bytes:
        """Return the text of a message that the broker serializes."""
        added = {"CLUSTER": "DefaultCluster"} if self.release.adds_cluster else {}
        added |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} if self.release.adds_region_and_trace else {}
        kept = {name: value for name, value in properties.items() if self.has_keys or name not in _KEY_NAMES}
        items = list((added | kept).items())
        if self.random.random() < 0.5:  # the order is that of a HashMap
            items.reverse()
        last = [item for item in items if item[1].endswith("\0")]  # such a value is the last one
        ordered = dict([*(item for item in items if item not in last), *last])
        return encode_properties(ordered, trailing_separator=self.release.trailing_separator)

    def append(self, *messages: Message) -> None:
        """Append a message, or a batch, to the log; a blank and a new segment come before it if it does not fit."""
        step = self.random.choice(_TIME_STEPS)
        self.time += step if self.is_clock_set_back else abs(step)
        records = [self._make_record(message) for message in messages]
        left = self.segment_size - self.next_offset % self.segment_size
        if sum(record.total_size for record in records) + BLANK.size > left:
            self.seal()
        for made in records:
            record = made._replace(physical_offset=self.next_offset)
            self.write(self.next_offset, encode_record(record))
            self.records.append(record)
            self.next_offset = record.end_offset

    def seal(self) -> None:
        """End the segment with a blank."""
        base = self.next_offset // self.segment_size * self.segment_size
        left = base + self.segment_size - self.next_offset
        stale = self.random.randbytes(left - BLANK.size) if self.release.stale_blank else bytes(left - BLANK.size)
        self.write(self.next_offset, BLANK.pack(left, MAGIC_BLANK) + stale)
        self.next_offset = base + self.segment_size

    def write(self, offset: int, data: bytes) -> None:
        base = offset // self.segment_size * self.segment_size
        segment = self.segments.setdefault(base, bytearray(self.segment_size))
        segment[offset - base : offset - base + len(data)] = data
        assert len(segment) == self.segment_size

    def _make_record(self, message: Message) -> MessageRecord:
        fields = {"queue_offset": None} | dict(message.fields)
        topic, queue_id = fields.setdefault("topic", "Orders"), fields.setdefault("queue_id", 0)
        properties = message.properties
        if message.light_queues:
            numbers = ",".join(str(self.take_queue_offset(name, 0)) for name in message.light_queues)
            further = {INNER_MULTI_DISPATCH: ",".join(message.light_queues), INNER_MULTI_QUEUE_OFFSET: numbers}
            properties = self.serialize({"KEYS": "light"} | further)
            if self.release.leaves_crc_field_unused:
                start = self.random.randrange(len(_ENCODER_BYTES) - CRC_SIZE + 1)
                properties += _ENCODER_BYTES[start : start + CRC_SIZE]
        if fields["queue_offset"] is None:
            fields["queue_offset"] = self.take_queue_offset(topic, queue_id)
        self.change_topics(created=topic)  # a broker creates it for its first message
        return make_record(**fields, properties=properties, store_timestamp=self.time)


# --- messages ---


def _make_plain_message(draft: Draft) -> Message:
    keys = " ".join(draft.random.sample(("a", "b", "c", "dd"), draft.random.randrange(1, 4)))
    properties = {"KEYS": keys, "TAGS": draft.random.choice(("t", "TagA")), "UNIQ_KEY": f"{draft.next_offset:032X}"}
    return _make_message(draft, properties, queue_id=draft.random.randrange(2))


def _make_message(draft: Draft, properties: Mapping[str, str], **fields: Any) -> Message:  # noqa: ANN401 - of a record
    body = draft.random.randbytes(draft.random.choice((0, 1, 30, 300)))
    return Message({"body": body} | fields, draft.serialize(properties))


def _make_message_without_properties(_draft: Draft) -> Message:
    return Message({"body": b"bare", "topic": "Bare"}, b"")


def _make_message_with_empty_values(draft: Draft) -> Message:
    return _make_message(draft, {"p": "", "KEYS": "k", "": "nameless", "TAGS": ""})


def _make_message_with_separator_in_value(draft: Draft) -> Message:
    return _make_message(draft, {"p": "a\x01b", "KEYS": "k", "q": "\x01"})


def _make_message_with_nul_at_the_end(draft: Draft) -> Message:
    return _make_message(draft, {"KEYS": "k", "c": "text" + "\0" * draft.random.choice((1, 1, 1, 4))})


def _make_message_with_key_that_ends_in_nul(draft: Draft) -> Message:
    return _make_message(draft, {"TAGS": "t", "KEYS": "key\0"})


def _make_message_with_zeros_as_body(draft: Draft) -> Message:
    return Message({"body": bytes(40)}, draft.serialize({"KEYS": "zeros"}))


def _make_message_that_contains_a_record(draft: Draft) -> Message:
    inner = make_record(b"inner " + b"__CRC32#", store_timestamp=draft.time)
    return Message({"body": encode_record(inner._replace(physical_offset=draft.next_offset + 88))}, b"")


def _make_multi_dispatch_message(draft: Draft) -> Message:
    names = tuple(draft.random.sample(("%LMQ%a", "%LMQ%b", "%LMQ%c"), draft.random.randrange(1, 4)))
    return Message({"topic": "Light", "body": draft.random.choice((b"", b"x", b"__CRC32#"))}, b"", names)


def _make_message_with_ipv6_hosts(draft: Draft) -> Message:
    return _make_message(draft, {"KEYS": "six"}, born_host=PRODUCER_V6, store_host=BROKER_V6)


def _make_message_with_long_topic(draft: Draft) -> Message:
    return _make_message(draft, {"KEYS": "long"}, topic="%RETRY%" + "g" * 200, magic_code=MAGIC_V2)


def _make_compressed_message(draft: Draft) -> Message:
    made = _make_plain_message(draft)
    body, has_type = bytes(made.fields["body"]), draft.release.version >= _TYPES_OF_COMPRESSION.version
    return made._replace(fields={**made.fields, "body": zlib.compress(body), "sys_flag": 0x301 if has_type else 0x1})


def _make_delayed_message(draft: Draft) -> Message:
    level = draft.random.choice((1, 3, 18))
    properties = {"DELAY": str(level), "KEYS": "later", "REAL_TOPIC": "Orders", "REAL_QID": "0", "TAGS": "t"}
    return _make_message(draft, properties, topic="SCHEDULE_TOPIC_XXXX", queue_id=level - 1)


def _make_half_message(draft: Draft) -> Message:
    properties = {"TRAN_MSG": "true", "KEYS": "tx", "UNIQ_KEY": f"{draft.next_offset:032X}", "TAGS": "t"}
    if draft.release.half_message_in_real_topic:
        return _make_message(draft, properties, sys_flag=TransactionType.PREPARED, queue_offset=0)
    return _make_message(draft, properties | {"REAL_TOPIC": "Orders", "REAL_QID": "0"}, topic=HALF_TOPIC)


def _make_commit(draft: Draft) -> Message:
    properties = {"TRAN_MSG": "true", "KEYS": "tx", "UNIQ_KEY": f"{draft.next_offset:032X}"}
    if draft.release.commit_keeps_real_topic:
        properties |= {"REAL_TOPIC": "Orders", "REAL_QID": "0"}
    half = draft.records[-1].physical_offset if draft.records else draft.next_offset
    return _make_message(draft, properties, sys_flag=TransactionType.COMMIT, prepared_transaction_offset=half)


def _make_rollback(draft: Draft) -> Message:
    fields = {"body": b"", "sys_flag": TransactionType.ROLLBACK, "queue_offset": 0}
    return Message(fields, draft.serialize({"TRAN_MSG": "true", "KEYS": "tx"}))


def _make_op_message(draft: Draft) -> Message:
    body = b"0,1," if draft.release.op_message_lists_offsets else b"0"
    return Message({"body": body, "topic": OP_TOPIC}, draft.serialize({"TAGS": "d"}))


def _make_batch(draft: Draft) -> Sequence[Message]:
    """Make messages that keep the text of their client, to which some releases append the properties of the batch."""
    has_separator = draft.random.random() < 0.5
    appended = b""
    if Release.from_version("4.8.0").version <= draft.release.version < Release.from_version("5.4.0").version:
        appended = draft.serialize({"WAIT": "true"})
    made = []
    for number in range(draft.random.randrange(1, 5)):
        properties = {"UNIQ_KEY": f"{draft.next_offset:030X}{number:02X}", "WAIT": "true"}
        if draft.has_keys:
            properties["KEYS"] = draft.random.choice(("batch", "batch a"))
        text = encode_properties(properties, trailing_separator=has_separator or bool(appended))
        made.append(Message({"body": draft.random.randbytes(20), "topic": "Batches"}, text + appended))
    return made


def _make_inner_batch(draft: Draft) -> Message:
    """Make a record that contains several messages; its unit is in a batch queue."""
    bodies = [draft.random.randbytes(10) for _ in range(draft.random.randrange(1, 4))]
    base = min([draft.take_queue_offset("Inner", 0) for _ in bodies])
    properties = {"INNER_NUM": str(len(bodies)), "INNER_BASE": str(base), "UNIQ_KEY": f"{draft.next_offset:032X}"}
    inner = b"".join(struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + bytes(2) for body in bodies)
    return Message(
        {"body": inner, "topic": "Inner", "sys_flag": 0xC0, "queue_offset": base}, draft.serialize(properties)
    )


def _make_timer_message(draft: Draft) -> Message:
    """Make a message with a time of delivery, of which the wheel has two days, or cancel one."""
    assert draft.timers is not None
    keys = {"KEYS": "timed", "UNIQ_KEY": f"{draft.next_offset:032X}", "REAL_TOPIC": "Orders", "REAL_QID": "0"}
    waiting = [one for one in draft.timers.waiting if not one.is_rolled]
    if waiting and draft.random.random() < 0.2:
        cancelled = draft.random.choice(waiting).properties
        due = {"TIMER_OUT_MS": cancelled["TIMER_OUT_MS"], "TIMER_DEL_UNIQKEY": f"Orders+{cancelled['UNIQ_KEY']}"}
        return _make_message(draft, keys | due, topic=TIMER_TOPIC)
    delay = draft.random.choice((5_000, 6_000, 60_000, 86_400_000, 3 * 86_400_000, 5 * 86_400_000))
    now = max(draft.time, draft.timers.read_ms)
    due_text = str((now + delay) // PRECISION_MS * PRECISION_MS)
    due = {"TIMER_OUT_MS": due_text, "TIMER_DELAY_MS": str(delay)}
    if draft.timers.waiting and draft.random.random() < 0.2:  # a client sends a message object again
        key = draft.random.choice(draft.timers.waiting).properties["UNIQ_KEY"]
        used = {one.properties["TIMER_OUT_MS"] for one in draft.timers.waiting if one.properties["UNIQ_KEY"] == key}
        keys["UNIQ_KEY"] = keys["UNIQ_KEY"] if due_text in used else key
    return _make_message(draft, keys | due, topic=TIMER_TOPIC)


def _deliver_timers(draft: Draft) -> None:
    """Deliver the messages that are due; those that are still far away are put into the wheel again."""
    assert draft.timers is not None
    for one in draft.timers.take_due(draft.time):
        times = {"TIMER_ENQUEUE_MS": str(one.enqueued_ms), "TIMER_DEQUEUE_MS": str(draft.timers.read_ms)}
        if one.is_rolled:
            properties = one.properties | times
            properties["TIMER_ROLL_TIMES"] = str(int(properties.get("TIMER_ROLL_TIMES", "0")) + 1)
            draft.append(_make_message(draft, properties, topic=TIMER_TOPIC))
            draft.timers.add(draft.records[-1], properties)
            continue
        draft.append(_make_message(draft, one.properties | times, topic="Orders"))


def _always(_release: Release) -> bool:
    return True


class Production(NamedTuple):
    """A function that draws a message, or a batch of messages, and the releases that write such messages."""

    make: Callable[[Draft], Message | Sequence[Message]]
    is_written_by: Callable[[Release], bool] = _always


MESSAGES: dict[str, Production] = {
    "plain": Production(_make_plain_message),
    "no properties": Production(_make_message_without_properties),
    "empty values": Production(_make_message_with_empty_values),
    "separator in a value": Production(_make_message_with_separator_in_value),
    "value that ends in NUL": Production(_make_message_with_nul_at_the_end),
    "key that ends in NUL": Production(_make_message_with_key_that_ends_in_nul),
    "body of zeros": Production(_make_message_with_zeros_as_body),
    "record in a body": Production(_make_message_that_contains_a_record),
    "multi-dispatch": Production(_make_multi_dispatch_message, lambda release: release.multi_dispatch),
    "IPv6": Production(_make_message_with_ipv6_hosts, lambda release: release.ipv6_hosts),
    "long topic": Production(_make_message_with_long_topic, lambda release: release.two_byte_topic_length),
}

FURTHER_MESSAGES: dict[str, Production] = {
    "compressed": Production(_make_compressed_message),
    "delayed": Production(_make_delayed_message),
    "half message": Production(_make_half_message),
    "commit": Production(_make_commit),
    "rollback": Production(_make_rollback, lambda release: release.half_message_in_real_topic),
    "op message": Production(_make_op_message, lambda release: not release.half_message_in_real_topic),
    "batch": Production(_make_batch, lambda release: release.version >= _BATCHES.version),
    "inner batch": Production(_make_inner_batch, lambda release: release.inner_batches),
}

TIMER_MESSAGES: dict[str, Production] = {
    name: Production(_make_timer_message) for name in ("timer", "another timer", "third timer")
}


# --- events between two messages ---


def _upgrade_broker(draft: Draft) -> None:
    """Stop the broker, and continue the store with a newer release."""
    newer = [release for release in PUBLISHED if release.version > draft.release.version]
    if newer:
        draft.release = draft.random.choice(newer)
        since = draft.next_offset if draft.records else 0
        draft.rules = [*(one for one in draft.rules if one[0] < since), (since, draft.release)]


def _create_topic_again(draft: Draft) -> None:
    """Delete the topic, whose queues go with it, and create it again: its queue offsets begin at 0."""
    draft.queue_offsets |= dict.fromkeys((name for name in draft.queue_offsets if name[0] == "Orders"), 0)
    draft.change_topics(deleted="Orders")
    if len(draft.records) % 2:  # by hand, and not by its first message
        draft.change_topics(created="Orders")
    draft.restarts.append((draft.next_offset, "Orders/"))
    draft.restarted_topics.add("Orders")


def _lose_queue(draft: Draft) -> None:
    """Stop the broker, lose the directory of a queue, and start: its queue offsets begin at 0. No broker does that."""
    draft.queue_offsets |= {("Orders", 0): 0}
    draft.restarts.append((draft.next_offset, "Orders/0/"))


EVENTS: dict[str, Callable[[Draft], None]] = {
    "upgrade": _upgrade_broker,
    "topic created again": _create_topic_again,
    "queue lost": _lose_queue,
}


# --- ends of the log ---


def _append_drawn_message(draft: Draft) -> None:
    usable = [one for one in draft.messages.values() if one.is_written_by(draft.release)]
    made = draft.random.choice(usable).make(draft)
    draft.append(*([made] if isinstance(made, Message) else made))
    if draft.timers is not None:
        if (newest := draft.records[-1]).topic == TIMER_TOPIC:
            items = newest.properties_raw.decode().split("\x02")
            draft.timers.add(newest, dict(item.split("\x01", 1) for item in items if item))
        _deliver_timers(draft)


def _append_drawn_messages(draft: Draft, events: Collection[str], happening: Random) -> Iterator[bytes]:
    """Append the messages of a store, with events between them; yield the progress of timers after each message."""
    for _ in range(draft.random.choice((1, 5, 40))):
        if events and happening.random() < 0.1:
            EVENTS[happening.choice(sorted(events))](draft)
        if draft.timers is not None and happening.random() < 0.1:
            draft.time += happening.choice((10_000, 40 * 3_600_000, 50 * 3_600_000))
        _append_drawn_message(draft)
        yield draft.timers.encode_progress() if draft.timers is not None else b""


def _end_with_preallocated_segment(draft: Draft) -> None:
    draft.write((draft.next_offset // draft.segment_size + 1) * draft.segment_size, b"")


def _end_in_a_record(draft: Draft) -> None:
    """Halt the broker while it copies a record into the log."""
    record = make_record(b"b" * 50, store_timestamp=draft.time + 1)._replace(physical_offset=draft.next_offset)
    left = draft.segment_size - draft.next_offset % draft.segment_size
    if record.total_size + BLANK.size <= left:
        draft.write(draft.next_offset, encode_record(record)[: draft.random.randrange(1, record.total_size - 20)])


def _end_with_a_blank(draft: Draft) -> None:
    """Halt the broker after it has sealed a segment, before it writes the first record of the next one."""
    if draft.next_offset % draft.segment_size:
        draft.seal()
        draft.write(draft.next_offset, b"")


def _end_with_stale_records(draft: Draft) -> None:
    """Halt the broker, lose a page, start again, write one message, and stop: old records remain after the end."""
    kept = draft.next_offset
    before, offsets, time = len(draft.records), dict(draft.queue_offsets), draft.time
    for _ in range(4):
        draft.append(_make_plain_message(draft))
    if len({record.physical_offset // draft.segment_size for record in draft.records[before - 1 :]}) > 1:
        for base in [base for base in draft.segments if base > kept]:  # recovery deletes later segments
            del draft.segments[base]
    # The clock goes on meanwhile: an old record with a later store time looks like one of the log.
    time = max(time, *(record.store_timestamp for record in draft.records[before:])) + 100_000
    del draft.records[before:]
    draft.next_offset, draft.queue_offsets, draft.time = kept, offsets, time
    left = draft.segment_size - kept % draft.segment_size
    draft.write(kept, bytes(min(30, left)))
    draft.append(Message({"body": b"after the start"}, draft.serialize({"KEYS": "after"})))


class End(NamedTuple):
    """An end of a log: a function that writes it, and whether the broker was shut down."""

    write: Callable[[Draft], None]
    is_clean: bool


def _leave(_draft: Draft) -> None:
    """Leave zeros after the last record."""


ENDS: dict[str, End] = {
    "clean": End(_leave, is_clean=True),
    "killed": End(_leave, is_clean=False),
    "preallocated segment": End(_end_with_preallocated_segment, is_clean=False),
    "in a record": End(_end_in_a_record, is_clean=False),
    "blank": End(_end_with_a_blank, is_clean=False),
    "stale records": End(_end_with_stale_records, is_clean=True),
}


# --- stores ---


class LegalStore(NamedTuple):
    """A store, and what every command must find in it."""

    rules: Rules  # the release that stored the messages from each offset on
    end: str
    records: list[MessageRecord]  # those of the log: older ones have expired
    files: dict[str, bytes]  # by path below the root
    has_expired: bool  # the first segments were deleted, so the first queue and index files cannot be rebuilt
    restarts: list[tuple[int, str]]  # see `Draft`
    timers: TimerWheel | None

    @property
    def is_clean(self) -> bool:
        return ENDS[self.end].is_clean

    @property
    def release(self) -> str:
        """The releases as a value of `--release`."""
        return ",".join(f"{release}@{since}" if since else str(release) for since, release in self.rules)

    def write(self, root: Path) -> Path:
        for name, data in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return root

    def list_earlier_messages(self) -> list[MessageRecord]:
        """Return the messages from before their queue began again."""
        return [
            record
            for record in self.records
            if any(
                record.physical_offset < begin and f"{record.topic}/{record.queue_id}/".startswith(path)
                for begin, path in self.restarts
            )
        ]

    def list_files(self, directory: str) -> dict[str, bytes]:
        return {name: data for name, data in self.files.items() if name.startswith(f"{directory}/")}


def draw_store(  # noqa: PLR0913 - what is fixed, and what may happen
    seed: int,
    *,
    release: str | None = None,
    end: str | None = None,
    events: Collection[str] = (),
    has_further_messages: bool = False,
    has_timers: bool = False,
) -> LegalStore:
    """
    Return the store of a seed; *release* and *end* fix what is otherwise drawn; of *events*, some happen.

    With further messages, the store may also have transactions, batches, and queues in files and in RocksDB. With
    timers, the broker is of 5.0.0 or later, and nothing has expired.
    """
    random, happening = Random(seed), Random(f"events {seed}")
    drawn_release, drawn_end = random.choice(PUBLISHED), random.choice(list(ENDS))
    if has_timers:
        drawn_release = happening.choice([one for one in PUBLISHED if one.version >= _TIMERS.version])
    writer = drawn_release if release is None else Release.from_version(release)
    segment_size, first = random.choice((4096, 16384)), 0 if has_timers else random.choice(_FIRST_OFFSETS)
    draft = Draft(random, writer, segment_size, first * segment_size)
    draft.has_keys = not events or happening.random() > 0.2
    draft.messages = MESSAGES | (FURTHER_MESSAGES if has_further_messages else {})
    if has_timers:
        draft.messages |= TIMER_MESSAGES
        draft.timers = TimerWheel(happening.choice((240, 1040, 1 << 20)), draft.time // PRECISION_MS * PRECISION_MS)
    if first:
        draft.first_queue_offset = random.choice((UNITS_IN_FILE, 1 << 32)) // UNITS_IN_FILE * UNITS_IN_FILE
    draft.is_clock_set_back = not {"topic created again", "queue lost"} & {*events} or bool(seed % 3)
    progress = list(_append_drawn_messages(draft, events, happening))
    start = min(draft.segments)
    if first and len(draft.segments) > 1:
        start = random.choice(sorted(draft.segments)[:-1])
    chosen_end = drawn_end if end is None else end
    ENDS[chosen_end].write(draft)
    files = {f"commitlog/{file_name_of_offset(base)}": bytes(data) for base, data in draft.segments.items()}
    for base in [base for base in draft.segments if base < start]:
        del files[f"commitlog/{file_name_of_offset(base)}"]
    index_time = _add_dispatched_files(files, draft, start)
    if has_further_messages and not first and happening.random() < 0.5:
        _write_queues_twice(files, draft)
    _add_checkpoint(files, draft, index_time, is_clean=ENDS[chosen_end].is_clean)
    _add_configuration(files, draft, is_clean=ENDS[chosen_end].is_clean)
    if draft.timers is not None:
        is_clean = ENDS[chosen_end].is_clean  # a killed broker has not written the newest progress
        files |= draft.timers.list_files(progress[-1] if is_clean else happening.choice(progress[-3:]))
    records = [record for record in draft.records if record.physical_offset >= start]
    return LegalStore(
        make_rules(*draft.rules),
        chosen_end,
        records,
        files,
        has_expired=bool(first),
        restarts=draft.restarts,
        timers=draft.timers,
    )


def _add_dispatched_files(files: dict[str, bytes], draft: Draft, start: int) -> int:
    """Add queues and index files; return the end time of the last full index file, 0 without one."""
    rules = make_rules(*draft.rules)
    queues: dict[str, tuple[ConsumeQueue | BatchConsumeQueue, list[int]]] = {}
    restarts = list(draft.restarts)
    for record in (*draft.records, None):
        while restarts and (record is None or restarts[0][0] <= record.physical_offset):
            directory = f"consumequeue/{restarts.pop(0)[1]}"
            queues = {path: queue for path, queue in queues.items() if not f"{path}/".startswith(directory)}
        if record is None:
            break
        for unit in expected_units(record, UnitRules(rules)):
            is_batch = unit.queue.kind is QueueKind.BATCH
            new = BatchConsumeQueue(BATCH_FILE_SIZE) if is_batch else ConsumeQueue(QUEUE_FILE_SIZE)
            queue, offsets = queues.setdefault(unit.queue.path, (new, []))
            queue.append(unit, release_at(rules, record.physical_offset))
            offsets.append(unit.physical_offset)
    for path, (queue, offsets) in queues.items():
        written = list(queue.files())
        for number, (offset, data) in enumerate(written):
            newest = max(offsets[number * UNITS_IN_FILE : (number + 1) * UNITS_IN_FILE], default=start)
            if newest >= start or number == len(written) - 1:
                files[f"{path}/{file_name_of_offset(offset)}"] = data
    writer = IndexWriter(GEOMETRY, rules)
    writer.dispatch_all(draft.records)
    for number, file in enumerate(writer.files):
        if file.header.end_physical_offset >= start or number == len(writer.files) - 1:
            files[f"index/2025112001{number:07d}"] = file.encode(draft.release.empty_index_count)
    flushed = writer.files if draft.release.empty_index_count else writer.files[:-1]  # 5.0.0+: also when it stops
    return next((file.header.end_timestamp for file in reversed(flushed) if file.is_full), 0)


def _write_queues_twice(files: dict[str, bytes], draft: Draft) -> None:
    """
    Write the queues also as a database, as with rocksdbCQDoubleWriteEnable of 5.3.1 and later.

    Since 5.5.0, this needs combineCQUseRocksdbForLmq: light queues are in the database only.
    """
    version = draft.rules[0][1].version
    if version < Release.from_version("5.3.1").version or any(name.startswith("batchconsumequeue/") for name in files):
        return
    units = [unit for record in draft.records for unit in expected_units(record, UnitRules(make_rules(*draft.rules)))]
    with TemporaryDirectory() as directory:
        raw = Options(raw_mode=True)
        database = Rdict(f"{directory}/queues", raw)
        offsets = database.create_column_family("offset", raw)
        for unit in units:
            queue = _queue_key(unit)
            value = struct.pack(">qiqq", unit.physical_offset, unit.size, unit.tags_code, unit.store_timestamp)
            database[queue[0] + queue[1] + b"\x01" + struct.pack(">q", unit.queue_offset)] = value
            place = struct.pack(">qq", unit.physical_offset, unit.queue_offset)
            offsets[queue[0] + b"max\x01" + queue[1]] = place
        checkpoint = struct.pack(">i", 16) + b"\x01CHECKPOINT_TOPIC\x01max\x01" + bytes(4)
        offsets[checkpoint] = struct.pack(">q", draft.records[-1].end_offset)
        offsets.close()
        database.close()
        files |= {f"consumequeue/{name}": data for name, data in read_files(Path(directory, "queues")).items()}
    if version >= Release.from_version("5.5.0").version:
        for name in [name for name in files if name.startswith("consumequeue/%LMQ%")]:
            del files[name]


def _queue_key(unit: ExpectedUnit) -> tuple[bytes, bytes]:
    topic = unit.queue.topic.encode()
    return struct.pack(">i", len(topic)) + b"\x01" + topic + b"\x01", struct.pack(">i", unit.queue.queue_id)


def _add_configuration(files: dict[str, bytes], draft: Draft, *, is_clean: bool) -> None:
    """
    Add the tables of a broker without consumers.

    A broker keeps the version before the newest one as a backup; since 5.1.4, it also writes the table when it stops.
    """
    *_, before, newest = [None, *draft.tables]
    groups = {
        name: {"groupName": name, "consumeEnable": True}
        for name in (topic.removeprefix("%RETRY%") for topic in newest.topics if topic.startswith("%RETRY%"))
    }
    tables: dict[str, object] = {
        "topics.json": _encode_topics(newest, len(draft.tables)),
        "subscriptionGroup.json": {"subscriptionGroupTable": groups},
        "consumerOffset.json": {"offsetTable": {}},
        "lmqConsumerOffset.json": {"lmqOffsetTable": {}, "offsetTable": {}},
        "delayOffset.json": {"offsetTable": {}},
    }
    if is_clean and draft.release.version >= _TABLE_WRITTEN_AT_STOP.version:
        tables["topics.json.bak"] = tables["topics.json"]
    elif before is not None:
        tables["topics.json.bak"] = _encode_topics(before, len(draft.tables) - 1)
    files |= {f"config/{name}": json.dumps(table).encode() for name, table in tables.items()}


def _encode_topics(table: TopicTable, version: int) -> dict[str, object]:
    topics = {
        topic: {"topicName": topic, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        for topic in sorted(table.topics)
    }
    return {"dataVersion": {"counter": version, "timestamp": table.changed_ms}, "topicConfigTable": topics}


def _add_checkpoint(files: dict[str, bytes], draft: Draft, index_time: int, *, is_clean: bool) -> None:
    flushed = draft.records[-1]
    if not is_clean:
        files["abort"] = b"4711" if draft.release.abort_has_process_id else b""
        flushed = draft.records[0]
    checkpoint = Checkpoint(flushed.store_timestamp, flushed.store_timestamp, index_time)
    if draft.release.checkpoint_fields == len(Checkpoint._fields):
        checkpoint = checkpoint._replace(dispatched_offset=flushed.physical_offset)
    files["checkpoint"] = encode_checkpoint(checkpoint).ljust(4096, b"\0")
