"""
The epochs of a broker in controller mode (5.0.0+): which master wrote the log from which offset on.

`epochFileCheckpoint` is text: the number of entries, the CRC-32 of the lines that follow, then `epoch-start offset` a
line. A replica that returns cuts its log where the next master's epoch begins, and writes that master's records there.
"""

from typing import NamedTuple
from zlib import crc32

from rmq_formats.errors import CorruptData

EPOCH_FILE = "epochFileCheckpoint"
_CRC_MASK = 0x7FFFFFFF


class Epoch(NamedTuple):
    """One master's time: the records from *start_offset* on, up to the next epoch's, are its own."""

    number: int
    start_offset: int


def decode_epochs(raw: bytes) -> tuple[Epoch, ...]:
    """Return the epochs of `epochFileCheckpoint`, oldest first; `CorruptData` when it is not what a broker writes."""
    try:
        count, crc, *lines = raw.decode("ascii").splitlines()
        pairs = [tuple(map(int, line.split("-"))) for line in lines]
        epochs = tuple(Epoch(number, start) for number, start in pairs)
        is_right = (int(count), int(crc)) == (
            len(epochs),
            crc32("".join(f"{line}\n" for line in lines).encode()) & _CRC_MASK,
        )
    except ValueError as error:
        raise CorruptData(f"no list of epochs: {error}") from error
    if not is_right:
        raise CorruptData("the list of epochs does not have the length and the CRC that its head states")
    return epochs
