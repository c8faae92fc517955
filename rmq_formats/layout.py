"""
Fixed-size byte layouts, declared once.

A `Layout` is a list of fields in file order. The scalar modules use it to unpack bytes, the compiled modules take
offsets from it, and `docs/internals/formats.md` is compared with it. Integers are big-endian, and signed except where
the code is a capital.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from rmq_formats.errors import CorruptData, NeedMoreData

Buffer = bytes | bytearray | memoryview
Read = Callable[[int, int], Buffer]  # the bytes at a position; short only at the end


class Content(NamedTuple):
    """The bytes of a file: their number, and the function that reads some of them."""

    size: int
    read: Read

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """Return bytes as the content of a file."""
        return cls(len(data), lambda position, length: data[position : position + length])


def make_block_reader(read: Read, block_size: int) -> Callable[[int, int], bytes]:
    """Return a reader that reads whole blocks and caches the last one, for many small sequential reads."""
    start, block = 0, b""

    def read_block(position: int, length: int) -> bytes:
        nonlocal start, block
        at = position - start
        if not 0 <= at <= len(block) - length:
            start, at, block = position, 0, bytes(read(position, max(length, block_size)))
        return block[at : at + length]

    return read_block


class FieldDescription(NamedTuple):
    """One line of a layout's documentation."""

    offset: int
    size: int
    name: str
    kind: str
    meaning: str


_KINDS = {"b": "i8", "h": "i16", "H": "u16", "i": "i32", "I": "u32", "q": "i64"}


class Layout:
    """Fields in file order, without padding: the name, the `struct` code and the meaning of each."""

    def __init__(self, *fields: tuple[str, str, str]) -> None:
        self._fields = fields
        self.struct = struct.Struct(">" + "".join(code for _, code, _ in fields))
        self.size = self.struct.size
        self._offsets = {row.name: row.offset for row in self.describe_fields()}

    def offset(self, name: str) -> int:
        """Return the field's offset."""
        return self._offsets[name]

    def index(self, name: str) -> int:
        """Return the field's index in the values that `unpack` returns."""
        return list(self._offsets).index(name)

    def unpack(self, buffer: Buffer, position: int = 0, offset: int | None = None) -> tuple[int | bytes, ...]:
        """Return the values at *position*; `NeedMoreData`, at *offset* if given, if the buffer is too short."""
        if position < 0 or memoryview(buffer).nbytes - position < self.size:
            found = max(memoryview(buffer).nbytes - position, 0)
            reason = f"expected {self.size} bytes, found {found}"
            raise NeedMoreData(reason, position if offset is None else offset)
        return self.struct.unpack_from(buffer, position)

    def pack(self, *values: int | bytes) -> bytes:
        """Return the bytes of *values*, in file order; `CorruptData` if one does not fit its field."""
        try:
            return self.struct.pack(*values)
        except struct.error as error:
            raise CorruptData(f"{values} do not fit the layout: {error}") from error

    def describe_fields(self) -> Iterator[FieldDescription]:
        """Describe each field, for the documentation."""
        offset = 0
        for name, code, meaning in self._fields:
            size = struct.calcsize(">" + code)
            yield FieldDescription(offset, size, name, _KINDS.get(code, f"{size} bytes"), meaning)
            offset += size
