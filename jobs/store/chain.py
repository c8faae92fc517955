"""
Run a task on every range of a plan, and accept only what chains.

Ranges are cut by size, and all but the first of a segment look for their first record themselves. That search can be
fooled: a body may hold whole records, stale ones lie after the end of the log. So the driver lays the ranges end to
end: where one ends, the next must begin. One that does not is thrown away and read again from the true boundary, and
one that the piece before it covers is dropped. Any cut gives the same records.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Generic, NamedTuple, TypeVar

from jobs.console.progress import Work, made_once, shown
from jobs.store.range_reader import RangeReader, Seen
from jobs.store.ranges import SMALL, Range
from jobs.store.tally import Tally
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece
from rmq_formats.compiled import IS_FIRST_USE
from rmq_formats.warm_up import warm_up

T = TypeVar("T")
Item = TypeVar("Item")
Pieces = Iterator[Records | Piece]
Task = Callable[[Range, Pieces], T]
_COMPILING = "rmq-lake: compiling what reads the log, once …"


class Outcome(NamedTuple, Generic[T]):
    """The result of a task for one range."""

    range: Range
    seen: Seen
    payload: T


def run_here(
    ranges: Sequence[Range], task: Task[T], discard: Callable[[T], object] = id, threads: int = 0
) -> Generator[Outcome[T]]:
    """
    Yield the outcome of each range that holds part of the log, in order, by this process alone.

    *task* must read its pieces to the end. *discard* undoes what a task wrote for a range that is not accepted. With
    *threads*, so many are at work on the next ranges meanwhile.
    """
    if IS_FIRST_USE:
        compile_first()
    with Tally.of(len(ranges)) as tally:
        size = sum(range_.end - range_.start for range_ in ranges)
        is_mostly_written = size <= SMALL or any(range_.final for range_ in ranges)
        work = Work("reading", size if is_mostly_written else 0)

        def run(some: Sequence[Range]) -> Iterator[Outcome[T]]:
            def work_on(numbered: tuple[int, Range]) -> Outcome[T]:
                number, range_ = numbered
                return run_range(range_, task, partial(tally.noted, number, range_) if some is ranges else iter)

            return ahead(work_on, enumerate(some), threads) if threads else map(work_on, enumerate(some))

        with shown(work, lambda: tally.sums()[0], lambda: tally.sums()[1]):
            yield from in_turn(ranges, run, discard)


def ahead(function: Callable[[Item], T], items: Iterable[Item], threads: int) -> Iterator[T]:
    """Yield the result of *function* for each item, in order; so many *threads* are at work on the next ones."""
    pool = ThreadPoolExecutor(threads)
    working: deque[Future[T]] = deque()
    try:
        for item in items:
            working.append(pool.submit(function, item))
            if len(working) > threads:
                yield working.popleft().result()
        while working:
            yield working.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def compile_first() -> None:
    """Compile the scan of a log at its first use on this machine, once a process."""
    with made_once(_COMPILING):
        warm_up()


def chained(
    ranges: Sequence[Range],
    run: Callable[[Sequence[Range]], list[Outcome[T]]],
    discard: Callable[[T], object] = id,
) -> list[Outcome[T]]:
    """Run *ranges*, and again those that do not chain; return the outcomes that do."""
    return list(in_turn(ranges, run, discard))


def in_turn(
    ranges: Sequence[Range],
    run: Callable[[Sequence[Range]], Iterable[Outcome[T]]],
    discard: Callable[[T], object] = id,
) -> Generator[Outcome[T]]:
    """Run *ranges*, and again those that do not chain; yield the outcomes that do, as soon as *run* gives them."""
    # A range that was cut inside a segment syncs: it begins at the first record that proves itself, which may be a copy
    # in a body. Only the outcome before it knows the true boundary:
    #     |---- accepted ----|b      b: `seen.next` of the last accepted outcome
    #                    |-- sync --|     first != b: discarded, and read again from b without a sync
    #                         |- sync -|  ends before b: discarded, a record of the range before covers it
    # So each accepted outcome begins where the one before it ended, whatever the cuts were.
    accepted: list[Outcome[T]] = []  # the last one
    for range_, outcome in zip(ranges, run(ranges), strict=True):
        boundary = _boundary(accepted, range_)
        if _log_ends(accepted) or (range_.sync and boundary >= range_.end_offset):
            discard(outcome.payload)
            continue
        if range_.sync and outcome.seen.first != boundary and not _was_deleted(outcome, *accepted):
            discard(outcome.payload)
            start = boundary - range_.base_offset
            known = accepted[-1].seen.store_timestamp
            accepted = list(run([replace(range_, start=start, sync=False, store_timestamp=known)]))
        else:
            accepted = [outcome]
        yield from accepted


def watermark(accepted: Sequence[Outcome[T]], from_offset: int) -> int:
    """Return the offset after the last complete record; the bytes after it may be incomplete."""
    if not accepted:
        return from_offset
    seen = accepted[-1].seen
    return seen.next if seen.open_at is None else seen.open_at


def _was_deleted(*outcomes: Outcome[T]) -> bool:
    """Return whether retention was faster: a part of a file that is deleted now is all that can be read of it."""
    return any(outcome.seen.was_deleted for outcome in outcomes)


def _log_ends(accepted: Sequence[Outcome[T]]) -> bool:
    """Return whether the last range met the end of the written log; after it lie zeros and leftovers."""
    return bool(accepted) and accepted[-1].seen.open_at is not None


def _boundary(accepted: Sequence[Outcome[T]], range_: Range) -> int:
    """Return the offset at which the pieces of *range_* must begin."""
    same_segment = accepted and accepted[-1].range.location == range_.location
    return accepted[-1].seen.next if same_segment else range_.start_offset


def run_range(range_: Range, task: Task[T], noted: Callable[[Pieces], Pieces] = iter) -> Outcome[T]:
    """Run *task* on one range, here; *noted* sees its pieces on their way."""
    reader = RangeReader(range_)
    payload = task(range_, noted(reader.pieces()))
    return Outcome(range_, reader.seen, payload)
