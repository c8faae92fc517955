"""Object stores (mainly S3), and their settings under the names that each client uses."""

import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from jobs.storage.locations import AZURE_SCHEMES, S3_SCHEMES, object_key, scheme_of
from jobs.storage.model import FetchingReader, FileInfo, Reader, Storage, file_exists
from jobs.storage.settings import AzureSettings, azure_delta_options, azure_filesystem, find_s3_settings
from rmq_formats.layout import Buffer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

Result = TypeVar("Result")

_SHOWN = 200
_SMALL_OBJECT = 256 << 10  # bytes that take about as long as the answer to a request
_SMALL_READ = 64 << 10  # bytes that take about as long to read as a few
# Attempts of Amazon's client, 25 ms after the first, then twice as long each time; our own retries come after these.
_ATTEMPTS = 4
_PAUSES_S = (0.1, 0.5, 1, 2, 4)
_PASSING = re.compile(
    r"AWS Error (INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|NETWORK_CONNECTION)|"
    r"HTTP status 5\d\d|curlCode|response body error|Azure Error: \[\w*\] 5\d\d|Fail to get a new connection|"
    r"Connection closed before getting full response|"
    r"Azure Error: \[Lease\w+\]"  # the object is being deleted: pyarrow takes a lease for that
)
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_CLIENT_TOKEN|"
    r"MISSING_AUTHENTICATION|UNRECOGNIZED_CLIENT|HTTP status 40[13]|AccessDenied|InvalidAccessKeyId|InvalidToken|"
    r"Azure Error: \[\w*\] 40[13]|AuthenticationFailed|AuthorizationFailure"
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound")
_UNREACHABLE = re.compile(
    r"Connection refused|Could not connect to server|Could(?: not|n't) resolve host ?name|dns error|No route to host"
)
# Amazon's client asks the metadata service of EC2 last.
_NO_CREDENTIALS = re.compile(r"loading credentials|no credentials found in chain|169\.254\.169\.254")
# An error response of Amazon or Azure in a message of `deltalake`.
_ANSWER = re.compile(
    r"status code:?\s.*?(?P<status>4\d\d) .*?<Code>(?P<code>\w+)</Code>\s*<Message>(?P<message>[^<\n]*)", re.DOTALL
)


def retry_server_failures(call: Callable[[], Result], *, has_answered: bool = True) -> Result:
    """
    Return the result of *call*, which is retried a few times after transient server failures.

    Amazon's client also retries, but not if the error response is longer than the requested bytes. If a server that
    never *has_answered* cannot be reached, its address is probably wrong, and the call is not retried.
    """
    for pause in _PAUSES_S:
        try:
            return call()
        except OSError as error:
            if not _PASSING.search(str(error)) or (_UNREACHABLE.search(str(error)) and not has_answered):
                raise
        time.sleep(pause)
    return call()


