"""
Detects from marks in a store's bytes which release wrote it.

A mark is a pattern that only some releases write. It has an offset, and the values of one switch of `release.SWITCHES`
with which a release writes it. Marks narrow down the published releases. If a mark excludes all releases that the
earlier marks of the log allow, another release continued the log at this offset: a store is a sequence of eras.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from rmq_formats.commitlog.layout import HOST_BITS, INNER_BATCH, MAGIC_V2, TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord, has_right_body_crc, has_right_property_crc
from rmq_formats.indexfile.keys import index_keys, tag_text, typed_index_keys
from rmq_formats.indexfile.layout import IndexHeader
from rmq_formats.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_SEPARATOR,
    REAL_TOPIC,
    TAGS,
    PropertyParser,
    index_key_hash,
    parse_properties,
)
from rmq_formats.release import OLDEST, PUBLISHED, RUST, RUST_PROJECT, HashSlotCount, Release
from rmq_formats.store import Checkpoint, FileKind, StoreFile

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRAN_MSG = "TRAN_MSG"

# The first releases with each property parser; neither indexes tags.
_RELEASES_OF_PARSERS = (OLDEST, Release.from_version("4.9.1"))
_PROPERTY_SEPARATOR = PROPERTY_SEPARATOR.encode()


class Mark(NamedTuple):
    """A pattern that only releases write whose *switch* has one of *values*; *offset* is the offset of its record."""

    reason: str
    switch: str
    values: tuple[Any, ...]
    offset: int | None = None

    def allows(self, release: Release) -> bool:
        """Return whether *release* could have left this mark."""
        return getattr(release, self.switch) in self.values


class Era(NamedTuple):
    """A part of the log, starting at *first_offset*, that one release wrote: one of *candidates*."""

    first_offset: int
    candidates: tuple[Release, ...]
    marks: tuple[Mark, ...]

    @property
    def oldest_release(self) -> Release:
        """The oldest release that could have written this."""
        return self.candidates[0]

    @property
    def newest_release(self) -> Release:
        """The newest release that could have written this."""
        return self.candidates[-1]

    @property
    def without_file_marks(self) -> "Era":
        """The era as its records alone show it: files were left by the release that wrote last."""
        marks = tuple(mark for mark in self.marks if mark.offset is not None)
        candidates = tuple(release for release in PUBLISHED if all(mark.allows(release) for mark in marks))
        return Era(self.first_offset, candidates, marks)

    def undecided_switches(self, switches: Iterable[str]) -> list[str]:
        """Return those of *switches* in which the candidates differ."""
        return [switch for switch in switches if len({getattr(release, switch) for release in self.candidates}) > 1]


def detect_eras(marks: Iterable[Mark]) -> tuple[Era, ...]:
    """
    Return the eras of a store; one era of every release if no mark is found.

    An era begins no later than at its first offset: between the last mark of one and the first of the next nothing is
    known. A mark that is not of a record (a checkpoint, a file) was left by the last writer.
    """
    ordered = sorted(marks, key=lambda mark: (mark.offset is None, mark.offset or 0))
    eras = [Era(0, PUBLISHED, ())]
    for mark in ordered:
        last = eras[-1]
        candidates = _select_allowed(last.candidates, mark)
        if mark.switch == "implementation" and mark.values == (RUST.implementation,):
            return (Era(0, (RUST,), (mark,)),)  # the marks of the log do not distinguish it from the Java broker
        if candidates:
            is_known = any((old.switch, old.values) == (mark.switch, mark.values) for old in last.marks)
            eras[-1] = last._replace(candidates=candidates, marks=last.marks if is_known else (*last.marks, mark))
        elif mark.offset is not None and _select_allowed(PUBLISHED, mark):
            eras.append(Era(mark.offset, _select_allowed(PUBLISHED, mark), (mark,)))
    return tuple(eras)


def _select_allowed(candidates: tuple[Release, ...], mark: Mark) -> tuple[Release, ...]:
    return tuple(release for release in candidates if mark.allows(release))


def record_marks(record: MessageRecord) -> Iterator[Mark]:
    """Yield the marks of a record's release; none if a CRC, or zeros at its end, show that it is damaged."""
    offset = record.physical_offset
    has_right_crc = has_right_property_crc(record)
    if has_right_crc is False or record.properties_raw.endswith(b"\0") or not has_right_body_crc(record):
        return
    properties = parse_properties(record.properties_raw, PropertyParser.SCAN)
    for is_seen, reason, switch in (
        (record.magic_code == MAGIC_V2, "a record in format V2", "two_byte_topic_length"),
        (record.sys_flag & HOST_BITS, "an IPv6 host", "ipv6_hosts"),
        (record.sys_flag & INNER_BATCH, "an inner batch", "inner_batches"),
        (has_right_crc, "a CRC over the full record", "property_crc"),
    ):
        if is_seen:
            yield Mark(reason, switch, (True,), offset)
    if CLUSTER in properties:
        yield from _serialized_marks(record, has_region=MSG_REGION in properties)
    yield from _transaction_marks(record, properties.keys())
    if {INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET} <= properties.keys():
        yield Mark("queue offsets of a multi-dispatch message", "multi_dispatch", (True,), offset)
    if record.topic == TIMER_TOPIC:
        yield Mark("a timer message", "timer_messages", (True,), offset)
    if record.topic == OFFSET_MOVED_TOPIC:
        yield Mark("an OFFSET_MOVED_EVENT record", "pull_out_of_range_writes", (True,), offset)


