"""
The join of a store's queues with its log.

    probe the queues ─► write the units of each range to scratch ─► compare group by group ─► explain the rest
    (`probe_queue_ends`)               (`collect_log_units`)                    (`compare_queues`)

In a healthy queue the unit of a record is at the position that the record's queue offset gives. So the units of a range
are read by position, with one read per queue, and compared; neither side is sorted or moved. Units that are elsewhere
or missing remain until all ranges are compared; then `explain_remainder` explains them. A unit that points to a record
of another queue can only be explained by reading that record in the log. `ingest` collects the units itself, because
its single pass over the log also produces other rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from jobs.lake.table_file import AddedFile, TableFile
from jobs.products.queues.join_result import (
    FEW_DIFFERENCES,
    DifferenceKind,
    JoinResult,
    QueueDifference,
    QueueFigures,
    QueueWithoutFiles,
    UndispatchedRecords,
    combine_figures,
    merge_differences,
)
from jobs.products.queues.remainder import (
    CollectedLog,
    QueueMatches,
    QueueRemainder,
    ResolvedRecords,
    UnitMatch,
    UnitRun,
    find_offsets_to_resolve,
    list_tags,
    make_unit_runs,
    resolve_records,
)
from jobs.products.queues.remainder_explanation import (
    classify_earlier_messages,
    explain_remainder,
    find_beginning,
    status_of_missing,
)
from jobs.products.queues.rows import RowBlock, UnitStatus, make_record_batches, make_row_block
from jobs.products.queues.unit_files import GroupUnits, group_of_queue, has_units, new_range_unit_collector, read_units
from jobs.storage.scratch import Scratch
from jobs.store.chain import (
    NewCollector,
    RangeOutcome,
    Results,
    collect_damaged_ranges,
    complete_records_end,
    read_ranges_not_deleted,
)
from jobs.store.queue_ends import NO_LIMIT, ProbedQueue, QueueEnds, probe_held_queue, probe_queue_end
from jobs.store.queue_files import StoredQueue, hold_file
from jobs.store.ranges import find_holes, plan_ranges
from jobs.store.store import DEFAULT_RANGE_SIZE, Store
from jobs.store.topics import RecordedTopics, TopicEvidence, TopicFate, collect_topic_evidence
from jobs.store.units import Units, is_of_deleted_file, read_stored_units, read_tags_codes
from jobs.store.workers import Workers
from rmq_formats.arrays import are_inside, slices_between_cuts
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, QueueName, UnitRules
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE

_QUEUES_A_TASK = 64
_SPREAD = 4  # read this many addresses per record around the median; a unit outside them is an outlier
_FREE = 4096
_RUNS = 100


def collect_topic_evidence_with_queues(
    store: Store, queues: Iterable[StoredQueue], recorded: Sequence[RecordedTopics] | None = None
) -> TopicEvidence:
    """Return the broker's table of topics; *queues* show additional existing topics."""
    table = collect_topic_evidence(store, recorded)
    return table._replace(topics_with_queues=table.topics_with_queues | {queue.name.topic for queue in queues})


def collect_log_units(  # noqa: PLR0913, PLR0917 - the log, its rules and where its units go
    workers: Workers,
    store: Store,
    rules: UnitRules,
    groups: int,
    scratch: Scratch | None,
    range_size: int = DEFAULT_RANGE_SIZE,
    new_collectors: Sequence[NewCollector[Any]] = (),
) -> tuple[CollectedLog, list[RangeOutcome[Results]]]:
    """Read a log and collect its expected units; return these, and the results of the other *new_collectors*."""
    ranges = plan_ranges(store, store.start_offset, range_size)
    own = partial(new_range_unit_collector, rules, groups, scratch)
    start, outcomes = read_ranges_not_deleted(workers, store, ranges, [own, *new_collectors])
    open_ends = (outcome.facts.unfinished_from for outcome in outcomes if outcome.facts.unfinished_from is not None)
    end = next(open_ends, complete_records_end(outcomes, start))
    units, damaged = [outcome.payload[0] for outcome in outcomes], tuple(collect_damaged_ranges(outcomes))
    records = sum(outcome.facts.records for outcome in outcomes)
    log = CollectedLog(units, scratch, groups, start, end, damaged_ranges=damaged, record_count=records)
    return log, [outcome._replace(payload=outcome.payload[1:]) for outcome in outcomes]


