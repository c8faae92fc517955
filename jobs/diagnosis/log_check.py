"""
Finds, in one pass over a log, the records that are damaged or that contradict a checksum or their own bytes.

`RangeCheck` is a collector: it checks the records while a task reads the log for another purpose.

No checksum covers a store time; only an index entry repeats it, and a record without keys has none. If the clock was
set wrong, the following records have the wrong time as well. If only one record has an outlier time, a flipped bit is
the cause if it explains the value. Otherwise the cause is undecided: the clock may have been corrected before the next
record.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jobs.diagnosis import DoubtfulBytes, WalkedLog
from jobs.diagnosis.kinds import WRONG_BODY_CRC, WRONG_RECORD_CRC, WRONG_STORE_TIME, ZEROED_PROPERTIES
from jobs.store.chain import RangeOutcome, Results
from jobs.store.ranges import Range
from jobs.store.release import Writers
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.record import decode_record
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import FOREIGN_BYTES_REASON, Piece, PieceKind
from rmq_formats.detection import CLUSTER
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import PropertyParser, ends_in_unused_crc_field, may_end_in_complete_value, parse_properties

MAX_TIME_STEP_MS = 86_400_000  # ms: a day
_NEAR = 60_000  # ms by which the right time may be outside of its neighbors' times
_LOWEST_BIT = MAX_TIME_STEP_MS.bit_length() - 1
_KINDS = {
    kernels.WRONG_BODY_CRC: WRONG_BODY_CRC,
    kernels.WRONG_RECORD_CRC: WRONG_RECORD_CRC,
}


class ChangedRecord(NamedTuple):
    """A record that is framed correctly, but is not what a broker wrote, or may not be (the kind is then empty)."""

    offset: int
    size: int
    kind: str  # the kind of the finding


class ZeroEndedRecord(NamedTuple):
    """A record whose properties end in zeros: it was damaged, unless its release writes such records."""

    offset: int
    size: int
    ends_in_crc_field: bool  # one without a CRC
    ends_in_value: bool  # the zeros may belong to a producer's value
    is_text_of_client: bool  # the broker stored the client's properties unchanged, or with what it appends to a batch


_RECORD = np.dtype([("offset", np.int64), ("size", np.int64), ("time", np.int64)])
_NO_RECORDS: NDArray[np.void] = np.empty(0, _RECORD)


def _stray(records: NDArray[np.void]) -> Iterator[ChangedRecord]:
    """Yield records whose times are far from both neighbors'; the kind is empty if no changed bit explains that."""
    exact = records["time"].astype(np.float64)  # a difference of two 64-bit integers may not fit into one
    steps = np.abs(np.diff(exact)) > MAX_TIME_STEP_MS
    apart = np.abs(exact[2:] - exact[:-2]) > MAX_TIME_STEP_MS
    for at in np.flatnonzero(steps[:-1] & steps[1:] & ~apart).tolist():
        before, time, after = records["time"][at : at + 3].tolist()
        low, high = min(before, after) - _NEAR, max(before, after) + _NEAR
        flipped = (np.int64(time) ^ np.uint64(1 << bit).astype(np.int64) for bit in range(_LOWEST_BIT, 64))
        kind = WRONG_STORE_TIME if any(low <= one <= high for one in flipped) else ""
        yield ChangedRecord(int(records["offset"][at + 1]), int(records["size"][at + 1]), kind)


def find_stray_times(ranges: Sequence["RangeCheck"]) -> Iterator[list[ChangedRecord]]:
    """Yield the outlier times of each range of a log; the neighbors of those at its ends are in other ranges."""
    ends = [np.unique(np.concatenate([one.first_records, one.last_records])) for one in ranges]
    # The second record of a range and its last but one may not be adjacent: both are checked in their range.
    outer = {int(end["offset"][at]) for end in ends if end.size for at in (0, -1)}
    at_ends = {one.offset: one for one in _stray(np.concatenate([_NO_RECORDS, *ends])) if one.offset in outer}
    for one, end in zip(ranges, ends, strict=True):
        yield [*one.stray_records, *(at_ends[at] for at in end["offset"].tolist() if at in at_ends)]


