"""
Compares the records of one log in a store and in a lake.

The store is identified by its bytes, as in `ingest`. Each task compares one segment: the lake's records with the
store's bytes at their offsets. It returns only ranges of records that one side lacks or that differ. The cause of a
missing range comes from the notes of runs (gaps, quarantine, selected topics), from the lake's files, and from the
store's content at this place.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.console.amounts import count_text, names_text
from jobs.console.result import RatedOutcome, RequestError, Result, Severity, worst_severity, worst_severity_met
from jobs.diagnosis import kinds
from jobs.diagnosis.broker_state import (
    BrokerState,
    LatePosition,
    check_broker_state,
    describe_late_positions,
    find_late_positions,
    find_missing_groups,
    span_reader,
)
from jobs.diagnosis.findings import CONFIGURATION, Finding
from jobs.diagnosis.log_check import RangeCheck
from jobs.lake.identity import identify_store, list_last_units
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import Expiry, LakeStore, list_lake_stores
from jobs.lake.tables import RECORD_CRC
from jobs.products.broker_config import FILES_KEY, GROUP_KIND, read_state
from jobs.requests.diff import DiffRequest
from jobs.restore import (
    EXPIRED,
    NothingToRestoreError,
    PlannedSegment,
    RestorePlan,
    plan_log,
    unchecked_note,
)
from jobs.restore.segment import RowMask, check_crcs, read_segment_rows
from jobs.storage.model import Reader
from jobs.store.broker_config import (
    CONFIG_DIRECTORY,
    GROUPS_FILE,
    ConsumerKind,
    read_broker_config,
    read_config_files,
)
from jobs.store.intervals import Interval, merge_and_find_overlaps, uncovered_parts
from jobs.store.log_ends import find_lost_start
from jobs.store.queue_files import StoredQueue, list_queues
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.running_broker import find_broker_process
from jobs.store.selection import TopicChoices
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.arrays import slices_between_cuts
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.assembly import AssembledRecords, assemble_records
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import FormatError, is_disk_error, skip_lost_file
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser

# The common property of the records of a run.
ONLY_IN_STORE, ONLY_IN_LAKE, DIFFERENT = "only in the store", "only in the lake", "different"
_CHANGED_IN_LAKE, _TWICE = "changed in the lake", "twice in the lake"
# Details of a run that its segment shows.
_UNCHOSEN = "not ingested: topics not selected"
_EXPIRED = "expired in the lake"
_UNWRITTEN = "past the end of the store's log"
_DAMAGED = "the store has bytes there that are not records, or records that no broker writes"
_CHANGED = "the records after this range are identical: the store was damaged after ingestion, or the lake was changed"
_CHECKED = "the CRCs in the lake match these rows, so the lake has not changed"

_DAMAGE = {
    _CHANGED_IN_LAKE: "another engine has changed the row since a run wrote it",
    _TWICE: "another engine has inserted the rows a second time",
    _DAMAGED: "damaged in the store after ingestion",
    _CHANGED: "changed after it was ingested: either the store was damaged, or another engine changed the lake",
}
_OTHERS = (
    "the store has different records here: since the last run, its broker truncated the log and wrote new records, or "
    "this is the store of another replica"
)
_FILES_STATE, _SETTINGS_STATE = "config_files", "broker_config"  # keys of the states of products
_LEAST_PART = MIN_RECORD_SIZE - 1  # bytes: too few for a record
_MOST_PARTS = 64  # parts of a segment that are read one by one
_MOST_RUNS = 64  # differences of one kind in a segment; every second record may belong to a topic that was not selected
_Columns = tuple[NDArray[Any], ...]


class LogDifference(NamedTuple):
    """A range of records that only one side has, or that differs, with the cause."""

    severity: Severity  # not yet known to the task of the segment, which knows only a part of the causes
    what: str
    start: int
    end: int
    records: int
    cause: str
    is_before_log: bool = False  # only the lake has them, and the store's log begins after them


@dataclass(slots=True)
class DiffSummary(RatedOutcome):
    """The result of a comparison: its figures, and the differences."""

    store: str
    lake: str
    broker: str
    store_id: str
    from_offset: int
    to_offset: int
    equal: int = 0
    incomplete: int = 0
    unchecked: list[Interval] = field(default_factory=list)  # ranges of rows that have no CRC of their record
    differences: list[LogDifference] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # files of the lake, and their faults
    broker_state: list[Finding] = field(default_factory=list)  # configuration, positions of consumers, and timers
    notes: list[str] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        """The worst severity."""
        own = worst_severity_met(Severity.HEALTHY, damage=self.lost, not_verified=self.incomplete)
        of_log = (difference.severity for difference in self.differences)
        return worst_severity([own, *of_log, *(finding.severity for finding in self.broker_state)])

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        differences = [one._asdict() | {"severity": str(one.severity)} for one in self.differences]
        values["broker_state"] = [finding.to_dict() for finding in self.broker_state]
        return {**values, "severity": str(self.severity), "differences": differences}

    def result(self, seconds: float) -> Result:
        """Return the result line of the comparison."""
        return Result(self.severity, count_text(self.equal, "equal record"), seconds, self.to_offset - self.from_offset)

    def lines(self, limit: int) -> Iterator[str]:
        """Yield the summary as text: the worst differences first."""
        yield f"{self.store} \N{LEFT RIGHT ARROW} {self.lake}"
        yield f"  broker {self.broker} ({self.store_id}), offsets {self.from_offset:,} to {self.to_offset:,}"
        yield f"  {count_text(self.equal, 'record')} identical on both sides, byte for byte"
        if self.incomplete:
            yield f"  {count_text(self.incomplete, 'row')} without a body, which cannot be compared"
        yield from (f"  NOTE {note}" for note in unchecked_note(self.unchecked))
        yield from (f"  LOST {name}" for name in self.lost)
        worst_first = sorted(self.differences, key=lambda one: (-one.severity.rank, one.start))
        for one in worst_first[:limit]:
            place = f"{one.start:,} to {one.end:,}, {count_text(one.records, 'record')}"
            yield f"  {one.severity.value.upper()} {one.what}: {place}: {one.cause}"
        if len(worst_first) > limit:
            yield f"  and {len(worst_first) - limit:,} more; --json lists all"
        yield from (f"  {one.severity.value.upper()} {one.text}" for one in self.broker_state[:limit])
        if len(self.broker_state) > limit:
            yield f"  and {len(self.broker_state) - limit:,} more of the configuration; --json lists all"
        yield from (f"  NOTE {note}" for note in self.notes)


@dataclass(slots=True)
class SegmentDiff:
    """One segment: its sources, of which one may be missing, and the result of their comparison."""

    lake: PlannedSegment | None
    store: Range | None
    lake_end: int  # the lake's rows end here
    choices: TopicChoices  # the topics selected by the runs that wrote the lake's rows
    expiry: Expiry | None = None  # the rows that the lake does not keep any more
    runs: list[LogDifference] = field(default_factory=list)  # consecutive records with the same difference
    equal_records: int = 0  # records that are the same on both sides
    last_equal: int = -1  # the offset of the last one
    incomplete: int = 0  # rows without a body, from which no record can be assembled
    unreadable: list[str] = field(default_factory=list)  # files of the lake
    unchecked: list[Interval] = field(default_factory=list)  # rows without a CRC of their record
    is_store_file_deleted: bool = False  # the store's file was deleted meanwhile

    @property
    def base_offset(self) -> int:
        """The offset of the segment's first byte."""
        return self.store.base_offset if self.store else self.lake.base_offset if self.lake else 0


