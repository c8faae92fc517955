"""
Queues at the speed of the disk: the units of a range collected queue by queue, then appended file by file.

`UnitCollector` reads the records of a range and keeps the units that the dispatcher makes of them; what is rare (a
queue seen for the first time, a batch, a record that appears in several queues) it leaves to the scalar `unit` module.
`QueueBuilder` takes a queue's units in the order of the log, slice by slice, and gives the bytes that they add, as the
scalar `queue` module would. Both are held to those modules by property tests.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.commitlog.kernels import (
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    record_parts,
    store_timestamp,
)
from rmq_formats.commitlog.record import decode_record
from rmq_formats.compiled import compiled
from rmq_formats.consumequeue.ext import offset_of_number
from rmq_formats.consumequeue.layout import (
    BATCH_UNIT,
    EXT_ADDRESS_BASE,
    EXT_END,
    EXT_UNIT,
    MAX_QUEUE_OFFSET,
    PRE_BLANK_SIZE,
    UNIT,
)
from rmq_formats.consumequeue.unit import (
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    QueueKind,
    QueueName,
    QueueRules,
    delay_ms,
    expected_units,
    is_left_out_of_multi_dispatch,
    logical_offset,
)
from rmq_formats.flags import INNER_BATCH, TRANSACTION_MASK, TransactionType
from rmq_formats.hashing import java_text
from rmq_formats.kernels import (
    PARSER_CODES,
    Bytes,
    Integers,
    Sizes,
    byte_at,
    clean_text_size,
    copy_clean_text,
    hash_text,
    next_property,
    read_i32,
    read_i64,
    same_bytes,
    write_i32,
    write_i64,
)
from rmq_formats.layout import Layout
from rmq_formats.properties import DELAY, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, TAGS
from rmq_formats.release import Release, UnitSkip

if TYPE_CHECKING:
    from rmq_formats.commitlog.scan import Records

# An expected unit, as it lies in memory and in scratch files.
PACKED_UNIT = np.dtype(
    [
        ("queue_offset", "<i8"),
        ("physical_offset", "<i8"),
        ("tags_code", "<i8"),
        ("store_timestamp", "<i8"),
        ("size", "<i4"),
        ("batch_count", "<i2"),
        ("is_dispatched", "<i2"),
    ]
)


def dtype_of(layout: Layout) -> np.dtype[np.void]:
    """Return a layout as an array's type."""
    return np.dtype([(field.name, f">i{row.size}") for field, row in zip(layout.fields, layout.rows(), strict=True)])


UNITS = {QueueKind.PLAIN: dtype_of(UNIT), QueueKind.BATCH: dtype_of(BATCH_UNIT)}
EXT_UNITS = dtype_of(EXT_UNIT)
_EXT_END_MARK = EXT_END.to_bytes(2, "big", signed=True)


class PackedUnits(NamedTuple):
    """The units of a range: those of queue `names[n]` are `units[starts[n]:starts[n + 1]]`, in the order of the log."""

    names: list[QueueName]  # sorted
    starts: Integers
    units: NDArray[np.void]
    tag_numbers: NDArray[np.int32]  # of each unit, -1 for none; empty unless asked for
    tags: list[str]

    def queues(self) -> Iterator[tuple[QueueName, slice]]:
        """Yield each queue and where its units are."""
        for number, name in enumerate(self.names):
            yield name, slice(int(self.starts[number]), int(self.starts[number + 1]))


# Rows of the collector's matrix, one column a unit.
_QUEUE, _QUEUE_OFFSET, _PHYSICAL_OFFSET, _TAGS_CODE, _STORE_TIMESTAMP, _SIZE, _BATCH_COUNT, _DISPATCHED, _TAG = range(9)
_ROWS = 9

# Why a compiled loop comes back before its last record.
_DONE, _NEW_QUEUE, _SPECIAL, _NO_UNIT_ROOM, _NO_TAG_ROOM = range(5)

