"""
Integers of a buffer as one machine instruction each, in place of a call that numba would compile for every caller.

A function that one of these decorators marks stays the Python that it is. Code that is compiled does the same in one
load or store, which needs no compilation of its own and spares the callers some 20 instructions a call.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from llvmlite import ir
from numba import types as _types
from numba.core import typing as _typing
from numba.extending import lower_builtin, type_callable

types: Any = _types
typing: Any = _typing
_type_callable: Any = type_callable
_lower_builtin: Any = lower_builtin
Function = TypeVar("Function", bound=Callable[..., Any])
_Emitted: TypeAlias = Any  # a value of the code being made, or what makes it: llvmlite and numba declare no types
_Word = ir.IntType(64)


def loads(*, bits: int, signed: bool) -> Callable[[Function], Function]:
    """Have the decorated `(buffer, at)` load a big-endian integer of so many bits from bytes."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        loaded = builder.load(_place(context, builder, signature, arguments, bits))
        loaded.align = 1
        value = _swapped(builder, loaded, bits)
        return value if bits == _Word.width else (builder.sext if signed else builder.zext)(value, _Word)

    return _emitted_by(emit, lambda buffer, at: _signature(types.int64, buffer, at))


def stores(*, bits: int) -> Callable[[Function], Function]:
    """Have the decorated `(buffer, at, value)` store the low bits of a value in bytes, big-endian."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        value = arguments[2] if bits == _Word.width else builder.trunc(arguments[2], ir.IntType(bits))
        place = _place(context, builder, signature, arguments, bits)
        builder.store(_swapped(builder, value, bits), place).align = 1
        return context.get_dummy_value()

    return _emitted_by(emit, lambda buffer, at, value: _signature(types.none, buffer, at, value))


def element() -> Callable[[Function], Function]:
    """Have the decorated `(numbers, at)` load an element of an array of integers."""

    def emit(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted) -> _Emitted:
        numbers = context.make_array(signature.args[0])(context, builder, arguments[0])
        loaded = builder.load(builder.gep(numbers.data, [arguments[1]]))
        return context.cast(builder, loaded, signature.args[0].dtype, types.int64)

    def typer(numbers: _Emitted, at: _Emitted) -> _Emitted:
        is_row = isinstance(numbers, types.Array) and (numbers.ndim, numbers.layout) == (1, "C")
        is_native = is_row and isinstance(numbers.dtype, types.Integer) and isinstance(at, types.Integer)
        return typing.signature(types.int64, numbers, types.int64) if is_native else None

    return _emitted_by(emit, typer)


def _emitted_by(emit: _Emitted, typer: _Emitted) -> Callable[[Function], Function]:
    """Register *emit* for calls of the decorated function; *typer* has its parameters."""

    def decorate(function: Function) -> Function:
        numbers = [types.Integer] * (len(inspect.signature(typer).parameters) - 1)
        _type_callable(function)(lambda _context: typer)
        _lower_builtin(function, types.Array, *numbers)(emit)
        return function

    return decorate


def _signature(result: _Emitted, buffer: _Emitted, *numbers: _Emitted) -> _Emitted:
    """Return the signature for bytes and integers, whichever these are; None for anything else."""
    is_bytes = isinstance(buffer, types.Array) and (buffer.ndim, buffer.layout, buffer.dtype) == (1, "C", types.uint8)
    return typing.signature(result, buffer, *[types.int64] * len(numbers)) if is_bytes else None


def _place(context: _Emitted, builder: _Emitted, signature: _Emitted, arguments: _Emitted, bits: int) -> _Emitted:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(bits).as_pointer())


def _swapped(builder: _Emitted, value: _Emitted, bits: int) -> _Emitted:
    """Turn *value* between the machine's order of bytes and big-endian."""
    return value if bits == 8 or sys.byteorder == "big" else builder.bswap(value)
