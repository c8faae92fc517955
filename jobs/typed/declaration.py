"""Reads `types.toml`, which declares typed topics; decides whether a changed declaration rebuilds a table."""

import errno
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa

from jobs.console.result import RequestError
from jobs.lake.tables import sql_columns
from jobs.storage.local import read_small_file
from jobs.storage.paths import list_directory
from jobs.typed.ddl import (
    MAX_DIRECTORY_LENGTH,
    TYPED_DIRECTORY,
    SchemaError,
    list_narrowed_columns,
    parse_columns,
    refuse_reserved,
    table_name,
)
from jobs.typed.formats import BodyFormat, BodyReader, check_pattern, text_format
from jobs.typed.values import MICROSECONDS_PER_UNIT, TimeDefaults
from rmq_formats.errors import UnsupportedFormat

_TEXT = (str,), 'a string, like "…"'
_KEYS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "from": ((dict,), 'a table, like { column = "field" }'),
    "properties": ((list, dict), 'a list or a table, like ["name"], or { column = "name" }'),
    # The values of all other keys are strings.
}
_OF_ALL = ("format", "from", "properties")
_OF_FORMAT = {
    "json": ("schema", "epoch", "time_zone"),
    "avro": ("schema_file", "schemas", "time_zone"),
    "protobuf": ("descriptors", "message"),
    "text": ("pattern", "schema", "epoch", "time_zone"),
}
_EXAMPLES = {
    "schema": '; write the columns, as in schema = "id bigint, name string"',
    "schema_file": '; write schema_file = "orders.avsc", or schemas = "DIRECTORY" for bodies of a schema registry',
    "descriptors": '; write descriptors = "shop.desc" (docs/reference/types.md shows how to create it with protoc)',
    "message": '; write the name of the Protobuf message, as in message = "shop.Order"',
    "pattern": "; write a regular expression, as in pattern = '(?P<level>[A-Z]+) (?P<message>.*)'",
}
_SOURCES = ("tag", "property", "field")
# The libraries of the extra `types`; each package precedes its subpackages.
_LIBRARIES = ("fastavro", "google", "google.protobuf")
_BY_COLUMN = ("columns", "from", "properties")
_LARGEST_FILE = 16 << 20
_MORE = ("epoch", "time_zone")  # adding one changes no row: without it, bodies that need it are dead letters


def _json_reader(columns: Sequence[pa.Field], times: TimeDefaults) -> BodyReader:
    from jobs.typed.fast_json import read_bodies  # loads the compiler

    return partial(read_bodies, columns, times)


JSON_FORMAT = BodyFormat("json", _json_reader)


@dataclass(frozen=True)
class TopicType:
    """How to read the bodies of a topic, or of one of its types."""

    topic: str
    format: BodyFormat
    columns: tuple[pa.Field, ...]  # the columns of the body, with their names in the table
    # The name of the body's field, by column, if it differs from the column's name.
    sources: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)  # the name of the message property, by column
    time_defaults: TimeDefaults = field(default_factory=TimeDefaults)
    name: str | None = None  # the name of the type, if the topic has several types
    # With several types, the part of a message that states its type: tag, property NAME or field NAME.
    selector: str | None = None
    types: Mapping[str, "TopicType"] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The name of the table."""
        return table_name(self.topic, self.name)

    @property
    def tables(self) -> dict[str, pa.Schema]:
        """The tables of the topic, and the columns of the bodies in each."""
        return {one.table: pa.schema(one.all_columns) for one in (self.types.values() if self.selector else (self,))}

    @property
    def all_columns(self) -> tuple[pa.Field, ...]:
        """The columns of the body, then those of the message's properties."""
        return (*self.columns, *(pa.field(name, pa.string()) for name in self.properties))

    def reader(self) -> BodyReader:
        """Return a reader of these bodies."""
        return self.format.reader(_rename_columns(self.columns, self.sources), self.time_defaults)

    def to_dict(self) -> dict[str, object]:
        """Return everything that affects the row of a body; types with different values are different types."""
        if self.selector is not None:
            return {"by": self.selector, "types": {name: one.to_dict() for name, one in sorted(self.types.items())}}
        zone = None if self.time_defaults.zone is None else str(self.time_defaults.zone)
        return {
            "format": self.format.name,
            **self.format.described,
            "columns": sql_columns(self.all_columns),
            "from": dict(sorted(self.sources.items())),
            "properties": [name if name == one else f"{name}={one}" for name, one in self.properties.items()],
            "epoch": self.time_defaults.unit,
            "time_zone": zone,
        }


