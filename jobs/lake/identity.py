"""
Identifies stores by the bytes of their logs, never by path or host name.

A store with the bytes of a lake store's fingerprints is that store: possibly a copy, a slave or a moved disk. If
fingerprints do not decide, the rows of the lake are compared, with the hosts and the unique key: a producer that sends
each message to two brokers makes records that differ in nothing else. If the log has lost all of its records, its
queues show where they were. See docs/internals/decisions.md.

A label names one broker. If its log was wiped, the new log is a new store under the same label; the address shows that
it is the same broker.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from enum import Enum, unique
from functools import cache
from itertools import islice
from shlex import quote
from typing import NamedTuple

import pyarrow.dataset as ds

from jobs.console.result import OtherRunActiveError, RequestError
from jobs.lake.commit import read_rows
from jobs.lake.integrity import refuse_tables_without_runs
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.lake_stores import LakeStore, list_lake_stores, register_store
from jobs.lake.tables import MESSAGES, Table
from jobs.store.epochs import tail_evidence
from jobs.store.queue_files import queues_in_files
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.record import decode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, Unit
from rmq_formats.errors import skip_lost_file
from rmq_formats.properties import PropertyParser

_ATTEMPTS = 10
_SAMPLED_SEGMENTS = 16
_SAMPLED_QUEUES = 256
_WINDOW = 256 << 10  # bytes of a segment that are read to find its first record
_IDENTITY = (  # together unique, also among brokers that receive the same messages
    "physical_offset", "total_size", "body_crc", "topic", "queue_id", "queue_offset", "born_timestamp", "born_host",
    "store_timestamp", "store_host", "uniq_key",
)  # fmt: skip
_HOST = "store_host"
_UNIT = ("physical_offset", "total_size", "topic", "queue_id", "queue_offset")  # the values that a unit shows


class FirstRecord(NamedTuple):
    """The first record of a segment, or of another range of the log."""

    fingerprint: Fingerprint
    store_timestamp: int
    values: tuple[object, ...]  # of the columns that identify a record; empty if its body does not match its CRC


@unique
class Likeness(Enum):
    """The result of comparing a lake store's fingerprints with a store."""

    SAME = "same"
    OTHER = "other"  # different bytes wherever both have bytes
    PARTLY = "partly"  # the same bytes at some offsets, different ones at others: damaged or rewritten
    UNKNOWN = "unknown"  # no offset that both have: expired, or not reached


def compare_fingerprints(lake_store: LakeStore, store: Store) -> tuple[Likeness, Sequence[Fingerprint], int | None]:
    """
    Compare the fingerprints of a lake store with the bytes of *store*.

    Return the matching fingerprints, ascending, up to the first offset that has other bytes; and that offset.
    """
    held = [(one, has_fingerprint(one, store)) for one in reversed(lake_store.newest_fingerprints)]
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


def identify_store(lake: Lake, store: Store, broker: str | None, *, register_new: bool = True) -> LakeStore | None:
    """
    Return the lake store that matches *store*, or register it with the label *broker*; None if it never had a record.

    Without *register_new*, a new store is returned without an id. If its label belongs to another broker, it is
    refused.
    """

    def find_or_register(registered: Sequence[LakeStore]) -> LakeStore | None:
        stores = [lake_store for lake_store in registered if not lake_store.is_tier]
        firsts = cache(lambda: _read_first_records(store))  # read on demand
        found = _find_store(lake, stores, store, firsts, broker or DEFAULT_BROKER)
        if found is not None:
            return found
        if not firsts():
            return _find_store_by_units(lake, stores, store, broker or DEFAULT_BROKER)
        if broker is None and any(lake_store.broker == DEFAULT_BROKER for lake_store in stores):
            raise RequestError("the lake already has a store without a broker name: pass --broker to name this one")
        for lake_store in stores:
            reason = _why_other_broker(lake, lake_store, firsts()) if lake_store.broker == broker else ""
            if reason:
                raise RequestError(
                    f"{store.root}: the lake's broker {broker!r} is another store ({lake_store.store_id}), of "
                    f"another broker: {reason}. Choose another name with --broker"
                )
        return LakeStore("", broker or DEFAULT_BROKER, tuple(first.fingerprint for first in firsts()))

    for _ in range(_ATTEMPTS):
        registered = list_lake_stores(lake)
        found = find_or_register(registered)
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


def _why_other_broker(lake: Lake, lake_store: LakeStore, firsts: Sequence[FirstRecord]) -> str:
    """Return why a log cannot be another one of the broker of a lake store; empty if it may be."""
    where = ds.field("store_id") == lake_store.store_id
    where &= ds.field("physical_offset").isin([one.offset for one in lake_store.newest_fingerprints])
    hosts = sorted({host for (host,) in read_rows(lake, MESSAGES.name, (_HOST,), where)})
    own = sorted({str(first.values[_IDENTITY.index(_HOST)]) for first in firsts if first.values})
    if not hosts or not own or not set(hosts).isdisjoint(own):
        return ""
    return f"that store has messages of {', '.join(hosts)}, and this one has messages of {', '.join(own)}"


def refuse_other_label(lake: Lake, store: Store, lake_store: LakeStore, label: str) -> None:
    """Raise `RequestError` if the lake has *store* (as *lake_store*) under a label other than *label*."""
    if not lake_store.store_id or lake_store.broker == label:
        return
    others = (one for one in list_lake_stores(lake) if one.broker == label and one.store_id != lake_store.store_id)
    other = "".join(f" The lake's broker {label!r} is another store ({one.store_id})." for one in others)
    raise RequestError(
        f"{store.root}: its log has the bytes of the store {lake_store.store_id}, which this lake has as broker "
        f"{lake_store.broker!r}, so it cannot be added as broker {label!r}.{other} To continue that store, pass "
        f"--broker {quote(lake_store.broker)} or leave out --broker"
    )


