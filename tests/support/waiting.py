"""Waiting for what other processes do: by looking again, never by counting on a time that is usually enough."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_PATIENCE_S: Final = 240.0  # of a busy machine; who waits as long has found a fault
_LOOKS_AGAIN_S: Final = 0.1


def wait_until(look: Callable[[], T | None], complaint: Callable[[], object]) -> T:
    """Return what is seen as soon as it is something; raise TimeoutError with the complaint when it does not come."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(complaint())
        time.sleep(_LOOKS_AGAIN_S)
    return seen
