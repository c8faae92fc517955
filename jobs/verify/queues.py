"""
A store's queues, held against its log.

The join tells which units and records do not fit. This module adds what only the files tell (their names, their sizes,
what stands behind the last unit), what the broker's configuration says about the queues, and the words.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from time import sleep
from typing import NamedTuple

import numpy as np

from jobs.lake.findings import Finding
from jobs.products.queues.differences import Difference, DifferenceKind
from jobs.products.queues.join import Joined, join
from jobs.products.queues.settings import consumer_offsets, delay_offsets, has_rocksdb_queues, is_closed
from jobs.store.queue_files import QueueFile, StoredQueue, plain_file_size
from jobs.store.ranges import DEFAULT_RANGE_SIZE
from jobs.store.store import Store
from jobs.store.units import units_of
from jobs.store.workers import Workers
from jobs.verify.findings import PartReport
from rmq_formats.consumequeue.unit import SCHEDULE_TOPIC, QueueKind, QueueName, QueueRules
from rmq_formats.store import FileKind, name_of_offset

PART = "queues"
WRONG_FILE_SIZE = "wrong_file_size"
WRONG_FILE_NAME = "wrong_file_name"
UNEXPECTED_FILE = "unexpected_file"
TAIL_NOT_ZERO = "tail_not_zero"
CONSUMER_BEYOND = "consumer_offset_behind_queue"
DELAY_BEYOND = "delay_offset_behind_queue"

_CAUSES = {
    DifferenceKind.DANGLING: "the unit was overwritten, or the queue is of another log; consumers skip this place",
    DifferenceKind.DAMAGED_RECORD: "the log is damaged there; the unit shows where the lost record began",
    DifferenceKind.BEHIND_LOG: "the log lost its end after the unit was written, or the queue is of a newer copy",
    DifferenceKind.WRONG_SIZE: "the unit was overwritten in part; a consumer gets no message, or half of one",
    DifferenceKind.WRONG_TAGS_CODE: "it is the hash of another text, or messageDelayLevel is another: "
    "filtering by tags skips the message, a delayed one comes at another time",
    DifferenceKind.WRONG_BATCH_FIELD: "the unit was overwritten in part; consumers count the batch wrongly",
    DifferenceKind.FOREIGN: "a file of another queue was copied here, or the unit was overwritten",
    DifferenceKind.HIDDEN_RECORD: "the record is a prepared or rolled back message, which no consumer may see",
    DifferenceKind.DUPLICATE: "the dispatcher ran twice over this part of the log; consumers get the message twice",
    DifferenceKind.OUT_OF_ORDER: "units were written in another order than the log's",
    DifferenceKind.MISPLACED: "the broker appended behind a gap in the queue offsets; every later message is found "
    "under another number than its own",
    DifferenceKind.MISSING: "the unit was lost, or never written; the message is never consumed",
    DifferenceKind.MISSING_FILE: "a file of the queue was deleted; its messages are never consumed",
    DifferenceKind.MISSING_QUEUE: "the queue's folder was deleted; a broker makes it anew at its next start",
    DifferenceKind.HOLE: "bytes were lost inside the file; a broker that starts now takes the queue for ended here",
    DifferenceKind.BLANK_INSIDE: "a queue was begun anew in front of messages that are still in the log",
    DifferenceKind.CORRUPT: "the unit was overwritten; a broker that starts now takes the queue for ended here",
    DifferenceKind.RESTARTED: "the topic was deleted and made again: its queue offsets began at 0 once more",
    DifferenceKind.DROPPED: "the broker dropped the record silently, for its queue offset is below the queue's end",
}


def verify_queues(
    workers: Workers, store: Store, rules: QueueRules, range_size: int = DEFAULT_RANGE_SIZE
) -> PartReport:
    """Return what is wrong with the queues of a store."""
    if has_rocksdb_queues(store):
        return PartReport(notes=["the queues are in RocksDB (storeType=defaultRocksDB): they were not looked at"])
    # Before the queues are looked at: a consumer may go on meanwhile.
    progress = [*consumer_offsets(store)]
    delays = [*delay_offsets(store)]
    joined = join(workers, store, rules, range_size)
    queues = {queue.name: queue for queue in joined.queues}
    files = list(_file_findings(store, list(queues.values())))
    wrong_sizes = {finding.file for finding in files if finding.kind == WRONG_FILE_SIZE}
    size = plain_file_size(store)
    units = [_finding(queues[difference.queue], difference, size) for difference in joined.differences]
    tails = _tail_findings(workers, store, [(queue, joined.ends[name]) for name, queue in queues.items()])
    report = PartReport(
        [
            *files,
            *(finding for finding in units if finding.file not in wrong_sizes),
            *_missing_queues(joined),
            *tails,
            *_consumer_findings(progress, delays, queues, joined),
        ],
        numbers={
            "queues": len(queues),
            "records_dispatched_to": joined.dispatched,
            "behind": joined.behind,
            "expected": joined.expected,
            "matched": joined.matched,
            "misplaced": joined.misplaced,
            "expired": joined.expired,
            "blanks": joined.blanks,
            "ahead": joined.ahead,
            "damaged_bytes": sum(size for _, size in joined.damaged),
        },
    )
    report.notes = list(_notes(joined))
    return report


def _notes(joined: Joined) -> Iterator[str]:
    if joined.behind:
        yield f"{joined.behind} bytes of the log had no units yet when the queues were looked at"
    if joined.ahead:
        yield f"{joined.ahead} units are newer than the log: it was copied before them"


def _finding(queue: StoredQueue, difference: Difference, file_size: int) -> Finding:
    position = difference.position * queue.unit_size
    file = queue.file_at(difference.position)
    base = file.base_offset if file else position // file_size * file_size
    is_field = difference.field != "unit"
    offset = position - base + (queue.name.kind.layout.offset(difference.field) if is_field else 0)
    return Finding(
        PART,
        difference.kind.value,
        f"{queue.name.path}/{name_of_offset(base)}",
        None if difference.kind is DifferenceKind.MISSING_FILE else offset,
        difference.field,
        difference.found,
        difference.expected,
        _CAUSES[difference.kind],
        difference.times,
    )


def _missing_queues(joined: Joined) -> Iterator[Finding]:
    for name, count in sorted(joined.without_queue.items()):
        yield Finding(
            PART,
            DifferenceKind.MISSING_QUEUE.value,
            name.path,
            None,
            "files",
            "none",
            f"{count} units, the first of offset {joined.first_without[name]}",
            _CAUSES[DifferenceKind.MISSING_QUEUE],
        )


def _file_findings(store: Store, queues: Sequence[StoredQueue]) -> Iterator[Finding]:
    sizes: dict[QueueKind, dict[int, int]] = {}
    for queue in queues:
        counts = sizes.setdefault(queue.name.kind, {})
        for file in queue.files:
            counts[file.size] = counts.get(file.size, 0) + 1
    usual = {kind: max(counts, key=lambda size: (counts[size], size)) for kind, counts in sizes.items()}
    for queue in queues:
        for file in queue.files:
            # A broker makes a file first and gives it its size then: one that was killed leaves an empty last file.
            if file.size or file != queue.files[-1] or is_closed(store):
                yield from _size_and_name(queue, file, usual[queue.name.kind])
    for stored in store.other_files:
        if stored.about.kind is FileKind.UNKNOWN and stored.about.path.startswith(
            tuple(f"{kind}/" for kind in QueueKind)
        ):
            cause = "no broker makes such a name; one that starts now may refuse to load the queue"
            yield Finding(
                PART,
                UNEXPECTED_FILE,
                stored.about.path,
                None,
                "name",
                stored.about.path.rpartition("/")[2],
                "20 digits",
                cause,
            )


def _size_and_name(queue: StoredQueue, file: QueueFile, usual: int) -> Iterator[Finding]:
    path = f"{queue.name.path}/{name_of_offset(file.base_offset)}"
    if file.size != usual:
        cause = "the file was cut or lengthened, or is of another configuration; a broker refuses to load it"
        yield Finding(PART, WRONG_FILE_SIZE, path, min(file.size, usual), "size", str(file.size), str(usual), cause)
    if usual and file.base_offset % usual:
        wanted = name_of_offset(file.base_offset // usual * usual)
        cause = "the file was renamed, or is of another configuration"
        yield Finding(PART, WRONG_FILE_NAME, path, None, "name", name_of_offset(file.base_offset), wanted, cause)


# --- what stands behind the last unit --------------------------------------------------------------------------------

_TAILS_A_TASK = 64
_READ_FIRST = 256  # units; behind them is a hole in the file, mostly
_READ_AT_ONCE = 1 << 15
_LOOKS = 5
_PAUSE_S = 0.02


class _Tail(NamedTuple):
    name: QueueName
    position: int  # of the unit
    byte: int  # in it
    found: str


def _tail_findings(workers: Workers, store: Store, queues: Sequence[tuple[StoredQueue, int]]) -> Iterator[Finding]:
    parts = [queues[at : at + _TAILS_A_TASK] for at in range(0, len(queues), _TAILS_A_TASK)]
    looks = 1 if is_closed(store) else _LOOKS
    by_name = {queue.name: queue for queue, _ in queues}
    for part in workers.map(parts, partial(_tails, looks=looks)):
        for tail in part:
            queue = by_name[tail.name]
            file = queue.file_at(tail.position)
            base = file.base_offset if file else 0
            yield Finding(
                PART,
                TAIL_NOT_ZERO,
                f"{queue.name.path}/{name_of_offset(base)}",
                tail.position * queue.unit_size - base + tail.byte,
                "tail",
                tail.found,
                "zeros",
                "a recovery moved the queue's end back and left old units, or something else wrote to the file",
            )


def _tails(queues: Sequence[tuple[StoredQueue, int]], *, looks: int) -> list[_Tail]:
    return [tail for queue, end in queues if (tail := _tail(queue, end, looks)) is not None]


def _tail(queue: StoredQueue, end: int, looks: int) -> _Tail | None:
    """Return what is not zero behind the queue's end; what a broker appends while we look is no such thing."""
    found: _Tail | None = None
    for look in range(looks):
        end = max(end, queue.written_end(end)) if looks > 1 else end
        found = _first_not_zero(queue, end)
        if found is None:
            return None
        if look + 1 < looks:
            sleep(_PAUSE_S)
    return found


