"""
Reads Avro bodies. Each body is one record, of a fixed schema or of the registry's schema whose id comes first.

A schema is compiled into functions, one per type, that read a value and reject everything that Avro does not allow.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from fastavro.schema import parse_schema

from jobs.lake.tables import sql_type
from jobs.typed.cursor import (
    DOUBLE,
    DUPLICATE_KEY_REASON,
    FLOAT,
    Cursor,
    ReadValue,
    check_day,
    check_instant,
    columns_reader,
    nanoseconds_to_microseconds,
    place_local_instant,
    refused_at_byte,
)
from jobs.typed.ddl import MANY_FIELDS_REASON, MAX_DECIMAL_DIGITS, MAX_FIELDS, SchemaError, is_wider
from jobs.typed.formats import BodyFormat, BodyReader
from jobs.typed.values import TOO_LARGE, RefusedBodyError, TimeDefaults, exact_decimal_context, member_path

_BAD_SCHEMAS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, LookupError)
_HEADERS = {0x00: 4, 0x10: 8}  # by the first byte of a header, the size of its schema id: Confluent, RocketMQ
_UUID_SIZE = 16
_INSTANTS: Mapping[str, Callable[[int], int]] = {  # conversions to microseconds, by the unit in the name of the type
    "millis": lambda value: check_instant(value * 1000),
    "micros": check_instant,
    "nanos": nanoseconds_to_microseconds,
}

Schemas = Mapping[int | None, str]  # schemas by registry id; None: the schema of bodies without an id


def avro_format(schemas: Schemas) -> BodyFormat:
    """Return the body format of these schemas."""
    return BodyFormat("avro", partial(_reader, schemas))


def columns_of_schemas(schemas: Schemas) -> tuple[pa.Field, ...]:
    """Return the columns of all schemas, each with a type that can hold the values of every schema."""
    found: dict[str, pa.DataType] = {}
    for number, schema in schemas.items():
        for name, type_ in _Record(schema, TimeDefaults()).types.items():
            known = found.get(name, type_)
            if not (is_wider(type_, known) or is_wider(known, type_)):
                raise SchemaError(
                    f"schema {number}: {name}: {sql_type(type_)}, but {sql_type(known)} in another schema"
                )
            found[name] = type_ if is_wider(type_, known) else known
    return tuple(pa.field(name, type_) for name, type_ in found.items())


def _reader(schemas: Schemas, columns: Sequence[pa.Field], times: TimeDefaults) -> BodyReader:
    records = {number: _Record(schema, times) for number, schema in schemas.items()}

    def values_of(cursor: Cursor) -> Mapping[str, object]:
        body, number = cursor.body, None
        if not body:
            raise refused_at_byte("an empty body", 0)
        if None not in records:
            size = _HEADERS.get(body[0])
            if size is None:
                raise refused_at_byte("the schema registry header is missing", 0)
            cursor.at = 1
            number = int.from_bytes(cursor.read_bytes(size), "big")
        if number not in records:
            raise RefusedBodyError("a schema id without a schema file", f"schema {number}")
        values = records[number].read(cursor)
        if cursor.at != len(body):
            raise refused_at_byte("extra bytes after the record", cursor.at)
        return values

    return columns_reader(values_of, columns)


_Schema = Mapping[str, Any]  # the schema of one type, as parsed JSON


class _Reading(NamedTuple):
    """A type of a schema: the type of its column (None for null), and the function that reads its values."""

    type: pa.DataType | None
    read: ReadValue

    def with_conversion(self, type_: pa.DataType | None, convert: Callable[[Any], object]) -> "_Reading":
        """Return this reading with a conversion that follows the reading of each value."""
        return _Reading(type_, lambda cursor: convert(self.read(cursor)))


class _Record:
    def __init__(self, schema: str, times: TimeDefaults) -> None:
        self._times = times
        self._named: dict[str, dict[Any, Any]] = {}
        self._open: list[str] = []
        self._uses = 0
        try:
            parsed = parse_schema(json.loads(schema), named_schemas=self._named)
            if not isinstance(parsed, dict):
                raise TypeError("not a record")
            self.types, self.read = self._fields(parsed)
        except _BAD_SCHEMAS as error:
            raise SchemaError(f"not the schema of a record: {type(error).__name__}: {error}") from error

    def _reading(self, schema: _Schema | str | list[Any]) -> _Reading:
        """Return the reading of a type; *schema* may be its name, or a union's list of types."""
        self._uses += 1
        if self._uses > MAX_FIELDS:
            raise SchemaError(MANY_FIELDS_REASON)
        if isinstance(schema, list):
            return self._union([self._reading(one) for one in schema])
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        name = schema["type"]
        if name in {"record", "error"}:
            types, read = self._fields(schema)
            return _Reading(pa.struct(list(types.items())), read)
        if name in {"array", "map"}:
            return self._items(schema)
        plain = {"enum": _enum, "fixed": _read_fixed}.get(name, lambda _: _PRIMITIVES[name])(schema)
        return self._logical(plain, schema) if "logicalType" in schema else plain

    def _fields(self, schema: _Schema) -> tuple[dict[str, pa.DataType], Callable[[Cursor], dict[str, object]]]:
        if schema["name"] in self._open:
            raise SchemaError(f"{schema['name']}: is recursive, which a column cannot represent")
        self._open.append(schema["name"])
        readings = {field["name"]: self._reading(field["type"]) for field in schema["fields"]}
        self._open.pop()
        types = {name: reading.type for name, reading in readings.items() if reading.type is not None}
        if not types:
            raise SchemaError(f"{schema['name']}: a record without fields, or with null fields only")
        steps = [(name, reading.read) for name, reading in readings.items()]

        def read(cursor: Cursor) -> dict[str, object]:
            values = {}
            name = ""
            try:
                for name, step in steps:
                    values[name] = step(cursor)
            except RefusedBodyError as error:
                raise error.within(member_path("", name)) from None
            return values

        return types, read

    def _items(self, schema: _Schema) -> _Reading:
        """Return the reading of an array or a map: blocks of items; in a map, each item follows its key."""
        is_map = schema["type"] == "map"
        item = self._reading(schema["values" if is_map else "items"])
        if item.type is None:
            raise SchemaError(f"{'a map' if is_map else 'an array'} of null")

        def read(cursor: Cursor) -> object:
            found: dict[object, object] = {}
            for begin in _starts_of_items(cursor):
                key = cursor.read_text(cursor.read_zigzag()) if is_map else len(found)
                if key in found:
                    raise refused_at_byte(DUPLICATE_KEY_REASON, begin)
                try:
                    found[key] = item.read(cursor)
                except RefusedBodyError as error:
                    raise error.within(member_path("", key) if isinstance(key, str) else f"[{key}]") from None
            return found if is_map else list(found.values())

        return _Reading(pa.map_(pa.string(), item.type) if is_map else pa.list_(item.type), read)

    def _union(self, branches: Sequence[_Reading]) -> _Reading:
        """Return the reading of a union: its only type, its widest number, or a struct with a field for each type."""
        types = [branch.type for branch in branches if branch.type is not None]
        for type_ in types:
            if type_ in {pa.int64(), pa.float64()} and all(is_wider(type_, one) for one in types):
                types = [type_]
        if len(types) > 1:
            # As in spark-avro, the number in the name of a member does not count a null branch.
            names = [f"member{number}" for number in range(len(types))]
            of_branches = iter(names)
            types = [pa.struct(list(zip(names, types, strict=True)))]
            branches = [
                branch if branch.type is None else branch.with_conversion(types[0], _as_member(next(of_branches)))
                for branch in branches
            ]
        reads = [branch.read for branch in branches]

        def read(cursor: Cursor) -> object:
            begin = cursor.at
            branch = cursor.read_zigzag()
            if not 0 <= branch < len(reads):
                raise refused_at_byte("an invalid union branch index", begin)
            return reads[branch](cursor)

        return _Reading(types[0] if types else None, read)

    def _logical(self, plain: _Reading, schema: _Schema) -> _Reading:
        """Return the reading of a logical type; for an unsupported one, that of the type in which it is stored."""
        kind, _, unit = str(schema["logicalType"]).rpartition("-")
        stored_as = schema["type"]
        if stored_as == "long" and kind in {"timestamp", "local-timestamp"} and unit in _INSTANTS:
            instant = plain.with_conversion(pa.timestamp("us", "UTC"), _INSTANTS[unit])
            place = partial(place_local_instant, times=self._times)
            return instant if kind == "timestamp" else instant.with_conversion(instant.type, place)
        if (stored_as, unit) == ("int", "date"):
            return plain.with_conversion(pa.date32(), check_day)
        if (stored_as, unit) == ("fixed", "uuid") and schema["size"] == _UUID_SIZE:
            return plain.with_conversion(pa.string(), lambda data: str(uuid.UUID(bytes=data)))
        if stored_as in {"bytes", "fixed"} and unit == "decimal" and schema["precision"] <= MAX_DECIMAL_DIGITS:
            type_ = pa.decimal128(schema["precision"], schema.get("scale", 0))
            return plain.with_conversion(type_, partial(_decimal, type_))
        return plain