def compare_queues(  # noqa: PLR0913, PLR0917 - the store, its log, and which rows are wanted
    workers: Workers,
    store: Store,
    rules: UnitRules,
    queue_ends: QueueEnds,
    log: CollectedLog,
    topics: TopicEvidence,
    new_row_file: Callable[[str], TableFile] | None = None,
) -> JoinResult:
    """
    Compare queues, up to *queue_ends*, with the log's units, group by group; probe the queues without an end.

    With *new_row_file*, the tasks write rows.
    """
    ends = [one.records_end for one in (*log.lake_only, *log.ranges) if one.records_end is not None]
    dispatched = min(queue_ends.dispatched_offset, log.end)
    topics = topics._replace(clock_setback_ms=log.find_clock_setback())
    log = replace(
        log,
        start=max([log.start, *(end for _, end in log.deleted_meanwhile)]),
        # A run leaves out units that are newer than its log; `verify` compares every unit.
        dispatched_offset=queue_ends.dispatched_offset if new_row_file is None else dispatched,
        light_dispatched_offset=queue_ends.light_dispatched_offset,
        is_closed=store.is_closed,
        gaps=tuple((start, end) for _, start, end in find_holes(store.segments)),
        topic_evidence=topics,
        new_row_file=new_row_file,
    )
    groups = list(_group_queues(queue_ends, log))
    # Each task writes one file of rows, which should not be so small that it is merged soon.
    tasks = [[group] for group in groups] if new_row_file is None else _divide_groups(groups, log, workers.width)
    compared = workers.map(tasks, partial(compare_queue_groups, log=log), "matching queue units")
    rest = sorted((one for _, unsettled in compared for one in unsettled), key=lambda one: one.queue.name)
    # For queues whose units point to records of other queues, the segments with these records are read again.
    offsets = np.concatenate([np.empty(0, np.int64), *(find_offsets_to_resolve(one, log) for one in rest)])
    resolved = resolve_records(workers, store, rules, offsets, log.damaged_ranges)
    parts = [rest[at : at + _QUEUES_A_TASK] for at in range(0, len(rest), _QUEUES_A_TASK)]
    explained = workers.map(parts, partial(_explain_resolved, log=log, resolved=resolved), "matching queue units")
    figures = combine_figures([*(found for found, _ in compared), *explained])
    behind = log.end - dispatched
    if figures.waiting_light_units:
        behind = max(behind, log.end - queue_ends.light_dispatched_offset)
    return JoinResult(
        figures,
        queue_ends.with_ends(figures.probed_ends),
        topics,
        damaged_ranges=log.damaged_ranges,
        log_end=log.end,
        dispatched_offset=dispatched,
        behind=behind,
        records_end=ends[-1] if ends else None,
    )


_Group = tuple[int, Sequence[ProbedQueue]]  # the number of a group, and its queues


def _group_queues(seen: QueueEnds, log: CollectedLog) -> Iterator[_Group]:
    """Yield the number of each group of queues, and the queues of the store in it."""
    members: list[list[ProbedQueue]] = [[] for _ in range(log.group_count)]
    for one in seen.probed_queues:
        members[group_of_queue(one.queue.name, log.group_count)].append(one)
    for number, queues in enumerate(members):
        if queues or has_units([*log.lake_only, *log.ranges], number):
            yield number, queues


def _divide_groups(groups: Sequence[_Group], log: CollectedLog, count: int) -> list[list[_Group]]:
    """Divide groups among *count* tasks at most, so that each task has about as many units as the others."""
    units = np.zeros(log.group_count, np.int64)
    for one in (*log.lake_only, *log.ranges):
        for *_, sections in one.parts:
            units += sections[:, 2]
    tasks: list[list[_Group]] = [[] for _ in range(min(count, len(groups)))]
    sizes = [0] * len(tasks)
    for group in sorted(groups, key=lambda group: -units[group[0]]):  # largest first
        smallest = sizes.index(min(sizes))
        tasks[smallest].append(group)
        sizes[smallest] += int(units[group[0]])
    return [task for task in tasks if task]  # groups without units may all be in the first one


