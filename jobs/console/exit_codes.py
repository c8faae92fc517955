"""Exit codes. Scripts branch on these numbers: they are part of the contract."""

from collections.abc import Iterable, Mapping
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


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.CLEAN: "done, nothing to say",
    ExitCode.FAILED: "failed; one line says why, with file and offset",
    ExitCode.USAGE: "usage or configuration: nothing was started",
    ExitCode.DAMAGE: "done; damage or a gap was found in this run",
    ExitCode.MISMATCH: "queues or index files contradict the log, or a surviving file contradicts the proof",
    ExitCode.NOT_FOUND: "nothing was found, and why",
    ExitCode.HELD: "another run holds this store; it does the work",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM); one line says how to go on",
}


# A run that found several things reports the first of these.
_WORST_FIRST = (ExitCode.FAILED, ExitCode.MISMATCH, ExitCode.DAMAGE)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """
    Return the one code for all of *codes*: 1 over 4 over 3 over 0.

    The others (usage, not found, held, interrupted) end a command; they are never one result among several.
    """
    seen = set(codes)
    return next((code for code in _WORST_FIRST if code in seen), ExitCode.CLEAN)
