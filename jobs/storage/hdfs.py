"""
A read-only client for HDFS over WebHDFS (HTTP): needs no installation, and no JVM next to a worker.

A NameNode answers metadata requests itself, and redirects reads to a DataNode. If a NameNode is on standby, it says
so, and the other one of the pair is used.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from getpass import getuser
from http.client import HTTPException, HTTPResponse, IncompleteRead
from time import monotonic
from typing import cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
)

from jobs.storage.locations import join_location
from jobs.storage.model import FetchingReader, FileInfo, Storage

_PREFIX = "/webhdfs/v1"
_PORT = 9870  # dfs.namenode.http-address
_SECONDS = 60.0  # time limit of one answer of one node, including the redirect to a DataNode and all bytes
_LARGEST_LISTING = 64 << 20  # bytes; a directory of 200,000 files
_LARGEST_REFUSAL = 1 << 20
_MOST_FILES = 5_000_000
_DEEPEST = 32  # directories in directories
_SHOWN = 200  # characters of a wrong name
_PIECE = 1 << 20
_UNAUTHORIZED = 401
_MISSING, _FORBIDDEN = "FileNotFoundException", ("AccessControlException", "SecurityException")
_STANDBY = ("StandbyException", "RetriableException")  # the second while a NameNode starts
# Redirects are followed to HTTP and HTTPS only, and no proxy of the environment is used.
_OPENER = OpenerDirector()
for _handler in (HTTPHandler, HTTPSHandler, HTTPRedirectHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor):
    _OPENER.add_handler(_handler())


def name_nodes(location: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the HTTP addresses of the NameNodes for *location*, from the settings of Hadoop's own clients."""
    settings = {name.lower(): value for name, value in options.items()}  # Spark's sources fold names
    authority = urlsplit(location).netloc or urlsplit(settings.get("fs.defaultfs", "")).netloc
    if not authority:
        raise OSError(f"{location}: no NameNode in the location, and fs.defaultFS is not set")
    pair = settings.get(f"dfs.ha.namenodes.{authority}".lower())
    if pair is not None:
        keys = [f"dfs.namenode.http-address.{authority}.{name.strip()}".lower() for name in pair.split(",")]
        return tuple(settings[key] for key in keys if key in settings)
    _, _, port = settings.get("dfs.namenode.http-address", "").rpartition(":")
    return (f"{urlsplit(f'//{authority}').hostname}:{port or _PORT}",)


