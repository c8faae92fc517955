"""
Stores as brokers of given releases write them, made by a second implementation of queues and index files.

A store is a list of messages, each stored by one release. The release decides which properties the broker adds, how
properties end and are parsed, and which keys and tags the index has.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.record import MessageRecord, encode_record
from rmq_formats.consumequeue.dispatch import UnitRules, expected_units
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import Release, Rules, make_rules, release_at
from rmq_formats.store import Checkpoint, encode_checkpoint, file_name_of_offset
from tests.rmq_formats.builders import STORED, encode_properties, fit_into_segment, make_blank, make_record
from tests.rmq_formats.reference import ConsumeQueue, IndexWriter

SEGMENT_SIZE = 4096
QUEUE_FILE_SIZE = 200
GEOMETRY = Geometry(7, 9)


class Message(NamedTuple):
    """A message as a client of the release sends it."""

    release: str
    topic: str = "Orders"
    queue_id: int = 0
    properties: Mapping[str, str] = {}
    body: bytes = b"hello"
    step_ms: int = 100  # the store time is this much later than that of the message before; it may be negative
    starts_topic_again: bool = False  # the topic was deleted and created again before this message


class LegalStore(NamedTuple):
    """A store, and what it was made of."""

    root: Path
    records: list[MessageRecord]
    rules: Rules


def broker_properties(message: Message) -> bytes:
    """Return the properties of a plain message as the broker of its release stores them."""
    release = Release.from_version(message.release)
    added = {"CLUSTER": "DefaultCluster"} if release.adds_cluster else {}
    added |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} if release.adds_region_and_trace else {}
    return encode_properties({**message.properties, **added}, trailing_separator=release.trailing_separator)


def store_records(messages: Sequence[Message], *, start: int = 0, first_queue_offset: int = 0) -> list[MessageRecord]:
    """Return the records of a log that starts at *start*, the start of a segment."""
    records: list[MessageRecord] = []
    next_numbers: dict[tuple[str, int], int] = {}
    offset, time = start, STORED
    for message in messages:
        queue = message.topic, message.queue_id
        if message.starts_topic_again:
            next_numbers = {name: 0 if name[0] == message.topic else last for name, last in next_numbers.items()}
            next_numbers.setdefault(queue, 0)
        number = next_numbers.get(queue, first_queue_offset)
        next_numbers[queue] = number + 1
        time += message.step_ms
        record = make_record(
            message.body,
            topic=message.topic,
            properties=broker_properties(message),
            queue_id=message.queue_id,
            queue_offset=number,
            physical_offset=offset,
            store_timestamp=time,
        )
        record = fit_into_segment(record, SEGMENT_SIZE)
        records.append(record)
        offset = record.end_offset
    return records


def rules_of(messages: Sequence[Message], records: Sequence[MessageRecord]) -> Rules:
    """Return the release that stored the messages from each offset on."""
    rules: list[tuple[int, Release]] = []
    for message, record in zip(messages, records, strict=True):
        release = Release.from_version(message.release)
        if not rules or rules[-1][1] != release:
            rules.append((record.physical_offset if rules else 0, release))
    return make_rules(*rules)


def write_release_store(  # noqa: PLR0913 - each shape of a store
    root: Path,
    messages: Sequence[Message],
    *,
    geometry: Geometry = GEOMETRY,
    start: int = 0,
    first_queue_offset: int = 0,
    with_index: bool = True,
) -> LegalStore:
    """Write a cleanly closed store of these messages."""
    records = store_records(messages, start=start, first_queue_offset=first_queue_offset)
    rules = rules_of(messages, records)
    _write_log(root / "commitlog", records, start)
    pairs = zip(records, messages, strict=True)
    _write_queues(root, records, rules, {one.physical_offset for one, message in pairs if message.starts_topic_again})
    full = _write_index(root / "index", records, rules, geometry) if with_index else IndexHeader()
    _write_checkpoint(root, records, rules, full)
    _write_configuration(root, records)
    return LegalStore(root, records, rules)


def _write_log(directory: Path, records: Sequence[MessageRecord], start: int) -> None:
    directory.mkdir(parents=True)
    last = records[-1].physical_offset // SEGMENT_SIZE * SEGMENT_SIZE if records else start
    for base in range(start, last + 1, SEGMENT_SIZE):
        own = [one for one in records if base <= one.physical_offset < base + SEGMENT_SIZE]
        log = b"".join(map(encode_record, own))
        rest = SEGMENT_SIZE - len(log)
        (directory / file_name_of_offset(base)).write_bytes(log + (bytes(rest) if base == last else make_blank(rest)))


def _write_queues(root: Path, records: Sequence[MessageRecord], rules: Rules, restarts: set[int]) -> None:
    queues: dict[str, ConsumeQueue] = {}
    for record in records:
        if record.physical_offset in restarts:  # the deletion of the topic removed all of its queues
            directory = f"consumequeue/{record.topic}/"
            queues = {path: queue for path, queue in queues.items() if not path.startswith(directory)}
        for unit in expected_units(record, UnitRules(rules)):
            queue = queues.setdefault(unit.queue.path, ConsumeQueue(QUEUE_FILE_SIZE))
            queue.append(unit, release_at(rules, record.physical_offset))
    for path, queue in queues.items():
        (root / path).mkdir(parents=True)
        for offset, data in queue.files():
            (root / path / file_name_of_offset(offset)).write_bytes(data)


def _write_index(directory: Path, records: Sequence[MessageRecord], rules: Rules, geometry: Geometry) -> IndexHeader:
    """Write the index files, and return the header of the last full one."""
    directory.mkdir()
    writer = IndexWriter(geometry, rules)
    writer.dispatch_all(records)
    for number, file in enumerate(writer.files):
        (directory / f"2025112001{number:07d}").write_bytes(file.encode(rules[-1][1].empty_index_count))
    return next((file.header for file in reversed(writer.files[:-1]) if file.is_full), IndexHeader())


def _write_checkpoint(root: Path, records: Sequence[MessageRecord], rules: Rules, full: IndexHeader) -> None:
    time, newest = records[-1].store_timestamp, rules[-1][1]
    dispatched = records[-1].physical_offset if newest.checkpoint_fields == len(Checkpoint._fields) else 0
    if newest.implementation:  # rocketmq-rust: the end of the last message, and another timer log
        dispatched = records[-1].end_offset
        (root / "timerlog" / "v2" / "log").mkdir(parents=True)
        (root / "timerlog" / "v2" / "log" / file_name_of_offset(0)).write_bytes(bytes(64))
    checkpoint = Checkpoint(time, time, full.end_timestamp, dispatched_offset=dispatched)
    (root / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    if newest.lock_file:
        (root / "lock").write_bytes(b"lock")


def _write_configuration(root: Path, records: Sequence[MessageRecord]) -> None:
    """Write the two files that every broker writes before it stops cleanly."""
    (root / "config").mkdir()
    queues = {
        one.topic: {"topicName": one.topic, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6} for one in records
    }
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": queues}))
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
