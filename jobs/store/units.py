"""The units of stored queues as arrays, and their tags codes in extension files."""

from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jobs.store.queue_files import StoredQueue
from jobs.store.store import StoredFile
from rmq_formats.arrays import dtype_of
from rmq_formats.consumequeue.layout import EXT_UNIT, MAX_EXT_ADDRESS, decode_ext_unit, ext_address_offset
from rmq_formats.errors import FormatError
from rmq_formats.layout import Buffer, make_block_reader

Units = NDArray[np.void]

_LARGEST_EXT_UNIT = 1 << 15  # its size is a short
_BLOCK = 1 << 20
DELETED_UNIT_FIELD = -1  # the value of every field of a unit whose file was deleted after it was listed


def read_stored_units(queue: StoredQueue, start: int, stop: int) -> Units:
    """Return the units of a queue at positions [*start*, *stop*); positions without a file are zeros."""
    return np.frombuffer(queue.read(start, stop), dtype_of(queue.name.kind.layout))


def is_written(units: Units) -> NDArray[np.bool_]:
    """Return for each unit whether a broker accepts it when it searches a queue's end."""
    written: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    if "base_offset" in (units.dtype.names or ()):
        written &= (units["base_offset"] >= 0) & (units["batch_count"] > 0)
    return written


def is_of_deleted_file(units: Units) -> NDArray[np.bool_]:
    """Return for each unit whether its file was deleted after it was listed."""
    deleted: NDArray[np.bool_] = (
        (units["physical_offset"] == DELETED_UNIT_FIELD)
        & (units["size"] == DELETED_UNIT_FIELD)
        & (units["tags_code"] == DELETED_UNIT_FIELD)
    )
    return deleted


def read_tags_codes(queue: StoredQueue, units: Units, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the tags codes of a queue's *units*; an invalid address stays."""
    codes: NDArray[np.int64] = units["tags_code"].astype(np.int64)
    addressed = np.flatnonzero(wanted & (codes <= MAX_EXT_ADDRESS))
    read = make_block_reader(partial(_read, queue), _BLOCK)  # addresses ascend, from file to file
    for number in addressed.tolist():
        offset = ext_address_offset(int(codes[number]))
        file = _file_at(queue, offset)
        if file is None:
            continue
        with suppress(FormatError):  # no valid unit is there
            unit = decode_ext_unit(read(offset, min(_LARGEST_EXT_UNIT, file.end - offset)))
            if unit.size >= EXT_UNIT.size:
                codes[number] = unit.tags_code
    return codes


def _file_at(queue: StoredQueue, offset: int) -> StoredFile | None:
    return next((file for file in queue.extension if file.base_offset <= offset < file.end), None)


def _read(queue: StoredQueue, offset: int, length: int) -> Buffer:
    """Read the extension, starting at *offset*, at most to the end of a file."""
    file = _file_at(queue, offset)
    if file is None:
        return b""
    with queue.open(file.location) as reader:
        return reader.read(offset - file.base_offset, length)
