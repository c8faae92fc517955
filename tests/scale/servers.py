"""Servers that tests start on this machine's own address, and stop again."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support.waiting import wait_until

ADDRESS = "127.0.0.1"
_STOP_SECONDS = 20


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server whose words go to *log*, and end it with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when something listens on *port*; say what the server said when it does not come up."""
    complaint = partial(_complaint, port, log)
    wait_until(lambda: _is_listening(port) or process.poll() is not None, complaint)
    if process.poll() is not None:
        raise OSError(complaint())


def _is_listening(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex((ADDRESS, port)) == 0


def _complaint(port: int, log: Path) -> str:
    return f"no server came up on port {port}: {log.read_text(errors='replace')[-2000:]}"
