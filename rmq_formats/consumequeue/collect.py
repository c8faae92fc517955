"""
Collects the units of a range by queue, at disk speed.

Compiled passes leave rare cases (a queue seen for the first time, a batch, a record that appears in several queues) to
the scalar module `dispatch`, with which property tests compare them.
"""

from collections.abc import Callable, Iterator
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.commitlog.kernels import PHYSICAL_OFFSET_AT, QUEUE_ID_AT, record_parts
from rmq_formats.commitlog.record import decode_record
from rmq_formats.compiled import compile_large_work
from rmq_formats.consumequeue import kernels
from rmq_formats.consumequeue.dispatch import (
    SCHEDULE_TOPIC,
    QueueKind,
    QueueName,
    UnitRules,
    delay_ms,
    expected_units,
    is_left_out_of_multi_dispatch,
)
from rmq_formats.consumequeue.kernels import QueueTable
from rmq_formats.kernels.integers import Integers, as_bytes, read_i32, read_i64
from rmq_formats.kernels.text import PROPERTY_PARSER_CODES, TABLE_FULL, new_text_table
from rmq_formats.properties import MAX_LONG, TAGS, decode_java_text, parse_properties
from rmq_formats.release import Release

if TYPE_CHECKING:
    from rmq_formats.commitlog.scan import RawRecords

# An expected unit, as stored in memory and in scratch files.
PACKED_UNIT = np.dtype(
    [
        ("queue_offset", "<i8"),
        ("physical_offset", "<i8"),
        ("tags_code", "<i8"),
        ("store_timestamp", "<i8"),
        ("size", "<i4"),
        ("batch_count", "<i2"),
        ("is_multi_dispatched", "<i2"),
    ]
)

_UNIT_NUMBERS = PACKED_UNIT.itemsize // 8  # a unit as the compiled pass writes it
_FIRST_ROOM = 1 << 12  # units of a block; most ranges have few
_ROOM = 1 << 16
_MANY = 1 << 18  # units, after which they should be written, not held in memory
_MANY_OF_A_QUEUE = 256  # average number of units per queue; fewer are not worth a separate write
_TAG_SLOTS, _TAG_ROOM = 1 << 11, 1 << 18  # at first; more than the longest text
_LONGEST_TAGS = 1 << 17  # more than the longest text of a property
_MOST_MET = 1 << 16  # queues: a log of garbage may name any number
_THREAD = local()


class StoreTimes(NamedTuple):
    """The store times of a part of the log."""

    first_to_newest: tuple[int, int] | None = None  # the lowest and the highest one; None without any
    setback_ms: int = 0  # the largest step back in time: the broker's clock was set back

    def followed_by(self, later: "StoreTimes") -> "StoreTimes":
        """Return the times of this part and the next one."""
        if self.first_to_newest is None or later.first_to_newest is None:
            return later if self.first_to_newest is None else self
        (low, high), (later_low, later_high) = self.first_to_newest, later.first_to_newest
        setback_ms = max(self.setback_ms, later.setback_ms, high - later_low)
        return StoreTimes((min(low, later_low), max(high, later_high)), setback_ms)


def find_store_times(times: Integers) -> StoreTimes:
    """Return the extremes of times in the order of the log."""
    if not times.size:
        return StoreTimes()
    highest = np.maximum.accumulate(times)
    setbacks = highest.view(np.uint64) - times.view(np.uint64)  # a difference of two times may not fit into 63 bits
    return StoreTimes((int(times.min()), int(highest[-1])), int(setbacks.max()))


class PackedUnits(NamedTuple):
    """The units of a range: those of queue `names[n]` are `units[starts[n]:starts[n + 1]]`, in the order of the log."""

    names: list[QueueName]
    starts: Integers
    units: NDArray[np.void]
    tag_numbers: NDArray[np.int32]  # the tag number of each unit, -1 for none; empty unless requested
    tags: list[str]
    times: StoreTimes = StoreTimes()

    def queues(self) -> Iterator[tuple[QueueName, slice]]:
        """Yield each queue with the slice of its units."""
        for number, name in enumerate(self.names):
            yield name, slice(int(self.starts[number]), int(self.starts[number + 1]))