def _serialized_marks(record: MessageRecord, *, has_region: bool) -> Iterator[Mark]:
    offset = record.physical_offset
    ends = record.properties_raw.endswith(_PROPERTY_SEPARATOR)
    yield Mark("properties with CLUSTER", "adds_cluster", (True,), offset)
    yield Mark(f"properties end {'with' if ends else 'without'} a separator", "trailing_separator", (ends,), offset)
    yield Mark(
        f"properties {'with' if has_region else 'without'} a region", "adds_region_and_trace", (has_region,), offset
    )


def _transaction_marks(record: MessageRecord, names: Collection[str]) -> Iterator[Mark]:
    offset = record.physical_offset
    if record.topic == HALF_TOPIC:
        yield Mark(f"a half message in {HALF_TOPIC}", "half_message_in_real_topic", (False,), offset)
    if record.topic == OP_TOPIC and record.body:  # a lake may have no bodies
        lists = b"," in record.body
        messages = "several half messages" if lists else "one half message"
        yield Mark(f"an op message for {messages}", "op_message_lists_offsets", (lists,), offset)
    if transaction_type(record.sys_flag) is TransactionType.COMMIT and TRAN_MSG in names:
        keeps = REAL_TOPIC in names
        yield Mark(f"a commit {'with' if keeps else 'without'} REAL_TOPIC", "commit_keeps_real_topic", (keeps,), offset)


def checkpoint_mark(checkpoint: Checkpoint) -> Mark | None:
    """Return the mark in a checkpoint: each of its later fields came with a release, which need not fill it."""
    filled = max((number for number, value in enumerate(checkpoint, 1) if value), default=0)
    if filled <= OLDEST.checkpoint_fields:
        return None
    values = tuple(range(filled, len(checkpoint) + 1))
    return Mark(f"checkpoint field {checkpoint._fields[filled - 1]}", "checkpoint_fields", values)


def abort_mark(content: bytes) -> Mark | None:
    """Return the evidence for the release in the file `abort`: newer releases write a process id."""
    return Mark("the file abort contains a process id", "abort_has_process_id", (True,)) if content else None


_FILE_SWITCHES = {
    FileKind.LOCK: "lock_file",
    FileKind.ABORT_BACKUP: "abort_has_process_id",
    FileKind.BATCH_CONSUME_QUEUE: "inner_batches",
    FileKind.OTHER_COMPACTION: "compaction",
    FileKind.COMPACTION_LOG: "compaction",
    FileKind.COMPACTION_QUEUE: "compaction",
}


_RUST_DIRECTORIES = ("timerlog/v2/", "timer-v2/")


def file_marks(files: Iterable[StoreFile]) -> Iterator[Mark]:
    """Yield the marks of existing files; missing files prove nothing, because a copy may be incomplete."""
    for file in files:
        switch = _FILE_SWITCHES.get(file.kind)
        if file.path.startswith("rocksdbstore/"):
            switch = "rocksdb_directory_always"
        if file.path.startswith(_RUST_DIRECTORIES):
            yield Mark(f"{file.path} exists", "implementation", (RUST.implementation,))
        if switch:
            yield Mark(f"{file.path} exists", switch, (True,))


def slot_count_mark(header: IndexHeader, *, has_shared_slot: bool) -> Mark | None:
    """
    Return which rule an index file's `hash_slot_count` follows; None where no two entries are known to share a slot.

    A file may have been started under the old rule and continued under the new one.
    """
    if header.hash_slot_count < header.entry_count:
        rule, offset = HashSlotCount.EMPTY_SLOT, header.end_physical_offset
    elif has_shared_slot:
        rule, offset = HashSlotCount.EVERY_PUT, header.begin_physical_offset
    else:
        return None
    reason = f"an index file counts {header.hash_slot_count} slots for {header.entry_count} entries"
    return Mark(reason, "hash_slot_count", (rule,), offset)


def index_entry_marks(record: MessageRecord, key_hashes: Collection[int]) -> Iterator[Mark]:
    """Yield the marks in a record's index entries, whose hashes are *key_hashes*: indexed tags, parsed properties."""
    tags = parse_properties(record.properties_raw, PropertyParser.SCAN).get(TAGS)
    tag_hash = index_key_hash(tag_text(record.topic, tags)) if tags else None
    if tags:
        indexed = tag_hash in key_hashes
        reason = f"{'an' if indexed else 'no'} index entry for a message's tags"
        yield Mark(reason, "indexes_tags", (indexed,), record.physical_offset)
    marked = {index_key_hash(one.text): one for one in typed_index_keys(record, RUST) if one.is_marked}
    if marked.keys() & set(key_hashes):
        reason = f"index entries of unique keys as {RUST_PROJECT} writes them"
        yield Mark(reason, "implementation", (RUST.implementation,), record.physical_offset)
        return
    seen = {key_hash for key_hash in key_hashes if key_hash != tag_hash}
    fitting = [
        release.property_parser
        for release in _RELEASES_OF_PARSERS
        if {*map(index_key_hash, index_keys(record, release))} == seen
    ]
    if len(fitting) == 1:
        reason = f"index entries of the properties that the parser '{fitting[0].value}' finds"
        yield Mark(reason, "property_parser", (fitting[0],), record.physical_offset)
