"""
The fast reader of JSON: msgspec in C where it is exact, the scalar reader for every body that it refuses or could bend.

Equal to `exact_json.read` on every body; property tests hold it to that.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from jobs.typed.exact_json import DEEPEST, parsed, read
from jobs.typed.refusal import Refusal, RefusedBodyError
from jobs.typed.values import Number, Times, base64_bytes, converted, day, decimal, instant
from rmq_formats.json.scan import marked

Row = tuple[object, ...]
_UNKNOWN_TO_MSGSPEC = re.compile(r'[\x00-\x1f"\\]')  # in the name of a field
_REFUSED = (msgspec.MsgspecError, RefusedBodyError, UnicodeDecodeError, RecursionError)
_EXACT_INTEGERS = {32: 1 << 24, 64: 1 << 53}  # a float of so many bits holds every integer below this one


class _Cell(NamedTuple):
    """How msgspec reads a column, and what is left to do with what it read."""

    type: Any
    finish: Callable[[Any], object] | None = None

    @property
    def of_nullable(self) -> Any:  # noqa: ANN401 - a type for msgspec
        """The type of a field that may be null; as it is spelled, a value may be null anyway."""
        return self.type if self.type is msgspec.Raw else self.type | None


class FastJson:
    """Reads the bodies of one type."""

    def __init__(self, columns: Sequence[pa.Field], times: Times) -> None:
        """Read *columns*; *times* says what times mean."""
        self._columns, self._times = columns, times
        self._finish: list[tuple[int, Callable[[Any], object]]] = []
        self._decode: Callable[[str], object] | None = None
        names = [f"c{number}" for number in range(len(columns))]
        self._values = attrgetter(*names) if len(names) > 1 else partial(_only, attrgetter(*names))
        if any(_UNKNOWN_TO_MSGSPEC.search(field.name) for field in columns):
            return  # the scalar reader reads all of it
        cells = [_cell(field.type, times) for field in columns]
        fields: list[Any] = [
            (name, cell.of_nullable, None) if field.nullable else (name, cell.type)
            for name, cell, field in zip(names, cells, columns, strict=True)
        ]
        rename = {name: field.name for name, field in zip(names, columns, strict=True)}
        row = msgspec.defstruct("Row", fields, rename=rename, kw_only=True, gc=False)
        self._decode = msgspec.json.Decoder(row).decode
        self._finish = [(number, cell.finish) for number, cell in enumerate(cells) if cell.finish is not None]

    def read(self, bodies: Sequence[bytes]) -> list[Row | Refusal]:
        """Return a row, or the refusal, of each body."""
        # Looked up once: this loop is what a typing costs.
        decode, values, finish, columns, times = self._decode, self._values, self._finish, self._columns, self._times
        if decode is None:
            return [read(body, columns, times) for body in bodies]
        found: list[Row | Refusal] = []
        for body, is_marked in zip(bodies, _marked(bodies), strict=True):
            if is_marked:
                found.append(read(body, columns, times))
                continue
            try:
                row = values(decode(body.decode()))
                if finish:
                    cells = list(row)
                    for number, finished in finish:
                        if cells[number] is not None:
                            cells[number] = finished(cells[number])
                    row = tuple(cells)
            except _REFUSED:
                row = read(body, columns, times)
            found.append(row)
        return found


def _only(get: Callable[[Any], object], row: object) -> Row:
    return (get(row),)


def _marked(bodies: Sequence[bytes]) -> list[bool]:
    """Return which bodies the scalar reader has to judge, whatever msgspec says."""
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    data = np.frombuffer(bytearray().join(bodies), np.uint8)
    return marked(data, np.cumsum(sizes), DEEPEST).tolist() if data.size else [False] * len(bodies)


def _cell(type_: pa.DataType, times: Times) -> _Cell:
    """Return how a column is read: what msgspec would not read exactly gets the functions of the scalar reader."""
    if pa.types.is_floating(type_):
        return _Cell(float, partial(_real, _EXACT_INTEGERS[type_.bit_width], type_))
    if pa.types.is_decimal(type_):
        return _Cell(msgspec.Raw, partial(_decimal, type_, _plain_decimals(type_)))
    if pa.types.is_timestamp(type_):
        return _Cell(str | int, lambda value: instant(value if isinstance(value, str) else Number(value), times))
    if pa.types.is_date(type_):
        return _Cell(str, day)
    if pa.types.is_binary(type_):
        return _Cell(str, base64_bytes)
    native = _native(type_)
    return _Cell(native) if native is not None else _Cell(msgspec.Raw, partial(_nested, type_, times))


def _native(type_: pa.DataType) -> Any | None:  # noqa: ANN401 - a type for msgspec
    """Return the type that msgspec reads exactly as the scalar reader does; None where there is none."""
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_struct(type_):
        return _native_struct(type_)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        item: Any = _native(type_.value_type if pa.types.is_list(type_) else type_.item_type)
        if item is None:
            return None
        return list[item | None] if pa.types.is_list(type_) else dict[str, item | None]
    return bool if pa.types.is_boolean(type_) else str if pa.types.is_string(type_) else None


def _native_struct(type_: pa.DataType) -> Any | None:  # noqa: ANN401 - a type for msgspec
    items: dict[str, Any] = {field.name: _native(field.type) for field in type_}
    if None in items.values():
        return None
    members = {
        field.name: NotRequired[items[field.name] | None] if field.nullable else items[field.name] for field in type_
    }
    return TypedDict("Struct", members)  # type: ignore[operator]


def _real(exact: int, type_: pa.DataType, value: float) -> float:
    """Refuse a number that may have been an integer between two that the type has: the scalar reader knows."""
    if not -exact < value < exact:  # the next integer above is rounded to the limit
        raise RefusedBodyError("to be judged")
    return value if type_.bit_width > 32 else float(np.float32(value))  # noqa: PLR2004 - bits


def _decimal(type_: pa.DataType, plain: re.Pattern[bytes], raw: msgspec.Raw) -> object:
    """Return a number as its text where that is all there is to it, else as the scalar reader does."""
    text = bytes(raw)
    if plain.fullmatch(text):
        return text.decode()
    if text[:1] == b'"':
        return decimal(msgspec.json.decode(text, type=str), type_)
    return decimal(Number(text.decode()), type_)


def _plain_decimals(type_: pa.DataType) -> re.Pattern[bytes]:
    """Return the pattern of the numbers that fit a type as they are written."""
    fraction = rf"(?:\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
    return re.compile(rf"-?[0-9]{{1,{max(type_.precision - type_.scale, 1)}}}{fraction}".encode())


def _nested(type_: pa.DataType, times: Times, raw: msgspec.Raw) -> object:
    """Return a nested value by the scalar reader, which refuses null: only a body's own reading may allow that."""
    value = converted(parsed(bytes(raw)), type_, times, "$")
    if value is None:
        raise RefusedBodyError("to be judged")
    return value
