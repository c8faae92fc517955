"""
HDFS, read over the HTTP of its name nodes and data nodes (WebHDFS): nothing to install, and no JVM beside a worker.

A request names a file by its path; the name node answers what it knows itself and sends the reader on to a data node
for bytes. Of a pair of name nodes the one that is by says so, and the other is asked.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from getpass import getuser
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from socket import SHUT_RDWR, socket
from threading import Event, Timer
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from jobs.storage.locations import join, refusal
from jobs.storage.model import FileInfo, Reader, Storage
from rmq_formats.layout import Buffer

_PREFIX = "/webhdfs/v1"
_PORT = 9870  # dfs.namenode.http-address
_SECONDS = 60.0  # for one answer of one node, the way to a data node and all bytes included
_LARGEST_LISTING = 64 << 20  # bytes; a directory of 200,000 files
_LARGEST_REFUSAL = 1 << 20
_MOST_FILES = 5_000_000
_DEEPEST = 32  # directories in directories
_SHOWN = 200
_OK, _TEMPORARY_REDIRECT, _UNAUTHORIZED = 200, 307, 401
_MISSING, _FORBIDDEN = "FileNotFoundException", ("AccessControlException", "SecurityException")
_STANDBY = ("StandbyException", "RetriableException")  # the second while a name node starts


class _Entry(NamedTuple):
    """The status of a file or directory from a name node; `name` is empty in the status of the path asked for."""

    name: str
    is_directory: bool
    size: int
    modified_ms: int


class _Refused(Exception):
    """A node has answered with an exception of its own."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message.splitlines()[0] if message else ""


