"""What systemd hears of a service that runs on: that it is ready, that it is alive, that it ends."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def watched() -> Iterator[Callable[[], None]]:
    """Yield what says that the service works, ready by then; say at the end that it stops. Nothing without systemd."""
    yield _alive
    _notify("STOPPING=1")


def _alive() -> None:
    _notify("READY=1\nWATCHDOG=1")


def _notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notified:
        notified.connect("\0" + address[1:] if address.startswith("@") else address)
        notified.send(state.encode())
