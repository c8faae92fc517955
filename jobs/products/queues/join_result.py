"""The result of the join of queues with their log: figures, and the differences by queue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from jobs.lake.table_file import AddedFile
from jobs.store.log_ends import MAX_BYTES_PAST_LOG_END
from jobs.store.queue_ends import QueueEnd, QueueEnds
from jobs.store.queue_files import StoredQueue
from jobs.store.topics import TopicEvidence, TopicFate
from jobs.store.units import read_stored_units
from rmq_formats.consumequeue.dispatch import QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE


@unique
class DifferenceKind(StrEnum):
    """The kinds of differences; scripts rely on the values."""

    DANGLING = "dangling_unit"
    UNIT_OF_LOST_RECORD = "unit_of_lost_record"
    UNIT_OF_DAMAGED_RECORD = "unit_of_damaged_record"
    PAST_LOG_END = "past_log_end"
    WRONG_SIZE = "wrong_size"
    WRONG_TAGS_CODE = "wrong_tags_code"
    WRONG_BATCH_FIELD = "wrong_batch_field"
    FOREIGN = "unit_of_other_queue"
    UNIT_OF_HIDDEN_RECORD = "unit_of_hidden_record"
    DUPLICATE = "duplicate_unit"
    OUT_OF_ORDER = "out_of_order"
    MISPLACED = "misplaced_unit"
    MISSING = "missing_unit"
    MISSING_FILE = "missing_file"
    MISSING_QUEUE = "missing_queue"
    HOLE = "hole"
    BLANK_INSIDE = "blank_inside"
    BLANK_OF_LOST = "blank_of_lost_record"  # a repair leaves out what the log has lost
    CORRUPT = "corrupt_unit"
    RESTARTED = "queue_restarted"
    DROPPED_RECORD = "dropped_record"
    # Messages from before a queue restarted at 0.
    DELETED_TOPIC = "deleted_topic"  # the topic was deleted and created again
    QUEUE_LOST = "queue_lost_and_restarted"  # the topic was not deleted: the queue's directory was lost
    DELETED_OR_LOST_QUEUE = "deleted_or_lost_queue"  # deleted or lost: the evidence does not decide


_LOST = {DifferenceKind.UNIT_OF_LOST_RECORD, DifferenceKind.UNIT_OF_DAMAGED_RECORD, DifferenceKind.BLANK_OF_LOST}
_OF_OTHERS = {DifferenceKind.FOREIGN, DifferenceKind.UNIT_OF_HIDDEN_RECORD, DifferenceKind.DUPLICATE}
_OF_NO_RECORD = {DifferenceKind.DANGLING, DifferenceKind.FOREIGN, DifferenceKind.CORRUPT}
# The position does not have the unit of its record.
WRONG_POSITION_KINDS = _LOST | _OF_OTHERS | _OF_NO_RECORD | {
    DifferenceKind.PAST_LOG_END, DifferenceKind.MISSING_FILE, DifferenceKind.HOLE, DifferenceKind.BLANK_INSIDE,
}  # fmt: skip
# Not a fault of a queue or its file: the record is lost in the log, or its topic was deleted.
KINDS_WITHOUT_QUEUE_FAULT = _LOST | {DifferenceKind.DELETED_TOPIC, DifferenceKind.DELETED_OR_LOST_QUEUE}
# A record has no unit.
MISSING_UNIT_KINDS = {
    DifferenceKind.MISSING, DifferenceKind.MISSING_FILE, DifferenceKind.MISSING_QUEUE, DifferenceKind.DROPPED_RECORD,
    DifferenceKind.QUEUE_LOST,
}  # fmt: skip
# A unit points to a record, but differs from the unit that the record requires.
OVERWRITTEN_UNIT_KINDS = _OF_OTHERS | {
    DifferenceKind.WRONG_SIZE, DifferenceKind.WRONG_TAGS_CODE, DifferenceKind.WRONG_BATCH_FIELD,
    DifferenceKind.OUT_OF_ORDER,
}  # fmt: skip
# A unit points to a record that contradicts it; if only few units do, one changed bit of the record explains it.
_AGAINST_RECORD = _OF_OTHERS | {
    DifferenceKind.WRONG_TAGS_CODE, DifferenceKind.MISPLACED, DifferenceKind.RESTARTED,
}  # fmt: skip
KINDS_OF_EARLIER_QUEUES = {
    TopicFate.DELETED: DifferenceKind.DELETED_TOPIC,
    TopicFate.ALIVE: DifferenceKind.QUEUE_LOST,
    TopicFate.UNDECIDED: DifferenceKind.DELETED_OR_LOST_QUEUE,
}
# Up to this many consecutive differences are not merged, because each may be explained by its own record.
FEW_DIFFERENCES = 2


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """One difference, or several consecutive ones of the same kind."""

    kind: DifferenceKind
    queue: QueueName
    position: int  # the unit's position, or the expected one if it is missing
    found: str
    expected: str
    field: str = "unit"
    unit_count: int = 1
    shift: int = 0  # difference between the unit's position and its queue offset
    log_offset: int | None = None  # offset in the log to which the first difference refers

    @property
    def may_be_changed_record(self) -> bool:
        """Whether the cause may be a change of the record, in fields without a checksum, instead of the unit."""
        return self.kind in _AGAINST_RECORD and self.unit_count <= FEW_DIFFERENCES and self.log_offset is not None

    @property
    def run_key(self) -> tuple[DifferenceKind, QueueName, str, int]:
        """The key by which consecutive differences are merged."""
        return self.kind, self.queue, self.field, self.shift


def merge_differences(differences: Sequence[QueueDifference]) -> Iterator[QueueDifference]:
    """
    Yield differences by queue and position, with consecutive ones of the same kind merged.

    Differences of single records are not merged: each names its record.
    """
    run: list[QueueDifference] = []  # the first ones of a run
    times = 0
    for difference in sorted(differences, key=lambda item: (item.queue, item.kind, item.field, item.position)):
        if run and (difference.position != run[0].position + times or difference.run_key != run[0].run_key):
            yield from _merge_run(run, times)
            run, times = [], 0
        if len(run) <= FEW_DIFFERENCES:
            run.append(difference)
        times += difference.unit_count
    yield from _merge_run(run, times)


def _merge_run(run: Sequence[QueueDifference], times: int) -> Sequence[QueueDifference]:
    merged = [replace(one, unit_count=times) for one in run[:1]]
    return run if merged and merged[0].may_be_changed_record else merged


class UndispatchedRecords(NamedTuple):
    """Records of one queue with consecutive queue offsets that have no units yet."""

    queue: QueueName
    log_offset: int  # the log offset of the first record
    first_queue_offset: int  # the queue offset of the first record
    record_count: int


class QueueWithoutFiles(NamedTuple):
    """The expected units of a queue without files."""

    unit_count: int
    first_physical_offset: int
    last_physical_offset: int
    newest_ms: int = 0  # store time of their newest record


@dataclass(slots=True)
class QueueFigures:
    """The figures of some queues: a task that compares them with the log adds to these, and returns them."""

    expected: int = 0  # units that the records should have
    matched: int = 0
    misplaced: int = 0  # units that are not at the queue offset of their record
    expired: int = 0
    blanks: int = 0
    ahead: int = 0  # units newer than the log's end, of a store that was copied while it was written
    waiting_light_units: int = 0  # units of light queues that only RocksDB stores, and does not have yet
    wrong_fields: list[QueueDifference] = field(default_factory=list)  # wrong fields of units at the expected position
    differences: list[QueueDifference] = field(default_factory=list)  # all others
    queues_without_files: dict[QueueName, QueueWithoutFiles] = field(default_factory=dict)
    first_record_offsets: dict[QueueName, int] = field(default_factory=dict)  # offsets in the log, by queue
    processed_ends: dict[QueueName, int] = field(default_factory=dict)
    ends: dict[QueueName, int] = field(default_factory=dict)  # the position after the last meaningful unit
    probed_ends: dict[QueueName, QueueEnd] = field(default_factory=dict)  # of the queues that were not probed before
    row_files: list[AddedFile] = field(default_factory=list)  # files of rows
    undispatched_records: list[UndispatchedRecords] = field(default_factory=list)  # in log order


def combine_figures(parts: Sequence[QueueFigures]) -> QueueFigures:
    """Return the figures of all queues; no queue is in two *parts*, and differences are sorted by queue."""
    return QueueFigures(
        expected=sum(one.expected for one in parts),
        matched=sum(one.matched for one in parts),
        misplaced=sum(one.misplaced for one in parts),
        expired=sum(one.expired for one in parts),
        blanks=sum(one.blanks for one in parts),
        ahead=sum(one.ahead for one in parts),
        waiting_light_units=sum(one.waiting_light_units for one in parts),
        wrong_fields=sorted((found for one in parts for found in one.wrong_fields), key=attrgetter("queue")),
        differences=sorted((found for one in parts for found in one.differences), key=attrgetter("queue")),
        queues_without_files=dict(chain.from_iterable(one.queues_without_files.items() for one in parts)),
        first_record_offsets=dict(chain.from_iterable(one.first_record_offsets.items() for one in parts)),
        processed_ends=dict(chain.from_iterable(one.processed_ends.items() for one in parts)),
        ends=dict(chain.from_iterable(one.ends.items() for one in parts)),
        probed_ends=dict(chain.from_iterable(one.probed_ends.items() for one in parts)),
        row_files=[file for one in parts for file in one.row_files],
        undispatched_records=[found for one in parts for found in one.undispatched_records],
    )


@dataclass(frozen=True)
class JoinResult:
    """The result of joining a store, its new part, or some of its queues with the log."""

    figures: QueueFigures = field(default_factory=QueueFigures)
    queue_ends: QueueEnds = QueueEnds((), 0)  # noqa: RUF009 - a tuple; the queues as they were read
    topic_evidence: TopicEvidence = TopicEvidence()  # noqa: RUF009 - a tuple
    damaged_ranges: tuple[tuple[int, int], ...] = ()  # start and end of bytes without a record
    log_end: int = 0
    dispatched_offset: int = 0
    behind: int = 0  # bytes of the log that the dispatcher had not reached
    records_end: int | None = None  # the end of the last record whose units were joined; None without any

    @property
    def queues(self) -> tuple[StoredQueue, ...]:
        """The queues as they were read."""
        return self.queue_ends.queues

    @cached_property
    def differences(self) -> Sequence[QueueDifference]:
        """All differences: wrong fields by queue, then the others by queue."""
        return [*self.figures.wrong_fields, *self.figures.differences]

    @cached_property
    def restart_offsets(self) -> Mapping[str, int]:
        """The log offset at which the queues of a topic restarted at 0, by topic."""
        earlier = KINDS_OF_EARLIER_QUEUES.values()
        restarted = {one.queue.topic for one in self.differences if one.kind in earlier}
        offsets: dict[str, int] = {}
        for name, at in self.figures.first_record_offsets.items():
            if name.topic in restarted:
                offsets[name.topic] = min(at, offsets.get(name.topic, at))
        return offsets

    @cached_property
    def newest_ms(self) -> Mapping[str, int]:
        """The store time of the newest record of a topic's queues without files, by topic."""
        times: dict[str, int] = {}
        for name, lacking in self.figures.queues_without_files.items():
            times[name.topic] = max(lacking.newest_ms, times.get(name.topic, 0))
        return times

    def find_topic_fate(self, name: QueueName) -> TopicFate:
        """Return what happened to a queue without files; a topic that was recreated has earlier messages."""
        newest_ms = self.newest_ms[name.topic]
        if self.figures.queues_without_files[name].last_physical_offset < self.find_restart_offset(name.topic):
            return self.topic_evidence.fate_of_earlier(name.topic, newest_ms)
        return self.topic_evidence.fate(name.topic, newest_ms)

    def find_restart_offset(self, topic: str) -> int:
        """
        Return the log offset at which the queues of a topic may have begun again.

        If no queue of the topic has a message before that offset, the topic may have been recreated there. 0 if one of
        its queues begins with a unit of a deleted message, or later than at queue offset 0.
        """
        if topic in self.restart_offsets:
            return self.restart_offsets[topic]
        begins = []
        for queue in (one for one in self.queues if one.name.topic == topic):
            first = read_stored_units(queue, 0, 1)[0]
            if queue.first_unit_number or first["size"] == PRE_BLANK_SIZE:
                return 0
            if first["size"] > 0:
                begins.append(int(first["physical_offset"]))
        return max(min(begins, default=0), 0)

    def find_newest_offset_ahead(self) -> int | None:
        """Return the newest offset after the log's end to which last units of queues point; None if there is none."""
        starts = {queue.name: queue.first_unit_number for queue in self.queues}
        behind = [
            difference
            for difference in self.differences
            if difference.kind is DifferenceKind.PAST_LOG_END
            and difference.log_offset is not None
            and difference.position + difference.unit_count >= self.figures.ends[difference.queue]
            and difference.log_offset < self.log_end + MAX_BYTES_PAST_LOG_END
        ]
        # A queue without any unit in this log, or whose last unit in it points to no record, may belong to another log.
        # If no queue has a unit in it, the log is lost; a unit that points to the exact end of the log belongs to it.
        whole = {one.queue for one in behind if one.position <= starts[one.queue]}
        written = {name for name, start in starts.items() if self.figures.ends[name] > start}
        bad = {(one.queue, one.position + one.unit_count) for one in self.differences if one.kind in _OF_NO_RECORD}
        if not whole >= written:
            behind = [
                one
                for one in behind
                if one.log_offset == self.log_end or (one.queue not in whole and (one.queue, one.position) not in bad)
            ]
        return max((one.log_offset for one in behind if one.log_offset is not None), default=None)
