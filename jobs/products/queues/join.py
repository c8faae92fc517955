"""
The join of a store's queues with its log.

    look at the queues ─► ranges of the log match by address ─► what is left of each queue is explained

Most units never leave the task of their range. `join` runs all of it; `ingest` calls the steps itself, because there a
range's one pass over the log makes other things, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.lake.table_file import Action
from jobs.products.queues.differences import OF_EARLIER_QUEUE, Difference
from jobs.products.queues.range_matcher import (
    EMPTY,
    LackingQueue,
    LeftOver,
    Matcher,
    Matching,
    NewerRun,
    RangeMatches,
    joined_runs,
    newer_runs,
)
from jobs.products.queues.records_at import Resolved, resolve
from jobs.products.queues.rows import batches_of
from jobs.products.queues.unmatched import Bounds, Remainder, UnmatchedClasses, settle, unresolved
from jobs.store.chain import C, LogCollector, read_chained, watermark
from jobs.store.queue_ends import EVERYTHING, Look, look
from jobs.store.queue_files import StoredQueue, chunks
from jobs.store.ranges import DEFAULT_RANGE_SIZE, Range, holes, plan_ranges
from jobs.store.retention import ListedLog, confirm_deleted, deleted_ranges
from jobs.store.store import Store
from jobs.store.topics import Fate, TopicTable, topic_table
from jobs.store.units import units_of
from jobs.store.workers import Workers
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece
from rmq_formats.consumequeue.collect import UnitCollector
from rmq_formats.consumequeue.unit import QueueName, QueueRules

_QUEUES_A_TASK = 64
_AT_ONCE = 1 << 16  # units
_NO_RUNS = np.empty((0, 2), np.int64)

Rows = Iterator[pa.RecordBatch]
Write = Callable[[str, Rows], Action | None]


@dataclass(slots=True)
class JoinResult:
    """The result of joining a store, or its new part, with its queues."""

    expected: int = 0  # units that the records should have
    matched: int = 0
    misplaced: int = 0  # units of a record that are where its queue offset does not say
    expired: int = 0
    blanks: int = 0
    ahead: int = 0
    behind: int = 0  # bytes of the log that the dispatcher had not reached
    waiting: int = 0  # units of light queues that RocksDB alone would have, and does not have yet
    differences: list[Difference] = field(default_factory=list)
    without_queue: dict[QueueName, LackingQueue] = field(default_factory=dict)
    beginnings: dict[QueueName, int] = field(default_factory=dict)  # where the messages of a queue begin in the log
    watermarks: dict[QueueName, int] = field(default_factory=dict)
    ends: dict[QueueName, int] = field(default_factory=dict)  # position after the last unit that means something
    written: list[Action] = field(default_factory=list)  # files of rows
    damaged: list[tuple[int, int]] = field(default_factory=list)  # from and to of what is no record
    newer: list[NewerRun] = field(default_factory=list)  # of records after the dispatched part, in the log's order
    queues: tuple[StoredQueue, ...] = ()  # as they were looked at
    topics: TopicTable = TopicTable()  # noqa: RUF009 - a tuple
    log_end: int = 0
    dispatched: int = 0
    taken_to: int | None = None  # where the last record ends whose units were joined; None when there was none

    def fate_of(self, name: QueueName) -> Fate:
        """Return what became of a queue without files: of a topic that began again, its messages are of before."""
        of_topic = [lacking for queue, lacking in self.without_queue.items() if queue.topic == name.topic]
        newest_ms = max(lacking.newest_ms for lacking in of_topic)
        if self.without_queue[name].last < self._beginning(name.topic):
            return self.topics.fate_of_earlier(name.topic, newest_ms)
        return self.topics.fate(name.topic, newest_ms)

    def _beginning(self, topic: str) -> int:
        """Return the first offset of a topic whose queues began at 0 once more; 0 if they did not."""
        earlier = OF_EARLIER_QUEUE.values()
        if not any(one.kind in earlier and one.queue.topic == topic for one in self.differences):
            return 0
        return min((at for name, at in self.beginnings.items() if name.topic == topic), default=0)


def topics_of(store: Store, queues: Iterable[StoredQueue]) -> TopicTable:
    """Return the broker's table of topics; *queues* show further topics that are alive."""
    table = topic_table(store)
    return table._replace(with_queues=table.with_queues | {queue.name.topic for queue in queues})


