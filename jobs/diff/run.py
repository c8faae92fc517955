"""
The records of one log in a store and in a lake.

The store is known by its bytes, as `ingest` knows it. One task compares a segment; what one side lacks gets its cause
from what runs have noted (gaps, quarantine, a choice of topics), from the lake's own files, and from what the store has
in its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jobs.console.amounts import counted
from jobs.console.exit_codes import RequestError
from jobs.console.result import Result
from jobs.console.severity import Judged, Severity, worst_met, worst_of
from jobs.diff.segment import (
    CHANGED,
    ONLY_IN_LAKE,
    ONLY_IN_STORE,
    TWICE,
    DiffWork,
    Run,
    diff_segment,
    judged_by_others,
)
from jobs.lake.identity import AmbiguousBrokerError, identify
from jobs.lake.lake import Lake
from jobs.lake.runs import KnownStore
from jobs.restore.plan import Interval, NothingToRestoreError, Plan, plan_log, unchecked_note
from jobs.restore.segment import SegmentWork
from jobs.store.beside_broker import broker_process
from jobs.store.log_ends import LostStart, lost_start
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.selection import TopicChoices
from jobs.store.store import Store, StoreRequest
from jobs.store.workers import Workers

_OTHERS = (
    "the store has other records here: since the last run its broker has cut its log back and written on, or it is "
    "the store of another replica"
)


class NotInLakeError(RequestError):
    """The lake has nothing of this store."""


@dataclass(frozen=True, slots=True)
class DiffRequest(StoreRequest):
    """The request of a user."""

    lake: Lake
    broker: str | None = None
    bases: frozenset[int] | None = None  # of the store's segments that are read; None: of all


class Difference(NamedTuple):
    """Records that follow each other, which side has them, and why the other does not."""

    severity: Severity
    what: str
    start: int
    end: int
    records: int
    cause: str
    is_before_log: bool = False  # only the lake has them, and the store's log begins after them


@dataclass(slots=True)
class DiffSummary(Judged):
    """The result of a comparison: its figures, and the differences."""

    store: str
    lake: str
    broker: str
    store_id: str
    from_offset: int
    to_offset: int
    equal: int = 0
    incomplete: int = 0
    unchecked: list[Interval] = field(default_factory=list)  # of rows without a CRC of their record
    differences: list[Difference] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # files of the lake, and their faults

    @property
    def severity(self) -> Severity:
        """The worst of all."""
        own = worst_met(Severity.HEALTHY, damage=self.lost, not_verified=self.incomplete)
        return worst_of([own, *(difference.severity for difference in self.differences)])

    def describe(self) -> dict[str, object]:
        """Return the form that scripts read."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        differences = [one._asdict() | {"severity": str(one.severity)} for one in self.differences]
        return {**values, "severity": str(self.severity), "differences": differences}

    def result(self, seconds: float) -> Result:
        """Return the result line of the comparison."""
        what = f"{counted(self.equal, 'equal record')}"
        return Result(self.severity, what, seconds, self.to_offset - self.from_offset)

    def lines(self, limit: int) -> Iterator[str]:
        """Yield the summary for people: the worst differences first."""
        yield f"{self.store} \N{LEFT RIGHT ARROW} {self.lake}"
        yield f"  broker {self.broker} ({self.store_id}), offsets {self.from_offset:,} to {self.to_offset:,}"
        yield f"  {counted(self.equal, 'record')} the same on both sides, byte for byte"
        if self.incomplete:
            yield f"  {counted(self.incomplete, 'row')} without a body to compare"
        yield from (f"  NOTE {note}" for note in unchecked_note(self.unchecked))
        yield from (f"  LOST {name}" for name in self.lost)
        worst_first = sorted(self.differences, key=lambda one: (-one.severity.rank, one.start))
        for one in worst_first[:limit]:
            place = f"{one.start:,} to {one.end:,}, {counted(one.records, 'record')}"
            yield f"  {one.severity.value.upper()} {one.what}: {place}: {one.cause}"
        if len(worst_first) > limit:
            yield f"  and {len(worst_first) - limit:,} more; --json has all"


