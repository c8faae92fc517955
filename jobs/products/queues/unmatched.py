"""
What is left of a queue once its healthy units are matched: units at no address, addresses without unit.

Each unit that is left is looked for among the records that lack theirs, then among all records of the log. A unit is
*expired* when its record was deleted, a *blank* stands before a queue's first message; everything else is a difference.
Records that still lack a unit at the end are missing one, unless the place where it should be is told of already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.products.queues.differences import Difference, DifferenceKind, merged
from jobs.products.queues.records_at import DAMAGED, GONE, RecordAt, Resolved
from jobs.products.queues.rows import RowBlock, Status
from jobs.store.queue_files import StoredQueue, chunks
from jobs.store.tag_extensions import stored_tags_codes
from jobs.store.units import Units, is_gone, is_written, units_of
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import QueueKind

_AT_ONCE = 1 << 16
_BAD = frozenset(
    {
        DifferenceKind.DANGLING,
        DifferenceKind.DAMAGED_RECORD,
        DifferenceKind.BEHIND_LOG,
        DifferenceKind.FOREIGN,
        DifferenceKind.HIDDEN_RECORD,
        DifferenceKind.DUPLICATE,
        DifferenceKind.CORRUPT,
        DifferenceKind.BLANK_INSIDE,
        DifferenceKind.HOLE,
        DifferenceKind.MISSING_FILE,
    }
)


class Bounds(NamedTuple):
    """Which part of the log the join knows."""

    log_start: int
    log_end: int
    dispatched: int
    is_closed: bool
    gone: tuple[tuple[int, int], ...] = ()  # ranges of the log that were deleted before they were read

    def are_gone(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which offsets lie in such a range."""
        bounds = np.array(self.gone, np.int64).reshape(-1, 2)
        return np.searchsorted(bounds[:, 0], offsets, "right") > np.searchsorted(bounds[:, 1], offsets, "right")


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of one queue."""

    queue: StoredQueue
    gaps: tuple[tuple[int, int], ...]  # positions that no record of this run claims
    first_live: int | None  # the first position that one claims
    units: Units  # expected, in the order of the log, that were not at their address
    tags: tuple[str | None, ...] = ()
    open_from: int | None = None  # behind this position a broker may write while we look


@dataclass(slots=True)
class Settled:
    """What became of it."""

    queue: StoredQueue
    watermark: int  # position behind the last unit that was taken
    differences: list[Difference] = field(default_factory=list)
    matched: int = 0
    expired: int = 0
    blanks: int = 0
    ahead: int = 0  # units newer than the log's end, of a store that was copied while it was written
    misplaced: int = 0
    blocks: list[RowBlock] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class _Odd(NamedTuple):
    position: int
    physical_offset: int
    size: int
    tags_code: int
    stored: Any  # the whole unit


def unresolved(remainder: Remainder, bounds: Bounds) -> list[int]:
    """Return the physical offsets that only the log can explain."""
    own = set(remainder.units["physical_offset"].tolist())
    return [
        odd.physical_offset
        for part in _parts(remainder, bounds)
        for odd in part.odd
        if _is_record_offset(odd, bounds) and odd.physical_offset not in own
    ]


def _is_record_offset(odd: _Odd, bounds: Bounds) -> bool:
    return bounds.log_start <= odd.physical_offset < bounds.log_end and 0 < odd.size < PRE_BLANK_SIZE


class _Part(NamedTuple):
    """Some units in a gap, sorted out."""

    start: int
    units: Units
    expired: Any
    blanks: Any
    odd: list[_Odd]


def _parts(remainder: Remainder, bounds: Bounds) -> Iterator[_Part]:
    queue = remainder.queue
    wanted = set(remainder.units["queue_offset"].tolist()) if queue.name.kind is QueueKind.PLAIN else set()
    for gap in remainder.gaps:
        for start, stop in chunks(*gap, _AT_ONCE):
            units = units_of(queue, start, stop)
            before = np.arange(start, stop) < (stop if remainder.first_live is None else remainder.first_live)
            blanks = (units["physical_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE) & (units["tags_code"] == 0)
            blanks &= before
            if wanted:
                blanks &= ~np.isin(np.arange(start, stop), list(wanted))
            offsets = units["physical_offset"]
            # Of a range that was not read, units stand behind those of records that were: there is no `before`.
            deleted = (offsets < bounds.log_start) & before
            deleted |= bounds.are_gone(offsets) & ~np.isin(offsets, remainder.units["physical_offset"])
            expired = is_written(units) & deleted & ~blanks
            expired |= is_gone(units)
            newer = np.zeros(units.size, np.bool_)
            if remainder.open_from is not None:  # written since the run has settled what it takes: the next run's
                newer = (np.arange(start, stop) >= remainder.open_from) & (offsets >= bounds.dispatched)
            codes = stored_tags_codes(queue, units, ~(expired | blanks)) if queue.name.kind is QueueKind.PLAIN else None
            odd = [
                _Odd(
                    start + number,
                    int(units["physical_offset"][number]),
                    int(units["size"][number]),
                    int(units["tags_code"][number] if codes is None else codes[number]),
                    units[number],
                )
                for number in np.flatnonzero(~(expired | blanks | newer)).tolist()
            ]
            yield _Part(start, units, expired, blanks, odd)


def settle(remainder: Remainder, bounds: Bounds, resolved: Resolved, *, with_rows: bool) -> Settled:
    """Explain every unit and every record that is left."""
    return _Settling(remainder, bounds, resolved, with_rows=with_rows).settle()


class _Settling:
    def __init__(self, remainder: Remainder, bounds: Bounds, resolved: Resolved, *, with_rows: bool) -> None:
        self._remainder = remainder
        self._queue = remainder.queue
        self._name = remainder.queue.name
        self._bounds = bounds
        self._resolved = resolved
        self._with_rows = with_rows
        self._units = remainder.units
        self._offsets = remainder.units["physical_offset"]
        self._claimed = np.zeros(remainder.units.size, np.bool_)
        self._displaced: list[tuple[int, int]] = []  # position and queue offset
        self._result = Settled(remainder.queue, self._watermark())
        self._beginning = self._find_beginning()

    def _watermark(self) -> int:
        """Leave to the next run what is newer than what the dispatcher had done, at the queue's end."""
        gaps = self._remainder.gaps
        return gaps[-1][1] if gaps else 0

    def settle(self) -> Settled:
        for part in _parts(self._remainder, self._bounds):
            self._expire(part)
            for odd in part.odd:
                self._explain(odd)
        self._misplaced()
        self._missing()
        self._result.differences = list(merged(self._result.differences))
        return self._result

    def _expire(self, part: _Part) -> None:
        self._result.expired += int(part.expired.sum())
        self._result.blanks += int(part.blanks.sum())
        if not self._with_rows:
            return
        positions = np.arange(part.start, part.start + part.units.size)
        for chosen, is_blank in ((part.expired, False), (part.blanks, True)):
            units = part.units[chosen]
            if units.size and not is_gone(units).all():
                self._result.blocks.append(
                    RowBlock(
                        self._name,
                        units["base_offset"] if self._name.kind is QueueKind.BATCH else positions[chosen],
                        units["physical_offset"],
                        units["size"],
                        units["tags_code"],
                        units["batch_count"] if self._name.kind is QueueKind.BATCH else None,
                        Status.EXPIRED,
                        is_pre_blank=is_blank,
                    )
                )

    def _differ(
        self, kind: DifferenceKind, position: int, found: str, expected: str = "", field_: str = "unit"
    ) -> None:
        self._result.differences.append(Difference(kind, self._name, position, found, expected, field_))

    def _explain(self, odd: _Odd) -> None:
        if not (odd.physical_offset or odd.size or odd.tags_code):
            kind = DifferenceKind.HOLE if self._queue.file_at(odd.position) else DifferenceKind.MISSING_FILE
            self._differ(kind, odd.position, "zeros" if kind is DifferenceKind.HOLE else "no file")
            return
        text = f"offset {odd.physical_offset}, size {odd.size}, tags code {odd.tags_code}"
        if (odd.physical_offset, odd.size, odd.tags_code) == (0, PRE_BLANK_SIZE, 0):
            self._differ(DifferenceKind.BLANK_INSIDE, odd.position, "a blank")
            self._row(odd, Status.DANGLING, is_pre_blank=True)
            return
        if odd.physical_offset < 0 or odd.size <= 0:
            self._differ(DifferenceKind.CORRUPT, odd.position, text)
            self._row(odd, Status.DANGLING)
            return
        number = int(np.searchsorted(self._offsets, odd.physical_offset))
        if number < self._offsets.size and self._offsets[number] == odd.physical_offset:
            self._claim(odd, number, text)
            return
        record = self._resolved.get(odd.physical_offset)
        if isinstance(record, RecordAt):
            self._explain_by(odd, record, text)
            return
        if record == GONE:
            self._result.expired += 1
            self._row(odd, Status.EXPIRED)
            return
        if odd.physical_offset >= self._bounds.log_end and not self._bounds.is_closed:
            self._result.ahead += 1
        elif odd.physical_offset >= self._bounds.log_end:
            self._differ(DifferenceKind.BEHIND_LOG, odd.position, text)
        else:
            self._differ(
                DifferenceKind.DAMAGED_RECORD if record == DAMAGED else DifferenceKind.DANGLING, odd.position, text
            )
        self._row(odd, Status.DANGLING)

    def _claim(self, odd: _Odd, number: int, text: str) -> None:
        """Explain a unit by a record of its queue that lacks one."""
        expected = self._units[number]
        if self._claimed[number]:
            self._differ(DifferenceKind.DUPLICATE, odd.position, text)
            self._row(odd, Status.MISMATCHED, ["queue_offset"], number)
            return
        self._claimed[number] = True
        wrong = []
        if self._name.kind is QueueKind.BATCH:
            wrong = [
                name
                for name in ("base_offset", "batch_count", "store_timestamp")
                if self._batch_differs(odd, expected, name)
            ]
        elif int(expected["queue_offset"]) != odd.position:
            self._displaced.append((odd.position, int(expected["queue_offset"])))
            wrong = ["queue_offset"]
        for kind, name, value in (
            (DifferenceKind.WRONG_SIZE, "size", odd.size),
            (DifferenceKind.WRONG_TAGS_CODE, "tags_code", odd.tags_code),
        ):
            if value != int(expected[name]):
                self._differ(kind, odd.position, str(value), str(int(expected[name])), name)
                wrong.append(name)
        self._result.matched += not wrong
        self._row(odd, Status.MISMATCHED if wrong else Status.MATCHED, wrong, number)

    def _batch_differs(self, odd: _Odd, expected: Any, name: str) -> bool:  # noqa: ANN401 - one packed unit
        value, wanted = int(odd.stored[name]), int(expected["queue_offset" if name == "base_offset" else name])
        if value != wanted:
            self._differ(DifferenceKind.WRONG_BATCH_FIELD, odd.position, str(value), str(wanted), name)
        return value != wanted

    def _explain_by(self, odd: _Odd, record: RecordAt, text: str) -> None:
        """Explain a unit by a record that has its own unit elsewhere, or none."""
        own = next((unit for unit in record.units if unit.queue == self._name), None)
        wrong: list[str] = []
        if not record.units:
            self._differ(DifferenceKind.HIDDEN_RECORD, odd.position, text)
            wrong = ["transaction_type"]
        elif own is None:
            named = f"{text}: a record of {record.units[0].queue.topic} {record.units[0].queue.queue_id}"
            self._differ(DifferenceKind.FOREIGN, odd.position, named)
            wrong = [
                name
                for name in ("topic", "queue_id")
                if getattr(record.units[0].queue, name) != getattr(self._name, name)
            ]
        elif own.queue_offset != odd.position and self._name.kind is QueueKind.PLAIN:
            self._differ(
                DifferenceKind.DUPLICATE, odd.position, f"{text}: the record of queue offset {own.queue_offset}"
            )
            wrong = ["queue_offset"]
        self._row(odd, Status.MISMATCHED if wrong else Status.MATCHED, wrong, record=record)

    def _misplaced(self) -> None:
        """Name displaced units: exchanged with each other, or shifted."""
        self._displaced.sort()
        start = 0
        for at in range(1, len(self._displaced) + 1):
            if at == len(self._displaced) or self._displaced[at][0] != self._displaced[at - 1][0] + 1:
                self._name_displaced(self._displaced[start:at])
                start = at
        self._result.misplaced = len(self._displaced)

    def _name_displaced(self, run: Sequence[tuple[int, int]]) -> None:
        if sorted(queue_offset for _, queue_offset in run) == [position for position, _ in run]:
            text = ", ".join(str(queue_offset) for _, queue_offset in run[:4])
            difference = Difference(
                DifferenceKind.OUT_OF_ORDER, self._name, run[0][0], f"queue offsets {text}", "ascending", times=len(run)
            )
            self._result.differences.append(difference)
            return
        for position, queue_offset in run:
            kind = DifferenceKind.RESTARTED if queue_offset == 0 else DifferenceKind.MISPLACED
            self._result.differences.append(
                Difference(
                    kind, self._name, position, f"the unit of queue offset {queue_offset}", f"of {position}",
                    shift=position - queue_offset,
                )
            )  # fmt: skip

    def _find_beginning(self) -> int:
        """Return where the newest message stands that was the first of its queue; older ones are of a deleted topic."""
        firsts = self._offsets[self._units["queue_offset"] == 0].tolist()
        if self._remainder.first_live == 0:
            firsts.append(int(units_of(self._queue, 0, 1)["physical_offset"][0]))
        return max(firsts, default=0)

    def _missing(self) -> None:
        """Name records without unit, but where their place tells of it already."""
        told = {d.position for d in self._result.differences if d.kind in _BAD}
        missing: set[int] = set()
        for number in np.flatnonzero(~self._claimed).tolist():
            unit = self._units[number]
            position = int(unit["queue_offset"])
            self._missing_row(number)
            text = (
                f"offset {int(unit['physical_offset'])}, size {int(unit['size'])}, tags code {int(unit['tags_code'])}"
            )
            if position in told and self._name.kind is QueueKind.PLAIN:
                self._tell(position, text)
                continue
            kind = self._kind_of_missing(position, int(unit["physical_offset"]))
            if kind is DifferenceKind.MISSING:
                missing.add(position)
            self._differ(kind, position, "no unit", text)
        kept = []
        for difference in merged(self._result.differences):
            if difference.kind is DifferenceKind.MISPLACED and self._follows(difference, missing, told):
                continue
            kept.append(difference)
        self._result.differences = kept

    def _tell(self, position: int, text: str) -> None:
        """Say what should stand at a place that is wrong."""
        for number, difference in enumerate(self._result.differences):
            if difference.position == position and difference.kind in _BAD:
                self._result.differences[number] = replace(difference, expected=text)
                return

    @staticmethod
    def _follows(shifted: Difference, missing: set[int], told: set[int]) -> bool:
        """Tell whether units are out of place only because some before them are lost, or too many."""
        shift = shifted.shift
        if shift < 0:
            return all(shifted.position + n in missing for n in range(-shift))
        return all(shifted.position - 1 - n in told for n in range(shift))

    def _kind_of_missing(self, position: int, physical_offset: int) -> DifferenceKind:
        if self._name.kind is QueueKind.BATCH:
            return DifferenceKind.MISSING
        if physical_offset < self._beginning:
            return DifferenceKind.RESTARTED
        if self._queue.file_at(position) is None:
            return DifferenceKind.MISSING_FILE
        occupant = units_of(self._queue, position, position + 1)[0]
        in_gap = any(start <= position < stop for start, stop in self._remainder.gaps)
        if in_gap or not int(occupant["size"]):
            return DifferenceKind.MISSING
        return DifferenceKind.DROPPED

    def _row(  # noqa: PLR0913 - what a row is made of
        self,
        odd: _Odd,
        status: Status,
        mismatch: Sequence[str] = (),
        number: int | None = None,
        *,
        record: RecordAt | None = None,
        is_pre_blank: bool = False,
    ) -> None:
        if not self._with_rows:
            return
        is_batch = self._name.kind is QueueKind.BATCH
        timestamp = record.store_timestamp if record else None
        tags = record.tags if record else None
        if number is not None:
            timestamp, tags = int(self._units["store_timestamp"][number]), self._remainder.tags[number]
        self._result.rows.append(
            {
                "topic": self._name.topic,
                "queue_id": self._name.queue_id,
                "queue_offset": int(odd.stored["base_offset"]) if is_batch else odd.position,
                "physical_offset": odd.physical_offset,
                "size": odd.size,
                "tags_code": int(odd.stored["tags_code"]),
                "is_pre_blank": is_pre_blank,
                "batch_count": int(odd.stored["batch_count"]) if is_batch else None,
                "status": status.value,
                "mismatch": list(mismatch) or None,
                "store_timestamp": timestamp,
                "tags": tags,
            }
        )

    def _missing_row(self, number: int) -> None:
        if not self._with_rows:
            return
        unit: Mapping[str, Any] = self._units[number]
        self._result.rows.append(
            {
                "topic": self._name.topic,
                "queue_id": self._name.queue_id,
                "queue_offset": int(unit["queue_offset"]),
                "physical_offset": int(unit["physical_offset"]),
                "size": int(unit["size"]),
                "tags_code": int(unit["tags_code"]),
                "is_pre_blank": False,
                "batch_count": int(unit["batch_count"]) if self._name.kind is QueueKind.BATCH else None,
                "status": Status.MISSING.value,
                "mismatch": None,
                "store_timestamp": int(unit["store_timestamp"]),
                "tags": self._remainder.tags[number],
            }
        )
