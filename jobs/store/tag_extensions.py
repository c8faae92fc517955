"""Tags codes that units keep in extension files."""

import numpy as np
from numpy.typing import NDArray

from jobs.store.queue_files import QueueFile, StoredQueue
from jobs.store.units import Units
from rmq_formats.consumequeue.ext import decode_ext_unit, offset_of_address
from rmq_formats.consumequeue.layout import EXT_UNIT, MAX_EXT_ADDRESS
from rmq_formats.errors import FormatError

_LARGEST_UNIT = 1 << 15  # its size is a short
_BLOCK = 1 << 20


def stored_tags_codes(queue: StoredQueue, units: Units, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the tags codes of a queue's *units*; an address that leads nowhere stays."""
    codes: NDArray[np.int64] = units["tags_code"].astype(np.int64)
    addressed = np.flatnonzero(wanted & (codes <= MAX_EXT_ADDRESS))
    extension = _Extension(queue)
    for number in addressed.tolist():
        code = extension.tags_code(offset_of_address(int(codes[number])))
        if code is not None:
            codes[number] = code
    return codes


class _Extension:
    """The extension files of a queue, read in blocks: addresses ascend."""

    def __init__(self, queue: StoredQueue) -> None:
        self._queue = queue
        self._start = 0
        self._block = b""

    def tags_code(self, offset: int) -> int | None:
        """Return the unit at *offset* of the extension; None where there is none."""
        file = next((file for file in self._queue.extension if file.base_offset <= offset < file.end), None)
        if file is None:
            return None
        try:
            unit = decode_ext_unit(self._bytes_at(file, offset))
        except FormatError:
            return None
        return unit.tags_code if unit.size >= EXT_UNIT.size else None

    def _bytes_at(self, file: QueueFile, offset: int) -> memoryview:
        """Return enough bytes for any unit at *offset*, or those up to the end of the file."""
        needed = min(_LARGEST_UNIT, file.end - offset)
        if not 0 <= offset - self._start <= len(self._block) - needed:
            with self._queue.storage.open(file.location) as reader:
                self._block = bytes(reader.read(offset - file.base_offset, _BLOCK))
            self._start = offset
        at = offset - self._start
        return memoryview(self._block)[at : at + needed]
