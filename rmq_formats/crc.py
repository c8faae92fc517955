"""
CRC-32 in compiled code: by carry-less multiplication if the processor supports it, otherwise by tables.

A CRC is the remainder of the data, read as a polynomial over GF(2), modulo the polynomial of `zlib.crc32`. So 128 bits
can be folded into the data after them by multiplying each half with a constant; only the last 16 bytes need a table.

Tables process one byte at a time and `pclmulqdq` eight, and most of the bytes that a scan reads are bodies. Neither
Python nor numba can express this instruction, so the code is built with llvmlite and with `cgutils`, an internal module
of numba that may change in any release. If the processor lacks the instruction, the JIT is off, or numba no longer has
this module, only tables are used.
"""

import zlib
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

from rmq_formats.compiled import PROCESSOR, compiled, config, inlined_helper, types
from rmq_formats.kernels.integers import Bytes, as_int64, byte_at, number_at

cgutils: Any
try:
    from numba.core import cgutils
except ImportError:  # numba's internals have changed
    cgutils = None

HAS_CARRYLESS_MULTIPLICATION = cgutils is not None and not config.DISABLE_JIT and "+pclmul" in PROCESSOR
_POLYNOMIAL = 0x104C11DB7
_REFLECTED = 0xEDB88320
_LOW_32 = (1 << 32) - 1
_STEP = 16  # bytes per step
_LANES = 4  # independent of each other
_SHORTEST = _LANES * _STEP  # bytes below which tables are as fast; folded parts have at least so many
_Emitted: TypeAlias = Any  # a value in generated code: llvmlite and numba declare no types
_Word = ir.IntType(64)
_Pair = ir.VectorType(_Word, 2)


def _tables() -> NDArray[np.uint32]:
    """Return 16 tables of 256 numbers: the effect of a byte on the CRC if 0 to 15 bytes follow it."""
    first: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.asarray((first >> 1) ^ (first & 1) * np.uint32(_REFLECTED), np.uint32)
    tables = [first]
    for _ in range(1, _STEP):
        tables.append((tables[-1] >> 8) ^ first[tables[-1] & 0xFF])
    return np.concatenate(tables)


_TABLES = _tables()


@inlined_helper
def _of_four(four: int, table: int) -> int:
    """Return the CRC after four bytes (the first one lowest); *table* is that of the last of them."""
    at = table << 8
    return (
        number_at(_TABLES, at + 768 + (four & 0xFF))
        ^ number_at(_TABLES, at + 512 + ((four >> 8) & 0xFF))
        ^ number_at(_TABLES, at + 256 + ((four >> 16) & 0xFF))
        ^ number_at(_TABLES, at + ((four >> 24) & 0xFF))
    )


@inlined_helper
def _of_step(low: int, high: int) -> int:
    """Return the CRC after sixteen bytes, two integers with the first byte lowest, that contain the CRC before."""
    return (
        _of_four(high >> 32, 0)
        ^ _of_four(high & _LOW_32, 4)
        ^ _of_four(low >> 32, 8)
        ^ _of_four(low & _LOW_32, 12)
    )  # fmt: skip


@inlined_helper
def _read_low_first(buffer: Bytes, at: int) -> int:
    value = as_int64(0)
    for i in range(8):
        value |= byte_at(buffer, at + i) << (8 * i)
    return value


def _moved(bits: int) -> int:
    value = 1
    for _ in range(bits):
        value <<= 1
        if value >> 32:
            value ^= _POLYNOMIAL
    return int(f"{value:032b}"[::-1], 2) << 1


def _factors(steps: int) -> ir.Constant:
    """Return the factors of both halves of sixteen bytes for a move over so many steps."""
    bits = 8 * _STEP * steps
    return ir.Constant(_Pair, [_moved(bits + 32), _moved(bits - 32)])


# Folding, as in Intel's "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others,
# 2009), for a CRC whose bits are reflected: 16 bytes at one place leave the same remainder as their product with x to
# the power of the distance at the later place. The low half lies 8 bytes further away than the high one: `bits + 32`.
def _fold(builder: _Emitted, value: _Emitted, factors: ir.Constant, later: _Emitted) -> _Emitted:  # pragma: no cover
    """Emit the folding of *value* into *later*."""
    multiply = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_Pair, [_Pair, _Pair, ir.IntType(8)]), "llvm.x86.pclmulqdq"
    )
    low, high = (builder.call(multiply, [value, factors, ir.Constant(ir.IntType(8), half)]) for half in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), later)


def _emit_folded(
    _context: _Emitted, _address: _Emitted, _steps: _Emitted, _crc: _Emitted
) -> _Emitted:  # pragma: no cover
    """
    Return sixteen bytes, as two integers, that have the same CRC as the bytes at *address* with a preceding CRC.

    There are *steps* times sixteen bytes, and at least as many steps as lanes.
    """

    def emit(target: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        address, steps, crc = arguments
        first = builder.inttoptr(address, _Pair.as_pointer())

        def load(step: _Emitted) -> _Emitted:
            loaded = builder.load(builder.gep(first, [step]))
            loaded.align = 1
            return loaded

        lanes = [cgutils.alloca_once_value(builder, load(_Word(lane))) for lane in range(_LANES)]
        before = builder.insert_element(_Pair([0, 0]), crc, ir.IntType(32)(0))
        builder.store(builder.xor(builder.load(lanes[0]), before), lanes[0])
        rounds = builder.sdiv(steps, _Word(_LANES))
        with cgutils.for_range(builder, builder.sub(rounds, _Word(1))) as loop:
            start = builder.mul(builder.add(loop.index, _Word(1)), _Word(_LANES))
            for lane, kept in enumerate(lanes):
                moved = _fold(builder, builder.load(kept), _factors(_LANES), load(builder.add(start, _Word(lane))))
                builder.store(moved, kept)
        for before, lane in pairwise(lanes):
            builder.store(_fold(builder, builder.load(before), _factors(1), builder.load(lane)), lane)
        done = builder.mul(rounds, _Word(_LANES))
        with cgutils.for_range(builder, builder.sub(steps, done)) as loop:
            moved = _fold(builder, builder.load(lanes[-1]), _factors(1), load(builder.add(done, loop.index)))
            builder.store(moved, lanes[-1])
        halves = [builder.extract_element(builder.load(lanes[-1]), ir.IntType(32)(half)) for half in (0, 1)]
        return target.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.int64, 2)(types.uintp, types.int64, types.int64), emit


fold_crc: Any = intrinsic(_emit_folded)


@inlined_helper
def _of_steps(buffer: Bytes, at: int, steps: int, crc: int) -> int:  # pragma: no cover
    low, high = fold_crc(np.uintp(buffer.ctypes.data + at), steps, crc)
    return _of_step(low, high)


def _crc32_in_python(buffer: Bytes, start: int, end: int) -> int:
    return zlib.crc32(buffer[start:end].data)


@partial(compiled, python=_crc32_in_python)
def crc32(buffer: Bytes, start: int, end: int) -> int:
    """Return the CRC-32 of the bytes, unsigned."""
    value = as_int64(_LOW_32)
    at = start
    if HAS_CARRYLESS_MULTIPLICATION and end - at >= _SHORTEST:  # pragma: no cover
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
