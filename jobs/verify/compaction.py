"""
Verifies the compacted logs of a store: each with itself, with its units, and with the broker's own log.

A broker copies each message of a compacted topic that has a key, and drops the copy when a later message with the same
key replaces it. A copy differs from its record only in its place. It cannot be compared if retention has deleted the
record. Whether all messages were copied cannot be checked, because a topic may have become compacted later.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from jobs.console.amounts import count_text
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import QUEUES, Finding
from jobs.diagnosis.log_check import RangeCheck
from jobs.storage.model import Reader
from jobs.store.queue_files import StoredQueue
from jobs.store.store import Segment, Store, StoredFile, relist_store
from jobs.store.units import Units, is_of_deleted_file, is_written, read_stored_units
from jobs.store.workers import Workers
from jobs.verify import PartReport
from jobs.verify.log import WRONG_BYTES, check_log_of_queue, findings_on_foreign_records, findings_on_records
from rmq_formats.arrays import slices_between_cuts
from rmq_formats.commitlog.kernels import QUEUE_OFFSET_AT, find_differing_copies
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.consumequeue.build import UNIT_TYPES
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName, UnitRules
from rmq_formats.errors import skip_lost_file
from rmq_formats.kernels.integers import Bytes, Integers
from rmq_formats.store import FileKind

_UNITS_AT_ONCE = 1 << 12
_WINDOW = 1 << 20  # bytes of a log that are read at a time
_ATTEMPTS = 2  # while a broker is at work it may replace files
_NOT_REBUILT = "brokers do not rebuild compacted logs; the messages are in the CommitLog until retention deletes them"
_FIELDS = {"base_offset": "queue_offset"} | {  # fields of a unit, and the fields of a record
    name: name for name in ("physical_offset", "size", "tags_code", "store_timestamp")
}


class _CompactedFile(NamedTuple):
    """A file of a queue's compacted log and the file of its units; a complete store has both or neither."""

    topic: str
    queue_id: int
    name: str
    log: StoredFile | None
    units: StoredFile | None
    original: StoredQueue | None  # the queue of the broker's own log

    def store(self, store: Store) -> Store:
        """Return the log's file as a store of one segment: every file may end with zeros, not only the newest."""
        if self.log is None:
            return Store(store.root, storage=store.storage)
        segment = Segment(self.log.location, self.log.base_offset, self.log.size, self.log.end)
        return Store(store.root, (segment,), storage=store.storage)

    def queue(self, store: Store) -> StoredQueue:
        """Return its units as a queue that begins here; each unit states the number of its message."""
        units = self.units
        files = () if units is None else (units._replace(path_facts=units.path_facts._replace(base_offset=0)),)
        return StoredQueue(QueueName(QueueKind.BATCH, self.topic, self.queue_id), files, store.storage.open)


# The findings on a file, the numbers of its copies, of compared copies and of those without a unit yet, and the first
# and the last number of a message in its queue; None without a message.
_Verified = tuple[list[Finding], Counter[str], tuple[int, int] | None]


def verify_compacted_logs(
    part: PartReport, store: Store, queues: Sequence[StoredQueue], workers: Workers, rules: UnitRules
) -> None:
    """Verify the compacted logs, whose originals are in *queues*; add findings and number of messages to the part."""
    files = _compacted_files(store, queues)
    # A running broker may be replacing files.
    if not store.has_clean_shutdown and not all(file.log and file.units for file in files):
        files = _compacted_files(relist_store(store), queues)
    if not files:
        return
    bare = Store(store.root, store.segments, storage=store.storage)  # other files need not travel to tasks
    verify = partial(_verify, store=bare, rules=rules, is_closed=store.has_clean_shutdown)
    verified = workers.map(files, verify, "verifying compacted logs")
    by_queue = [list(some) for _, some in groupby(zip(files, verified, strict=True), key=lambda pair: pair[0][:2])]
    part.findings += chain.from_iterable(_across(queue, store) for queue in by_queue)
    counts = sum((of_file for _, of_file, _ in verified), Counter[str]())
    part.notes.append(
        f"compacted logs of {count_text(len(by_queue), 'queue')} have {count_text(counts['copies'], 'message')}; "
        f"{counts['compared']:,} could be compared with the log"
    )
    if counts["behind"]:
        part.notes.append(f"{count_text(counts['behind'], 'message')} of compacted logs had no unit yet")


def _compacted_files(store: Store, queues: Sequence[StoredQueue]) -> list[_CompactedFile]:
    """Return the files of all compacted logs, by queue and name."""
    logs, units = (
        {_place(file): file for file in store.other_files_of_kind(kind)}
        for kind in (FileKind.COMPACTION_LOG, FileKind.COMPACTION_QUEUE)
    )
    places = sorted({*logs, *units})
    originals = {queue.name[1:]: queue for queue in queues if not queue.is_batch}
    return [_CompactedFile(*place, logs.get(place), units.get(place), originals.get(place[:2])) for place in places]


def _place(file: StoredFile) -> tuple[str, int, str]:
    *_, topic, queue_id, name = file.path_facts.path.split("/")
    return topic, int(queue_id), name


