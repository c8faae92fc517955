"""
Whose store is this? A store is known by its log's own bytes, never by a path or a host.

The lake keeps fingerprints: hashes of records at known offsets. A store that has the same bytes at these offsets is the
same one, be it a copy, a slave or a moved disk. One that has other bytes at all of them is another one, under any name.
Where fingerprints do not decide, the rows of the lake are fingerprints too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from enum import Enum, unique
from functools import cache
from typing import NamedTuple, TypeAlias

import pyarrow.dataset as ds

from jobs.console.exit_codes import RequestError
from jobs.lake.commit import rows
from jobs.lake.integrity import refuse_tables_without_runs
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.runs import HeldByOtherError, KnownStore, known_logs, known_stores, register
from jobs.lake.tables import MESSAGES
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.scan import Records
from rmq_formats.errors import is_unreadable

_ATTEMPTS = 10
_SAMPLED_SEGMENTS = 16


_FirstRecord: TypeAlias = tuple[Fingerprint, MessageRecord]


class AmbiguousBrokerError(RequestError):
    """Two different stores would have one label."""


@unique
class Likeness(Enum):
    """The comparison of a known store's fingerprints with the store at hand."""

    SAME = "same"
    OTHER = "other"  # different bytes wherever both have some
    PARTLY = "partly"  # the same bytes at some offsets, different ones at others: damaged or rewritten
    UNKNOWN = "unknown"  # no offset that both have: expired, or not reached


class Comparison(NamedTuple):
    """How a known store compares with the one at hand."""

    likeness: Likeness
    agreed: tuple[Fingerprint, ...] = ()  # those before the first one that differs, ascending
    differs: int | None = None  # the first offset that is known to hold other bytes


def compare(known: KnownStore, store: Store) -> Comparison:
    """Compare the lake's fingerprints of a known store with the bytes of *store*."""
    held = [(one, holds(one, store)) for one in reversed(known.fingerprints)]
    same = [one for one, verdict in held if verdict]
    other = [one for one, verdict in held if verdict is False]
    if not other:
        return Comparison(Likeness.SAME if same else Likeness.UNKNOWN, tuple(same))
    # Whoever cuts off a log deletes the files after the cut: what differs in a file before one that agrees has rotted.
    last = store.segment_at(same[-1].offset) if same else None
    differs = next((one.offset for one in other if last is None or one.offset >= last.base_offset), None)
    agreed = tuple(one for one in same if differs is None or one.offset < differs)
    return Comparison(Likeness.PARTLY if same else Likeness.OTHER, agreed, differs)


def holds(fingerprint: Fingerprint, store: Store) -> bool | None:
    """Return whether the store has these bytes; None when it has none there any more, or not yet, or not readable."""
    segment = store.segment_at(fingerprint.offset)
    if segment is None:
        return None
    try:
        data = store.read(segment, fingerprint.offset - segment.base_offset, fingerprint.size)
    except FileNotFoundError:  # retention deletes while we look
        return None
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None  # a sector that was readable once: it says nothing of whose it is
    if not any(data):
        return None  # not written yet: a slave that lags behind
    return fingerprint.is_of(data)


def identify(lake: Lake, store: Store, broker: str | None, *, register_new: bool = True) -> KnownStore | None:
    """
    Return the known store that *store* is, or a newly registered one; None when no record was ever written.

    Without *register_new* a new store is returned without an id. A label that another log has already is refused
    unless the user gave it.
    """
    for _ in range(_ATTEMPTS):
        registered = known_stores(lake)
        stores = [known for known in registered if known.tier is None]
        firsts = cache(lambda: list(_first_records(store)))  # read on demand
        found = _find(lake, stores, store, firsts, broker or DEFAULT_BROKER)
        if found is not None or not firsts():
            return found
        fingerprints = tuple(fingerprint for fingerprint, _ in firsts())
        if broker is None and any(known.broker == DEFAULT_BROKER for known in stores):
            raise AmbiguousBrokerError("the lake has another store without a broker name: name this one by --broker")
        refuse_tables_without_runs(lake)
        new = KnownStore("", broker or DEFAULT_BROKER, fingerprints)
        try:
            return register(lake, new, len(registered)) if register_new else new
        except HeldByOtherError:
            continue  # another store came first, or this one by another process: look again
    raise HeldByOtherError("other stores are being registered all the time")


def namesakes(lake: Lake, known: KnownStore) -> list[KnownStore]:
    """Return the other logs that have this store's label: wiped since, or of a broker that is called the same."""
    return [other for other in known_logs(lake) if other.broker == known.broker and other.store_id != known.store_id]


def _find(
    lake: Lake, stores: Sequence[KnownStore], store: Store, firsts: Callable[[], list[_FirstRecord]], broker: str
) -> KnownStore | None:
    """Return the store that has the same bytes; else the one that this label means, if all its bytes have expired."""
    by_label = sorted(reversed(stores), key=lambda known: known.broker != broker)  # noqa: C414 - the newest first
    undecided: dict[Likeness, list[KnownStore]] = {likeness: [] for likeness in Likeness}
    for known in by_label:
        likeness = compare(known, store).likeness
        if likeness is Likeness.SAME:
            return known
        undecided[likeness].append(known)
    if undecided[Likeness.PARTLY]:
        return undecided[Likeness.PARTLY][0]
    owners = _owners(lake, firsts()) if stores else set()
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


def _owners(lake: Lake, firsts: Sequence[_FirstRecord]) -> set[str]:
    """Return the ids of the stores that have a row for one of the records."""
    where = ds.field("physical_offset").isin([record.physical_offset for _, record in firsts])
    found = rows(lake, MESSAGES.name, _IdentityRow, where)
    wanted = {tuple(getattr(record, name) for name in _IdentityRow._fields[1:]) for _, record in firsts}
    return {row.store_id for row in found if row[1:] in wanted}


class _IdentityRow(NamedTuple):
    """A store, and what no two of its messages have in common."""

    store_id: str
    physical_offset: int
    total_size: int
    body_crc: int
    queue_id: int
    queue_offset: int
    born_timestamp: int
    store_timestamp: int


def _first_records(store: Store) -> Iterator[_FirstRecord]:
    """Yield the first record of some segments, the oldest first."""
    step = max(len(store.segments) // _SAMPLED_SEGMENTS, 1)
    for segment in store.segments[::step]:
        whole = Range(
            segment.location, segment.base_offset, segment.readable, 0, segment.readable, sync=True, final=False,
            storage=store.storage,
        )  # fmt: skip
        with closing(RangeReader(whole).pieces()) as pieces:
            group = next((item for item in pieces if isinstance(item, Records)), None)
            if group is not None:
                at, size = int(group.positions[0]), int(group.sizes[0])
                raw = bytes(group.buffer[at : at + size])
                offset = group.base_offset + at
                yield Fingerprint.of(offset, raw), decode_record(raw, 0, offset)