@dataclass(frozen=True, slots=True)
class HdfsStorage(Storage):
    """A Hadoop file system, for reading."""

    name_nodes: tuple[str, ...]

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name."""
        if not _statuses(self.name_nodes, location, "GETFILESTATUS")[0][1]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
        found: list[FileInfo] = []
        pending = [""]
        while pending:
            prefix = pending.pop()
            with suppress(FileNotFoundError):  # retention may delete files meanwhile
                place = join_location(location, prefix).rstrip("/")
                for entry, is_directory in _statuses(self.name_nodes, place, "LISTSTATUS"):
                    if entry.name in {"", ".", ".."} or "/" in entry.name:
                        raise OSError(
                            f"{place}: the server returned an invalid file name, {entry.name[:_SHOWN]!r}: check that "
                            "it is an HDFS NameNode"
                        )
                    name = f"{prefix}{entry.name}"
                    if name.count("/") > _DEEPEST or len(found) + len(pending) > _MOST_FILES:
                        raise OSError(errno.ELOOP, "more files or directory levels than any store has", location)
                    if is_directory:
                        pending.append(f"{name}/")
                    else:
                        found.append(entry._replace(name=name))
        return sorted(found)

    @contextmanager
    def open(self, location: str) -> Iterator[FetchingReader]:
        """Open a file; every read is one ranged request."""

        def fetch(position: int, length: int) -> bytes:
            data = _ask(self.name_nodes, location, "OPEN", length, offset=position, length=length)
            if len(data) != length:
                ends = f"now ends at {position + len(data)}: it was truncated while it was being read"
                raise OSError(f"{location}: {ends}")
            return data

        yield FetchingReader(_statuses(self.name_nodes, location, "GETFILESTATUS")[0][0].size, fetch)


def _statuses(nodes: Sequence[str], location: str, operation: str) -> list[tuple[FileInfo, bool]]:
    """Return the files (false) and directories (true) in a directory, or *location* itself for GETFILESTATUS."""
    data = _ask(nodes, location, operation, _LARGEST_LISTING)
    try:
        answer = json.loads(data)
        found = answer["FileStatuses"]["FileStatus"] if operation == "LISTSTATUS" else [answer["FileStatus"]]
        return [
            (
                FileInfo(str(one.get("pathSuffix", "")), int(one["length"]), int(one.get("modificationTime", 0))),
                one["type"] == "DIRECTORY",
            )
            for one in found
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{location}: the server is not an HDFS NameNode: {error!r}") from error


_active: dict[Sequence[str], str] = {}  # the NameNode of each pair that answered last


def _ask(nodes: Sequence[str], location: str, operation: str, limit: int, **parameters: str | int) -> bytes:
    """Return a response of at most *limit* bytes from a NameNode, or from the DataNode to which it redirects."""
    asked = {"op": operation, "user.name": _user(), **parameters}
    path = location.split("://", 1)[1].partition("/")[2]  # not decoded: names may contain '?', '#' and '%'
    target = f"{_PREFIX}/{quote(path)}?{urlencode(asked)}"
    reason = "dfs.namenode.http-address is not set"
    for node in sorted(nodes, key=lambda node: node != _active.get(nodes)):
        try:
            answer = _get(node, target, limit)
        except (OSError, HTTPException, ValueError) as error:  # the other node is asked; ValueError: not a URL
            cause = getattr(error, "reason", error)  # urllib wraps errors of the connection
            reason = f"{node}: {getattr(cause, 'strerror', None) or repr(cause)}"
            continue
        if isinstance(answer, bytes):
            _active[nodes] = node
            return answer
        refusal, message = answer
        if refusal == _MISSING:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
        if refusal in _FORBIDDEN:
            reason = f"HDFS denies access to user {_user()}: {message}"
            raise PermissionError(errno.EACCES, reason, location)
        if refusal not in _STANDBY:
            raise OSError(f"{location}: {refusal}: {message}")
        reason = f"{node}: {message}"
    raise OSError(
        f"{location}: HDFS does not answer: {reason}; check dfs.namenode.http-address, and that a NameNode is active"
    )


def _get(node: str, target: str, limit: int) -> bytes | tuple[str, str]:
    """
    Return a response of at most *limit* bytes, or the name and the message of a refusal.

    There is one deadline for all bytes, because a socket timeout restarts with every byte.
    """
    deadline = monotonic() + _SECONDS
    try:
        with _OPENER.open(f"http://{node}{target}", timeout=_SECONDS) as response:
            return _body(response, limit, deadline)
    except HTTPError as error:
        with error:
            data = _body(cast("HTTPResponse", error.fp), _LARGEST_REFUSAL, deadline)
        if error.code == _UNAUTHORIZED:
            return "AuthenticationException", "it requires Kerberos, which is not supported here"
        try:
            answer = json.loads(data)["RemoteException"]
            return str(answer["exception"]), next(iter(str(answer["message"]).splitlines()), "")
        except (ValueError, KeyError, TypeError, RecursionError):
            return f"HTTP status {error.code}", str(error.reason)


def _body(response: HTTPResponse, limit: int, deadline: float) -> bytes:
    data = bytearray()
    while piece := response.read1(_PIECE):
        data += piece
        if len(data) > limit:
            raise OSError(errno.EMSGSIZE, f"the response has more than {limit} bytes")
        if monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"no complete response within {_SECONDS:g} s")
    if response.length:  # the response is shorter than its stated length
        raise IncompleteRead(bytes(data), response.length)
    return bytes(data)


def _user() -> str:
    """Return the user name that Hadoop clients send without Kerberos; on a worker, the application's."""
    return os.environ.get("HADOOP_USER_NAME") or os.environ.get("SPARK_USER") or getuser()
