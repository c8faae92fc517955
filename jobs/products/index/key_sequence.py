"""
The keys of a log as one sequence, which is divided into index files.

Each range of the log yields a run of keys. The cumulative counts of the runs give the position of each run in the
sequence, and so the keys that each index file has, without sorting or shuffling.

The keys of each range are written to a scratch file, 20 bytes each; if rows are made of them, their texts are written
to another.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from struct import Struct
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.storage.scratch import Scratch
from jobs.store.chain import RangeOutcome, collect_damaged_ranges, read_ranges_not_deleted, select_results
from jobs.store.intervals import merge_intervals
from jobs.store.ranges import Range, find_holes
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.indexfile.build import PACKED_KEY, RuleTable, pack_keys
from rmq_formats.indexfile.columns import key_texts
from rmq_formats.release import Rules

KEYS_PER_BLOCK = 1 << 18
KEYS_PER_PAGE = 1 << 10  # keys read at a time for single lookups: a search ends among neighboring keys
_PAGES = 16

_TEXTS = ".texts"  # suffix of the texts that belong to a file of keys
_FRAME = Struct("<qq")  # the number of texts that follow, and their size in bytes


class Key(NamedTuple):
    """One packed key."""

    key_hash: int
    physical_offset: int
    store_timestamp: int


class RangeKeys(NamedTuple):
    """The keys of one range."""

    file: str
    key_count: int
    last_record_offset: int | None  # physical offset of the last record, with keys or without
    last_keyed_offset: int | None  # physical offset of the last record with keys
    files: Mapping[str, Any] = {}  # files of tables (none)

    @property
    def scratch_files(self) -> tuple[str, ...]:
        """Its scratch files, if rows are made of the keys."""
        return (self.file, f"{self.file}{_TEXTS}") if self.file else ()


ENTRIES_OF_FILE_ITSELF = ""  # replaces a run's file for entries of the index file itself that the log does not hold


class KeyPart(NamedTuple):
    """Consecutive keys of one run, or (`ENTRIES_OF_FILE_ITSELF`) consecutive entries of the index file itself."""

    file: str
    first_key: int
    key_count: int


KeyBlock = tuple[NDArray[np.void], pa.RecordBatch | None]  # consecutive keys, and their texts where these are wanted


def read_key_blocks(scratch: Scratch, part: KeyPart, *, with_texts: bool = False) -> Iterator[KeyBlock]:
    """Yield the keys of a part of one file."""
    first = part.first_key
    blocks: Iterator[tuple[int, pa.RecordBatch | None]] = (
        (min(part.key_count - at, KEYS_PER_BLOCK), None) for at in range(0, part.key_count, KEYS_PER_BLOCK)
    )
    with scratch.open(part.file) as file:
        for count, texts in _texts_of(scratch, part) if with_texts else blocks:
            keys = np.empty(count, PACKED_KEY)
            scratch.read_into(file, part.file, first * PACKED_KEY.itemsize, keys.view(np.uint8).data)
            yield keys, texts
            first += count


def _texts_of(scratch: Scratch, part: KeyPart) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the texts of a part of one file, in the batches in which they were written."""
    before, left, position = part.first_key, part.key_count, 0
    with scratch.open(f"{part.file}{_TEXTS}") as file:
        while left:
            rows, size = _FRAME.unpack(file.read(position, _FRAME.size))
            position += _FRAME.size
            if before < rows:
                data = np.empty(size, np.uint8)
                scratch.read_into(file, f"{part.file}{_TEXTS}", position, data.data)
                some = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch().slice(before, left)
                yield some.num_rows, some
                left -= some.num_rows
            before, position = max(before - rows, 0), position + size


