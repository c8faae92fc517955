"""
Builds queues at disk speed: units are appended file by file.

`QueueBuilder` takes a queue's units in the order of the log, slice by slice, and returns the bytes that they add;
`append_ext_units` does the same for the extension. Property tests compare both with readable queues in the tests.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmq_formats.arrays import dtype_of
from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.compiled import compile_large_work, compiled
from rmq_formats.consumequeue.dispatch import QueueKind, logical_offset
from rmq_formats.consumequeue.layout import (
    BATCH_UNIT,
    EXT_ADDRESS_BASE,
    EXT_END_MARK,
    EXT_UNIT,
    MAX_QUEUE_OFFSET,
    PRE_BLANK_SIZE,
    UNIT,
    ext_unit_offset,
)
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, write_i32, write_i64
from rmq_formats.release import Release, UnitSkip

UNIT_TYPES = {QueueKind.PLAIN: dtype_of(UNIT), QueueKind.BATCH: dtype_of(BATCH_UNIT)}
EXT_UNIT_TYPE = dtype_of(EXT_UNIT)

# Indices of the values that a queue's builder keeps between slices.
_END, _FILES_END, _LAST_OFFSET, _LAST_END, _MISPLACED, _SKIPPED = range(6)

_QUEUE_OFFSET, _PHYSICAL_OFFSET, _TAGS_CODE = range(3)  # columns of a unit as numbers
_UNIT_SIZE = UNIT.size
_MAX_QUEUE_OFFSET = MAX_QUEUE_OFFSET
_SIZE_AT = UNIT.offset("size")
_TAGS_CODE_AT = UNIT.offset("tags_code")


@compiled
def _append(
    units: Integers, sizes: Sizes,
    file_size: int, skips_by_end: bool, drops_low: bool, state: Integers, out: Bytes,  # noqa: FBT001 - see above
) -> int:  # fmt: skip
    """Write *units* of `PACKED_UNIT`, a row of numbers each, and return the number of bytes."""
    written = 0
    for i in range(sizes.size):
        queue_offset, physical_offset = units[i, _QUEUE_OFFSET], units[i, _PHYSICAL_OFFSET]
        unit_end = physical_offset + sizes[i]
        if (skips_by_end and unit_end <= state[_LAST_END]) or (
            not skips_by_end and physical_offset <= state[_LAST_OFFSET]
        ):
            state[_SKIPPED] += 1
            continue
        is_place = -_MAX_QUEUE_OFFSET <= queue_offset <= _MAX_QUEUE_OFFSET
        expected = queue_offset * _UNIT_SIZE if is_place else -1
        if state[_END] == state[_FILES_END]:
            state[_FILES_END] += file_size
        if drops_low and queue_offset != 0 and expected < state[_END]:
            state[_SKIPPED] += 1
            continue
        state[_LAST_OFFSET] = physical_offset
        state[_LAST_END] = unit_end
        state[_MISPLACED] += expected != state[_END]
        write_i64(out, written, physical_offset)
        write_i32(out, written + _SIZE_AT, sizes[i])
        write_i64(out, written + _TAGS_CODE_AT, units[i, _TAGS_CODE])
        written += _UNIT_SIZE
        state[_END] += _UNIT_SIZE
    return written


QueueBytes: TypeAlias = tuple[int, NDArray[np.uint8]]  # bytes of a queue, after the logical offset of the first


def cut_at_losses(units: NDArray[np.void], lost: Integers) -> list[NDArray[np.void]]:
    """Cut *units* (of `PACKED_UNIT`) where the log has *lost* something between two of them: a row for each range."""
    if not lost.size:
        return [units]
    losses = np.searchsorted(lost[:, 0], units["physical_offset"])
    return np.split(units, np.flatnonzero(np.diff(losses)) + 1)


def count_lost_records(lost: Integers, first: int, last: int) -> int:
    """Return the largest number of records that the log can have *lost* between two offsets."""
    sizes = (lost[:, 1] - lost[:, 0])[(lost[:, 0] > first) & (lost[:, 0] < last)]
    return int(sizes.sum()) // MIN_RECORD_SIZE


class QueueBuilder:
    """One queue that begins empty: takes its units in the order of the log, and returns the bytes that they add."""

    def __init__(
        self,
        kind: QueueKind,
        file_size: int,
        releases: Sequence[tuple[int, Release]],
        lost: Sequence[tuple[int, int]] = (),
    ) -> None:
        """
        Make files of *file_size* bytes; *releases* as in `UnitRules`.

        *lost* are the ranges of the log, ascending, that hold no record any more. The units of their records are left
        out as blanks, so that every later unit is stored at the queue offset that its record states.
        """
        self.kind = kind
        self.file_size = file_size
        self.start: int | None = None  # the start of the first file
        self.blanks = 0  # units that are left out for records that the log has lost
        self.first_after_blank: int | None = None  # physical offset of the unit after the first of them
        self._lost = np.array(lost, np.int64).reshape(-1, 2)
        self._releases = releases
        self._state = np.array([0, 0, -1, -1, 0, 0], np.int64)

    @property
    def logical_end(self) -> int:
        """The logical offset after the last unit."""
        return int(self._state[_END])

    @property
    def logical_end_of_files(self) -> int:
        """The logical offset after the last file."""
        return int(self._state[_FILES_END])

    @property
    def misplaced_count(self) -> int:
        """The number of units whose position differs from their queue offset."""
        return int(self._state[_MISPLACED])

    @property
    def skipped_count(self) -> int:
        """The number of units that the broker would not have written."""
        return int(self._state[_SKIPPED])

    def append(self, units: NDArray[np.void]) -> Iterator[QueueBytes]:
        """Yield the bytes that *units* (of `PACKED_UNIT`) add."""
        if not units.size:
            return
        compile_large_work(units.nbytes)
        if self.kind is QueueKind.BATCH:
            yield from self._append_batches(units)
            return
        if self.start is None:
            expected = max(logical_offset(int(units["queue_offset"][0])), 0)
            self.start = expected // self.file_size * self.file_size
            self._state[_END] = expected
            self._state[_FILES_END] = self.start + self.file_size
            if expected > self.start:
                yield _blanks(self.start, (expected - self.start) // UNIT.size)
        cuts = np.searchsorted(units["physical_offset"], [since for since, _ in self._releases[1:]]).tolist()
        for (_, release), at, stop in zip(self._releases, [0, *cuts], [*cuts, units.size], strict=True):
            for some in cut_at_losses(units[at:stop], self._lost):
                if some.size:
                    yield from self._leave_out(some[0])
                    yield from self._append_by_rules_of(release, some)

    def _leave_out(self, unit: np.void) -> Iterator[QueueBytes]:
        """Yield blanks up to *unit*, as many as the log can have lost since the last unit, at most."""
        end, place = self.logical_end, int(unit["physical_offset"])
        missing = (logical_offset(int(unit["queue_offset"])) - end) // UNIT.size
        if 0 < missing <= count_lost_records(self._lost, int(self._state[_LAST_OFFSET]), place):
            self.blanks += missing
            self.first_after_blank = place if self.first_after_blank is None else self.first_after_blank
            self._state[_END] += missing * UNIT.size
            self._state[_FILES_END] = max(
                self.logical_end_of_files, -(-self.logical_end // self.file_size) * self.file_size
            )
            yield _blanks(end, missing)

    def _append_by_rules_of(self, release: Release, units: NDArray[np.void]) -> Iterator[QueueBytes]:
        """Append units as a broker of *release* does; yield the bytes for each file."""
        out = np.empty(units.size * UNIT.size, np.uint8)
        end = self.logical_end
        # Arrays of the same kind for any number of units: a column of one unit would be contiguous, and numba would
        # compile the function again.
        written = _append(
            units.view(np.int64).reshape(units.size, -1),
            np.ascontiguousarray(units["size"]),
            self.file_size,
            release.unit_skip is UnitSkip.END_NOT_BEYOND_LAST_END,
            release.drops_low_queue_offset,
            self._state,
            out,
        )
        if written:
            yield end, out[:written]

    def _append_batches(self, units: NDArray[np.void]) -> Iterator[QueueBytes]:
        offsets = units["physical_offset"]
        before = np.maximum.accumulate(np.concatenate([self._state[_LAST_OFFSET : _LAST_OFFSET + 1], offsets[:-1]]))
        kept = units[offsets > before]
        self._state[_SKIPPED] += units.size - kept.size
        if not kept.size:
            return
        made = np.zeros(kept.size, UNIT_TYPES[QueueKind.BATCH])
        for field in ("physical_offset", "size", "tags_code", "store_timestamp", "batch_count"):
            made[field] = kept[field]
        made["base_offset"] = kept["queue_offset"]
        made["compacted_offset"] = -1
        self.start = 0
        end = self.logical_end
        self._state[_LAST_OFFSET] = kept["physical_offset"][-1]
        self._state[_END] += made.nbytes
        self._state[_FILES_END] = -(-self.logical_end // self.file_size) * self.file_size
        yield end, made.view(np.uint8)


def _blanks(offset: int, count: int) -> QueueBytes:
    blanks = np.zeros(count, UNIT_TYPES[QueueKind.PLAIN])
    blanks["size"] = PRE_BLANK_SIZE
    return offset, blanks.view(np.uint8)


def append_ext_units(
    units: NDArray[np.void], number: int, file_size: int
) -> tuple[NDArray[np.void], int, Iterator[QueueBytes]]:
    """
    Add the units of an extension that *units* need, the first one with a *number*, to files of *file_size*.

    Return *units* with addresses for tags codes, the number of the next extension unit, and the bytes of the new ones.
    """
    own = units["is_multi_dispatched"] == 0
    added = units[own]
    offsets = np.array([ext_unit_offset(number + n, file_size) for n in range(added.size)], np.int64)
    addressed = units.copy()
    addressed["tags_code"][own] = offsets + EXT_ADDRESS_BASE
    return addressed, number + added.size, _ext_slices(added, offsets, number, file_size)


def _ext_slices(units: NDArray[np.void], offsets: Integers, first: int, file_size: int) -> Iterator[QueueBytes]:
    made = np.zeros(units.size, EXT_UNIT_TYPE)
    made["size"] = EXT_UNIT.size
    made["tags_code"] = units["tags_code"]
    made["store_timestamp"] = units["store_timestamp"]
    for number, offset in enumerate(offsets.tolist()):
        if offset % file_size == 0 and first + number:
            previous = ext_unit_offset(first + number - 1, file_size) + EXT_UNIT.size
            yield previous, np.frombuffer(EXT_END_MARK, np.uint8)
        yield offset, made[number : number + 1].view(np.uint8)