class LogExtent(NamedTuple):
    """The log as the join knows it."""

    listed: int  # where the oldest record was when the store was listed
    end: int
    deleted_meanwhile: Sequence[tuple[int, int]] = ()  # ranges that retention took before they were read
    before: Sequence[RangeMatches] = ()  # of records before the start, which somebody still knows

    @property
    def start(self) -> int:
        """The offset of the oldest record that is still there."""
        return max([self.listed, *(end for _, end in self.deleted_meanwhile)])

    def deleted(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) that nobody has read, because they were deleted before or meanwhile."""
        for first, last in ((0, self.listed), *self.deleted_meanwhile):
            if max(first, start) < min(last, end):
                yield max(first, start), min(last, end)


def match_range(matching: Matching, _range: Range, pieces: Iterator[Records | Piece]) -> RangeMatches:
    """Match the units of one range, without rows."""
    matcher, newer = Matcher(matching), UnitCollector(matching.rules)
    for item in pieces:
        matcher.add(item)
        if matching.queues and isinstance(item, Records):
            newer.add(item, matching.to_offset)
    matches = matcher.finish().matches
    matches.newer = list(newer_runs(newer.finish()))
    return matches


def join(
    workers: Workers,
    store: Store,
    rules: QueueRules,
    range_size: int = DEFAULT_RANGE_SIZE,
    collector: LogCollector[C] | None = None,
) -> JoinResult:
    """Join all of a store, for its differences."""
    seen = look(workers, store)
    topics = topics_of(store, seen.queues)
    matching = Matching(rules, seen.queues, store.start_offset, seen.dispatched, seen.light_dispatched, topics=topics)
    ranges = ListedLog(store, plan_ranges(store, store.start_offset, range_size)).narrow().ranges
    outcomes = read_chained(workers, ranges, partial(match_range, matching), collector=collector)
    confirm_deleted(store, outcomes)
    log_end = next(
        (o.seen.open_at for o in outcomes if o.seen.open_at is not None), watermark(outcomes, store.start_offset)
    )
    log = LogExtent(store.start_offset, log_end, deleted_ranges(outcomes))
    return finish(workers, store, matching, seen, [outcome.payload for outcome in outcomes], log)


def finish(  # noqa: PLR0913, PLR0917 - what the steps before have found
    workers: Workers,
    store: Store,
    matching: Matching,
    seen: Look,
    matches: Sequence[RangeMatches],
    log: LogExtent,
    write: Write | None = None,
) -> JoinResult:
    """
    Explain what the ranges have left, and return the whole of the join.

    *write* gets the rows of what is left, in the tasks.
    """
    joined = _sum(seen, [*log.before, *matches], log.end)
    joined.topics = matching.topics
    # A run takes no unit that is newer than its log; to verify a store is to look at every one.
    limit = seen.dispatched if write is None else joined.dispatched
    gaps = tuple((start, end) for _, start, end in holes(store.segments))
    damaged = tuple(sorted(joined.damaged))
    deleted_meanwhile = tuple(log.deleted_meanwhile)
    bounds = Bounds(log.start, log.end, limit, store.is_final, deleted_meanwhile, gaps, damaged, matching.topics)
    remainders = list(_remainders(seen, matches, log.before, joined, limit))
    parts = [remainders[at : at + _QUEUES_A_TASK] for at in range(0, len(remainders), _QUEUES_A_TASK)]
    open_offsets = [
        offset
        for part in workers.map(parts, partial(_unresolved, bounds=bounds), "matching queue units")
        for offset in part
    ]
    resolved = resolve(workers, store, matching.rules, open_offsets) if open_offsets else {}
    for part in workers.map(
        parts, partial(_settle, bounds=bounds, resolved=resolved, write=write), "matching queue units"
    ):
        for settled in part.settled:
            _add(joined, settled)
        if part.written is not None:
            joined.written.append(part.written)
    return joined


def _sum(seen: Look, matches: Sequence[RangeMatches], log_end: int) -> JoinResult:
    joined = JoinResult(queues=seen.queues, log_end=log_end, dispatched=min(seen.dispatched, log_end))
    joined.behind = log_end - joined.dispatched
    for part in matches:
        joined.expected += part.expected
        joined.waiting += part.waiting
        joined.matched += int(part.matched[:, 2].sum())
        joined.differences += part.differences
        joined.damaged += part.damaged
        joined.newer += part.newer
        joined.taken_to = part.taken_to if part.taken_to is not None else joined.taken_to
        for name, more in part.without_queue.items():
            known = joined.without_queue.get(name)
            joined.without_queue[name] = known.followed_by(more) if known else more
    if joined.waiting:
        joined.behind = max(joined.behind, log_end - seen.light_dispatched)
    return joined


def _remainders(
    seen: Look, matches: Sequence[RangeMatches], before: Sequence[RangeMatches], joined: JoinResult, limit: int
) -> Iterator[Remainder]:
    """Yield the queues of which something is left; note how far the others were taken."""
    # A gap is a run of units that no record of this run matched, from the watermark to the end that was seen. With a
    # limit (a store that is written to, or a run in steps) the last gap may be of records that come later: it counts up
    # to the first unit that is newer than the limit, and the rest stays open, from `open_from` on, for the next run.
    left: dict[QueueName, list[LeftOver]] = {}
    for part in matches:
        for left_over in part.left_over:
            left.setdefault(left_over.name, []).append(left_over)
    live = matched_runs(matches)
    matched = matched_runs([*before, *matches]) if before else live
    for number, queue in enumerate(seen.queues):
        mine = matched.get(number, _NO_RUNS)
        start = seen.watermarks[number]
        end = max(seen.ends[number], int(mine.sum(axis=1).max(initial=0)))
        gaps = tuple(gaps_between(start, end, mine))
        last_gap = gaps[-1] if gaps and gaps[-1][1] == end else None
        open_from = None
        if last_gap and limit != EVERYTHING:
            open_from = last_gap[0]
            end = _first_newer(queue, *last_gap, limit)
            gaps = (*gaps[:-1], (last_gap[0], end)) if end > last_gap[0] else gaps[:-1]
        joined.watermarks[queue.name] = end
        joined.ends[queue.name] = max(end, seen.ends[number])
        if gaps or queue.name in left:
            parts = left.get(queue.name, [])
            units = np.concatenate([part.units for part in parts]) if parts else EMPTY
            texts = tuple(tag for part in parts for tag in part.tags)
            lost = joined_runs(run for part in parts for run in part.lost)
            first_live = int(live[number][0, 0]) if number in live else None
            yield Remainder(queue, gaps, first_live, units, texts, open_from, lost)


def matched_runs(matches: Sequence[RangeMatches]) -> Mapping[int, NDArray[np.int64]]:
    """Return the matched runs of each queue, ascending: rows of position and length."""
    # There is a run for each pair of a range and a queue. They stay in arrays: objects would take many times as much.
    rows = np.concatenate([np.empty((0, 3), np.int64), *(part.matched for part in matches)])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    numbers, starts = np.unique(rows[:, 0], return_index=True)
    return dict(zip(numbers.tolist(), np.split(rows[:, 1:], starts[1:]), strict=False))


def gaps_between(start: int, end: int, matched: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [*start*, *end*) that no matched run covers."""
    starts = np.append(matched[:, 0], end)
    ends = np.maximum.accumulate(np.append(start, matched.sum(axis=1)))
    are_gaps = starts > ends
    yield from zip(ends[are_gaps].tolist(), starts[are_gaps].tolist(), strict=True)