class UnitCollector:
    """Collects the units of a range; memory grows by about 80 bytes per unit."""

    def __init__(self, rules: UnitRules, *, with_tags: bool = False) -> None:
        """Collect by *rules*; *with_tags* also keeps the TAGS text of each unit."""
        self._rules = rules
        self._delays = np.array(rules.delays_ms, np.int64)
        self._default_delay = delay_ms(1, ())
        self._queues = _known_queues(frozenset() if rules.in_rocksdb else rules.batch_topics)
        self._with_tags = with_tags
        self._tags = new_text_table(_TAG_SLOTS if with_tags else 0, _TAG_ROOM)
        self._scratch = np.empty(_LONGEST_TAGS, np.uint8)
        # Blocks with the numbers of units in them: an array that grew would be in memory twice.
        self._full: list[tuple[NDArray[np.int64], int]] = []
        self._units = np.empty((kernels.UNIT_ROWS, _FIRST_ROOM), np.int64)
        self._count = 0

    def add(self, records: "RawRecords", from_offset: int = 0, to_offset: int = MAX_LONG) -> None:
        """Collect the units of those *records* that are in [*from_offset*, *to_offset*)."""
        compile_large_work(records.byte_count)
        first, last = np.searchsorted(
            records.positions, [from_offset - records.base_offset, min(to_offset - records.base_offset, MAX_LONG)]
        )
        sinces = [since for since, _ in self._rules.releases]
        cuts = np.searchsorted(records.positions, [since - records.base_offset for since in sinces[1:]])
        bounds = [int(first), *np.clip(cuts, first, last).tolist(), int(last)]
        for (_, release), at, stop in zip(self._rules.releases, bounds, bounds[1:], strict=False):
            self._add_records(records, at, stop, release)

    def _add_records(self, records: "RawRecords", at: int, stop: int, release: Release) -> None:
        """Collect the units of records *at* to *stop*, with the rules of *release*."""
        rules = self._rules
        reading = kernels.DispatchSettings(
            PROPERTY_PARSER_CODES[release.property_parser], rules.multi_dispatch and release.multi_dispatch, rules.lmq,
            release.multi_dispatch_excludes_topics, self._delays, self._default_delay,
        )  # fmt: skip
        while at < stop:
            at, reason, self._count = kernels.collect_units(
                records, at, stop, reading, self._queues.table, self._units, self._count, self._tags, self._scratch
            )  # fmt: skip
            if reason == kernels.NO_UNIT_ROOM:
                self._begin_block()
            elif reason == kernels.NO_TAG_ROOM:
                self._make_tag_room()
            elif reason == kernels.NEW_QUEUE:
                parts = record_parts(records.buffer, records.positions[at])
                topic = bytes(records.buffer[parts.topic : parts.topic_end])
                queue_id = int(read_i32(records.buffer, records.positions[at] + QUEUE_ID_AT))
                self._queues.enter(topic, decode_java_text(topic), queue_id)
            elif reason == kernels.NEEDS_SCALAR:
                self._add_special(records, at)
                at += 1

    def _begin_block(self) -> None:
        self._full.append((self._units, self._count))
        self._units = np.empty((kernels.UNIT_ROWS, _ROOM), np.int64)
        self._count = 0

    def _add_special(self, records: "RawRecords", at: int) -> None:
        start = int(records.positions[at])
        end = start + int(records.sizes[at])
        place = int(read_i64(records.buffer, start + PHYSICAL_OFFSET_AT))
        record = decode_record(records.buffer[start:end].data, 0, place)
        properties = parse_properties(record.properties_raw, self._rules.release_at(place).property_parser)
        tag = self._tag_number(properties.get(TAGS, ""))
        for unit in expected_units(record, self._rules):
            if unit.is_multi_dispatched:  # the compiled pass finds this queue after this
                topic = unit.queue.topic
                self._queues.enter(topic.encode("utf-8", "surrogatepass"), topic, unit.queue.queue_id)
            if self._count == self._units.shape[1]:
                self._begin_block()
            self._units[:, self._count] = (
                self._queues.number(unit.queue),
                *(unit.queue_offset, unit.physical_offset, unit.tags_code, unit.store_timestamp, unit.size),
                *(unit.batch_count, unit.is_multi_dispatched),
                tag,
            )
            self._count += 1

    def _tag_number(self, tags: str) -> int:
        """Return the number of a TAGS text; -1 for an empty one."""
        if not tags or not self._with_tags:
            return -1
        text = as_bytes(tags.encode())
        while (number := kernels.find_or_add_tags(self._tags, text, 0, text.size, self._scratch)) == TABLE_FULL:
            self._make_tag_room()
        return int(number)

    def _make_tag_room(self) -> None:
        larger = new_text_table(4 * self._tags.slots.size, 4 * self._tags.heap.size)
        kernels.copy_texts(self._tags, larger)
        self._tags = larger

    @property
    def should_flush(self) -> bool:
        """Whether there are so many units that they should be written before more are added."""
        held = sum(count for _, count in self._full) + self._count
        return bool(held >= max(_MANY, _MANY_OF_A_QUEUE * len(self._queues.names)))

    def finish(self, order: Callable[[QueueName], Any] | None = None) -> PackedUnits:
        """Return the collected units, queue by queue, sorted by *order*, or else by name."""
        blocks = (*self._full, (self._units, self._count))
        names = self._queues.names
        counts = np.zeros(len(names), np.int64)
        for block, count in blocks:
            counts += np.bincount(block[kernels.UNIT_QUEUE, :count], minlength=len(names))
        present = sorted(np.flatnonzero(counts).tolist(), key=names.__getitem__)
        if order is not None:
            present.sort(key=lambda number: order(names[number]))
        ranks = np.zeros(len(names), np.int64)
        ranks[present] = np.arange(len(present))
        starts = np.concatenate([[0], np.cumsum(counts[present])])
        units = np.empty(int(starts[-1]), PACKED_UNIT)
        tag_numbers = np.empty(units.size if self._with_tags else 0, np.int32)
        places = starts[:-1].copy()
        for block, count in blocks:
            numbers = units.view(np.int64).reshape(-1, _UNIT_NUMBERS)
            kernels.group_units(block, count, ranks, places, numbers, tag_numbers)
        assert (places == starts[1:]).all()  # each queue has as many units as were counted
        tags = [text.decode() for text in self._tags.list_texts()]
        times = StoreTimes()
        for block, count in blocks:
            times = times.followed_by(find_store_times(block[kernels.UNIT_STORE_TIMESTAMP, :count]))
        return PackedUnits([names[number] for number in present], starts, units, tag_numbers, tags, times)


