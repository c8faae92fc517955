"""Servers that tests start on this machine's own address, and stop again."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "127.0.0.1"
_START_SECONDS = 240  # of a busy machine
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
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as asked:
            if asked.connect_ex((ADDRESS, port)) == 0:
                return
        time.sleep(0.1)
    raise OSError(f"no server came up on port {port}: {log.read_text(errors='replace')[-2000:]}")
