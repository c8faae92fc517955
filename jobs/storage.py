"""
Files and objects, wherever they lie: list, read ranges, create, delete.

The only module that knows file systems and their credentials. Local paths go straight to the operating system: `pread`
gives an error with an offset where a mapping would kill the process. Object stores come through pyarrow; HDFS is read
over HTTP. A location is a local path or a URI; `join` builds children of either.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import unquote, urlsplit

from jobs.priority import step_back

LOCAL = "file"
S3_SCHEMES = frozenset({"s3", "s3a"})
HDFS = "hdfs"
_CARE = "rmq-lake.max-rate"  # among the settings of a store's file system
_BURST_SECONDS = 0.5  # of unused time that may be made up for
_PAGE = 4096
_CAREFUL_BLOCK = 1 << 18  # read at once with care; one that ends in cached pages is not dropped


class Care(NamedTuple):
    """How to read where a broker may be at work: pages that nobody had cached are dropped, and the speed is limited."""

    max_rate: int | None = None  # bytes a second

    def shared_by(self, processes: int) -> Self:
        """Return what each of so many processes that read at once must keep to."""
        return self._replace(max_rate=max(self.max_rate // processes, 1)) if self.max_rate else self

    def as_options(self) -> dict[str, str]:
        """Return the form in which it travels to tasks: a setting of the store's file system."""
        return {_CARE: str(self.max_rate or 0)}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self | None:
        """Read it from settings; None when they ask for none."""
        told = options.get(_CARE)
        return None if told is None else cls(int(told) or None)


class _Pace:
    """Keeps this process below a number of bytes a second, whatever it reads, and however long it computes between."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._free_at = 0.0

    def wait(self, size: int) -> None:
        """Wait until *size* bytes more are not too many."""
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self._rate
        time.sleep(max(self._free_at - now, 0))


@lru_cache(maxsize=8)
def _pace(rate: int) -> _Pace:
    return _Pace(rate)


class FileInfo(NamedTuple):
    """One file below a listed directory: `name` is its path relative to that directory, with slashes."""

    name: str
    size: int
    modified_ms: int


class Reader(Protocol):
    """An open file; `read` is short only at the file's end."""

    size: int

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Return the bytes at *position*."""
        ...


class Storage(Protocol):
    """What the jobs need of a file system. Every error is an `OSError`."""

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every file below *location*, sorted by name; `FileNotFoundError` when there is no such directory."""
        ...

    def open(self, location: str) -> Any:  # noqa: ANN401 - a context manager of a Reader
        """Open *location* for reading."""
        ...

    def create(self, location: str, data: bytes) -> None:
        """Write a new file durably, whole or not at all; `FileExistsError` when it exists."""
        ...

    def delete(self, location: str) -> None:
        """Remove a file; nothing happens when it is gone already."""
        ...


def scheme_of(location: str) -> str:
    """Return the scheme of a URI, `file` for a path."""
    scheme = urlsplit(location).scheme if "://" in location else ""
    return scheme or LOCAL


def is_local(location: str) -> bool:
    """Tell whether *location* is on this machine's file system."""
    return scheme_of(location) == LOCAL


def local_path(location: str) -> str:
    """Return the path of a local location, absolute."""
    path = unquote(urlsplit(location).path) if location.startswith("file:") else location
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links


def normalise(location: str) -> str:
    """Return the one spelling of *location* that the program uses: an absolute path, or a URI without a final slash."""
    return local_path(location) if is_local(location) else location.rstrip("/")


def join(location: str, *names: str) -> str:
    """Return a child of *location*."""
    return "/".join((location.rstrip("/"), *names))


def storage_of(location: str, options: Mapping[str, str] | None = None) -> Storage:
    """
    Return the storage that holds *location*.

    *options* are the Hadoop settings of the session (`fs.s3a.…`), from which an object store's client takes address and
    credentials; in a store's settings may be how to read it beside a broker (see `Care`).
    """
    reason = refusal(location)
    if reason is not None:
        raise OSError(reason)
    if is_local(location):
        return LocalStorage(Care.of(options or {}))
    if scheme_of(location) == HDFS:
        from jobs.webhdfs import HdfsStorage, name_nodes  # who reads no HDFS does not wait for http.client

        return HdfsStorage(name_nodes(location, options or {}))
    return _s3_storage(tuple(sorted((options or {}).items())))


def refusal(location: str, *, to_write: bool = False) -> str | None:
    """Say why nothing can be read, or written, at *location*; None when its kind is known."""
    scheme = scheme_of(location)
    if scheme == LOCAL or scheme in S3_SCHEMES:
        return None
    if scheme != HDFS:
        return f"{location}: {scheme}:// can be neither read nor written; known are local paths, s3a:// and hdfs://"
    return f"{location}: hdfs:// is for stores alone; lakes and output are local paths or s3a://" if to_write else None