# How the records of a queue are read.
_ORDINARY, _SCHEDULED, _BATCHED = range(3)

_TAGS = np.frombuffer(TAGS.encode(), np.uint8).copy()
_DELAY = np.frombuffer(DELAY.encode(), np.uint8).copy()
_MULTI_DISPATCH = np.frombuffer(INNER_MULTI_DISPATCH.encode(), np.uint8).copy()
_MULTI_OFFSET = np.frombuffer(INNER_MULTI_QUEUE_OFFSET.encode(), np.uint8).copy()
_LMQ = np.frombuffer(LMQ_PREFIX.encode(), np.uint8).copy()
_PREPARED = int(TransactionType.PREPARED)
_ROLLBACK = int(TransactionType.ROLLBACK)
_PLUS, _MINUS, _ZERO, _NINE, _COMMA, _SLASH, _SPACE = (ord(sign) for sign in "+-09,/ ")
_SAFE_DIGITS = 18  # of a number that 64 bits surely hold
_MAX_INT = (1 << 31) - 1
_TEXT_ROOM = 1 << 17  # more than the text of any property can take
_TAG_SLOTS = 4096
_ANY = (1 << 63) - 1


@compiled
def _hash_bytes(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """Return a number that spreads names over a table."""
    value = seed & 0xFFFFFFFF
    for i in range(end - start):
        value = ((value ^ byte_at(buffer, start + i)) * 0x01000193) & 0xFFFFFFFF
    return value ^ (value >> 15)


@compiled
def _find_queue(
    buffer: Bytes, start: int, end: int, queue_id: int, slots: Integers, keys: Integers, names: Bytes
) -> tuple[int, int]:
    """Return the row of a queue in *keys* (-1 when it is new) and its slot."""
    slot = _hash_bytes(buffer, start, end, queue_id) & (slots.size - 1)
    while slots[slot] >= 0:
        row = slots[slot]
        if keys[row, 1] == queue_id and same_bytes(buffer, start, end, names, keys[row, 2], keys[row, 3]):
            return row, slot
        slot = (slot + 1) & (slots.size - 1)
    return -1, slot


@compiled
def _java_int(buffer: Bytes, start: int, end: int) -> tuple[bool, int]:
    """Read a 32-bit integer as Java's `parseInt` does; (False, 0) where it throws."""
    at = start
    negative = at < end and byte_at(buffer, at) == _MINUS
    if at < end and byte_at(buffer, at) in (_PLUS, _MINUS):
        at += 1
    if at == end:
        return False, 0
    value = 0
    while at < end:
        digit = byte_at(buffer, at)
        if digit < _ZERO or digit > _NINE:
            return False, 0
        value = value * 10 + digit - _ZERO
        if value > _MAX_INT + 1:
            return False, 0
        at += 1
    if negative:
        value = -value
    return value <= _MAX_INT, value


@compiled
def _end_of_part(buffer: Bytes, at: int, end: int) -> int:
    """Return where a part of a list ends: at a comma, or where the list does."""
    while at < end and byte_at(buffer, at) != _COMMA:
        at += 1
    return at


@compiled
def _small_number(buffer: Bytes, start: int, end: int) -> int:
    """Read a number of a few digits; -1 for anything else."""
    if end == start or end - start > _SAFE_DIGITS:
        return -1
    value = 0
    for i in range(end - start):
        digit = byte_at(buffer, start + i)
        if digit < _ZERO or digit > _NINE:
            return -1
        value = value * 10 + digit - _ZERO
    return value


@compiled
def _further_queue(
    buffer: Bytes, start: int, end: int, queue_id: int, lmq: bool,  # noqa: FBT001 - compiled code has no keywords
    slots: Integers, keys: Integers, names: Bytes,
) -> int:  # fmt: skip
    """Return the row of a queue that a record names beside its own; -1 where the scalar module has to look."""
    for i in range(end - start):
        code = byte_at(buffer, start + i)
        if code in (_SLASH, _SPACE):
            return -1
    if lmq and end - start >= _LMQ.size and same_bytes(buffer, start, start + _LMQ.size, _LMQ, 0, _LMQ.size):
        queue_id = 0
    row, _ = _find_queue(buffer, start, end, queue_id, slots, keys, names)
    return row if row >= 0 and keys[row, 4] != _BATCHED else -1


@compiled
def _dispatch(
    buffer: Bytes, name: int, names_end: int, offset: int, offsets_end: int, queue_id: int, lmq: bool,  # noqa: FBT001
    slots: Integers, keys: Integers, names: Bytes, units: Integers, count: int,
) -> int:  # fmt: skip
    """
    Add the units of a record's further queues behind its own, which is number *count* - 1; return the new count.

    -1 where the scalar module has to look, -2 where there is no room.
    """
    first = count - 1
    while True:
        name_end, offset_end = _end_of_part(buffer, name, names_end), _end_of_part(buffer, offset, offsets_end)
        if name_end == name or (name_end == names_end) != (offset_end == offsets_end):
            return -1
        row = _further_queue(buffer, name, name_end, queue_id, lmq, slots, keys, names)
        queue_offset = _small_number(buffer, offset, offset_end)
        if row < 0 or queue_offset < 0:
            return -1
        if count == units.shape[1]:
            return -2
        for field in range(_ROWS):
            units[field, count] = units[field, first]
        units[_QUEUE, count] = keys[row, 0]
        units[_QUEUE_OFFSET, count] = queue_offset
        units[_DISPATCHED, count] = 1
        count += 1
        if name_end == names_end:
            return count
        name, offset = name_end + 1, offset_end + 1


@compiled
def _tag_number(
    buffer: Bytes, start: int, end: int, code: int, cache: NDArray[np.int32], ends: Integers, text: Bytes, count: int
) -> tuple[int, int]:
    """Return the number of a tags text and how many there are; a text seen lately keeps its number."""
    slot = code & (_TAG_SLOTS - 1)
    known = cache[slot]
    if known >= 0 and same_bytes(buffer, start, end, text, ends[known], ends[known + 1]):
        return known, count
    ends[count + 1] = copy_clean_text(buffer, start, end, text, ends[count])
    cache[slot] = count
    return count, count + 1


@compiled
def _collect(
    buffer: Bytes, base_offset: int, positions: Integers, sizes: Sizes, at: int, stop: int,
    parser: int, multi_dispatch: bool, lmq: bool, excludes: bool, delays: Integers, default_delay: int,  # noqa: FBT001
    slots: Integers, keys: Integers, names: Bytes, units: Integers, count: int,
    cache: NDArray[np.int32], ends: Integers, text: Bytes, tag_count: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect the units of records *at* to *stop*; return the record it stopped at, why, and both counts."""
    while at < stop:
        if count == units.shape[1]:
            return at, _NO_UNIT_ROOM, count, tag_count
        start = positions[at]
        sys_flag = read_i32(buffer, start + SYS_FLAG_AT)
        if sys_flag & TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            at += 1
            continue
        if sys_flag & INNER_BATCH:
            return at, _SPECIAL, count, tag_count
        _, _, topic, topic_end, properties, properties_end = record_parts(buffer, start)
        row, _ = _find_queue(buffer, topic, topic_end, read_i32(buffer, start + QUEUE_ID_AT), slots, keys, names)
        if row < 0:
            return at, _NEW_QUEUE, count, tag_count
        if keys[row, 4] == _BATCHED:
            return at, _SPECIAL, count, tag_count
        tags, tags_end, delay, delay_end = properties, properties, properties, properties
        further, further_end, offsets, offsets_end = properties, properties, properties, properties
        next_at = properties
        while next_at < properties_end:
            name, name_end, value, value_end, next_at = next_property(buffer, next_at, properties_end, parser)
            size = name_end - name
            if value == value_end:
                continue
            if size == _TAGS.size and same_bytes(buffer, name, name_end, _TAGS, 0, size):
                tags, tags_end = value, value_end
            elif size == _DELAY.size and same_bytes(buffer, name, name_end, _DELAY, 0, size):
                delay, delay_end = value, value_end
            elif size == _MULTI_DISPATCH.size and same_bytes(buffer, name, name_end, _MULTI_DISPATCH, 0, size):
                further, further_end = value, value_end
            elif size == _MULTI_OFFSET.size and same_bytes(buffer, name, name_end, _MULTI_OFFSET, 0, size):
                offsets, offsets_end = value, value_end
        code = hash_text(buffer, tags, tags_end)
        tag = -1
        if tags_end > tags and ends.size:
            if ends[tag_count] + clean_text_size(buffer, tags, tags_end) > text.size or tag_count + 2 > ends.size:
                return at, _NO_TAG_ROOM, count, tag_count
            tag, tag_count = _tag_number(buffer, tags, tags_end, code, cache, ends, text, tag_count)
        stored = store_timestamp(buffer, start)
        if keys[row, 4] == _SCHEDULED and delay_end > delay:
            is_number, level = _java_int(buffer, delay, delay_end)
            if not is_number:
                at += 1
                continue
            if level > 0:
                level = min(level, delays.size)
                code = stored + (delays[level - 1] if level > 0 else default_delay)
        units[_QUEUE, count] = keys[row, 0]
        units[_QUEUE_OFFSET, count] = read_i64(buffer, start + QUEUE_OFFSET_AT)
        units[_PHYSICAL_OFFSET, count] = base_offset + start
        units[_TAGS_CODE, count] = code
        units[_STORE_TIMESTAMP, count] = stored
        units[_SIZE, count] = sizes[at]
        units[_BATCH_COUNT, count] = 0
        units[_DISPATCHED, count] = 0
        units[_TAG, count] = tag
        count += 1
        if multi_dispatch and further_end > further and offsets_end > offsets and not (excludes and keys[row, 5]):
            queue_id = read_i32(buffer, start + QUEUE_ID_AT)
            after = _dispatch(
                buffer, further, further_end, offsets, offsets_end, queue_id, lmq, slots, keys, names, units, count
            )
            if after < 0:
                return at, _SPECIAL if after == -1 else _NO_UNIT_ROOM, count - 1, tag_count
            count = after
        at += 1
    return at, _DONE, count, tag_count


@compiled
def _group(numbers: Integers, places: Integers, order: Integers) -> None:
    """Fill *order* so that equal numbers come together and what came first stays first; *places* are their starts."""
    for i in range(numbers.size):
        order[places[numbers[i]]] = i
        places[numbers[i]] += 1


class UnitCollector:
    """Collects the units of a range; memory grows with their number, some 80 bytes each."""

    def __init__(self, rules: QueueRules, *, with_tags: bool = False) -> None:
        """Collect by *rules*; *with_tags* keeps the TAGS text of each unit, too."""
        self._rules = rules
        self._delays = np.array(rules.delays_ms, np.int64)
        self._default_delay = delay_ms(1, ())
        self._queues: dict[QueueName, int] = {}
        self._slots = np.full(1024, -1, np.int64)
        # Number, queue id, name's start and end, how it is read, whether it is left out of multi-dispatch.
        self._keys = np.empty((512, 6), np.int64)
        self._known = 0
        self._names = np.empty(1 << 14, np.uint8)
        self._names_end = 0
        self._units = np.empty((_ROWS, 1 << 12), np.int64)
        self._count = 0
        self._cache = np.full(_TAG_SLOTS, -1, np.int32)
        self._ends = np.zeros(1 << 10 if with_tags else 0, np.int64)
        self._text = np.empty(2 * _TEXT_ROOM if with_tags else 0, np.uint8)
        self._tag_count = 0

    def add(self, records: "Records", from_offset: int = 0, to_offset: int = _ANY) -> None:
        """Collect the units of those *records* that stand in [*from_offset*, *to_offset*)."""
        first, last = np.searchsorted(
            records.positions, [from_offset - records.base_offset, min(to_offset - records.base_offset, _ANY)]
        )
        for at, stop, release in self._runs(records, int(first), int(last)):
            self._add(records, at, stop, release)

    def _runs(self, records: "Records", first: int, last: int) -> Iterator[tuple[int, int, Release]]:
        """Cut records where another release begins to write."""
        sinces = [since for since, _ in self._rules.releases]
        cuts = np.searchsorted(records.positions, [since - records.base_offset for since in sinces[1:]])
        bounds = [first, *(min(max(int(cut), first), last) for cut in cuts), last]
        for (_, release), at, stop in zip(self._rules.releases, bounds, bounds[1:], strict=False):
            if at < stop:
                yield at, stop, release

    def _add(self, records: "Records", at: int, stop: int, release: Release) -> None:
        parser = PARSER_CODES[release.property_parser]
        multi_dispatch = self._rules.multi_dispatch and release.multi_dispatch
        while at < stop:
            at, reason, self._count, self._tag_count = _collect(
                records.buffer, records.base_offset, records.positions, records.sizes, at, stop,
                parser, multi_dispatch, self._rules.lmq, release.multi_dispatch_excludes_topics,
                self._delays, self._default_delay,
                self._slots, self._keys, self._names, self._units, self._count,
                self._cache, self._ends, self._text, self._tag_count,
            )  # fmt: skip
            if reason == _NO_UNIT_ROOM:
                self._grow_units()
            elif reason == _NO_TAG_ROOM:
                self._grow_tags()
            elif reason == _NEW_QUEUE:
                self._register(records.buffer, int(records.positions[at]))
            elif reason == _SPECIAL:
                self._add_special(records, at)
                at += 1

    def _grow_units(self) -> None:
        self._units = np.concatenate([self._units, np.empty_like(self._units)], axis=1)

    def _grow_tags(self) -> None:
        if self._tag_count + 2 > self._ends.size:
            self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        if self._text.size - int(self._ends[self._tag_count]) < _TEXT_ROOM:
            self._text = np.concatenate([self._text, np.empty_like(self._text)])

    def _register(self, buffer: Bytes, start: int) -> None:
        """Enter the queue of a record."""
        _, _, topic_at, topic_end, _, _ = record_parts(buffer, start)
        topic = bytes(buffer[topic_at:topic_end])
        self._enter_name(topic, java_text(topic), int(read_i32(buffer, start + QUEUE_ID_AT)))

    def _enter_name(self, raw: bytes, topic: str, queue_id: int) -> None:
        """Give a queue a number and an entry in the table, by the very bytes of its name."""
        if self._find(raw, queue_id) >= 0:
            return
        reading = _SCHEDULED if topic == SCHEDULE_TOPIC else _ORDINARY
        kind = QueueKind.PLAIN
        if topic in self._rules.batch_topics:
            reading, kind = _BATCHED, QueueKind.BATCH
        if self._known == len(self._keys):
            self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
        while self._names.size - self._names_end < len(raw):
            self._names = np.concatenate([self._names, np.empty_like(self._names)])
        end = self._names_end + len(raw)
        self._names[self._names_end : end] = np.frombuffer(raw, np.uint8)
        number = self._number(QueueName(kind, topic, queue_id))
        left_out = is_left_out_of_multi_dispatch(topic)
        self._keys[self._known] = number, queue_id, self._names_end, end, reading, left_out
        self._known += 1
        self._names_end = end
        if self._known * 2 > self._slots.size:
            self._slots = np.full(self._slots.size * 4, -1, np.int64)
            for row in range(self._known):
                self._enter(row)
        else:
            self._enter(self._known - 1)

    def _find(self, raw: bytes, queue_id: int) -> int:
        name = np.frombuffer(raw, np.uint8).copy()
        row, _ = _find_queue(name, 0, name.size, queue_id, self._slots, self._keys, self._names)
        return int(row)

    def _enter(self, row: int) -> None:
        _, queue_id, start, end, _, _ = (int(value) for value in self._keys[row])
        _, slot = _find_queue(self._names, start, end, queue_id, self._slots, self._keys, self._names)
        self._slots[slot] = row

    def _number(self, name: QueueName) -> int:
        return self._queues.setdefault(name, len(self._queues))

    def _add_special(self, records: "Records", at: int) -> None:
        start = int(records.positions[at])
        end = start + int(records.sizes[at])
        place = int(read_i64(records.buffer, start + PHYSICAL_OFFSET_AT))
        record = decode_record(records.buffer[start:end].tobytes(), 0, place)
        parser = self._rules.release_at(place).property_parser
        tag = self._special_tag(record.properties_raw, PARSER_CODES[parser])
        for unit in expected_units(record, self._rules):
            if unit.is_dispatched:
                # Next time the compiled loop knows it.
                self._enter_name(
                    unit.queue.topic.encode("utf-8", "surrogatepass"), unit.queue.topic, unit.queue.queue_id
                )
            if self._count == self._units.shape[1]:
                self._grow_units()
            self._units[:, self._count] = (
                self._number(unit.queue),
                *(unit.queue_offset, unit.physical_offset, unit.tags_code, unit.store_timestamp, unit.size),
                *(unit.batch_count, unit.is_dispatched),
                tag,
            )
            self._count += 1

    def _special_tag(self, properties: bytes, parser: int) -> int:
        text = np.frombuffer(properties, np.uint8).copy()
        start, end = _last_tags(text, parser)
        if not self._ends.size or start == end:
            return -1
        self._grow_tags()
        code = hash_text(text, start, end)
        number, self._tag_count = _tag_number(
            text, start, end, code, self._cache, self._ends, self._text, self._tag_count
        )
        return int(number)

    def finish(self) -> PackedUnits:
        """Return what was collected, queue by queue."""
        names = sorted(self._queues)
        rank = np.empty(len(names), np.int64)
        for place, name in enumerate(names):
            rank[self._queues[name]] = place
        collected = self._units[:, : self._count]
        numbers = rank[collected[_QUEUE]]
        starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=len(names)))])
        order = np.empty(self._count, np.int64)
        _group(numbers, starts.copy(), order)
        units = np.zeros(self._count, PACKED_UNIT)
        for field, row in _FIELD_ROWS.items():
            units[field] = collected[row][order]
        with_tags = self._ends.size > 0
        tag_numbers = collected[_TAG][order].astype(np.int32) if with_tags else np.empty(0, np.int32)
        return PackedUnits(names, starts, units, tag_numbers, self._tags())

    def _tags(self) -> list[str]:
        text = self._text.tobytes() if self._tag_count else b""
        ends = self._ends[: self._tag_count + 1].tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]


_FIELD_ROWS = {
    "queue_offset": _QUEUE_OFFSET,
    "physical_offset": _PHYSICAL_OFFSET,
    "tags_code": _TAGS_CODE,
    "store_timestamp": _STORE_TIMESTAMP,
    "size": _SIZE,
    "batch_count": _BATCH_COUNT,
    "is_dispatched": _DISPATCHED,
}


@compiled
def _last_tags(properties: Bytes, parser: int) -> tuple[int, int]:
    start, end, at = 0, 0, 0
    while at < properties.size:
        name, name_end, value, value_end, at = next_property(properties, at, properties.size, parser)
        if value_end > value and same_bytes(properties, name, name_end, _TAGS, 0, _TAGS.size):
            start, end = value, value_end
    return start, end


def pack_units(records: "Records", rules: QueueRules, *, with_tags: bool = False) -> PackedUnits:
    """Return the units of one group of records."""
    collector = UnitCollector(rules, with_tags=with_tags)
    collector.add(records)
    return collector.finish()


# --- appending -------------------------------------------------------------------------------------------------------

# What a queue's builder remembers between slices.
_END, _FILES_END, _LAST_OFFSET, _LAST_END, _APPENDED, _MISPLACED, _SKIPPED = range(7)

_UNIT_SIZE = UNIT.size
_MAX_QUEUE_OFFSET = MAX_QUEUE_OFFSET
_SIZE_AT = UNIT.offset("size")
_TAGS_CODE_AT = UNIT.offset("tags_code")


@compiled
def _append(
    queue_offsets: Integers, physical_offsets: Integers, sizes: Sizes, tags_codes: Integers,
    file_size: int, skips_by_end: bool, drops_low: bool, state: Integers, out: Bytes,  # noqa: FBT001 - see above
) -> int:  # fmt: skip
    """Append units as `queue.ConsumeQueue` does; return how many bytes were written to *out*."""
    written = 0
    for i in range(queue_offsets.size):
        unit_end = physical_offsets[i] + sizes[i]
        if (skips_by_end and unit_end <= state[_LAST_END]) or (
            not skips_by_end and physical_offsets[i] <= state[_LAST_OFFSET]
        ):
            state[_SKIPPED] += 1
            continue
        is_place = -_MAX_QUEUE_OFFSET <= queue_offsets[i] <= _MAX_QUEUE_OFFSET
        expected = queue_offsets[i] * _UNIT_SIZE if is_place else -1
        if state[_END] == state[_FILES_END]:
            state[_FILES_END] += file_size
        if drops_low and queue_offsets[i] != 0 and expected < state[_END]:
            state[_SKIPPED] += 1
            continue
        state[_LAST_OFFSET] = physical_offsets[i]
        state[_LAST_END] = unit_end
        state[_MISPLACED] += expected != state[_END]
        write_i64(out, written, physical_offsets[i])
        write_i32(out, written + _SIZE_AT, sizes[i])
        write_i64(out, written + _TAGS_CODE_AT, tags_codes[i])
        written += _UNIT_SIZE
        state[_END] += _UNIT_SIZE
        state[_APPENDED] += 1
    return written


class Stretch(NamedTuple):
    """Bytes of a queue and the logical offset of the first."""

    offset: int
    data: NDArray[np.uint8]


class QueueBuilder:
    """One queue that begins empty: takes its units in the order of the log, gives the bytes that they add."""

    def __init__(self, kind: QueueKind, file_size: int, releases: Sequence[tuple[int, Release]]) -> None:
        """Make files of *file_size* bytes; *releases* as in `QueueRules`."""
        self.kind = kind
        self.file_size = file_size
        self.start: int | None = None  # of the first file
        self._releases = releases
        self._state = np.array([0, 0, -1, -1, 0, 0, 0], np.int64)

    @property
    def end(self) -> int:
        """The logical offset behind the last unit."""
        return int(self._state[_END])

    @property
    def files_end(self) -> int:
        """The logical offset behind the last file."""
        return int(self._state[_FILES_END])

    @property
    def misplaced(self) -> int:
        """How many units do not stand where their queue offset says."""
        return int(self._state[_MISPLACED])

    @property
    def skipped(self) -> int:
        """How many units the broker would not have written."""
        return int(self._state[_SKIPPED])

    def append(self, units: NDArray[np.void]) -> Iterator[Stretch]:
        """Yield what *units* (of `PACKED_UNIT`) add."""
        if not units.size:
            return
        if self.kind is QueueKind.BATCH:
            yield from self._append_batches(units)
            return
        if self.start is None:
            yield from self._begin(max(logical_offset(int(units["queue_offset"][0])), 0))
        cuts = np.searchsorted(units["physical_offset"], [since for since, _ in self._releases[1:]]).tolist()
        for (_, release), at, stop in zip(self._releases, [0, *cuts], [*cuts, units.size], strict=True):
            if at < stop:
                yield from self._append_by(release, units[at:stop])

    def _begin(self, expected: int) -> Iterator[Stretch]:
        self.start = expected // self.file_size * self.file_size
        blanks = np.zeros((expected - self.start) // UNIT.size, UNITS[QueueKind.PLAIN])
        blanks["size"] = PRE_BLANK_SIZE
        self._state[_END] = expected
        self._state[_FILES_END] = self.start + self.file_size
        if blanks.size:
            yield Stretch(self.start, blanks.view(np.uint8))

    def _append_by(self, release: Release, units: NDArray[np.void]) -> Iterator[Stretch]:
        out = np.empty(units.size * UNIT.size, np.uint8)
        end = self.end
        written = _append(
            units["queue_offset"],
            units["physical_offset"],
            units["size"],
            units["tags_code"],
            self.file_size,
            release.unit_skip is UnitSkip.END_NOT_BEYOND_LAST_END,
            release.drops_low_queue_offset,
            self._state,
            out,
        )
        if written:
            yield Stretch(end, out[:written])

    def _append_batches(self, units: NDArray[np.void]) -> Iterator[Stretch]:
        offsets = units["physical_offset"]
        before = np.maximum.accumulate(np.concatenate([self._state[_LAST_OFFSET : _LAST_OFFSET + 1], offsets[:-1]]))
        kept = units[offsets > before]
        self._state[_SKIPPED] += units.size - kept.size
        if not kept.size:
            return
        made = np.zeros(kept.size, UNITS[QueueKind.BATCH])
        for field in ("physical_offset", "size", "tags_code", "store_timestamp", "batch_count"):
            made[field] = kept[field]
        made["base_offset"] = kept["queue_offset"]
        made["compacted_offset"] = -1
        self.start = 0
        end = self.end
        self._state[_LAST_OFFSET] = kept["physical_offset"][-1]
        self._state[_APPENDED] += kept.size
        self._state[_END] += made.nbytes
        self._state[_FILES_END] = -(-self.end // self.file_size) * self.file_size
        yield Stretch(end, made.view(np.uint8))


class ExtBuilder:
    """The extension of one queue: gives its units addresses, and the bytes behind them."""

    def __init__(self, file_size: int) -> None:
        """Make files of *file_size* bytes."""
        self.file_size = file_size
        self._count = 0

    def append(self, units: NDArray[np.void]) -> tuple[NDArray[np.void], Iterator[Stretch]]:
        """Return *units* with addresses for tags codes, and what they add to the extension."""
        own = units["is_dispatched"] == 0
        added = units[own]
        offsets = np.array([offset_of_number(self._count + n, self.file_size) for n in range(added.size)], np.int64)
        addressed = units.copy()
        addressed["tags_code"][own] = offsets + EXT_ADDRESS_BASE
        first = self._count
        self._count += added.size
        return addressed, self._stretches(added, offsets, first)

    def _stretches(self, units: NDArray[np.void], offsets: Integers, first: int) -> Iterator[Stretch]:
        made = np.zeros(units.size, EXT_UNITS)
        made["size"] = EXT_UNIT.size
        made["tags_code"] = units["tags_code"]
        made["store_timestamp"] = units["store_timestamp"]
        for number, offset in enumerate(offsets.tolist()):
            if offset % self.file_size == 0 and first + number:
                previous = offset_of_number(first + number - 1, self.file_size) + EXT_UNIT.size
                yield Stretch(previous, np.frombuffer(_EXT_END_MARK, np.uint8))
            yield Stretch(offset, made[number : number + 1].view(np.uint8))
