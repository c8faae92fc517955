"""The server: one address on standard output, pages until Ctrl-C."""

import errno
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from jobs.browse.application import Application
from jobs.browse.safety import Door
from jobs.browse.workers import Workers
from jobs.console.exit_codes import ExitCode
from jobs.launch.engine import SetupError
from jobs.query.place import Place, open_place

HOST = "127.0.0.1"
_PATIENCE = 2  # seconds that open answers get at the end
_LINES = 128  # of waiting connections


def serve(place: Place, port: int, *, opens: bool) -> ExitCode:
    """Serve the pages of a place until Ctrl-C or SIGTERM."""
    with open_place(place):  # errors of the place are raised before an address is printed
        pass
    with _listening(port) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(32)
        address = f"http://{HOST}:{port}/?token={token}"
        workers = Workers(place)
        stack.callback(workers.close)
        app = Door(Application(workers), token, port)
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
            folder = stack.enter_context(TemporaryDirectory(prefix="rmq-lake-browse-"))
            with suppress(webbrowser.Error):  # no browser starts: the address is printed
                webbrowser.open(redirect_file(Path(folder), address).as_uri())
        with suppress(KeyboardInterrupt):  # the way in which these pages end
            uvicorn.Server(config).run(sockets=[listener])
    return ExitCode.CLEAN


def redirect_file(folder: Path, address: str) -> Path:
    """
    Write a page that leads a browser to an address, readable by its owner alone.

    Every user of this machine can read the arguments of a process. So the browser gets the name of this file, and not
    the address with the token.
    """
    path = folder / "open.html"
    path.touch(mode=0o600, exist_ok=False)
    leads = f'<meta http-equiv="refresh" content="0;url={escape(address)}">'
    path.write_text(f"<!doctype html><title>rmq-lake</title>{leads}\n", encoding="utf-8")
    return path


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
