"""
A check before a run: whether there is surely nothing to do, or little. It needs neither a JVM nor a compiler.

The newest manifest of the store says where the log ended. If those bytes are still there and still lead to that place,
if nothing is written after it, if queues and index were taken up to it by the same choice, and if every table has the
runs that it should have, a run would do nothing. Whatever is not certain is the run's to find out, errors included;
the check writes nothing.
"""

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from time import monotonic
from typing import Any

from jobs.ingest.request import IngestRequest, Summary
from jobs.lake.findings import OpenDamage
from jobs.lake.lake import Lake
from jobs.products.queues.settings import known_releases
from jobs.products.registry import PRODUCTS
from jobs.storage.locations import is_local, normalise
from jobs.store.ranges import plan_ranges, written_sizes
from jobs.store.record_places import Fingerprint
from jobs.store.selection import Selection, TopicChoices, TopicsError
from jobs.store.store import Segment, Store
from rmq_formats.commitlog.framing import framing_of
from rmq_formats.commitlog.layout import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmq_formats.commitlog.segment import Framing, SegmentEnd
from rmq_formats.errors import FormatError

_MANIFESTS, _LOCKS, _RUNS = "_manifests", "_locks", "runs"
_ID_LENGTH = 36  # of a store's id, with which the name of a manifest begins
_ZEROS = 4096  # bytes after the last record that must be unwritten
_LARGEST_MESSAGE = 16 << 20
_LONGEST_WALK = 64 << 20
_MOST_QUEUE_FILES = 10_000  # beyond, tasks look at queues side by side


class _Doubt(Exception):
    """The run must find out."""


# A manifest that was edited leads to any of these; `TopicsError` to other topics than earlier runs took.
_DOUBTS = (
    _Doubt, TopicsError, OSError, FormatError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    RecursionError, MemoryError, struct.error,
)  # fmt: skip


class PreRunCheck:
    """A store and its lake as they are before a run; each is listed once."""

    def __init__(self, request: IngestRequest) -> None:
        self._request = request

    @cached_property
    def _store(self) -> Store:
        _require_local(self._request)
        return self._request.listed()

    @cached_property
    def _manifests(self) -> list[dict[str, Any]]:
        _require_local(self._request)
        return [one for one in _manifests(Lake(normalise(self._request.lake))) if _has_fingerprints(self._store, one)]

    def nothing_new(self) -> Summary | None:
        """Return the summary of a run that finds nothing to do; None if it may find something, or fail."""
        began = monotonic()
        try:
            summary = self._nothing_new()
        except _DOUBTS:
            return None
        summary.seconds = {"looking": round(monotonic() - began, 3)}
        return summary

    def new_size(self) -> int | None:
        """Return the bytes of log for a run to read, at least nearly; None where only the run can know."""
        try:
            store = self._store
            _require(len(store.queue_files) <= _MOST_QUEUE_FILES)
        except _DOUBTS:
            return None
        try:
            read_to = self._manifests[0]["to_offset"] if self._manifests else 0
            return sum(written_sizes(plan_ranges(store, read_to)))
        except _DOUBTS:  # an unreadable log ends the run on any engine
            return store.log_size

    def _nothing_new(self) -> Summary:
        store, lake = self._store, Lake(normalise(self._request.lake))
        _require(len(self._manifests) == 1)
        manifest = self._manifests[0]
        # Of topics, what earlier runs took if none is given.
        selection = self._request.selection.after(manifest["selection"], is_changed=self._request.change_topics)
        request = replace(self._request, selection=selection)
        _require(not request.dry_run)
        writers = known_releases(store, request.release)
        # A run says where earlier ones left out topics that are wanted now, and that the lake has another name.
        chosen = TopicChoices.of(manifest["state"], manifest["selection"])
        _require(not chosen.until or request.selection.takes_or_all is not None)
        _require(request.broker in {None, manifest["broker"]})
        is_open = _check_end(store, manifest["to_offset"])
        _check_products(store, request, manifest)
        _check_chain(store, manifest)
        _check_lake(lake, request, manifest)
        summary = Summary(store.root, lake.location, manifest["broker"], manifest["store_id"])
        damaged, superseded = manifest["counts"].get("quarantine", 0), bool(manifest["superseded"])
        own = OpenDamage().and_met(manifest["run"], manifest["gaps"], damaged, superseded)
        summary.open = OpenDamage.of(manifest["state"], own)
        _require(not (request.acknowledge and summary.open))
        summary.newest_ms = manifest["store_timestamp"]
        summary.from_offset = summary.to_offset = manifest["to_offset"]
        summary.topics = request.selection.topics_text if request.selection.takes_or_all else ""
        summary.release = f"{writers.value} ({writers.origin_text})"
        if any(product.key == "queues" for product in PRODUCTS if request.wants(product)):
            summary.units = {"matched": 0, "expired": 0, "differences": 0}
            summary.behind = max(manifest["to_offset"] - manifest["state"]["queues"]["dispatched"], 0)
            if _fingerprints(store, manifest)[-1].end < manifest["to_offset"]:  # read again for the queues
                summary.segment_ends = {SegmentEnd.SEALED.value: 1}
        if is_open:
            summary.segment_ends[SegmentEnd.OPEN.value] = 1
        return summary


def _require_local(request: IngestRequest) -> None:
    """Give up the shortcut if a place is not local: the session knows the settings of other file systems."""
    _require(all(is_local(normalise(place)) for place in (request.store, request.lake, *request.commitlog)))


def _require(holds: object) -> None:
    if not holds:
        raise _Doubt


