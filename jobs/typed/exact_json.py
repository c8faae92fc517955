"""
The scalar reader of JSON bodies: readable, exact, and the reference for the compiled reader.

It also reports why and where a body is rejected, so it reads every body that the compiled reader rejects or cannot
read exactly.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import pyarrow as pa

from jobs.typed.formats import Row, TypedRows, decode_text_body, read_typed_rows
from jobs.typed.values import Number, RefusedBodyError, Times, Value, convert_struct, member_path

_DEEPEST = 100  # nested objects and arrays
_BRACKETS = re.compile(rb'[\[{]+|[\]}]+|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # and strings, which may contain brackets
_HALF = re.compile(r"\\u[dD]")
_LONE = re.compile("[\ud800-\udfff]")


def read_bodies_exactly(bodies: Iterable[bytes], columns: Sequence[pa.Field], times: Times) -> TypedRows:
    """Return the rows or refusals of bodies, and the fields without a column."""

    def read(body: bytes, left: dict[str, Value]) -> Row:
        value = parse_body(body)
        row = tuple(convert_struct(value, columns, times, "$").values())
        for path, one in _unknown(value, pa.struct(columns), "$"):
            left.setdefault(path, one)
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
    _refuse_depth(body)
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


def _refuse_depth(body: bytes) -> None:
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
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RefusedBodyError("a key occurs twice in one object", f"key {member_path('', twice).lstrip('.')}")
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
