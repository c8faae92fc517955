"""What went wrong, as one line for whoever ran the command: which errors are no bug of ours, and what is in them."""

import os
import re
import sys
from collections.abc import Sequence

from jobs.launch.errors import SetupError
from rmq_formats.errors import FormatError

# What Spark says of a Python process that is gone, and what Python says of a file.
_DEAD_WORKER = "Python worker exited unexpectedly"
_FILE_ERROR = re.compile(r"\w+: \[Errno \d+\] (?P<reason>.+): '(?P<file>.+)'")


def failures() -> tuple[type[BaseException], ...]:
    """Name the errors that are no bug of ours; those of libraries only where the library was loaded at all."""
    foreign = (
        ("pyspark.errors", "PySparkException"),
        ("py4j.protocol", "Py4JError"),
        ("deltalake.exceptions", "DeltaError"),
        ("pyarrow", "ArrowException"),
    )
    loaded = (getattr(sys.modules.get(module), name, None) for module, name in foreign)
    return (FormatError, OSError, SetupError, *(kind for kind in loaded if kind is not None))


def follows_interrupt(error: BaseException) -> bool:
    """Tell whether an error was raised while an interruption was on its way."""
    before = error.__cause__ or error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or follows_interrupt(before))


def one_line(error: BaseException) -> str:
    """Say what an error says, without what libraries wrap around it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (_raised_on_a_worker(lines) or _raised_in_the_jvm(lines) or [*lines, type(error).__name__][0]).strip()


def _raised_on_a_worker(lines: Sequence[str]) -> str | None:
    """Return what a task's Python failed with, said as it would have been here, from what Spark makes of it."""
    if any(_DEAD_WORKER in line for line in lines):
        return "a worker's process died, killed from outside or for want of memory; the system's log knows more"
    begun = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not begun:
        return None
    # Of several in a chain the last is what was raised; the others are its causes.
    raised = next((line for line in lines[begun[-1] + 1 :] if not line.startswith((" ", "\t"))), "")
    of_file = _FILE_ERROR.fullmatch(raised)
    if of_file:
        return f"{of_file['file']}: {of_file['reason']}"
    name, _, text = raised.partition(": ")
    if name.startswith(FormatError.__module__):
        return text
    return f"{raised} (--traceback shows where)" if raised else None


def _raised_in_the_jvm(lines: Sequence[str]) -> str | None:
    """Return what follows "An error occurred while calling o38.count.", which says nothing."""
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), None)
