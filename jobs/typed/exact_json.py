"""
The scalar reader of JSON: readable, exact, and the truth that the fast one is held to.

It also names the reason and the place in a body that is refused, so every body that the fast reader refuses, or could
have bent, comes here.
"""

import json
import re
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa

from jobs.typed.rows import Row
from jobs.typed.values import Number, Refusal, RefusedBodyError, Times, Value, member, struct_of

_DEEPEST = 100  # objects and arrays in each other
_BRACKETS = re.compile(rb'[\[{]+|[\]}]+|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # and texts, which may have some
_HALF = re.compile(r"\\u[dD]")
_LONE = re.compile("[\ud800-\udfff]")


def read(body: bytes, columns: Sequence[pa.Field], times: Times) -> Row | Refusal:
    """Return the values of *columns* in a body, or why it has none."""
    try:
        return tuple(struct_of(parsed(body), columns, times, "$").values())
    except RefusedBodyError as error:
        reason, place = error.refusal
        return Refusal(reason, "$" if place is None else place)


def parsed(body: bytes) -> Value:
    """Return the one document of a body, its numbers as they are spelled; `RefusedBodyError` where there is none."""
    if not body.strip(b" \t\r\n"):
        raise RefusedBodyError("an empty body", "byte 0")
    _refuse_depth(body)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RefusedBodyError("invalid UTF-8", f"byte {error.start}") from None
    try:
        value = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        reason = "more after the document" if error.msg == "Extra data" else "invalid JSON"
        raise RefusedBodyError(reason, f"byte {len(text[: error.pos].encode())}") from None
    if _HALF.search(text):
        _refuse_lone_surrogates(value, "$")
    return value


def _refuse_depth(body: bytes) -> None:
    # Before `json.loads`, which takes a level of Python's stack for each: another limit, on every version another one.
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
    raise RefusedBodyError(f"{name} is no number of JSON", name)


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RefusedBodyError("a key occurs twice in one object", f"key {member('', twice).lstrip('.')}")
    return found


def _refuse_lone_surrogates(value: Value, path: str) -> None:
    """Raise `RefusedBodyError` for half of a character: no table can hold such a text."""
    if isinstance(value, str) and _LONE.search(value):
        raise RefusedBodyError("half of a surrogate pair", path)
    if isinstance(value, list):
        for number, one in enumerate(value):
            _refuse_lone_surrogates(one, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            if _LONE.search(name):
                raise RefusedBodyError("half of a surrogate pair", path)
            _refuse_lone_surrogates(one, member(path, name))
