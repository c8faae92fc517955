"""
Reads Protobuf bodies: each is one message of a descriptor set, with or without Confluent's header.

Fields are read by their declared types; values that Protobuf would overwrite, truncate or ignore are rejected.
Undeclared fields are left out, and counted.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from jobs.typed import binary_values
from jobs.typed.binary_values import (
    Read,
    columns_reader,
    converted_read,
    read_varint,
    refused_at_byte,
    sized_bytes_reader,
    text_reader,
)
from jobs.typed.ddl import SchemaError
from jobs.typed.formats import BodyFormat, Reader
from jobs.typed.values import TOO_LARGE, Number, RefusedBodyError, Times, Value, member_path

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
    return tuple(pa.field(one.name, one.type) for one in _Body(_described(descriptors, message)).fields.values())


def _reader(descriptors: bytes, message: str, columns: Sequence[pa.Field], _times: Times) -> Reader:
    descriptor = _described(descriptors, message)
    of_body, indexes = _Body(descriptor), _indexes(descriptor)

    def values_of(body: bytes, left: dict[str, Value]) -> Mapping[str, object]:
        of_body.left = left
        return of_body.read(body, _after_header(body, indexes) if body[:1] == b"\0" else 0, len(body))

    return columns_reader(values_of, columns)


def _described(descriptors: bytes, message: str) -> Descriptor:
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
    return found


def _after_header(body: bytes, wanted: Sequence[int]) -> int:
    """Return the position after the message's path in its file: a count of indexes, then each; no index means [0]."""
    number, at = read_varint(body, _HEADER)
    count = binary_values.decode_zigzag(number)
    indexes = []
    for _ in range(min(count, _DEEPEST)):
        index, at = read_varint(body, at)
        indexes.append(binary_values.decode_zigzag(index))
    if count < 0 or (indexes or [0]) != wanted:
        raise refused_at_byte("the schema registry header refers to a different message", _HEADER)
    return at


def _indexes(descriptor: Descriptor) -> list[int]:
    parent = descriptor.containing_type
    siblings = parent.nested_types if parent else descriptor.file.message_types_by_name.values()
    index = [one.full_name for one in siblings].index(descriptor.full_name)
    return [*(_indexes(parent) if parent else ()), index]


class _Scalar(NamedTuple):
    """A field type: type of the column, wire type, reader, and default value."""

    type: pa.DataType
    wire: int
    read: Read
    default: object


class _Field(NamedTuple):
    name: str
    type: pa.DataType
    scalar: _Scalar
    default: object
    is_repeated: bool
    is_map: bool
    is_required: bool
    oneof: str | None

    def take(self, found: dict[str, Any], body: bytes, at: int, wire_type: int) -> int:
        """Read one occurrence of the field, and return the position after it."""
        scalar, begin = self.scalar, at
        # Packed: the numbers of a repeated field after their size. One message may have packed and single ones.
        if self.is_repeated and wire_type == _SIZED != scalar.wire:
            items = found.setdefault(self.name, [])
            size, at = read_varint(body, at)
            end = at + size
            while at < end:
                value, at = scalar.read(body, at)
                items.append(value)
            if at > end:
                raise refused_at_byte(binary_values.CUT_OFF_REASON, end)
            return at
        if wire_type != scalar.wire:
            raise refused_at_byte("a wire type that does not match the field", begin)
        value, at = scalar.read(body, at)
        if self.is_map:
            entries = found.setdefault(self.name, {})
            key = value["key"]  # type: ignore[index]
            key = str(key).lower() if isinstance(key, bool) else str(key)
            if key in entries:
                raise refused_at_byte(binary_values.DUPLICATE_KEY_REASON, begin)
            entries[key] = value["value"]  # type: ignore[index]
        elif self.is_repeated:
            found.setdefault(self.name, []).append(value)
        elif self.name in found:
            raise refused_at_byte("a field occurs twice in one message", begin)
        else:
            found[self.name] = value
        return at


_Fields = Mapping[int, _Field]  # by their numbers
_ReadMessage = Callable[[bytes, int, int], dict[str, Any]]  # (body, start, end)


