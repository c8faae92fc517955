"""The standard streams of the process: open, and harmless when the reader of a pipe has closed it."""

import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _DiscardingPipe(FileIO):
    """A standard stream that discards its output from the moment the reader has closed the pipe (`verify … | head`)."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write *data*; the command goes on when nobody reads it, because its exit code is the verdict."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return super().write(data)


def prepare_standard_streams() -> None:
    """Open the standard streams that are closed, and let a closed pipe end the output, not the command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # EBADF: closed (`>&-`); the first files of a lake would otherwise get these numbers
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - as the others are
    sys.stdout = _discarding(1, sys.stdout)
    sys.stderr = _discarding(2, sys.stderr)


def _discarding(descriptor: int, stream: TextIO | None) -> TextIO:
    raw = _DiscardingPipe(descriptor, "wb", closefd=False)
    return TextIOWrapper(
        BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else None,
        errors=stream.errors if stream is not None else None,
        line_buffering=descriptor == 2 or raw.isatty(),  # noqa: PLR2004 - standard error
    )
