"""Exit codes. Scripts branch on these numbers: they are part of the contract."""

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 3
    MISMATCH = 4
    NOT_FOUND = 5
    HELD = 6
    INTERRUPTED = 130


# A run that found several things reports the first of these.
_WORST_FIRST = (ExitCode.FAILED, ExitCode.MISMATCH, ExitCode.DAMAGE)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """
    Return the one code for all of *codes*: 1 over 4 over 3 over 0.

    The others (usage, not found, held, interrupted) end a command; they are never one result among several.
    """
    seen = set(codes)
    return next((code for code in _WORST_FIRST if code in seen), ExitCode.CLEAN)