def compare_queue_groups(groups: Sequence[_Group], *, log: CollectedLog) -> tuple[QueueFigures, list[QueueRemainder]]:
    """
    Compare the queues of groups with the log, and write their rows into one file if they are wanted.

    Also return the remainder of queues with units that point to records of other queues, or to records that have their
    unit elsewhere: only the log can explain these.
    """
    with _open_row_file(log, f"queues-{groups[0][0]:02d}") as file:
        compared = [_compare_group(number, queues, log, file) for number, queues in groups]
        row_files = _close_row_file(file)
    figures = combine_figures([one for one, _ in compared])
    merged = list(merge_differences(figures.wrong_fields))
    return replace(figures, wrong_fields=merged, row_files=row_files), [one for _, rest in compared for one in rest]


def _explain_resolved(part: Sequence[QueueRemainder], *, log: CollectedLog, resolved: ResolvedRecords) -> QueueFigures:
    """Explain the remainders of some queues after records were read again; write their rows into one file."""
    name = part[0].queue.name.path.encode("utf-8", "surrogatepass")
    with _open_row_file(log, f"rest-{crc32(name):08x}") as file:
        figures = [_explain(one, log, resolved, file) for one in part]
        row_files = _close_row_file(file)
    return replace(combine_figures(figures), row_files=row_files)


def _explain(
    remainder: QueueRemainder, log: CollectedLog, resolved: ResolvedRecords, file: TableFile | None
) -> QueueFigures:
    """Explain a remainder, write its rows to *file*, and return its figures."""
    explained = explain_remainder(remainder, log, resolved)
    _write_rows(log, file, explained.blocks, explained.tags)
    return explained.figures


def _open_row_file(log: CollectedLog, name: str) -> AbstractContextManager[TableFile | None]:
    """Return a file for rows, which an error deletes; None if no rows are wanted."""
    return nullcontext() if log.new_row_file is None else log.new_row_file(name)


def _write_rows(log: CollectedLog, file: TableFile | None, blocks: Iterable[RowBlock], tags: Sequence[str]) -> None:
    if file is not None:
        for batch in make_record_batches(blocks, tags):
            file.write(batch if log.select_rows is None else log.select_rows(batch))


def _close_row_file(file: TableFile | None) -> list[AddedFile]:
    """Return the action of a file, if any rows were written."""
    added = None if file is None else file.close()
    return [] if added is None else [added]


