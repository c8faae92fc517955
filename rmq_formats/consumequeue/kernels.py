"""
Compiled readers of the units that records add: the same rules as in `dispatch`, applied to positions in a buffer.

Only the fields that determine queue and unit are read. In rare cases a pass ends early and returns the reason: a queue
is not in the table yet, a record needs the scalar module, or a table is full.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.commitlog.kernels import (
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    prefetch_record,
    read_store_timestamp,
    record_parts,
)
from rmq_formats.commitlog.layout import INNER_BATCH, TRANSACTION_MASK, TransactionType
from rmq_formats.compiled import compiled, compiled_helper
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX
from rmq_formats.kernels.integers import Bytes, Integers, as_bytes, byte_at, number_at, read_i32, read_i64, same_bytes
from rmq_formats.kernels.text import (
    TABLE_FULL,
    TextTable,
    copy_as_java_text,
    find_or_add_text,
    hash_text,
    is_valid_utf8,
    next_property,
    table_hash,
)
from rmq_formats.properties import DELAY, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, MAX_INT, TAGS

if TYPE_CHECKING:
    from rmq_formats.commitlog.scan import RawRecords

# The fields of a unit: the rows of a matrix with one column per unit.
(
    UNIT_QUEUE,
    UNIT_QUEUE_OFFSET,
    UNIT_PHYSICAL_OFFSET,
    UNIT_TAGS_CODE,
    UNIT_STORE_TIMESTAMP,
    UNIT_SIZE,
    UNIT_BATCH_COUNT,
    UNIT_MULTI_DISPATCHED,
    UNIT_TAG,
) = range(9)
UNIT_ROWS = 9

# The fields of a queue: the columns of `QueueTable.keys`.
KEY_NUMBER, KEY_QUEUE_ID, KEY_NAME, KEY_NAME_END, KEY_TOPIC_KIND, KEY_LEFT_OUT_OF_MULTI_DISPATCH = range(6)
KEY_COLUMNS = 6

# How the records of a queue are read.
ORDINARY_TOPIC, DELAYED_TOPIC, BATCH_TOPIC = range(3)

# The reasons why a pass stops, and what the caller does before it calls again from the same record, of which no unit
# was added. A tag may have been numbered already; numbering it again finds the same number.
DONE = 0  # all records were read
NEW_QUEUE = 1  # add the row of the record's queue
NEEDS_SCALAR = 2  # let the scalar module collect this record, and begin after it
NO_UNIT_ROOM = 3  # empty `units`
NO_TAG_ROOM = 4  # make the table of tags larger

_TAGS, _DELAY, _MULTI_DISPATCH, _MULTI_OFFSET, _LMQ = (
    as_bytes(text.encode()) for text in (TAGS, DELAY, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, LMQ_PREFIX)
)
_PREPARED = int(TransactionType.PREPARED)
_ROLLBACK = int(TransactionType.ROLLBACK)
_ZERO, _NINE, _COMMA, _SLASH, _SPACE = (ord(sign) for sign in "09,/ ")
_SAFE_DIGITS = 18  # digits of a number that certainly fits into 64 bits
_LOW_32 = (1 << 32) - 1
_SPREAD = 0x45D9F3B5


class QueueTable(NamedTuple):
    """The known queues, by the bytes of their names."""

    slots: Integers  # row in `keys` of the queue with this hash; -1: none. The size is a power of two
    keys: Integers  # one row per queue, with the position of its name in `names`
    names: Bytes


class DispatchSettings(NamedTuple):
    """The rules by which records are read: those of one release, and of the broker's configuration."""

    parser: int
    multi_dispatch: bool
    lmq: bool
    multi_dispatch_excludes_topics: bool  # whether multi-dispatch skips some topics
    delays_ms: Integers  # the delay of each delay level
    delay_without_levels_ms: int  # if there are no delay levels


@compiled
def find_queue(buffer: Bytes, start: int, end: int, queue_id: int, queues: QueueTable) -> tuple[int, int]:
    """Return the row of a queue (-1 when it is new) and its slot."""
    slots, keys, names = queues
    # Spread the hash: otherwise "T2" of queue 1 and "T3" of queue 0 would collide.
    slot = table_hash(buffer, start, end, (queue_id * _SPREAD) & _LOW_32) & (slots.size - 1)
    while slots[slot] >= 0:
        row = slots[slot]
        name, name_end = keys[row, KEY_NAME], keys[row, KEY_NAME_END]
        if keys[row, KEY_QUEUE_ID] == queue_id and same_bytes(buffer, start, end, names, name, name_end):
            return row, slot
        slot = (slot + 1) & (slots.size - 1)
    return -1, slot


