"""
Identifies stores by the bytes of their logs, never by path or host name.

A store with the bytes of a known store's fingerprints is that store: possibly a copy, a slave or a moved disk. If
fingerprints do not decide, the rows of the lake are compared; see docs/internals/decisions.md.

A tier has a log for each queue, and is identified by the bytes of these logs. If a topic is deleted and created again,
it starts a new log at the same place, with other bytes than before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from enum import Enum, unique
from functools import cache
from typing import Any, NamedTuple, Self, TypeAlias, cast

import pyarrow.dataset as ds

from jobs.console.result import OtherRunActiveError, RequestError
from jobs.lake.commit import read_rows
from jobs.lake.integrity import refuse_tables_without_runs
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.runs import KnownStore, list_known_stores, register_store
from jobs.lake.tables import MESSAGES
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store, TierQueue
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.errors import skip_lost_file

_ATTEMPTS = 10
_SAMPLED_SEGMENTS = 16
_WINDOW = 256 << 10  # bytes that are read of a segment to find its first record
_SAMPLED_QUEUES = 64  # queues of a new tier whose first records are sampled
_STATE = "tier"  # key in a manifest's state
_IDENTITY = (  # together unique in a store
    "physical_offset", "total_size", "body_crc", "queue_id", "queue_offset", "born_timestamp", "store_timestamp",
)  # fmt: skip

_FirstRecord: TypeAlias = tuple[Fingerprint, MessageRecord]
TierQueueName: TypeAlias = tuple[str, int]  # topic and number


@unique
class Likeness(Enum):
    """The result of comparing a known store's fingerprints with a store."""

    SAME = "same"
    OTHER = "other"  # different bytes wherever both have bytes
    PARTLY = "partly"  # the same bytes at some offsets, different ones at others: damaged or rewritten
    UNKNOWN = "unknown"  # no offset that both have: expired, or not reached


def compare_fingerprints(known: KnownStore, store: Store) -> tuple[Likeness, Sequence[Fingerprint], int | None]:
    """
    Compare the lake's fingerprints of a known store with the bytes of *store*.

    Return the matching fingerprints, ascending, up to the first offset that has other bytes; and that offset.
    """
    held = [(one, has_fingerprint(one, store)) for one in reversed(known.newest_fingerprints)]
    same = [one for one, verdict in held if verdict]
    other = [one for one, verdict in held if verdict is False]
    if not other:
        return Likeness.SAME if same else Likeness.UNKNOWN, same, None
    # Truncating a log deletes the files after the cut: a difference before a file that agrees is bit rot.
    last = store.segment_at(same[-1].offset) if same else None
    differs = next((one.offset for one in other if last is None or one.offset >= last.base_offset), None)
    agreed = [one for one in same if differs is None or one.offset < differs]
    return Likeness.PARTLY if same else Likeness.OTHER, agreed, differs


def has_fingerprint(fingerprint: Fingerprint, store: Store) -> bool | None:
    """Return whether the store has these bytes; None if they are deleted, not written yet, or unreadable."""
    segment = store.segment_at(fingerprint.offset)
    if segment is None:
        return None
    with skip_lost_file():  # retention may delete the file meanwhile; an unreadable sector identifies no store
        data = store.read(segment, fingerprint.offset - segment.base_offset, fingerprint.size)
        return fingerprint.matches(data) if any(data) else None  # zeros: not written yet, on a lagging slave
    return None


