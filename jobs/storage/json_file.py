"""
JSON files that this program wrote and reads back.

Every value is checked, because the file may have been edited, or damaged: an error names the file and the key.
"""

import json
import os
from collections.abc import Iterator
from types import NoneType
from typing import Any

from rmq_formats.errors import CorruptData

# The required shape of a value: a type, {the allowed strings}, (alternatives), [the shape of every element],
# [the shapes of the elements, one by one], {key: shape}, in which a key that ends in `?` may be missing or null, or
# {str: the shape of every value}.
Shape = type | frozenset[str] | tuple[Any, ...] | list[Any] | dict[Any, Any]
_NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    NoneType: "null",
    dict: "an object",
    list: "a list",
}
_LARGEST = 1 << 64  # inodes have 64 bits without a sign
_SHOWN = 40  # characters of a wrong value


def parse_json_file(data: bytes, shape: Shape, location: str) -> Any:  # noqa: ANN401 - the value of the shape
    """Return the value of a JSON file; raise `CorruptData` if it does not match *shape*."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise CorruptData("lists or objects are nested too deeply", None, location) from error
    except ValueError as error:
        raise CorruptData(f"not valid JSON: {error}", None, location) from error
    problem = find_problem(value, shape)
    if problem is not None:
        raise CorruptData(problem, None, location)
    return value


def find_problem(value: object, shape: Shape, key: str = "") -> str | None:
    """Describe how a JSON value deviates from *shape* (*key* is its path); return None if it matches."""
    if isinstance(shape, tuple):
        problems = [find_problem(value, one, key) for one in shape]
        return None if None in problems else problems[0]
    if isinstance(shape, frozenset):
        return (
            None
            if value in [*shape]
            else f"{key} must be one of {', '.join(sorted(shape))}, not {_abridge_value(value)}"
        )
    kind = shape if isinstance(shape, type) else type(shape)
    if not _is_of_kind(value, kind):
        return f"{key or 'the file'} must be {_NAMES[kind]}, not {_abridge_value(value)}"
    return next(filter(None, _find_inner_problems(value, shape, key)), None)


def _find_inner_problems(value: object, shape: Shape, key: str) -> Iterator[str | None]:
    if isinstance(value, list) and isinstance(shape, list):
        shapes = shape if len(shape) > 1 else shape * len(value)
        if len(value) != len(shapes):
            yield f"{key} must have {len(shapes)} elements, not {len(value)}"
            return
        for number, (one, inner) in enumerate(zip(value, shapes, strict=True)):
            yield find_problem(one, inner, f"{key}[{number}]")
    elif isinstance(value, dict) and isinstance(shape, dict):
        every: dict[Any, Any] = dict.fromkeys(value, shape[str]) if str in shape else shape
        for name, inner in every.items():
            yield _find_problem_of_key(value, name, inner, key)


def _find_problem_of_key(value: dict[str, object], name: str, shape: Shape, key: str) -> str | None:
    own = name if name in value else name.removesuffix("?")
    inner = f"{key}.{own}".lstrip(".")
    if not _is_of_kind(own, str):
        return f"{key} has a key that is not a valid name: {_abridge_value(own)}"
    if own not in value or (own != name and value[own] is None):
        return None if own != name else f"the key {inner} is missing"
    return find_problem(value[own], shape, inner)


def _is_of_kind(value: object, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    if kind is str:
        return isinstance(value, str) and "\0" not in value and _can_be_name(value)
    return isinstance(value, kind)


def _can_be_name(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return False
    return True


def _abridge_value(value: object) -> str:
    return json.dumps(value)[:_SHOWN]