@dataclass(slots=True)
class RangeCheck:
    """The damage in one range of the log, collected while a task reads the range."""

    record_count: int = 0
    damaged_pieces: list[Piece] = field(default_factory=list)
    wrong_records: list[ChangedRecord] = field(default_factory=list)  # records whose body does not match its CRC
    doubtful_records: list[ChangedRecord] = field(default_factory=list)  # complete for a broker, but changed since
    zero_ended_records: list[ZeroEndedRecord] = field(default_factory=list)
    undecided_ends: list[ChangedRecord] = field(default_factory=list)  # those that their release may have written
    with_separator: int = 0  # the number of records whose properties end with a separator
    without_separator: int = 0  # the number of records whose properties end in the last value
    crc_offsets: list[int] = field(default_factory=list)  # of the first and the last record with a CRC over all of it
    newest_timestamp: int = 0  # the latest store time
    doubtful_bytes: list[DoubtfulBytes] = field(default_factory=list)  # the damage, and ends of files
    # The store times at both ends of the range, of two records at most, and the outliers between them.
    first_records: NDArray[np.void] = field(default_factory=_NO_RECORDS.copy)
    last_records: NDArray[np.void] = field(default_factory=_NO_RECORDS.copy)
    stray_records: list[ChangedRecord] = field(default_factory=list)
    # Wrong store times: either the record was changed, or the broker's clock was wrong.
    undecided_times: list[ChangedRecord] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """The number of intact records."""
        return self.record_count - len(self.wrong_records)

    def add(self, item: RawRecords | Piece) -> None:
        """Check the next records, or note the bytes between them."""
        if isinstance(item, Piece):
            if item.kind is PieceKind.DAMAGE or item.reason == FOREIGN_BYTES_REASON:
                self.damaged_pieces.append(item)
                self._add_piece(item.offset, item.end)
            elif item.kind is PieceKind.BLANK:
                self._add_piece(item.offset, item.offset)
            return
        times = np.empty(item.positions.size, np.int64)
        kernels.read_store_timestamps(item.buffer, item.positions, times)
        self.newest_timestamp = max(self.newest_timestamp, int(times.max(initial=0)))
        self.add_times(item, times)
        self._check_records(item)
        self.record_count += int(item.positions.size)

    def add_times(self, group: RawRecords, times: Integers) -> None:
        """Compare the store times of the next records."""
        records = np.empty(times.size, _RECORD)
        records["offset"], records["size"], records["time"] = group.positions, group.sizes, times
        records["offset"] += group.base_offset
        self.first_records = np.concatenate([self.first_records, records[:2]])[:2]
        series = np.concatenate([self.last_records, records])
        self.stray_records += _stray(series)
        self.last_records = series[-2:].copy()

    def finish(self) -> Self:
        """Return the check itself."""
        return self

    def _check_records(self, item: RawRecords) -> None:
        numbers, kinds = np.empty((2, item.positions.size), np.int64)
        count, with_separator, without_separator, *with_crc = kernels.find_records_with_wrong_crc(
            item.buffer, item.positions, numbers, kinds
        )
        self.with_separator += with_separator
        self.without_separator += without_separator
        own = (item.base_offset + int(item.positions[number]) for number in with_crc if number >= 0)
        self.crc_offsets = [*self.crc_offsets[:1], *[*self.crc_offsets[1:], *own][-2:]]
        for number, kind in zip(numbers[:count].tolist(), kinds[:count].tolist(), strict=True):
            at, size = int(item.positions[number]), int(item.sizes[number])
            offset = item.base_offset + at
            if kind == kernels.TRAILING_ZEROS:
                properties = decode_record(item.buffer.data[at : at + size], 0, offset).properties_raw
                ends = ends_in_unused_crc_field(properties), may_end_in_complete_value(properties)
                is_text_of_client = CLUSTER not in parse_properties(properties, PropertyParser.SCAN)
                self.zero_ended_records.append(ZeroEndedRecord(offset, size, *ends, is_text_of_client))
                continue
            record = ChangedRecord(offset, size, _KINDS[kind])
            if kind == kernels.WRONG_BODY_CRC:
                self._add_piece(offset, offset + size, records_before=number)
                self.wrong_records.append(record)
            else:
                self.doubtful_records.append(record)

    def _add_piece(self, offset: int, end: int, records_before: int = 0) -> None:
        self.doubtful_bytes.append(DoubtfulBytes(offset, end, self.messages + records_before))