def identify_store(lake: Lake, store: Store, broker: str | None, *, register_new: bool = True) -> KnownStore | None:
    """
    Return the known store that matches *store*, or register it; None if it never had a record.

    Without *register_new*, a new store is returned without an id. If another log already has its label, it is refused,
    unless the user chose the label.
    """

    def known_or_new(registered: Sequence[KnownStore]) -> KnownStore | None:
        stores = [known for known in registered if known.tier_states is None]
        firsts = cache(lambda: list(_read_first_records(store)))  # read on demand
        found = _find_store(lake, stores, store, firsts, broker or DEFAULT_BROKER)
        if found is not None or not firsts():
            return found
        if broker is None and any(known.broker == DEFAULT_BROKER for known in stores):
            raise RequestError("the lake already has a store without a broker name: pass --broker to name this one")
        return KnownStore("", broker or DEFAULT_BROKER, tuple(fingerprint for fingerprint, _ in firsts()))

    return _find_or_register(lake, known_or_new, register_new=register_new)


def _find_or_register(
    lake: Lake, known_or_new: Callable[[Sequence[KnownStore]], KnownStore | None], *, register_new: bool
) -> KnownStore | None:
    """Return the store that matches one in the lake; a new store is registered."""
    for _ in range(_ATTEMPTS):
        registered = list_known_stores(lake)
        found = known_or_new(registered)
        if found is None or found.store_id:
            return found
        refuse_tables_without_runs(lake)
        if not register_new:
            return found
        with suppress(OtherRunActiveError):  # another process has registered a store, possibly this one: check again
            return register_store(lake, found, len(registered))
    raise OtherRunActiveError(
        "this store could not be registered, because others were registered at the same time; run the command again"
    )


def _find_store(
    lake: Lake, stores: Sequence[KnownStore], store: Store, firsts: Callable[[], list[_FirstRecord]], broker: str
) -> KnownStore | None:
    """Return the store with the same bytes; if all known bytes have expired, the one with this label."""
    by_label = _newest_of_label_first(stores, broker)
    undecided: dict[Likeness, list[KnownStore]] = {likeness: [] for likeness in Likeness}
    for known in by_label:
        likeness, _, _ = compare_fingerprints(known, store)
        if likeness is Likeness.SAME:
            return known
        undecided[likeness].append(known)
    if undecided[Likeness.PARTLY]:
        return undecided[Likeness.PARTLY][0]
    owners = _find_owners(lake, firsts()) if stores else set()
    for known in by_label:
        if known.store_id in owners:
            return known
    # The current start, not the listed one: retention may have deleted more since.
    start = min((fingerprint.offset for fingerprint, _ in firsts()), default=store.start_offset)
    expired = (
        known
        for known in undecided[Likeness.UNKNOWN]
        if known.broker == broker and (known.newest is None or known.newest.to_offset <= start)
    )
    return next(expired, None)


def _newest_of_label_first(stores: Sequence[KnownStore], broker: str) -> list[KnownStore]:
    return sorted(reversed(stores), key=lambda known: known.broker != broker)  # noqa: C414 - equal ones keep this order


def _find_owners(lake: Lake, firsts: Sequence[_FirstRecord]) -> set[str]:
    where = ds.field("physical_offset").isin([record.physical_offset for _, record in firsts])
    found = read_rows(lake, MESSAGES.name, ("store_id", *_IDENTITY), where)
    wanted = {tuple(getattr(record, name) for name in _IDENTITY) for _, record in firsts}
    return {store_id for store_id, *message in found if tuple(message) in wanted}