def diff(request: DiffRequest, workers: Workers) -> DiffSummary:
    """Compare a store with its rows in a lake; raise `NothingToRestoreError` if there are none."""
    store, lake = request.list_store(workers.options, workers.processes), Lake(request.other, workers.options)
    lake_store = request.lake_store or find_lake_store(lake, store, request.broker)
    assert lake_store.newest_manifest is not None
    try:
        plan = plan_log(lake, lake_store)
    except NothingToRestoreError:
        plan = None
    until = lake_store.newest_manifest.to_offset
    ranges = plan_ranges(store, range_size=WHOLE_SEGMENTS)
    of_store = {range_.base_offset: replace(range_, store_in_use=None) for range_ in ranges}
    of_lake = {one.base_offset: one for one in plan.segments} if plan else {}
    works = [
        SegmentDiff(of_lake.get(base), of_store.get(base), until, lake_store.topic_choices, lake_store.expiry)
        for base in sorted(of_store.keys() | of_lake.keys())
        if request.base_offsets is None or base not in of_store or base in request.base_offsets
    ]
    results = workers.map(works, diff_segment, "comparing")
    lost = [f"{name} {reason}" for name, reason in sorted(plan.lost_files.items())] if plan else []
    state = compare_broker_state(store, lake, lake_store).state
    return DiffSummary(
        store.root,
        lake.location,
        lake_store.broker,
        lake_store.store_id,
        min((work.base_offset for work in works), default=0),
        max((until, *(run.end for result in results for run in result.runs))),
        sum(result.equal_records for result in results),
        sum(result.incomplete for result in results),
        [interval for result in results for interval in result.unchecked],
        list(_differences(store, plan, results, until)),
        [*lost, *(f"{name} can be read only in part" for result in results for name in result.unreadable)],
        state.findings,
        [*state.doubts, *state.notes],
    )


