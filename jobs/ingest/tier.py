"""
A run of a tier: the new records of each queue's log, in one commit for all of them.

A queue is a small log of its own. For each queue the run's manifest stores the end of the lake's part, and fingerprints
by which the next run recognises the queue; everything else is as for the log of a broker.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TypeVar

import pyarrow as pa

from jobs.console import process
from jobs.console.result import RequestError
from jobs.ingest import IngestRequest, StepTimer, Summary
from jobs.ingest.commit import NextRun
from jobs.lake.bodies import add_inflated_bodies
from jobs.lake.identity import Likeness, TierQueueName, TierQueueState, identify_tier, states_as_json, tier_queue_states
from jobs.lake.lake import Lake
from jobs.lake.lock import check_lock_is_shared, hold_lock
from jobs.lake.runs import COMMAND_ID_KEY, TABLES_BEFORE_KEY, refresh_newest_run
from jobs.lake.table_file import AddedFile, TableFile
from jobs.lake.tables import PRODUCT_TABLES, QUARANTINE, TIERED
from jobs.products.messages import DAMAGE_SAMPLE_SIZE, Damage, drop_excluded_messages, split_by_release
from jobs.products.product import Gap, RunOutput
from jobs.storage.locations import normalise_location
from jobs.store.chain import RangeOutcome, complete_records_end
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import (
    WHOLE_SEGMENTS,
    Range,
    SettleLimits,
    compute_settle_limits,
    describe_plan,
    find_holes,
    plan_ranges,
)
from jobs.store.release import parse_rules
from jobs.store.running_broker import check_disk_space
from jobs.store.selection import Selection
from jobs.store.store import TierQueue
from jobs.store.workers import Workers
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import skip_lost_file
from rmq_formats.release import NEWEST, Rules, make_rules

_MOST_PARTS = 4096  # parts of a bundle
_CHUNKS_A_WORKER = 4
_Item = TypeVar("_Item")
_SPARED = frozenset(table.name for table in PRODUCT_TABLES) - {TIERED.name, QUARANTINE.name}


# A queue as it was before the run, and some bytes of its log, from a record on to the end of a segment.
QueueRange = tuple[TierQueueState, Range]
Bundle = list[QueueRange]  # ranges that one task reads
BundleRead = tuple[list[RangeOutcome[TierQueueName]], dict[str, AddedFile]]  # a file for each table
# The state at which reading begins, the ranges, and the missing parts.
_QueuePlan = tuple[TierQueueState, list[Range], list[Gap]]


def run_tier_steps(request: IngestRequest, workers: Workers, clock: StepTimer) -> Iterator[Summary]:
    """Yield the runs that ingest new messages of a tier."""
    lake = Lake(request.lake, workers.options)
    every, _ = request.list_tier(lake.options, workers.processes)
    if not every:
        raise RequestError(f"{request.store}: this tiered storage has no queues")
    queues = _select_broker(every, request.broker)
    broker = request.broker or queues[0].broker
    unmatched = request.selection.unmatched_patterns(queue.topic for queue in queues)
    known = identify_tier(lake, queues, broker, register_new=not (request.dry_run or unmatched))
    summary = Summary(
        normalise_location(request.store), lake.location, known.broker if known else broker, tier_queues=len(queues)
    )
    clock.end_step("listing")
    if known is None:
        summary.seconds = clock.laps
        yield summary
        return
    if not known.store_id:
        _require_topics(request.selection, queues)
    steps: Iterator[Summary] | None = None
    while True:
        # The caller may need the lock between two steps, and each step is reported before the next one begins.
        with nullcontext() if request.dry_run else hold_lock(lake, known.store_id) as was_cut_off:
            if steps is None:
                newest = refresh_newest_run(lake, known)
                steps = _TierRun(workers, lake, newest, request, summary, clock, bool(was_cut_off), queues).steps()
            step = next(steps, None)
        if step is None:
            return
        yield step


def _select_broker(queues: Sequence[TierQueue], broker: str | None) -> Sequence[TierQueue]:
    """Return the queues of the named broker, as several may copy to one tier."""
    places = {queue.broker_folder: queue.broker for queue in queues}
    chosen = [place for place, name in places.items() if len(places) == 1 or name == broker]
    if len(chosen) != 1:
        named = ", ".join(sorted(places.values()))
        raise RequestError(f"several brokers use this tier ({named}): choose one with --broker NAME")
    return [queue for queue in queues if queue.broker_folder == chosen[0]]


def _require_topics(selection: Selection, queues: Sequence[TierQueue]) -> None:
    unmatched = selection.unmatched_patterns(queue.topic for queue in queues)
    if unmatched:
        raise RequestError(f"{', '.join(unmatched)}: no topic of this tier matches, so nothing was committed")


@dataclass(slots=True)
class _TierRun(NextRun):
    queues: Sequence[TierQueue]

    def steps(self) -> Iterator[Summary]:
        """Plan once, and commit whenever a step is read."""
        self.determine_topics()
        tables = self.finish_earlier_run(_SPARED)
        newest = self.known_store.newest
        self.summary.from_offset = self.summary.to_offset = newest.to_offset if newest else 0
        selection = self.request.selection
        if newest is None or Selection.from_manifest(newest.selection).topics_text != selection.topics_text:
            _require_topics(selection, self.queues)
        plans = self._plan_all_queues()
        for gap in (gap for _, _, gaps in plans for gap in gaps):
            self.summary.add_gap(*gap)
        states = tier_queue_states(self.known_store)
        size = min(self.request.range_size, self.request.step_bytes or self.request.range_size)
        parts = ((state, range_) for state, ranges, _ in plans for range_ in ranges)
        # A bundle is about as large as a task should be: a tier may have thousands of queues.
        bundles = list(enumerate(_group_into_batches(parts, lambda part: part[1].size, size, _MOST_PARTS)))
        left = sum(map(_bundle_size, bundles))
        check_disk_space(self.summary.store, self.lake.location, left)
        self.timer.end_step("planning")
        if self.request.dry_run:
            self.summary.open = self.earlier_damage
            self.summary.plan = describe_plan([range_ for _, bundle in bundles for _, range_ in bundle], left)
            self.summary.seconds = self.timer.laps
            yield self.summary
            return
        now = states | {before.name: before for before, _, _ in plans}
        # If there is nothing to read, one empty commit is left.
        for step in list(_group_into_batches(bundles, _bundle_size, self.request.step_bytes or inf)) or [[]]:
            read = self._read(step)
            left -= sum(map(_bundle_size, step))
            self.summary.bytes_left = left
            now |= self._note_states(read, now)
            state = {**states_as_json(now.values()), TABLES_BEFORE_KEY: tables, COMMAND_ID_KEY: self.request.command_id}
            files: dict[str, list[AddedFile]] = {}
            for table, action in (item for _, actions in read for item in actions.items()):
                files.setdefault(table, []).append(action)
            self.commit(files, state, self.summary.newest_ms, has_moved=now != states)
            self.summary.seconds = self.timer.laps
            yield self.summary
            states, tables = dict(now), {**tables, **dict.fromkeys(self.summary.versions, self.summary.run or 0)}
            done, self.timer = self.summary, StepTimer()
            self.summary = Summary(done.store, done.lake, done.broker, done.store_id, tier_queues=done.tier_queues)
            self.summary.topics = done.topics
            self.summary.from_offset = self.summary.to_offset = done.to_offset
            self.request = replace(self.request, acknowledge=False)  # damage found by the first step stays open

    def _plan_all_queues(self) -> list[_QueuePlan]:
        """Plan the new ranges of each wanted queue; tasks do it, because each queue takes opening a file or two."""
        states, request = tier_queue_states(self.known_store), self.request
        wanted = [
            (queue, states.get((queue.topic, queue.queue_id)))
            for queue in self.queues
            if queue.store.segments and request.selection.includes(queue.topic)
        ]
        size = max(-(-len(wanted) // (_CHUNKS_A_WORKER * self.workers.width)), 1)
        chunks = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        settle_limits = compute_settle_limits(request.settle_ms)
        plans = self.workers.map(chunks, partial(_plan_queues, settle_limits=settle_limits), "reading queues")
        return [plan for some in plans for plan in some]

    def _read(self, bundles: Sequence[tuple[int, Bundle]]) -> list[BundleRead]:
        process.set_resumption_text(
            f"Nothing is lost or duplicated: run {self.known_store.next_run} is not finished, and the same command "
            "reads the same bytes again."
        )
        # No release that has tiers parses properties in another way.
        rules = parse_rules(self.request.release) if self.request.release else make_rules((0, NEWEST))
        task = partial(read_bundle, output=self.output, rules=rules, selection=self.request.selection)
        read = self.workers.map(bundles, task, "reading the tier")
        self.timer.end_step("reading and writing")
        return read

    def _note_states(
        self, read: Sequence[BundleRead], states: Mapping[TierQueueName, TierQueueState]
    ) -> dict[TierQueueName, TierQueueState]:
        of_queues: dict[TierQueueName, list[RangeOutcome[TierQueueName]]] = {}
        for outcome in (outcome for outcomes, _ in read for outcome in outcomes):
            of_queues.setdefault(outcome.payload, []).append(outcome)
        self._confirm_deleted([one for outcomes in of_queues.values() for one in outcomes if one.facts.was_deleted])
        noted = {}
        for name, outcomes in of_queues.items():
            before = states[name]
            # The last fingerprint of a range covers many records: one record identifies a log, and is read in each run.
            seen = [one for outcome in outcomes for one in outcome.facts.fingerprints[:-1]]
            times = [one.facts.store_timestamp for one in outcomes if one.facts.store_timestamp is not None]
            noted[name] = before._replace(
                to_offset=max(complete_records_end(outcomes, before.to_offset), before.to_offset),
                store_timestamp=times[-1] if times else before.store_timestamp,
                first=before.first or next(iter(seen), None),
                newest=seen[-1] if seen else before.newest,
            )
            starts = ((one, one.range.start_offset) for one in outcomes if not one.facts.was_deleted)
            self.summary.to_offset += sum(complete_records_end([one], start) - start for one, start in starts)
            self.summary.newest_ms = max(self.summary.newest_ms or 0, noted[name].store_timestamp or 0) or None
        return noted

    def _confirm_deleted(self, deleted: Sequence[RangeOutcome[TierQueueName]]) -> None:
        """Accept that segments were deleted while they were read, if they are not there any more."""
        if not deleted:
            return
        queues, _ = self.request.list_tier(self.lake.options, self.workers.processes)
        there = {segment.location for queue in queues for segment in queue.store.segments}
        for outcome in deleted:
            range_, (topic, queue_id) = outcome.range, outcome.payload
            if range_.location in there or not there:
                raise FileNotFoundError(errno.ENOENT, "disappeared while it was being read", range_.location)
            why = f"{topic}/{queue_id}: deleted while it was being read"
            self.summary.add_gap(range_.start_offset, range_.end_offset, why)


def _plan_queues(
    some: Sequence[tuple[TierQueue, TierQueueState | None]], settle_limits: SettleLimits | None
) -> list[_QueuePlan]:
    return [_plan_queue(queue, state, settle_limits) for queue, state in some]


def _plan_queue(queue: TierQueue, state: TierQueueState | None, settle_limits: SettleLimits | None) -> _QueuePlan:
    """Plan the new ranges of a queue, and note the offsets that are missing."""
    log = queue.store
    if state is None or state.compare(log) is Likeness.OTHER:
        generation = 0 if state is None else state.generation + 1
        state = TierQueueState(queue.topic, queue.queue_id, generation, log.start_offset, None, None, None)
    name, start = f"{queue.topic}/{queue.queue_id}", state.to_offset
    gaps: list[Gap] = []
    if start < log.start_offset:
        gaps.append((start, log.start_offset, f"{name}: deleted before it was read"))
        state = state._replace(to_offset=log.start_offset)
    gaps += [
        (low, high, f"{name}: no file contains these offsets; {before.location} ends before them")
        for before, low, high in find_holes(log.segments)
        if high > start
    ]
    ranges = plan_ranges(log, state.to_offset, WHOLE_SEGMENTS, state.store_timestamp, settle_limits)
    return state, ranges, gaps


def _bundle_size(numbered: tuple[int, Bundle]) -> int:
    return sum(range_.size for _, range_ in numbered[1])


def _group_into_batches(
    items: Iterable[_Item], size_of: Callable[[_Item], int], limit: float, most: float = inf
) -> Iterator[list[_Item]]:
    """Yield *items* in their order, together at least *limit* bytes or *most* items; the last batch may be smaller."""
    batch, left = list[_Item](), limit
    for item in items:
        batch.append(item)
        left -= size_of(item)
        if len(batch) >= most or left <= 0:
            yield batch
            batch, left = [], limit
    if batch:
        yield batch


def read_bundle(item: tuple[int, Bundle], *, output: RunOutput, rules: Rules, selection: Selection) -> BundleRead:
    """Write the messages of a bundle, and the damage in it: a task."""
    check_lock_is_shared(output.lake, output.naming.store_id)
    number, bundle = item
    name = f"{number:020d}"
    with (
        output.new_file(TIERED, name) as messages,
        output.new_file(QUARANTINE, name, run=output.naming.run) as quarantine,
    ):
        outcomes = []
        for state, range_ in bundle:
            reader = RangeReader(range_)
            damaged = sorted(_write_messages((state, range_), reader.pieces(), messages, rules, selection))
            where = {"segment": range_.base_offset, "file": range_.location}
            # Damaged bytes may be of messages that were not selected.
            left_out = {} if selection.topic_filter is None else {"sample": None}
            if damaged:
                quarantine.write_rows(one._asdict() | where | left_out for one in damaged)
            outcomes.append(RangeOutcome(range_, reader.facts, state.name))
        files = {TIERED.name: messages.close(), QUARANTINE.name: quarantine.close()}
    return outcomes, {table: action for table, action in files.items() if action is not None}


def _write_messages(
    part: QueueRange, pieces: Iterator[RawRecords | Piece], messages: TableFile, rules: Rules, selection: Selection
) -> Iterator[Damage]:
    """Write the rows of a part's records; yield its damage."""
    state, range_ = part
    for item in pieces:
        if isinstance(item, Piece):
            if item.kind is PieceKind.DAMAGE:
                sample = None  # if the bytes cannot be read, or retention has deleted the file
                with skip_lost_file(), range_.open() as file:
                    sample = bytes(file.read(item.offset - range_.base_offset, min(item.size, DAMAGE_SAMPLE_SIZE)))
                yield Damage(item.offset, item.size, item.reason, sample)
            continue
        for records, parser in split_by_release(item, rules):
            group = drop_excluded_messages(records, parser, selection)
            wanted = selection.topic_filter  # a segment may be that of another queue
            batch, bad = message_batch(group, parser, with_body=selection.with_body, wants_topic=wanted)
            for name, value in (("segment", range_.base_offset), ("generation", state.generation)):
                field = TIERED.schema.field(name)
                batch = batch.append_column(field, pa.repeat(pa.scalar(value, field.type), batch.num_rows))
            for rows in add_inflated_bodies(batch, wanted=selection.with_inflated):
                messages.write(rows)
            for offset, size in bad:
                yield Damage.from_changed_body(group, offset, size)
