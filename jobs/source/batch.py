"""
All messages of a store, as rows: `spark.read.format("rocketmq-store")`.

One partition reads one segment, or with `partitionSize` a part of one that begins where a record does: the driver
follows the sizes in the log to find such places, because bodies may hold whole records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from jobs.query.store_reader import StoreReader
from jobs.source.log import Place, data_loss, lose, lost_files
from jobs.source.options import FAILFAST, Wanted
from jobs.source.rows import RangePartition, rows_of
from jobs.source.start import start_of
from jobs.store.log_ends import lost_ends
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store, list_store


class RocketmqReader(DataSourceReader):
    """Spark's batch reader of a store: plans ranges on the driver, and reads them on the workers."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrow the read by the pushed conditions; Spark filters the rows all the same."""
        for given in filters:
            self._wanted = _narrowed(self._wanted, given)
            yield given

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges of the log that may hold wanted messages."""
        wanted = self._wanted
        store = list_store(wanted.path, commitlog=wanted.commitlog, options=wanted.file_system)
        store.require_log()
        place, writer = start_of(wanted, store)
        if place.offset < store.start_offset and wanted.fails_on_data_loss:
            raise data_loss(place.offset, store.start_offset, store.root)
        first = max(place.offset, wanted.from_offset)
        fails = wanted.fails_on_data_loss or wanted.mode == FAILFAST
        lose((*lost_files(store), *lost_ends(store)), first, wanted.to_offset, fails=fails)
        with StoreReader(store) as reader:
            ranges = [
                part for range_ in _ranges(reader, store, place, wanted) for part in _parts(reader, range_, wanted)
            ]
        return [RangePartition(range_, writer) for range_ in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages, batch by batch."""
        return rows_of(cast("RangePartition", partition), self._wanted)  # Spark hands back what `partitions` returned


# The bounds, lower and upper, that a condition on a column narrows.
_BOUNDS = {"physical_offset": ("from_offset", "to_offset"), "store_timestamp": ("from_time", "to_time")}


def _narrowed(wanted: Wanted, given: Filter) -> Wanted:
    column = ".".join(getattr(given, "attribute", ()))
    if column == "topic" and isinstance(given, EqualTo | In):
        return _with_topics(wanted, [given.value] if isinstance(given, EqualTo) else list(given.value))
    lower, upper = _BOUNDS.get(column, ("", ""))
    if lower and isinstance(given, GreaterThan | GreaterThanOrEqual):
        first = given.value + isinstance(given, GreaterThan)
        return replace(wanted, **{lower: max(getattr(wanted, lower), first)})
    if upper and isinstance(given, LessThan | LessThanOrEqual):
        end = given.value + isinstance(given, LessThanOrEqual)
        return replace(wanted, **{upper: min(getattr(wanted, upper), end)})
    return wanted


def _with_topics(wanted: Wanted, topics: list[Any]) -> Wanted:
    """Return the same question about *topics* alone; where topics were asked for already, Spark's filter suffices."""
    names = [str(topic) for topic in topics]
    if wanted.selection.topics or any(set(name) & set("*?[") for name in names):
        return wanted
    return replace(wanted, selection=replace(wanted.selection, topics=tuple(names)))


def _ranges(reader: StoreReader, store: Store, place: Place, wanted: Wanted) -> Iterator[Range]:
    ranges = plan_ranges(store, place.offset, WHOLE_SEGMENTS, place.store_timestamp)
    for range_ in ranges:
        begin, end = reader.segment_times[range_.base_offset]
        if range_.end_offset <= wanted.from_offset or range_.start_offset >= wanted.to_offset:
            continue
        if (end is None or end >= wanted.from_time) and (begin is None or begin < wanted.to_time):
            yield range_


def _parts(reader: StoreReader, range_: Range, wanted: Wanted) -> Iterator[Range]:
    segment = reader.store.segment_at(range_.base_offset)
    starts = [range_.start]
    if segment is not None and wanted.batch_part < range_.end - range_.start:
        starts += [start for start in reader.record_starts(segment, wanted.batch_part) if start > range_.start]
    for start, end in zip(starts, [*starts[1:], range_.end], strict=True):
        yield replace(range_, start=start, end=end)
