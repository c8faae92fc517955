"""
The story of a run.

Know the store by its bytes, finish what an earlier run left prepared, plan the ranges behind the watermark, let tasks
read them and write Parquet, settle the queues, decide, commit.
"""

import errno
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from jobs.ingest.index_entries import STATE as INDEX
from jobs.ingest.index_entries import make_entries
from jobs.ingest.index_entries import state_before as index_state
from jobs.ingest.range_task import RangeResult, RangeWork, discard, write_range
from jobs.ingest.request import Clock, Request, Summary
from jobs.lake import integrity as wholeness
from jobs.lake.history import CHOSEN, divergence
from jobs.lake.identity import holds, identify, namesakes
from jobs.lake.lake import Lake
from jobs.lake.lock import held
from jobs.lake.log_rows import message_files, records
from jobs.lake.runs import (
    KnownStore,
    Manifest,
    commit_prepared,
    has_litter,
    prepare,
    refreshed,
    sweep,
    thinned,
    unfinished,
)
from jobs.lake.superseded import Superseded
from jobs.lake.table_file import Action, FileNaming
from jobs.lake.tables import CONSUME_QUEUE, INDEX_ENTRIES, INDEX_FILES, MESSAGES, QUARANTINE
from jobs.lake.upkeep import keep_up
from jobs.launch.session import spark_session
from jobs.products.index.product import Begun as BegunIndex
from jobs.products.index.product import begin as begin_index
from jobs.products.queues.join import Log, finish
from jobs.products.queues.product import Begun as BegunQueues
from jobs.products.queues.product import begin as begin_queues
from jobs.products.queues.product import cut_back, match_deleted, state_of
from jobs.products.queues.range_matcher import RangeMatches
from jobs.products.queues.settings import known_releases, queue_rules
from jobs.storage.locations import normalise
from jobs.store.beside_broker import check_room
from jobs.store.chain import Outcome, watermark
from jobs.store.ranges import Newest, Range, describe, holes, newest_segment, plan_ranges
from jobs.store.retention import CutBackError, confirm_gone, confirm_uncut, gone_ranges
from jobs.store.store import Store, list_store
from jobs.store.workers import SparkWorkers, Workers
from rmq_formats.commitlog.segment import ENDS
from rmq_formats.release import Rules

QUEUES = "queues"  # the queues' part of a manifest's state
_ATTEMPTS = 3  # of a run whose log a broker cuts back meanwhile


def ingest(request: Request, workers: Workers | None = None) -> Summary:
    """Bring what is new in the store into the lake; `HeldByOtherError` when another run of this store is at work."""
    clock = Clock()
    workers = workers or SparkWorkers(spark_session("rmq-lake ingest", half=request.care is not None))
    for _ in range(_ATTEMPTS - 1):
        with suppress(CutBackError):  # what the log is now, the next look tells
            return _ingest(request, workers, clock)
    return _ingest(request, workers, clock)


def _ingest(request: Request, workers: Workers, clock: Clock) -> Summary:
    lake = Lake(normalise(request.lake), workers.options)
    clock.lap("session")
    care = request.care.shared_by(workers.width) if request.care else None
    store = list_store(request.store, commitlog=request.commitlog, options=lake.options, care=care)
    if any(holes(store.segments)):  # a folder that changes while it is listed may not show all that is in it
        store = list_store(request.store, commitlog=request.commitlog, options=lake.options, care=care)
    known = identify(lake, store, request.broker, register_new=not request.dry_run)
    summary = Summary(store.root, lake.location, known.broker if known else request.broker or "")
    clock.lap("listing")
    if known is not None:
        with nullcontext() if request.dry_run else held(lake, known.store_id) as was_cut_off:
            newest = refreshed(lake, known)
            _Run(workers, lake, newest, store, request, summary, clock, was_cut_off=bool(was_cut_off)).run()
    summary.seconds = clock.laps
    return summary


