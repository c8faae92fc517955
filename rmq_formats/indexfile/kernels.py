"""Seconds of an entry, and the release rule that holds at its offset, for the compiled code of several modules."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import helper
from rmq_formats.indexfile.file import MAX_INT
from rmq_formats.kernels.properties import PARSER_CODES
from rmq_formats.release import HashSlotCount, Rules

_LARGEST = (1 << 63) - 1


class RuleTable(NamedTuple):
    """Rules as compiled code reads them: row by row, the newest last."""

    since: NDArray[np.int64]
    parser: NDArray[np.int64]
    indexes_tags: NDArray[np.bool_]
    counts_every_put: NDArray[np.bool_]

    @classmethod
    def of(cls, rules: Rules) -> Self:
        """Return the columns of *rules*."""
        releases = [release for _, release in rules]
        return cls(
            np.array([since for since, _ in rules], np.int64),
            np.array([PARSER_CODES[release.property_parser] for release in releases], np.int64),
            np.array([release.indexes_tags for release in releases], np.bool_),
            np.array([release.hash_slot_count is HashSlotCount.EVERY_PUT for release in releases], np.bool_),
        )


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
def rule_at(rules: RuleTable, rule: int, offset: int) -> int:
    """Return the number of the rule at an offset, searched from the *rule* of an earlier one: offsets only rise."""
    while rule + 1 < rules.since.size and rules.since[rule + 1] <= offset:
        rule += 1
    return rule