class _ReaderFile(io.RawIOBase):
    """A reader as a file, for pyarrow's own readers."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._reader.size)[whence]
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        count = self._reader.read_into(self._position, memoryview(buffer).cast("B"))
        self._position += count
        return count


def _read_ahead(reader: FetchingReader) -> FetchingReader:
    """Return a reader that fetches more than a small read wants, and answers the next small reads from these bytes."""
    kept = 0, memoryview(b"")  # one value, because threads may share a reader

    def fetch(position: int, length: int) -> bytes | memoryview:
        nonlocal kept
        start, block = kept
        if not 0 <= position - start <= len(block) - length:
            if length >= _SMALL_READ:
                return reader.read(position, length)
            start, block = kept = position, memoryview(reader.read(position, _SMALL_READ))
        return bytes(block[position - start :][:length])  # a view would keep all bytes in memory

    return FetchingReader(reader.size, fetch)


@dataclass(frozen=True, slots=True)
class ObjectStorage(Storage):
    """An object store; objects appear only when they are complete."""

    filesystem: "FileSystem" = field(repr=False)  # not printed, because it may contain a key
    credentials_text: str = "the credentials of the AWS environment"  # names the credentials in messages
    service: str = "S3"
    endpoint: str = "Amazon S3"  # the endpoint's name in messages
    endpoint_setting: str = "AWS_ENDPOINT_URL or fs.s3a.endpoint"
    # Whether the service has answered this process.
    has_answered: Event = field(default_factory=Event, repr=False, compare=False)

    def list_files(self, location: str) -> list[FileInfo]:
        """Return every object below *location*, sorted by name."""
        from pyarrow.fs import FileSelector

        root = object_key(location)
        infos = self._call(location, lambda: self.filesystem.get_file_info(FileSelector(root, recursive=True)))
        return sorted(
            FileInfo(info.path[len(root) + 1 :], info.size, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.is_file
        )

    @contextmanager
    def open(self, location: str) -> Iterator[FetchingReader]:
        """Open an object; every read is one ranged request, except a small one whose bytes follow an earlier one."""
        with self._call(location, lambda: self.filesystem.open_input_file(object_key(location))) as file:
            yield _read_ahead(self._reader(file, location))

    def _reader(self, file: "NativeFile", location: str) -> FetchingReader:
        return FetchingReader(
            self._call(location, file.size),
            lambda position, length: memoryview(self._call(location, lambda: file.read_at(length, position))),
        )

    def create(self, location: str, data: Buffer) -> None:
        """
        Put a new object; raise `FileExistsError` if it exists.

        pyarrow has no conditional put, so the object is looked up first. Names in a lake have a random part, so that
        no two processes write the same one.
        """
        if file_exists(self.open, location):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), location)

        def put() -> None:
            with self.filesystem.open_output_stream(object_key(location)) as stream:
                stream.write(data)

        self._call(location, put)

    def delete(self, location: str) -> None:
        """Delete an object, if it exists."""
        with suppress(FileNotFoundError):  # deleted already
            self._call(location, lambda: self.filesystem.delete_file(object_key(location)))

    def open_arrow_file(self, location: str) -> "NativeFile":
        """Open an object for pyarrow's own readers; a small one is read as a whole, with one request."""
        from pyarrow import BufferReader, PythonFile

        file = self._call(location, lambda: self.filesystem.open_input_file(object_key(location)))
        reader = self._reader(file, location)
        if reader.size <= _SMALL_OBJECT:
            with file:
                return BufferReader(bytes(reader.read(0, reader.size)))
        return PythonFile(_ReaderFile(reader), mode="r")

    def explain_error(self, location: str, error: OSError) -> OSError:
        """Return an error of pyarrow or `deltalake` with its cause and a remedy; *error* itself for other causes."""
        text = str(error)
        if (found := _NO_BUCKET.search(text)) is not None:
            kind, name = "container" if self.service == "Azure" else "bucket", object_key(location).partition("/")[0]
            return OSError(
                f"{location}: the {kind} {name} does not exist on {self.endpoint} ({found[0]}); check its name and "
                f"{self.endpoint_setting}, or create it"
            )
        if self.service == "S3" and _NO_CREDENTIALS.search(text) is not None:
            return PermissionError(
                errno.EACCES,
                "no S3 credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                location,
            )
        if (found := _UNREACHABLE.search(text)) is not None:
            return OSError(
                f"{location}: cannot connect to {self.endpoint} ({found[0]}); check {self.endpoint_setting}, and that "
                "the server is running"
            )
        answer = _ANSWER.search(text)
        if answer is not None:
            is_denied, cause = answer["status"] in {"401", "403"}, f"{answer['code']}: {answer['message']}"
        else:
            is_denied = _DENIED.search(text) is not None and not isinstance(error, PermissionError)
            cause = re.split("(?:AWS|Azure) Error:? ", text)[-1].partition("\n")[0]
        if is_denied:
            reason = f"{self.service} denies access ({cause[:_SHOWN]}); the request used {self.credentials_text}"
            return PermissionError(errno.EACCES, reason, location)
        return (
            error if answer is None else OSError(f"{location}: {self.service} refuses the request ({cause[:_SHOWN]})")
        )

    def _call(self, location: str, call: Callable[[], Result]) -> Result:
        """Return the result of *call*; if access, bucket or address is wrong, the error names the settings to check."""
        try:
            result = retry_server_failures(call, has_answered=self.has_answered.is_set())
        except FileNotFoundError as error:
            self.has_answered.set()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location) from error
        except OSError as error:
            explained = self.explain_error(location, error)
            if explained is error:
                raise
            raise explained from error
        self.has_answered.set()
        return result


