"""Object stores (mainly S3), and their settings under the names that each client uses."""

import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.storage.locations import AZURE_SCHEMES, S3_SCHEMES, object_key, scheme_of
from jobs.storage.model import FileInfo, Reader, Storage
from jobs.storage.settings import AzureSettings, azure_delta_options, azure_filesystem
from rmq_formats.layout import Buffer

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

Result = TypeVar("Result")

_SHOWN = 200
_ATTEMPTS = 4  # of Amazon's client, 25 ms after the first, then twice as long each time; ours come after them
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
# An error response of Amazon or Azure in a message of `deltalake`.
_ANSWER = re.compile(
    r"status code:?\s.*?(?P<status>4\d\d) .*?<Code>(?P<code>\w+)</Code>\s*<Message>(?P<message>[^<\n]*)", re.DOTALL
)


_Calls = Callable[[Callable[[], Any]], Any]  # runs a call of pyarrow's, with retries


class _ArrowReader(Reader):
    def __init__(self, file: "NativeFile", calls: _Calls) -> None:
        self._file = file
        self._calls = calls
        self.size = calls(file.size)

    def read(self, position: int, length: int) -> memoryview:
        size = min(length, max(self.size - position, 0))
        return memoryview(self._calls(lambda: self._file.read_at(size, position)))


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


class _Persistent(io.RawIOBase):
    """A pyarrow file whose reads are retried."""

    def __init__(self, file: "NativeFile", calls: _Calls) -> None:
        self._file = file
        self._calls = calls
        self._size: int = calls(file.size)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        data: bytes = self._calls(lambda: self._file.read_at(size, self._position)) if size else b""
        self._position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@dataclass(frozen=True, slots=True)
class ObjectStorage(Storage):
    """An object store; objects appear only when they are complete."""

    filesystem: "FileSystem" = field(repr=False)  # not printed, because it may contain a key
    credentials_text: str = "the credentials of the AWS environment"  # for messages
    service: str = "S3"
    endpoint: str = "Amazon S3"  # as messages name it
    endpoint_setting: str = "fs.s3a.endpoint"
    has_answered: Event = field(default_factory=Event, repr=False, compare=False)  # in this process

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
    def open(self, location: str) -> Iterator[_ArrowReader]:
        """Open an object; every read is one ranged request."""
        with self._call(location, lambda: self.filesystem.open_input_file(object_key(location))) as file:
            yield _ArrowReader(file, partial(self._call, location))

    def create(self, location: str, data: Buffer) -> None:
        """
        Put a new object; raise `FileExistsError` if it exists.

        pyarrow has no conditional put, so the object is looked up first; names that two processes may write at the same
        moment have a random part.
        """
        key = object_key(location)
        if self._call(location, lambda: self.filesystem.get_file_info(key)).is_file:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), location)

        def put() -> None:
            with self.filesystem.open_output_stream(key) as stream:
                stream.write(data)

        self._call(location, put)

    def delete(self, location: str) -> None:
        """Delete an object, if it exists."""
        with suppress(FileNotFoundError):  # deleted already
            self._call(location, lambda: self.filesystem.delete_file(object_key(location)))

    def open_arrow_file(self, location: str) -> "NativeFile":
        """Open an object for pyarrow's own readers."""
        from pyarrow import PythonFile

        file = self._call(location, lambda: self.filesystem.open_input_file(object_key(location)))
        return PythonFile(_Persistent(file, partial(self._call, location)), mode="r")

    def object_store_error(self, location: str, error: OSError) -> OSError:
        """Return an error of `deltalake` with its cause and a remedy; *error* itself if the cause is another one."""
        known = self._missing_or_unreachable(location, str(error))
        if known is not None:
            return known
        found = _ANSWER.search(str(error))
        if found is None:
            return error
        said = f"{found['code']}: {found['message']}"
        if found["status"] in {"401", "403"}:
            return self._denied(location, said)
        return OSError(f"{location}: {self.service} refuses the request ({said[:_SHOWN]})")

    def _call(self, location: str, call: Callable[[], Result]) -> Result:
        """Return the result of *call*; if access, bucket or address is wrong, the error names the settings to check."""
        try:
            result = retry_server_failures(call, has_answered=self.has_answered.is_set())
        except FileNotFoundError as error:
            self.has_answered.set()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location) from error
        except OSError as error:
            known = self._missing_or_unreachable(location, str(error))
            if known is not None:
                raise known from error
            if not _DENIED.search(str(error)) or isinstance(error, PermissionError):
                raise
            raise self._denied(
                location, re.split("(?:AWS|Azure) Error:? ", str(error))[-1].partition("\n")[0]
            ) from error
        self.has_answered.set()
        return result

    def _missing_or_unreachable(self, location: str, said: str) -> OSError | None:
        """Return an error that names the missing bucket or the unreachable server; None if *said* is another error."""
        if (found := _NO_BUCKET.search(said)) is not None:
            kind, name = "container" if self.service == "Azure" else "bucket", object_key(location).partition("/")[0]
            return OSError(
                f"{location}: the {kind} {name} does not exist on {self.endpoint} ({found[0]}); check its name and "
                f"{self.endpoint_setting}, or create it"
            )
        if (found := _UNREACHABLE.search(said)) is not None:
            return OSError(
                f"{location}: cannot connect to {self.endpoint} ({found[0]}); check {self.endpoint_setting}, and that "
                "the server is running"
            )
        return None

    def _denied(self, location: str, said: str) -> PermissionError:
        reason = f"{self.service} denies access ({said[:_SHOWN]}); the request used {self.credentials_text}"
        return PermissionError(errno.EACCES, reason, location)


# Hadoop's settings of S3, and their names in pyarrow, `deltalake` and pyiceberg.
_NAMES = {
    "fs.s3a.access.key": ("access_key", "AWS_ACCESS_KEY_ID", "s3.access-key-id"),
    "fs.s3a.secret.key": ("secret_key", "AWS_SECRET_ACCESS_KEY", "s3.secret-access-key"),
    "fs.s3a.session.token": ("session_token", "AWS_SESSION_TOKEN", "s3.session-token"),
    "fs.s3a.endpoint.region": ("region", "AWS_REGION", "s3.region"),
}
_PYARROW, _DELTALAKE, _PYICEBERG = range(3)


def _named(options: Mapping[str, str], client: int) -> dict[str, str]:
    return {names[client]: value for setting, names in _NAMES.items() if (value := options.get(setting))}


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

    named = _named(dict(options), _PYARROW)
    endpoint, is_path_style = _endpoint(dict(options))
    if endpoint:
        named["endpoint_override"] = endpoint.split("://", 1)[-1]
    filesystem = S3FileSystem(
        **named,
        scheme="http" if endpoint.startswith("http://") else "https",
        force_virtual_addressing=bool(endpoint) and not is_path_style,
        # The standard strategy limits the retries of a process to about a hundred in its lifetime.
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ATTEMPTS),
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
        **_named(options, _DELTALAKE),
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
    return {**_named(options, _PYICEBERG), **own, "s3.force-virtual-addressing": addressing}


def delta_location(location: str) -> str:
    """Return *location* in the form that `deltalake` expects."""
    return "s3://" + location.split("://", 1)[1] if scheme_of(location) in S3_SCHEMES else location
