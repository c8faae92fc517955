"""
The queues in a run of `ingest`: what is new in them, joined with what is new in the log, each unit once.

    begin ─► Matcher in the task of each range ─► finish in `joining` ─► the state that the next run begins with

A run takes the records that were dispatched when it looked at the queues, from where the last one ended; newer records,
and the units that lead to them, are the next run's. So units may be ahead of the log or behind it, and both may lose
their beginnings at different times: every unit gets its row in exactly one run. A record that retention took before its
unit was seen is held against the queues as the lake's row tells it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from jobs.products.queues.join import Joined
from jobs.products.queues.range_matcher import Matcher, Matching, RangeMatches
from jobs.products.queues.rows import Status, batches_of
from jobs.store.queue_ends import Look, look
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.commitlog.scan import Records
from rmq_formats.consumequeue.unit import QueueKind, QueueName, QueueRules


class Begun(NamedTuple):
    """A run's view of the queues, taken before it reads the log."""

    seen: Look
    matching: Matching  # what the task of each range needs
    taken_to: int  # earlier runs took the units of every record before it
    boundary: int  # where the log must be read from: the end of a record


def begin(
    workers: Workers,
    store: Store,
    rules: QueueRules,
    state: Mapping[str, Any] | None,
    takes: Callable[[str], bool] | None = None,
) -> Begun:
    """Look at the queues; *state* is what `state_of` gave the last run, *takes* chooses topics."""
    taken_to = int(state["dispatched"]) if state else 0
    seen = look(workers, store, _watermarks(state), taken_to, takes)
    from_offset = max(taken_to, store.start_offset)
    # Queues may be gone since; what was dispatched stays so.
    seen = seen._replace(dispatched=max(seen.dispatched, from_offset))
    matching = Matching(rules, seen.queues, from_offset, seen.dispatched, with_rows=True, takes=takes)
    return Begun(seen, matching, taken_to, max(_boundary(state), store.start_offset))


def match_deleted(
    begun: Begun, records: Iterable[Records], from_offset: int, to_offset: int
) -> tuple[RangeMatches, Iterator[pa.RecordBatch]]:
    """
    Match the units of records that no run took, and that are in the log no more, from one offset to another.

    Return rows of those that are there. One that is not at its place may be gone like its record: nothing is missing.
    """
    matcher = Matcher(replace(begun.matching, from_offset=from_offset, to_offset=to_offset))
    for group in records:
        matcher.add(group)
    matches, blocks, tags = matcher.finish()
    matches.left_over, matches.without_queue, matches.first_without = [], {}, {}
    matches.expected = int(matches.counts.sum())
    return matches, batches_of([block for block in blocks if block.status is not Status.MISSING], tags)


def cut_back(state: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Return the state of a store whose broker has cut off its log at *offset*."""
    return {**state, **{name: min(state[name], offset) for name in ("dispatched", "boundary")}}


def state_of(joined: Joined, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what the next run must know: behind which record it goes on, and how far each queue was taken."""
    watermarks = {**_watermarks(state), **joined.watermarks}
    return {
        "dispatched": joined.dispatched,
        # The end of a record: what units say of the log's end proves nothing, and a log is read from a boundary on.
        "boundary": _boundary(state) if joined.taken_to is None else joined.taken_to,
        "queues": [[*name, position] for name, position in sorted(watermarks.items())],
    }


def _boundary(state: Mapping[str, Any] | None) -> int:
    return int(state["boundary"]) if state else 0


def _watermarks(state: Mapping[str, Any] | None) -> dict[QueueName, int]:
    queues = state["queues"] if state else ()
    return {QueueName(QueueKind(kind), topic, queue_id): position for kind, topic, queue_id, position in queues}
