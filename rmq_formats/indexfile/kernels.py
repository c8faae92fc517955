"""Seconds of an entry, as compiled code of several modules takes them."""

from rmq_formats.compiled import helper
from rmq_formats.indexfile.file import MAX_INT

_LARGEST = (1 << 63) - 1


@helper
def seconds_since(begin: int, time: int) -> int:
    """Return the seconds that an entry stores for a message of *time* in a file that began at *begin*."""
    if begin > 0 and time >= begin:
        return min((time - begin) // 1000, MAX_INT)
    if begin > 0 > time and time + _LARGEST + 1 < begin:
        # Java's difference wraps and comes out positive: 2^63 - 1,000 for time -2^63 and begin 1,000. No step here may
        # leave 64 bits, so the 2^64 of the wrap is added in two halves.
        return min((time + _LARGEST - begin + _LARGEST + 2) // 1000, MAX_INT)
    return 0
