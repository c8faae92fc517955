"""
Whose store is this? A store is known by its log's own bytes, never by a path or a host.

The lake keeps fingerprints: hashes of records at known offsets. A store that has the same bytes at these offsets is the
same one, be it a copy, a slave or a moved disk. One that has other bytes there is another one, whatever it is called.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, unique
from hashlib import sha256
from typing import NamedTuple

from jobs.lake.runs import HeldByOtherError, KnownStore, Lake, known_stores, register
from jobs.source.distribute import run_range
from jobs.source.listing import Segment, StoreListing
from jobs.source.planning import Range
from jobs.source.reading import Fingerprint
from jobs.storage import storage_of
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece

DEFAULT_BROKER = "default"
_ATTEMPTS = 10
_SAMPLED_SEGMENTS = 16


class AmbiguousBrokerError(ValueError):
    """Two different stores would have one label."""


@unique
class Likeness(Enum):
    """What the fingerprints of a known store say about the store at hand."""

    SAME = "same"
    OTHER = "other"  # different bytes at the oldest offset that both have
    DIVERGED = "diverged"  # the same bytes up to some offset, different ones behind it
    UNKNOWN = "unknown"  # no offset that both have: expired, or not reached


class Comparison(NamedTuple):
    """How a known store compares with the one at hand."""

    likeness: Likeness
    agreed: int = 0  # bytes before this offset are known to be the same
    differs: int | None = None  # the first offset that is known to hold other bytes


def compare(store: KnownStore, listing: StoreListing) -> Comparison:
    """Hold the lake's fingerprints of *store* against the bytes of *listing*."""
    agreed: int | None = None
    for fingerprint in reversed(store.fingerprints):
        verdict = _holds(fingerprint, listing)
        if verdict is None:
            continue
        if not verdict:
            likeness = Likeness.OTHER if agreed is None else Likeness.DIVERGED
            return Comparison(likeness, agreed or 0, fingerprint.offset)
        agreed = fingerprint.offset + fingerprint.size
    return Comparison(Likeness.UNKNOWN) if agreed is None else Comparison(Likeness.SAME, agreed)


def _holds(fingerprint: Fingerprint, listing: StoreListing) -> bool | None:
    """Tell whether the store has these bytes; None when it has no bytes at that offset any more, or not yet."""
    segment = _segment_at(fingerprint.offset, listing.segments)
    if segment is None:
        return None
    position = fingerprint.offset - segment.base_offset
    try:
        with storage_of(segment.location, listing.options).open(segment.location) as file:
            data = bytes(file.read(position, fingerprint.size))
    except FileNotFoundError:  # retention deletes while we look
        return None
    if not any(data):
        return None  # not written yet: a slave that lags behind
    return sha256(data).hexdigest() == fingerprint.sha256


def _segment_at(offset: int, segments: Sequence[Segment]) -> Segment | None:
    return next((s for s in segments if s.base_offset <= offset < s.base_offset + s.readable), None)


def identify(lake: Lake, listing: StoreListing, broker: str | None, *, register_new: bool = True) -> KnownStore | None:
    """
    Return the known store that *listing* is, or a newly registered one; None when no record was ever written.

    A label that another log has already is refused unless the user gave it.
    """
    for _ in range(_ATTEMPTS):
        stores = known_stores(lake)
        found = _find(stores, listing, broker)
        if found is not None:
            return found
        fingerprints = first_records(listing)
        if not fingerprints:
            return None
        if broker is None and any(store.broker == DEFAULT_BROKER for store in stores):
            raise AmbiguousBrokerError("the lake has another store without a broker name: name this one by --broker")
        if not register_new:
            return KnownStore("", broker or DEFAULT_BROKER, fingerprints)
        try:
            return register(lake, broker or DEFAULT_BROKER, fingerprints, len(stores))
        except HeldByOtherError:
            continue  # another store came first, or this one by another process: look again
    raise HeldByOtherError("other stores are being registered all the time")


def _find(stores: Sequence[KnownStore], listing: StoreListing, broker: str | None) -> KnownStore | None:
    """Return the store that has the same bytes; else the one that this label means, if all its bytes have expired."""
    unknown = []
    for store in reversed(stores):
        comparison = compare(store, listing)
        if comparison.likeness is Likeness.SAME:
            return store
        if comparison.likeness is Likeness.UNKNOWN and store.broker == (broker or DEFAULT_BROKER):
            unknown.append(store)
    return next((s for s in unknown if s.newest and s.newest.to_offset <= listing.start_offset), None)


def first_records(listing: StoreListing) -> tuple[Fingerprint, ...]:
    """Return fingerprints of the first record of some segments, the oldest first."""
    step = max(len(listing.segments) // _SAMPLED_SEGMENTS, 1)
    found: list[Fingerprint] = []
    for segment in listing.segments[::step]:
        first_byte = Range(
            segment.location, segment.base_offset, segment.readable, 0, 1, sync=False, final=False,
            options=dict(listing.options),
        )  # fmt: skip
        found += run_range(first_byte, _read_through).seen.fingerprints
    return tuple(found)


def _read_through(_range: Range, pieces: Iterator[Records | Piece]) -> None:
    for _ in pieces:
        pass