class LocalReader:
    """A descriptor, read by position; with care, pages that nobody had cached are dropped again."""

    def __init__(self, descriptor: int, care: Care | None = None) -> None:
        """Take over an open descriptor."""
        self._descriptor = descriptor
        self._care = care
        self.size = os.fstat(descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at *position*; short only at the file's end."""
        buffer = bytearray(max(min(length, self.size - position), 0))
        filled = self.read_into(position, memoryview(buffer))
        return bytes(buffer if filled == len(buffer) else buffer[:filled])

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill *buffer* from *position* and return how many bytes there were."""
        if self._care is None:
            return self._fill(position, buffer)
        filled = 0
        while filled < buffer.nbytes:
            count = self._fill_carefully(position + filled, buffer[filled : filled + _CAREFUL_BLOCK])
            if not count:
                break
            filled += count
        return filled

    def _fill_carefully(self, position: int, buffer: memoryview) -> int:
        """Fill *buffer*; what had to come from the disk leaves the page cache again, and the rate is kept."""
        if self._care is not None and self._care.max_rate:
            _pace(self._care.max_rate).wait(buffer.nbytes)
        cached = self._cached(position, buffer)
        # The kernel drops pages in groups of up to megabytes: it must not be asked where cached ones may be among them.
        meets_cached = cached < buffer.nbytes and self._cached(position + buffer.nbytes - 1, buffer[-1:]) > 0
        filled = cached + self._fill(position + cached, buffer[cached:])
        if filled > cached and not meets_cached:
            self._drop(position + cached, position + filled)
        return filled

    def _drop(self, start: int, end: int) -> None:
        """Give back the pages of [start, end), those that it shares with its neighbours as well."""
        first, last = start // _PAGE * _PAGE, -(-end // _PAGE) * _PAGE
        os.posix_fadvise(self._descriptor, first, last - first, os.POSIX_FADV_DONTNEED)

    def next_written(self, position: int) -> int:
        """Return where the next byte stands that was ever written; what was not, a file system does not store."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else position

    def _cached(self, position: int, buffer: memoryview) -> int:
        """Read what the page cache holds, up to the first page that it does not."""
        try:
            return os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except (OSError, AttributeError):  # nothing is cached, or this system cannot tell
            return 0

    def _fill(self, position: int, buffer: memoryview) -> int:
        filled = 0
        while filled < buffer.nbytes:  # the kernel may cut a large read
            count = os.preadv(self._descriptor, [buffer[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return filled


def next_written(reader: Reader, position: int) -> int:
    """Return where the next byte stands that may not be zero, as far as the storage knows."""
    return reader.next_written(position) if isinstance(reader, LocalReader) else position


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """The file system of this machine."""

    care: Care | None = None

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every regular file below *location*, sorted by name; links are followed, but no directory twice."""
        root = local_path(location)
        if not os.path.isdir(root):  # noqa: PTH112 - one call on a hot path
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
        found: list[FileInfo] = []
        seen: set[tuple[int, int]] = set()
        pending = [""]
        while pending:
            prefix = pending.pop()
            with os.scandir(f"{root}/{prefix}") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # retention deletes while we look
                        status = entry.stat()
                        name = f"{prefix}{entry.name}"
                        if stat.S_ISREG(status.st_mode):
                            found.append(FileInfo(name, status.st_size, status.st_mtime_ns // 1_000_000))
                        elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                            seen.add((status.st_dev, status.st_ino))
                            pending.append(f"{name}/")
        return sorted(found)

    @contextmanager
    def open(self, location: str) -> Iterator[LocalReader]:
        """Open a file read-only; the descriptor does not outlive the block."""
        descriptor = os.open(local_path(location), os.O_RDONLY | os.O_CLOEXEC)
        if self.care is not None:
            step_back()
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead: nobody would drop those pages
        try:
            yield LocalReader(descriptor, self.care)
        finally:
            os.close(descriptor)

    def create(self, location: str, data: bytes) -> None:
        """Write a new file through a temporary name, flush it and its directory."""
        path = Path(local_path(location))
        path.parent.mkdir(parents=True, exist_ok=True)
        attempt = path.with_name(f".{path.name}.attempt-{os.getpid()}")
        try:
            with attempt.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(attempt, path)  # fails when the name is taken, unlike rename
        finally:
            attempt.unlink(missing_ok=True)
        flush_directory(path.parent)

    def delete(self, location: str) -> None:
        """Remove a file, if it is there."""
        Path(local_path(location)).unlink(missing_ok=True)


def flush_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _ArrowReader:
    """A file of a pyarrow file system."""

    def __init__(self, file: Any, size: int) -> None:  # noqa: ANN401 - pyarrow has no types
        self._file = file
        self.size = size

    def read(self, position: int, length: int) -> memoryview:
        return memoryview(self._file.read_at(min(length, max(self.size - position, 0)), position))


@dataclass(frozen=True, slots=True)
class S3Storage:
    """An object store that speaks S3; objects are born whole."""

    filesystem: Any = field(repr=False)  # never print what holds a key

    @staticmethod
    def _key(location: str) -> str:
        return location.split("://", 1)[1].rstrip("/")

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every object below *location*, sorted by name."""
        from pyarrow.fs import FileSelector

        root = self._key(location)
        infos = self.filesystem.get_file_info(FileSelector(root, recursive=True))
        return sorted(
            FileInfo(info.path[len(root) + 1 :], info.size, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.is_file
        )

    @contextmanager
    def open(self, location: str) -> Iterator[_ArrowReader]:
        """Open an object; every read is one ranged request."""
        with self.filesystem.open_input_file(self._key(location)) as file:
            yield _ArrowReader(file, file.size())

    def create(self, location: str, data: bytes) -> None:
        """Put an object; its name is ours alone, so nothing is overwritten."""
        with self.filesystem.open_output_stream(self._key(location)) as stream:
            stream.write(data)

    def delete(self, location: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self._key(location))


def arrow_file(location: str, options: Mapping[str, str]) -> Any:  # noqa: ANN401 - a file of pyarrow's
    """Open a file for pyarrow's own readers."""
    if is_local(location):
        from pyarrow import OSFile

        return OSFile(local_path(location))
    return arrow_filesystem(location, options).open_input_file(location.split("://", 1)[1])


def arrow_filesystem(location: str, options: Mapping[str, str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return pyarrow's file system of a location that is not local."""
    storage = storage_of(location, options)
    if not isinstance(storage, S3Storage):
        raise OSError(refusal(location, to_write=True))
    return storage.filesystem


class S3Settings(NamedTuple):
    """What Hadoop calls `fs.s3a.…`, for every client that needs it."""

    endpoint: str | None
    access_key: str | None
    secret_key: str | None
    session_token: str | None
    region: str | None
    path_style: bool
    plain_http: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the Hadoop settings; what is absent is left to the client's own defaults."""
        endpoint = options.get("fs.s3a.endpoint")
        ssl = options.get("fs.s3a.connection.ssl.enabled", "true").lower() == "true"
        return cls(
            endpoint,
            options.get("fs.s3a.access.key"),
            options.get("fs.s3a.secret.key"),
            options.get("fs.s3a.session.token"),
            options.get("fs.s3a.endpoint.region"),
            options.get("fs.s3a.path.style.access", "false").lower() == "true",
            endpoint is not None and (endpoint.startswith("http://") if "://" in endpoint else not ssl),
        )


@lru_cache(maxsize=8)
def _s3_storage(options: tuple[tuple[str, str], ...]) -> S3Storage:
    from pyarrow.fs import S3FileSystem

    settings = S3Settings.of(dict(options))
    arguments = {
        "access_key": settings.access_key,
        "secret_key": settings.secret_key,
        "session_token": settings.session_token,
        "region": settings.region,
        "endpoint_override": settings.endpoint.split("://", 1)[-1] if settings.endpoint else None,
        "scheme": "http" if settings.plain_http else "https",
        "force_virtual_addressing": bool(settings.endpoint) and not settings.path_style,
    }
    return S3Storage(S3FileSystem(**{name: value for name, value in arguments.items() if value is not None}))


def delta_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the same settings under the names that `deltalake` knows; conditional puts make commits safe."""
    if scheme_of(location) not in S3_SCHEMES:
        return {}
    settings = S3Settings.of(options)
    named = {
        "AWS_ACCESS_KEY_ID": settings.access_key,
        "AWS_SECRET_ACCESS_KEY": settings.secret_key,
        "AWS_SESSION_TOKEN": settings.session_token,
        "AWS_REGION": settings.region or "us-east-1",
        "AWS_ENDPOINT_URL": _with_scheme(settings),
        "AWS_ALLOW_HTTP": "true" if settings.plain_http else None,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if settings.path_style else None,
        "conditional_put": "etag",
    }
    return {name: value for name, value in named.items() if value}


def _with_scheme(settings: S3Settings) -> str | None:
    if not settings.endpoint or "://" in settings.endpoint:
        return settings.endpoint
    return f"{'http' if settings.plain_http else 'https'}://{settings.endpoint}"


def delta_location(location: str) -> str:
    """Return *location* as `deltalake` spells it."""
    return "s3://" + location.split("://", 1)[1] if scheme_of(location) in S3_SCHEMES else location
