"""
Compares two stores with each other: log, queues, index files, positions of consumers, and epochs.

Replicas of one broker have the same log, byte for byte, and the same queues and index entries. So the first difference
shows where two replicas parted, and the ends of the logs show which one continues the other. Queues and index files are
compared only for the part of the log that is equal; differences after it follow from the log. Nothing is read twice,
and one block of each file is in memory at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from jobs.console.amounts import count_text, utc_time_text
from jobs.console.result import RatedOutcome, Result, Severity, worst_severity
from jobs.query.store_reader import StoreReader
from jobs.store.broker_config import ConsumerProgress, read_broker_config
from jobs.store.epochs import read_epochs
from jobs.store.queue_files import StoredQueue
from jobs.store.store import Store, StoredFile, read_index_header
from rmq_formats.commitlog.segment import is_fully_written
from rmq_formats.consumequeue.dispatch import QueueName
from rmq_formats.errors import CorruptData

_BLOCK = 4 << 20
_BLOCK_UNITS = 50_000
_FIRST, _SECOND = "the first store", "the second store"


class StoreDifference(NamedTuple):
    """The first difference of one part of two stores."""

    severity: Severity
    part: str  # log, queues, index, positions, epochs
    text: str
    file: str | None = None  # the file of the first store, or of the second if only that has it
    offset: int | None = None  # physical offset in the log, or the position in the file
    times: int = 1  # the number of differences of this kind


@dataclass(slots=True)
class StoreDiffSummary(RatedOutcome):
    """The result of a comparison of two stores."""

    first_store: str
    second_store: str
    from_offset: int = 0  # both logs have the offsets from here
    equal_until: int = 0  # physical offset up to which the logs are equal
    first_end: int = 0  # the end of the first store's log
    second_end: int = 0
    equal_queues: int = 0
    equal_index_files: int = 0
    differences: list[StoreDifference] = field(default_factory=list)
    relation: str = ""  # which store continues the other, as text

    @property
    def severity(self) -> Severity:
        """The worst severity."""
        return worst_severity([Severity.HEALTHY, *(one.severity for one in self.differences)])

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        differences = [one._asdict() | {"severity": str(one.severity)} for one in self.differences]
        return {**asdict(self), "severity": str(self.severity), "differences": differences}

    def result(self, seconds: float) -> Result:
        """Return the result line of the comparison."""
        compared = self.equal_until - self.from_offset
        return Result(self.severity, count_text(compared, "equal byte"), seconds, compared)

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        yield f"{self.first_store} \N{LEFT RIGHT ARROW} {self.second_store}"
        yield f"  log: equal from offset {self.from_offset:,} to {self.equal_until:,}"
        yield f"  {self.relation}"
        index_files = count_text(self.equal_index_files, "equal index file")
        yield f"  {count_text(self.equal_queues, 'equal queue')}, {index_files}"
        for one in self.differences:
            place = "" if one.offset is None else f" at {one.offset:,}"
            more = f" (and {one.times - 1:,} more)" if one.times > 1 else ""
            file = "" if one.file is None else f" {one.file}"
            yield f"  {str(one.severity).upper()} {one.part}{file}{place}: {one.text}{more}"


def compare_stores(first: Store, second: Store) -> StoreDiffSummary:
    """Compare two stores; raise `CorruptData` if their logs have no offset in common."""
    with StoreReader(first) as one, StoreReader(second) as other:
        pair = _Pair(one, other)
        start = max(first.start_offset, second.start_offset)
        ends = _find_complete_end(one), _find_complete_end(other)
        if start >= min(ends):
            ranges = f"{first.start_offset:,} to {ends[0]:,} and {second.start_offset:,} to {ends[1]:,}"
            raise CorruptData(f"the logs have no offset in common: {ranges}", None, f"{first.root}, {second.root}")
        found = StoreDiffSummary(first.root, second.root, start, min(ends), *ends)
        divergence = _find_log_difference(pair, start, min(ends))
        if divergence is not None:
            found.equal_until, difference = divergence
            found.differences.append(difference)
        found.relation = _describe_relation(pair, found, has_diverged=divergence is not None)
        common = range(start, found.equal_until)
        queue_differences, found.equal_queues = _compare_queues(pair, common)
        index_differences, found.equal_index_files = _compare_index_files(pair, common)
        found.differences += [*queue_differences, *index_differences]
        found.differences += _compare_positions(first, second)
        found.differences += _compare_epochs(first, second)
        if divergence is None and ends[0] != ends[1]:
            text = (
                f"the log of {_SECOND if ends[1] < ends[0] else _FIRST} ends {abs(ends[1] - ends[0]):,} bytes earlier"
            )
            found.differences.append(StoreDifference(Severity.BEHIND, "log", text, None, min(ends)))
        return found


class _Pair(NamedTuple):
    first: StoreReader
    second: StoreReader

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.first.store, self.second.store


# log


def _find_complete_end(reader: StoreReader) -> int:
    """Return the offset after the last record that is written to its last byte."""
    end = reader.log_end
    segment = reader.store.segment_at(end - 1)
    if segment is None:
        return end
    begin, record_end = reader.record_bounds_around(segment, end)
    if record_end != end or begin == end:
        return end
    record = reader.read_record(begin)
    return end if record is not None and is_fully_written(record) else begin


def _find_log_difference(pair: _Pair, start: int, end: int) -> tuple[int, StoreDifference] | None:
    """Return the offset up to which the logs are equal, and the first difference; None if there is none."""
    offset = start
    while offset < end:
        segments = [store.segment_at(offset) for store in pair.stores]
        first, second = segments
        if first is None or second is None:
            which, location = (_FIRST, second) if first is None else (_SECOND, first)
            file = None if location is None else location.location
            text = f"no segment of {which} has this offset"
            return offset, StoreDifference(Severity.GAP, "log", text, file, offset)
        limit = min(end, *(one.base_offset + one.readable_bytes for one in (first, second)))
        stop = min(limit, offset + _BLOCK)
        blocks = [
            bytes(reader.open_cached(segment.location).read(offset - segment.base_offset, stop - offset))
            for reader, segment in zip(pair, (first, second), strict=True)
        ]
        if blocks[0] == blocks[1]:
            offset = stop
            continue
        at = offset + _first_difference(*blocks)
        bounds = [
            reader.record_bounds_around(segment, at) for reader, segment in zip(pair, (first, second), strict=True)
        ]
        are_records = [begin <= at < stop_ for begin, stop_ in bounds]
        if not any(are_records):  # after the last record of a segment, files keep whatever was there before
            offset = limit
            continue
        record_start = min(begin for (begin, _), is_record in zip(bounds, are_records, strict=True) if is_record)
        if all(are_records):
            text = "the records differ" if bounds[0] == bounds[1] else "records of different sizes begin or end here"
        else:
            text = f"only {_FIRST if are_records[0] else _SECOND} has a record here"
        return record_start, StoreDifference(Severity.CONTRADICTION, "log", text, first.location, record_start)
    return None


def _first_difference(one: bytes, other: bytes) -> int:
    """Return the position of the first byte that differs; the length of the shorter one if it is a prefix."""
    size = min(len(one), len(other))
    differs = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(differs.argmax()) if differs.any() else size


def _describe_relation(pair: _Pair, found: StoreDiffSummary, *, has_diverged: bool) -> str:
    """Return which store continues the other, or where both went on differently."""
    ends = found.first_end, found.second_end
    if not has_diverged:
        if ends[0] == ends[1]:
            return "both logs end at the same offset"
        ahead = _FIRST if ends[0] > ends[1] else _SECOND
        more = f"{abs(ends[0] - ends[1]):,} more bytes, up to {max(ends):,}"
        newest_epochs = [epochs[-1] if (epochs := read_epochs(store)) else None for store in pair.stores]
        short, long = newest_epochs if ahead == _SECOND else reversed(newest_epochs)
        if short is not None and (long is None or short.number > long.number):
            epoch = f"the other one has the newer epoch {short.number} from offset {short.start_offset:,}"
            return f"{ahead} has {more}, but {epoch}: the controller will truncate the longer log"
        return f"{ahead} continues the other one: its log has {more}"
    if found.equal_until == found.from_offset:
        return "the logs differ from their first common byte: these are stores of different brokers"
    parts = []
    for name, reader, end in zip((_FIRST, _SECOND), pair, ends, strict=True):
        newest = _newest_store_timestamp(reader)
        stored = "" if newest is None else f", stored up to {utc_time_text(newest)}"
        epochs = read_epochs(reader.store)
        epoch = f", epoch {epochs[-1].number}" if epochs else ""
        parts.append(f"{name} has {max(end - found.equal_until, 0):,} bytes{stored}{epoch}")
    return f"the logs differ after offset {found.equal_until:,}: {'; '.join(parts)}"


def _newest_store_timestamp(reader: StoreReader) -> int | None:
    segment = reader.store.segment_at(reader.log_end - 1)
    if segment is None:
        return None
    begin, _ = reader.record_bounds_around(segment, segment.base_offset + segment.readable_bytes)
    record = reader.read_record(begin)
    return None if record is None else record.store_timestamp


# queues


def _compare_queues(pair: _Pair, common: range) -> tuple[list[StoreDifference], int]:
    """Return the first missing and the first different queue, and the number of equal ones."""
    first, second = ({queue.name: queue for queue in reader.stored_queues[0]} for reader in pair)
    missing, different, equal = list[StoreDifference](), list[StoreDifference](), 0
    for name in sorted(first.keys() | second.keys()):
        queues = first.get(name), second.get(name)
        ranges = [
            (0, 0) if queue is None else _units_of(reader, queue, common)
            for reader, queue in zip(pair, queues, strict=True)
        ]
        if all(first >= end for first, end in ranges):
            continue
        difference = _compare_queue(name, queues, ranges)
        if difference is None:
            equal += 1
        elif difference.severity is Severity.GAP:
            missing.append(difference)
        else:
            different.append(difference)
    return [some[0]._replace(times=len(some)) for some in (different, missing) if some], equal


def _units_of(reader: StoreReader, queue: StoredQueue, common: range) -> tuple[int, int]:
    end = reader.find_live_units(queue).end
    first = queue.first_unit_pointing_from(common.start, end)
    return first, queue.first_unit_pointing_from(common.stop, end) if first < end else first


def _compare_queue(
    name: QueueName, queues: Sequence[StoredQueue | None], ranges: Sequence[tuple[int, int]]
) -> StoreDifference | None:
    one, other = queues
    counts = [end - first for first, end in ranges]
    if one is None or other is None:
        which = _FIRST if one is None else _SECOND
        text = f"{which} does not have this queue, the other one has {count_text(max(counts), 'unit')}"
        return StoreDifference(Severity.GAP, "queues", text, name.path)
    start, end = max(first for first, _ in ranges), min(end for _, end in ranges)
    for at in range(start, end, _BLOCK_UNITS):
        stop = min(at + _BLOCK_UNITS, end)
        blocks = bytes(one.read(at, stop)), bytes(other.read(at, stop))
        if blocks[0] != blocks[1]:
            number = at + _first_difference(*blocks) // one.unit_size
            units = [queue.read_unit(number) for queue in (one, other)]
            offsets = " and ".join("none" if unit is None else f"{unit.physical_offset:,}" for unit in units)
            text = f"unit {number:,} differs: it points to offsets {offsets}"
            return StoreDifference(Severity.CONTRADICTION, "queues", text, name.path)
    if ranges[0] != ranges[1]:
        has = " and ".join(f"{first:,} to {end - 1:,}" if first < end else "none" for first, end in ranges)
        text = f"the stores have different units for the same part of the log: {has}"
        return StoreDifference(Severity.GAP, "queues", text, name.path)
    return None


# index


def _compare_index_files(pair: _Pair, common: range) -> tuple[list[StoreDifference], int]:
    """Compare files in order; their names are creation times, and differ between replicas."""
    found = [[one for one in _index_files(store) if one[1] in common] for store in pair.stores]
    equal, differences = 0, list[StoreDifference]()
    for one, other in zip_longest(*found):
        if one is None or other is None:
            which, has = (_FIRST, other) if one is None else (_SECOND, one)
            text = f"{which} has no further index file for this part of the log"
            differences.append(StoreDifference(Severity.GAP, "index", text, has[0].location, has[1]))
            continue
        if one[1] == other[1] and max(one[2], other[2]) >= common.stop:
            break  # keys after the common part were added to at least one of the files
        if one[1:] != other[1:]:
            ranges = " and ".join(f"{begin:,} to {end:,}" for _, begin, end in (one, other))
            text = f"the files contain keys of different parts of the log: {ranges}"
            differences.append(StoreDifference(Severity.CONTRADICTION, "index", text, one[0].location))
            break  # the files after it are divided in other places, too
        position = _find_file_difference(pair, one[0], other[0])
        if position is None:
            equal += 1
        else:
            text = f"differs from {other[0].location}"
            differences.append(StoreDifference(Severity.CONTRADICTION, "index", text, one[0].location, position))
    return [differences[0]._replace(times=len(differences))] if differences else [], equal


def _index_files(store: Store) -> Iterator[tuple[StoredFile, int, int]]:
    """Yield the index files with entries, and the physical offsets of their first and their last message."""
    for file in store.index_files:
        header = read_index_header(file, store)
        if header is not None and header.entry_count:
            yield file, header.begin_physical_offset, header.end_physical_offset


def _find_file_difference(pair: _Pair, one: StoredFile, other: StoredFile) -> int | None:
    size = max(one.size, other.size)
    for at in range(0, size, _BLOCK):
        blocks = [
            bytes(reader.open_cached(file.location).read(at, _BLOCK))
            for reader, file in zip(pair, (one, other), strict=True)
        ]
        if blocks[0] != blocks[1]:
            return at + _first_difference(*blocks)
    return None


# configuration


def _compare_positions(first: Store, second: Store) -> Iterator[StoreDifference]:
    """Yield the first position that differs, and the first one that only one store has."""

    def read_positions(store: Store) -> dict[tuple[object, ...], ConsumerProgress]:
        return {one[:4]: one for one in read_broker_config(store).progress}

    one, other = read_positions(first), read_positions(second)
    different = [name for name in one if name in other and one[name].next_offset != other[name].next_offset]
    if different:
        here, there = one[different[0]], other[different[0]]
        ahead = _FIRST if here.next_offset > there.next_offset else _SECOND
        text = f"{_name_consumer(here)} is at {here.next_offset:,} and {there.next_offset:,}; {ahead} is ahead"
        yield StoreDifference(Severity.BEHIND, "positions", text, here.recorded_in, None, len(different))
    for name, own, others in ((_SECOND, one, other), (_FIRST, other, one)):
        lacking = [own[key] for key in own if key not in others]
        if lacking:
            text = f"{name} has no position of {_name_consumer(lacking[0])}"
            yield StoreDifference(Severity.GAP, "positions", text, lacking[0].recorded_in, None, len(lacking))


def _name_consumer(consumer: ConsumerProgress) -> str:
    name = consumer.kind.value if consumer.consumer_group is None else f"group {consumer.consumer_group}"
    return f"{name} in queue {consumer.topic}/{consumer.queue_id}"


def _compare_epochs(first: Store, second: Store) -> Iterator[StoreDifference]:
    for one, other in zip_longest(read_epochs(first), read_epochs(second)):
        if one != other:
            has = " and ".join(
                "none" if epoch is None else f"epoch {epoch.number} from offset {epoch.start_offset:,}"
                for epoch in (one, other)
            )
            severity = Severity.BEHIND if one is None or other is None else Severity.CONTRADICTION
            yield StoreDifference(severity, "epochs", f"the first different epochs are: {has}")
            return
