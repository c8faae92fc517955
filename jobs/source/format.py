"""
The format `rocketmq-store`: a store's messages as rows, in those columns of the table `messages` that a log has.

Rows are Arrow batches from the same compiled scan that fills the lake. One partition reads one segment, or with
`partitionSize` a part of a segment that begins at a record boundary: the driver follows the record sizes in the log to
find these boundaries, because bodies may contain whole records.

The offsets of a stream are physical offsets at which a record certainly ends: the process in which Spark plans all
batches of a query follows the log to them, and tasks read the same range again. If nothing is new, Spark asks forty
times a second; so a check that finds nothing is followed by a pause of at least ten times its own length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from posixpath import dirname
from time import monotonic, sleep

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
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
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from jobs.export.items import DELETED_WHILE_READ, convert_to_table_rows, read_range_messages
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import open_complete_table
from jobs.lake.tables import MESSAGES, STORED_MESSAGES
from jobs.launch.session import hadoop_options
from jobs.query.store_reader import StoreReader
from jobs.source.log import (
    LogOrigin,
    LogPosition,
    check_position_in_log,
    data_loss_error,
    find_missing_files,
    find_read_start,
    raise_or_warn_of_loss,
    walk_from,
)
from jobs.source.options import FORMAT_NAME, NO_READ_BOUNDS, ReadOptions
from jobs.store.log_ends import find_lost_ends
from jobs.store.ranges import WHOLE_SEGMENTS, Range, find_newest_segment, plan_ranges
from jobs.store.repeated_reads import repeat_after_expiry
from jobs.store.store import Store, list_store
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.properties import MAX_LONG

_LONGEST_WAIT_S = 1.0  # the longest wait of one call: stopping a query takes as long
_SHARE = 10  # a check that finds nothing is followed by a pause this many times as long
_PART = 256 << 20  # approximate number of bytes of the log that one task reads
_UNWRITTEN = (4096, 1 << 18)  # zeros that show that nothing is new: more than a page or some that a power cut left


class RocketmqReader(DataSourceReader):
    """Spark's batch reader of a store: plans ranges on the driver, and reads them on the workers."""

    def __init__(self, wanted: ReadOptions) -> None:
        self._options = wanted

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrow the read by the pushed conditions; Spark filters the rows again."""
        for given in filters:
            self._options = _narrow_options(self._options, given)
            yield given

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the ranges of the log that may hold wanted messages."""
        wanted = self._options
        store = list_store(wanted.path, commitlog=wanted.commitlog, options=wanted.file_system)
        store.refuse_lost_log()
        position, writer = find_read_start(wanted, store)
        if position.offset < store.start_offset and wanted.fails_on_data_loss:
            raise data_loss_error(position.offset, store.start_offset, store.root)
        first = max(position.offset, wanted.from_offset)
        raise_or_warn_of_loss(
            (*(hole for hole in find_missing_files(store) if hole.end > first), *find_lost_ends(store)),
            first,
            wanted.to_offset,
            raises=wanted.fails_on_any_loss,
        )
        with StoreReader(store) as reader:
            return [InputPartition((part, writer)) for part in _plan_parts(reader, store, position, wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages, batch by batch."""
        return read_range_rows(partition, self._options)


# The lower and upper bound that a condition on a column narrows.
_BOUNDS = {"physical_offset": ("from_offset", "to_offset"), "store_timestamp": ("from_time", "to_time")}


def _narrow_options(wanted: ReadOptions, given: Filter) -> ReadOptions:
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


def _plan_parts(reader: StoreReader, store: Store, position: LogPosition, wanted: ReadOptions) -> Iterator[Range]:
    size = wanted.partition_size or WHOLE_SEGMENTS
    for range_ in plan_ranges(store, position.offset, WHOLE_SEGMENTS, position.store_timestamp):
        begin, end = reader.probable_time_bounds[range_.base_offset]
        is_inside = range_.end_offset > wanted.from_offset and range_.start_offset < wanted.to_offset
        if not is_inside or (end is not None and end < wanted.from_time):
            continue
        if begin is not None and begin >= wanted.to_time:
            continue
        segment, starts = store.segment_at(range_.base_offset), [range_.start]
        if segment is not None and size < range_.end - range_.start:
            starts += [start for start in reader.sample_piece_positions(segment, size) if start > range_.start]
        for start, stop in zip(starts, [*starts[1:], range_.end], strict=True):
            yield replace(range_, start=start, end=stop)


def read_range_rows(partition: InputPartition, wanted: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield a range's messages, batch by batch."""
    range_, (rules, broker, store_id) = partition.value
    selection = wanted.selection
    with_body = selection.with_body and (wanted.columns is None or "body" in wanted.columns)
    for item in read_range_messages(range_, rules, selection.topic_filter, with_body=with_body):
        if isinstance(item, Piece):
            if item.reason == DELETED_WHILE_READ:
                if wanted.fails_on_data_loss:
                    raise data_loss_error(range_.start_offset, range_.end_offset, range_.location)
            elif item.may_lack_messages and wanted.fails_on_damage:
                raise CorruptData(item.reason, item.offset, range_.location)
            continue
        batch = item
        if (wanted.from_offset, wanted.to_offset, wanted.from_time, wanted.to_time) != NO_READ_BOUNDS:
            offset, time = batch.column("physical_offset"), batch.column("store_timestamp")
            in_offsets = pc.and_(pc.greater_equal(offset, wanted.from_offset), pc.less(offset, wanted.to_offset))
            in_times = pc.and_(pc.greater_equal(time, wanted.from_time), pc.less(time, wanted.to_time))
            batch = batch.filter(pc.and_(in_offsets, in_times))
        if batch.num_rows:
            yield convert_to_table_rows(batch, range_.base_offset, broker, store_id, wanted.columns)


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process for all batches of a query, reads on the workers."""

    def __init__(self, wanted: ReadOptions) -> None:
        self._options = wanted
        self._start: tuple[LogPosition, LogOrigin] | None = None
        self._directories: tuple[str, ...] = ()  # the directories of the log
        self._target = MAX_LONG  # the end of a query with the trigger availableNow
        self._walk: tuple[LogPosition, LogPosition, Sequence[Range]] | None = None  # the newest: start, end, ranges
        self._next_check = 0.0
        self._is_checked = False

    def initialOffset(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint."""
        if self._options.after_lake is None and self._options.starts_at_end:
            return self._end_of_log(self._list_store()).to_json()
        store = self._list_store(whole=True)  # `prepareForTriggerAvailableNow` comes first, and has listed it
        position, _ = self._find_start(store)
        raise_or_warn_of_loss(find_lost_ends(store), position.offset, MAX_LONG, raises=self._options.fails_on_any_loss)
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the largest number of bytes of the log in a batch."""
        return ReadMaxBytes(self._options.batch_size)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the current end of the log."""
        self._target = self._end_of_log(self._list_store()).offset

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the last record boundary within the limit; *start* if nothing is new."""
        position = LogPosition.from_json(start)
        if position.offset >= self._target and not self._is_checked:  # nothing new: was the log truncated?
            self._check(position, self._list_store())
        if position.offset < self._target and (self._target < MAX_LONG or self._is_check_due()):
            began, store = monotonic(), self._list_store()
            self._check(position, store)
            if not _is_all_read(store, position.offset):
                most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else MAX_LONG
                end, ranges = repeat_after_expiry(store, lambda now: self._walk_from(position, now, most, self._target))
                if end.offset > position.offset:
                    self._walk, self._next_check = (position, end, ranges), 0.0
                    return end.to_json()
            now = monotonic()
            self._next_check = now + max(self._options.poll_ms / 1000, _SHARE * (now - began))
        return dict(start)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        """Return the ranges of a batch's tasks."""
        first, last = LogPosition.from_json(start), LogPosition.from_json(end)
        if last.offset <= first.offset:
            return []
        store = self._list_store()
        if self._walk is None or self._walk[:2] != (first, last):
            self._check(last, store)  # the batch comes from a checkpoint, so its end was not checked in this process
            walked = repeat_after_expiry(store, lambda now: self._walk_from(first, now, MAX_LONG, last.offset))
            self._walk = first, *walked
        ranges = self._walk[2]
        reached = ranges[-1].end_offset if ranges else first.offset
        if reached < last.offset and reached >= store.start_offset:
            raise data_loss_error(reached, last.offset, store.root)
        _, writer = self._find_start(store)
        return [InputPartition((range_, writer)) for range_ in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages, batch by batch."""
        return read_range_rows(partition, self._options)

    def _is_check_due(self) -> bool:
        """Wait until the next check is due, but not for long; return whether it is due."""
        sleep(min(max(self._next_check - monotonic(), 0), _LONGEST_WAIT_S))
        return monotonic() >= self._next_check

    def _walk_from(
        self, position: LogPosition, store: Store, limit: int, stop: int
    ) -> tuple[LogPosition, Sequence[Range]]:
        part_size = self._options.partition_size or _PART
        return walk_from(
            position,
            store,
            limit=limit,
            stop=stop,
            part_size=part_size,
            fails_on_data_loss=self._options.fails_on_any_loss,
        )

    def _check(self, position: LogPosition, store: Store) -> None:
        """Raise if the log is another one; only the first check follows the records up to the position."""
        check_position_in_log(position, store, with_chain=not self._is_checked)
        self._is_checked = True

    def _end_of_log(self, store: Store) -> LogPosition:
        """Follow the newest segment, which begins with a record, to its last complete record."""

        def look(now: Store) -> LogPosition:
            newest = find_newest_segment(now)
            base = newest[0].base_offset if newest else now.start_offset
            return walk_from(LogPosition(base), now, fails_on_data_loss=False)[0]

        return repeat_after_expiry(store, look)

    def _list_store(self, *, whole: bool = False) -> Store:
        """List the store, and later only its log: there may be very many queues."""
        wanted = self._options
        root, directories = wanted.path, wanted.commitlog
        if self._directories and not whole:
            root, directories = self._directories[0], self._directories
        store = list_store(root, commitlog=directories, options=wanted.file_system)
        store.refuse_lost_log()
        if not self._directories and store.segments:
            self._find_start(store)
            found = dict.fromkeys(dirname(segment.location) for segment in store.segments)
            self._directories = wanted.commitlog or tuple(found)  # a given directory may still be empty
        return store

    def _find_start(self, store: Store) -> tuple[LogPosition, LogOrigin]:
        """Return the start of a query and the log's writer; they are determined once, from the whole store."""
        if self._start is None or not store.segments:
            self._start = find_read_start(self._options, store)
        return self._start


def _is_all_read(store: Store, offset: int) -> bool:
    """Return whether nothing is written from *offset* on, judging by the first bytes there."""
    newest = find_newest_segment(store)
    if newest is None:
        return True
    segment, _ = newest
    position = offset - segment.base_offset
    if position < 0:
        return False
    if position >= segment.readable_bytes:
        return True
    try:
        with store.open(segment) as file:
            return not any(
                any(file.read(position, min(size, segment.readable_bytes - position))) for size in _UNWRITTEN
            )
    except FileNotFoundError:
        return False


def register(spark: SparkSession) -> None:
    """Register the format with a session, and let conditions on topic, offset and store time narrow the read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RocketmqDataSource)


def lake_and_store(spark: SparkSession, lake: str, store: str, **options: str) -> DataFrame:
    """
    Return all messages of the lake, and those that the store has after them, without duplicates.

    Both are pinned: the table's version, and the position up to which it reaches. *options* are the data source's.
    """
    where = Lake(lake, hadoop_options(spark.sparkContext))
    snapshot = open_complete_table(where, MESSAGES.name)
    if snapshot is None:
        raise FileNotFoundError(f"{where.locate(MESSAGES.name)}: no such table; run ingest first")
    version = snapshot.version()
    history = spark.read.format("delta").option("versionAsOf", version).load(where.locate(MESSAGES.name))
    new = (
        spark.read.format(FORMAT_NAME)
        .options(**options)
        .options(after=where.location, afterVersion=version)
        .load(store)
    )
    return history.unionByName(new, allowMissingColumns=True)


class RocketmqDataSource(DataSource):
    """Spark's data source for the format."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the columns of the table `messages` except inflated bodies and the record's CRC."""
        return from_arrow_schema(STORED_MESSAGES.schema_without_dictionaries)

    def reader(self, schema: StructType) -> RocketmqReader:
        """Return the reader of one store."""
        return RocketmqReader(self._parse_options(schema))

    def streamReader(self, schema: StructType) -> RocketmqStreamReader:
        """Return the reader of one store's new messages."""
        return RocketmqStreamReader(self._parse_options(schema))

    def _parse_options(self, schema: StructType) -> ReadOptions:
        """Parse the options; the columns are those of *schema*, which the user may have given."""
        there = {field.name: field.dataType for field in self.schema()}
        for field in schema:
            if field.name not in there:
                raise UnsupportedFormat(f"schema: {field.name} is not a column of messages")
            types = there[field.name].simpleString(), field.dataType.simpleString()
            if types[0] != types[1]:
                raise UnsupportedFormat(
                    f"schema: column {field.name} is declared as {types[1]}, but its type is {types[0]}"
                )
        return replace(ReadOptions.parse(dict(self.options)), columns=tuple(schema.fieldNames()))