def _rename_columns(columns: Sequence[pa.Field], names: Mapping[str, str]) -> tuple[pa.Field, ...]:
    return tuple(one.with_name(names.get(one.name, one.name)) for one in columns)


def read_types(path: Path) -> tuple[TopicType, ...]:
    """Return the types that a file declares; `RequestError` names the wrong line or key."""
    try:
        content = tomllib.loads(read_small_file(path, _LARGEST_FILE).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        if error.errno not in {errno.EFBIG, errno.ENODATA}:
            raise
        raise RequestError(f"{path}: {error.strerror}") from error
    unknown = sorted(content.keys() - {"topic"})
    if unknown:
        raise RequestError(f'{path}: {unknown[0]}: no such key; each topic is a table [topic."NAME"]')
    topics = content.get("topic")
    if not isinstance(topics, dict) or not topics:
        raise RequestError(f'{path}: no topic is declared; write [topic."NAME"]')
    return tuple(_Declared(path, topic, values).type() for topic, values in topics.items())


class _Declared:
    """The declaration of one topic; its keys are checked one by one."""

    def __init__(self, path: Path, topic: str, values: object, name: str | None = None) -> None:
        self._place = f'{path}: [topic."{topic}"' + ("]" if name is None else f'.types."{name}"]')
        self._path_of_types, self._topic, self._name = path, topic, name
        if not isinstance(values, dict):
            raise RequestError(f"{self._place}: must be a table, with its keys on the following lines")
        self._values = values

    def type(self) -> TopicType:
        """Return the type; `RequestError` names the first wrong key."""
        if "by" in self._values or "types" in self._values:
            return self._type_of_several()
        kind = self._values.get("format")
        if not isinstance(kind, str) or kind not in _OF_FORMAT:
            inner = next((key for key, value in self._values.items() if isinstance(value, dict)), None)
            dotted = (
                f'; did you mean the topic "{self._topic}.{inner}"? Quote names that contain a dot' if inner else ""
            )
            given = f", not {kind!r}" if "format" in self._values else ""
            raise self._error("format", f"must be one of {', '.join(_OF_FORMAT)}{given}{dotted}")
        known = (*_OF_ALL, *_OF_FORMAT[kind])
        for key, value in self._values.items():
            if key not in known:
                close = "".join(f"; did you mean {one}?" for one in get_close_matches(key, known, 1))
                raise self._error(key, f"unknown key for the format {kind}, whose keys are {', '.join(known)}{close}")
            types, wanted = _KEYS.get(key, _TEXT)
            if not isinstance(value, types):
                raise self._error(key, f"must be {wanted}")
        directory = table_name(self._topic, self._name).removeprefix(f"{TYPED_DIRECTORY}/")
        if not self._topic or self._name == "" or len(directory) > MAX_DIRECTORY_LENGTH:
            raise RequestError(
                f"{self._place}: the names of the topic and the type must not be empty, and must have "
                f"at most {MAX_DIRECTORY_LENGTH} characters in total"
            )
        if kind in {"avro", "protobuf"} and not all(map(find_spec, _LIBRARIES)):
            reason = (
                "reading Avro and Protobuf bodies requires additional libraries: pip install 'rocketmq-lake[types]'"
            )
            raise UnsupportedFormat(reason, None, self._place)
        format_, columns = {"avro": self._avro, "protobuf": self._protobuf}.get(kind, self._read_schema_format)()
        sources = self._sources(columns)
        if kind == "text":
            try:
                check_pattern(self._text("pattern"), _rename_columns(columns, sources))
            except SchemaError as error:
                raise self._error("pattern", str(error)) from error
        found = TopicType(self._topic, format_, columns, sources, self._properties(), self._times(), self._name)
        self._columns("properties", lambda: sql_columns(found.all_columns))
        return found

    def _type_of_several(self) -> TopicType:
        by = str(self._values.get("by", ""))
        source, _, name = by.partition(" ")
        types = self._values.get("types")
        if source not in _SOURCES or bool(name) == (source == "tag"):
            raise self._error("by", 'must be "tag", "property NAME", or for JSON "field NAME"')
        if not isinstance(types, dict) or not types or len(self._values) > len(("by", "types")):
            raise self._error(
                "types", 'must be tables [topic."…".types."…"]; put all keys except `by` into these tables'
            )
        read = {one: _Declared(self._path_of_types, self._topic, values, one).type() for one, values in types.items()}
        if any(one.selector is not None or (source == "field" and one.format.name != "json") for one in read.values()):
            raise self._error("types", 'types cannot be nested, and by = "field …" needs format = "json" in each type')
        return TopicType(self._topic, JSON_FORMAT, (), selector=by.strip(), types=read)

    def _read_schema_format(self) -> tuple[BodyFormat, tuple[pa.Field, ...]]:
        format_ = JSON_FORMAT if self._values["format"] == "json" else text_format(self._text("pattern"))
        return format_, self._columns("schema", lambda: self._text("schema"))

    def _avro(self) -> tuple[BodyFormat, tuple[pa.Field, ...]]:
        from jobs.typed.avro import avro_format, columns_of_schemas

        key = "schemas" if "schemas" in self._values else "schema_file"
        if self._values.keys() >= {"schemas", "schema_file"}:
            raise self._error(
                key, "cannot be combined with schema_file: either all bodies begin with a schema id, or none do"
            )
        if key == "schema_file":
            files: dict[int | None, Path] = {None: self._path(key)}
        else:
            paths = list_directory(self._path(key), "*.avsc")
            strange = [path.name for path in paths if not (path.stem.isascii() and path.stem.isdigit())]
            if strange or not paths:
                found = strange[0] if strange else "no *.avsc file"
                directory = str(self._path(key))
                raise self._error(
                    key, f"must be a directory of files like 7.avsc, named by schema id; {directory!r} contains {found}"
                )
            files = {int(path.stem): path for path in paths}
        schemas = {number: self._file(key, path).decode(errors="replace") for number, path in files.items()}
        return avro_format(schemas), self._columns(key, lambda: self._columns_text(columns_of_schemas(schemas)))

    def _protobuf(self) -> tuple[BodyFormat, tuple[pa.Field, ...]]:
        from jobs.typed.protobuf import columns_of_message, protobuf_format

        key = "descriptors"
        of = self._file(key, self._path(key)), self._text("message")
        return protobuf_format(*of), self._columns(key, lambda: self._columns_text(columns_of_message(*of)))

    def _columns_text(self, columns: Sequence[pa.Field]) -> str:
        """Return columns of bodies as SQL, renamed as `from` declares."""
        names = {source: name for name, source in self._values.get("from", {}).items() if isinstance(source, str)}
        return sql_columns(_rename_columns(columns, names))

    def _columns(self, key: str, declared: Callable[[], str]) -> tuple[pa.Field, ...]:
        try:
            columns = parse_columns(declared())
            refuse_reserved(columns)
        except (SchemaError, RecursionError) as error:
            raise self._error(key, str(error)) from error
        return columns

    def _path(self, key: str) -> Path:
        return self._path_of_types.parent / self._text(key)

    def _file(self, key: str, path: Path) -> bytes:
        try:
            return read_small_file(path, _LARGEST_FILE)
        except (OSError, ValueError) as error:
            raise self._error(key, f"{path}: {getattr(error, 'strerror', None) or error}") from error

    def _text(self, key: str) -> str:
        if key not in self._values:
            raise self._error(key, f"missing{_EXAMPLES.get(key, '')}")
        return str(self._values[key])

    def _sources(self, columns: Sequence[pa.Field]) -> dict[str, str]:
        """Return the field of the body that each renamed column reads, by the name of the column."""
        names = {column.name for column in columns}
        found: dict[str, str] = self._values.get("from", {})
        for name, source in found.items():
            if name not in names or not isinstance(source, str):
                raise self._error(
                    "from",
                    f"{name!r}: must be a column of the schema ({', '.join(names)}); its value must be a field of "
                    "the body",
                )
        if len({found.get(name, name) for name in names}) < len(names):
            raise self._error("from", "two columns read the same field")
        return found

    def _properties(self) -> dict[str, str]:
        """Return the message property that each column of a property reads, by the name of the column."""
        given = self._values.get("properties", {})
        for name, value in given.items() if isinstance(given, dict) else ((one, one) for one in given):
            if not isinstance(value, str) or not name.isidentifier():
                raise self._error("properties", f'{name!r}: not a valid column name; write {{ column = "property" }}')
        return given if isinstance(given, dict) else dict(zip(given, given, strict=True))

    def _times(self) -> TimeDefaults:
        unit, zone = self._values.get("epoch"), self._values.get("time_zone")
        if unit is not None and unit not in MICROSECONDS_PER_UNIT:
            raise self._error("epoch", f"must be one of {', '.join(MICROSECONDS_PER_UNIT)}, not {unit!r}")
        try:
            return TimeDefaults(unit, None if zone is None else ZoneInfo(zone))
        except (ValueError, OSError, KeyError) as error:  # zoneinfo's own error is a KeyError
            raise self._error("time_zone", f"{zone!r}: not an IANA time zone like Asia/Shanghai") from error

    def _error(self, key: str, reason: str) -> RequestError:
        return RequestError(f"{self._place}: {key}: {reason}")


def needs_rebuild(type_: TopicType, declared: Mapping[str, object]) -> bool:
    """
    Return whether a table that was *declared* differently must be rebuilt; `SchemaError` if values would be lost.

    Without --retype, a table keeps its rows if the new declaration reads each of them as the old one did, and possibly
    more bodies. Columns are added. If a type is wider, the table is rebuilt.
    """
    now = type_.to_dict()
    if now == declared:
        return False
    if "by" in now or "by" in declared:
        types = declared.get("types")
        if now.get("by") != declared.get("by") or not isinstance(types, Mapping):
            raise SchemaError("changes the key `by`")
        if types.keys() - type_.types.keys():
            raise SchemaError(f"drops these types: {', '.join(sorted(types.keys() - type_.types.keys()))}")
        # Some dead letters are rows of an added type.
        rebuilt = [name not in types or needs_rebuild(one, types[name]) for name, one in type_.types.items()]
        return any(rebuilt)
    old = {column.name: column for column in parse_columns(str(declared["columns"]))}
    new = {column.name: column for column in type_.all_columns}
    if lost := list_narrowed_columns(new.values(), old.values()):
        raise SchemaError(f"drops or narrows these columns: {', '.join(lost)}")
    changed = {name for name in ("from", "properties") if _about(old, now[name]) != _about(old, declared[name])}
    changed |= {
        key
        for key in now.keys() | declared.keys()
        if key not in _BY_COLUMN
        and now.get(key) != declared.get(key)
        and not (key in _MORE and declared.get(key) is None)
    }
    if changed:
        names = ", ".join(f"`{key}`" for key in sorted(changed))
        raise SchemaError(f"changes the {'key' if len(changed) == 1 else 'keys'} {names}")
    demanded = [
        one.name for one in new.values() if not one.nullable and (one.name not in old or old[one.name].nullable)
    ]
    if demanded:
        raise SchemaError(f"declares NOT NULL for columns that may contain NULL: {', '.join(demanded)}")
    return any(new[name].type != column.type for name, column in old.items())


def _about(columns: Mapping[str, object], named: object) -> object:
    if isinstance(named, Mapping):
        return {name: source for name, source in named.items() if name in columns}
    return {one for one in named if one.partition("=")[0] in columns} if isinstance(named, list) else named
