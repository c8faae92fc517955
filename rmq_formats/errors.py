"""
The exceptions for invalid bytes, as one hierarchy.

FormatError
├── NeedMoreData       the bytes end before the structure does: incomplete, not wrong
├── CorruptData        the bytes contradict the format
├── SizeLimitExceeded      reading the bytes would cost more than the caller allows
├── UnsupportedFormat  a format that is recognized, but not supported
└── NotAStore          a directory that does not contain a RocketMQ store

Arguments are positional only, because Spark passes an exception from a worker to the driver as a pickle of its `args`.
"""

import errno
from typing import Self


class FormatError(Exception):
    """A problem with bytes, with the file and offset at which it was found."""

    def __init__(self, reason: str, offset: int | None = None, file: str | None = None, /) -> None:
        super().__init__(reason, offset, file)
        self.reason = reason
        self.offset = offset
        self.file = file

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at offset {self.offset}"
        return f"{self.file}: {self.reason}{place}" if self.file else f"{self.reason}{place}"

    def in_file(self, file: str) -> Self:
        """Return the same error with the file's name, which a decoder of bytes does not have."""
        return type(self)(self.reason, self.offset, self.file or file)


class NeedMoreData(FormatError):
    """The bytes end before the structure does."""


class CorruptData(FormatError):
    """The bytes contradict the format."""


class SizeLimitExceeded(FormatError):
    """Reading the bytes would cost more than the caller allows."""


class UnsupportedFormat(FormatError):
    """A format that is recognized, but not supported."""


class NotAStore(FormatError):
    """A directory that does not contain a RocketMQ store."""


def is_disk_error(error: OSError) -> bool:
    """Return whether a disk failed to read bytes, which is damage; other errors prove nothing about the bytes."""
    return error.errno in _BAD_SECTOR


def is_lost_file_error(error: OSError) -> bool:
    """
    Return whether a file was deleted since it was listed, or its disk cannot read its bytes.

    A reader may continue without such a file. Any other error (a timeout, no access) proves nothing about the file: a
    reader that continued would treat existing bytes as absent.
    """
    return isinstance(error, FileNotFoundError) or is_disk_error(error)


class skip_lost_file:  # noqa: N801 - used as `contextlib.suppress` is
    """Continues without a file that is lost or has an invalid format; every other error is raised."""

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> bool:
        """Return whether the error is suppressed."""
        return isinstance(error, FormatError) or (isinstance(error, OSError) and is_lost_file_error(error))


# EBADMSG, EUCLEAN: a wrong checksum
_BAD_SECTOR = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})