@dataclass(frozen=True)
class KeySequence:
    """The keys of a log, in log order."""

    scratch: Scratch
    ranges: tuple[RangeKeys, ...]
    start_offset: int  # the start of the log
    gaps: tuple[tuple[int, int], ...] = ()  # ranges that no file of the log contains
    damaged_ranges: tuple[tuple[int, int], ...] = ()  # ranges of bytes that do not form a record
    record_count: int = 0  # number of messages in the log
    truncated_ranges: tuple[tuple[int, int], ...] = ()  # ranges of truncated messages that index files still contain
    # Ranges of records that no broker wrote: their keys prove nothing.
    doubtful_ranges: tuple[tuple[int, int], ...] = ()
    _ends: tuple[int, ...] = field(init=False, repr=False)
    _page: Callable[[KeyPart], list[Key]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute cumulative counts, and create a cache for recently read pages."""
        object.__setattr__(self, "_ends", tuple(accumulate(span.key_count for span in self.ranges)))
        object.__setattr__(self, "_page", lru_cache(_PAGES)(partial(_keys_of, self.scratch)))

    def __len__(self) -> int:
        """Return the number of keys in the log."""
        return self._ends[-1] if self._ends else 0

    @property
    def damaged_bytes(self) -> int:
        """The number of damaged bytes in the log."""
        return sum(end - start for start, end in self.damaged_ranges)

    @cached_property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Bounds of the lost parts of the log, ascending: gaps, damage, changed records, and truncated parts."""
        return merge_intervals([*self.gaps, *self.truncated_ranges, *self.doubtful_ranges, *self.damaged_ranges])

    def is_truncated_by_promotion(self, first: int, last: int) -> bool:
        """Return whether a promotion truncated the former messages at offsets *first* to *last*."""
        return any(start <= first and last < end for start, end in self.truncated_ranges)

    @property
    def ends_without_keys(self) -> bool:
        """Whether a message without keys follows the last one with keys."""
        keyed = max((span.last_keyed_offset for span in self.ranges if span.last_keyed_offset is not None), default=-1)
        return self.last_record_offset > keyed

    @property
    def last_record_offset(self) -> int:
        """The offset of the newest message; -1 if there is none."""
        return max((span.last_record_offset for span in self.ranges if span.last_record_offset is not None), default=-1)

    def list_parts(self, start: int, end: int) -> list[KeyPart]:
        """Return the parts of files that have the keys number *start* to *end*, in order."""
        found = []
        number = bisect_right(self._ends, start)
        while start < end:
            span = self.ranges[number]
            first = start - (self._ends[number] - span.key_count)
            count = min(span.key_count - first, end - start)
            if count:
                found.append(KeyPart(span.file, first, count))
            start += count
            number += 1
        return found

    def read_keys(self, start: int, end: int) -> list[Key]:
        """Return a few keys."""
        found: list[Key] = []
        for file, first, count in self.list_parts(max(start, 0), min(end, len(self))):
            for before in range(first // KEYS_PER_PAGE * KEYS_PER_PAGE, first + count, KEYS_PER_PAGE):
                own = slice(max(first - before, 0), min(first + count - before, KEYS_PER_PAGE))
                keys = self._page(KeyPart(file, before, KEYS_PER_PAGE))[own]
                if len(keys) < own.stop - own.start:
                    raise self.scratch.truncated_error(file)
                found += keys
        return found

    def find_first_key(self, physical_offset: int) -> int:
        """Return the number of the first key of a message at or after *physical_offset*."""
        return bisect_left(
            range(len(self)), physical_offset, key=lambda number: self.read_keys(number, number + 1)[0].physical_offset
        )


def _keys_of(scratch: Scratch, page: KeyPart) -> list[Key]:
    """Return the keys of a page, which is shorter at the end of a run."""
    keys = np.empty(page.key_count, PACKED_KEY)
    with scratch.open(page.file) as file:
        found = file.read_into(page.first_key * PACKED_KEY.itemsize, keys.view(np.uint8).data)
    return [Key(*key) for key in keys[: found // PACKED_KEY.itemsize].tolist()]


def join_keys(store: Store, outcomes: Sequence[RangeOutcome[RangeKeys]], scratch: Scratch, start: int) -> KeySequence:
    """Return the keys of the log that was read, of which retention has left the part after *start*."""
    outcomes = [one for one in outcomes if one.range.start_offset >= start]
    gaps = tuple((first, last) for _, first, last in find_holes(store.segments) if first >= start)
    records = sum(outcome.facts.records for outcome in outcomes)
    keys, damaged = tuple(outcome.payload for outcome in outcomes), tuple(collect_damaged_ranges(outcomes))
    return KeySequence(scratch, keys, start, gaps, damaged, records)


def new_range_key_collector(rules: Rules, scratch: Scratch, range_: Range, files: ExitStack) -> "RangeKeyCollector":
    """Return the collector of a range's keys."""
    return RangeKeyCollector(rules, scratch, f"{range_.start_offset:020d}-{uuid4()}.keys", files)


def collect_keys(
    workers: Workers, store: Store, ranges: Sequence[Range], rules: Rules, scratch: Scratch
) -> KeySequence:
    """Read *ranges* of a log and return their keys."""
    new_collector = partial(new_range_key_collector, rules, scratch)
    start, outcomes = read_ranges_not_deleted(workers, store, ranges, [new_collector])
    return join_keys(store, select_results(outcomes, 0), scratch, start)


def _stream_of(texts: pa.RecordBatch) -> pa.Buffer:
    """Return a batch with its dictionaries in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, texts.schema) as writer:
        writer.write_batch(texts)
    return sink.getvalue()


class RangeKeyCollector:
    """Writes the keys of one range to a scratch file."""

    def __init__(  # noqa: PLR0913 - where the keys go, and which are wanted
        self,
        rules: Rules,
        scratch: Scratch,
        file: str,
        files: ExitStack,
        from_offset: int = 0,
        *,
        with_texts: bool = False,
    ) -> None:
        """Prepare to collect the keys of records at or after *from_offset*; *files* closes the scratch files."""
        self._table = RuleTable.from_rules(rules)
        self._scratch, self._file, self._files = scratch, file, files
        self._from_offset = from_offset
        self._with_texts = with_texts
        self._keys = 0
        self._last_record: int | None = None
        self._last_keyed: int | None = None
        self._sinks: list[BinaryIO] = []  # files of keys and of texts

    def add(self, item: RawRecords | Piece) -> None:
        """Process the next records, or the bytes between them."""
        if isinstance(item, Piece) or not len(item.positions):
            return
        last = item.base_offset + int(item.positions[-1])
        if last < self._from_offset:
            return
        self._last_record = last
        for keys, texts in pack_keys(item, self._table, self._from_offset, with_texts=self._with_texts):
            if not len(keys):
                continue
            self._last_keyed = int(keys["physical_offset"][-1])
            self._keys += len(keys)
            if not self._sinks:
                names = [self._file, f"{self._file}{_TEXTS}"][: 1 + self._with_texts]
                self._sinks = [self._files.enter_context(self._scratch.create(name)) for name in names]
            self._sinks[0].write(keys.view(np.uint8).data)
            if self._with_texts:
                stream = _stream_of(key_texts(texts, len(keys)))
                self._sinks[1].write(_FRAME.pack(len(keys), stream.size))
                self._sinks[1].write(stream)

    def finish(self) -> RangeKeys:
        """Return the results for the range."""
        return RangeKeys(self._file if self._sinks else "", self._keys, self._last_record, self._last_keyed)