def _read_first_records(store: Store) -> Iterator[_FirstRecord]:
    step = max(len(store.segments) // _SAMPLED_SEGMENTS, 1)
    for segment in store.segments[::step]:
        whole = Range(
            segment.location, segment.base_offset, segment.readable_bytes, 0, segment.readable_bytes,
            starts_anywhere=True, final=False, storage=store.storage, store_in_use=store.root,
        )  # fmt: skip
        with closing(RangeReader(whole, _WINDOW).pieces()) as pieces:
            group = next((item for item in pieces if isinstance(item, RawRecords)), None)
            if group is not None:
                at, size = int(group.positions[0]), int(group.sizes[0])
                raw = bytes(group.buffer[at : at + size])
                offset = group.base_offset + at
                yield Fingerprint.from_bytes(offset, raw), decode_record(raw, 0, offset)


class TierQueueState(NamedTuple):
    """How much of a tier queue's log is in the lake, and the fingerprints that identify the log."""

    topic: str
    queue_id: int
    generation: int
    to_offset: int  # the offset at which the next run continues
    store_timestamp: int | None  # the store time of the last record before *to_offset*
    first: Fingerprint | None
    newest: Fingerprint | None

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Self:
        """Parse the stored form."""
        *numbers, first, newest = values
        return cls(*numbers, *(Fingerprint(*one) if one else None for one in (first, newest)))

    @property
    def name(self) -> TierQueueName:
        """Topic and number of the queue."""
        return self.topic, self.queue_id

    def compare(self, log: Store) -> Likeness:
        """Compare the fingerprints with the current log."""
        for one in (self.newest, self.first):
            verdict = has_fingerprint(one, log) if one is not None else None
            if verdict is not None:
                return Likeness.SAME if verdict else Likeness.OTHER
        # Retention deletes from the beginning: a log never gains bytes before its first ones.
        is_older = self.first is not None and log.start_offset < self.first.offset
        return Likeness.OTHER if is_older else Likeness.UNKNOWN


def tier_queue_states(known: KnownStore) -> dict[TierQueueName, TierQueueState]:
    """Return the state of each queue of a tier in the lake."""
    stored = cast("Sequence[Sequence[Any]]", known.newest.state.get(_STATE, ()) if known.newest else ())
    return {state.name: state for state in map(TierQueueState.from_json, stored)}


def states_as_json(states: Iterable[TierQueueState]) -> dict[str, object]:
    """Return *states* in the form that manifests store."""
    return {_STATE: sorted(states)}


def identify_tier(
    lake: Lake, queues: Sequence[TierQueue], broker: str, *, register_new: bool = True
) -> KnownStore | None:
    """
    Return the known tier that matches these queues, or register it; None if they have no record.

    A tier matches if it has the same bytes, or, if no bytes contradict it, the newest one with this label.
    """

    def known_or_new(registered: Sequence[KnownStore]) -> KnownStore | None:
        undecided = []
        for known in _newest_of_label_first([one for one in registered if one.tier_states is not None], broker):
            likeness = _compare_tier(known, queues)
            if likeness is Likeness.SAME:
                return known
            if likeness is Likeness.UNKNOWN and known.broker == broker:
                undecided.append(known)
        if undecided:
            return undecided[0]
        firsts = _read_first_states(queues)
        return KnownStore("", broker, (), tier_states=firsts) if firsts else None

    return _find_or_register(lake, known_or_new, register_new=register_new)


def _compare_tier(known: KnownStore, queues: Sequence[TierQueue]) -> Likeness:
    """Compare until one queue has the same bytes; recreated topics have other bytes."""
    states = tier_queue_states(known) or {
        state.name: state for state in map(TierQueueState.from_json, known.tier_states or ())
    }
    verdict = Likeness.UNKNOWN
    for queue in queues:
        state = states.get((queue.topic, queue.queue_id))
        likeness = state.compare(queue.store) if state else Likeness.UNKNOWN
        if likeness is Likeness.SAME:
            return likeness
        verdict = Likeness.OTHER if likeness is Likeness.OTHER else verdict
    return verdict


def _read_first_states(queues: Sequence[TierQueue]) -> list[TierQueueState]:
    """Return states for some queues with their first records as fingerprints, and no ingested rows."""
    found = []
    for queue in queues[:: max(len(queues) // _SAMPLED_QUEUES, 1)]:
        for range_ in plan_ranges(queue.store, 0, WHOLE_SEGMENTS)[:1]:
            reader = RangeReader(range_)
            with closing(reader.pieces()) as pieces:
                next(pieces, None)
            firsts = reader.facts.fingerprints[:1]
            found += [TierQueueState(queue.topic, queue.queue_id, 0, 0, None, first, None) for first in firsts]
    return found