class _Body:
    def __init__(self, descriptor: Descriptor) -> None:
        self.left: dict[str, Value]  # undeclared fields of the current body, by path
        self.fields, self.read = self._message(descriptor, (), "$")

    def _message(self, descriptor: Descriptor, outer: tuple[str, ...], path: str) -> tuple[_Fields, _ReadMessage]:
        inner = (*outer, descriptor.full_name)
        is_entry = descriptor.GetOptions().map_entry  # its key and value have the map's path
        fields = {
            one.number: self._field(one, inner, path if is_entry else member_path(path, one.name))
            for one in descriptor.fields
        }
        missing = {one.name: one.default for one in fields.values()}
        checked = [one for one in fields.values() if one.is_required or one.oneof is not None]

        def read(body: bytes, at: int, end: int) -> dict[str, Any]:
            found: dict[str, Any] = {}
            while at < end:
                begin = at
                tag, at = read_varint(body, at)
                number = tag >> 3
                if not 0 < number <= _MOST:
                    raise refused_at_byte("an invalid field number", begin)
                field = fields.get(number)
                if field is None:
                    begin, at = at, _skipped(body, at, tag)
                    self.left.setdefault(f"{path}.{number}", _example(body[begin:at], tag & 7))
                else:
                    try:
                        at = field.take(found, body, at, tag & 7)
                    except RefusedBodyError as error:
                        raise error.within(member_path("", field.name)) from None
                if at > end:
                    raise refused_at_byte(binary_values.CUT_OFF_REASON, end)
            _check(checked, found, end)
            return {**missing, **found}

        return fields, read

    def _field(self, field: FieldDescriptor, outer: tuple[str, ...], path: str) -> _Field:
        scalar = self._scalar(field, outer, f"{path}[]" if field.is_repeated else path)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        type_, default = scalar.type, None if field.has_presence else scalar.default
        if is_map:
            type_, default = pa.map_(pa.string(), scalar.type.field("value").type), {}
        elif field.is_repeated:
            type_, default = pa.list_(scalar.type), []
        elif field.containing_type.GetOptions().map_entry:
            default = scalar.default
        oneof = field.containing_oneof
        return _Field(field.name, type_, scalar, default, field.is_repeated, is_map, field.is_required,
                      None if oneof is None else oneof.name)  # fmt: skip

    def _scalar(self, field: FieldDescriptor, outer: tuple[str, ...], path: str) -> _Scalar:
        if field.type == FieldDescriptor.TYPE_GROUP:
            raise SchemaError(f"{field.full_name}: groups are not supported")
        if field.type == FieldDescriptor.TYPE_ENUM:
            names = {one.number: one.name for one in field.enum_type.values}
            return _Scalar(pa.string(), _VARINT, converted_read(read_varint, _enum(names)), names.get(0))
        message = field.message_type
        if message is None:
            return _SCALARS[field.type]
        if message.full_name in outer or not message.fields:
            return _SCALARS[FieldDescriptor.TYPE_BYTES]._replace(
                read=converted_read(sized_bytes_reader(read_varint), _proven(message)), default=None
            )
        fields, read_message = self._message(message, outer, path)

        def read(body: bytes, at: int) -> tuple[Any, int]:
            size, at = read_varint(body, at)
            if at + size > len(body):
                raise refused_at_byte(binary_values.CUT_OFF_REASON, at)
            return read_message(body, at, at + size), at + size

        if message.full_name == "google.protobuf.Timestamp":
            return _Scalar(pa.timestamp("us", "UTC"), _SIZED, converted_read(read, _instant), 0)
        if message.full_name in _WRAPPERS:
            return _Scalar(
                fields[1].type, _SIZED, converted_read(read, lambda values: values["value"]), fields[1].default
            )
        type_ = pa.struct([(one.name, one.type) for one in fields.values()])
        return _Scalar(type_, _SIZED, read, None)


def _check(fields: Sequence[_Field], found: Mapping[str, object], end: int) -> None:
    oneofs = set()
    for field in fields:
        if field.is_required and field.name not in found:
            raise refused_at_byte("a required value is missing", end).within(member_path("", field.name))
        if field.oneof is not None and field.name in found:
            if field.oneof in oneofs:
                raise refused_at_byte("two fields of a oneof", end).within(member_path("", field.name))
            oneofs.add(field.oneof)


def _skipped(body: bytes, at: int, tag: int) -> int:
    groups: list[int] = []  # numbers of the open groups; each must end with its own number
    while True:
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _GROUP and len(groups) < _DEEPEST:
            groups.append(number)
        elif wire_type == _VARINT:
            _, at = read_varint(body, at)
        elif wire_type == _SIZED:
            size, at = read_varint(body, at)
            at += size
        elif wire_type in {_EIGHT, _FOUR}:
            at += 8 if wire_type == _EIGHT else 4
        elif wire_type != _END or not groups or groups.pop() != number:
            raise refused_at_byte(
                f"nested deeper than {_DEEPEST}" if wire_type == _GROUP else "an invalid wire type", at
            )
        if not groups:
            return at
        tag, at = read_varint(body, at)


