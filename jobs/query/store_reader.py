"""
Single reads in a store: a record by offset, a unit of a queue, the index files from new to old.

Only what the answer needs is read: a record takes two reads, an index lookup some dozens of reads of 20 bytes.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

from jobs.query.mqadmin import OffsetRange
from jobs.storage.locations import join_location
from jobs.storage.model import Reader
from jobs.store.broker_config import TOPIC_TABLE, TOPICS_FILE, object_entries, read_config
from jobs.store.epochs import read_epochs
from jobs.store.queue_files import StoredQueue, has_light_queues_only_in_rocksdb, list_queues, queues_in_files
from jobs.store.queue_storage import is_about_queue_database, rocksdb_queue_directory, rocksdbstore_directory
from jobs.store.ranges import find_newest_segment
from jobs.store.rocksdb import Database, has_index_rows, open_database
from jobs.store.store import Segment, Store, geometry_stated_by_index_files, lazy_reader
from rmq_formats.broker_conf import Epoch
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, BatchUnit, QueueName
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.layout import make_block_reader

_OPEN_FILES = 64  # more open files than this are all closed
CLOCK_SLACK_MS = 3_600_000  # how far a broker's clock may be reset while it writes a segment
SKIPPED_SEGMENTS = (
    "skipped segments whose first messages were stored more than 1 h before or after the requested time range"
)
_SMALL_READ = 4096  # most records are read with one call


class LiveUnits(NamedTuple):
    """The units of a queue that point to messages of the log, by their numbers; the end is excluded."""

    first: int
    end: int
    left_over: int  # units after them, whose messages were truncated when another replica became the master
    blank_count: int  # blank units before them, which fill up the queue's first file; a broker counts them as offsets


class StoreReader:
    """A store's files, opened lazily; a context manager that closes them."""

    def __init__(self, store: Store, geometry: Geometry | None = None) -> None:
        """Read *store*'s files; *geometry* is used if its index files do not show theirs."""
        self.store = store
        self._geometry = geometry
        self._stack = ExitStack()
        self._databases = ExitStack()
        self._open: dict[str, Reader] = {}
        self._logs: dict[str, SegmentBytes] = {}
        self._chains: dict[int, frozenset[int]] = {}  # the offsets of the records that follow the start of an epoch
        self._live_units: dict[tuple[QueueName, bool], LiveUnits] = {}  # by queue, and whether it is in RocksDB

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._databases.close()

    def _close(self) -> None:
        self._open.clear()
        self._stack.close()

    def open_cached(self, location: str) -> Reader:
        """Return an open file."""
        if location not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._close()
            self._open[location] = self._stack.enter_context(self.store.storage.open(location))
        return self._open[location]

    def segment_bytes(self, segment: Segment) -> SegmentBytes:
        """Return the bytes of a segment; their framing shows whether DLedger entry headers precede the records."""
        if segment.location not in self._logs:
            read = lazy_reader(self.open_cached, segment.location)
            framing = find_framing(read, segment.readable_bytes, segment.base_offset)
            self._logs[segment.location] = SegmentBytes(read, segment.readable_bytes, segment.base_offset, framing)
        return self._logs[segment.location]

    def read_record(self, physical_offset: int) -> MessageRecord | None:
        """Return the record at *physical_offset*, if one begins there."""
        segment = self.store.segment_at(physical_offset)
        if segment is None or self.is_left_over(physical_offset):
            return None
        read = make_block_reader(self.open_cached(segment.location).read, _SMALL_READ)
        with suppress(FormatError):  # no record begins there
            log = SegmentBytes(read, segment.readable_bytes, segment.base_offset)
            return log.record_at(physical_offset - segment.base_offset)
        return None

    def entry_start(self, offset: int) -> int:
        """Return the start of the DLedger entry whose record begins at *offset*; any other offset unchanged."""
        segment = self.store.segment_at(offset)
        header = 0 if segment is None else self.segment_bytes(segment).framing.header_size
        return offset - header if header and self.read_record(offset) is not None else offset

    def first_record(self, segment: Segment) -> MessageRecord | None:
        """Return the first record of a segment."""
        return self.read_record(segment.base_offset + self.segment_bytes(segment).framing.header_size)

    @cached_property
    def probable_time_bounds(self) -> Mapping[int, tuple[int | None, int | None]]:
        """
        The probable bounds of the store times in each segment, by its first offset.

        They are derived from the first records of this, the previous and the next segment; None: no bound is known. If
        the broker's clock was changed by more than the slack within a segment, records may be outside of them.
        """
        segments = self.store.segments
        firsts = [self.first_record(segment) for segment in segments]
        times = [None, *(record.store_timestamp if record else None for record in firsts), None]
        found: dict[int, tuple[int | None, int | None]] = {}
        for segment, before, own, after in zip(segments, times, times[1:], times[2:], strict=False):
            known = [time for time in (before, own, after) if time is not None]
            low = min(known) - CLOCK_SLACK_MS if own is not None and len(known) > 1 else None
            high = max(known) + CLOCK_SLACK_MS if own is not None and after is not None else None
            found[segment.base_offset] = low, high
        return found

    def record_bounds_around(self, segment: Segment, physical_offset: int) -> tuple[int, int]:
        """Return the bounds of the record around *physical_offset*; of the last record if the offset is after it."""
        begin = end = segment.base_offset
        for begin, end in self.segment_bytes(segment).walk_record_bounds():  # noqa: B007 - the last place remains
            if end > physical_offset:
                break
        return begin, end

    def round_up_to_record(self, offset: int) -> int:
        """Return the end of the record that an offset is inside; any other offset unchanged."""
        segment = self.store.segment_at(offset)
        if segment is None or self.read_record(offset) is not None:
            return offset
        begin, end = self.record_bounds_around(segment, offset)
        return end if begin < offset < end else max(offset, begin)  # the latter after the header of a DLedger entry

    @property
    def log_end(self) -> int:
        """The offset after the last record; the end of its file if no zeros follow it."""
        newest = find_newest_segment(self.store)
        if newest is None:
            return self.store.end_offset
        segment, _ = newest
        file_end = segment.base_offset + segment.readable_bytes
        _, end = self.record_bounds_around(segment, file_end)
        left = min(HEAD.size, file_end - end)
        return file_end if any(self.open_cached(segment.location).read(end - segment.base_offset, left)) else end

    def sample_piece_positions(self, segment: Segment, distance: int) -> Iterator[int]:
        """Yield positions of pieces that are at least *distance* apart."""
        log, wanted = self.segment_bytes(segment), distance
        for begin, _ in log.walk_record_bounds():
            position = begin - log.framing.header_size - segment.base_offset
            if position >= wanted:
                yield position
                wanted = position + distance

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of a broker in controller mode; none of any other."""
        return read_epochs(self.store)

    @property
    def newest_epoch_text(self) -> str:
        """A description of the newest change of the master."""
        return f"epoch {self.epochs[-1].number} begins at offset {self.epochs[-1].start_offset}"

    def is_left_over(self, physical_offset: int) -> bool:
        """Return whether the bytes at *physical_offset* are left over from a replaced master, outside of the chain."""
        segment = self.store.segment_at(physical_offset)
        begin = physical_offset + 1 if segment is None else segment.base_offset
        starts = (one.start_offset for one in self.epochs[1:] if begin <= one.start_offset <= physical_offset)
        start = max(starts, default=None)  # the start of the newest epoch
        if segment is None or start is None:
            return False
        if start not in self._chains:
            places = self.segment_bytes(segment).walk_record_bounds(start - segment.base_offset)
            self._chains[start] = frozenset(offset for offset, _ in places)
        return physical_offset not in self._chains[start]

    @cached_property
    def index_geometry(self) -> Geometry | None:
        """The geometry of the index files: given, or derived from their sizes; None if unknown."""
        files = self.store.index_files
        if self._geometry or not files:
            return self._geometry
        stated = geometry_stated_by_index_files(self.store)
        return stated.geometry if stated and {file.size for file in files} == {stated.geometry.file_size} else None

    @cached_property
    def index_database(self) -> Database | None:
        """The index in RocksDB, if the broker writes no index files; raise `FormatError` if it cannot be read."""
        directory = rocksdbstore_directory(self.store)
        if directory is None or self.store.index_files:
            return None
        database = self._databases.enter_context(
            open_database(join_location(self.store.root, directory), self.store.storage)
        )
        return database if has_index_rows(database) else None

    def index_readers(self) -> list[IndexReader]:
        """Return the index files, newest first; none if their geometry is unknown."""
        geometry = self.index_geometry
        if geometry is None:
            return []
        files = reversed(self.store.index_files)
        return [IndexReader(lazy_reader(self.open_cached, file.location), geometry, file.location) for file in files]

    def index_readers_around(self, physical_offset: int) -> Iterator[IndexReader]:
        """Yield the index files that cover an offset, newest first."""
        for file in self.index_readers():
            header = file.header
            if header.begin_physical_offset <= physical_offset <= header.end_physical_offset:
                yield file

    def open(self, location: str) -> AbstractContextManager[Reader]:
        """Return a file that stays open after the block."""
        return nullcontext(self.open_cached(location))

    @cached_property
    def queues(self) -> Mapping[tuple[str, int], StoredQueue]:
        """Every queue that has files, by topic and queue id; the BatchConsumeQueue if there are both kinds."""
        plain_first = sorted(self.stored_queues[0], key=lambda queue: queue.is_batch)
        return {(queue.name.topic, queue.name.queue_id): queue for queue in plain_first}

    def find_live_units(self, queue: StoredQueue) -> LiveUnits:
        """Return the numbers of the units of a queue that point to messages of the log."""
        key = queue.name, queue.in_rocksdb
        if key not in self._live_units:
            written = end = queue.find_written_end()
            # Units at the end may point to leftovers of a replaced master.
            while end and (unit := queue.read_unit(end - 1)) is not None and self.is_left_over(unit.physical_offset):
                end -= 1
            start = queue.first_unit_pointing_from(self.store.start_offset, end)
            first = queue.first_unit_after_blanks(start, end)
            self._live_units[key] = LiveUnits(first, end, written - end, first - start)
        return self._live_units[key]

    def offsets_in_files(self, queue: StoredQueue) -> OffsetRange:
        """
        Return a queue's minimum and maximum offset as its broker does: it counts blank units at the queue's beginning.

        A unit of a batch queue has several offsets.
        """
        live = self.find_live_units(queue)
        if not queue.is_batch:
            return OffsetRange(live.first - live.blank_count, live.end)
        oldest, newest = (queue.read_unit(at) if live.first < live.end else None for at in (live.first, live.end - 1))
        if isinstance(oldest, BatchUnit) and isinstance(newest, BatchUnit):
            return OffsetRange(oldest.base_offset, newest.base_offset + newest.batch_count)
        return OffsetRange(0, 0)

    @cached_property
    def stored_queues(self) -> tuple[list[StoredQueue], FormatError | None]:
        """The queues that can be read, and why those in RocksDB cannot."""
        try:
            return list_queues(self.store, self.open), None
        except FormatError as error:
            return queues_in_files(self.store, self.open), error

    def without_queue_database(self, error: FormatError) -> Self:
        """Return a reader that knows no queues in RocksDB, if *error* is about them; otherwise raise it."""
        if not is_about_queue_database(error, self.store):
            raise error
        other = copy(self)  # shares the open files
        other.stored_queues = queues_in_files(self.store, self.open), error
        for derived in ("queues", "ends_without_units", "lacks_light_queues"):
            other.__dict__.pop(derived, None)
        return other

    @cached_property
    def ends_without_units(self) -> Mapping[tuple[str, int], int]:
        """The ends of queues in RocksDB of which the broker has deleted every unit: it still reports their offsets."""
        if rocksdb_queue_directory(self.store) is None or self.stored_queues[1] is not None:
            return {}
        from jobs.store.rocksdb_queues import find_queue_database  # lazy import: few stores have such a database

        database = find_queue_database(self.store)
        assert database is not None
        last = {(queue.topic, queue.queue_id): place for queue, place in database.read_bounds()[1].items()}
        return {queue: place.queue_offset + 1 for queue, place in last.items() if queue not in self.queues}

    @property
    def why_rocksdb_queues_unknown(self) -> str | None:
        """Why queues in RocksDB are unknown; None if they are known, or if there are none."""
        queues, error = self.stored_queues
        if error is not None:
            return str(error)
        is_empty = not queues and rocksdb_queue_directory(self.store) is not None
        return "RocksDB has no queue units (the broker was probably killed)" if is_empty else None

    @cached_property
    def lacks_light_queues(self) -> bool:
        """Whether a killed broker with double write may have had every unit of its light queues in memory."""
        has_any = any(topic.startswith(LMQ_PREFIX) for topic, _ in self.queues)
        return (
            not has_any
            and not self.store.has_clean_shutdown
            and has_light_queues_only_in_rocksdb(self.store, self.queues.values())
        )

    @cached_property
    def topic_config(self) -> Mapping[str, Mapping[str, object]]:
        """Each topic's settings from `config/topics.json` or RocksDB; empty if neither can be read."""
        return dict(object_entries((read_config(self.store, TOPICS_FILE) or {}).get(TOPIC_TABLE)))
