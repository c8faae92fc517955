"""The interface of body formats, and the formats JSON and text."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.tables import sql_type
from jobs.typed.ddl import SchemaError, all_nullable
from jobs.typed.values import DECIMAL, Number, Refusal, RefusedBodyError, Times, Value, convert_struct

T = TypeVar("T")
Row = tuple[object, ...]
OTHER_FIELDS = "other fields"
_MOST_UNKNOWN = 200  # unknown fields of a topic that are counted separately
_LONGEST_EXAMPLE = 60  # characters


class UnknownField(NamedTuple):
    """A field of bodies without a column: the number of typed bodies that have it, and an example."""

    messages: int
    at: int  # the number of the first such body; in the result of a typing the physical offset of its message
    example: str  # its value in that body, shortened


class TypedRows(NamedTuple):
    """The rows of the bodies that fit, in order, and the refusals of the others."""

    columns: Sequence[pa.Array]
    refusals: Mapping[int, Refusal]  # by the number of the body
    unknown: Mapping[str, UnknownField] = MappingProxyType({})  # by the path of the field


Reader = Callable[[pa.Array], TypedRows]  # of bodies of one type, none of which is NULL


class BodyFormat(NamedTuple):
    """An encoding of bodies."""

    name: str  # in types.toml
    reader: Callable[[Sequence[pa.Field], Times], Reader]  # of columns with the names of the body
    described: Mapping[str, object] = MappingProxyType({})  # other settings that affect the row of a body


def _json_reader(columns: Sequence[pa.Field], times: Times) -> Reader:
    from jobs.typed.fast_json import read_bodies  # loads the compiler

    return partial(read_bodies, columns, times)


JSON_FORMAT = BodyFormat("json", _json_reader)


def text_format(pattern: str) -> BodyFormat:
    """
    Return the format of text bodies: a body matches the whole *pattern*, whose named groups are its columns.

    Arrow matches with RE2: the time depends only on the length of a body, for any pattern.
    """
    return BodyFormat("text", partial(_text_reader, pattern), {"pattern": pattern})


def _text_reader(pattern: str, columns: Sequence[pa.Field], times: Times) -> Reader:
    def row(matched: tuple[bytes, Mapping[str, str] | None], _: object) -> Row:
        body, groups = matched
        if groups is None:
            decode_text_body(body)
            raise RefusedBodyError("does not match the pattern", "$")
        values = {field.name: _value_of_group(groups[field.name], field.type, times) for field in columns}
        return tuple(convert_struct(values, columns, times, "$").values())

    def read(bodies: pa.Array) -> TypedRows:
        stored = bodies.to_pylist()
        groups = _matched(pattern, list(map(_text_or_none, stored))).to_pylist()
        return read_typed_rows(zip(stored, groups, strict=True), row, [column.type for column in columns])

    return read


def check_pattern(pattern: str, columns: Sequence[pa.Field]) -> None:
    """Raise `SchemaError` if a pattern is invalid, a column has no group, or a group cannot have the column's type."""
    try:
        groups = {field.name for field in _matched(pattern, []).type}
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise SchemaError(f"{error} (write a group as (?P<name>…), or as (?:…) if it has no column)") from error
    for column in columns:
        if column.name not in groups or pa.types.is_nested(column.type):
            raise SchemaError(
                f"{column.name} {sql_type(column.type)}: the pattern has no such group, or the type is not a "
                f"scalar; the groups are: {', '.join(sorted(groups)) or 'none'}"
            )


def _matched(pattern: str, texts: Sequence[str | None]) -> pa.Array:
    return pc.extract_regex(pa.array(texts, pa.string()), rf"\A(?:{pattern})\z")


def _text_or_none(body: bytes) -> str | None:
    with suppress(UnicodeDecodeError):  # `body_text` names the byte
        return body.decode()
    return None


def decode_text_body(body: bytes) -> str:
    """Decode a body as UTF-8; `RefusedBodyError` names the first invalid byte."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RefusedBodyError("invalid UTF-8", f"byte {error.start}") from None


def _value_of_group(group: str, type_: pa.DataType, times: Times) -> Value:
    """Return a group as a JSON value for a column type; an empty group is a value only of strings."""
    if pa.types.is_string(type_):
        return group
    if not group:
        return None
    if pa.types.is_boolean(type_):
        return {"true": True, "false": False}.get(group, group)
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    if (is_number or (pa.types.is_timestamp(type_) and times.unit is not None)) and DECIMAL.fullmatch(group):
        return Number(group)
    return group


def read_typed_rows(
    bodies: Iterable[T], read: Callable[[T, dict[str, Value]], Row], types: Sequence[pa.DataType]
) -> TypedRows:
    """Read bodies into columns of these types; *read* adds fields without a column to its second argument."""
    rows: list[Row] = []
    refusals: dict[int, Refusal] = {}
    unknown: dict[str, UnknownField] = {}
    for number, body in enumerate(bodies):
        left: dict[str, Value] = {}
        try:
            rows.append(read(body, left))
        except RefusedBodyError as error:
            refusals[number] = error.refusal_of_body
            continue
        if left:
            merge_unknown(unknown, {path: UnknownField(1, number, example_text(one)) for path, one in left.items()})
    cells = zip(*rows, strict=True) if rows else ((),) * len(types)
    return TypedRows([make_array(values, type_) for values, type_ in zip(cells, types, strict=True)], refusals, unknown)


def example_text(value: Value) -> str:
    """Return a short form of a value: the beginning of a long text; the size of an object, an array or bytes."""
    for type_, text in ((list, "[{} items]"), (dict, "{{{} fields}}"), (bytes, "[{} bytes]")):
        if isinstance(value, type_):
            return text.format(len(value))
    text = value if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]}…"


def merge_unknown(known: dict[str, UnknownField], more: Mapping[str, UnknownField]) -> None:
    """Add unknown fields to those of earlier bodies; if there are too many, the rest is counted together."""
    for path, field in more.items():
        place = path if path in known or len(known) < _MOST_UNKNOWN else OTHER_FIELDS
        earlier = known.get(place, field._replace(messages=0))
        first = min(earlier, field, key=lambda one: one.at)
        known[place] = first._replace(messages=earlier.messages + field.messages)


def make_array(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    """Return the values of a column as an Arrow array."""
    if pa.types.is_decimal(type_):  # texts are ten times as fast as Decimals
        texts = [value if value is None else format(value, "f") for value in values]
        return pa.array(texts, pa.string()).cast(type_)
    return pa.array(values, all_nullable(type_))
