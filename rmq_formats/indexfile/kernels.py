"""Seconds of an entry, and the release rule that holds at its offset, for the compiled code of several modules."""

import numpy as np
from numpy.typing import NDArray

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


@helper
def rule_at(since: NDArray[np.int64], rule: int, offset: int) -> int:
    """Return the number of the rule at an offset, searched from the *rule* of an earlier one: offsets only rise."""
    while rule + 1 < since.size and since[rule + 1] <= offset:
        rule += 1
    return rule