def _known_queues(batch_topics: frozenset[str]) -> "_Queues":
    """
    Return the queues of this thread's ranges: adding a queue takes as long as collecting hundreds of units.

    Ranges share them, because a queue keeps its number, numbers only grow, and `finish` returns only queues with units.
    Two ranges at the same time must not share them, so each thread has its own.
    """
    met: _Queues | None = getattr(_THREAD, "met", None)
    if met is None or met.batch_topics != batch_topics or len(met.names) > _MOST_MET:
        met = _THREAD.met = _Queues(batch_topics)
    return met


class _Queues:
    """Queues and their numbers, in a table that grows."""

    def __init__(self, batch_topics: frozenset[str]) -> None:
        self.batch_topics = batch_topics
        self.names: list[QueueName] = []  # the names of queues, by number
        self._numbers: dict[QueueName, int] = {}
        self._known = 0
        self._names_end = 0
        self.table = QueueTable(
            np.full(1 << 10, -1, np.int64),
            np.empty((1 << 9, kernels.KEY_COLUMNS), np.int64),
            np.empty(1 << 14, np.uint8),
        )

    def number(self, name: QueueName) -> int:
        """Return the number of a queue, a new one if it was not seen before."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def enter(self, raw: bytes, topic: str, queue_id: int) -> None:
        """Add a queue, by the bytes of its name, if it is not in the table."""
        name = np.frombuffer(raw, np.uint8).copy()
        if kernels.find_queue(name, 0, name.size, queue_id, self.table)[0] >= 0:
            return
        reading = kernels.DELAYED_TOPIC if topic == SCHEDULE_TOPIC else kernels.ORDINARY_TOPIC
        kind = QueueKind.PLAIN
        if topic in self.batch_topics:
            reading, kind = kernels.BATCH_TOPIC, QueueKind.BATCH
        self._make_room(len(raw))
        start, end = self._names_end, self._names_end + len(raw)
        self.table.names[start:end] = name
        number = self.number(QueueName(kind, topic, queue_id))
        self.table.keys[self._known] = number, queue_id, start, end, reading, is_left_out_of_multi_dispatch(topic)
        self._link(self._known)
        self._known += 1
        self._names_end = end

    def _make_room(self, name_size: int) -> None:
        slots, keys, names = self.table
        if self._known == len(keys):
            keys = np.concatenate([keys, np.empty_like(keys)])
        while names.size - self._names_end < name_size:
            names = np.concatenate([names, np.empty_like(names)])
        is_crowded = 2 * self._known >= slots.size
        self.table = QueueTable(np.full(4 * slots.size, -1, np.int64) if is_crowded else slots, keys, names)
        if is_crowded:
            for row in range(self._known):
                self._link(row)

    def _link(self, row: int) -> None:
        """Add a queue's row to the hash table."""
        _, queue_id, start, end, _, _ = (int(value) for value in self.table.keys[row])
        _, slot = kernels.find_queue(self.table.names, start, end, queue_id, self.table)
        self.table.slots[slot] = row
