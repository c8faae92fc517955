"""
Reads Protobuf bodies: each is one message of a descriptor set, with or without Confluent's header.

Fields are read by their declared types; values that Protobuf would overwrite, truncate or ignore are rejected.
Undeclared fields are left out, and counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from jobs.typed.cursor import (
    CUT_OFF_REASON,
    DOUBLE,
    DUPLICATE_KEY_REASON,
    FLOAT,
    Cursor,
    ReadValue,
    columns_reader,
    nanoseconds_to_microseconds,
    refused_at_byte,
)
from jobs.typed.ddl import MANY_FIELDS_REASON, MAX_FIELDS, SchemaError
from jobs.typed.formats import BodyFormat, BodyReader
from jobs.typed.values import TOO_LARGE, Number, RefusedBodyError, TimeDefaults, Value, member_path

_VARINT, _EIGHT, _SIZED, _GROUP, _END, _FOUR = range(6)  # wire types
_DEEPEST = 100  # nested unknown groups
_MOST = (1 << 29) - 1  # largest number of a field
_HEADER = 5  # bytes: Confluent's is 0x00 and a schema id; no message begins with 0x00
_WRAPPERS = {f"google.protobuf.{one}Value" for one in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool",
                                                       "String", "Bytes")}  # fmt: skip


def protobuf_format(descriptors: bytes, message: str) -> BodyFormat:
    """Return the body format of a message in a descriptor set of `protoc --include_imports`."""
    return BodyFormat("protobuf", partial(_reader, descriptors, message), {"message": message})


def columns_of_message(descriptors: bytes, message: str) -> tuple[pa.Field, ...]:
    """Return one column for each field of a message."""
    fields, _ = _message(_find_descriptor(descriptors, message), (), "$")
    return tuple(pa.field(one.name, one.type) for one in fields.values())


def _reader(descriptors: bytes, message: str, columns: Sequence[pa.Field], _times: TimeDefaults) -> BodyReader:
    descriptor = _find_descriptor(descriptors, message)
    indexes = _indexes(descriptor)
    _, read = _message(descriptor, (), "$")

    def values_of(cursor: Cursor) -> Mapping[str, object]:
        if cursor.body[:1] == b"\0":
            _read_header(cursor, indexes)
        return read(cursor, len(cursor.body))

    return columns_reader(values_of, columns)


def _find_descriptor(descriptors: bytes, message: str) -> Descriptor:
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError) as error:
        raise SchemaError(f"not a descriptor set that includes all imports: {error}") from error
    try:
        found: Descriptor = pool.FindMessageTypeByName(message)
    except KeyError as error:
        raise SchemaError(f"does not describe a message {message!r}") from error
    try:
        is_too_large = any(islice(_nested_fields(found, ()), MAX_FIELDS, None))
    except RecursionError as error:
        raise SchemaError("nested too deeply") from error
    if is_too_large:
        raise SchemaError(MANY_FIELDS_REASON)
    return found


def _nested_fields(message: Descriptor, outer: tuple[str, ...]) -> Iterator[FieldDescriptor]:
    """Yield the fields of a message and of nested messages; a message inside itself is left as bytes."""
    for field in message.fields:
        yield field
        inner = field.message_type
        if inner is not None and inner.full_name not in (*outer, message.full_name):
            yield from _nested_fields(inner, (*outer, message.full_name))


def _read_header(cursor: Cursor, wanted: Sequence[int]) -> None:
    """Read the schema's id and the message's path in its file: a count of indexes, then each; no index means [0]."""
    cursor.at = _HEADER
    count = cursor.read_zigzag()
    indexes = [cursor.read_zigzag() for _ in range(min(count, _DEEPEST))]
    if count < 0 or (indexes or [0]) != wanted:
        raise refused_at_byte("the schema registry header refers to a different message", _HEADER)


def _indexes(descriptor: Descriptor) -> list[int]:
    parent = descriptor.containing_type
    siblings = parent.nested_types if parent else descriptor.file.message_types_by_name.values()
    index = [one.full_name for one in siblings].index(descriptor.full_name)
    return [*(_indexes(parent) if parent else ()), index]


class _Scalar(NamedTuple):
    """A field type: type of the column, wire type, reader, and default value."""

    type: pa.DataType
    wire: int
    read: ReadValue
    default: object = 0


class _Field(NamedTuple):
    name: str
    type: pa.DataType
    scalar: _Scalar
    default: object
    is_repeated: bool
    is_map: bool
    is_required: bool
    oneof: str | None

    def take(self, found: dict[str, Any], cursor: Cursor, wire_type: int) -> None:
        """Read one occurrence of the field."""
        scalar, begin = self.scalar, cursor.at
        # Packed: the numbers of a repeated field after their size. One message may have packed and single ones.
        if self.is_repeated and wire_type == _SIZED != scalar.wire:
            items = found.setdefault(self.name, [])
            size = cursor.read_varint()
            end = cursor.at + size
            while cursor.at < end:
                items.append(scalar.read(cursor))
            if cursor.at > end:
                raise refused_at_byte(CUT_OFF_REASON, end)
            return
        if wire_type != scalar.wire:
            raise refused_at_byte("a wire type that does not match the field", begin)
        value: Any = scalar.read(cursor)
        if self.is_map:
            entries = found.setdefault(self.name, {})
            key = value["key"]
            key = str(key).lower() if isinstance(key, bool) else str(key)
            if key in entries:
                raise refused_at_byte(DUPLICATE_KEY_REASON, begin)
            entries[key] = value["value"]
        elif self.is_repeated:
            found.setdefault(self.name, []).append(value)
        elif self.name in found:
            raise refused_at_byte("a field occurs twice in one message", begin)
        else:
            found[self.name] = value


_Fields = Mapping[int, _Field]  # the fields of a message, by number
_ReadMessage = Callable[[Cursor, int], dict[str, Any]]  # up to an end


def _message(descriptor: Descriptor, outer: tuple[str, ...], path: str) -> tuple[_Fields, _ReadMessage]:
    """Return the fields and the reader of the message at a path in a body; *outer* are the messages around it."""
    inner = (*outer, descriptor.full_name)
    is_entry = descriptor.GetOptions().map_entry  # its key and value have the map's path
    fields = {
        one.number: _field(one, inner, path if is_entry else member_path(path, one.name)) for one in descriptor.fields
    }
    missing = {one.name: one.default for one in fields.values()}
    checked = [one for one in fields.values() if one.is_required or one.oneof is not None]

    def read(cursor: Cursor, end: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while cursor.at < end:
            begin = cursor.at
            tag = cursor.read_varint()
            number = tag >> 3
            if not 0 < number <= _MOST:
                raise refused_at_byte("an invalid field number", begin)
            field = fields.get(number)
            if field is None:
                begin = cursor.at
                _skip(cursor, tag)
                cursor.unknown_fields.setdefault(f"{path}.{number}", _example(cursor.body[begin : cursor.at], tag & 7))
            else:
                try:
                    field.take(found, cursor, tag & 7)
                except RefusedBodyError as error:
                    raise error.within(member_path("", field.name)) from None
            if cursor.at > end:
                raise refused_at_byte(CUT_OFF_REASON, end)
        _check_fields(checked, found, end)
        for field in fields.values() if is_entry and len(found) < len(fields) else ():
            if field.name not in found:  # the default, read from no bytes; that of a message is an empty message
                found[field.name] = field.scalar.read(Cursor(bytes(8), {}))
        return {**missing, **found}

    return fields, read


def _field(field: FieldDescriptor, outer: tuple[str, ...], path: str) -> _Field:
    scalar = _scalar(field, outer, f"{path}[]" if field.is_repeated else path)
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    type_, default = scalar.type, None if field.has_presence else scalar.default
    if is_map:
        type_, default = pa.map_(pa.string(), scalar.type.field("value").type), {}
    elif field.is_repeated:
        type_, default = pa.list_(scalar.type), []
    oneof = field.containing_oneof
    return _Field(field.name, type_, scalar, default, field.is_repeated, is_map, field.is_required,
                  None if oneof is None else oneof.name)  # fmt: skip


def _scalar(field: FieldDescriptor, outer: tuple[str, ...], path: str) -> _Scalar:
    if field.type == FieldDescriptor.TYPE_GROUP:
        raise SchemaError(f"{field.full_name}: groups are not supported")
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {one.number: one.name for one in field.enum_type.values}
        return _varint(pa.string(), partial(_enum, names), names.get(0))
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    if message.full_name in outer or not message.fields:
        return _Scalar(pa.binary(), _SIZED, partial(_read_nested, GetMessageClass(message)), None)
    fields, read_message = _message(message, outer, path)

    def read(cursor: Cursor) -> Any:  # noqa: ANN401 - a message, or its only value
        size = cursor.read_varint()
        end = cursor.at + size
        if end > len(cursor.body):
            raise refused_at_byte(CUT_OFF_REASON, cursor.at)
        return read_message(cursor, end)

    if message.full_name == "google.protobuf.Timestamp":
        return _Scalar(pa.timestamp("us", "UTC"), _SIZED, lambda cursor: _instant(read(cursor)))
    if message.full_name in _WRAPPERS:
        value = fields[1]
        return _Scalar(value.type, _SIZED, lambda cursor: read(cursor)["value"], value.default)
    return _Scalar(pa.struct([(one.name, one.type) for one in fields.values()]), _SIZED, read, None)


def _check_fields(fields: Sequence[_Field], found: Mapping[str, object], end: int) -> None:
    """Refuse a message without a required field, or with two fields of a oneof."""
    oneofs = set()
    for field in fields:
        if field.is_required and field.name not in found:
            raise refused_at_byte("a required value is missing", end).within(member_path("", field.name))
        if field.oneof is not None and field.name in found:
            if field.oneof in oneofs:
                raise refused_at_byte("two fields of a oneof are set", end).within(member_path("", field.name))
            oneofs.add(field.oneof)


def _skip(cursor: Cursor, tag: int) -> None:
    """Skip the value of an undeclared field, whose tag was read."""
    groups: list[int] = []  # numbers of the open groups; each must end with its own number
    while True:
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _GROUP and len(groups) < _DEEPEST:
            groups.append(number)
        elif wire_type == _VARINT:
            cursor.read_varint()
        elif wire_type == _SIZED:
            cursor.read_bytes(cursor.read_varint())
        elif wire_type in {_EIGHT, _FOUR}:
            cursor.at += 8 if wire_type == _EIGHT else 4
        elif wire_type != _END or not groups or groups.pop() != number:
            reason = f"nested deeper than {_DEEPEST}" if wire_type == _GROUP else "an invalid wire type"
            raise refused_at_byte(reason, cursor.at)
        if not groups:
            return
        tag = cursor.read_varint()


def _example(data: bytes, wire_type: int) -> Value:
    """Return the value of an undeclared field, decoded as far as its bytes alone allow."""
    if wire_type == _SIZED:
        after_size = Cursor(data, {})
        after_size.read_varint()
        data = data[after_size.at :]
        with suppress(UnicodeDecodeError):  # bytes, or a message
            text = data.decode()
            return text if text.isprintable() else data
    if wire_type in {_SIZED, _GROUP}:
        return data
    return Number(Cursor(data, {}).read_varint() if wire_type == _VARINT else int.from_bytes(data, "little"))


def _read_nested(of: type[Message], cursor: Cursor) -> bytes:
    """Read the bytes of a message, which must be valid."""
    inner = _read_bytes(cursor)
    try:
        of.FromString(inner)
    except DecodeError:
        raise RefusedBodyError("not a valid message of its type", "") from None
    return inner


def _instant(values: Mapping[str, int]) -> int:
    if not 0 <= values["nanos"] < 10**9:
        raise RefusedBodyError("an invalid or out-of-range time", "")
    return nanoseconds_to_microseconds(values["seconds"] * 10**9 + values["nanos"])


def _enum(names: Mapping[int, str], number: int) -> str:
    name = names.get(_to_signed(number))
    if name is None:
        raise RefusedBodyError("an undeclared enum value", "")
    return name


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _int(number: int) -> int:
    if not -(1 << 31) <= number < 1 << 31:
        raise RefusedBodyError(TOO_LARGE.format("int"), "")
    return number


def _unsigned_int(number: int) -> int:
    if number >> 32:
        raise RefusedBodyError(TOO_LARGE.format("a 32-bit field"), "")
    return number


def _boolean(number: int) -> bool:
    if number > 1:
        raise RefusedBodyError("not a valid boolean", "")
    return number == 1


def _varint(type_: pa.DataType, convert: Callable[[int], object], default: object = 0) -> _Scalar:
    return _Scalar(type_, _VARINT, lambda cursor: convert(cursor.read_varint()), default)


def _read_fixed(type_: pa.DataType, form: Struct) -> _Scalar:
    wire = {4: _FOUR, 8: _EIGHT}[form.size]
    return _Scalar(type_, wire, lambda cursor: cursor.read_number(form))


def _read_bytes(cursor: Cursor) -> bytes:
    return cursor.read_bytes(cursor.read_varint())


_UNSIGNED, _UINT64 = pa.decimal128(20, 0), Struct("<Q")
_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_DOUBLE: _read_fixed(pa.float64(), DOUBLE),
    _F.TYPE_FLOAT: _read_fixed(pa.float32(), FLOAT),
    _F.TYPE_INT64: _varint(pa.int64(), _to_signed),
    _F.TYPE_UINT64: _varint(_UNSIGNED, Decimal, Decimal(0)),
    _F.TYPE_INT32: _varint(pa.int32(), lambda number: _int(_to_signed(number))),
    _F.TYPE_FIXED64: _Scalar(_UNSIGNED, _EIGHT, lambda cursor: Decimal(cursor.read_number(_UINT64))),
    _F.TYPE_FIXED32: _read_fixed(pa.int64(), Struct("<I")),
    _F.TYPE_BOOL: _varint(pa.bool_(), _boolean, default=False),
    _F.TYPE_STRING: _Scalar(pa.string(), _SIZED, lambda cursor: cursor.read_text(cursor.read_varint()), ""),
    _F.TYPE_BYTES: _Scalar(pa.binary(), _SIZED, _read_bytes, b""),
    _F.TYPE_UINT32: _varint(pa.int64(), _unsigned_int),
    _F.TYPE_SFIXED32: _read_fixed(pa.int32(), Struct("<i")),
    _F.TYPE_SFIXED64: _read_fixed(pa.int64(), Struct("<q")),
    _F.TYPE_SINT32: _Scalar(pa.int32(), _VARINT, lambda cursor: _int(cursor.read_zigzag())),
    _F.TYPE_SINT64: _Scalar(pa.int64(), _VARINT, Cursor.read_zigzag),
}
