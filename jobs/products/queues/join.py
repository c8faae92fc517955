"""
The join of a store's queues with its log.

    probe the queues ─► write the units of each range to scratch ─► compare group by group ─► explain the rest

The last step is for units that lead to records of other queues: only the log can say what these are. `join` runs all
steps; `ingest` collects the units itself, because there one pass over the log makes other rows as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar
from zlib import crc32

from jobs.lake.table_file import Action
from jobs.products.queues.differences import OF_EARLIER_QUEUE, Difference, DifferenceKind
from jobs.products.queues.matching import (
    Comparison,
    Group,
    GroupMatches,
    LackingQueue,
    NewerRun,
    ProbedQueue,
    Rows,
    Write,
    compare_group,
)
from jobs.products.queues.records_at import Resolved, resolve
from jobs.products.queues.rows import batches_of
from jobs.products.queues.unit_files import (
    RangeUnits,
    UnitFile,
    collect_units,
    count_groups,
    discard_units,
    group_of,
    has_units,
)
from jobs.products.queues.unmatched import Bounds, Remainder, UnmatchedClasses, settle, unresolved
from jobs.storage.scratch import Scratch, scratch_for
from jobs.store.chain import (
    C,
    ListedLog,
    LogCollector,
    Outcome,
    confirm_deleted,
    deleted_ranges,
    read_chained,
    watermark,
)
from jobs.store.log_ends import FARTHEST
from jobs.store.queue_ends import Look, look
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import holes, plan_ranges
from jobs.store.store import DEFAULT_RANGE_SIZE, Store
from jobs.store.topics import Fate, TopicTable, topic_table
from jobs.store.workers import Workers
from rmq_formats.consumequeue.unit import QueueName, QueueRules

_QUEUES_A_TASK = 64
_OF_NO_RECORD = frozenset({DifferenceKind.DANGLING, DifferenceKind.FOREIGN, DifferenceKind.CORRUPT})
T = TypeVar("T")


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
    damaged: list[tuple[int, int]] = field(default_factory=list)  # from and to of bytes without a record
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

    def ahead_of_log(self) -> int | None:
        """Return the newest offset that last units of queues lead to after the log's end; None without any."""
        starts = {queue.name: queue.start for queue in self.queues}
        behind = [
            difference
            for difference in self.differences
            if difference.kind is DifferenceKind.BEHIND_LOG
            and difference.log_offset is not None
            and difference.position + difference.times >= self.ends[difference.queue]
            and difference.log_offset < self.log_end + FARTHEST
        ]
        # A queue of which nothing is in this log, or whose last unit in it leads to no record, may be another log's.
        # Where no queue has anything in it, the log is gone; a unit that leads to the log's very end is of this log.
        whole = {one.queue for one in behind if one.position <= starts[one.queue]}
        written = {name for name, start in starts.items() if self.ends[name] > start}
        bad = {(one.queue, one.position + one.times) for one in self.differences if one.kind in _OF_NO_RECORD}
        if not whole >= written:
            behind = [
                one
                for one in behind
                if one.log_offset == self.log_end or (one.queue not in whole and (one.queue, one.position) not in bad)
            ]
        return max((one.log_offset for one in behind if one.log_offset is not None), default=None)


def topics_of(store: Store, queues: Iterable[StoredQueue]) -> TopicTable:
    """Return the broker's table of topics; *queues* show further topics that are alive."""
    table = topic_table(store)
    return table._replace(with_queues=table.with_queues | {queue.name.topic for queue in queues})


class CollectedLog(NamedTuple):
    """The units of a log, and the part of it that was read."""

    ranges: Sequence[RangeUnits]
    scratch: Scratch | None
    groups: int
    start: int  # where the oldest record was when the store was listed
    end: int
    deleted_meanwhile: Sequence[tuple[int, int]] = ()  # ranges that retention took before they were read
    kept: Sequence[RangeUnits] = ()  # units of records before the start, which the lake still has

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """From and to of the bytes without a record."""
        return [damaged for part in self.ranges for damaged in part.damaged]


def log_end_of(outcomes: Sequence[Outcome[T]], start: int) -> int:
    """Return the end of a log that was read from *start* on."""
    open_ends = (outcome.seen.open_at for outcome in outcomes if outcome.seen.open_at is not None)
    return next(open_ends, watermark(outcomes, start))


def join(  # noqa: PLR0913, PLR0917 - the store, its rules and where to work
    workers: Workers,
    store: Store,
    rules: QueueRules,
    range_size: int = DEFAULT_RANGE_SIZE,
    collector: LogCollector[C] | None = None,
    scratch_location: str | Scratch | None = None,
) -> JoinResult:
    """Join all of a store, for its differences."""
    seen = look(workers, store)
    topics = topics_of(store, seen.queues)
    groups = count_groups(store.log_size)
    with unit_scratch(groups, scratch_for(scratch_location, workers.options)) as scratch:
        task = partial(collect_units, rules=rules, groups=groups, scratch=scratch)
        ranges = ListedLog(store, plan_ranges(store, store.start_offset, range_size)).narrow().ranges
        outcomes = read_chained(workers, ranges, task, partial(discard_units, scratch), collector)
        confirm_deleted(store, outcomes)
        units = [outcome.payload for outcome in outcomes]
        end, deleted = log_end_of(outcomes, store.start_offset), deleted_ranges(outcomes)
        log = CollectedLog(units, scratch, groups, store.start_offset, end, deleted)
        return compare(workers, store, rules, seen, log, topics)


