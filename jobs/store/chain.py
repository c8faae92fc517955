"""
Reads every range of a plan in a task, for all collectors in one pass, and accepts only contiguous ranges.

Ranges are cut at arbitrary offsets, so the task of each range, except the first one of a segment, searches for the
first record. This search may find a wrong record: a body may contain whole records, and stale records may follow the
end of the log. So the driver checks that each range begins at the offset at which the previous one ended. A range that
begins elsewhere is discarded and read again from that offset, or dropped if the previous range covers it. Any division
gives the same records.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from jobs.storage.locations import is_local
from jobs.store.range_reader import RangeFacts, RangeReader
from jobs.store.ranges import NewestSegment, Range, balance_ranges, read_segment_beginning, written_sizes
from jobs.store.store import Segment, Store, relist_store
from jobs.store.workers import Workers
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import is_disk_error

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RangeOutcome(NamedTuple, Generic[T]):
    """The result of a task for one range."""

    range: Range
    facts: RangeFacts
    payload: T


class RangeCollector(Protocol[T_co]):
    """Collects data from the pieces of one range, in the task that reads them."""

    def add(self, item: RawRecords | Piece) -> object:
        """Process the next piece; a buffer of records is valid until the next call."""

    def finish(self) -> T_co:
        """Return the result for the range."""


# Sent to tasks. The collector enters its files into the stack, so that an error leaves no incomplete file.
NewCollector = Callable[[Range, ExitStack], RangeCollector[T]]
Results = tuple[Any, ...]  # the results of one range, one per collector, in the order of the collectors


def keep_results(_: object) -> None:
    """Discard nothing."""


def read_chained(
    workers: Workers,
    ranges: Sequence[Range],
    new_collectors: Sequence[NewCollector[Any]],
    discard: Callable[[Results], object] = keep_results,
) -> list[RangeOutcome[Results]]:
    """
    Read the ranges of the log in one pass, and return the contiguous outcomes, with the results of each collector.

    *discard* undoes what collectors wrote for a range that is not accepted.
    """
    run = partial(run_range, new_collectors=[*new_collectors])
    ranges, sizes = balance_ranges(ranges, written_sizes(ranges), workers.width)
    read = workers.map(ranges, run, "reading", sizes)
    return keep_contiguous_outcomes(read, lambda range_: workers.map([range_], run, "reading again")[0], discard)


def select_results(outcomes: Sequence[RangeOutcome[Results]], number: int) -> list[RangeOutcome[Any]]:
    """Return the outcomes of one collector, by its number."""
    return [RangeOutcome(range_, facts, results[number]) for range_, facts, results in outcomes]


def keep_contiguous_outcomes(
    outcomes: Sequence[RangeOutcome[T]],
    read_again: Callable[[Range], RangeOutcome[T]],
    discard: Callable[[T], object],
) -> list[RangeOutcome[T]]:
    """Return contiguous outcomes; ranges that are not contiguous are read again."""
    # A range that begins inside a segment syncs: it begins at the first valid record, which may be a copy in a body.
    # Only the previous outcome shows the true boundary:
    #     |---- accepted ----|b      b: `seen.next` of the last accepted outcome
    #                    |-- sync --|     first != b: discarded, and read again from b without a sync
    #                         |- sync -|  ends before b: discarded, a record of the previous range covers it
    # So each accepted outcome begins where the previous one ended, for any division.
    accepted: list[RangeOutcome[T]] = []
    for outcome in outcomes:
        range_, last = outcome.range, accepted[-1] if accepted else None
        is_in_same_file = last is not None and last.range.location == range_.location
        boundary = last.facts.next_offset if last is not None and is_in_same_file else range_.start_offset
        # Zeros and leftovers follow the end of the written log.
        has_ended = last is not None and last.facts.unfinished_from is not None
        if has_ended or (range_.starts_anywhere and boundary >= range_.end_offset):
            discard(outcome.payload)
        # A file that retention has deleted can only be read in part.
        elif last is not None and range_.starts_anywhere and outcome.facts.first_offset != boundary and not (
            last.facts.was_deleted or outcome.facts.was_deleted
        ):  # fmt: skip
            discard(outcome.payload)
            start, known = boundary - range_.base_offset, last.facts.store_timestamp
            accepted.append(read_again(replace(range_, start=start, starts_anywhere=False, store_timestamp=known)))
        else:
            accepted.append(outcome)
    return accepted


def complete_records_end(outcomes: Sequence[RangeOutcome[T]], from_offset: int) -> int:
    """Return the offset after the last complete record; the bytes after it may be incomplete."""
    if not outcomes:
        return from_offset
    seen = outcomes[-1].facts
    return seen.next_offset if seen.unfinished_from is None else seen.unfinished_from


def run_range(range_: Range, new_collectors: Sequence[NewCollector[Any]]) -> RangeOutcome[Results]:
    """Read one range here, and pass each piece to every collector."""
    reader = RangeReader(range_)
    with ExitStack() as files:
        collectors = [new_collector(range_, files) for new_collector in new_collectors]
        for item in reader.pieces():
            for one in collectors:
                one.add(item)
        results = tuple(one.finish() for one in collectors)
    return RangeOutcome(range_, reader.facts, results)


def collect_damaged_ranges(outcomes: Iterable[RangeOutcome[T]]) -> list[tuple[int, int]]:
    """Return the bounds of bytes without a record, ascending."""
    return sorted(damaged for outcome in outcomes for damaged in outcome.facts.damaged_ranges)


# Bytes: a larger buffer is new memory for each range, and does not fit the processor's cache. From object storage the
# scan reads larger windows, because each one is a request.
_NARROW = 4 << 20


class LogTruncatedError(FileNotFoundError):
    """The newest segments are missing: a broker that recovered from a crash has truncated its log."""


def ranges_deleted_meanwhile(outcomes: Sequence[RangeOutcome[T]]) -> list[Range]:
    """Return the ranges whose files were deleted before they were read."""
    return [outcome.range for outcome in outcomes if outcome.facts.was_deleted]


def confirm_deleted_by_retention(store: Store, ranges: Iterable[Range]) -> None:
    """
    Accept that these ranges were deleted while they were read only if retention has deleted them.

    Retention deletes the oldest segments and leaves the newest. A disk that was removed looks the same to a task, but
    then nothing is left, or the missing part is not the beginning. `LogTruncatedError` if it is the end.
    """
    deleted = list(ranges)
    if not deleted:
        return
    now = relist_store(store)
    if now.segments and now.start_offset >= max(range_.end_offset for range_ in deleted):
        return
    is_cut_back = now.segments and now.segments[-1].base_offset < min(range_.base_offset for range_ in deleted)
    kind = LogTruncatedError if is_cut_back else FileNotFoundError
    reason = (
        "disappeared while it was being read, and retention did not delete it. If workers run on other machines, "
        "check that they can access this path"
    )
    raise kind(errno.ENOENT, reason, deleted[0].location)


def confirm_deleted_since_first_read(store: Store, shortened_ranges: Sequence[Range]) -> None:
    """
    Accept that a second read of these ranges returned less, if retention has deleted their files meanwhile.

    `LogTruncatedError` if a file still exists: a broker that recovered from a crash is rewriting it.
    """
    if shortened_ranges:
        start = relist_store(store).start_offset
        for range_ in shortened_ranges:
            if range_.end_offset > start:
                reason = "the log was rewritten while it was being read; run the command again"
                raise LogTruncatedError(errno.ESTALE, reason, range_.location)


def confirm_not_truncated(store: Store, newest: NewestSegment | None) -> None:
    """
    Raise `LogTruncatedError` if the segment that was *newest* before the reading is gone, unless retention deleted it.

    The segments before it were read as final: bytes in them that do not form a record never will. That holds only as
    long as no recovery has deleted the files after them and rewritten them.
    """
    segment, beginning = newest or (None, None)
    if segment is None or (beginning is not None and _still_begins(segment, beginning, store)):
        return
    if relist_store(store).start_offset > segment.base_offset:
        return
    reason = "the log was truncated while it was being read; run the command again"
    raise LogTruncatedError(errno.ESTALE, reason, segment.location)


def _still_begins(segment: Segment, beginning: bytes, store: Store) -> bool:
    try:
        now = read_segment_beginning(segment, store)
    except OSError as error:
        if not is_disk_error(error):
            raise
        return True  # not disproved
    # Zeros may be bytes that the broker had not written yet.
    return now is not None and all(old in {0, new} for old, new in zip(beginning, now, strict=False))


def read_ranges_not_deleted(
    workers: Workers,
    store: Store,
    ranges: Sequence[Range],
    new_collectors: Sequence[NewCollector[Any]],
) -> tuple[int, list[RangeOutcome[Results]]]:
    """
    Read *ranges* of a store's log with collectors that keep little per record.

    Return the beginning of the part that retention left, and the outcomes after the last segment deleted meanwhile.
    """
    narrow = [replace(one, window=_NARROW if is_local(one.location) else one.window) for one in ranges]
    outcomes = read_chained(workers, narrow, new_collectors)
    deleted = ranges_deleted_meanwhile(outcomes)
    confirm_deleted_by_retention(store, deleted)
    files = {range_.location for range_ in deleted}
    first = max((number for number, outcome in enumerate(outcomes, 1) if outcome.range.location in files), default=0)
    stays = outcomes[first:]
    if not first:
        return store.start_offset, stays
    return (stays[0].range.start_offset if stays else outcomes[-1].range.end_offset), stays