def _manifests(lake: Lake) -> Iterator[dict[str, Any]]:
    newest: dict[str, tuple[int, list[str]]] = {}
    for info in lake.list_files(_MANIFESTS):
        _require(not info.name.startswith("."))  # being created, or left by a run that was killed
        store_id, run = info.name[:_ID_LENGTH], int(info.name[_ID_LENGTH + 1 :].partition("-")[0])
        number, names = newest.get(store_id, (0, []))
        if run >= number:
            newest[store_id] = run, [*(names if run == number else []), info.name]
    for run, names in newest.values():
        _require(len(names) == 1)  # of two, one has lost
        manifest = json.loads(lake.read(f"{_MANIFESTS}/{names[0]}"))
        _require(manifest["version"] == 1 and manifest["run"] == run)
        yield manifest


def _has_fingerprints(store: Store, manifest: dict[str, Any]) -> bool:
    """Return whether this is the store, and its log as it was; `_Doubt` where only some of the bytes are the same."""
    there = _fingerprints(store, manifest)
    segments = [store.segment_at(one.offset) for one in there]
    same = [
        segment is not None and one.is_of(_read(store, segment, one.offset, one.size))
        for one, segment in zip(there, segments, strict=True)
    ]
    _require(all(same) or not any(same))
    return any(same)


def _fingerprints(store: Store, manifest: dict[str, Any]) -> list[Fingerprint]:
    """Return the fingerprints of records that retention has not deleted, ascending."""
    found = sorted(Fingerprint(*one) for one in manifest["fingerprints"])
    return [one for one in found if one.offset >= store.start_offset]


def _read(store: Store, segment: Segment, offset: int, size: int) -> bytes:
    return store.read(segment, offset - segment.base_offset, size)


def _check_chain(store: Store, manifest: dict[str, Any]) -> None:
    """
    Walk from a known boundary to the last record, and to the end of the known log.

    Recovery may have moved the write position to an earlier offset and left the old bytes after it.
    """
    same, to_offset = _fingerprints(store, manifest), manifest["to_offset"]
    last = same[-1]
    segment = store.segment_at(last.offset)
    if segment is None:
        raise _Doubt
    with store.open(segment) as file:
        _require(framing_of(file.read, segment.readable, segment.base_offset) is Framing.PLAIN)
    known = [one.end for one in same if segment.base_offset < one.end <= last.offset - _LARGEST_MESSAGE]
    start = known[-1] if known else segment.base_offset
    _require(last.end - start <= _LONGEST_WALK)
    data = _read(store, segment, start, last.end + BLANK.size - start)
    at = 0
    for goal in (last.offset - start, last.end - start):
        while at < goal:
            size, magic = BLANK.struct.unpack_from(data, at)
            _require(magic in {MAGIC_V1, MAGIC_V2} and size > 0)
            at += size
        _require(at == goal)
    if last.end < to_offset:  # then the end of its file followed
        _require(BLANK.unpack(data, at) == (to_offset - last.end, MAGIC_BLANK))
        _require(to_offset == segment.base_offset + segment.readable)


def _check_end(store: Store, to_offset: int) -> bool:
    """Return whether there is room for the next record; `_Doubt` where something may be written."""
    _require(store.start_offset <= to_offset <= store.end_offset)
    after = [one for one in store.segments if one.base_offset + one.readable > to_offset]
    for segment in after:
        _require(not any(_read(store, segment, max(to_offset, segment.base_offset), _ZEROS)))
    return bool(after)


def _check_lake(lake: Lake, request: IngestRequest, manifest: dict[str, Any]) -> None:
    """Give up the shortcut if the last run is unfinished or another is at work, or a table's run number is wrong."""
    store_id, run = manifest["store_id"], manifest["run"]
    notes = [info.size for info in lake.list_files(_LOCKS) if info.name == store_id]
    _require(notes == [0])
    _require(_transactions(lake, _RUNS, store_id, f"{store_id}/done") == [run, run])
    before = manifest["state"]["tables"]
    rewritten = ("messages", "consume_queue", "log_pieces", *(["traces"] if before.get("traces") else ()))
    own = {*manifest["tables"], *(rewritten if manifest.get("superseded") else ())}
    for table in (table for product in PRODUCTS if request.wants(product) for table in product.tables):
        expected = run if table in own else before.get(table, 0)
        _require(_transactions(lake, table, store_id) == [expected])


def _transactions(lake: Lake, table: str, *applications: str) -> list[int]:
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from jobs.lake.snapshots import open_delta, transaction_of

    snapshot = None
    try:
        with suppress(TableNotFoundError):  # a new lake: no transactions
            snapshot = open_delta(lake.locate(table), lake.options)
    except DeltaError as error:
        raise _Doubt from error
    return [transaction_of(snapshot, name) if snapshot else 0 for name in applications]


def _check_products(store: Store, request: IngestRequest, manifest: dict[str, Any]) -> None:
    """Give up the shortcut if the selection has changed, or a product has not taken all of the log and its files."""
    state, selection = manifest["state"], request.selection
    *_, last = _fingerprints(store, manifest)
    chosen = Selection().describe() | manifest["selection"]  # what an older version did not know was not chosen
    _require(json.loads(json.dumps(selection.describe())) == json.loads(json.dumps(chosen)))
    for product in PRODUCTS:
        if product.key is not None and request.wants(product):
            _require(state[product.key][product.reached] >= last.end)  # after it comes no more than a file's end
            _require(product.has_all_of(store, state[product.key], selection))
