"""Waiting for other processes by polling, never for a fixed time."""

import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_TIMEOUT_S: Final = 240.0  # long enough for a busy machine
_POLL_INTERVAL_S: Final = 0.1


def wait_until(probe: Callable[[], T | None], describe: Callable[[], object]) -> T:
    """Poll until *probe* returns a true value, and return it; after the timeout, raise TimeoutError with *describe*."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(describe())
        time.sleep(_POLL_INTERVAL_S)
    return found


_MAX_WORKERS: Final = 4  # pytest-xdist workers
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MAX_WORKERS
_PORTS: Final = range(20_000, 32_000)[_WORKER * 3_000 :][:3_000]  # below the ephemeral ports
_USED_PORTS: Final[deque[int]] = deque(maxlen=64)  # recently returned ports, on which a server may start soon


def free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        is_apart = all(abs(port - other) > 3 for other in _USED_PORTS)
        if is_apart and all(map(_is_free, (port - 2, port, port + 1))):
            _USED_PORTS.append(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
