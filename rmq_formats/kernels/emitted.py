"""
Instructions on many bytes, which numba cannot express.

A function with one of these decorators remains an ordinary Python function. In compiled code it becomes one load and
one instruction, which need no separate compilation.
"""

import inspect
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
_Emitted: TypeAlias = Any  # a value in generated code, or the builder of code: llvmlite and numba declare no types
_Word = ir.IntType(64)


def emit_byte_comparison() -> Callable[[Function], Function]:
    """
    Have the decorated `(buffer, at, limit)` compare 63 bytes: bit n of the result is 1 where byte n is below the limit.

    It loads 64; one more would make the result negative.
    """

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        row = _load_vector(context, builder, signature, arguments, _Word.width)
        found = builder.icmp_unsigned("<", row, _all(builder, arguments[2], _Word.width))
        return builder.and_(builder.bitcast(found, _Word), ir.Constant(_Word, (1 << _Word.width - 1) - 1))

    return _emitted_by(emit, lambda buffer, at, limit: _signature(types.int64, buffer, at, limit))


def emit_prefetch() -> Callable[[Function], Function]:
    """Have the decorated `(buffer, at)` load a byte and its neighbors into the cache; *at* may be any number."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        prefetch = _get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [place, number(0), number(3), number(1)])  # for reading, into every cache, data
        return context.get_dummy_value()

    return _emitted_by(emit, lambda buffer, at: _signature(types.void, buffer, at))


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
        row = _load_vector(context, builder, signature, arguments, size)
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


def _load_vector(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted, size: int) -> _Emitted:
    """Emit a load of *size* bytes of the first argument, a buffer, from the position that is the second one."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    place = builder.gep(array.data, [arguments[1]])
    loaded = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(8), size).as_pointer()))
    loaded.align = 1
    return loaded


def _all(builder: _Emitted, value: _Emitted, size: int) -> _Emitted:
    """Return the low byte of *value*, repeated."""
    none = _lanes(8, [0] * size)
    first = builder.insert_element(none, builder.trunc(value, ir.IntType(8)), ir.Constant(_Word, 0))
    return builder.shuffle_vector(first, none, _lanes(32, [0] * size))


def _lanes(bits: int, values: Iterable[int]) -> _Emitted:
    constants = [ir.Constant(ir.IntType(bits), value) for value in values]
    return ir.Constant(ir.VectorType(ir.IntType(bits), len(constants)), constants)