def _example(data: bytes, wire_type: int) -> Value:
    """Return the value of an undeclared field, decoded as far as its bytes alone allow."""
    if wire_type == _SIZED:
        data = data[read_varint(data, 0)[1] :]
        with suppress(UnicodeDecodeError):  # bytes, or a message
            text = data.decode()
            return text if text.isprintable() else data
    if wire_type in {_SIZED, _GROUP}:
        return data
    return Number(read_varint(data, 0)[0] if wire_type == _VARINT else int.from_bytes(data, "little"))


def _proven(message: Descriptor) -> Callable[[bytes], bytes]:
    of = GetMessageClass(message)

    def convert(inner: bytes) -> bytes:
        try:
            of.FromString(inner)
        except DecodeError:
            raise RefusedBodyError("not a valid message of its type", "") from None
        return inner

    return convert


def _instant(values: Mapping[str, int]) -> int:
    if not 0 <= values["nanos"] < 10**9:
        raise RefusedBodyError("an invalid or out-of-range time", "")
    return binary_values.nanoseconds_to_microseconds(values["seconds"] * 10**9 + values["nanos"])


def _enum(names: Mapping[int, str]) -> Callable[[int], str]:
    def convert(number: int) -> str:
        name = names.get(_signed(number))
        if name is None:
            raise RefusedBodyError("an undeclared number of an enum", "")
        return name

    return convert


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _within(low: int, high: int, name: str, of: Callable[[int], int]) -> Callable[[int], int]:
    def convert(number: int) -> int:
        found = of(number)
        if not low <= found <= high:
            raise RefusedBodyError(TOO_LARGE.format(name), "")
        return found

    return convert


def _boolean(number: int) -> bool:
    if number > 1:
        raise RefusedBodyError("not a valid boolean", "")
    return number == 1


_INT = (-(1 << 31), (1 << 31) - 1, "int")
_UNSIGNED = pa.decimal128(20, 0)
_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_DOUBLE: _Scalar(pa.float64(), _EIGHT, binary_values.DOUBLE, 0.0),
    _F.TYPE_FLOAT: _Scalar(pa.float32(), _FOUR, binary_values.FLOAT, 0.0),
    _F.TYPE_INT64: _Scalar(pa.int64(), _VARINT, converted_read(read_varint, _signed), 0),
    _F.TYPE_UINT64: _Scalar(_UNSIGNED, _VARINT, converted_read(read_varint, Decimal), Decimal(0)),
    _F.TYPE_INT32: _Scalar(pa.int32(), _VARINT, converted_read(read_varint, _within(*_INT, _signed)), 0),
    _F.TYPE_FIXED64: _Scalar(
        _UNSIGNED, _EIGHT, converted_read(binary_values.number_reader(Struct("<Q")), Decimal), Decimal(0)
    ),
    _F.TYPE_FIXED32: _Scalar(pa.int64(), _FOUR, binary_values.number_reader(Struct("<I")), 0),
    _F.TYPE_BOOL: _Scalar(pa.bool_(), _VARINT, converted_read(read_varint, _boolean), False),  # noqa: FBT003 - the value
    _F.TYPE_STRING: _Scalar(pa.string(), _SIZED, text_reader(sized_bytes_reader(read_varint)), ""),
    _F.TYPE_BYTES: _Scalar(pa.binary(), _SIZED, sized_bytes_reader(read_varint), b""),
    _F.TYPE_UINT32: _Scalar(
        pa.int64(), _VARINT, converted_read(read_varint, _within(0, (1 << 32) - 1, "a 32-bit field", int)), 0
    ),
    _F.TYPE_SFIXED32: _Scalar(pa.int32(), _FOUR, binary_values.number_reader(Struct("<i")), 0),
    _F.TYPE_SFIXED64: _Scalar(pa.int64(), _EIGHT, binary_values.number_reader(Struct("<q")), 0),
    _F.TYPE_SINT32: _Scalar(
        pa.int32(), _VARINT, converted_read(read_varint, _within(*_INT, binary_values.decode_zigzag)), 0
    ),
    _F.TYPE_SINT64: _Scalar(pa.int64(), _VARINT, converted_read(read_varint, binary_values.decode_zigzag), 0),
}