class StateComparison(NamedTuple):
    """The faults of a store's configuration and positions, and the positions that are behind those in the lake."""

    state: BrokerState
    late_positions: list[LatePosition]


def compare_broker_state(store: Store, lake: Lake, lake_store: LakeStore) -> StateComparison:
    """Compare a store's configuration and positions with themselves and with those of the newest run."""
    queues: Sequence[StoredQueue] = ()
    with suppress(FormatError):  # a damaged queue database is a finding of `verify`
        queues = list_queues(store)
    config, read_span = read_broker_config(store), span_reader(queues, store.start_offset)
    state = check_broker_state(store, config, read_span, are_ends_known=store.has_clean_shutdown)
    recorded: Mapping[str, Any] = lake_store.newest_manifest.state if lake_store.newest_manifest is not None else {}
    reported = {finding.file for finding in state.findings}
    files = (recorded.get(_FILES_STATE) or {}).get(FILES_KEY, {})
    there = {name for name, _, _ in read_config_files(store)}
    for name in sorted(files.keys() - there):
        path = f"{CONFIG_DIRECTORY}/{name}"
        if path not in reported:
            values = (
                "file",
                "missing",
                "as in the lake",
                "a run of `ingest` found the file: it was lost since, or this copy of the store is older",
            )
            state.findings.append(Finding(CONFIGURATION, kinds.MISSING_CONFIGURATION, path, None, *values))
    settings, offsets = read_state(lake, recorded.get(_SETTINGS_STATE))
    if f"{CONFIG_DIRECTORY}/{GROUPS_FILE}" not in {finding.file for finding in state.findings}:
        state.findings.extend(find_missing_groups(config, (name for kind, name in settings if kind == GROUP_KIND)))
    earlier = (
        (ConsumerKind(kind), group, topic, ((int(queue), offset) for queue, offset in queues.items()))
        for (kind, group, topic), queues in offsets.items()
    )
    late = list(find_late_positions(store, config, earlier, read_span))
    behind = list(describe_late_positions(late, kinds.POSITIONS_BEHIND_LAKE, "the lake"))
    readers = {(one.file, one.field) for one in behind}
    of_backup = kinds.POSITIONS_BEHIND_BACKUP
    kept = [one for one in state.findings if one.kind != of_backup or (one.file, one.field) not in readers]
    return StateComparison(state._replace(findings=[*kept, *behind]), late)


