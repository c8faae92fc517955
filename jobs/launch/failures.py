"""Formats errors that are not bugs as one line for the user, without the text that libraries add."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from jobs.launch.engine import SetupError, jvm_death_text
from rmq_formats.errors import FormatError

# Spark's text about a Python process that has ended, and Python's text about a file.
_DEAD_WORKER = "Python worker exited unexpectedly"
_WORKER = r"\(TID \d+\) \((\S+) executor"
_NO_PYTHON = r'Cannot run program "([^"]+)"'
_CAUSE = r"\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)?\s*"  # `deltalake` replaces each colon of an error by this
_FILE_ERROR = r"\w+: \[Errno \d+\] (?P<reason>.+): '(?P<file>.+)'"


def expected_error_types() -> tuple[type[BaseException], ...]:
    """Return the exception types that are not bugs of ours; those of libraries only if they were imported."""
    foreign = (
        ("pyspark.errors", "PySparkException"),
        ("py4j.protocol", "Py4JError"),
        ("deltalake.exceptions", "DeltaError"),
        ("pyarrow", "ArrowException"),
    )
    loaded = (getattr(sys.modules.get(module), name, None) for module, name in foreign)
    return (FormatError, OSError, MemoryError, SetupError, *(kind for kind in loaded if kind is not None))


@contextmanager
def raise_as_usage_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Turn errors of these types into usage errors, because the request must be changed."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(f"{prefix}{error}") from error


def is_caused_by_interrupt(error: BaseException) -> bool:
    """Return whether an error was raised because of an interruption."""
    before = error.__cause__ or error.__context__
    return before is not None and (isinstance(before, KeyboardInterrupt) or is_caused_by_interrupt(before))


def one_line_message(error: BaseException) -> str:
    """Return the message of an error without the text that libraries wrap around it."""
    if _is_lost_connection(error):
        how = jvm_death_text()
        if how is None:
            return (
                "Spark's JVM no longer responds; the lines above may show why. To continue, run the same command again"
            )
        memory = "; the system may have run out of memory" if "SIGKILL" in how else ""
        return (
            f"Spark's JVM has died ({how}{memory}); the lines above are its last output. To continue, run the same "
            "command again"
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        # The target of a failed move, if there is one.
        place = error.filename if error.filename2 is None else error.filename2
        return f"{os.fsdecode(place)}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_working_directory_deleted():
        return "the current directory was deleted. Change to another directory, and run the command again"
    if isinstance(error, MemoryError):
        return f"out of memory: {str(error) or 'the system refused an allocation'}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    # The causes of an error of `deltalake`; the last one is the relevant one.
    first, *causes = re.split(_CAUSE, " ".join(lines))
    return (
        _find_worker_error(lines)
        or _raised_on_a_worker(lines)
        # The line after "An error occurred while calling o38.count.", which does not say what failed.
        or next((line.removeprefix(": ") for line in lines if line.startswith(": ")), None)
        or (": ".join([first.removeprefix("Kernel error -> "), *causes]) if causes else None)
        or [*lines, type(error).__name__][0]
    ).strip()


def _is_working_directory_deleted() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - `Path.cwd` is the same
    except FileNotFoundError:
        return True
    return False


def _is_lost_connection(error: BaseException) -> bool:
    """Return whether a JVM call failed because the JVM has ended, not because of an unreachable DataNode or proxy."""
    py4j = sys.modules.get("py4j.protocol")
    if py4j is None:
        return False
    if isinstance(error, ConnectionError):
        import traceback

        return any("py4j" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__))
    return isinstance(error, py4j.Py4JNetworkError) or "Answer from Java side is empty" in str(error)


def _find_worker_error(lines: Sequence[str]) -> str | None:
    if any(_DEAD_WORKER in line for line in lines):
        return "a worker process died: it was killed by another process, or memory ran out; see the system log"
    missing = next((found[1] for line in lines if (found := re.search(_NO_PYTHON, line))), None)
    if missing is None:
        return None
    return (
        f"worker {_find_host(lines)}: the Python interpreter {missing} (from spark.pyspark.python, or the default) "
        "does not exist"
    )


def _find_host(lines: Sequence[str]) -> str:
    return next((found[1] for line in lines if (found := re.search(_WORKER, line))), "of the cluster")


def _raised_on_a_worker(lines: Sequence[str]) -> str | None:
    """Return the Python error of a task, extracted from Spark's text, as it would read in this process."""
    begun = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not begun:
        return None
    # The last one of a chain was raised; the others are its causes.
    raised = next((line for line in lines[begun[-1] + 1 :] if not line.startswith((" ", "\t"))), "")
    of_file = re.fullmatch(_FILE_ERROR, raised)
    if of_file:
        return f"{of_file['file']}: {of_file['reason']}"
    name, _, text = raised.partition(": ")
    if name == ModuleNotFoundError.__name__:
        from jobs.launch.session import worker_python_advice

        return f"worker {_find_host(lines)}: its Python lacks a package ({text}). {worker_python_advice()}"
    if name.startswith(FormatError.__module__):
        return text
    return f"{raised} (--traceback shows where)" if raised else None