def _endpoint(options: Mapping[str, str]) -> tuple[str, bool]:
    """Return the endpoint with its scheme (empty: the client's default), and whether it uses path-style access."""
    endpoint = options.get("fs.s3a.endpoint", "")
    if endpoint and "://" not in endpoint:
        has_tls = options.get("fs.s3a.connection.ssl.enabled", "true").lower() == "true"
        endpoint = f"{'https' if has_tls else 'http'}://{endpoint}"
    return endpoint, options.get("fs.s3a.path.style.access", "false").lower() == "true"


@lru_cache(maxsize=8)
def s3_storage(options: tuple[tuple[str, str], ...]) -> ObjectStorage:
    """Return the storage for these Hadoop settings."""
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem

    named = {names.pyarrow: value for names, value in find_s3_settings(dict(options))}
    endpoint, is_path_style = _endpoint(dict(options))
    if endpoint:
        named["endpoint_override"] = endpoint.split("://", 1)[-1]
    filesystem = S3FileSystem(
        **named,
        scheme="http" if endpoint.startswith("http://") else "https",
        force_virtual_addressing=bool(endpoint) and not is_path_style,
        # The standard strategy limits the retries of a process to about a hundred in its lifetime.
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ATTEMPTS),
        allow_delayed_open=True,  # an object of up to 5 MiB then takes one request instead of three
    )
    has_key = "access_key" in named
    asked = "fs.s3a.access.key" if has_key else "the AWS environment, because fs.s3a.access.key is not set"
    return ObjectStorage(filesystem, asked, endpoint=endpoint or "Amazon S3")


@lru_cache(maxsize=8)
def azure_storage(settings: AzureSettings) -> ObjectStorage:
    """Return the storage for an account."""
    endpoint = settings.endpoint or f"https://{settings.account}.blob.core.windows.net"
    filesystem = azure_filesystem(settings)
    return ObjectStorage(filesystem, settings.credentials_text, "Azure", endpoint, "fs.azure.endpoint")


def delta_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under the names of `deltalake`; conditional puts make its commits safe."""
    if scheme_of(location) in AZURE_SCHEMES:
        return azure_delta_options(location, options)
    if scheme_of(location) not in S3_SCHEMES:
        return {}
    endpoint, is_path_style = _endpoint(options)
    for name in [name for name, value in os.environ.items() if name.startswith("AWS_") and not value]:
        del os.environ[name]  # Amazon's clients treat it as unset; `deltalake` would sign with an empty token
    return {
        "AWS_REGION": "us-east-1",
        **{names.variables[0]: value for names, value in find_s3_settings(options)},
        **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {}),
        **({"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}),
        **({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"} if is_path_style else {}),
        "conditional_put": "etag",
    }


def iceberg_options(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the S3 settings under the names of pyiceberg, for use in this process only."""
    if scheme_of(location) not in S3_SCHEMES:
        return {}
    endpoint, is_path_style = _endpoint(options)
    addressing = str(bool(endpoint) and not is_path_style).lower()
    own = {"s3.endpoint": endpoint} if endpoint else {}
    named = {names.pyiceberg: value for names, value in find_s3_settings(options)}
    return {**named, **own, "s3.force-virtual-addressing": addressing}


def delta_location(location: str) -> str:
    """Return *location* in the form that `deltalake` expects."""
    return "s3://" + location.split("://", 1)[1] if scheme_of(location) in S3_SCHEMES else location