def find_lake_store(lake: Lake, store: Store, broker: str | None) -> LakeStore:
    """
    Return the lake's entry of a store; raise `NothingToRestoreError` if it has no run of it.

    A store without records and without units in queues is the newest one with the label *broker*.
    """
    try:
        lake_store = identify_store(lake, store, broker, register_new=False)
    except RequestError:
        lake_store = LakeStore("", broker or "", ())
    if lake_store is None:
        known = [one for one in list_lake_stores(lake) if one.newest_manifest is not None and not one.is_tier]
        lake_store = next((one for one in reversed(known) if one.broker == broker), None)
        if lake_store is None or any(list_last_units(store)):
            names = names_text(sorted({one.broker for one in known}))
            raise NothingToRestoreError(
                f"{lake.location}: the log of the store {store.root} has no messages, and its queues do not show which "
                f"store of this lake it is. Pass --broker with its label in the lake ({names})"
            )
    if lake_store.newest_manifest is None:
        raise NothingToRestoreError(
            f"{lake.location}: the store {store.root} was never ingested into this lake; run `ingest`, or pass --broker"
        )
    return lake_store


def _differences(
    store: Store, plan: RestorePlan | None, results: Sequence[SegmentDiff], until: int
) -> Iterator[LogDifference]:
    """Yield the ranges of records that one side lacks, or that differ, with the cause."""
    last_equal = max((result.last_equal for result in results), default=-1)
    lost = find_lost_start(store) if find_broker_process(store.root) is None else None
    is_rewritten = False  # whether an earlier range contradicts the lake's rows
    for result in results:
        # Retention deletes whole segments, and never one that has messages after the oldest that it left.
        is_lost = lost is not None and plan is not None and lost.start < result.base_offset + plan.size.value
        runs = (_classify_by_later_segments(one, result, last_equal) for one in result.runs)
        for run in sorted(runs, key=lambda one: one.start):
            is_before_log = run.what == ONLY_IN_LAKE and (
                result.is_store_file_deleted or (result.store is None and run.end <= store.start_offset)
            )
            damage = _DAMAGE.get(run.what) or _DAMAGE.get(run.cause)
            if run.what == ONLY_IN_STORE:
                severity, cause = _classify_missing_from_lake(run, plan, until)
            elif damage:
                severity, cause = Severity.DAMAGE, damage
            elif is_before_log and is_lost and lost is not None:
                severity, cause = Severity.GAP, f"lost, not expired: {lost.text}"
            elif is_before_log:
                severity = Severity.HEALTHY
                cause = "expired: retention deleted the segment; nothing in the store shows that it was lost"
            elif run.cause == _UNWRITTEN or run.start >= store.end_offset:
                severity = Severity.GAP
                cause = "the store's log ends earlier: it was truncated, or the store is a lagging replica"
            elif result.store is None:
                severity, cause = Severity.GAP, "lost: no file of the store contains these offsets"
            else:
                severity, cause = Severity.CONTRADICTION, _OTHERS
            if is_rewritten and severity is Severity.GAP and run.what == ONLY_IN_STORE:
                severity, cause = Severity.CONTRADICTION, _OTHERS
            is_rewritten |= severity is Severity.CONTRADICTION
            yield run._replace(severity=severity, cause=cause, is_before_log=is_before_log)


def _classify_by_later_segments(run: LogDifference, result: SegmentDiff, last_equal: int) -> LogDifference:
    """
    Classify ranges that differ up to a segment's end by later segments, in which the log may continue unchanged.

    A segment without a single equal record may belong to another log, so later segments prove nothing about its damage.
    """
    if run.what != DIFFERENT or result.last_equal < 0 or run.start > last_equal:
        return run
    return run._replace(cause={_CHECKED: _DAMAGED, "": _CHANGED}.get(run.cause, run.cause))


def _classify_missing_from_lake(
    missing: LogDifference, plan: RestorePlan | None, ingested_end: int
) -> tuple[Severity, str]:
    """Return how bad it is that the lake lacks messages of the log, and why it does."""
    if missing.start >= ingested_end:
        return Severity.BEHIND, "not ingested yet"
    if missing.cause == _EXPIRED:
        return Severity.HEALTHY, EXPIRED
    is_unchosen = missing.cause == _UNCHOSEN
    cause = (
        plan.cause_of(missing.start, missing.end, may_be_unchosen=is_unchosen) if plan else "the lake has no messages"
    )
    # If the store's record is damaged, its topic and time do not show whether it has expired.
    is_explained = is_unchosen or cause.startswith(EXPIRED)
    return (Severity.NOT_VERIFIED if is_explained else Severity.GAP), cause


