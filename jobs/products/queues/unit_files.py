"""
Expected units in scratch files: written range by range, read queue by queue.

A queue's name determines its group. Each file contains units of one range, ordered by group, so that the task of a
group reads one section of every file, in log order. A range of small messages has several files.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import compress
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from jobs.storage.scratch import Scratch
from jobs.store.ranges import Range
from jobs.store.selection import Selection
from jobs.store.units import Units
from rmq_formats.arrays import slices_between_cuts
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.consumequeue.collect import PACKED_UNIT, PackedUnits, StoreTimes, UnitCollector
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName, UnitRules
from rmq_formats.properties import MAX_LONG

_A_GROUP = 64 << 20  # bytes of a log: with fewer, one task compares all queues, and units stay in memory
_SHORT_RANGE = 4 << 20  # bytes of records of a range: with fewer, its units stay in memory
_MOST_GROUPS = 64
_ALIGNED = 8
_CACHED_GROUPS = 1 << 16  # queues whose groups are remembered
_UNITS_AT_ONCE = 1 << 18  # units of a group's queues, about 10 MB; with fewer, the cost per queue dominates
_JUMP = 1 << 12  # a larger distance between queue offsets is a jump
_TAG_NUMBER = np.dtype(np.int32)


# Units that follow each other in the log: their scratch file, their bytes if there is no scratch directory, and the
# section of each group, which is its position, the size of its head and the number of its units.
UnitFile = tuple[str, bytes, NDArray[np.uint32]]


class RangeUnits(NamedTuple):
    """The units of one range of the log."""

    parts: tuple[UnitFile, ...] = ()
    records_end: int | None = None  # the end of the last record that was processed
    times: StoreTimes = StoreTimes()
    files: Mapping[str, Any] = {}  # files of tables (none)

    @property
    def scratch_files(self) -> tuple[str, ...]:
        """The scratch files."""
        return tuple(file for file, _, _ in self.parts if file)


class GroupUnits(NamedTuple):
    """Units of one queue, in the order of the log."""

    name: QueueName
    units: Units
    tag_numbers: NDArray[np.int32] | None  # indices into `tags`; -1: no tag
    tags: Sequence[str] = ()


def choose_group_count(log_size: int) -> int:
    """Return the number of groups for the queues of a log."""
    return min(max(log_size // _A_GROUP, 1), _MOST_GROUPS)


def group_of_queue(name: QueueName, groups: int) -> int:
    """Return the group that a queue belongs to."""
    return _compute_group(name, groups) if groups > 1 else 0


@lru_cache(_CACHED_GROUPS)
def _compute_group(name: QueueName, groups: int) -> int:
    return crc32(name.path.encode("utf-8", "surrogatepass")) % groups


class RangeUnitCollector:
    """Collects the units of one range, and writes them to a scratch file."""

    def __init__(  # noqa: PLR0913, PLR0917 - rules, place and limits
        self,
        rules: UnitRules,
        groups: int,
        scratch: Scratch | None,
        stem: str,
        from_offset: int = 0,
        to_offset: int = MAX_LONG,
        selection: Selection | None = None,
    ) -> None:
        """
        Start; a *selection* chooses topics, for which tags are written as well, and nothing for other topics.

        If topics are excluded, tags are omitted: units of any queue may belong to messages that were sent to another
        topic, delayed, retried or dispatched twice.
        """
        self._selection = selection
        self._groups, self._scratch, self._stem = groups, scratch, stem
        self._from, self._to = from_offset, to_offset
        self._new = partial(UnitCollector, rules, with_tags=selection is not None)
        self._collector = self._new()
        self._parts: list[UnitFile] = []
        self._records_end: int | None = None
        self._start: int | None = None  # the first record
        self._end = 0  # the last record
        self._times = StoreTimes()

    def add(self, item: RawRecords | Piece) -> None:
        """Process the next pieces of the range."""
        if isinstance(item, Piece):
            return
        if self._start is None:
            self._start = item.base_offset + int(item.positions[0])
        self._end = item.base_offset + int(item.positions[-1])
        self._collector.add(item, self._from, self._to)
        last = int(np.searchsorted(item.positions, self._to - item.base_offset)) - 1
        if last >= 0 and item.base_offset + int(item.positions[last]) >= self._from:
            self._records_end = item.base_offset + int(item.positions[last]) + int(item.sizes[last])
        if self._scratch is not None and self._collector.should_flush:
            self._write()

    def finish(self) -> RangeUnits:
        """Write the units that are left; those of a short range are passed on without a file."""
        if not self._parts and self._start is not None and self._end - self._start <= _SHORT_RANGE:
            self._scratch = None
        self._write()
        return RangeUnits(tuple(self._parts), self._records_end, self._times)

    def _write(self) -> None:
        selection = self._selection
        packed = self._collector.finish(lambda name: group_of_queue(name, self._groups))
        self._collector = self._new()
        self._times = self._times.followed_by(packed.times)
        if selection is not None and selection.exclude_topics:
            packed = packed._replace(tag_numbers=np.full_like(packed.tag_numbers, -1), tags=[])
        queues = [(name, at) for name, at in packed.queues() if selection is None or selection.includes(name.topic)]
        if queues:
            file, with_tags = f"{self._stem}-{len(self._parts)}.units", selection is not None
            self._parts.append(write_units(self._scratch, file, packed, queues, self._groups, with_tags=with_tags))


def new_range_unit_collector(
    rules: UnitRules, groups: int, scratch: Scratch | None, _range: Range, _files: ExitStack
) -> RangeUnitCollector:
    """Return the collector of a range's units."""
    return RangeUnitCollector(rules, groups, scratch, f"units-{uuid4()}")


