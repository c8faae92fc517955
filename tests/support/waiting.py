"""Waiting for other processes by polling, never for a fixed time."""

import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_PATIENCE_S: Final = 240.0  # of a busy machine; who waits as long has found a fault
_LOOKS_AGAIN_S: Final = 0.1


def wait_until(look: Callable[[], T | None], complaint: Callable[[], object]) -> T:
    """Poll until *look* returns a true value, and return it; after the timeout raise TimeoutError with a complaint."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(complaint())
        time.sleep(_LOOKS_AGAIN_S)
    return seen


_SIDE_BY_SIDE: Final = 4  # workers of pytest's, at most
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SIDE_BY_SIDE
_PORTS: Final = range(20_000, 32_000)[_WORKER * 3_000 :][:3_000]  # below the ephemeral ports
_GIVEN: Final[deque[int]] = deque(maxlen=64)  # ports that nothing may listen on yet, but something will


def free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        is_apart = all(abs(port - other) > 3 for other in _GIVEN)
        if is_apart and all(map(_is_free, (port - 2, port, port + 1))):
            _GIVEN.append(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