# one segment, in a task


def diff_segment(work: SegmentDiff) -> SegmentDiff:
    """Compare both sides' records of a segment."""
    unread = dict[int, OSError]()
    lake, incomplete = _read_lake_records(work, unread)
    starts, ends, equal, changed, _ = lake
    store_starts, store_ends, is_chosen, is_expired, pieces = _read_store_records(work, starts[equal], ends[equal])
    is_lacking = ~np.isin(store_starts, starts) & ~np.isin(store_starts, incomplete)
    is_new = store_starts >= work.lake_end
    is_there = np.isin(starts, store_starts)
    is_again = np.diff(starts, prepend=-1) == 0
    for offset in np.intersect1d(np.array(list(unread), np.int64), store_starts).tolist():
        raise unread[offset]  # it could be read again, so a temporary error must not look like a difference
    work.runs += _find_runs(ONLY_IN_STORE, store_starts, store_ends, is_lacking & is_expired, _EXPIRED)
    is_lacking &= ~is_expired
    work.runs += _find_runs(ONLY_IN_STORE, store_starts, store_ends, is_lacking & ~is_new & is_chosen)
    work.runs += _find_runs(ONLY_IN_STORE, store_starts, store_ends, is_lacking & ~is_new & ~is_chosen, _UNCHOSEN)
    work.runs += _find_runs(ONLY_IN_STORE, store_starts, store_ends, is_lacking & is_new)
    work.runs += _find_runs(_CHANGED_IN_LAKE, starts, ends, changed)
    for run in _find_runs(ONLY_IN_LAKE, starts, ends, ~is_there & ~equal & ~changed):
        kinds = {piece.kind for piece in pieces if piece.offset < run.end and run.start < piece.end}
        is_unwritten = not kinds.isdisjoint({PieceKind.UNWRITTEN, PieceKind.WAITING})
        why = _DAMAGED if PieceKind.DAMAGE in kinds else _UNWRITTEN if is_unwritten else ""
        work.runs.append(run._replace(cause=why))
    work.runs += _find_different_records(work.store, lake, is_there & ~equal & ~changed)
    work.runs += _find_runs(_TWICE, starts[is_again], ends[is_again], is_again[is_again])
    work.equal_records = int(np.count_nonzero(equal & ~is_again & ~changed))
    work.last_equal = int(starts[equal].max(initial=-1))
    return work


def _find_different_records(range_: Range | None, lake: _Columns, differs: RowMask) -> Iterator[LogDifference]:
    """
    Yield the records that both sides have, with different bytes; *differs* selects their rows.

    If the record contradicts a CRC, or its properties end in zeros, it was damaged later. If the log continues
    unchanged after the record, it was changed on one side: in the store, if the row has the CRC of the record as it was
    read. (A broker that truncates its log also rewrites everything after that.) A difference up to the segment's end is
    classified by later segments.
    """
    if range_ is None or not differs.any():
        return
    starts, ends, equal, _, unchecked = lake
    check = RangeCheck()
    with closing(RangeReader(range_).pieces()) as pieces:
        for item in pieces:
            check.add(item)
    damaged = [one.offset for one in (*check.wrong_records, *check.doubtful_records)]
    damaged += [one.offset for one in check.zero_ended_records]
    goes_on = starts < starts[equal].max(initial=-1)
    is_damaged = np.isin(starts, np.array(damaged, np.int64)) | (goes_on & ~unchecked)
    is_changed = goes_on & ~is_damaged
    rest = differs & ~is_damaged & ~is_changed
    yield from _find_runs(DIFFERENT, starts, ends, differs & is_damaged, _DAMAGED)
    yield from _find_runs(DIFFERENT, starts, ends, differs & is_changed, _CHANGED)
    yield from _find_runs(DIFFERENT, starts, ends, rest & ~unchecked, _CHECKED)
    yield from _find_runs(DIFFERENT, starts, ends, rest & unchecked)