def _as_member(name: str) -> Callable[[object], object]:
    return lambda value: {name: value}


def _decimal(type_: pa.DataType, data: bytes) -> Decimal:
    number = int.from_bytes(data, "big", signed=True)
    if not data:
        raise RefusedBodyError(f"not a valid {sql_type(type_)}", "")
    if abs(number) >= 10**type_.precision:
        raise RefusedBodyError(f"a number that {sql_type(type_)} cannot represent exactly", "")
    return Decimal(number).scaleb(-type_.scale, exact_decimal_context(MAX_DECIMAL_DIGITS))


def _starts_of_items(cursor: Cursor) -> Iterator[int]:
    """Yield the position of each item of an array or a map; the caller reads the item."""
    while True:
        begin = cursor.at
        count, size = cursor.read_zigzag(), None
        if not count:
            return
        if count < 0:
            size = cursor.read_zigzag()  # the size of the block in bytes, so that a reader may skip it
        if abs(count) > len(cursor.body) - cursor.at:  # no item is shorter than a byte
            raise refused_at_byte("a block declares more items than the body has bytes", begin)
        first = cursor.at
        for _ in range(abs(count)):
            yield cursor.at
        if size is not None and size != cursor.at - first:
            raise refused_at_byte("a block whose actual size differs from its stated size", begin)


