"""A segment that a broker fills front to back while somebody reads it, page by page."""

from collections.abc import Iterable

PAGE = 64


class GrowingFile:
    """Bytes of which more are written before each page of each read; what is not written yet is zero."""

    def __init__(self, raw: bytes, written: int, steps: Iterable[int]) -> None:
        self._raw = raw
        self._written = written
        self._steps = iter(steps)

    def read(self, position: int, length: int) -> bytes:
        """Read as a kernel does: a page may be copied before the broker fills it, and the next one after that."""
        end = min(position + length, len(self._raw))
        parts = []
        while position < end:
            stop = min((position // PAGE + 1) * PAGE, end)
            self._written += next(self._steps, 0)
            seen = max(min(stop, self._written) - position, 0)
            parts.append(self._raw[position : position + seen].ljust(stop - position, b"\0"))
            position = stop
        return b"".join(parts)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer the same way."""
        data = self.read(position, buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)
