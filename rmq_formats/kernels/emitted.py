"""
Reads and writes integers in a buffer by one machine instruction, not by a call that numba compiles for every caller.

A function with one of these decorators remains an ordinary Python function. In compiled code it becomes one load or
store, which needs no compilation of its own and saves about 20 instructions per call, or one instruction on many bytes,
which numba cannot express.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import typing
from numba.core.cgutils import get_or_insert_function
from numba.extending import lower_builtin, type_callable

from rmq_formats.compiled import Function, types

_numba_typing: Any = typing
_get_or_insert_function: Any = get_or_insert_function
_type_callable: Any = type_callable
_lower_builtin: Any = lower_builtin
_Emitted: TypeAlias = Any  # a value of the code being made, or what makes it: llvmlite and numba declare no types
_Word = ir.IntType(64)


def emit_load(*, bits: int, signed: bool) -> Callable[[Function], Function]:
    """Have the decorated `(buffer, at)` load a big-endian integer of this many bits from bytes."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        loaded = builder.load(_place(context, builder, signature, arguments, bits))
        loaded.align = 1
        value = _swapped(builder, loaded, bits)
        return value if bits == _Word.width else (builder.sext if signed else builder.zext)(value, _Word)

    return _emitted_by(emit, lambda buffer, at: _signature(types.int64, buffer, at))


def emit_store(*, bits: int) -> Callable[[Function], Function]:
    """Have the decorated `(buffer, at, value)` store the low bits of a value in bytes, big-endian."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        value = arguments[2] if bits == _Word.width else builder.trunc(arguments[2], ir.IntType(bits))
        place = _place(context, builder, signature, arguments, bits)
        builder.store(_swapped(builder, value, bits), place).align = 1
        return context.get_dummy_value()

    return _emitted_by(emit, lambda buffer, at, value: _signature(types.none, buffer, at, value))


def emit_element_load() -> Callable[[Function], Function]:
    """Have the decorated `(numbers, at)` load an element of an array of integers."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0])
        loaded = builder.load(builder.gep(numbers.data, [arguments[1]]))
        return context.cast(builder, loaded, signature.args[0].dtype, types.int64)

    def typer(numbers: _Emitted, at: _Emitted) -> _Emitted:
        is_row = isinstance(numbers, types.Array) and (numbers.ndim, numbers.layout) == (1, "C")
        is_native = is_row and isinstance(numbers.dtype, types.Integer) and isinstance(at, types.Integer)
        return _numba_typing.signature(types.int64, numbers, types.int64) if is_native else None

    return _emitted_by(emit, typer)


def emit_byte_comparison() -> Callable[[Function], Function]:
    """
    Have the decorated `(buffer, at, limit)` compare 63 bytes: bit n of the result is 1 where byte n is below the limit.

    It loads 64; one more would make the result negative.
    """

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        row = _vector(context, builder, signature, arguments, _Word.width)
        found = builder.icmp_unsigned("<", row, _all(builder, arguments[2], _Word.width))
        return builder.and_(builder.bitcast(found, _Word), ir.Constant(_Word, (1 << _Word.width - 1) - 1))

    return _emitted_by(emit, lambda buffer, at, limit: _signature(types.int64, buffer, at, limit))


def emit_trailing_zeros() -> Callable[[Function], Function]:
    """Have the decorated `(bits)` count the zeros below the lowest bit of a number that is not 0."""

    def emit(_: _Emitted, builder: _Emitted, __: _Emitted, arguments: _Emitted) -> _Emitted:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return _emitted_by(emit, lambda _: _numba_typing.signature(types.int64, types.int64), types.Integer)


def emit_weighted_sum(*, by: Sequence[int]) -> Callable[[Function], Function]:
    """
    Have the decorated `(buffer, at, count)` sum up the products of the last bytes of a row with those factors.

    The row is as long as the factors. The result has 32 bits; it is -1 where one of the bytes is 128 or more.
    """
    size = len(by)

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        row = _vector(context, builder, signature, arguments, size)
        first = _all(builder, builder.sub(ir.Constant(_Word, size), arguments[2]), size)
        counts = builder.icmp_unsigned(">=", _lanes(8, range(size)), first)
        row = builder.select(counts, row, _lanes(8, [0] * size))
        products = builder.mul(builder.zext(row, ir.VectorType(ir.IntType(32), size)), _lanes(32, by))
        kind = ir.FunctionType(ir.IntType(32), [products.type])
        summed = _get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.add.v{size}i32")
        signs = ir.IntType(size)
        high = builder.bitcast(builder.icmp_signed("<", row, _lanes(8, [0] * size)), signs)
        is_high = builder.icmp_unsigned("!=", high, ir.Constant(signs, 0))
        return builder.select(is_high, ir.Constant(_Word, -1), builder.zext(builder.call(summed, [products]), _Word))

    return _emitted_by(emit, lambda buffer, at, count: _signature(types.int64, buffer, at, count))


def _emitted_by(emit: _Emitted, typer: _Emitted, first: _Emitted = types.Array) -> Callable[[Function], Function]:
    """Register *emit* for calls of the decorated function; *typer* has its parameters, *first* is the first's type."""

    def decorate(function: Function) -> Function:
        numbers = [types.Integer] * (len(inspect.signature(typer).parameters) - 1)
        _type_callable(function)(lambda _context: typer)
        _lower_builtin(function, first, *numbers)(emit)
        return function

    return decorate


def _signature(result: _Emitted, buffer: _Emitted, *numbers: _Emitted) -> _Emitted:
    """Return the signature for bytes and integers, whichever these are; None for anything else."""
    is_bytes = isinstance(buffer, types.Array) and (buffer.ndim, buffer.layout, buffer.dtype) == (1, "C", types.uint8)
    return _numba_typing.signature(result, buffer, *[types.int64] * len(numbers)) if is_bytes else None


def _place(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted, bits: int) -> _Emitted:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(bits).as_pointer())


def _vector(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted, size: int) -> _Emitted:
    place = _place(context, builder, signature, arguments, 8)
    loaded = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(8), size).as_pointer()))
    loaded.align = 1
    return loaded


def _all(builder: _Emitted, value: _Emitted, size: int) -> _Emitted:
    """Return the low byte of *value*, so many times."""
    none = _lanes(8, [0] * size)
    first = builder.insert_element(none, builder.trunc(value, ir.IntType(8)), ir.Constant(_Word, 0))
    return builder.shuffle_vector(first, none, _lanes(32, [0] * size))


def _lanes(bits: int, values: Iterable[int]) -> _Emitted:
    constants = [ir.Constant(ir.IntType(bits), value) for value in values]
    return ir.Constant(ir.VectorType(ir.IntType(bits), len(constants)), constants)


def _swapped(builder: _Emitted, value: _Emitted, bits: int) -> _Emitted:
    """Turn *value* between the machine's order of bytes and big-endian."""
    return value if bits == 8 or sys.byteorder == "big" else builder.bswap(value)