@compiled_helper
def _end_of_part(buffer: Bytes, at: int, end: int) -> int:
    while at < end and byte_at(buffer, at) != _COMMA:
        at += 1
    return at


@compiled_helper
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


@compiled_helper
def _further_queue(
    buffer: Bytes,
    start: int,
    end: int,
    queue_id: int,
    lmq: bool,  # noqa: FBT001 - compiled code has no keywords
    queues: QueueTable,
) -> int:
    """Return the row of a queue that a record names in addition to its own; -1 if the scalar module has to decide."""
    for i in range(end - start):
        code = byte_at(buffer, start + i)
        if code in (_SLASH, _SPACE):
            return -1
    if lmq and end - start >= _LMQ.size and same_bytes(buffer, start, start + _LMQ.size, _LMQ, 0, _LMQ.size):
        queue_id = 0
    row, _ = find_queue(buffer, start, end, queue_id, queues)
    return row if row >= 0 and queues.keys[row, KEY_TOPIC_KIND] != BATCH_TOPIC else -1


@compiled_helper
def _dispatch(
    buffer: Bytes, name: int, names_end: int, offset: int, offsets_end: int, queue_id: int, lmq: bool,  # noqa: FBT001
    queues: QueueTable, units: Integers, count: int,
) -> int:  # fmt: skip
    """
    Add a unit for each queue in a list of names, with its offset in another list; return the new count.

    The record's own unit is number *count* - 1. -1 if the scalar module has to decide, -2 if the room is used up.
    """
    first = count - 1
    while True:
        name_end, offset_end = _end_of_part(buffer, name, names_end), _end_of_part(buffer, offset, offsets_end)
        if name_end == name or (name_end == names_end) != (offset_end == offsets_end):
            return -1
        row = _further_queue(buffer, name, name_end, queue_id, lmq, queues)
        queue_offset = _small_number(buffer, offset, offset_end)
        if row < 0 or queue_offset < 0:
            return -1
        if count == units.shape[1]:
            return -2
        for field in range(UNIT_ROWS):
            units[field, count] = units[field, first]
        units[UNIT_QUEUE, count] = queues.keys[row, KEY_NUMBER]
        units[UNIT_QUEUE_OFFSET, count] = queue_offset
        units[UNIT_MULTI_DISPATCHED, count] = 1
        count += 1
        if name_end == names_end:
            return count
        name, offset = name_end + 1, offset_end + 1


@compiled
def find_or_add_tags(tags: TextTable, buffer: Bytes, start: int, end: int, scratch: Bytes) -> int:
    """Return the number of a TAGS text as Java reads it, of at most the size of *scratch*; TABLE_FULL without room."""
    if not is_valid_utf8(buffer, start, end):
        buffer, start, end = scratch, 0, copy_as_java_text(buffer, start, end, scratch, 0)
    return find_or_add_text(tags, buffer, start, end)


@compiled
def copy_texts(source: TextTable, target: TextTable) -> None:
    """Add all texts of a table to an empty larger one, in which they have the same numbers."""
    for number in range(number_at(source.count_and_seed, 0)):
        find_or_add_text(target, source.heap, source.ends[number], source.ends[number + 1])