def write_units(  # noqa: PLR0913 - the units, and their place
    scratch: Scratch | None,
    file: str,
    units: PackedUnits,
    queues: Sequence[tuple[QueueName, slice]],
    groups: int,
    *,
    with_tags: bool = False,
) -> UnitFile:
    """Write the units of some queues in a range."""
    sections = np.zeros((groups, 3), np.uint32)
    parts = _parts(units, queues, sections, with_tags=with_tags)
    if scratch is None:
        return "", b"".join(parts), sections
    with scratch.create(file) as sink:
        sink.writelines(parts)
    return file, b"", sections


def _parts(
    packed: PackedUnits, queues: Sequence[tuple[QueueName, slice]], sections: NDArray[np.uint32], *, with_tags: bool
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of all groups, and record their sections."""
    members: list[list[tuple[QueueName, slice]]] = [[] for _ in sections]
    for name, place in queues:
        members[group_of_queue(name, len(sections))].append((name, place))
    position = 0
    data, size = packed.units.view(np.uint8).data, PACKED_UNIT.itemsize
    for number, group in enumerate(members):
        texts: list[str] | None = None
        numbers: NDArray[np.int32] = np.empty(0, _TAG_NUMBER)
        if with_tags and group:
            every = np.concatenate([packed.tag_numbers[place] for _, place in group])
            is_used = np.bincount(every + 1, minlength=len(packed.tags) + 1)[1:] > 0
            numbers = np.append(np.cumsum(is_used) - 1, -1).astype(_TAG_NUMBER)[every]  # -1, no tag, is the last one
            texts = list(compress(packed.tags, is_used))
        head = json.dumps([[[*name, place.stop - place.start] for name, place in group], texts]).encode()
        head = head.ljust(-(-len(head) // _ALIGNED) * _ALIGNED)  # so that units are aligned after a read
        units = sum(place.stop - place.start for _, place in group)
        sections[number] = position, len(head), units
        yield head
        places = [place for _, place in group]
        if group and places[-1].stop - places[0].start == units:  # consecutive, unless some topics are left out
            places = [slice(places[0].start, places[-1].stop)]
        for place in places:
            yield data[place.start * size : place.stop * size]
        yield numbers.tobytes()
        position += len(head) + units * size + numbers.nbytes


def read_units(scratch: Scratch | None, ranges: Sequence[RangeUnits], group: int) -> Iterator[list[GroupUnits]]:
    """
    Yield the queues of a group with their units, those of many ranges together, in the order of the log.

    All queues of one yield share their tags. A queue occurs once, or once more after each jump of its queue offsets.
    """
    held: dict[QueueName, list[GroupUnits]] = {}
    tags: dict[str, int] = {}
    count = 0
    for unit_file in (part for one in ranges for part in one.parts):
        for part in _read_section(scratch, unit_file, group, tags):
            held.setdefault(part.name, []).append(part)
            count += part.units.size
        if count >= _UNITS_AT_ONCE:
            yield list(_join_parts(held, list(tags)))
            held, tags, count = {}, {}, 0
    if held:
        yield list(_join_parts(held, list(tags)))


def _read_section(scratch: Scratch | None, source: UnitFile, group: int, tags: dict[str, int]) -> Iterator[GroupUnits]:
    """Yield the queues of a group in one file; number their tags as in *tags*, to which new ones are added."""
    file, data, sections = source
    position, head_size, count = sections[group].tolist()
    if not count:
        return
    found = size = head_size + count * (PACKED_UNIT.itemsize + _TAG_NUMBER.itemsize)  # the size with tag numbers
    if scratch is None or not file:
        section = np.frombuffer(data[position : position + size], np.uint8)
    else:
        section = np.empty(size, np.uint8)
        with scratch.open(file) as reader:
            found = reader.read_into(position, section.data)
    queues, own_tags = json.loads(section[:head_size].tobytes()) if found >= head_size else ((), ())
    if scratch is not None and found < size - count * _TAG_NUMBER.itemsize * (own_tags is None):
        raise scratch.truncated_error(file)
    units = np.frombuffer(section, PACKED_UNIT, count, head_size)
    numbers: NDArray[np.int32] | None = None
    if own_tags is not None:
        shared = np.array([*(tags.setdefault(tag, len(tags)) for tag in own_tags), -1], _TAG_NUMBER)
        numbers = shared[np.frombuffer(section, _TAG_NUMBER, count, head_size + units.nbytes)]
    at = 0
    for kind, topic, queue_id, length in queues:
        own = slice(at, at + length)
        name = QueueName(QueueKind(kind), topic, queue_id)
        yield GroupUnits(name, units[own], None if numbers is None else numbers[own])
        at += length


def _join_parts(held: Mapping[QueueName, Sequence[GroupUnits]], tags: Sequence[str]) -> Iterator[GroupUnits]:
    for name, parts in held.items():
        # As bytes, because numpy compares the fields of each pair of structured arrays that it joins.
        units = np.concatenate([one.units.view(np.uint8) for one in parts]).view(PACKED_UNIT)
        numbers = [one.tag_numbers for one in parts if one.tag_numbers is not None]
        tag_numbers = np.concatenate(numbers) if numbers else None
        is_jump = np.abs(np.diff(units["queue_offset"])) > _JUMP  # the topic was recreated
        for some in slices_between_cuts(units.size, is_jump):
            yield GroupUnits(name, units[some], None if tag_numbers is None else tag_numbers[some], tags)


def has_units(ranges: Sequence[RangeUnits], group: int) -> bool:
    """Return whether a group has units."""
    return any(sections[group, 2] for one in ranges for *_, sections in one.parts)