@dataclass(slots=True)
class _Run:
    """A store's next run, under its lock."""

    workers: Workers
    lake: Lake
    known: KnownStore
    store: Store
    request: Request
    summary: Summary
    clock: Clock
    was_cut_off: bool  # the run before this one: it did not end by itself
    tables: dict[str, int] = field(default_factory=dict)  # the newest run that each one has
    newest: Newest | None = None  # as it was when the run was planned

    def run(self) -> None:
        """Do all of it."""
        self.summary.store_id = self.known.store_id
        leftover = unfinished(self.lake, self.known)
        spared = self._unwanted()
        self.tables = wholeness.newest_runs(self.lake, self.known, is_done=leftover is None, spared=spared)
        if not self.request.dry_run:
            self._finish_earlier(leftover)
        superseded = divergence(self.lake, self.known, self.store)
        self._begin_at(superseded)
        rules = known_releases(self.store, self.request.release).value
        begun = self._begin_products(rules, superseded.from_offset if superseded else None)
        ranges = self._plan(min((self.summary.from_offset, *begun.from_offsets)))
        self.clock.lap("planning")
        if self.request.dry_run:
            self.summary.plan = describe(ranges)
            return
        work = self._work(rules, begun)
        outcomes: list[Outcome[RangeResult]] = self.workers.ranges(
            ranges, partial(write_range, work), partial(discard, self.lake)
        )
        self.clock.lap("reading and writing")
        self._note_gone(outcomes)
        made = self._collect(outcomes)
        self.summary.to_offset = max(watermark(outcomes, self.summary.from_offset), self.summary.from_offset)
        self._settle_queues(begun, work, outcomes, made)
        self.clock.lap("joining queues")
        self._make_entries(begun, work, outcomes, made)
        self.clock.lap("making index entries")
        self._confirm_read(outcomes)
        # What an attempt left may go only when its number is taken.
        takes_number = self.was_cut_off and has_litter(self.lake, self.known)
        manifest = self._manifest(outcomes, made, superseded)
        if manifest.tables or manifest.to_offset > manifest.from_offset or superseded or takes_number:
            self._commit(manifest)
        self.clock.lap("commit")

    def _unwanted(self) -> set[str]:
        """Return the tables that this run does not write."""
        queues = set() if CONSUME_QUEUE.name in self.request.tables else {CONSUME_QUEUE.name}
        return queues if self.request.with_index else {*queues, INDEX_ENTRIES.name, INDEX_FILES.name}

    def _finish_earlier(self, leftover: Manifest | None) -> None:
        """Commit what an earlier run prepared."""
        if leftover is not None:
            commit_prepared(self.lake, leftover)
            self.summary.recovered = leftover.run
        if self.was_cut_off and self.known.newest is not None:
            sweep(self.lake, self.known.newest)

    def _begin_at(self, superseded: Superseded | None) -> None:
        """Find where the lake's rows of this log end."""
        newest = self.known.newest
        start = newest.to_offset if newest else min(self.known.first_offset, self.store.start_offset)
        if superseded is not None:
            start = superseded.from_offset
            self.summary.superseded = superseded._asdict()
        if newest is None:
            self.summary.notes += [
                f"not the log that the lake has as broker {self.known.broker} ({other.store_id}): kept apart"
                for other in namesakes(self.lake, self.known)
            ]
        self.summary.from_offset = self.summary.to_offset = start

    def _begin_products(self, rules: Rules, back_to: int | None) -> "_Begun":
        """Look at the queues before the log: what is in them now, the log has by the time it is read."""
        request, newest = self.request, self.known.newest
        queues = index = None
        if CONSUME_QUEUE.name in request.tables:
            state = newest.state.get(QUEUES) if newest else None
            if state is not None and back_to is not None:
                state = cut_back(state, back_to)
            takes = request.selection.takes_or_all
            queues = begin_queues(self.workers, self.store, queue_rules(self.store, rules, request.conf), state, takes)
        if request.with_index:
            state = index_state(self.known, back_to)
            index = begin_index(self.store, request.wanted, rules, state, self.summary.from_offset)
        return _Begun(queues, index)

    def _plan(self, from_offset: int) -> list[Range]:
        """Plan what lies behind the watermark, and note what lies behind it no more."""
        store, summary = self.store, self.summary
        if summary.from_offset < store.start_offset:
            summary.add_gap(summary.from_offset, store.start_offset, "deleted before it was read")
        newest = self.known.newest
        at_watermark = newest is not None and summary.superseded is None and from_offset == newest.to_offset
        ranges = plan_ranges(
            store,
            from_offset,
            self.request.range_size,
            newest.store_timestamp if newest and at_watermark else None,
            time.time_ns() // 1_000_000 - self.request.settle_ms if self.request.settle_ms else None,
        )
        self.newest = newest_segment(store)
        newest_offset = self.newest.segment.base_offset if self.newest else 0
        for before, start, end in holes(store.segments):
            if summary.from_offset < end <= newest_offset:  # none behind the end of what is written
                summary.add_gap(start, end, f"no file holds these offsets; {before.location} ends before them")
        planned = {range_.location for range_ in ranges}
        unseen = self.workers.unseen([segment for segment in store.segments if segment.location in planned])
        if unseen:
            raise OSError(f"{unseen[0].location}: the driver sees this file, the executors do not")
        check_room(store.root, self.lake.location, sum(range_.end - range_.start for range_ in ranges))
        return ranges

    def _work(self, rules: Rules, begun: "_Begun") -> RangeWork:
        return RangeWork(
            self.lake,
            FileNaming(self.known.store_id, self.known.next_run),
            self.known.broker,
            rules,
            self.request.selection,
            self.summary.from_offset,
            begun.queues.matching if begun.queues else None,
            begun.index,
        )

    def _note_gone(self, outcomes: Sequence[Outcome[RangeResult]]) -> None:
        """Note segments that were deleted while the run was reading."""
        confirm_gone(self.store, outcomes)
        confirm_uncut(self.store, self.newest)
        for outcome in outcomes:
            start = max(outcome.range.start_offset, self.summary.from_offset)
            if outcome.seen.gone and start < outcome.range.end_offset:  # else it was read again for its units alone
                self.summary.add_gap(start, outcome.range.end_offset, "deleted while it was being read")

    def _confirm_read(self, outcomes: Sequence[Outcome[RangeResult]]) -> None:
        """Raise `CutBackError` where the newest records are others by now: what was made of them may not agree."""
        known = next((outcome.seen.fingerprints for outcome in reversed(outcomes) if outcome.seen.fingerprints), ())
        for fingerprint in known:
            if holds(fingerprint, self.store) is False:
                reason = f"the log was written anew from {fingerprint.offset} on while it was read"
                raise CutBackError(errno.ESTALE, reason, self.store.root)

    def _collect(self, outcomes: Sequence[Outcome[RangeResult]]) -> "_Made":
        """Collect what the ranges' tasks wrote, and count how segments end."""
        made = _Made()
        for outcome in outcomes:
            for name, action in outcome.payload.files.items():
                made.add(name, [action])
            if outcome.seen.end is not None and outcome.range.end == outcome.range.segment_size:
                end = ENDS[outcome.seen.end].value
                self.summary.segment_ends[end] = self.summary.segment_ends.get(end, 0) + 1
        return made

    def _settle_queues(
        self, begun: "_Begun", work: RangeWork, outcomes: Sequence[Outcome[RangeResult]], made: "_Made"
    ) -> None:
        """Settle the units that no range's task could settle."""
        if begun.queues is None:
            return
        rules, seen = begun.queues.matching.rules, begun.queues.seen
        matches = [outcome.payload.matches for outcome in outcomes if outcome.payload.matches is not None]
        log = Log(self.store.start_offset, self.summary.to_offset, gone_ranges(outcomes))
        log = log._replace(before=self._match_deleted(begun.queues, work, log, made))
        joined = finish(self.workers, self.store, rules, seen, matches, log, partial(_write_rest, work))
        made.add(CONSUME_QUEUE.name, [action for action in joined.written if isinstance(action, Action)])
        made.state[QUEUES] = state_of(joined, self.known.newest.state.get(QUEUES) if self.known.newest else None)
        self.summary.behind = joined.behind
        self.summary.units = {
            "matched": joined.matched,
            "expired": joined.expired,
            "differences": len(joined.differences),
        }

    def _match_deleted(self, begun: BegunQueues, work: RangeWork, log: Log, made: "_Made") -> list[RangeMatches]:
        """Match the units of messages that the lake has, and the log no more: they came later than their messages."""
        lake, store_id = self.lake, self.known.store_id
        found = []
        for first, end in log.deleted(begun.taken_to, min(self.summary.from_offset, begun.seen.dispatched)):
            names = message_files(lake, store_id, first, end)
            gone = records(first, end, lake=lake, names=names, store_id=store_id)
            matches, rows = match_deleted(begun, gone, first, end)
            written = _write_rest(work, "gone", rows)
            made.add(CONSUME_QUEUE.name, [written] if written else [])
            found.append(matches)
        return found

    def _make_entries(
        self, begun: "_Begun", work: RangeWork, outcomes: Sequence[Outcome[RangeResult]], made: "_Made"
    ) -> None:
        """Make the index entries of the new messages."""
        if begun.index is None:
            return
        index = make_entries(self.workers, begun.index, self.store, work, outcomes, self.summary.to_offset)
        made.add(INDEX_ENTRIES.name, index.entries)
        made.add(INDEX_FILES.name, index.files)
        made.state[INDEX] = index.state
        for range_ in index.short:
            self.summary.add_gap(range_.start_offset, range_.end_offset, "deleted before its index entries were made")

    def _manifest(
        self, outcomes: Sequence[Outcome[RangeResult]], made: "_Made", superseded: Superseded | None
    ) -> Manifest:
        """Put together what will be committed."""
        newest, summary = self.known.newest, self.summary
        counts = {name: sum(action.rows for action in actions) for name, actions in made.tables.items()}
        summary.messages = counts.get(MESSAGES.name, 0)
        summary.quarantined = counts.get(QUARANTINE.name, 0)
        summary.index_entries = counts.get(INDEX_ENTRIES.name, 0)
        found = [fingerprint for outcome in outcomes for fingerprint in outcome.seen.fingerprints]
        known = [one for one in self.known.fingerprints if one.offset + one.size <= summary.from_offset]
        timestamps = [o.seen.store_timestamp for o in outcomes if o.seen.store_timestamp is not None]
        return Manifest(
            store_id=self.known.store_id,
            broker=self.known.broker,
            run=self.known.next_run,
            from_offset=summary.from_offset,
            to_offset=summary.to_offset,
            store_timestamp=timestamps[-1] if timestamps else (newest.store_timestamp if newest else None),
            fingerprints=thinned((*known, *found)),
            tables={name: tuple(actions) for name, actions in made.tables.items()},
            selection=self.request.selection.describe(),
            state={**(newest.state if newest else {}), **made.state, **self._state()},
            counts=counts,
            gaps=tuple(summary.gaps),
            superseded=superseded,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _state(self) -> dict[str, Any]:
        """Return what later runs must know of this one's tables and choice."""
        chosen = {CHOSEN: self.summary.to_offset} if self.request.selection.takes_or_all else {}
        return {wholeness.STATE: self.tables, **chosen}

    def _commit(self, manifest: Manifest) -> None:
        prepare(self.lake, manifest)
        self.summary.run = manifest.run
        self.summary.versions = commit_prepared(self.lake, manifest)
        if self.was_cut_off:
            sweep(self.lake, manifest)
        keep_up(self.lake, manifest)


@dataclass(frozen=True, slots=True)
class _Begun:
    """What was seen of queues and index before the log was read; None where they are not wanted."""

    queues: BegunQueues | None
    index: BegunIndex | None

    @property
    def from_offsets(self) -> Sequence[int]:
        """Where the log must be read from for their sake."""
        queues = [self.queues.boundary] if self.queues else []
        return [*queues, *([self.index.from_offset] if self.index else [])]


@dataclass(slots=True)
class _Made:
    """Every file of the run, by table, and what the next run must know."""

    tables: dict[str, list[Action]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def add(self, table: str, actions: Sequence[Action]) -> None:
        """Add files of a table."""
        if actions:
            self.tables.setdefault(table, []).extend(actions)


def _write_rest(work: RangeWork, part: str, rows: Any) -> Action | None:  # noqa: ANN401 - batches
    """Write the units that no range's task could settle."""
    with work.file(CONSUME_QUEUE, part) as file:
        for batch in rows:
            file.write(batch)
        return file.close()
