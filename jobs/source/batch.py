"""
All messages of a store, as rows: `spark.read.format("rocketmq-store")`.

One partition reads one segment, or with `partitionSize` a part of one that begins where a record does: the driver
follows the sizes in the log to find such places, because bodies may hold whole records. A task makes Arrow batches of
its range, with the columns of the table `messages`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
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

from jobs.export.items import table_rows
from jobs.products.messages import parts_by_release
from jobs.query.store_reader import StoreReader
from jobs.source.log import Place, Writer, data_loss, lose, lost_files, start_of
from jobs.source.options import EVERYTHING, ReadOptions
from jobs.store.log_ends import lost_ends
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.store import Store, list_store
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import CorruptData


class RangePartition(InputPartition):
    """The range of one task."""

    def __init__(self, range_: Range, writer: Writer) -> None:
        super().__init__(range_.start_offset)
        self.range = range_
        self.writer = writer


class RocketmqReader(DataSourceReader):
    """Spark's batch reader of a store: plans ranges on the driver, and reads them on the workers."""

    def __init__(self, wanted: ReadOptions) -> None:
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
        lose((*lost_files(store), *lost_ends(store)), first, wanted.to_offset, fails=wanted.stops_on_loss)
        with StoreReader(store) as reader:
            return [RangePartition(part, writer) for part in _parts(reader, store, place, wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages, batch by batch."""
        return rows_of(partition, self._wanted)


# The bounds, lower and upper, that a condition on a column narrows.
_BOUNDS = {"physical_offset": ("from_offset", "to_offset"), "store_timestamp": ("from_time", "to_time")}


def _narrowed(wanted: ReadOptions, given: Filter) -> ReadOptions:
    column = ".".join(getattr(given, "attribute", ()))
    if column == "topic" and isinstance(given, EqualTo | In):
        names = [str(topic) for topic in ([given.value] if isinstance(given, EqualTo) else given.value)]
        if wanted.selection.topics or any(set(name) & set("*?[") for name in names):  # Spark's own filter suffices
            return wanted
        return replace(wanted, selection=replace(wanted.selection, topics=tuple(names)))
    lower, upper = _BOUNDS.get(column, ("", ""))
    if lower and isinstance(given, GreaterThan | GreaterThanOrEqual):
        first = given.value + isinstance(given, GreaterThan)
        return replace(wanted, **{lower: max(getattr(wanted, lower), first)})
    if upper and isinstance(given, LessThan | LessThanOrEqual):
        end = given.value + isinstance(given, LessThanOrEqual)
        return replace(wanted, **{upper: min(getattr(wanted, upper), end)})
    return wanted


def _parts(reader: StoreReader, store: Store, place: Place, wanted: ReadOptions) -> Iterator[Range]:
    size = wanted.partition_size or WHOLE_SEGMENTS
    for range_ in plan_ranges(store, place.offset, WHOLE_SEGMENTS, place.store_timestamp):
        begin, end = reader.segment_times[range_.base_offset]
        is_inside = range_.end_offset > wanted.from_offset and range_.start_offset < wanted.to_offset
        if not is_inside or (end is not None and end < wanted.from_time):
            continue
        if begin is not None and begin >= wanted.to_time:
            continue
        segment, starts = store.segment_at(range_.base_offset), [range_.start]
        if segment is not None and size < range_.end - range_.start:
            starts += [start for start in reader.record_starts(segment, size) if start > range_.start]
        for start, stop in zip(starts, [*starts[1:], range_.end], strict=True):
            yield replace(range_, start=start, end=stop)


def rows_of(partition: InputPartition, wanted: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield a range's messages, batch by batch."""
    own = cast("RangePartition", partition)  # Spark hands back what `partitions` returned
    range_, writer, selection = own.range, own.writer, wanted.selection
    with_body = selection.with_body and (wanted.columns is None or "body" in wanted.columns)
    reader = RangeReader(range_)
    for item in reader.pieces():
        if isinstance(item, Piece):
            if item.is_lost and wanted.fails_on_damage:
                raise CorruptData(item.reason, item.offset, range_.location)
            continue
        for group, parser in parts_by_release(item, writer.rules):
            batch, bad = message_batch(group, parser, with_body=with_body, takes=selection.takes_or_all)
            if bad and wanted.fails_on_damage:
                raise CorruptData("a body with a wrong CRC", bad[0][0], range_.location)
            if (wanted.from_offset, wanted.to_offset, wanted.from_time, wanted.to_time) != EVERYTHING:
                offset, time = batch.column("physical_offset"), batch.column("store_timestamp")
                in_offsets = pc.and_(pc.greater_equal(offset, wanted.from_offset), pc.less(offset, wanted.to_offset))
                in_times = pc.and_(pc.greater_equal(time, wanted.from_time), pc.less(time, wanted.to_time))
                batch = batch.filter(pc.and_(in_offsets, in_times))
            if batch.num_rows:
                yield table_rows(batch, range_.base_offset, writer.broker, writer.store_id, wanted.columns)
    if reader.seen.was_deleted and wanted.fails_on_data_loss:
        raise data_loss(range_.start_offset, range_.end_offset, range_.location)
