"""
The interface of body formats, the scalar reader of JSON, and the format text.

The scalar reader of JSON is readable, exact, and the reference for the compiled reader. It also reports why and where a
body is rejected, so it reads every body that the compiled reader rejects or cannot read exactly.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.tables import JSON_TEXT, sql_type
from jobs.typed.ddl import SchemaError, all_nullable
from jobs.typed.values import (
    DECIMAL,
    Number,
    Refusal,
    RefusedBodyError,
    TimeDefaults,
    Value,
    convert_struct,
    member_path,
)

T = TypeVar("T")
Row = tuple[object, ...]
OTHER_FIELDS = "other fields"
_MOST_UNKNOWN = 200  # unknown fields of a topic that are counted separately
_LONGEST_EXAMPLE = 60  # characters
_DEEPEST = 100  # nested objects and arrays
_BRACKETS = re.compile(rb'[\[{]+|[\]}]+|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # and strings, which may contain brackets
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # Python limits the digits of an int
_HALF = re.compile(r"\\u[dD]")
_LONE = re.compile("[\ud800-\udfff]")


class UnknownField(NamedTuple):
    """A field of bodies without a column: the number of typed bodies that have it, and an example."""

    messages: int
    at: int  # the number of the first such body; in the result of a typing the physical offset of its message
    example: str  # the field's value in that body, shortened


class TypedRows(NamedTuple):
    """The rows of the bodies that fit, in order, and the refusals of the others."""

    columns: Sequence[pa.Array]
    refusals: Mapping[int, Refusal]  # refusals, by the index of the body
    unknown_fields: Mapping[str, UnknownField] = MappingProxyType({})  # unknown fields, by path


BodyReader = Callable[[pa.Array], TypedRows]  # reads bodies of one type, none of which is NULL


class BodyFormat(NamedTuple):
    """An encoding of bodies."""

    name: str  # the name in types.toml
    # Returns the reader of these columns, which have the names of the body's fields.
    reader: Callable[[Sequence[pa.Field], TimeDefaults], BodyReader]
    described: Mapping[str, object] = MappingProxyType({})  # other settings that affect the row of a body


def read_bodies_exactly(bodies: Iterable[bytes], columns: Sequence[pa.Field], times: TimeDefaults) -> TypedRows:
    """Return the rows or refusals of bodies, and the fields without a column."""
    as_text = [column.name for column in columns if column.type == JSON_TEXT]

    def read(body: bytes, unknown_fields: dict[str, Value]) -> Row:
        """Return the row of a body, and add the fields without a column to *unknown_fields*."""
        value = parse_body(body)
        if as_text and isinstance(value, dict):
            texts = _read_member_texts(body.decode())
            value |= {name: texts[name] for name in as_text if value.get(name) is not None}
        row = tuple(convert_struct(value, columns, times, "$").values())
        for path, one in _unknown(value, pa.struct(columns), "$"):
            unknown_fields.setdefault(path, one)
        return row

    return read_typed_rows(bodies, read, [column.type for column in columns])


def _unknown(value: Value, type_: pa.DataType, path: str) -> Iterator[tuple[str, Value]]:
    """Yield the path and the value of each object member without a field in its type."""
    if pa.types.is_struct(type_) and isinstance(value, dict):
        types = {field.name: field.type for field in type_}
        for name, one in value.items():
            inner = member_path(path, name)
            if name in types:
                yield from _unknown(one, types[name], inner)
            else:
                yield inner, one
    elif isinstance(value, list | dict) and (pa.types.is_list(type_) or pa.types.is_map(type_)):
        item_type = type_.value_type if pa.types.is_list(type_) else type_.item_type
        for item in value.values() if isinstance(value, dict) else value:
            yield from _unknown(item, item_type, f"{path}[]")


def parse_body(body: bytes) -> Value:
    """Parse a body as one JSON document, keeping the spelling of numbers; raise `RefusedBodyError` if it is not one."""
    if not body.strip(b" \t\r\n"):
        raise RefusedBodyError("an empty body", "byte 0")
    _refuse_deep_nesting(body)
    text = decode_text_body(body)
    try:
        value = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        reason = "extra data after the document" if error.msg == "Extra data" else "invalid JSON"
        raise RefusedBodyError(reason, f"byte {len(text[: error.pos].encode())}") from None
    if _HALF.search(text):
        _refuse_lone_surrogates(value, "$")
    return value


def _read_member_texts(text: str) -> dict[str, str]:
    """Return the text of each member's value, as a valid object in *text* has it."""
    found = {}
    at = _skip_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip_space(text, _skip_space(text, at) + 1)  # after the colon
        _, at = _DECODER.raw_decode(text, start)
        found[name] = text[start:at]
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def _skip_space(text: str, at: int) -> int:
    """Return the position of the next character that is no white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # the pattern always matches


def _refuse_deep_nesting(body: bytes) -> None:
    """Raise `RefusedBodyError` for a body with too many objects and arrays inside one another."""
    # `json.loads` takes a level of Python's stack for each; its own limit depends on the version.
    if body.count(b"[") + body.count(b"{") <= _DEEPEST:
        return
    depth = 0
    for match in _BRACKETS.finditer(body):
        size = match.end() - match.start()
        if match[0][:1] in b"[{":
            if depth + size > _DEEPEST:
                raise RefusedBodyError(f"nested deeper than {_DEEPEST}", f"byte {match.start() + _DEEPEST - depth}")
            depth += size
        elif match[0][:1] != b'"':
            depth -= size


def _refuse_constant(name: str) -> NoReturn:
    raise RefusedBodyError(f"{name} is not a valid JSON number", name)


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise RefusedBodyError("a key occurs twice in one object", f"key {member_path('', name).lstrip('.')}")
            seen.add(name)
    return found


def _refuse_lone_surrogates(value: Value, path: str) -> None:
    """Raise `RefusedBodyError` for an unpaired surrogate: no table can hold such a text."""
    if isinstance(value, str) and _LONE.search(value):
        raise RefusedBodyError("an unpaired surrogate", path)
    if isinstance(value, list):
        for number, one in enumerate(value):
            _refuse_lone_surrogates(one, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            if _LONE.search(name):
                raise RefusedBodyError("an unpaired surrogate", path)
            _refuse_lone_surrogates(one, member_path(path, name))


def text_format(pattern: str) -> BodyFormat:
    """
    Return the format of text bodies: a body matches the whole *pattern*, whose named groups are its columns.

    Arrow matches with RE2: the time depends only on the length of a body, for any pattern.
    """
    return BodyFormat("text", partial(_text_reader, pattern), {"pattern": pattern})


def _text_reader(pattern: str, columns: Sequence[pa.Field], times: TimeDefaults) -> BodyReader:
    def row(matched: tuple[bytes, Mapping[str, str] | None], _: object) -> Row:
        body, groups = matched
        if groups is None:
            decode_text_body(body)
            raise RefusedBodyError("does not match the pattern", "$")
        values = {field.name: _value_of_group(groups[field.name], field.type, times) for field in columns}
        return tuple(convert_struct(values, columns, times, "$").values())

    def read(bodies: pa.Array) -> TypedRows:
        stored = bodies.to_pylist()
        texts: list[str | None] = [None] * len(stored)
        for number, body in enumerate(stored):
            with suppress(UnicodeDecodeError):  # `row` names the byte
                texts[number] = body.decode()
        groups = _match_groups(pattern, texts).to_pylist()
        return read_typed_rows(zip(stored, groups, strict=True), row, [column.type for column in columns])

    return read


def check_pattern(pattern: str, columns: Sequence[pa.Field]) -> None:
    """Raise `SchemaError` if a pattern is invalid, a column has no group, or a group cannot have the column's type."""
    try:
        groups = {field.name for field in _match_groups(pattern, []).type}
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise SchemaError(f"{error} (write a group as (?P<name>…), or as (?:…) if it has no column)") from error
    for column in columns:
        if column.name not in groups:
            names = ", ".join(sorted(groups)) or "none"
            raise SchemaError(f"{column.name!r}: the pattern has no group of this name; its groups: {names}")
        if pa.types.is_nested(column.type) or column.type == JSON_TEXT:
            raise SchemaError(f"{column.name} {sql_type(column.type)}: a group can only have a scalar type")


def _match_groups(pattern: str, texts: Sequence[str | None]) -> pa.Array:
    return pc.extract_regex(pa.array(texts, pa.string()), rf"\A(?:{pattern})\z")


def decode_text_body(body: bytes) -> str:
    """Decode a body as UTF-8; `RefusedBodyError` names the first invalid byte."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RefusedBodyError("invalid UTF-8", f"byte {error.start}") from None


def _value_of_group(group: str, type_: pa.DataType, times: TimeDefaults) -> Value:
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
        unknown_fields: dict[str, Value] = {}
        try:
            rows.append(read(body, unknown_fields))
        except RefusedBodyError as error:
            refusals[number] = error.refusal_of_body
            continue
        if unknown_fields:
            more = {path: UnknownField(1, number, example_text(one)) for path, one in unknown_fields.items()}
            merge_unknown(unknown, more)
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