def _first_not_zero(queue: StoredQueue, end: int) -> _Tail | None:
    position, some = end, _READ_FIRST
    while (position := queue.next_written(position)) < queue.capacity:
        data = units_of(queue, position, min(position + some, queue.capacity)).view(np.uint8)
        if data.any():
            at = int(np.flatnonzero(data)[0])
            text = bytes(data[at : at + queue.unit_size]).hex()
            return _Tail(queue.name, position + at // queue.unit_size, at % queue.unit_size, text)
        position += some
        some = min(some * 2, _READ_AT_ONCE)
    return None


# --- what the broker has noted down ----------------------------------------------------------------------------------


def _consumer_findings(
    progress: Sequence[tuple[str, str, str, int, int]],
    delays: Sequence[tuple[int, int]],
    queues: dict[QueueName, StoredQueue],
    joined: Joined,
) -> Iterator[Finding]:
    for file, group, topic, queue_id, offset in progress:
        end = _end(topic, queue_id, queues, joined)
        if end is not None and offset > end:
            cause = "the queue was cut or made anew after the group had read it: the group skips what comes next"
            place = f"{topic}@{group} queue {queue_id}"
            yield Finding(PART, CONSUMER_BEYOND, f"config/{file}", None, place, str(offset), f"at most {end}", cause)
    for queue_id, offset in delays:
        end = _end(SCHEDULE_TOPIC, queue_id, queues, joined)
        if end is not None and offset > end:
            cause = "the queue was cut or made anew: delayed messages of this level are not delivered"
            place = f"level {queue_id + 1}"
            yield Finding(
                PART, DELAY_BEYOND, "config/delayOffset.json", None, place, str(offset), f"at most {end}", cause
            )


def _end(topic: str, queue_id: int, queues: dict[QueueName, StoredQueue], joined: Joined) -> int | None:
    """Return the number that a queue's next message gets; None for a queue that has no files."""
    plain = QueueName(QueueKind.PLAIN, topic, queue_id)
    if plain in queues:
        return joined.ends[plain]
    batch = queues.get(QueueName(QueueKind.BATCH, topic, queue_id))
    end = joined.ends[batch.name] if batch else 0
    for unit in islice(units_of(batch, end - 1, end) if batch and end else (), 1):
        return int(unit["base_offset"]) + int(unit["batch_count"])
    return None
