"""
The records of a log as one pass sees them: which are damaged, and which a checksum or their own bytes contradict.

`LogCheck` is a collector: it looks at the records on their way to the task that reads the log anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jobs.diagnosis.broker_start import BadPlace, WalkedLog
from jobs.diagnosis.store_times import StoreTimes, StrayTime, stray_times
from jobs.lake.findings import WRONG_BODY, WRONG_RECORD, WRONG_STORE_TIME, ZEROED_PROPERTIES
from jobs.store.ranges import Range
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.scan import Records
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.properties import CRC_NAME, CRC_SIZE, INNER_MULTI_DISPATCH

_KINDS = {kernels.BODY_CRC: WRONG_BODY, kernels.RECORD_CRC: WRONG_RECORD, kernels.ZEROS: ZEROED_PROPERTIES}


class ChangedRecord(NamedTuple):
    """A record that is framed soundly, and is not what a broker wrote."""

    offset: int
    size: int
    kind: str  # of the finding


@dataclass(slots=True)
class RangeCheck:
    """The damage in one range of the log, noted while its pieces pass."""

    records: int = 0
    damaged: list[Piece] = field(default_factory=list)
    wrong: list[ChangedRecord] = field(default_factory=list)  # of these the body has another CRC
    doubtful: list[ChangedRecord] = field(
        default_factory=list
    )  # complete for a broker, but changed since it was written
    newest_timestamp: int = 0  # the latest store time
    places: list[BadPlace] = field(default_factory=list)  # the damage, and ends of files, with whole messages before
    times: StoreTimes = field(default_factory=StoreTimes)
    undecided: list[StrayTime] = field(default_factory=list)  # of a changed record, or of a clock

    @property
    def messages(self) -> int:
        """How many records are whole."""
        return self.records - len(self.wrong)

    def watch(self, pieces: Iterator[Records | Piece]) -> Iterator[Records | Piece]:
        """Yield *pieces*, and look at each on its way."""
        for item in pieces:
            if isinstance(item, Piece):
                if item.kind is PieceKind.DAMAGE:
                    self.damaged.append(item)
                    self._note(item.offset, item.end)
                elif item.kind is PieceKind.BLANK:
                    self._note(item.offset, item.offset)
            else:
                times = np.empty(item.positions.size, np.int64)
                kernels.store_timestamps(item.buffer, item.positions, times)
                self.newest_timestamp = max(self.newest_timestamp, int(times.max(initial=0)))
                self.times.add(item, times)
                self._check_records(item)
                self.records += int(item.positions.size)
            yield item

    def _check_records(self, item: Records) -> None:
        numbers, kinds = np.empty((2, item.positions.size), np.int64)
        count = kernels.find_wrong_records(item.buffer, item.positions, numbers, kinds)
        for number, kind in zip(numbers[:count].tolist(), kinds[:count].tolist(), strict=True):
            at, size = int(item.positions[number]), int(item.sizes[number])
            record = ChangedRecord(item.base_offset + at, size, _KINDS[kind])
            if kind == kernels.BODY_CRC:
                self._note(record.offset, record.offset + size, records_before=number)
                self.wrong.append(record)
            elif kind == kernels.RECORD_CRC or not _has_unused_room(item, at, size):
                self.doubtful.append(record)

    def add_stray_times(self, found: Sequence[StrayTime]) -> None:
        """Note store times that leave those around them, of records that nothing else shows to be changed."""
        changed = {one.offset for one in (*self.wrong, *self.doubtful)}
        for stray in found:
            if stray.record.offset in changed:
                continue
            if stray.right is None:
                self.undecided.append(stray)
            else:
                self.doubtful.append(ChangedRecord(stray.record.offset, stray.record.size, WRONG_STORE_TIME))

    def _note(self, offset: int, end: int, records_before: int = 0) -> None:
        self.places.append(BadPlace(offset, end, self.messages + records_before))


def check_range(_range: Range, pieces: Iterator[Records | Piece]) -> None:
    """Consume the range; only collectors use it."""
    for _ in pieces:
        pass


class LogCheck:
    """Collects the damage of the log during the first pass over it."""

    of_range = RangeCheck

    def __init__(self) -> None:
        self.checks: list[RangeCheck] = []
        self.is_complete = False

    @property
    def doubtful(self) -> list[tuple[int, int]]:
        """Begin and end of records that a broker accepts although they are not as it wrote them."""
        return [(one.offset, one.offset + one.size) for check in self.checks for one in check.doubtful]

    def take(self, collected: Sequence[RangeCheck]) -> None:
        """Take the checks of all ranges, and compare store times across them."""
        self.checks, self.is_complete = list(collected), True
        for check, stray in zip(self.checks, stray_times([one.times for one in self.checks]), strict=True):
            check.add_stray_times(stray)


def walked_log(checks: Sequence[RangeCheck], log_end: int) -> WalkedLog:
    """Return the result of the pass over the log, in the form that the prediction of a start needs."""
    places: list[BadPlace] = []
    messages = 0
    for check in checks:
        places += (place._replace(sound_before=place.sound_before + messages) for place in check.places)
        messages += check.messages
    return WalkedLog(log_end, messages, places, max((check.newest_timestamp for check in checks), default=0))


def _has_unused_room(group: Records, at: int, size: int) -> bool:
    """Return whether zeros are the room of a CRC that 5.2.0 and 5.3.0 leave in records of several queues."""
    record = group.buffer[at : at + size].tobytes()
    is_room = INNER_MULTI_DISPATCH.encode() in record and any(record[-CRC_SIZE - 1 : -CRC_SIZE])
    return is_room and CRC_NAME.encode() not in group.buffer.tobytes()
