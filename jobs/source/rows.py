"""Rows of the table `messages`, as Arrow batches, which a task of the source makes from its range."""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from jobs.export.items import table_rows
from jobs.products.messages import parts_by_release
from jobs.source.log import data_loss
from jobs.source.options import FAILFAST, Wanted
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import CorruptData
from rmq_formats.release import Rules


class Writer(NamedTuple):
    """The writer of the log: the rules that properties follow, and the identity in each row."""

    rules: Rules
    broker: str
    store_id: str | None = None


class RangePartition(InputPartition):
    """The range of one task."""

    def __init__(self, range_: Range, writer: Writer) -> None:
        super().__init__(range_.start_offset)
        self.range = range_
        self.writer = writer


def rows_of(partition: RangePartition, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield a range's messages, batch by batch."""
    range_ = partition.range
    reader = RangeReader(range_)
    for item in reader.pieces():
        if isinstance(item, Piece):
            if item.kind is PieceKind.DAMAGE and wanted.mode == FAILFAST:
                raise CorruptData(item.reason, item.offset, range_.location)
            continue
        yield from _rows(item, partition, wanted)
    if reader.was_deleted and wanted.fails_on_data_loss:
        raise data_loss(range_.start_offset, range_.end_offset, range_.location)


def _rows(item: Records, partition: RangePartition, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    selection, writer, range_ = wanted.selection, partition.writer, partition.range
    for group, parser in parts_by_release(item, writer.rules):
        batch, bad = message_batch(group, parser, with_body=wanted.with_body, takes=selection.takes_or_all)
        if bad and wanted.mode == FAILFAST:
            raise CorruptData("a body with a wrong CRC", bad[0][0], range_.location)
        if wanted.has_bounds:
            batch = _within_bounds(batch, wanted)
        if batch.num_rows:
            yield table_rows(batch, range_.base_offset, writer.broker, writer.store_id, wanted.columns)


def _within_bounds(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    offset, time = batch.column("physical_offset"), batch.column("store_timestamp")
    return batch.filter(
        pc.and_(
            pc.and_(pc.greater_equal(offset, wanted.from_offset), pc.less(offset, wanted.to_offset)),
            pc.and_(pc.greater_equal(time, wanted.from_time), pc.less(time, wanted.to_time)),
        )
    )
