"""
The queues in a run of `ingest`: what is new in them, joined with what is new in the log, each unit once.

    begin ─► Matcher in the task of each range ─► finish in `joining` ─► the state that the next run begins with

A run takes the records that were dispatched when it looked at the queues, from where the last one ended; newer records,
and the units that lead to them, are the next run's. So units may be ahead of the log or behind it, and both may lose
their beginnings at different times: every unit gets its row in exactly one run.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jobs.queues.joining import Joined
from jobs.queues.looking import Look, look
from jobs.queues.matching import Matching
from jobs.source.listing import StoreListing
from jobs.source.workers import Workers
from rmq_formats.consumequeue.unit import QueueKind, QueueName, QueueRules


class Begun(NamedTuple):
    """A run's view of the queues, taken before it reads the log."""

    seen: Look
    matching: Matching  # what the task of each range needs; the log must be read from its `from_offset` on


def begin(
    workers: Workers,
    listing: StoreListing,
    rules: QueueRules,
    state: Mapping[str, Any] | None,
    takes: Callable[[str], bool] | None = None,
) -> Begun:
    """Look at the queues; *state* is what `state_of` gave the last run, *takes* chooses topics."""
    taken_to = int(state["dispatched"]) if state else 0
    seen = look(workers, listing, _watermarks(state), taken_to, takes)
    from_offset = max(taken_to, listing.start_offset)
    # Queues may be gone since; what was dispatched stays so.
    seen = seen._replace(dispatched=max(seen.dispatched, from_offset))
    return Begun(seen, Matching(rules, seen.queues, from_offset, seen.dispatched, with_rows=True, takes=takes))


def state_of(joined: Joined, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what the next run must know: behind which record it goes on, and how far each queue was taken."""
    watermarks = {**_watermarks(state), **joined.watermarks}
    before = min(int(state["dispatched"]), joined.log_end) if state else 0
    return {
        # The end of a record: what units say of the log's end proves nothing, and a log is read from a boundary on.
        "dispatched": before if joined.taken_to is None else joined.taken_to,
        "queues": [[*name, position] for name, position in sorted(watermarks.items())],
    }


def _watermarks(state: Mapping[str, Any] | None) -> dict[QueueName, int]:
    queues = state["queues"] if state else ()
    return {QueueName(QueueKind(kind), topic, queue_id): position for kind, topic, queue_id, position in queues}
