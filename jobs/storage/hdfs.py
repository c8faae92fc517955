"""
HDFS, read over the HTTP of its name nodes and data nodes (WebHDFS): nothing to install, and no JVM beside a worker.

A request names a file by its path; the name node answers what it knows itself and sends the reader on to a data node
for bytes. Of a pair of name nodes the one that stands by says so, and the other is asked.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from getpass import getuser
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from jobs.storage.locations import join, refusal
from jobs.storage.model import FileInfo, Reader, Storage

_PREFIX = "/webhdfs/v1"
_PORT = 9870  # dfs.namenode.http-address
_SECONDS = 60.0
_MISSING, _FORBIDDEN = "FileNotFoundException", ("AccessControlException", "SecurityException")
_STANDBY = ("StandbyException", "RetriableException")  # the second while a name node starts


class _Entry(NamedTuple):
    """What a name node tells of a file or directory; `name` is empty where it was asked for by its own path."""

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
                    if entry.is_directory:
                        pending.append(f"{name}/")
                    else:
                        found.append(FileInfo(name, entry.size, entry.modified_ms))
        return sorted(found)

    @contextmanager
    def open(self, location: str) -> Iterator[_HdfsReader]:
        """Open a file; every read is one ranged request."""
        yield _HdfsReader(self.name_nodes, location)

    def create(self, location: str, data: bytes) -> None:
        """Refuse: this client only reads."""
        del data
        raise OSError(errno.EROFS, refusal(location, to_write=True))

    def delete(self, location: str) -> None:
        """Refuse."""
        raise OSError(refusal(location, to_write=True))


def _status_of(nodes: Sequence[str], location: str) -> _Entry:
    """Return what the name node says of a file or directory."""
    return _told(_ask(nodes, location, "GETFILESTATUS"), location, lambda answer: _entry(answer["FileStatus"]))


def _entries_of(nodes: Sequence[str], location: str) -> list[_Entry]:
    """Return what lies in a directory."""
    answer = _ask(nodes, location, "LISTSTATUS")
    return _told(answer, location, lambda answer: [_entry(entry) for entry in answer["FileStatuses"]["FileStatus"]])


def _entry(entry: Mapping[str, Any]) -> _Entry:
    name, kind = entry.get("pathSuffix", ""), entry["type"]
    return _Entry(name, kind == "DIRECTORY", int(entry["length"]), int(entry.get("modificationTime", 0)))


T = TypeVar("T")


def _told(data: bytes, location: str, take: Callable[[Any], T]) -> T:
    """Return what *take* finds in an answer; whatever listens there may be no name node."""
    try:
        return take(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(f"{location}: what answers is no name node: {error!r}") from error


def _read(nodes: Sequence[str], location: str, position: int, length: int) -> bytes:
    """Return bytes of a file that has them."""
    data = _ask(nodes, location, "OPEN", offset=position, length=length)
    if len(data) != length:
        raise OSError(f"{location}: ends at {position + len(data)} now: it was cut while it was being read")
    return data


_active: dict[Sequence[str], str] = {}  # which of a pair has answered last


def _ask(nodes: Sequence[str], location: str, operation: str, **parameters: str | int) -> bytes:
    """Return a name node's answer, or that of the data node which it names."""
    asked = {"op": operation, "user.name": _user(), **parameters}
    target = f"{_PREFIX}{quote(_path(location))}?{urlencode(asked)}"
    reason = "no dfs.namenode.http-address is set for it"
    for node in sorted(nodes, key=lambda node: node != _active.get(nodes)):
        try:
            data = _get(node, target)
        except _Refused as refused:
            if refused.name not in _STANDBY:
                raise _error(location, refused) from refused
            reason = f"{node}: {refused.message}"
        except (OSError, HTTPException) as error:
            reason = f"{node}: {getattr(error, 'strerror', None) or repr(error)}"
        else:
            _active[nodes] = node
            return data
    raise OSError(f"{location}: HDFS does not answer: {reason}")


def _get(node: str, target: str) -> bytes:
    """Return the answer of one node; follow it once to where it sends us."""
    connection = HTTPConnection(node, timeout=_SECONDS)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        if response.status == 307:  # noqa: PLR2004 - temporary redirect: the bytes are elsewhere
            response.read()
            elsewhere = urlsplit(response.headers["Location"])
            return _get(elsewhere.netloc, f"{elsewhere.path}?{elsewhere.query}")
        data = response.read()
    finally:
        connection.close()
    if response.status != 200:  # noqa: PLR2004 - OK
        raise _refused(response, data)
    return data


def _refused(response: HTTPResponse, data: bytes) -> _Refused:
    if response.status == 401:  # noqa: PLR2004 - unauthorized
        return _Refused("AuthenticationException", "it asks for Kerberos, which is not supported here")
    try:
        told = json.loads(data)["RemoteException"]
        return _Refused(told["exception"], told["message"])
    except (ValueError, KeyError, TypeError):
        return _Refused(f"HTTP status {response.status}", response.reason)


def _error(location: str, refused: _Refused) -> OSError:
    if refused.name == _MISSING:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    if refused.name in _FORBIDDEN:
        return PermissionError(errno.EACCES, f"HDFS denies it to user {_user()}: {refused.message}", location)
    return OSError(f"{location}: {refused.name}: {refused.message}")


def _path(location: str) -> str:
    """Return the path of a location as it stands there: names may hold '?', '#' and '%'."""
    return "/" + location.split("://", 1)[1].partition("/")[2]


def _user() -> str:
    """Return who asks, as Hadoop's own clients do without Kerberos; on a worker, who has started the application."""
    return os.environ.get("HADOOP_USER_NAME") or os.environ.get("SPARK_USER") or getuser()
