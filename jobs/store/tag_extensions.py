"""Tags codes that units keep in extension files."""

import numpy as np
from numpy.typing import NDArray

from jobs.store.queue_files import QueueFile, StoredQueue
from jobs.store.units import Units
from rmq_formats.consumequeue.ext import decode_ext_unit, offset_of_address
from rmq_formats.consumequeue.layout import EXT_UNIT, MAX_EXT_ADDRESS
from rmq_formats.errors import FormatError


def stored_tags_codes(queue: StoredQueue, units: Units, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return what *units* of a queue say of their tags; an address that leads nowhere stays."""
    codes: NDArray[np.int64] = units["tags_code"].astype(np.int64)
    addressed = np.flatnonzero(wanted & (codes <= MAX_EXT_ADDRESS))
    contents: dict[QueueFile, bytes] = {}
    for number in addressed.tolist():
        code = _tags_code(queue, offset_of_address(int(codes[number])), contents)
        if code is not None:
            codes[number] = code
    return codes


def _tags_code(queue: StoredQueue, offset: int, contents: dict[QueueFile, bytes]) -> int | None:
    file = next((file for file in queue.extension if file.base_offset <= offset < file.end), None)
    if file is None:
        return None
    if file not in contents:
        contents.clear()  # addresses ascend: one file at a time
        with queue.storage.open(file.location) as reader:
            contents[file] = bytes(reader.read(0, file.size))
    position = offset - file.base_offset
    try:
        unit = decode_ext_unit(contents[file], position)
    except FormatError:
        return None
    return unit.tags_code if unit.size >= EXT_UNIT.size else None