@compiled
def collect_units(
    records: "RawRecords", at: int, stop: int, settings: DispatchSettings,
    queues: QueueTable, units: Integers, count: int, known_tags: TextTable, scratch: Bytes,
) -> tuple[int, int, int]:  # fmt: skip
    """
    Collect the units of records *at* to *stop*; there are *count* units. A table without slots gets no tags.

    Return the record at which the pass stopped, the reason, and the new number of units.
    """
    buffer, keys = records.buffer, queues.keys
    while at < stop:
        if count == units.shape[1]:
            return at, NO_UNIT_ROOM, count
        start = records.positions[at]
        prefetch_record(buffer, records.positions, at)
        sys_flag = read_i32(buffer, start + SYS_FLAG_AT)
        if sys_flag & TRANSACTION_MASK in (_PREPARED, _ROLLBACK):
            at += 1
            continue
        if sys_flag & INNER_BATCH:
            return at, NEEDS_SCALAR, count
        parts = record_parts(buffer, start)
        row, _ = find_queue(buffer, parts.topic, parts.topic_end, read_i32(buffer, start + QUEUE_ID_AT), queues)
        if row < 0:
            return at, NEW_QUEUE, count
        if keys[row, KEY_TOPIC_KIND] == BATCH_TOPIC:
            return at, NEEDS_SCALAR, count
        properties = parts.properties
        tags, tags_end, delay, delay_end = properties, properties, properties, properties
        further, further_end, offsets, offsets_end = properties, properties, properties, properties
        next_at = seen = properties
        bits = 0
        while next_at < parts.properties_end:
            name, name_end, value, value_end, next_at, seen, bits = next_property(
                buffer, next_at, parts.properties_end, settings.parser, seen, bits
            )
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
        code = hash_text(buffer, tags, tags_end, 0)
        tag = -1
        if tags_end > tags and known_tags.slots.size:
            tag = find_or_add_tags(known_tags, buffer, tags, tags_end, scratch)
            if tag == TABLE_FULL:
                return at, NO_TAG_ROOM, count
        stored = read_store_timestamp(buffer, start)
        if keys[row, KEY_TOPIC_KIND] == DELAYED_TOPIC and delay_end > delay:
            level = _small_number(buffer, delay, delay_end)
            if not 0 <= level <= MAX_INT:
                return at, NEEDS_SCALAR, count
            if level > 0:
                level = min(level, settings.delays_ms.size)
                code = stored + (settings.delays_ms[level - 1] if level > 0 else settings.delay_without_levels_ms)
        units[UNIT_QUEUE, count] = keys[row, KEY_NUMBER]
        units[UNIT_QUEUE_OFFSET, count] = read_i64(buffer, start + QUEUE_OFFSET_AT)
        units[UNIT_PHYSICAL_OFFSET, count] = records.base_offset + start
        units[UNIT_TAGS_CODE, count] = code
        units[UNIT_STORE_TIMESTAMP, count] = stored
        units[UNIT_SIZE, count] = records.sizes[at]
        units[UNIT_BATCH_COUNT, count] = 0
        units[UNIT_MULTI_DISPATCHED, count] = 0
        units[UNIT_TAG, count] = tag
        count += 1
        has_lists = further_end > further and offsets_end > offsets
        if (
            settings.multi_dispatch
            and has_lists
            and not (settings.multi_dispatch_excludes_topics and keys[row, KEY_LEFT_OUT_OF_MULTI_DISPATCH])
        ):
            queue_id, lmq = read_i32(buffer, start + QUEUE_ID_AT), settings.lmq
            after = _dispatch(buffer, further, further_end, offsets, offsets_end, queue_id, lmq, queues, units, count)
            if after < 0:
                return at, NEEDS_SCALAR if after == -1 else NO_UNIT_ROOM, count - 1
            count = after
        at += 1
    return at, DONE, count


@compiled
def group_units(
    block: Integers, count: int, ranks: Integers, places: Integers, units: Integers, tags: NDArray[np.int32]
) -> None:
    """
    Group the first *count* units of a block by queue, in their existing order.

    *ranks* are the ranks of the queues, and *places* the position of the next unit of each queue; *units* are rows of
    five numbers, each row a `PACKED_UNIT`; *tags* may be empty. A block is always passed as a whole, because numba
    compiles a function again for an array that is cut.
    """
    for i in range(count):
        rank = ranks[block[UNIT_QUEUE, i]]
        at = places[rank]
        places[rank] = at + 1
        units[at, 0] = block[UNIT_QUEUE_OFFSET, i]
        units[at, 1] = block[UNIT_PHYSICAL_OFFSET, i]
        units[at, 2] = block[UNIT_TAGS_CODE, i]
        units[at, 3] = block[UNIT_STORE_TIMESTAMP, i]
        short = (block[UNIT_BATCH_COUNT, i] & 0xFFFF) | (block[UNIT_MULTI_DISPATCHED, i] << 16)
        units[at, 4] = (block[UNIT_SIZE, i] & 0xFFFFFFFF) | (short << 32)
        if tags.size:
            tags[at] = block[UNIT_TAG, i]
