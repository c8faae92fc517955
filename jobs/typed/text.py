"""
Bodies of text: each matches a pattern as a whole, whose named groups are its columns.

RE2 does the matching, as Arrow has it: its time grows with the length of a body alone, whatever the pattern.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from jobs.typed.ddl import SchemaError, type_text
from jobs.typed.refusal import Refusal, RefusedBodyError
from jobs.typed.rows import Row, Typed, typed
from jobs.typed.values import DECIMAL, Number, Times, Value, struct_of


@dataclass(frozen=True)
class Text:
    """The format: a pattern as RE2 has it."""

    pattern: str
    name: ClassVar = "text"

    def described(self) -> Mapping[str, object]:
        """Return all that decides which rows a body gives, beside the columns."""
        return {"pattern": self.pattern}

    def reader(self, columns: Sequence[pa.Field], times: Times) -> "TextReader":
        """Return a reader of such bodies."""
        return TextReader(self.pattern, columns, times)

    def check(self, columns: Sequence[pa.Field]) -> None:
        """Raise `SchemaError` where the pattern is none, or a column has no group, or a group can not have its type."""
        try:
            groups = {field.name for field in _matched(self.pattern, []).type}
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise SchemaError(f"{error} (a group is (?P<name>…), or (?:…) where it is no column)") from error
        for column in columns:
            if column.name not in groups or pa.types.is_nested(column.type):
                raise SchemaError(
                    f"{column.name} {type_text(column.type)}: of no group, or no type of a single value; "
                    f"the groups are: {', '.join(sorted(groups)) or 'none'}"
                )


class TextReader:
    """Reads the bodies of one type."""

    def __init__(self, pattern: str, columns: Sequence[pa.Field], times: Times) -> None:
        self._pattern, self._columns, self._times = pattern, columns, times

    def read(self, bodies: pa.Array) -> Typed:
        """Return the rows, or the refusals, of bodies."""
        texts = [_text(body) for body in bodies.to_pylist()]
        matched = _matched(self._pattern, [None if isinstance(text, Refusal) else text for text in texts])
        results = (
            text if isinstance(text, Refusal) else self._row(groups)
            for text, groups in zip(texts, matched.to_pylist(), strict=True)
        )
        return typed(results, [column.type for column in self._columns])

    def _row(self, groups: Mapping[str, str] | None) -> Row | Refusal:
        if groups is None:
            return Refusal("does not match the pattern", "$")
        values = {field.name: _value(groups[field.name], field.type, self._times) for field in self._columns}
        try:
            return tuple(struct_of(values, self._columns, self._times, "$").values())
        except RefusedBodyError as error:
            return error.refusal


def _text(body: bytes) -> str | Refusal:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        return Refusal("invalid UTF-8", f"byte {error.start}")


def _matched(pattern: str, texts: Sequence[str | None]) -> pa.Array:
    return pc.extract_regex(pa.array(texts, pa.string()), rf"\A(?:{pattern})\z")


def _value(group: str, type_: pa.DataType, times: Times) -> Value:
    """Return a group as JSON would have such a value; an empty one is a value of texts alone."""
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
