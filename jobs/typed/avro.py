"""
Reads Avro bodies. Each body is one record: of a fixed schema, or of the registry's schema whose id precedes it.

A schema is compiled into functions, one per type, that read a value and reject everything that Avro does not allow.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from fastavro.schema import parse_schema

from jobs.lake.tables import sql_type
from jobs.typed import binary_values
from jobs.typed.binary_values import (
    Read,
    columns_reader,
    converted_read,
    refused_at_byte,
    sized_bytes_reader,
    text_reader,
)
from jobs.typed.ddl import MAX_DECIMAL_DIGITS, SchemaError, is_wider
from jobs.typed.formats import BodyFormat, Reader
from jobs.typed.values import TOO_LARGE, RefusedBodyError, Times, exact_decimal_context, member_path

_BAD_SCHEMAS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, LookupError)
_HEADERS = {0x00: 4, 0x10: 8}  # first byte, and size of the schema id after it: Confluent's, RocketMQ's
_UUID_SIZE = 16
_INSTANTS: Mapping[str, Callable[[int], int]] = {  # by the unit in the name of a logical type
    "millis": lambda value: binary_values.check_instant(value * 1000),
    "micros": binary_values.check_instant,
    "nanos": binary_values.nanoseconds_to_microseconds,
}

Schemas = Mapping[int | None, str]  # by registry id; None: the schema of bodies without an id


def avro_format(schemas: Schemas) -> BodyFormat:
    """Return the body format of these schemas."""
    return BodyFormat("avro", partial(_reader, schemas))


def columns_of_schemas(schemas: Schemas) -> tuple[pa.Field, ...]:
    """Return the columns of all schemas, each with a type that can hold the values of every schema."""
    found: dict[str, pa.DataType] = {}
    for number, schema in schemas.items():
        for name, type_ in _Record(schema, Times()).types.items():
            known = found.get(name, type_)
            if not (is_wider(type_, known) or is_wider(known, type_)):
                raise SchemaError(
                    f"schema {number}: {name}: {sql_type(type_)}, but {sql_type(known)} in another schema"
                )
            found[name] = type_ if is_wider(type_, known) else known
    return tuple(pa.field(name, type_) for name, type_ in found.items())


def _reader(schemas: Schemas, columns: Sequence[pa.Field], times: Times) -> Reader:
    records = {number: _Record(schema, times) for number, schema in schemas.items()}

    def values_of(body: bytes, _: object) -> Mapping[str, object]:
        if not body:
            raise refused_at_byte("an empty body", 0)
        number, at = None, 0
        if None not in records:
            size = _HEADERS.get(body[0])
            if size is None:
                raise refused_at_byte("the schema registry header is missing", 0)
            data, at = binary_values.read_bytes(body, 1, size)
            number = int.from_bytes(data, "big")
        if number not in records:
            raise RefusedBodyError("a schema ID that has no file in the folder", f"schema {number}")
        values, at = records[number].read(body, at)
        if at != len(body):
            raise refused_at_byte("extra bytes after the record", at)
        return values

    return columns_reader(values_of, columns)


_Schema = Mapping[str, Any]  # of one type, as parsed JSON
_AnySchema = _Schema | str | list[Any]  # or the name of a type, or the types of a union
_ReadValues = Callable[[bytes, int], tuple[dict[str, object], int]]


class _Reading(NamedTuple):
    """A type of a schema: the type of its column (None for null), and the function that reads its values."""

    type: pa.DataType | None
    read: Read


class _Record:
    def __init__(self, schema: str, times: Times) -> None:
        self._times = times
        self._named: dict[str, dict[Any, Any]] = {}
        self._open: list[str] = []
        try:
            parsed = parse_schema(json.loads(schema), named_schemas=self._named)
            if not isinstance(parsed, dict):
                raise TypeError("not a record")
            self.types, self.read = self._fields(parsed)
        except _BAD_SCHEMAS as error:
            raise SchemaError(f"not the schema of a record: {error!r}") from error

    def _reading(self, schema: _AnySchema) -> _Reading:
        if isinstance(schema, list):
            return self._union([self._reading(one) for one in schema])
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        make = {
            "record": self._record, "error": self._record, "array": self._items, "map": self._items, "enum": _enum,
            "fixed": _fixed, "bytes": _bytes_or_decimal, "int": _int_or_date, "long": self._long_or_instant,
        }.get(schema["type"])  # fmt: skip
        return make(schema) if make is not None else _PRIMITIVES[schema["type"]]

    def _fields(self, schema: _Schema) -> tuple[dict[str, pa.DataType], _ReadValues]:
        if schema["name"] in self._open:
            raise SchemaError(f"{schema['name']}: is recursive, which a column cannot represent")
        self._open.append(schema["name"])
        readings = {field["name"]: self._reading(field["type"]) for field in schema["fields"]}
        self._open.pop()
        types = {name: reading.type for name, reading in readings.items() if reading.type is not None}
        if not types:
            raise SchemaError(f"{schema['name']}: a record without fields, or with null fields only")
        steps = [(name, reading.read) for name, reading in readings.items()]

        def read(body: bytes, at: int) -> tuple[dict[str, object], int]:
            values = {}
            name = ""
            try:
                for name, step in steps:
                    values[name], at = step(body, at)
            except RefusedBodyError as error:
                raise error.within(member_path("", name)) from None
            except IndexError:
                raise refused_at_byte(binary_values.CUT_OFF_REASON, len(body)).within(member_path("", name)) from None
            return values, at

        return types, read

    def _record(self, schema: _Schema) -> _Reading:
        types, read = self._fields(schema)
        return _Reading(pa.struct(list(types.items())), read)

    def _items(self, schema: _Schema) -> _Reading:
        """Return the reading of an array or a map: blocks of items; in a map, each item follows its key."""
        is_map = schema["type"] == "map"
        item = self._reading(schema["values" if is_map else "items"])
        if item.type is None:
            raise SchemaError(f"{'a map' if is_map else 'an array'} of null")

        def read_item(found: dict[object, object], body: bytes, at: int) -> int:
            key, after = _string(body, at) if is_map else (len(found), at)
            if key in found:
                raise refused_at_byte(binary_values.DUPLICATE_KEY_REASON, at)
            try:
                found[key], after = item.read(body, after)
            except RefusedBodyError as error:
                raise error.within(member_path("", key) if isinstance(key, str) else f"[{key}]") from None
            return after

        def read(body: bytes, at: int) -> tuple[object, int]:
            found: dict[object, object] = {}
            at = _blocks(body, at, partial(read_item, found, body))
            return found if is_map else list(found.values()), at

        return _Reading(pa.map_(pa.string(), item.type) if is_map else pa.list_(item.type), read)

    def _union(self, branches: Sequence[_Reading]) -> _Reading:
        """Return the reading of a union: null and one type, numbers, or else a struct with a field for each type."""
        reads = [branch.read for branch in branches]
        types = [branch.type for branch in branches if branch.type is not None]
        for type_ in types:
            if type_ in {pa.int64(), pa.float64()} and all(is_wider(type_, one) for one in types):
                types = [type_]
        if len(types) > 1:
            # As spark-avro does: the numbers in the names of members count the branches that have values.
            numbers = iter(range(len(types)))
            reads = [
                branch.read if branch.type is None else converted_read(branch.read, _named(f"member{next(numbers)}"))
                for branch in branches
            ]
            types = [pa.struct([(f"member{number}", type_) for number, type_ in enumerate(types)])]

        def read(body: bytes, at: int) -> tuple[object, int]:
            branch, after = _long(body, at)
            if not 0 <= branch < len(reads):
                raise refused_at_byte("an invalid branch number of a union", at)
            return reads[branch](body, after)

        return _Reading(types[0] if types else None, read)

    def _long_or_instant(self, schema: _Schema) -> _Reading:
        kind, _, unit = schema.get("logicalType", "").rpartition("-")
        convert = _INSTANTS.get(unit)
        if convert is None or kind not in {"timestamp", "local-timestamp"}:
            return _Reading(pa.int64(), _long)
        instant = converted_read(_long, convert)
        if kind == "local-timestamp":
            instant = converted_read(instant, partial(binary_values.place_local_instant, times=self._times))
        return _Reading(pa.timestamp("us", "UTC"), instant)


def _int_or_date(schema: _Schema) -> _Reading:
    if schema.get("logicalType") == "date":
        return _Reading(pa.date32(), converted_read(_int, binary_values.check_day))
    return _Reading(pa.int32(), _int)


def _fixed(schema: _Schema) -> _Reading:
    size = schema["size"]
    if size < 1:
        raise SchemaError(f"{schema['name']}: a fixed type of size 0")

    def read(body: bytes, at: int) -> tuple[bytes, int]:
        return binary_values.read_bytes(body, at, size)

    if schema.get("logicalType") == "uuid" and size == _UUID_SIZE:
        return _Reading(pa.string(), converted_read(read, lambda data: str(uuid.UUID(bytes=data))))
    return _bytes_or_decimal(schema, read)


def _bytes_or_decimal(schema: _Schema, read: Read | None = None) -> _Reading:
    read = read or _bytes
    if schema.get("logicalType") != "decimal" or schema["precision"] > MAX_DECIMAL_DIGITS:
        return _Reading(pa.binary(), read)
    type_ = pa.decimal128(schema["precision"], schema.get("scale", 0))
    return _Reading(type_, converted_read(read, _decimal(type_)))


def _named(name: str) -> Callable[[object], object]:
    return lambda value: {name: value}


def _decimal(type_: pa.DataType) -> Callable[[bytes], Decimal]:
    limit, context = 10**type_.precision, exact_decimal_context(MAX_DECIMAL_DIGITS)

    def convert(data: bytes) -> Decimal:
        number = int.from_bytes(data, "big", signed=True)
        if not data:
            raise RefusedBodyError(f"not a valid {sql_type(type_)}", "")
        if abs(number) >= limit:
            raise RefusedBodyError(f"a number that {sql_type(type_)} cannot represent exactly", "")
        return Decimal(number).scaleb(-type_.scale, context)

    return convert


def _blocks(body: bytes, at: int, read_item: Callable[[int], int]) -> int:
    while True:
        begin = at
        count, at = _long(body, at)
        if not count:
            return at
        size = None
        if count < 0:
            size, at = _long(body, at)  # in bytes, so that a reader may skip the block
        if abs(count) > len(body) - at:  # no item is shorter than a byte
            raise refused_at_byte("a block claims more items than the body has bytes", begin)
        first = at
        for _ in range(abs(count)):
            at = read_item(at)
        if size is not None and size != at - first:
            raise refused_at_byte("a block whose actual size differs from its stated size", begin)


def _long(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 128:  # noqa: PLR2004 - nearly all are this short
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, at = binary_values.read_varint(body, at)
    return binary_values.decode_zigzag(number), at


def _int(body: bytes, at: int) -> tuple[int, int]:
    number, after = _long(body, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise refused_at_byte(TOO_LARGE.format("int"), at)
    return number, after


def _boolean(body: bytes, at: int) -> tuple[bool, int]:
    if body[at] > 1:
        raise refused_at_byte("not a valid boolean", at)
    return body[at] == 1, at + 1


_bytes = sized_bytes_reader(_long)
_string = text_reader(_bytes)


def _enum(schema: _Schema) -> _Reading:
    symbols = schema["symbols"]

    def read(body: bytes, at: int) -> tuple[str, int]:
        number, after = _long(body, at)
        if not 0 <= number < len(symbols):
            raise refused_at_byte("an invalid symbol number of an enum", at)
        return symbols[number], after

    return _Reading(pa.string(), read)


_PRIMITIVES = {
    "null": _Reading(None, lambda _body, at: (None, at)),
    "boolean": _Reading(pa.bool_(), _boolean),
    "float": _Reading(pa.float32(), binary_values.FLOAT),
    "double": _Reading(pa.float64(), binary_values.DOUBLE),
    "string": _Reading(pa.string(), _string),
}
