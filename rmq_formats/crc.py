"""
CRC-32 in compiled code: by carry-less multiplication where there is such (see `carryless`), by tables everywhere.

A CRC is the remainder of the data, read as a polynomial over GF(2), modulo the polynomial of `zlib.crc32`. So 128 bits
may be moved over the data after them by multiplying each half with a constant; only the last 16 bytes need a table.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import compiled, inlined
from rmq_formats.kernels.integers import Bytes, byte_at, integer, number_at

folded: Any
try:
    from rmq_formats.carryless import HAS_MULTIPLICATION, SHORTEST, folded
except ImportError:  # a numba whose internals moved
    HAS_MULTIPLICATION, SHORTEST, folded = False, 0, None

_REFLECTED = 0xEDB88320
_LOW_32 = (1 << 32) - 1
_STEP = 16  # bytes that are taken together


# --- by tables -------------------------------------------------------------------------------------------------------


def _tables() -> NDArray[np.uint32]:
    """Return, one table of 256 after the other, what a byte does to the CRC when 0 to 15 bytes follow it."""
    first: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.asarray((first >> 1) ^ (first & 1) * np.uint32(_REFLECTED), np.uint32)
    tables = [first]
    for _ in range(1, _STEP):
        tables.append((tables[-1] >> 8) ^ first[tables[-1] & 0xFF])
    return np.concatenate(tables)


_TABLES = _tables()


@inlined
def _of_four(four: int, table: int) -> int:
    """Return the CRC after four bytes (the first one lowest); *table* is that of the last of them."""
    at = table << 8
    return (
        number_at(_TABLES, at + 768 + (four & 0xFF))
        ^ number_at(_TABLES, at + 512 + ((four >> 8) & 0xFF))
        ^ number_at(_TABLES, at + 256 + ((four >> 16) & 0xFF))
        ^ number_at(_TABLES, at + ((four >> 24) & 0xFF))
    )


@inlined
def _of_step(low: int, high: int) -> int:
    """Return the CRC after sixteen bytes, two integers with the first byte lowest, that contain the CRC before."""
    return (
        _of_four(high >> 32, 0)
        ^ _of_four(high & _LOW_32, 4)
        ^ _of_four(low >> 32, 8)
        ^ _of_four(low & _LOW_32, 12)
    )  # fmt: skip


@inlined
def _read_low_first(buffer: Bytes, at: int) -> int:
    value = integer(0)
    for i in range(8):
        value |= byte_at(buffer, at + i) << (8 * i)
    return value


# --- by carry-less multiplication ------------------------------------------------------------------------------------


@inlined
def _of_steps(buffer: Bytes, at: int, steps: int, crc: int) -> int:  # pragma: no cover
    low, high = folded(np.uintp(buffer.ctypes.data + at), steps, crc)
    return _of_step(low, high)


# --- both ------------------------------------------------------------------------------------------------------------


@compiled
def crc32(buffer: Bytes, start: int, end: int) -> int:
    """Return the CRC-32 of the bytes, unsigned."""
    value = integer(_LOW_32)
    at = start
    if HAS_MULTIPLICATION and end - at >= SHORTEST:  # pragma: no cover
        steps = (end - at) // _STEP
        value = _of_steps(buffer, at, steps, value)
        at += steps * _STEP
    while end - at >= _STEP:
        value = _of_step(_read_low_first(buffer, at) ^ value, _read_low_first(buffer, at + 8))
        at += _STEP
    while at < end:
        value = (value >> 8) ^ number_at(_TABLES, (value ^ byte_at(buffer, at)) & 0xFF)
        at += 1
    return value ^ _LOW_32