def _compare_group(
    number: int, queues: Sequence[ProbedQueue], log: CollectedLog, file: TableFile | None
) -> tuple[QueueFigures, list[QueueRemainder]]:
    """
    Compare the queues of a group in log order, then explain the remainder of each; write their rows to *file*.

    Also return the remainders that only the log can explain.
    """
    matches = {one.queue.name: QueueMatches(one.queue) for one in queues}
    ends = {one.queue.name: one.end for one in queues}
    without_files: dict[QueueName, QueueWithoutFiles] = {}
    undispatched: list[UndispatchedRecords] = []
    waiting_light_units = 0
    for parts in read_units(log.scratch, log.lake_only, number):
        blocks: list[RowBlock] = []
        for part in (one for one in parts if one.name in matches):  # nothing is missing from a deleted queue
            match = _match_units(matches[part.name].queue, part, is_kept=True)
            matches[part.name].add(match)
            blocks += match.blocks
        _write_rows(log, file, blocks, parts[0].tags)
    for parts in read_units(log.scratch, log.ranges, number):
        blocks = []
        for part, waiting, later in (_split_at_dispatch(one, log) for one in parts):
            undispatched += later
            waiting_light_units += waiting
            if not part.units.size:
                continue
            if part.name in matches:
                with hold_file(matches[part.name].queue, in_blocks=ends[part.name] is None) as held:
                    match = _match_units(held, part, is_kept=False)
                    ends[part.name] = ends[part.name] or probe_held_queue(held)
                matches[part.name].add(match)
                blocks += match.blocks
            else:
                without_files[part.name] = _add_units_without_queue(without_files.get(part.name), part)
                blocks += _make_rows_without_queue(part, log.topic_evidence)
        _write_rows(log, file, blocks, parts[0].tags)
    compared = QueueFigures(
        expected=sum(one.expected for one in matches.values()) + sum(one.unit_count for one in without_files.values()),
        matched=sum(one.matched for one in matches.values()),
        expired=sum(one.expired for one in matches.values()),
        waiting_light_units=waiting_light_units,
        wrong_fields=[found for one in matches.values() for found in one.wrong_fields],
        queues_without_files=without_files,
        undispatched_records=undispatched,
    )
    remainders: dict[QueueName, QueueRemainder] = {}
    for queue, probed_end in queues:
        seen = ends.pop(queue.name) or probe_queue_end(queue, None, 0, with_tail=True)
        if probed_end is None:
            compared.probed_ends[queue.name] = seen
        remainder = matches.pop(queue.name).find_remainder(log, seen.processed_end, seen.end)
        compared.processed_ends[queue.name] = remainder.end
        compared.ends[queue.name] = max(remainder.end, seen.end)
        remainders[queue.name] = remainder
    remainders |= _settle_earlier_units(number, remainders, log, file)
    unresolved = [one for one in remainders.values() if find_offsets_to_resolve(one, log).size]
    for one in unresolved:
        del remainders[one.queue.name]
    explained = [_explain(one, log, {}, file) for one in remainders.values() if not one.is_empty]
    return combine_figures([compared, *explained]), unresolved


def _settle_earlier_units(
    number: int, remainders: Mapping[QueueName, QueueRemainder], log: CollectedLog, file: TableFile | None
) -> dict[QueueName, QueueRemainder]:
    """
    Return the remainders of a group whose earlier units must be read again, with those that an explanation needs.

    These are all earlier units if no record claims the unit at position 0, and otherwise those to which units of the
    queue point. The rows of the others are written to *file*.
    """
    read_again: dict[QueueName, _EarlierUnits] = {}
    for name, remainder in remainders.items():
        if remainder.earlier_units:
            earlier = _EarlierUnits(remainder, log)
            if earlier.must_be_read_again:
                read_again[name] = earlier
    for parts in read_units(log.scratch, log.ranges, number) if read_again else ():
        blocks = [block for one in parts if one.name in read_again for block in read_again[one.name].add(one)]
        _write_rows(log, file, blocks, parts[0].tags)
    return {name: earlier.finish() for name, earlier in read_again.items()}


class _EarlierUnits:
    """The earlier units of one queue, which are read again."""

    def __init__(self, remainder: QueueRemainder, log: CollectedLog) -> None:
        self._remainder = remainder
        self._bounds = [run.log_bounds for run in remainder.earlier_units]
        self._is_recreated = remainder.first_live_position == 0
        stored = find_offsets_to_resolve(remainder, log)
        self._wanted = stored[are_inside(stored, self._bounds)]
        self.must_be_read_again = not self._is_recreated or self._wanted.size > 0 or log.new_row_file is not None
        kind = classify_earlier_messages(remainder, find_beginning(remainder), log)
        self._status = status_of_missing(kind)
        self._runs: list[UnitRun] = []
        self._units: list[Units] = []
        self._tags: list[str | None] = []

    def add(self, part: GroupUnits) -> Iterator[RowBlock]:
        """Add the next units of the queue; yield the rows of those that need no explanation, if rows are wanted."""
        offsets = part.units["physical_offset"]
        is_earlier = are_inside(offsets, self._bounds)
        is_kept = is_earlier & np.isin(offsets, self._wanted) if self._is_recreated else is_earlier
        self._units.append(part.units[is_kept])
        self._tags += list_tags(part, is_kept)
        is_settled = is_earlier & ~is_kept
        self._runs += make_unit_runs(part.units, is_settled)
        if part.tag_numbers is not None and is_settled.any():
            yield make_row_block(part.name, part.units[is_settled], self._status, part.tag_numbers[is_settled])

    def finish(self) -> QueueRemainder:
        """Return the remainder with the units that need an explanation; they precede all others in the log."""
        units = np.concatenate([*self._units, self._remainder.units])
        tags = [*self._tags, *self._remainder.tags]
        return replace(self._remainder, units=units, tags=tags, earlier_units=self._runs)