def _across(files: Sequence[tuple[_CompactedFile, _Verified]], store: Store) -> Iterator[Finding]:
    before: int | None = None
    for file, (findings, _, numbers) in files:
        yield from findings
        if numbers is None:
            continue
        first, last = numbers
        if before is not None and first <= before:
            start = store.path_below_root(file.log and file.log.location), 0, "queue offset"
            cause = "the file is from an earlier state of the log, or a record changed after the broker wrote it"
            yield Finding(QUEUES, kinds.COMPACTED_OUT_OF_ORDER, *start, str(first), f"more than {before}", cause)
        before = last


def _verify(file: _CompactedFile, *, store: Store, rules: UnitRules, is_closed: bool) -> _Verified:
    """Verify a file, again if a running broker may have replaced it meanwhile; a deleted file has no findings."""
    nothing: _Verified = [], Counter(), None
    verified = nothing
    for _ in range(1 if is_closed else _ATTEMPTS):
        try:
            verified = _verify_file(file, store, rules, is_closed=is_closed)
        except FileNotFoundError:
            return nothing
        if not verified[0]:
            break
    return verified


def _verify_file(file: _CompactedFile, store: Store, rules: UnitRules, *, is_closed: bool) -> _Verified:
    if file.log is None or file.units is None:
        there, lacking = file.log or file.units, "compactionCq" if file.log else "compactionLog"
        alone = store.path_below_root(there and there.location), None, "file"
        cause = (
            "this file's counterpart was lost, or the broker was killed while it replaced both; the broker does not "
            f"start in this state; {_NOT_REBUILT}"
        )
        expected = f"a file of the same name in {lacking}"
        return (
            [Finding(QUEUES, kinds.DAMAGED_COMPACTION, *alone, "has no counterpart", expected, cause)],
            Counter(),
            None,
        )
    queue, most = file.queue(store), file.log.size // MIN_RECORD_SIZE + 1
    # The units are read before the log, so that records without a unit count as lag.
    units = read_stored_units(queue, 0, min(queue.capacity_end, most))
    units = units[: np.flatnonzero(is_written(units)).max(initial=-1) + 1]
    log = file.store(store)
    checks, made, _ = check_log_of_queue(log, rules, (file.topic, file.queue_id))
    findings = list(_of_records(file, log, checks, made))
    behind = 0
    if not findings:  # units of damaged records follow from the damage
        found_in_units, behind = _compared_units(file, store, units, made, is_closed=is_closed)
        findings += found_in_units
    wrong = [one.offset for check in checks for one in check.wrong_records]
    whole = made[~np.isin(made["physical_offset"], np.array(wrong, np.int64))]
    compared, others = _other_copies(file.original, store, log.segments[0], whole)
    numbers = (int(made["queue_offset"].min()), int(made["queue_offset"].max())) if made.size else None
    return [*findings, *others], Counter(copies=made.size, compared=compared, behind=behind), numbers


def _of_records(file: _CompactedFile, log: Store, checks: Sequence[RangeCheck], made: Units) -> Iterator[Finding]:
    yield from map(_as_damage, findings_on_records(log, checks)[0])
    foreign = sum(check.record_count for check in checks) - made.size
    queue, cause = f"{file.topic}/{file.queue_id}", "the file belongs to another queue"
    yield from findings_on_foreign_records(log, foreign, kinds.COMPACTED_FOREIGN_RECORD, queue, cause)
    numbers = made["queue_offset"]
    falls = np.flatnonzero(np.diff(numbers) <= 0)
    if falls.size:
        at = int(falls[0]) + 1
        name = log.path_below_root(log.segments[0].location)
        place = name, int(made["physical_offset"][at]) - log.start_offset, "queue offset"
        found, expected = str(numbers[at]), f"more than {numbers[at - 1]}"
        cause = "a record changed after the broker wrote it"
        yield Finding(QUEUES, kinds.COMPACTED_OUT_OF_ORDER, *place, found, expected, cause, int(falls.size))


def _as_damage(finding: Finding) -> Finding:
    """Return the finding as damage of the compacted log, without its offset, which is not one of the broker's log."""
    cause = f"{finding.cause.removesuffix(WRONG_BYTES)}; {_NOT_REBUILT}"
    return finding._replace(part=QUEUES, kind=kinds.DAMAGED_COMPACTION, cause=cause, log_offset=None)


