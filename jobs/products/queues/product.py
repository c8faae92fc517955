"""
The queues in `ingest`: their new units, joined with the new records of the log; each unit is processed once.

A run processes the records that were dispatched when it looked at the queues, starting at the end of the last run;
newer records, and the units that point to them, are left to the next run. So units may be ahead of the log or late, and
both may lose their beginnings at different times: every unit gets its row in exactly one run. If retention deleted a
record before its unit was seen, the unit is compared with the record's row in the lake.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.commit import ExpiredRows
from jobs.lake.tables import CONSUME_QUEUE
from jobs.products.committed_records import read_committed_records
from jobs.products.product import ChangedQueues, FinishedProduct, Run, RunOutput, StartedProduct, State
from jobs.products.queues.join import collect_topic_evidence_with_queues, compare_queues
from jobs.products.queues.join_result import KINDS_WITHOUT_QUEUE_FAULT, DifferenceKind, JoinResult
from jobs.products.queues.processed_ends import read_processed_ends, store_processed_ends
from jobs.products.queues.remainder import CollectedLog
from jobs.products.queues.settings import determine_unit_rules
from jobs.products.queues.unit_files import (
    RangeUnitCollector,
    RangeUnits,
    choose_group_count,
    new_range_unit_collector,
    read_units,
)
from jobs.storage.locations import is_local
from jobs.store.chain import (
    RangeOutcome,
    collect_damaged_ranges,
    complete_records_end,
    ranges_deleted_meanwhile,
    read_ranges_not_deleted,
)
from jobs.store.log_ends import find_lost_ends
from jobs.store.queue_ends import probe_queue_ends
from jobs.store.queue_storage import QueueStorage, detect_queue_storage, rocksdb_queue_directory
from jobs.store.ranges import Range, plan_ranges, written_size
from jobs.store.selection import Selection
from jobs.store.store import DEFAULT_RANGE_SIZE, Store
from jobs.store.topics import TopicFate
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.segment import UNDECIDED_REASON
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueName, UnitRules

_LARGEST_SCAN = 64 << 20  # bytes of new records that are scanned before their queues are probed

# Shared by all ranges of a run, and sent to tasks: rules, number of groups, output, whether there are scratch files,
# and the selection of topics.
_Shared = tuple[UnitRules, int, RunOutput, bool, Selection]


def _collect_units(shared: _Shared, start: int, first: int, last: int) -> RangeUnitCollector:
    """Return the collector of the units of records in [*first*, *last*), for the range that begins at *start*."""
    rules, groups, output, has_scratch, selection = shared
    stem = output.naming.new_file_name(f"{start:020d}", "")
    scratch = output.create_scratch() if has_scratch else None
    return RangeUnitCollector(rules, groups, scratch, stem, first, last, selection)


def _collect_units_of_range(
    shared: _Shared, first: int, last: int, range_: Range, _files: ExitStack
) -> RangeUnitCollector:
    return _collect_units(shared, range_.start_offset, first, last)


def start_product(run: Run, state: State | None) -> StartedProduct[RangeUnits]:
    """Probe the queues before the log is read, so that the log contains the record of each unit found."""
    wants_topic = run.selection.topic_filter
    taken_to = int(state["dispatched"]) if state else 0
    changed = run.changed_queues
    topics_to_probe = None if changed is None else changed.topics
    processed_ends = read_processed_ends(run.output.lake, state)
    seen = probe_queue_ends(run.workers, run.store, processed_ends, taken_to, wants_topic, topics_to_probe)
    if changed is not None:  # a newer record may have its unit in a queue that was not probed
        seen = seen._replace(dispatched_offset=min(seen.dispatched_offset, changed.scanned_to))
    from_offset = max(taken_to, run.store.start_offset)
    # Queues may have been deleted since, but dispatched records remain dispatched.
    seen = seen._replace(dispatched_offset=max(seen.dispatched_offset, from_offset))
    boundary = max(_read_boundary(state), run.store.start_offset)
    new_bytes = run.store.end_offset - boundary
    groups = choose_group_count(min(new_bytes, run.step_bytes or new_bytes))
    output, selection = run.output, run.selection
    scratch = output.scratch if groups > 1 else None
    rules = determine_unit_rules(run.store, run.writers.value.rules, run.given_settings.conf)
    topics = collect_topic_evidence_with_queues(run.store, seen.queues)

    shared = rules, groups, output, scratch is not None, selection
    collect = partial(_collect_units, shared)
    collector = partial(_collect_units_of_range, shared, from_offset, seen.dispatched_offset)

    def finish(outcomes: Sequence[RangeOutcome[RangeUnits]], to_offset: int) -> FinishedProduct:
        deleted = [(one.start_offset, one.end_offset) for one in ranges_deleted_meanwhile(outcomes)]
        kept = _collect_deleted(run, collect, taken_to, min(run.from_offset, seen.dispatched_offset), deleted)
        units = [outcome.payload for outcome in outcomes]
        damaged = tuple(collect_damaged_ranges(outcomes))
        log = CollectedLog(
            units, scratch, groups, run.store.start_offset, to_offset, deleted, kept, damaged_ranges=damaged,
            select_rows=None if run.expired is None else partial(_drop_expired, run.expired, run.expired_until),
        )  # fmt: skip
        new_row_file = partial(output.new_file, CONSUME_QUEUE)
        try:
            joined = compare_queues(run.workers, run.store, rules, seen, log, topics, new_row_file)
        finally:
            run.output.delete_scratch(kept)
        # A later run ignores losses before the part of the log that it reads.
        ends = find_lost_ends(run.store, seen.newest_offset, to_offset) if run.store.has_clean_shutdown else ()
        lost = [one for one in ends if state is None or one.end >= to_offset]  # a run looks for those after a crash
        gaps = [(one.start, one.end, f"{one.text}; `verify` shows details") for one in lost]
        # A store without any queue has no contradictions: only its log was copied, or its queues were in memory when
        # the broker was killed.
        is_probed_in_part = changed is not None and any(map(selection.includes, _list_topics(run.store)))
        has_queues = bool(joined.queues) or is_probed_in_part
        if outcomes and outcomes[-1].facts.last_reason == UNDECIDED_REASON:
            gaps.append((to_offset, seen.newest_offset, UNDECIDED_REASON))
        finished = FinishedProduct(
            state=_next_run_state(run, joined, state, processed_ends),
            units={
                "matched": joined.figures.matched,
                "expired": joined.figures.expired,
                "differences": len(joined.differences),
            },
            undispatched_bytes=joined.behind,
            gaps=gaps,
            notes=list(undecided_topic_notes(joined)) if has_queues else (),
            contradictions=count_contradictions(joined, run.store) if has_queues else 0,
        )
        finished.add(CONSUME_QUEUE, *joined.figures.row_files)
        return finished

    return StartedProduct(boundary, collector, finish)


def find_changed_queues(
    store: Store, rules: UnitRules, state: State | None, changed_topics: Collection[str]
) -> ChangedQueues | None:
    """
    Return the topics of new records, together with *changed_topics*; None if all queues should be probed.

    Queues in RocksDB are read from one database, and a large new part of the log names most topics.
    """
    if state is None or rocksdb_queue_directory(store) is not None or not is_local(store.root):
        return None
    ranges = plan_ranges(store, max(_read_boundary(state), store.start_offset), DEFAULT_RANGE_SIZE)
    if written_size(ranges) > _LARGEST_SCAN:
        return None
    start, outcomes = read_ranges_not_deleted(
        SerialWorkers(), store, ranges, [partial(new_range_unit_collector, rules, 1, None)]
    )
    units = [outcome.payload[0] for outcome in outcomes]
    names = {part.name.topic for parts in read_units(None, units, 0) for part in parts}
    return ChangedQueues(frozenset(names.union(changed_topics)), complete_records_end(outcomes, start))


def _drop_expired(expired: ExpiredRows, until: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without those before *until* that have expired: their messages have left the lake."""
    offsets = rows.column("physical_offset")
    is_old = expired.mask_messages(rows.column("store_timestamp"), rows.column("topic"))
    is_old = pc.coalesce(is_old, pc.less(offsets, expired.to_offset))
    return rows.filter(pc.invert(pc.and_(is_old, pc.less(offsets, until))))


