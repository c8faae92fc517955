"""Copies of records, in a compacted log, compared with the records themselves, which the queue leads to."""

import numpy as np

from jobs.storage.model import Reader
from jobs.store.queue_files import StoredQueue
from jobs.store.store import Segment, Store
from jobs.store.units import Units, is_gone, is_written, units_of
from rmq_formats.arrays import slices
from rmq_formats.commitlog.kernels import QUEUE_OFFSET_AT, find_other_copies
from rmq_formats.errors import is_unreadable
from rmq_formats.kernels.integers import Bytes, Integers

_WINDOW = 1 << 20  # bytes of a log that are read at a time
_UNITS_AT_ONCE = 1 << 12


def compare_copies(store: Store, queue: StoredQueue, file: Segment, copies: Units) -> tuple[int, list[tuple[int, int]]]:
    """
    Compare the records of *file*, whose units are *copies*, with those that a queue of *store* leads to.

    Return the number of compared records, and for each copy that differs its number and the offset of its record.
    """
    numbers, offsets, segments = _originals(store, queue, copies)
    chosen = copies[numbers]
    places = chosen["physical_offset"].astype(np.int64) - file.base_offset
    sizes = chosen["size"].astype(np.int64)
    # Copies are compared in runs whose records ascend within one window of one segment: one read serves each side.
    cuts = (np.diff(segments) != 0) | (np.diff(offsets) <= 0)
    cuts |= (np.diff(offsets // _WINDOW) != 0) | (np.diff(places // _WINDOW) != 0)
    count, others = 0, list[int]()
    with store.open(file) as copied:
        for some in slices(places.size, cuts):
            segment = store.segments[int(segments[some.start])]
            at = offsets[some] - segment.base_offset
            records = _read(store, segment, at, sizes[some])
            if records is None:
                continue
            in_records, in_part = at - at[0], places[some] - places[some].min()
            # A queue that was damaged leads elsewhere, and is a finding of its own.
            known = np.flatnonzero(_queue_offsets(records, in_records) == chosen["queue_offset"][some])
            wrong = np.empty(known.size, np.int64)
            part = _bytes(copied, places[some], sizes[some])
            found = find_other_copies(records, in_records[known], part, in_part[known], sizes[some][known], wrong)
            count += known.size
            others += (some.start + known[wrong[:found]]).tolist()
    return count, [(int(numbers[one]), int(offsets[one])) for one in others]


def _originals(store: Store, queue: StoredQueue, copies: Units) -> tuple[Integers, Integers, Integers]:
    """Return, of each copy whose record queue and log still have: its number, the record's offset, its segment."""
    numbers = np.flatnonzero((copies["queue_offset"] >= queue.start) & (copies["queue_offset"] < queue.capacity))
    positions = copies["queue_offset"][numbers].astype(np.int64)
    offsets = np.full(positions.size, -1, np.int64)
    for some in slices(positions.size, np.diff(positions // _UNITS_AT_ONCE) != 0):
        start, stop = int(positions[some].min()), int(positions[some].max()) + 1
        units = units_of(queue, start, stop)[positions[some] - start]
        offsets[some] = np.where(is_written(units) & ~is_gone(units), units["physical_offset"], -1)
    starts = np.array([segment.base_offset for segment in store.segments], np.int64)
    ends = np.array([segment.base_offset + segment.readable for segment in store.segments], np.int64)
    segments = np.searchsorted(starts, offsets, "right") - 1
    is_there = (segments >= 0) & (offsets + copies["size"][numbers] <= ends[np.maximum(segments, 0)])
    return numbers[is_there], offsets[is_there], segments[is_there]


def _read(store: Store, segment: Segment, positions: Integers, sizes: Integers) -> Bytes | None:
    """Return a segment's bytes from the first to the last of some records; None if it is deleted or unreadable."""
    try:
        with store.open(segment) as file:
            return _bytes(file, positions, sizes)
    except FileNotFoundError:  # retention
        return None
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


def _bytes(file: Reader, positions: Integers, sizes: Integers) -> Bytes:
    """Return a file's bytes from the first to the last of some records, zeros after its end."""
    start, end = int(positions.min()), int((positions + sizes).max())
    data = np.frombuffer(file.read(start, end - start), np.uint8)
    return data if data.size == end - start else np.pad(data, (0, end - start - data.size))


def _queue_offsets(records: Bytes, positions: Integers) -> Integers:
    taken = records[positions[:, None] + QUEUE_OFFSET_AT + np.arange(8)]
    return np.ascontiguousarray(taken).view(">i8")[:, 0].astype(np.int64)