def _join_and_sort(parts: Sequence[_Columns], flags: int) -> _Columns:
    """Join columns, two of offsets and some of flags, and sort their rows by the first."""
    empty = (*[np.empty(0, np.int64)] * 2, *[np.empty(0, np.bool_)] * flags)
    columns = [np.concatenate(column) for column in zip(empty, *parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)


def _read_store_records(
    work: SegmentDiff, equal_starts: Integers, equal_ends: Integers
) -> tuple[Integers, Integers, RowMask, RowMask, list[Piece]]:
    """
    Return the store's records, and its other pieces; equal records are known.

    For each record: start, end, whether its topic was selected, and whether it has expired in the lake.
    """
    yes = np.ones(equal_starts.size, np.bool_)
    places, others = [(equal_starts, equal_ends, yes, ~yes)], list[Piece]()
    for part in _find_other_parts(work.store, equal_starts, equal_ends) if work.store else ():
        reader = RangeReader(part)
        with closing(reader.pieces()) as pieces:
            for item in pieces:
                if isinstance(item, Piece):
                    others.append(item)
                    continue
                starts = item.positions + item.base_offset
                masks = _are_chosen(item, starts, work.choices), _have_expired(item, starts, work.expiry)
                places.append((starts, starts + item.sizes, *masks))
        work.is_store_file_deleted |= reader.facts.was_deleted
    starts, ends, is_chosen, is_expired = _join_and_sort(places, 2)
    return starts, ends, is_chosen, is_expired, others


def _find_other_parts(segment: Range, starts: Integers, ends: Integers) -> Iterator[Range]:
    """
    Yield the parts of a segment outside the records from *starts* to *ends*, which were read to be compared.

    If there are too many parts, the whole segment is read again instead.
    """
    compared, _ = merge_and_find_overlaps([(starts - _LEAST_PART, ends)])
    parts = list(islice(uncovered_parts(compared, segment.start_offset, segment.end_offset), _MOST_PARTS + 1))
    if len(parts) > _MOST_PARTS:
        yield segment
        return
    for start, end in parts:
        before = np.flatnonzero(ends == start)
        time = _read_store_timestamp(segment, int(starts[before[0]])) if before.size else None
        yield replace(segment, start=start - segment.base_offset, end=end - segment.base_offset, store_timestamp=time)


def _read_store_timestamp(segment: Range, offset: int) -> int | None:
    with skip_lost_file():
        head = segment.storage.read(segment.location, offset - segment.base_offset, MIN_RECORD_SIZE)
        return int(kernels.read_store_timestamp(np.frombuffer(head, np.uint8), 0))
    return None


def _are_chosen(records: RawRecords, starts: Integers, choices: TopicChoices) -> RowMask:
    """Return which records the lake should have: the topics of the others were not selected."""
    is_later: RowMask = starts >= choices.end_offset
    if is_later.all():
        return is_later

    def may_have_topic(topic: str) -> bool:
        return choices.find_whole_start(topic) < choices.end_offset

    taken, _ = message_batch(records, PropertyParser.SCAN, wants_topic=may_have_topic, with_body=False)
    offsets, topics = taken.column("physical_offset").to_numpy(), taken.column("topic")
    begins = np.array([choices.find_whole_start(topic) for topic in topics.dictionary.to_pylist()], np.int64)
    begins = begins[topics.indices.to_numpy()]
    return is_later | np.isin(starts, offsets[offsets >= begins])


def _have_expired(records: RawRecords, starts: Integers, expiry: Expiry | None) -> RowMask:
    """Return which records have expired in the lake."""
    if expiry is None:
        return np.zeros(starts.size, np.bool_)
    is_before: RowMask = starts < expiry.to_offset
    if is_before.all():
        return is_before
    batch, _ = message_batch(records, PropertyParser.SCAN, with_body=False)
    expired = batch.filter(expiry.rows_of("").mask_messages(batch.column("store_timestamp"), batch.column("topic")))
    return is_before | np.isin(starts, expired.column("physical_offset").to_numpy())


def _read_lake_records(work: SegmentDiff, unread: dict[int, OSError]) -> tuple[_Columns, Integers]:
    """
    Return the lake's records, and the offsets of rows without a body.

    For each record: start, end, and whether it equals the store's bytes, was changed, or has no CRC. *unread* gets
    those of the store that the disk cannot read.
    """
    places, incomplete, unchecked = list[_Columns](), list[Integers](), list[tuple[Integers, Integers]]()
    for batch in read_segment_rows(work.lake, work.unreadable) if work.lake else ():
        made = assemble_records(batch)
        none = np.setdiff1d(np.arange(batch.num_rows), made.row_numbers)
        has_crc = batch.column(RECORD_CRC).take(pa.array(none)).is_valid().to_numpy(zero_copy_only=False)
        without_record = np.array(made.incomplete_offsets, np.int64)
        incomplete.append(without_record[~has_crc])
        broken = without_record[has_crc]  # a row that was once assembled into a record
        no, yes = np.zeros(broken.size, np.bool_), np.ones(broken.size, np.bool_)
        places.append((broken, broken + 1, no, yes, no))
        is_changed, is_unchecked = check_crcs(batch, made)
        unchecked.append(made.select(is_unchecked).offset_bounds)
        if made.offsets.size:
            places.append(
                (*made.offset_bounds, _compare_with_store(made, work.store, unread), is_changed, is_unchecked)
            )
    work.incomplete = sum(some.size for some in incomplete)
    work.unreadable = list(dict.fromkeys(work.unreadable))
    work.unchecked = merge_and_find_overlaps(unchecked)[0]
    return _join_and_sort(places, 3), np.concatenate([np.empty(0, np.int64), *incomplete])


def _compare_with_store(made: AssembledRecords, range_: Range | None, unread: dict[int, OSError]) -> RowMask:
    """
    Return which records are equal to the store's bytes at their offsets.

    Those that the disk cannot read are not equal; *unread* gets their offsets, and the errors.
    """
    equal = np.zeros(made.offsets.size, np.bool_)
    if range_ is None:
        return equal
    ends = made.offsets + made.sizes
    cuts = (made.offsets[1:] != ends[:-1]) | (made.positions[1:] != (made.positions + made.sizes)[:-1])
    try:
        with range_.open() as file:
            for some in slices_between_cuts(made.offsets.size, cuts):
                try:
                    equal[some] = _compare_run(made, some, file, range_.base_offset)
                except OSError as error:
                    if not is_disk_error(error):
                        raise
                    for number in range(some.start, some.stop):
                        with _note_disk_error(unread, int(made.offsets[number])):
                            equal[number] = _compare_run(made, slice(number, number + 1), file, range_.base_offset)[0]
    except FileNotFoundError:
        return equal  # the reader notices that retention has deleted it
    except OSError as error:
        if not is_disk_error(error):
            raise
        unread |= dict.fromkeys(made.offsets.tolist(), error)
    return equal


def _compare_run(made: AssembledRecords, some: slice, file: Reader, base_offset: int) -> RowMask:
    """Return which of some adjacent records are equal to the bytes of a segment."""
    place = int(made.offsets[some.start]) - base_offset
    positions, sizes = made.positions[some], made.sizes[some]
    if place < 0:  # a row that another engine has changed
        return np.zeros(positions.size, np.bool_)
    start, end = int(positions[0]), int(positions[-1] + sizes[-1])
    data = bytes(file.read(place, end - start))
    found = np.frombuffer(data.ljust(end - start, b"\0"), np.uint8)
    differs = found != made.buffer[start:end]
    if not differs.any():
        return np.ones(positions.size, np.bool_)
    return ~np.logical_or.reduceat(differs, positions - start)


@contextmanager
def _note_disk_error(unread: dict[int, OSError], offset: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_disk_error(error):
            raise
        unread[offset] = error


def _find_runs(what: str, starts: Integers, ends: Integers, chosen: RowMask, why: str = "") -> Iterator[LogDifference]:
    """Yield the contiguous ranges of selected records; if there are too many, one range from the first to the last."""
    places = np.flatnonzero(chosen)
    cuts = np.diff(places) != 1
    cuts &= np.count_nonzero(cuts) < _MOST_RUNS
    for some in slices_between_cuts(places.size, cuts):
        run = places[some]
        yield LogDifference(Severity.NOT_VERIFIED, what, int(starts[run[0]]), int(ends[run[-1]]), run.size, why)
