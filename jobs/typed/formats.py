"""Bodies of any format as rows; of JSON, which says all that there is to know, and of text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jobs.typed.ddl import SchemaError, type_text, without_demands
from jobs.typed.values import DECIMAL, Number, Refusal, RefusedBodyError, Times, Value, struct_of

Row = tuple[object, ...]
OTHER_FIELDS = "other fields"
_MOST_UNKNOWN = 200  # unknown fields of a topic that are counted one by one


class UnknownField(NamedTuple):
    """A field of bodies that no column takes: in how many of the typed bodies it is, and an example."""

    messages: int
    at: int  # the number of the first such body; in the result of a typing the physical offset of its message
    example: str  # its value in that body, shortened


class Typed(NamedTuple):
    """The rows of those bodies that have one, in their order, and the refusals of the others."""

    columns: Sequence[pa.Array]
    refusals: Mapping[int, Refusal]  # by the number of the body
    unknown: Mapping[str, UnknownField] = MappingProxyType({})  # by the path of the field


Reader = Callable[[pa.Array], Typed]  # of bodies of one type, none of which is NULL


class BodyFormat(ABC):
    """How bodies spell values."""

    name: ClassVar[str]  # in types.toml

    def described(self) -> Mapping[str, object]:
        """Return all that decides which rows a body gives, besides its columns."""
        return {}

    @abstractmethod
    def reader(self, columns: Sequence[pa.Field], times: Times) -> Reader:
        """Return a reader of *columns*, by the names that the body has for them."""


@dataclass(frozen=True)
class Json(BodyFormat):
    """Bodies of JSON."""

    name: ClassVar = "json"

    def reader(self, columns: Sequence[pa.Field], times: Times) -> Reader:
        """Return a reader of such bodies."""
        from jobs.typed.fast_json import read_bodies  # loads the compiler

        return partial(read_bodies, columns, times)


@dataclass(frozen=True)
class Text(BodyFormat):
    """
    Bodies of text: each matches a pattern as a whole, whose named groups are its columns.

    RE2 does the matching, as Arrow has it: its time grows with the length of a body alone, for any pattern.
    """

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
            values = {field.name: _value_of_group(groups[field.name], field.type, times) for field in columns}
            try:
                return tuple(struct_of(values, columns, times, "$").values())
            except RefusedBodyError as error:
                return error.refusal

        def read(bodies: pa.Array) -> Typed:
            texts = list(map(_decoded, bodies.to_pylist()))
            matched = self._matched([None if isinstance(text, Refusal) else text for text in texts])
            return typed(map(row, texts, matched.to_pylist()), [column.type for column in columns])

        return read

    def check(self, columns: Sequence[pa.Field]) -> None:
        """Raise `SchemaError` where the pattern is none, or a column has no group, or a group can not have its type."""
        try:
            groups = {field.name for field in self._matched([]).type}
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise SchemaError(f"{error} (a group is (?P<name>…), or (?:…) where it is no column)") from error
        for column in columns:
            if column.name not in groups or pa.types.is_nested(column.type):
                raise SchemaError(
                    f"{column.name} {type_text(column.type)}: of no group, or no type of a single value; "
                    f"the groups are: {', '.join(sorted(groups)) or 'none'}"
                )

    def _matched(self, texts: Sequence[str | None]) -> pa.Array:
        return pc.extract_regex(pa.array(texts, pa.string()), rf"\A(?:{self.pattern})\z")


def _decoded(body: bytes) -> str | Refusal:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        return Refusal("invalid UTF-8", f"byte {error.start}")


def _value_of_group(group: str, type_: pa.DataType, times: Times) -> Value:
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


def typed(results: Iterable[Row | Refusal], types: Sequence[pa.DataType]) -> Typed:
    """Return rows of values as columns of some types."""
    rows: list[Row] = []
    refusals: dict[int, Refusal] = {}
    for number, result in enumerate(results):
        if isinstance(result, Refusal):
            refusals[number] = result
        else:
            rows.append(result)
    cells = zip(*rows, strict=True) if rows else ((),) * len(types)
    return Typed([array_of(values, type_) for values, type_ in zip(cells, types, strict=True)], refusals)


def merge_unknown(known: dict[str, UnknownField], more: Mapping[str, UnknownField]) -> None:
    """Add unknown fields to those of earlier bodies; of very many different ones, the rest is counted as one."""
    for path, field in more.items():
        place = path if path in known or len(known) < _MOST_UNKNOWN else OTHER_FIELDS
        earlier = known.get(place, field._replace(messages=0))
        first = min(earlier, field, key=lambda one: one.at)
        known[place] = first._replace(messages=earlier.messages + field.messages)


def array_of(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    """Return the values of a column as Arrow's."""
    if pa.types.is_decimal(type_):  # texts are ten times as fast as Decimals
        texts = [value if value is None else format(value, "f") for value in values]
        return pa.array(texts, pa.string()).cast(type_)
    return pa.array(values, without_demands(type_))
