"""
Run a task on every range of a plan, and accept only the ranges that chain.

Ranges are cut anywhere, and all but the first of a segment look for their first record themselves. That search can be
fooled: a body may hold whole records, and stale records may follow the end of the log. So the driver lays the ranges
end to end: where one ends, the next must begin. A range that does not is discarded and read again from the true
boundary; one that the piece before it covers is dropped. Any cut gives the same records.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from jobs.store.range_reader import RangeReader, Seen
from jobs.store.ranges import Range, balanced, written_sizes
from jobs.store.workers import Workers
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece

T = TypeVar("T")
Pieces = Iterator[Records | Piece]
Task = Callable[[Range, Pieces], T]


class Outcome(NamedTuple, Generic[T]):
    """The result of a task for one range."""

    range: Range
    seen: Seen
    payload: T


class RangeCollector(Protocol):
    """Collects facts of one range while its pieces pass to the task."""

    def watch(self, pieces: Pieces) -> Pieces:
        """Yield *pieces*, and look at each on its way."""


C = TypeVar("C", bound=RangeCollector)


class LogCollector(Protocol[C]):
    """Collects facts of the log during the first pass over it, next to the task."""

    @property
    def is_complete(self) -> bool:
        """Whether a pass has been made."""

    @property
    def of_range(self) -> Callable[[], C]:
        """Make the collector of one range, inside its task."""

    def take(self, collected: Sequence[C]) -> None:
        """Take the collectors of all accepted ranges, in order."""


def keep(_: object) -> None:
    """Discard nothing."""


def read_chained(
    workers: Workers,
    ranges: Sequence[Range],
    task: Task[T],
    discard: Callable[[T], object] = keep,
    collector: LogCollector[C] | None = None,
) -> list[Outcome[T]]:
    """
    Run *task* on the ranges of the log, and return the outcomes that chain.

    *task* must read its pieces to the end. *discard* undoes what a task wrote for a range that is not accepted. A
    *collector* that is not complete yet sees every piece.
    """
    if collector is not None and not collector.is_complete:
        with_collector = partial(run_collected, task=task, of_range=collector.of_range)
        collected = read_chained(workers, ranges, with_collector, lambda payload: discard(payload[0]))
        collector.take([outcome.payload[1] for outcome in collected])
        return [Outcome(outcome.range, outcome.seen, outcome.payload[0]) for outcome in collected]
    run = partial(run_range, task=task)
    ranges, sizes = balanced(ranges, written_sizes(ranges), workers.width)
    outcomes = workers.map(ranges, run, "reading", sizes)
    return chained(outcomes, lambda range_: workers.map([range_], run, "reading again")[0], discard)


def run_collected(range_: Range, pieces: Pieces, *, task: Task[T], of_range: Callable[[], C]) -> tuple[T, C]:
    """Run *task* on the pieces of a range that a new collector has looked at; return both results."""
    collector = of_range()
    return task(range_, collector.watch(pieces)), collector


def chained(
    outcomes: Sequence[Outcome[T]], read_again: Callable[[Range], Outcome[T]], discard: Callable[[T], object] = keep
) -> list[Outcome[T]]:
    """Return the outcomes that chain, and those of ranges that were read again because they did not."""
    # A range that was cut inside a segment syncs: it begins at the first record that proves itself, which may be a copy
    # in a body. Only the outcome before it knows the true boundary:
    #     |---- accepted ----|b      b: `seen.next` of the last accepted outcome
    #                    |-- sync --|     first != b: discarded, and read again from b without a sync
    #                         |- sync -|  ends before b: discarded, a record of the range before covers it
    # So each accepted outcome begins where the one before it ended, for any cuts.
    accepted: list[Outcome[T]] = []
    for outcome in outcomes:
        range_, last = outcome.range, accepted[-1] if accepted else None
        is_in_same_file = last is not None and last.range.location == range_.location
        boundary = last.seen.next if last is not None and is_in_same_file else range_.start_offset
        # After the end of the written log lie zeros and leftovers.
        has_ended = last is not None and last.seen.open_at is not None
        if has_ended or (range_.sync and boundary >= range_.end_offset):
            discard(outcome.payload)
        elif last is not None and range_.sync and outcome.seen.first != boundary and not _was_deleted(last, outcome):
            discard(outcome.payload)
            start, known = boundary - range_.base_offset, last.seen.store_timestamp
            accepted.append(read_again(replace(range_, start=start, sync=False, store_timestamp=known)))
        else:
            accepted.append(outcome)
    return accepted


def _was_deleted(*outcomes: Outcome[T]) -> bool:
    """Return whether retention was faster: a part of a file that is deleted now is all that can be read of it."""
    return any(outcome.seen.was_deleted for outcome in outcomes)


def watermark(accepted: Sequence[Outcome[T]], from_offset: int) -> int:
    """Return the offset after the last complete record; the bytes after it may be incomplete."""
    if not accepted:
        return from_offset
    seen = accepted[-1].seen
    return seen.next if seen.open_at is None else seen.open_at


def run_range(range_: Range, task: Task[T]) -> Outcome[T]:
    """Run *task* on one range, here."""
    reader = RangeReader(range_)
    payload = task(range_, reader.pieces())
    return Outcome(range_, reader.seen, payload)
