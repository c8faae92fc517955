"""
Which records are at given offsets of the log: asked only for units that nothing else explains.

A look at the bytes would not do: bodies may hold whole records, and leftovers lie after the end of the chain. So the
segments in question are walked from their beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.commitlog.record import decode_record
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.consumequeue.unit import ExpectedUnit, QueueRules, expected_units
from rmq_formats.properties import TAGS, parse_properties

DAMAGED = "damaged"
DELETED = "deleted"


class RecordAt(NamedTuple):
    """A record, as far as units tell of it."""

    units: tuple[ExpectedUnit, ...]
    store_timestamp: int
    tags: str | None


Resolved = Mapping[
    int, RecordAt | str
]  # DAMAGED: in bytes without a record; DELETED: deleted meanwhile; absent: none begins


def resolve(workers: Workers, store: Store, rules: QueueRules, offsets: Iterable[int]) -> Resolved:
    """Return the record that begins at each of *offsets*."""
    wanted = np.unique(np.fromiter(offsets, np.int64))
    ranges = [
        range_
        for range_ in plan_ranges(store, range_size=WHOLE_SEGMENTS)
        if ((wanted >= range_.start_offset) & (wanted < range_.end_offset)).any()
    ]
    found: dict[int, RecordAt | str] = {}
    for part in workers.map(ranges, partial(_resolve_in, wanted=wanted, rules=rules), "reading records again"):
        found.update(part)
    return found


def _resolve_in(range_: Range, *, wanted: NDArray[np.int64], rules: QueueRules) -> dict[int, RecordAt | str]:
    from jobs.store.range_reader import RangeReader

    inside = wanted[(wanted >= range_.start_offset) & (wanted < range_.end_offset)]
    found: dict[int, RecordAt | str] = {}
    reader = RangeReader(range_)
    for item in reader.pieces():
        if isinstance(item, Records):
            found.update(_records_in(item, inside, rules))
        elif item.kind is PieceKind.DAMAGE:
            found.update(_damaged_in(item, inside))
    return {**dict.fromkeys(inside.tolist(), DELETED), **found} if reader.was_deleted else found


def _records_in(records: Records, wanted: NDArray[np.int64], rules: QueueRules) -> Iterator[tuple[int, RecordAt]]:
    hits = np.flatnonzero(np.isin(records.positions + records.base_offset, wanted))
    for number in hits.tolist():
        start = int(records.positions[number])
        end = start + int(records.sizes[number])
        record = decode_record(records.buffer[start:end].tobytes(), 0, records.base_offset + start)
        parser = rules.release_at(record.physical_offset).property_parser
        tags = parse_properties(record.properties_raw, parser).get(TAGS)
        yield record.physical_offset, RecordAt(tuple(expected_units(record, rules)), record.store_timestamp, tags)


def _damaged_in(piece: Piece, wanted: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
    for offset in wanted[(wanted >= piece.offset) & (wanted < piece.end)].tolist():
        yield offset, DAMAGED