def _find_store(
    lake: Lake, stores: Sequence[LakeStore], store: Store, firsts: Callable[[], list[FirstRecord]], broker: str
) -> LakeStore | None:
    """Return the store with the same bytes; if there are no bytes at common offsets, the one with this label."""
    by_label = _newest_of_label_first(stores, broker)
    undecided: dict[Likeness, list[LakeStore]] = {likeness: [] for likeness in Likeness}
    for lake_store in by_label:
        likeness, _, _ = compare_fingerprints(lake_store, store)
        if likeness is Likeness.SAME:
            return lake_store
        undecided[likeness].append(lake_store)
    if undecided[Likeness.PARTLY]:
        return undecided[Likeness.PARTLY][0]
    owners = find_stores_with_record(lake, MESSAGES, firsts()) if stores else set()
    for lake_store in by_label:
        if lake_store.store_id in owners:
            return lake_store
    # The current start, not the listed one: retention may have deleted more since.
    start = min((first.fingerprint.offset for first in firsts()), default=store.start_offset)
    without_common_bytes = (
        lake_store
        for lake_store in undecided[Likeness.UNKNOWN]
        if lake_store.broker == broker
        # All known bytes have expired, or the log is an old copy that ends before them.
        and (
            lake_store.newest_manifest is None
            or lake_store.newest_manifest.to_offset <= start
            or start < lake_store.lowest_fingerprint_offset
        )
        and not _why_other_broker(lake, lake_store, firsts())
    )
    return next(without_common_bytes, None)


def _find_store_by_units(lake: Lake, stores: Sequence[LakeStore], store: Store, broker: str) -> LakeStore | None:
    """
    Return the store to whose messages the queues of a store without records point; None unless there is only one.

    If several stores of the lake have these messages, as the brokers of a producer that sends each message to all of
    them, the one with this label is returned.
    """
    places = dict(list_last_units(store)) if stores else {}
    if not places:
        return None
    where = ds.field("physical_offset").isin(list(places))
    same, others = set[str](), set[str]()
    for store_id, offset, *place in read_rows(lake, MESSAGES.name, ("store_id", *_UNIT), where):
        (same if tuple(place) == places[offset] else others).add(store_id)
    found = [one for one in _newest_of_label_first(stores, broker) if one.store_id in same - others]
    return found[0] if len(found) == 1 or (found and found[0].broker == broker) else None


def list_last_units(store: Store) -> Iterator[tuple[int, tuple[object, ...]]]:
    """Yield the offset to which the last unit of each queue points, and the other values of its message's row."""
    for queue in islice(queues_in_files(store), _SAMPLED_QUEUES):
        name = queue.name
        if name.kind is not QueueKind.PLAIN or name.topic.startswith(LMQ_PREFIX):  # not the topic of the message
            continue
        with suppress(OSError):  # an unreadable file identifies no store
            end = queue.find_written_end()
            unit = queue.read_last_unit(end)
            if isinstance(unit, Unit) and not unit.is_pre_blank:
                yield unit.physical_offset, (unit.size, name.topic, name.queue_id, end - 1)


def _newest_of_label_first(stores: Sequence[LakeStore], broker: str) -> list[LakeStore]:
    return sorted(reversed(stores), key=lambda lake_store: lake_store.broker != broker)  # noqa: C414 - equal ones keep this order


def find_stores_with_record(lake: Lake, table: Table, firsts: Sequence[FirstRecord]) -> set[str]:
    """Return the ids of the stores of which *table* has one of these records."""
    wanted = {first.values for first in firsts if first.values}
    where = ds.field("physical_offset").isin([offset for offset, *_ in wanted])
    found = read_rows(lake, table.name, ("store_id", *_IDENTITY), where)
    return {store_id for store_id, *message in found if tuple(message) in wanted}


def _read_first_records(store: Store) -> list[FirstRecord]:
    """Return the first sound record of some segments; if no segment has any, the first records with a wrong CRC."""
    evidence, step = tail_evidence(store), max(len(store.segments) // _SAMPLED_SEGMENTS, 1)
    wholes = [
        Range(
            segment.location,
            segment.base_offset,
            segment.readable_bytes,
            0,
            segment.readable_bytes,
            starts_anywhere=True,
            final=False,
            storage=store.storage,
            evidence=evidence,
            store_in_use=store.root,
        )
        for segment in store.segments[::step]
    ]
    sound = [first for range_ in wholes if (first := read_first_record(range_))]
    # A range that may start anywhere begins with a record whose CRC is right.
    any_crc = (read_first_record(replace(range_, starts_anywhere=False)) for range_ in wholes if not sound)
    return sound or [first for first in any_crc if first]


def read_first_record(range_: Range) -> FirstRecord | None:
    """Return the first record of a range of the log; None if it has none."""
    with closing(RangeReader(range_, _WINDOW).pieces()) as pieces:
        group = next((item for item in pieces if isinstance(item, RawRecords)), None)
        if group is None:
            return None
        first = group._replace(positions=group.positions[:1], sizes=group.sizes[:1])
        at, size = int(first.positions[0]), int(first.sizes[0])
        raw = bytes(first.buffer[at : at + size])
        batch, _ = message_batch(first, PropertyParser.SCAN, with_body=False)
        rows = batch.select(list(_IDENTITY)).to_pylist()
        fingerprint = Fingerprint.from_bytes(group.base_offset + at, raw)
        stored_ms = decode_record(raw, 0, fingerprint.offset).store_timestamp
        return FirstRecord(fingerprint, stored_ms, tuple(rows[0].values()) if rows else ())
