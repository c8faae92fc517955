"""
Whose tier is this, and which log has each of its queues? Both are known by the records' own bytes.

A tier holds a log for each queue. A topic that is deleted and created again begins a new log at the same place: it has
other bytes where the earlier one had some.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Self, cast

from jobs.lake.identity import Likeness, holds
from jobs.lake.integrity import refuse_tables_without_runs
from jobs.lake.lake import Lake
from jobs.lake.runs import HeldByOtherError, KnownStore, known_stores, register
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store
from jobs.store.tier import TierQueue

_STATE = "tier"  # in a manifest's state
_ATTEMPTS = 10
_SAMPLED_QUEUES = 64  # of a new tier

QueueName = tuple[str, int]  # topic and number


class QueueState(NamedTuple):
    """How far the lake has the log of a queue, and by which bytes the log is known."""

    topic: str
    queue_id: int
    generation: int
    to_offset: int  # where the next run goes on
    store_timestamp: int | None  # of the last record before that
    first: Fingerprint | None
    newest: Fingerprint | None

    @classmethod
    def of_json(cls, values: Sequence[Any]) -> Self:
        """Read the stored form."""
        *numbers, first, newest = values
        return cls(*numbers, *(Fingerprint(*one) if one else None for one in (first, newest)))

    @property
    def name(self) -> QueueName:
        """Topic and number of the queue."""
        return self.topic, self.queue_id

    def likeness(self, log: Store) -> Likeness:
        """Compare the known bytes with the log that is there now."""
        for one in (self.newest, self.first):
            verdict = holds(one, log) if one is not None else None
            if verdict is not None:
                return Likeness.SAME if verdict else Likeness.OTHER
        # What expires is the beginning: a log never gets bytes before those that it had.
        is_older = self.first is not None and log.start_offset < self.first.offset
        return Likeness.OTHER if is_older else Likeness.UNKNOWN


def queue_states(known: KnownStore) -> dict[QueueName, QueueState]:
    """Return how far the lake has each queue of a tier."""
    stored = cast("Sequence[Sequence[Any]]", known.newest.state.get(_STATE, ()) if known.newest else ())
    return {state.name: state for state in map(QueueState.of_json, stored)}


def described(states: Iterable[QueueState]) -> dict[str, object]:
    """Return the form of *states* that a manifest keeps."""
    return {_STATE: sorted(states)}


def identify_tier(
    lake: Lake, queues: Sequence[TierQueue], broker: str, *, register_new: bool = True
) -> KnownStore | None:
    """Return the known tier that these queues are, or a newly registered one; None when no record is in it."""
    for _ in range(_ATTEMPTS):
        registered = known_stores(lake)
        found = _find([known for known in registered if known.tier is not None], queues, broker)
        if found is not None:
            return found
        firsts = _first_records(queues)
        if not firsts:
            return None
        refuse_tables_without_runs(lake)
        new = KnownStore("", broker, (), tier=firsts)
        try:
            return register(lake, new, len(registered)) if register_new else new
        except HeldByOtherError:
            continue  # another store came first, or this one by another process: look again
    raise HeldByOtherError("other stores are being registered all the time")


def _find(tiers: Sequence[KnownStore], queues: Sequence[TierQueue], broker: str) -> KnownStore | None:
    """Return the tier that has the same bytes; else the newest one of this label, where no bytes say otherwise."""
    newest_first = tiers[::-1]
    by_label = sorted(newest_first, key=lambda known: known.broker != broker)
    undecided = []
    for known in by_label:
        likeness = _likeness(known, queues)
        if likeness is Likeness.SAME:
            return known
        if likeness is Likeness.UNKNOWN and known.broker == broker:
            undecided.append(known)
    return next(iter(undecided), None)


def _likeness(known: KnownStore, queues: Sequence[TierQueue]) -> Likeness:
    """Compare until one queue has the same bytes: topics that were created again have others."""
    states = queue_states(known) or {state.name: state for state in map(QueueState.of_json, known.tier or ())}
    verdict = Likeness.UNKNOWN
    for queue in queues:
        state = states.get((queue.topic, queue.queue_id))
        likeness = state.likeness(queue.store) if state else Likeness.UNKNOWN
        if likeness is Likeness.SAME:
            return likeness
        verdict = Likeness.OTHER if likeness is Likeness.OTHER else verdict
    return verdict


def _first_records(queues: Sequence[TierQueue]) -> list[QueueState]:
    """Return the first record of some queues, as states that have nothing."""
    found = []
    for queue in queues[:: max(len(queues) // _SAMPLED_QUEUES, 1)]:
        for range_ in plan_ranges(queue.store, 0, WHOLE_SEGMENTS)[:1]:
            reader = RangeReader(range_)
            with closing(reader.pieces()) as pieces:
                next(pieces, None)
            firsts = reader.seen.fingerprints[:1]
            found += [QueueState(queue.topic, queue.queue_id, 0, 0, None, first, None) for first in firsts]
    return found
