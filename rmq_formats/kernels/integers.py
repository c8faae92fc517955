"""
Integers and bytes in compiled code.

Compiled code has no bounds checks. Every kernel relies on `0 <= start <= end <= buffer.size`: callers validate a length
before they use it, so no function reads outside the buffer. Buffers are one-dimensional arrays of uint8.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import inlined_helper

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Sizes = NDArray[np.int32]


def as_bytes(data: Any) -> Bytes:  # noqa: ANN401 - anything with a buffer
    """Return the bytes of *data* as an array for compiled code; read-only buffers are copied."""
    array = np.frombuffer(data, np.uint8)
    return array if array.flags.writeable else array.copy()


@inlined_helper
def byte_at(buffer: Bytes, at: int) -> int:
    """Return one byte. Unsigned indexes spare the test for negative ones (and raise for them without the JIT)."""
    return int(np.int64(buffer[np.uintp(at)]))


@inlined_helper
def as_int64(value: int) -> int:
    """Return *value* as a variable: numba compiles a function again for each literal argument."""
    return int(np.int64(value))


@inlined_helper
def number_at(numbers: NDArray[Any], at: int) -> int:
    """Return one element of an array of integers."""
    return int(np.int64(numbers[np.uintp(at)]))


# LLVM turns the following loads and stores of single bytes into one instruction.
@inlined_helper
def read_u32(buffer: Bytes, at: int) -> int:
    """Return four bytes as an unsigned integer."""
    high = byte_at(buffer, at) << 24 | byte_at(buffer, at + 1) << 16
    return high | byte_at(buffer, at + 2) << 8 | byte_at(buffer, at + 3)


@inlined_helper
def read_i8(buffer: Bytes, at: int) -> int:
    """Return one byte as a signed integer."""
    return (byte_at(buffer, at) ^ 0x80) - 0x80


@inlined_helper
def read_i16(buffer: Bytes, at: int) -> int:
    """Return two bytes as a signed integer."""
    return read_i8(buffer, at) << 8 | byte_at(buffer, at + 1)


@inlined_helper
def read_i32(buffer: Bytes, at: int) -> int:
    """Return four bytes as a signed integer."""
    return (read_u32(buffer, at) ^ 0x80000000) - 0x80000000


@inlined_helper
def read_i64(buffer: Bytes, at: int) -> int:
    """Return eight bytes as a signed integer."""
    return read_i32(buffer, at) << 32 | read_u32(buffer, at + 4)


@inlined_helper
def write_i32(buffer: Bytes, at: int, value: int) -> None:
    """Store the low 32 bits of *value*."""
    for i in range(4):
        buffer[np.uintp(at + i)] = np.uint8((value >> (24 - 8 * i)) & 0xFF)


@inlined_helper
def write_i64(buffer: Bytes, at: int, value: int) -> None:
    """Store *value*."""
    for i in range(8):
        buffer[np.uintp(at + i)] = np.uint8((value >> (56 - 8 * i)) & 0xFF)


@inlined_helper
def copy_bytes(source: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    """Copy `source[start:end]` to *target* at *at*; return the place after."""
    for i in range(end - start):
        target[np.uintp(at + i)] = source[np.uintp(start + i)]
    return at + end - start


@inlined_helper
def copy_by_words(source: Bytes, start: int, end: int, target: Bytes, at: int) -> int:
    """Copy as `copy_bytes` does, eight bytes a step; bytes after the last one may be overwritten."""
    size = end - start
    done = 0
    while done < size and start + done + 8 <= source.size and at + done + 8 <= target.size:
        write_i64(target, at + done, read_i64(source, start + done))
        done += 8
    while done < size:
        target[np.uintp(at + done)] = source[np.uintp(start + done)]
        done += 1
    return at + size


@inlined_helper
def same_bytes(left: Bytes, left_start: int, left_end: int, right: Bytes, right_start: int, right_end: int) -> bool:
    """Return whether two slices have the same bytes."""
    size = left_end - left_start
    if right_end - right_start != size:
        return False
    at = 0
    while size - at >= 4:
        if read_u32(left, left_start + at) != read_u32(right, right_start + at):
            return False
        at += 4
    while at < size:
        if left[np.uintp(left_start + at)] != right[np.uintp(right_start + at)]:
            return False
        at += 1
    return True
