"""
Retention during a run: a broker deletes the oldest files of its store while they are read.

`ingest` keeps the part of a log that it had read by then, and reports the rest. A verb that needs a log without a hole
uses the part after the last segment that was deleted while it was read.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from jobs.store.chain import C, LogCollector, Outcome, Task, read_chained
from jobs.store.ranges import Newest, Range, beginning_of
from jobs.store.store import Store, list_again
from jobs.store.workers import Workers
from rmq_formats.errors import is_unreadable

T = TypeVar("T")

_TIMES = 3  # that a look is begun


_NARROW = 4 << 20  # bytes: a larger buffer is new memory for each range, and leaves the processor's cache sooner


class ListedLog(NamedTuple):
    """A log as it was listed, and the ranges that it is read in."""

    store: Store
    ranges: Sequence[Range]

    def narrow(self) -> "ListedLog":
        """Return the log to be read in smaller windows, for tasks that keep little of each record."""
        return self._replace(ranges=[replace(range_, window=_NARROW) for range_ in self.ranges])


class CutBackError(FileNotFoundError):
    """The newest segments are missing: a broker that recovers from a crash has taken back the end of its log."""


def deleted_ranges(outcomes: Sequence[Outcome[T]]) -> list[tuple[int, int]]:
    """Return the parts of the log that were listed and not read, as retention deleted files meanwhile."""
    return [(outcome.range.start_offset, outcome.range.end_offset) for outcome in outcomes if outcome.seen.was_deleted]


def confirm_deleted(store: Store, outcomes: Sequence[Outcome[T]]) -> None:
    """
    Accept segments that were deleted while they were read, if they really were.

    Retention deletes the oldest ones, and leaves the newest. A disk that was taken away looks the same to a task, but
    then nothing is left, or the missing part is not the beginning. `CutBackError` when it is the end.
    """
    deleted = [outcome.range for outcome in outcomes if outcome.seen.was_deleted]
    if not deleted:
        return
    now = list_again(store)
    if now.segments and now.start_offset >= max(range_.end_offset for range_ in deleted):
        return
    is_cut_back = now.segments and now.segments[-1].base_offset < min(range_.base_offset for range_ in deleted)
    kind = CutBackError if is_cut_back else FileNotFoundError
    raise kind(errno.ENOENT, "disappeared while it was read, and not by retention", deleted[0].location)


def confirm_gone(store: Store, ranges: Sequence[Range]) -> None:
    """
    Accept that ranges had less when they were read once more, if retention has deleted their files meanwhile.

    Where a file is still there, a broker that recovered from a crash is writing it again: `CutBackError`.
    """
    if ranges:
        start = list_again(store).start_offset
        for range_ in ranges:
            if range_.end_offset > start:
                raise CutBackError(errno.ESTALE, "the log was rewritten while it was read", range_.location)


def confirm_uncut(store: Store, newest: Newest | None) -> None:
    """
    Raise `CutBackError` if the *newest* segment of before the reading is not there any more, unless by retention.

    The segments before it were read as final: bytes in them that do not form a record never will. That holds only as
    long as no recovery has deleted the files after them and rewritten them.
    """
    if newest is None or (newest.beginning is not None and _still_begins(newest, store)):
        return
    if list_again(store).start_offset > newest.segment.base_offset:
        return
    raise CutBackError(errno.ESTALE, "the log was cut back while it was read", newest.segment.location)


def _still_begins(newest: Newest, store: Store) -> bool:
    try:
        now = beginning_of(newest.segment, store)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return True  # nothing says otherwise
    # Zeros may be what the broker had not written yet.
    return now is not None and all(old in {0, new} for old, new in zip(newest.beginning or b"", now, strict=False))


def read_what_stays(
    workers: Workers,
    log: ListedLog,
    task: Task[T],
    discard: Callable[[T], object],
    collector: LogCollector[C] | None = None,
) -> list[Outcome[T]]:
    """Run *task* on the ranges of a log; return those after the last segment that was deleted meanwhile."""
    outcomes = read_chained(workers, log.ranges, task, discard, collector)
    confirm_deleted(log.store, outcomes)
    deleted = {outcome.range.location for outcome in outcomes if outcome.seen.was_deleted}
    first = max((number for number, outcome in enumerate(outcomes, 1) if outcome.range.location in deleted), default=0)
    for outcome in outcomes[:first]:
        discard(outcome.payload)
    return outcomes[first:]


def read_from(log: ListedLog, outcomes: Sequence[Outcome[T]]) -> int:
    """Return the start of the log that was read: as it was listed, or after the segments deleted meanwhile."""
    if [one.range.start_offset for one in outcomes[:1]] == [range_.start_offset for range_ in log.ranges[:1]]:
        return log.store.start_offset
    return outcomes[0].range.start_offset if outcomes else max(range_.end_offset for range_ in log.ranges)


def begun_again(store: Store, look: Callable[[Store], T]) -> T:
    """Return *look* of a store; list and look once more if its oldest files were deleted meanwhile."""
    for _ in range(_TIMES - 1):
        try:
            return look(store)
        except FileNotFoundError:
            now = list_again(store)
            if now == store or now.end_offset < store.end_offset:
                raise
            store = now
    return look(store)