def name_nodes(location: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the HTTP addresses of those that may know *location*, from the settings that Hadoop's own clients have."""
    settings = {name.lower(): value for name, value in options.items()}  # Spark's sources fold names
    authority = urlsplit(location).netloc or urlsplit(settings.get("fs.defaultfs", "")).netloc
    if not authority:
        raise OSError(f"{location}: names no name node, and no fs.defaultFS is set")
    pair = settings.get(f"dfs.ha.namenodes.{authority}".lower())
    if pair is not None:
        keys = [f"dfs.namenode.http-address.{authority}.{name.strip()}".lower() for name in pair.split(",")]
        return tuple(settings[key] for key in keys if key in settings)
    _, _, port = settings.get("dfs.namenode.http-address", "").rpartition(":")
    return (f"{urlsplit(f'//{authority}').hostname}:{port or _PORT}",)


class _HdfsReader(Reader):
    """A file of HDFS as long as it was when it was opened."""

    def __init__(self, nodes: Sequence[str], location: str) -> None:
        self._nodes = nodes
        self._location = location
        self.size = _status_of(nodes, location).size

    def read(self, position: int, length: int) -> bytes:
        wanted = min(length, self.size - position)
        return _read(self._nodes, self._location, position, wanted) if wanted > 0 else b""


@dataclass(frozen=True, slots=True)
class HdfsStorage(Storage):
    """A file system of Hadoop, to be read."""

    name_nodes: tuple[str, ...]

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name."""
        if not _status_of(self.name_nodes, location).is_directory:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
        found: list[FileInfo] = []
        pending = [""]
        while pending:
            prefix = pending.pop()
            with suppress(FileNotFoundError):  # retention deletes while we look
                for entry in _entries_of(self.name_nodes, join(location, prefix).rstrip("/")):
                    name = f"{prefix}{entry.name}"
                    if name.count("/") > _DEEPEST or len(found) + len(pending) > _MOST_FILES:
                        raise OSError(errno.ELOOP, "more files or directories than any store has", location)
                    if entry.is_directory:
                        pending.append(f"{name}/")
                    else:
                        found.append(FileInfo(name, entry.size, entry.modified_ms))
        return sorted(found)

    @contextmanager
    def open(self, location: str) -> Iterator[_HdfsReader]:
        """Open a file; every read is one ranged request."""
        yield _HdfsReader(self.name_nodes, location)

    def create(self, location: str, data: Buffer) -> None:
        """Refuse: this client only reads."""
        del data
        raise OSError(errno.EROFS, refusal(location, to_write=True))

    def delete(self, location: str) -> None:
        """Refuse."""
        raise OSError(refusal(location, to_write=True))


def _status_of(nodes: Sequence[str], location: str) -> _Entry:
    answer = _ask(nodes, location, "GETFILESTATUS", _LARGEST_LISTING)
    return _parsed(answer, location, lambda answer: _entry(answer["FileStatus"]))


def _entries_of(nodes: Sequence[str], location: str) -> list[_Entry]:
    answer = _ask(nodes, location, "LISTSTATUS", _LARGEST_LISTING)
    entries = _parsed(
        answer, location, lambda answer: [_entry(entry) for entry in answer["FileStatuses"]["FileStatus"]]
    )
    for entry in entries:
        if entry.name in {"", ".", ".."} or "/" in entry.name:
            raise OSError(f"{location}: what answers is no name node: it names a file {entry.name[:_SHOWN]!r}")
    return entries


def _entry(entry: Mapping[str, Any]) -> _Entry:
    name, kind = entry.get("pathSuffix", ""), entry["type"]
    return _Entry(str(name), kind == "DIRECTORY", int(entry["length"]), int(entry.get("modificationTime", 0)))


T = TypeVar("T")


def _parsed(data: bytes, location: str, take: Callable[[Any], T]) -> T:
    """Return the value that *take* finds in an answer, which may not be a name node's at all."""
    try:
        return take(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{location}: what answers is no name node: {error!r}") from error


def _read(nodes: Sequence[str], location: str, position: int, length: int) -> bytes:
    data = _ask(nodes, location, "OPEN", length, offset=position, length=length)
    if len(data) != length:
        raise OSError(f"{location}: ends at {position + len(data)} now: it was cut while it was being read")
    return data


_active: dict[Sequence[str], str] = {}  # which of a pair has answered last


def _ask(nodes: Sequence[str], location: str, operation: str, limit: int, **parameters: str | int) -> bytes:
    """Return a name node's answer of at most *limit* bytes, or that of the data node which it names."""
    asked = {"op": operation, "user.name": _user(), **parameters}
    target = f"{_PREFIX}{quote(_path(location))}?{urlencode(asked)}"
    reason = "no dfs.namenode.http-address is set for it"
    for node in sorted(nodes, key=lambda node: node != _active.get(nodes)):
        try:
            data = _get(node, target, limit)
        except _Refused as refused:
            if refused.name not in _STANDBY:
                raise _error(location, refused) from refused
            reason = f"{node}: {refused.message}"
        except (OSError, HTTPException) as error:  # the other name node is asked; the last reason is raised
            reason = f"{node}: {getattr(error, 'strerror', None) or repr(error)}"
        else:
            _active[nodes] = node
            return data
    raise OSError(f"{location}: HDFS does not answer: {reason}")


def _get(node: str, target: str, limit: int) -> bytes:
    """Return the answer of one node, of at most *limit* bytes; follow it once to where it sends us, in one time."""
    deadline = monotonic() + _SECONDS
    with _answered(node, target, deadline) as response:
        if response.status != _TEMPORARY_REDIRECT:
            return _body(response, limit)
        elsewhere, target = _elsewhere(response)
    with _answered(elsewhere, target, deadline) as response:
        if response.status == _TEMPORARY_REDIRECT:
            raise OSError(errno.ELOOP, f"sends us on to {elsewhere}, which sends us on again")
        return _body(response, limit)


def _elsewhere(response: HTTPResponse) -> tuple[str, str]:
    """Return the node that an answer redirects to, and the request for it."""
    location = response.headers["Location"] or ""
    with suppress(ValueError):  # no URL: refused below
        there = urlsplit(location)
        if there.scheme == "http" and there.hostname and there.port != 0:
            return there.netloc, f"{there.path}?{there.query}"
    raise OSError(errno.EPROTO, f"sends us on to {location[:_SHOWN]!r}, which is no http://host:port")


@contextmanager
def _answered(node: str, target: str, deadline: float) -> Iterator[HTTPResponse]:
    """
    Ask a node; a timer cuts the connection at the deadline.

    A socket's own timeout begins again with every byte, so that a node which sends one now and then holds us for ever.
    """
    left = max(deadline - monotonic(), 0.001)
    connection = HTTPConnection(node, timeout=left)
    is_late = Event()
    timer: Timer | None = None
    try:
        connection.connect()
        timer = Timer(left, _cut, [connection.sock, is_late])
        timer.daemon = True
        timer.start()
        connection.request("GET", target)
        yield connection.getresponse()
    except (OSError, HTTPException, ValueError) as error:
        if is_late.is_set() or isinstance(error, TimeoutError):
            raise OSError(errno.ETIMEDOUT, f"no whole answer within {_SECONDS:g} s") from error
        raise
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _cut(connected: socket, is_late: Event) -> None:
    is_late.set()
    with suppress(OSError):  # ENOTCONN: closed meanwhile
        connected.shutdown(SHUT_RDWR)


def _body(response: HTTPResponse, limit: int) -> bytes:
    """Return the body of an answer, if it may be that long."""
    largest = limit if response.status == _OK else _LARGEST_REFUSAL
    data = response.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EMSGSIZE, f"answers with more than {largest} bytes")
    if response.length:  # bytes that were promised and did not come
        raise IncompleteRead(data, response.length)
    if response.status != _OK:
        raise _refused(response, data)
    return data


def _refused(response: HTTPResponse, data: bytes) -> _Refused:
    if response.status == _UNAUTHORIZED:
        return _Refused("AuthenticationException", "it asks for Kerberos, which is not supported here")
    try:
        answer = json.loads(data)["RemoteException"]
        return _Refused(str(answer["exception"]), str(answer["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Refused(f"HTTP status {response.status}", response.reason)


def _error(location: str, refused: _Refused) -> OSError:
    if refused.name == _MISSING:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    if refused.name in _FORBIDDEN:
        return PermissionError(errno.EACCES, f"HDFS denies it to user {_user()}: {refused.message}", location)
    return OSError(f"{location}: {refused.name}: {refused.message}")


def _path(location: str) -> str:
    """Return the path of a location as it is there: names may hold '?', '#' and '%'."""
    return "/" + location.split("://", 1)[1].partition("/")[2]


def _user() -> str:
    """Return the user's name, as Hadoop's clients send it without Kerberos; on a worker, the application's."""
    return os.environ.get("HADOOP_USER_NAME") or os.environ.get("SPARK_USER") or getuser()
