"""The units of stored queues as arrays."""

import numpy as np
from numpy.typing import NDArray

from jobs.store.queue_files import StoredQueue
from rmq_formats.consumequeue.build import UNITS

Units = NDArray[np.void]

DELETED = -1  # in every field of a unit whose file the broker deleted after we listed it


def units_of(queue: StoredQueue, start: int, stop: int) -> Units:
    """Return the units of a queue at positions [*start*, *stop*); where no file is, they are zero."""
    return np.frombuffer(queue.read(start, stop), UNITS[queue.name.kind])


def is_written(units: Units) -> NDArray[np.bool_]:
    """Return of each unit whether the broker takes it for one when it looks for a queue's end."""
    written: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    if "base_offset" in (units.dtype.names or ()):
        written &= (units["base_offset"] >= 0) & (units["batch_count"] > 0)
    return written


def is_gone(units: Units) -> NDArray[np.bool_]:
    """Return of each unit whether its file was deleted after it was listed."""
    deleted: NDArray[np.bool_] = (
        (units["physical_offset"] == DELETED) & (units["size"] == DELETED) & (units["tags_code"] == DELETED)
    )
    return deleted