def new_range_check(_range: Range, _files: ExitStack) -> RangeCheck:
    """Begin the check of a range."""
    return RangeCheck()


def complete_checks(outcomes: Sequence[RangeOutcome[Results]], number: int, writers: Writers) -> list[RangeCheck]:
    """Return the checks of all ranges (the results of collector *number*), with records compared across ranges."""
    checks: list[RangeCheck] = [outcome.payload[number] for outcome in outcomes]
    _find_zeroed_properties(checks, writers)
    for check, found in zip(checks, find_stray_times(checks), strict=True):
        # Records whose damage another check has found.
        changed = {one.offset for one in (*check.wrong_records, *check.doubtful_records)}
        for stray in (one for one in found if one.offset not in changed):
            (check.doubtful_records if stray.kind else check.undecided_times).append(stray)
    return checks


def _find_zeroed_properties(checks: Sequence[RangeCheck], writers: Writers) -> None:
    """
    Note the records whose properties were overwritten with zeros: those that their release cannot have written.

    A record that the broker serialized is undecided if only some of its possible releases can have written it.
    If several releases may have written a record, or its client did (in a batch, and in all records up to 4.5.2),
    other records without a separator at their end show that this one may lack it as well. For the releases, it is
    enough that no record has a separator. Two such records of a client next to each other also show it: they are of
    one batch, and no damage overwrites the ends of both, but not the beginning of the second. If records before and
    after it have a CRC, the broker did not leave the field for it unused.
    """
    with_crc = [offset for check in checks for offset in check.crc_offsets]
    is_without_separator = any(check.without_separator for check in checks)
    is_with_separator = any(check.with_separator for check in checks)
    of_client = [
        one for check in checks for one in check.zero_ended_records if one.ends_in_value and one.is_text_of_client
    ]
    of_batch = {
        one.offset
        for first, second in pairwise(sorted(of_client))
        if first.offset + first.size == second.offset
        for one in (first, second)
    }
    for check in checks:
        for offset, size, ends_in_crc_field, ends_in_value, is_text_of_client in check.zero_ended_records:
            releases = writers.possible_releases_at(offset)
            is_unused_field = ends_in_crc_field and any(one.leaves_crc_field_unused for one in releases)
            if is_unused_field and not (with_crc and with_crc[0] < offset < with_crc[-1]):
                continue
            endings = {one.trailing_separator for one in releases}
            is_possible = False in endings and not is_with_separator
            is_seen = offset in of_batch or (is_without_separator and (False in endings or is_text_of_client))
            if ends_in_value and (endings == {False} or is_possible or is_seen):
                continue
            is_undecided = ends_in_value and False in endings and not is_text_of_client
            found = check.undecided_ends if is_undecided else check.doubtful_records
            found.append(ChangedRecord(offset, size, ZEROED_PROPERTIES))


def list_doubtful_ranges(checks: Sequence[RangeCheck], *, includes_undecided: bool = False) -> list[tuple[int, int]]:
    """Return the ranges of records that a broker accepts although they differ, or may differ, from the written ones."""
    undecided = [one for check in checks for one in check.undecided_ends] if includes_undecided else []
    changed = [*(one for check in checks for one in check.doubtful_records), *undecided]
    return [(one.offset, one.offset + one.size) for one in changed]


def summarize_walk(checks: Sequence[RangeCheck], log_end: int) -> WalkedLog:
    """Return the result of the pass over the log, in the form that the prediction of a start needs."""
    places: list[DoubtfulBytes] = []
    messages = 0
    for check in checks:
        places += (place._replace(messages_before=place.messages_before + messages) for place in check.doubtful_bytes)
        messages += check.messages
    return WalkedLog(log_end, messages, places, max((check.newest_timestamp for check in checks), default=0))