def _compared_units(
    file: _CompactedFile, store: Store, units: Units, made: Units, *, is_closed: bool
) -> tuple[list[Finding], int]:
    """Return the findings on a file's units, and the number of records that have no unit yet."""
    count = min(units.size, made.size)
    own = {name: made[of_record] for name, of_record in _FIELDS.items()} | {"batch_count": np.ones(made.size, np.int64)}
    wrong = np.logical_or.reduce([units[name][:count] != wanted[:count] for name, wanted in own.items()])
    places = np.flatnonzero(wrong)
    times = places.size + max(units.size - made.size, 0)
    lacking = made.size - units.size
    at = int(places[0]) if places.size else count
    if not times and (lacking <= 0 or not is_closed):
        return [], max(lacking, 0)
    found, expected = (
        ", ".join(f"{name} {one[name][at]}" for name in own) if at < size else ""
        for one, size in ((units, units.size), (own, made.size))
    )
    cause = "the unit or its record changed after the broker wrote it"
    if not times:
        cause = (
            "a broker that is shut down cleanly has written all units, so the file was truncated or overwritten "
            "afterwards"
        )
    elif not places.size:
        cause = "the compacted log has no record there: it lost records, or the unit changed after the broker wrote it"
    place = store.path_below_root(file.units and file.units.location), at * UNIT_TYPES[QueueKind.BATCH].itemsize
    values = f"unit {at}", found or "missing", expected
    return [Finding(QUEUES, kinds.COMPACTED_UNIT_DIFFERS, *place, *values, cause, times or lacking)], 0


def _other_copies(queue: StoredQueue | None, store: Store, file: Segment, copies: Units) -> tuple[int, list[Finding]]:
    """Compare a file's records with the originals; return their number, and a finding if any of them differ."""
    if queue is None or not store.segments:
        return 0, []
    numbers, offsets, segments = _originals(store, queue, copies)
    chosen = copies[numbers]
    places = chosen["physical_offset"].astype(np.int64) - file.base_offset
    sizes = chosen["size"].astype(np.int64)
    # Copies are compared in runs whose records ascend within one window of one segment: one read serves each side.
    cuts = (np.diff(segments) != 0) | (np.diff(offsets) <= 0)
    cuts |= (np.diff(offsets // _WINDOW) != 0) | (np.diff(places // _WINDOW) != 0)
    count, others = 0, list[int]()
    with store.open(file) as copied:
        for some in slices_between_cuts(places.size, cuts):
            segment = store.segments[int(segments[some.start])]
            at = offsets[some] - segment.base_offset
            records = _read(store, segment, at, sizes[some])
            if records is None:
                continue
            in_records, in_part = at - at[0], places[some] - places[some].min()
            # A damaged queue points to other records; it has its own finding.
            known = np.flatnonzero(_queue_offsets(records, in_records) == chosen["queue_offset"][some])
            wrong = np.empty(known.size, np.int64)
            part = _bytes(copied, places[some], sizes[some])
            found = find_differing_copies(records, in_records[known], part, in_part[known], sizes[some][known], wrong)
            count += known.size
            others += (some.start + known[wrong[:found]]).tolist()
    if not others:
        return count, []
    copy, offset = chosen[others[0]], int(offsets[others[0]])
    place = store.path_below_root(file.location), int(copy["physical_offset"]) - file.base_offset
    what = (
        f"record of queue offset {copy['queue_offset']}",
        "different bytes",
        f"the bytes of the log at offset {offset}",
    )
    cause = "one of the two records changed after the broker wrote it"
    return count, [Finding(QUEUES, kinds.COMPACTED_RECORD_DIFFERS, *place, *what, cause, len(others), offset)]


def _originals(store: Store, queue: StoredQueue, copies: Units) -> tuple[Integers, Integers, Integers]:
    """Return the number, the record's offset and its segment of each copy whose original still exists."""
    numbers = np.flatnonzero(
        (copies["queue_offset"] >= queue.first_unit_number) & (copies["queue_offset"] < queue.capacity_end)
    )
    positions = copies["queue_offset"][numbers].astype(np.int64)
    offsets = np.full(positions.size, -1, np.int64)
    for some in slices_between_cuts(positions.size, np.diff(positions // _UNITS_AT_ONCE) != 0):
        start, stop = int(positions[some].min()), int(positions[some].max()) + 1
        units = read_stored_units(queue, start, stop)[positions[some] - start]
        offsets[some] = np.where(is_written(units) & ~is_of_deleted_file(units), units["physical_offset"], -1)
    starts = np.array([segment.base_offset for segment in store.segments], np.int64)
    ends = np.array([segment.base_offset + segment.readable_bytes for segment in store.segments], np.int64)
    segments = np.searchsorted(starts, offsets, "right") - 1
    is_there = (segments >= 0) & (offsets + copies["size"][numbers] <= ends[np.maximum(segments, 0)])
    return numbers[is_there], offsets[is_there], segments[is_there]


def _read(store: Store, segment: Segment, positions: Integers, sizes: Integers) -> Bytes | None:
    """Return a segment's bytes from the first to the last of some records; None if it is deleted or unreadable."""
    with skip_lost_file(), store.open(segment) as file:
        return _bytes(file, positions, sizes)
    return None


def _bytes(file: Reader, positions: Integers, sizes: Integers) -> Bytes:
    """Return a file's bytes from the first to the last of some records, zeros after its end."""
    start, end = int(positions.min()), int((positions + sizes).max())
    data = np.frombuffer(file.read(start, end - start), np.uint8)
    return data if data.size == end - start else np.pad(data, (0, end - start - data.size))


def _queue_offsets(records: Bytes, positions: Integers) -> Integers:
    taken = records[positions[:, None] + QUEUE_OFFSET_AT + np.arange(8)]
    return np.ascontiguousarray(taken).view(">i8")[:, 0].astype(np.int64)
