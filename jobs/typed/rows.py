"""Bodies of any format as rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import pyarrow as pa

from jobs.typed.ddl import without_demands
from jobs.typed.values import Refusal, Times

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
    """How bodies spell values: one module a format."""

    name: ClassVar[str]  # in types.toml

    def described(self) -> Mapping[str, object]:
        """Return all that decides which rows a body gives, besides its columns."""
        return {}

    @abstractmethod
    def reader(self, columns: Sequence[pa.Field], times: Times) -> Reader:
        """Return a reader of *columns*, by the names that the body has for them."""


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