def _split_at_dispatch(part: GroupUnits, log: CollectedLog) -> tuple[GroupUnits, int, Iterator[UndispatchedRecords]]:
    """
    Return the units whose records the broker has dispatched, in log order, without those that are expected later.

    Also return how many units of a light queue RocksDB does not have yet, and the records that are not dispatched.
    """
    count = int(np.searchsorted(part.units["physical_offset"], log.dispatched_offset))
    undispatched = find_undispatched_runs(part.name, part.units[count:])
    waiting = 0
    if log.light_dispatched_offset != NO_LIMIT and part.name.topic.startswith(LMQ_PREFIX):
        # Units of a queue are in log order, so those that RocksDB has are the first ones.
        there = int(np.searchsorted(part.units["physical_offset"][:count], log.light_dispatched_offset))
        count, waiting = there, count - there
    tag_numbers = None if part.tag_numbers is None else part.tag_numbers[:count]
    return part._replace(units=part.units[:count], tag_numbers=tag_numbers), waiting, undispatched


def _add_units_without_queue(known: QueueWithoutFiles | None, part: GroupUnits) -> QueueWithoutFiles:
    """Return the expected units of a queue without files: the *known* ones, and those of *part*, which follow them."""
    first, last = part.units["physical_offset"][[0, -1]].tolist()
    newest_ms = int(part.units["store_timestamp"].max())
    if known is None:
        return QueueWithoutFiles(part.units.size, first, last, newest_ms)
    return QueueWithoutFiles(
        known.unit_count + part.units.size, known.first_physical_offset, last, max(known.newest_ms, newest_ms)
    )


def _make_rows_without_queue(part: GroupUnits, topics: TopicEvidence) -> Iterator[RowBlock]:
    """Yield the rows of expected units of a queue without files, if rows are wanted."""
    if part.tag_numbers is not None:
        newest_ms = int(part.units["store_timestamp"].max())
        is_deleted = topics.fate(part.name.topic, newest_ms) is TopicFate.DELETED
        status = UnitStatus.DELETED if is_deleted else UnitStatus.MISSING
        yield make_row_block(part.name, part.units, status, part.tag_numbers)


def _match_units(queue: StoredQueue, part: GroupUnits, *, is_kept: bool) -> UnitMatch:
    """Compare units with those at their positions; *is_kept*: only the lake has their records."""
    at_place, expired = np.zeros((2, part.units.size), np.bool_)
    stored = _units_at(queue, part.units["queue_offset"]) if part.name.kind is QueueKind.PLAIN else None
    if stored is None:
        return UnitMatch(part, is_kept, at_place, expired)
    at_place = (stored["physical_offset"] == part.units["physical_offset"]) & (stored["size"] != 0)
    at_place &= stored["size"] != PRE_BLANK_SIZE  # a record may also begin at 0
    expired = is_of_deleted_file(stored)  # retention has deleted the record as well since it was read
    values = {"size": stored["size"], "tags_code": read_tags_codes(queue, stored, at_place)}
    wrong = {name: at_place & (found != part.units[name]) for name, found in values.items()}
    wrong_fields = [
        difference
        for name, kind in (("size", DifferenceKind.WRONG_SIZE), ("tags_code", DifferenceKind.WRONG_TAGS_CODE))
        for difference in _wrong_fields(kind, part, np.flatnonzero(wrong[name]), name, values[name])
    ]
    blocks: list[RowBlock] = []
    if part.tag_numbers is not None:
        blocks += _make_row_blocks(part, stored, at_place, wrong)
        if expired.any():
            blocks.append(make_row_block(part.name, part.units[expired], UnitStatus.EXPIRED, part.tag_numbers[expired]))
    return UnitMatch(part, is_kept, at_place, expired, wrong_fields, blocks)


