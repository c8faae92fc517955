"""Exit codes, on which scripts branch: they are part of the contract; and the errors that have one of their own."""

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


class RequestError(ValueError):
    """A request that cannot be met as it was made: the command ends with USAGE, and the message says what to change."""


class HeldError(Exception):
    """Another process does this work: the command ends with HELD."""


# A run that found several things reports the first of these.
_WORST_FIRST = (ExitCode.FAILED, ExitCode.MISMATCH, ExitCode.DAMAGE)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """
    Return the one code for all of *codes*: 1 over 4 over 3 over 0.

    The others (usage, not found, held, interrupted) end a command; they are never one result among several.
    """
    seen = set(codes)
    return next((code for code in _WORST_FIRST if code in seen), ExitCode.CLEAN)