def diff(request: DiffRequest, workers: Workers) -> DiffSummary:
    """Compare a store with what a lake has of it; `NotInLakeError` when that is nothing."""
    store = request.listed(workers.options, workers.width)
    try:
        known = identify(request.lake, store, request.broker, register_new=False)
    except AmbiguousBrokerError:
        known = None
    if known is None or known.newest is None:
        raise NotInLakeError(f"{request.lake.location}: has no run of the store {store.root}")
    plan = _planned(request.lake, known)
    until = known.newest.to_offset
    works = list(_works(store, plan, until, known.chosen))
    if request.bases is not None:
        works = [work for work in works if work.store is None or work.store.base_offset in request.bases]
    results = workers.map(works, diff_segment, "comparing")
    summary = DiffSummary(
        store.root,
        request.lake.location,
        known.broker,
        known.store_id,
        min((_base(work) for work in works), default=0),
        max((run.end for result in results for run in result.runs), default=until),
        sum(result.equal for result in results),
        sum(result.incomplete for result in results),
        [interval for result in results for interval in result.unchecked],
        lost=[f"{name} {reason}" for name, reason in sorted(plan.lost.items())] if plan else [],
    )
    summary.to_offset = max(summary.to_offset, until)
    last_equal = max((result.last_equal for result in results), default=-1)
    lost = lost_start(store) if broker_process(store.root) is None else None
    is_rewritten = False  # from the first record on that is another
    for work, result in zip(works, results, strict=True):
        summary.lost += [f"{name} cannot be read to its end" for name in result.unreadable]
        runs = (judged_by_others(run, result.last_equal, last_equal) for run in result.runs)
        for run in sorted(runs, key=lambda one: one.start):
            is_before_log = run.what == ONLY_IN_LAKE and (
                result.is_gone or (work.store is None and run.end <= store.start_offset)
            )
            # Retention deletes whole segments, and never one that has messages after the oldest that it left.
            is_lost = lost is not None and plan is not None and lost.oldest < _base(work) + plan.size.value
            sides = _Sides(
                store, plan, until, is_before_log, lost if is_lost else None, has_file=work.store is not None
            )
            severity, cause = _meaning(run, sides)
            if is_rewritten and severity is Severity.GAP and run.what == ONLY_IN_STORE:
                severity, cause = Severity.CONTRADICTION, _OTHERS
            is_rewritten |= severity is Severity.CONTRADICTION
            found = Difference(severity, run.what, run.start, run.end, run.records, cause, is_before_log)
            summary.differences.append(found)
    return summary


def _planned(lake: Lake, known: KnownStore) -> Plan | None:
    """Return which files of the lake hold which segments; None where it has no message."""
    try:
        return plan_log(lake, known)
    except NothingToRestoreError:
        return None


def _works(store: Store, plan: Plan | None, until: int, choices: TopicChoices) -> Iterator[DiffWork]:
    """Yield every segment that a side has."""
    of_store = {range_.base_offset: range_ for range_ in plan_ranges(store, range_size=WHOLE_SEGMENTS)}
    of_lake = {one.base_offset: SegmentWork.of(plan, one) for one in plan.segments} if plan else {}
    for base in sorted(of_store.keys() | of_lake.keys()):
        yield DiffWork(of_lake.get(base), of_store.get(base), until, choices)


def _base(work: DiffWork) -> int:
    return work.store.base_offset if work.store else work.lake.base_offset if work.lake else 0


class _Sides(NamedTuple):
    """The known facts about the two sides of a run of records."""

    store: Store
    plan: Plan | None
    until: int  # the lake has read up to here
    is_before_log: bool
    lost: LostStart | None  # evidence that the run's segment was not deleted by retention
    has_file: bool  # the store, of the run's segment


def _meaning(run: Run, sides: _Sides) -> tuple[Severity, str]:
    """Return the kind of a run of records, and the reason why one side lacks it."""
    if run.what == ONLY_IN_STORE:
        return _lacking_in_lake(run, sides)
    damage = _damage(run)
    return (Severity.DAMAGE, damage) if damage else _lacking_in_store(run, sides)


def _lacking_in_store(run: Run, sides: _Sides) -> tuple[Severity, str]:
    if sides.is_before_log:
        if sides.lost is not None:
            return Severity.GAP, f"lost: {sides.lost.text}"
        return Severity.HEALTHY, "expired: retention has deleted the segment, as far as the store shows"
    if run.is_unwritten or run.start >= sides.store.end_offset:
        return Severity.GAP, "the store's log ends before: it was cut off, cut short, or is of a replica that is behind"
    if not sides.has_file:
        return Severity.GAP, "lost: no file of the store holds these offsets"
    return Severity.CONTRADICTION, _OTHERS


def _damage(run: Run) -> str:
    """Return in words how records changed after they were read; empty if that does not show."""
    if run.what == CHANGED:
        return "another engine has changed the row since a run wrote it"
    if run.what == TWICE:
        return "another engine has inserted rows once more"
    if run.is_damaged:
        return "damaged in the store since it was read"
    return "changed since it was read: damaged in the store, or by another engine in the lake" if run.is_changed else ""


def _lacking_in_lake(run: Run, sides: _Sides) -> tuple[Severity, str]:
    if run.start >= sides.until:
        return Severity.BEHIND, "not ingested yet"
    cause = "the lake has no messages"
    if sides.plan:
        cause = sides.plan.cause_of(run.start, run.end, may_be_unchosen=not run.is_chosen)
    return (Severity.GAP if run.is_chosen else Severity.NOT_VERIFIED), cause
