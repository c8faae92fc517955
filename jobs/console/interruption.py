"""How an interrupted command ends: the sentence that says how to continue, and threads that cannot be stopped."""

import os
import sys
import threading

LEFT_BEHIND = "left behind"  # the name of a thread that nothing can interrupt, and that ends with the process

_left: list[str] = []


def note(sentence: str) -> None:
    """From now on, end an interruption with *sentence* in place of the verb's general one."""
    _left[:] = [sentence]


def exit_process(code: int) -> None:
    """End the process, at once where a thread was left behind: the interpreter would abort at it."""
    if any(thread.name == LEFT_BEHIND for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def forget() -> None:
    """Begin another command."""
    _left.clear()


def noted() -> str | None:
    """Return the sentence that was noted last."""
    return _left[-1] if _left else None