def _first_newer(queue: StoredQueue, start: int, end: int, dispatched: int) -> int:
    """
    Return the position of the first unit in [start, end) that is newer than the first look.

    Older ones may be after it where recovery cut the queue: they wait until they are written over.
    """
    for file in queue.files:  # between files there may be very many places, and no unit
        begin, stop = file.base_offset // queue.unit_size, file.end // queue.unit_size
        for first, last in chunks(max(start, begin), min(end, stop), _AT_ONCE):
            newer = np.flatnonzero(units_of(queue, first, last)["physical_offset"] >= dispatched)
            if newer.size:
                return first + int(newer[0])
    return end


def _unresolved(part: Sequence[Remainder], *, bounds: Bounds) -> list[int]:
    return [offset for remainder in part for offset in unresolved(remainder, bounds)]


@dataclass(slots=True)
class _Part:
    settled: list[UnmatchedClasses]
    written: Action | None


def _settle(part: Sequence[Remainder], *, bounds: Bounds, resolved: Resolved, write: Write | None) -> _Part:
    settled = [settle(remainder, bounds, resolved, with_rows=write is not None) for remainder in part]
    if write is None:
        return _Part(settled, None)
    first = part[0].queue.name
    written = write(f"rest-{crc32(first.path.encode('utf-8', 'surrogatepass')):08x}", _rows(settled))
    for one in settled:
        one.blocks, one.tags = [], []
    return _Part(settled, written)


def _rows(settled: Sequence[UnmatchedClasses]) -> Rows:
    for one in settled:
        yield from batches_of(one.blocks, one.tags)


def _add(joined: JoinResult, settled: UnmatchedClasses) -> None:
    joined.matched += settled.matched
    joined.expired += settled.expired
    joined.blanks += settled.blanks
    joined.ahead += settled.ahead
    joined.misplaced += settled.misplaced
    joined.differences += settled.differences
    joined.beginnings[settled.queue.name] = settled.beginning
