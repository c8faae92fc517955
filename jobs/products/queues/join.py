"""
The join of a store's queues with its log.

    probe the queues ─► write the units of each range to scratch ─► compare group by group ─► explain the rest

The last step is for units that lead to records of other queues: only the log can say what these are. `join` runs all
steps; `ingest` collects the units itself, because there one pass over the log makes other rows as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypeVar
from zlib import crc32

from jobs.products.queues.differences import JoinResult
from jobs.products.queues.matching import Comparison, ProbedQueue, Rows, Write, compare_group, written_rows
from jobs.products.queues.rows import batches_of
from jobs.products.queues.settling import settle
from jobs.products.queues.unit_files import (
    RangeUnits,
    collect_units,
    count_groups,
    discard_units,
    group_of,
    has_units,
)
from jobs.products.queues.unmatched import Bounds, Remainder, Resolved, resolve, unresolved
from jobs.storage.scratch import Scratch, scratch_for
from jobs.store.chain import (
    ListedLog,
    LogCollector,
    Outcome,
    confirm_deleted,
    deleted_ranges,
    read_chained,
    watermark,
)
from jobs.store.queue_ends import Look, look
from jobs.store.queue_files import StoredQueue
from jobs.store.ranges import holes, plan_ranges
from jobs.store.store import DEFAULT_RANGE_SIZE, Store
from jobs.store.topics import TopicTable, topic_table
from jobs.store.workers import Workers
from rmq_formats.consumequeue.unit import QueueRules

_QUEUES_A_TASK = 64
T = TypeVar("T")


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
    collector: LogCollector | None = None,
    scratch_location: str | Scratch | None = None,
) -> JoinResult:
    """Join all of a store, for its differences."""
    seen = look(workers, store)
    topics = topics_of(store, seen.queues)
    groups = count_groups(store.log_size)
    # Units of a small log stay in memory.
    with scratch_for(scratch_location, workers.options) if groups > 1 else nullcontext() as scratch:
        task = partial(collect_units, rules=rules, groups=groups, scratch=scratch)
        ranges = ListedLog(store, plan_ranges(store, store.start_offset, range_size)).narrow().ranges
        outcomes = read_chained(workers, ranges, task, partial(discard_units, scratch), collector)
        confirm_deleted(store, outcomes)
        units = [outcome.payload for outcome in outcomes]
        end, deleted = log_end_of(outcomes, store.start_offset), deleted_ranges(outcomes)
        log = CollectedLog(units, scratch, groups, store.start_offset, end, deleted)
        return compare(workers, store, rules, seen, log, topics)


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
    ends = [one.taken_to for one in (*log.kept, *log.ranges) if one.taken_to is not None]
    joined = JoinResult(
        queues=seen.queues,
        topics=topics,
        damaged=log.damaged,
        log_end=log.end,
        dispatched=min(seen.dispatched, log.end),
        taken_to=ends[-1] if ends else None,
    )
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
    limits = seen.dispatched, seen.light_dispatched
    comparison = Comparison(log.scratch, tuple(log.ranges), tuple(log.kept), bounds, *limits, write)
    task = partial(compare_group, comparison=comparison)
    compared = workers.map(list(_groups(seen, log)), task, "matching queue units")
    rest = sorted((one for _, unsettled in compared for one in unsettled), key=lambda one: one.queue.name)
    settled = _settle_rest(workers, store, rules, rest, comparison)
    for part in (*(result for result, _ in compared), *settled):
        joined.add(part)
    joined.finish()
    joined.behind = log.end - joined.dispatched
    if joined.waiting:
        joined.behind = max(joined.behind, log.end - seen.light_dispatched)
    return joined


def _groups(seen: Look, log: CollectedLog) -> Iterator[tuple[int, Sequence[ProbedQueue]]]:
    members: list[list[ProbedQueue]] = [[] for _ in range(log.groups)]
    for probed in zip(seen.queues, seen.watermarks, seen.ends, strict=True):
        members[group_of(probed[0].name, log.groups)].append(probed)
    for number, queues in enumerate(members):
        if queues or has_units([*log.kept, *log.ranges], number):
            yield number, queues


def _settle_rest(
    workers: Workers, store: Store, rules: QueueRules, rest: Sequence[Remainder], comparison: Comparison
) -> list[JoinResult]:
    """Explain the queues whose units lead to records of other queues: read the segments that hold these once more."""
    offsets = {offset for one in rest for offset in unresolved(one, comparison.bounds)}
    resolved = resolve(workers, store, rules, offsets) if offsets else {}
    parts = [rest[at : at + _QUEUES_A_TASK] for at in range(0, len(rest), _QUEUES_A_TASK)]
    return workers.map(parts, partial(_settle, comparison=comparison, resolved=resolved), "matching queue units")


def _settle(part: Sequence[Remainder], *, comparison: Comparison, resolved: Resolved) -> JoinResult:
    result, write = JoinResult(), comparison.write

    def rows() -> Rows:
        for one in part:
            yield from batches_of(*settle(one, comparison.bounds, resolved, result, with_rows=write is not None))

    name = part[0].queue.name.path.encode("utf-8", "surrogatepass")
    result.written = written_rows(write, f"rest-{crc32(name):08x}", rows())
    return result
