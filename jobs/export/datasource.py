"""
`spark.read.format("rocketmq")`: a store's messages as rows, for notebooks that want no lake.

    from jobs.export.datasource import register

    register(spark)
    spark.read.format("rocketmq").option("topics", "Orders").load("/data/store")

The columns are those of the table `messages`. One partition reads one segment, or with `partitionSize` a part of one
that begins where a record does: the driver follows the sizes in the log to find such places, because bodies may hold
whole records. Rows are Arrow batches from the same compiled scan that fills the lake.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.export.items import table_rows, times_of
from jobs.lake.tables import STORED_MESSAGES
from jobs.query.open_store import seeming_writers
from jobs.query.store_reader import StoreReader
from jobs.storage.hadoop_settings import OF_FILE_SYSTEMS
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range, plan_ranges
from jobs.store.release import given_release
from jobs.store.selection import Selection
from jobs.store.store import Store, list_store
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.properties import PropertyParser

NAME = "rocketmq"

_WHOLE = 1 << 62
_MAX = (1 << 63) - 1
_FAILFAST, _PERMISSIVE = "FAILFAST", "PERMISSIVE"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let conditions on topic, offset and store time narrow what is read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RocketmqDataSource)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask for."""

    path: str
    commitlog: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    from_offset: int = 0
    to_offset: int = _MAX  # not included
    from_time: int = -_MAX  # ms, store time
    to_time: int = _MAX  # not included
    partition_size: int = _WHOLE
    release: str | None = None
    broker: str = "default"
    mode: str = _PERMISSIVE
    file_system: Mapping[str, str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options; their names are not case-sensitive."""
        given = {name.lower(): value for name, value in options.items()}
        if "path" not in given:
            raise UnsupportedFormat("format rocketmq reads one store: load(STORE)")
        mode = given.get("mode", _PERMISSIVE).upper()
        if mode not in {_FAILFAST, _PERMISSIVE}:
            reason = f"mode {mode!r} is neither {_PERMISSIVE} (damaged bytes are left out) nor {_FAILFAST}"
            raise UnsupportedFormat(reason)
        topics = _list(given.get("topics"))
        return cls(
            given["path"],
            _list(given.get("commitlog")),
            Selection(topics=topics, with_body=given.get("body", "true").lower() == "true"),
            int(given.get("fromoffset", 0)),
            int(given.get("tooffset", _MAX)),
            _milliseconds(given.get("fromtime"), -_MAX),
            _milliseconds(given.get("totime"), _MAX),
            int(given.get("partitionsize", _WHOLE)),
            given.get("release"),
            given.get("broker", "default"),
            mode,
            {name: value for name, value in given.items() if name.startswith(OF_FILE_SYSTEMS)},
        )

    @property
    def has_bounds(self) -> bool:
        """Whether rows of a segment may have to be left out."""
        everything = (0, _MAX, -_MAX, _MAX)
        return (self.from_offset, self.to_offset, self.from_time, self.to_time) != everything


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _milliseconds(text: str | None, otherwise: int) -> int:
    """Read milliseconds, or a time such as 2026-11-20T07:00 (UTC where no zone is)."""
    if text is None:
        return otherwise
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        reason = f"{text!r} is neither milliseconds nor a time such as 2026-11-20T07:00:00+00:00"
        raise UnsupportedFormat(reason) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


class RocketmqDataSource(DataSource):
    """The format, as Spark asks for it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table `messages`."""
        return from_arrow_schema(STORED_MESSAGES.plain_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one store."""
        del schema
        return RocketmqReader(Wanted.of(dict(self.options)))


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, range_: Range, parser: PropertyParser) -> None:
        """Keep a range that begins at a record."""
        super().__init__(range_.start_offset)
        self.range = range_
        self.parser = parser


class RocketmqReader(DataSourceReader):
    """Plans on the driver, reads on the workers."""

    def __init__(self, wanted: Wanted) -> None:
        """Read nothing yet."""
        self._wanted = wanted

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Narrow what is read by what is asked for; Spark filters the rows all the same."""
        for given in filters:
            self._wanted = _narrowed(self._wanted, given)
            yield given

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges of the log that may hold wanted messages."""
        wanted = self._wanted
        store = list_store(wanted.path, commitlog=wanted.commitlog, options=wanted.file_system)
        with StoreReader(store) as reader:
            release = given_release(wanted.release) if wanted.release else seeming_writers(reader).value.newest
            ranges = [part for range_ in _ranges(reader, store, wanted) for part in _parts(reader, range_, wanted)]
        return [RangePartition(range_, release.property_parser) for range_ in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages, batch by batch."""
        planned = cast("RangePartition", partition)  # Spark hands back what `partitions` returned
        wanted, range_ = self._wanted, planned.range
        for item in RangeReader(range_).pieces():
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE and wanted.mode == _FAILFAST:
                    raise CorruptData(item.reason, item.offset, range_.location)
                continue
            selection = wanted.selection
            batch, bad = message_batch(
                item, planned.parser, with_body=selection.with_body, takes=selection.takes_or_all
            )
            if bad and wanted.mode == _FAILFAST:
                raise CorruptData("a body with a wrong CRC", bad[0][0], range_.location)
            yield from _rows(batch, range_, wanted)


# The bounds, lower and upper, that a condition on a column narrows.
_BOUNDS = {"physical_offset": ("from_offset", "to_offset"), "store_timestamp": ("from_time", "to_time")}


def _narrowed(wanted: Wanted, given: Filter) -> Wanted:
    """Return the same question with what a condition excludes left out; the condition itself is still asked."""
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


def _ranges(reader: StoreReader, store: Store, wanted: Wanted) -> Iterator[Range]:
    """Yield one range for each segment that may hold a wanted message."""
    ranges = plan_ranges(store, range_size=_WHOLE)
    for range_, (begin, end) in zip(ranges, times_of(reader, ranges), strict=True):
        if range_.end_offset <= wanted.from_offset or range_.start_offset >= wanted.to_offset:
            continue
        if (end is None or end >= wanted.from_time) and (begin is None or begin < wanted.to_time):
            yield range_


def _parts(reader: StoreReader, range_: Range, wanted: Wanted) -> Iterator[Range]:
    """Cut a segment's range where records begin."""
    segment = reader.segment_for(range_.base_offset)
    starts = [range_.start]
    if segment is not None and wanted.partition_size < range_.end - range_.start:
        starts += reader.record_starts(segment, wanted.partition_size)
    for start, end in zip(starts, [*starts[1:], range_.end], strict=True):
        yield replace(range_, start=start, end=end)


def _rows(batch: pa.RecordBatch, range_: Range, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are wanted, in the columns of the table."""
    if wanted.has_bounds:
        offset, time = batch.column("physical_offset"), batch.column("store_timestamp")
        batch = batch.filter(
            pc.and_(
                pc.and_(pc.greater_equal(offset, wanted.from_offset), pc.less(offset, wanted.to_offset)),
                pc.and_(pc.greater_equal(time, wanted.from_time), pc.less(time, wanted.to_time)),
            )
        )
    if not batch.num_rows:
        return
    yield table_rows(batch, range_.base_offset, wanted.broker)
