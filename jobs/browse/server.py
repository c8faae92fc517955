"""The server: one address on standard output, pages until Ctrl-C."""

import errno
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress

import uvicorn

from jobs.browse.application import application
from jobs.browse.asking import Asker
from jobs.browse.safety import Door
from jobs.browse.subject import Place
from jobs.console.exit_codes import ExitCode
from jobs.launch.errors import SetupError

HOST = "127.0.0.1"
_PATIENCE = 2  # seconds that open answers get at the end
_LINES = 128  # of waiting connections


def serve(place: Place, port: int, *, opens: bool) -> ExitCode:
    """Serve the pages of a place until Ctrl-C or SIGTERM."""
    asker = Asker(place)
    asker.check()
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(32)
        address = f"http://{HOST}:{port}/?token={token}"
        app = Door(application(asker), token, port)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            timeout_graceful_shutdown=_PATIENCE,
        )
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if opens and _has_display():
            with suppress(webbrowser.Error):  # no browser starts: the address is printed
                webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # the way in which these pages end
            uvicorn.Server(config).run(sockets=[listener])
    if not asker.close(_PATIENCE):
        # A query of a lake cannot be interrupted, and the interpreter would wait for it. Nothing is ever written.
        sys.stdout.flush()
        os._exit(ExitCode.CLEAN)
    return ExitCode.CLEAN


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(_LINES)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SetupError(f"port {port} of {HOST} is in use: give another --port, or none for a free one") from error
        raise OSError(error.errno, error.strerror, f"port {port} of {HOST}") from error
    return listener


def _has_display() -> bool:
    """Return whether a browser would have a screen to open a page on."""
    is_remote = "SSH_CONNECTION" in os.environ
    if sys.platform == "darwin":
        return not is_remote
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