def find_undispatched_runs(name: QueueName, units: Units) -> Iterator[UndispatchedRecords]:
    """Yield the runs of records with their own units in a plain queue, no more than a reader needs."""
    units = units[units["is_multi_dispatched"] == 0]
    if name.kind is QueueKind.PLAIN:
        for some in islice(slices_between_cuts(units.size, np.diff(units["queue_offset"]) != 1), _RUNS):
            first = units[some.start]
            yield UndispatchedRecords(
                name, int(first["physical_offset"]), int(first["queue_offset"]), some.stop - some.start
            )


def _units_at(queue: StoredQueue, positions: NDArray[np.int64]) -> Units | None:
    """Return the units of a plain queue at *positions*, with zeros for outliers; None if the queue has none."""
    first, last = int(positions[0]), int(positions[-1])
    is_inside = queue.first_unit_number <= first and last < queue.capacity_end
    if is_inside and last - first == positions.size - 1 and (np.diff(positions) == 1).all():  # nearly always
        return read_stored_units(queue, first, last + 1)
    # One read of the queue serves all units: a wild offset must not widen it to terabytes of hole. The units lie near
    # each other, and most are healthy, so the median is; `explain_remainder` explains those far from it.
    middle, reach = int(np.sort(positions)[positions.size // 2]), positions.size * _SPREAD + _FREE
    near = positions[(positions >= max(middle - reach, 0)) & (positions <= min(middle + reach, NO_LIMIT))]
    low, high = (
        max(int(near.min(initial=NO_LIMIT)), queue.first_unit_number),
        min(int(near.max(initial=-1)) + 1, queue.capacity_end),
    )
    if low >= high:
        return None
    inside = (positions >= low) & (positions < high)
    stored = read_stored_units(queue, low, high)[np.where(inside, positions - low, 0)]
    stored[~inside] = np.zeros(1, stored.dtype)
    return stored


def _wrong_fields(
    kind: DifferenceKind, part: GroupUnits, places: NDArray[np.int64], name: str, stored: NDArray[np.int64]
) -> Iterator[QueueDifference]:
    """Yield the units with a wrong field, each by itself or, if many follow one another, as one difference."""
    units = part.units[places]
    for some in slices_between_cuts(units.size, np.diff(units["queue_offset"]) != 1):
        step = some.stop - some.start if some.stop - some.start > FEW_DIFFERENCES else 1
        for at in range(some.start, some.stop, step):
            position, log_offset = int(units["queue_offset"][at]), int(units["physical_offset"][at])
            found, expected = str(int(stored[places[at]])), str(int(units[name][at]))
            yield QueueDifference(kind, part.name, position, found, expected, name, step, log_offset=log_offset)


def _make_row_blocks(
    part: GroupUnits, stored: Units, at_place: NDArray[np.bool_], wrong: dict[str, NDArray[np.bool_]]
) -> Iterator[RowBlock]:
    """Yield the rows of the stored units *at_place*, in blocks that have the same *wrong* fields."""
    for has_size in (True, False):
        for has_code in (True, False):
            chosen = at_place & (wrong["size"] != has_size) & (wrong["tags_code"] != has_code)
            if not chosen.any():
                continue
            places = slice(None) if chosen.all() else chosen  # a slice copies nothing
            tags = part.tag_numbers[places] if part.tag_numbers is not None else None
            fields = tuple(name for name, is_right in (("size", has_size), ("tags_code", has_code)) if not is_right)
            status = UnitStatus.MISMATCHED if fields else UnitStatus.MATCHED
            # The unit's own values: with an extension, the tags code is an address.
            size, tags_code = (stored[name][places].astype(part.units.dtype[name]) for name in ("size", "tags_code"))
            block = make_row_block(part.name, part.units[places], status, tags)
            yield block._replace(size=size, tags_code=tags_code, mismatch=fields)