def _read_fixed(schema: _Schema) -> _Reading:
    size = schema["size"]
    if size < 1:
        raise SchemaError(f"{schema['name']}: a fixed type of size 0")
    return _Reading(pa.binary(), lambda cursor: cursor.read_bytes(size))


def _enum(schema: _Schema) -> _Reading:
    symbols = schema["symbols"]

    def read(cursor: Cursor) -> str:
        begin = cursor.at
        number = cursor.read_zigzag()
        if not 0 <= number < len(symbols):
            raise refused_at_byte("an invalid enum symbol index", begin)
        return str(symbols[number])

    return _Reading(pa.string(), read)


def _read_int(cursor: Cursor) -> int:
    begin = cursor.at
    number = cursor.read_zigzag()
    if not -(1 << 31) <= number < 1 << 31:
        raise refused_at_byte(TOO_LARGE.format("int"), begin)
    return number


def _read_boolean(cursor: Cursor) -> bool:
    begin = cursor.at
    byte = cursor.read_bytes(1)
    if byte > b"\1":
        raise refused_at_byte("not a valid boolean", begin)
    return byte == b"\1"


_PRIMITIVES = {
    "null": _Reading(None, lambda _: None),
    "boolean": _Reading(pa.bool_(), _read_boolean),
    "int": _Reading(pa.int32(), _read_int),
    "long": _Reading(pa.int64(), Cursor.read_zigzag),
    "float": _Reading(pa.float32(), lambda cursor: cursor.read_number(FLOAT)),
    "double": _Reading(pa.float64(), lambda cursor: cursor.read_number(DOUBLE)),
    "bytes": _Reading(pa.binary(), lambda cursor: cursor.read_bytes(cursor.read_zigzag())),
    "string": _Reading(pa.string(), lambda cursor: cursor.read_text(cursor.read_zigzag())),
}