def unit_scratch(groups: int, scratch: AbstractContextManager[Scratch]) -> AbstractContextManager[Scratch | None]:
    """Return the directory for units; None for those of a small log, which stay in memory."""
    return scratch if groups > 1 else nullcontext()


def compare(  # noqa: PLR0913, PLR0917 - the store, its log, and which rows are wanted
    workers: Workers,
    store: Store,
    rules: QueueRules,
    seen: Look,
    log: CollectedLog,
    topics: TopicTable,
    write: Write | None = None,
) -> JoinResult:
    """
    Compare queues, as they were *seen* before the log was read, with its units, group by group.

    *write* gets the rows, in the tasks.
    """
    joined = JoinResult(queues=seen.queues, topics=topics, log_end=log.end, dispatched=min(seen.dispatched, log.end))
    joined.damaged = log.damaged
    ends = [one.taken_to for one in (*log.kept, *log.ranges) if one.taken_to is not None]
    joined.taken_to = ends[-1] if ends else None
    bounds = Bounds(
        max([log.start, *(end for _, end in log.deleted_meanwhile)]),
        log.end,
        # A run takes no unit that is newer than its log; to verify a store is to compare every one.
        seen.dispatched if write is None else joined.dispatched,
        store.is_final,
        tuple(log.deleted_meanwhile),
        tuple((start, end) for _, start, end in holes(store.segments)),
        tuple(sorted(joined.damaged)),
        topics,
    )
    files, kept = (tuple(part.units for part in parts) for parts in (log.ranges, log.kept))
    limits = seen.dispatched, seen.light_dispatched
    comparison = Comparison(log.scratch, files, kept, bounds, *limits, write)
    groups = list(_groups(seen, [*kept, *files], log.groups))
    task = partial(compare_group, comparison=comparison)
    matches = workers.map(groups, task, "matching queue units")
    _add_groups(joined, matches)
    joined.behind = log.end - joined.dispatched
    if joined.waiting:
        joined.behind = max(joined.behind, log.end - seen.light_dispatched)
    settled = [one for group in matches for one in group.settled]
    settled += _settled(workers, store, rules, matches, comparison, joined)
    for one in sorted(settled, key=lambda one: one.queue.name):
        _add(joined, one)
    return joined


def _groups(seen: Look, files: Sequence[UnitFile], count: int) -> Iterator[Group]:
    members: list[list[ProbedQueue]] = [[] for _ in range(count)]
    for probed in map(ProbedQueue, seen.queues, seen.watermarks, seen.ends):
        members[group_of(probed.queue.name, count)].append(probed)
    for number, queues in enumerate(members):
        if queues or has_units(files, number):
            yield Group(number, tuple(queues))


def _add_groups(joined: JoinResult, matches: Sequence[GroupMatches]) -> None:
    for group in matches:
        joined.expected += group.expected
        joined.waiting += group.waiting
        joined.matched += group.matched
        joined.newer += group.newer
        joined.without_queue |= group.without_queue
        joined.watermarks |= {name: taken_to for name, (taken_to, _) in group.ends.items()}
        joined.ends |= {name: end for name, (_, end) in group.ends.items()}
        joined.written += [group.written] if group.written is not None else []
    wrong = (one for group in matches for one in group.differences)
    joined.differences += (one for _, one in sorted(wrong, key=lambda numbered: (numbered[0], numbered[1].queue)))


def _settled(  # noqa: PLR0913, PLR0917 - the store, its rules, and the comparison so far
    workers: Workers,
    store: Store,
    rules: QueueRules,
    matches: Sequence[GroupMatches],
    comparison: Comparison,
    joined: JoinResult,
) -> Iterator[UnmatchedClasses]:
    """Explain the queues whose units lead to records of other queues: read the segments that hold these once more."""
    remainders = sorted((one for group in matches for one in group.unsettled), key=lambda one: one.queue.name)
    offsets = {offset for one in remainders for offset in unresolved(one, comparison.bounds)}
    resolved = resolve(workers, store, rules, offsets) if offsets else {}
    parts = [remainders[at : at + _QUEUES_A_TASK] for at in range(0, len(remainders), _QUEUES_A_TASK)]
    task = partial(_settle, comparison=comparison, resolved=resolved)
    for settled, written in workers.map(parts, task, "matching queue units"):
        joined.written += [written] if written is not None else []
        yield from settled


def _settle(
    part: Sequence[Remainder], *, comparison: Comparison, resolved: Resolved
) -> tuple[list[UnmatchedClasses], Action | None]:
    write = comparison.write
    settled = [settle(remainder, comparison.bounds, resolved, with_rows=write is not None) for remainder in part]
    if write is None:
        return settled, None
    first = part[0].queue.name
    written = write(f"rest-{crc32(first.path.encode('utf-8', 'surrogatepass')):08x}", _rows(settled))
    for one in settled:
        one.blocks, one.tags = [], []
    return settled, written


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
