"""`types.toml`: which topics are typed, and how."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo

import pyarrow as pa

from jobs.typed.ddl import SchemaError, columns_text, parse_columns
from jobs.typed.refusal import Refusal
from jobs.typed.tables import LONGEST_FOLDER, folder_of, refuse_reserved
from jobs.typed.values import Times

_KEYS = {"format": str, "schema": str, "from": dict, "properties": list, "epoch": str, "time_zone": str}
_EPOCHS = ("s", "ms", "us")


class DeclarationError(Exception):
    """A file of types says something that is not understood; the message has the file and the line or the key."""


class Reader(Protocol):
    """Reads bodies of one type."""

    def read(self, bodies: Sequence[bytes]) -> list[tuple[object, ...] | Refusal]:
        """Return the values of the columns, or the refusal, of each body."""


@dataclass(frozen=True)
class TopicType:
    """How the bodies of a topic are read."""

    topic: str
    format: str
    columns: tuple[pa.Field, ...]  # of the body, by their names in the table
    sources: Mapping[str, str] = field(default_factory=dict)  # the field of the body, where it has another name
    properties: tuple[str, ...] = ()  # of the message, as columns of their names
    times: Times = field(default_factory=Times)

    @property
    def all_columns(self) -> tuple[pa.Field, ...]:
        """The columns of the body, then those of the message's properties."""
        return (*self.columns, *(pa.field(name, pa.string()) for name in self.properties))

    @property
    def body_columns(self) -> tuple[pa.Field, ...]:
        """The columns of the body by the names that the body has for them."""
        return tuple(one.with_name(self.sources.get(one.name, one.name)) for one in self.columns)

    def reader(self) -> Reader:
        """Return a reader of such bodies."""
        from jobs.typed.fast_json import FastJson

        return FastJson(self.body_columns, self.times)

    def described(self) -> dict[str, object]:
        """Return all that decides which rows a body gives: a change of it is a new type."""
        zone = None if self.times.zone is None else str(self.times.zone)
        return {
            "format": self.format,
            "columns": columns_text(self.all_columns),
            "from": dict(sorted(self.sources.items())),
            "properties": list(self.properties),
            "epoch": self.times.unit,
            "time_zone": zone,
        }


def read_types(path: Path) -> tuple[TopicType, ...]:
    """Return the types that a file declares; `DeclarationError` names the line or the key that is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeclarationError(f"{path}: {error}") from error
    unknown = sorted(content.keys() - {"topic"})
    if unknown:
        raise DeclarationError(f'{path}: {unknown[0]}: no such key; each topic is a table [topic."NAME"]')
    topics = content.get("topic")
    if not isinstance(topics, dict) or not topics:
        raise DeclarationError(f'{path}: topic: declares no topic; write [topic."NAME"]')
    return tuple(_Declared(path, topic, values).type() for topic, values in topics.items())


class _Declared:
    """One topic of a file, whose keys are checked one by one."""

    def __init__(self, path: Path, topic: str, values: object) -> None:
        self._place = f'{path}: [topic."{topic}"]'
        self._topic = topic
        if not isinstance(values, dict):
            raise DeclarationError(f"{self._place}: no table of keys")
        self._values = values

    def type(self) -> TopicType:
        """Return the type; `DeclarationError` names the first key that is wrong."""
        for key, value in self._values.items():
            if key not in _KEYS:
                raise self._error(key, f"no such key ({', '.join(_KEYS)})")
            if not isinstance(value, _KEYS[key]):
                raise self._error(key, f"must be a {_KEYS[key].__name__}")
        if not self._topic or len(folder_of(self._topic)) > LONGEST_FOLDER:
            raise DeclarationError(f"{self._place}: a topic has 1 to {LONGEST_FOLDER} characters")
        if self._text("format") != "json":
            raise self._error("format", "must be json")
        columns = self._columns()
        found = TopicType(self._topic, "json", columns, self._sources(columns), self._properties(), self._times())
        try:
            refuse_reserved(found.all_columns)
        except SchemaError as error:
            raise self._error("schema", str(error)) from error
        names = [column.name.lower() for column in found.all_columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise self._error("properties", f"{twice!r}: a column of the body has this name")
        return found

    def _columns(self) -> tuple[pa.Field, ...]:
        try:
            return parse_columns(self._text("schema"))
        except SchemaError as error:
            raise self._error("schema", str(error)) from error

    def _text(self, key: str) -> str:
        if key not in self._values:
            raise self._error(key, "missing")
        return str(self._values[key])

    def _sources(self, columns: Sequence[pa.Field]) -> dict[str, str]:
        names = {column.name for column in columns}
        found: dict[str, str] = {}
        for name, source in self._values.get("from", {}).items():
            if name not in names or not isinstance(source, str):
                raise self._error(
                    "from", f"{name!r}: must be a column of the schema, and its value a field of the body"
                )
            found[name] = source
        of_body = [found.get(name, name) for name in names]
        if len(set(of_body)) < len(of_body):
            raise self._error("from", "two columns are of one field")
        return found

    def _properties(self) -> tuple[str, ...]:
        names = self._values.get("properties", [])
        if not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise self._error("properties", "must be names of properties, of letters, digits and _")
        return tuple(names)

    def _times(self) -> Times:
        unit, zone = self._values.get("epoch"), self._values.get("time_zone")
        if unit is not None and unit not in _EPOCHS:
            raise self._error("epoch", f"must be one of {', '.join(_EPOCHS)}")
        try:
            return Times(unit, None if zone is None else ZoneInfo(zone))
        except (ValueError, OSError) as error:
            raise self._error("time_zone", f"{zone!r}: no zone of the IANA's, like Asia/Shanghai") from error

    def _error(self, key: str, reason: str) -> DeclarationError:
        return DeclarationError(f"{self._place}: {key}: {reason}")