def _list_topics(store: Store) -> set[str]:
    return {file.path_facts.topic for file in store.queue_files if file.path_facts.topic}


def _collect_deleted(
    run: Run,
    collect: Callable[[int, int, int], RangeUnitCollector],
    start: int,
    end: int,
    deleted_meanwhile: Sequence[tuple[int, int]],
) -> list[RangeUnits]:
    """Collect expected units of messages that are in the lake but no longer in the log."""
    output = run.output
    found = []
    for deleted_from, deleted_to in ((0, run.store.start_offset), *deleted_meanwhile):
        first, last = max(deleted_from, start), min(deleted_to, end)
        if first < last:
            collector = collect(first, first, last)
            for group in read_committed_records(output.lake, output.naming.store_id, first, last):
                collector.add(group)
            found.append(collector.finish())
    return found


def count_contradictions(joined: JoinResult, store: Store) -> int:
    """Return the number of units that contradict the log, except for losses of the log and deleted topics."""
    is_double = detect_queue_storage(store) is QueueStorage.BOTH
    missing = [
        name
        for name in joined.figures.queues_without_files
        if joined.find_topic_fate(name) is TopicFate.ALIVE
        and not (is_double and name.topic.startswith(LMQ_PREFIX))  # selective double write leaves light queues out
    ]
    wrong = sum(one.unit_count for one in joined.differences if one.kind not in KINDS_WITHOUT_QUEUE_FAULT)
    return wrong + sum(joined.figures.queues_without_files[name].unit_count for name in missing)


def undecided_topic_notes(joined: JoinResult) -> Iterator[str]:
    """Yield the topics whose messages have no queue, if it is unknown whether they were deleted."""
    topics = {
        name.topic: joined.topic_evidence.explain_undecided(name.topic)
        for name in sorted(joined.figures.queues_without_files)
        if joined.find_topic_fate(name) is TopicFate.UNDECIDED
    }
    for one in joined.differences:
        if one.kind is DifferenceKind.DELETED_OR_LOST_QUEUE:
            topics.setdefault(one.queue.topic, joined.topic_evidence.explain_undecided(one.queue.topic))
    for topic, why in topics.items():
        yield f"it is unknown whether the topic {topic!r} was deleted or its queues were lost: {why}"


def _next_run_state(run: Run, joined: JoinResult, state: State | None, ends: Mapping[QueueName, int]) -> State:
    """Return the start of the next run: the record after which it continues, and the end of each queue."""
    return {
        "dispatched": joined.dispatched_offset,
        # The end of a record: units do not prove where the log ends, and the reading of a log begins at a record
        # boundary.
        "boundary": _read_boundary(state) if joined.records_end is None else joined.records_end,
        **store_processed_ends(run.output, state, {**ends, **joined.figures.processed_ends}),
    }


def _read_boundary(state: State | None) -> int:
    return int(state["boundary"]) if state else 0
