"""
Bodies of text: each matches a pattern as a whole, whose named groups are its columns.

RE2 does the matching, as Arrow has it: its time grows with the length of a body alone, for any pattern.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from jobs.typed.ddl import SchemaError, type_text
from jobs.typed.rows import BodyFormat, Reader, Row, Typed, typed
from jobs.typed.values import DECIMAL, Number, Refusal, RefusedBodyError, Times, Value, struct_of


@dataclass(frozen=True)
class Text(BodyFormat):
    """The format: a pattern as RE2 has it."""

    pattern: str
    name: ClassVar = "text"

    def described(self) -> Mapping[str, object]:
        """Return all that decides which rows a body gives, besides the columns."""
        return {"pattern": self.pattern}

    def reader(self, columns: Sequence[pa.Field], times: Times) -> Reader:
        """Return a reader of such bodies."""

        def row(text: str | Refusal, groups: Mapping[str, str] | None) -> Row | Refusal:
            if isinstance(text, Refusal):
                return text
            if groups is None:
                return Refusal("does not match the pattern", "$")
            values = {field.name: _value(groups[field.name], field.type, times) for field in columns}
            try:
                return tuple(struct_of(values, columns, times, "$").values())
            except RefusedBodyError as error:
                return error.refusal

        def read(bodies: pa.Array) -> Typed:
            texts = [_text(body) for body in bodies.to_pylist()]
            matched = _matched(self.pattern, [None if isinstance(text, Refusal) else text for text in texts])
            return typed(map(row, texts, matched.to_pylist()), [column.type for column in columns])

        return read

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
