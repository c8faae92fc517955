"""Protobuf bodies: bytes written by hand, and comparisons with Google's package."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.lake.tables import sql_columns
from jobs.typed.ddl import SchemaError
from jobs.typed.formats import UnknownField
from jobs.typed.protobuf import columns_of_message, protobuf_format
from jobs.typed.values import Refusal, TimeDefaults
from tests.jobs.typed.test_json import results_of

_F = descriptor_pb2.FieldDescriptorProto
_NUMBERS = {
    "double": "d", "float": "f", "int64": "i8", "uint64": "u8", "int32": "i4", "fixed64": "x8", "fixed32": "x4",
    "bool": "b", "string": "s", "bytes": "y", "uint32": "u4", "sfixed32": "s4", "sfixed64": "s8", "sint32": "z4",
    "sint64": "z8",
}  # fmt: skip


def _descriptors() -> bytes:
    """Return a descriptor like that of protoc for a proto3 file with a field of each type, and other fields."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    who = order.nested_type.add(name="Who")
    who.field.add(name="name", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    who.field.add(name="self", number=2, type=_F.TYPE_MESSAGE, type_name=".shop.Order.Who", label=_F.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    kind = order.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="OLD", number=-2)
    for number, (type_, name) in enumerate(_NUMBERS.items(), 1):
        order.field.add(name=name, number=number, type=_F.Type.Value(f"TYPE_{type_.upper()}"), label=_F.LABEL_OPTIONAL)
    order.oneof_decl.add(name="way")
    order.oneof_decl.add(name="_o")
    for name, number, type_, of in (
        ("k", 20, ".shop.Order.Kind", {}), ("who", 21, ".shop.Order.Who", {}), ("m", 22, ".shop.Order.MEntry", {}),
        ("r", 23, "sint32", {}), ("rs", 24, "string", {}), ("rw", 25, ".shop.Order.Who", {}),
        ("at", 26, ".google.protobuf.Timestamp", {}), ("w", 27, ".google.protobuf.Int64Value", {}),
        ("l", 28, "int32", {"oneof_index": 0}), ("q", 29, "string", {"oneof_index": 0}),
        ("o", 30, "int32", {"oneof_index": 1, "proto3_optional": True}),
    ):  # fmt: skip
        label = _F.LABEL_REPEATED if name in {"m", "r", "rs", "rw"} else _F.LABEL_OPTIONAL
        proto_type = (
            _F.TYPE_ENUM if name == "k" else _F.TYPE_MESSAGE if "." in type_ else _F.Type.Value(f"TYPE_{type_.upper()}")
        )
        order.field.add(
            name=name, number=number, label=label, type=proto_type, type_name=type_ if "." in type_ else None, **of
        )
    found = descriptor_pb2.FileDescriptorSet(file=[file])
    for module in (wrappers_pb2, timestamp_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.reverse()
    return bytes(found.SerializeToString())


DESCRIPTORS = _descriptors()
_COLUMNS = columns_of_message(DESCRIPTORS, "shop.Order")
_READER = protobuf_format(DESCRIPTORS, "shop.Order").reader(_COLUMNS, TimeDefaults())
_POOL = DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
    _POOL.Add(_file)
ORDER: Any = GetMessageClass(_POOL.FindMessageTypeByName("shop.Order"))


def read(body: bytes) -> dict[str, Any] | Refusal:
    found = results_of(_READER(pa.array([body])), 1)[0]
    return found if isinstance(found, Refusal) else {one.name: v for one, v in zip(_COLUMNS, found, strict=True)}


def test_the_columns_follow_from_the_message_type() -> None:
    assert sql_columns(_COLUMNS) == (
        "d double, f float, i8 bigint, u8 decimal(20,0), i4 int, x8 decimal(20,0), x4 bigint, b boolean, s string, "
        "y binary, u4 bigint, s4 int, s8 bigint, z4 int, z8 bigint, k string, who struct<name: string, self: binary>, "
        "m map<string,string>, r array<int>, rs array<string>, rw array<struct<name: string, self: binary>>, "
        "at timestamp, w bigint, l int, q string, o int"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", {"i8": 0, "s": "", "k": "NEW", "who": None, "m": [], "r": [], "at": None, "w": None, "o": None}),
        ("18 ff ff ff ff ff ff ff ff ff 01", {"i8": -1}),
        ("20 ff ff ff ff ff ff ff ff ff 01", {"u8": Decimal(2**64 - 1)}),
        ("18 ff ff ff ff ff ff ff ff ff 02", ("a number of more than 64 bits", "$.i8 at byte 1")),
        ("58 80 80 80 80 10", ("a number is out of range for a 32-bit field", "$.u4")),
        ("18 01 18 02", ("a field occurs twice in one message", "$.i8 at byte 3")),
        ("1d 00 00 00 00", ("a wire type that does not match the field", "$.i8 at byte 1")),
        ("4a 02 c3 28", ("invalid UTF-8", "$.s at byte 2")),
        ("4a 05 61", ("truncated", "$.s at byte 2")),
        ("09 00", ("truncated", "$.d at byte 1")),
        ("80", ("truncated", "byte 1")),
        ("4a ff ff ff ff ff ff ff ff 7f", ("truncated", "$.s at byte 10")),
        ("a0 01 07", ("an undeclared enum value", "$.k")),
        ("a0 01 fe ff ff ff ff ff ff ff ff 01", {"k": "OLD"}),
        ("aa 01 04 0a 02 68 69", {"who": {"name": "hi", "self": None}}),
        ("aa 01 02 12 00", {"who": {"name": "", "self": b""}}),
        ("aa 01 03 0a 02 68 69", ("truncated", "$.who at byte 6")),
        ("b2 01 04 08 05 12 00 b2 01 00", {"m": [("5", ""), ("0", "")]}),
        ("b2 01 00 b2 01 02 08 00", ("a key occurs twice in one object", "$.m at byte 5")),
        ("ba 01 02 01 04 b8 01 06", {"r": [-1, 2, 3]}),
        ("ba 01 02 01 80", ("truncated", "$.r at byte 5")),
        ("d2 01 04 08 01 10 e8 07", ("truncated", "$.at at byte 7")),
        ("d2 01 05 08 01 10 e8 07", {"at": dt.datetime(1970, 1, 1, 0, 0, 1, 1, dt.UTC)}),
        ("d2 01 06 10 80 94 eb dc 03", ("an invalid or out-of-range time", "$.at")),
        ("da 01 00", {"w": 0}),
        ("e0 01 01 ea 01 00", ("two fields of a oneof are set", "$.q at byte 6")),
        ("f0 01 00", {"o": 0}),
        ("c0 3e 01 c3 3e c3 3e c4 3e c4 3e", {"i8": 0}),
        ("c3 3e" * 101, ("nested deeper than 100", "byte 202")),
        ("c3 3e cc 3e", ("an invalid wire type", "byte 4")),
        ("c7 3e", ("an invalid wire type", "byte 2")),
        ("c2 3e 05", ("truncated", "byte 3")),
        ("00 00 00 00 07 02 02 18 05", {"i8": 5}),  # the second message of a file, selected by Confluent's header
        ("00 00 00 00 07 00 18 05", ("the schema registry header refers to a different message", "byte 5")),
        ("00 00 00 00 07 fe ff ff ff 0f", ("truncated", "byte 10")),
        ("00 00", ("truncated", "byte 2")),
    ],
)  # fmt: skip
def test_a_message_is_read_exactly_or_refused_with_the_position(body: str, expected: object) -> None:
    found = read(bytes.fromhex(body))

    if isinstance(expected, tuple):
        assert Refusal(*expected) == found
    else:
        assert isinstance(found, dict)
        assert {**found, **expected} == found  # type: ignore[dict-item]


def test_fields_that_are_not_declared_are_counted_with_an_example() -> None:
    """Fields of a refused message are not counted; a field that occurs twice in a message is counted once."""
    bodies = [
        "c0 3e 01 c0 3e 02 c2 3e 02 68 69",  # a number, which occurs twice, and a text
        "c0 3e 07 aa 01 02 18 05 ba 01 01 02 ca 01 03 1a 01 ff",  # in messages: another number, and a byte
        "c0 3e 07 4a 02 c3 28",
        "cd 3e 01 00 00 00 cb 3e 08 01 cc 3e",  # four bytes, and a group
    ]
    found = _READER(pa.array(list(map(bytes.fromhex, bodies))))

    assert [2] == list(found.refusals)
    assert found.unknown_fields == {
        "$.1000": UnknownField(2, 0, "1"),
        "$.who.3": UnknownField(1, 1, "5"),
        "$.rw[].3": UnknownField(1, 1, "[1 bytes]"),
        "$.1001": UnknownField(1, 3, "1"),
    }


def test_a_header_with_a_negative_number_of_indexes_is_refused() -> None:
    first = protobuf_format(DESCRIPTORS, "shop.Other").reader((), TimeDefaults())

    refused = first(pa.array([bytes.fromhex(f"00 00 00 00 07 {count}") for count in ("00", "02 00", "01")])).refusals

    assert {2: Refusal("the schema registry header refers to a different message", "byte 5")} == refused


def test_a_message_without_one_of_its_required_fields_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(("a", "b"), 1):
        message.field.add(name=name, number=number, type=_F.TYPE_INT32, label=_F.LABEL_REQUIRED)
    described = bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    read_old = protobuf_format(described, "old.Order").reader(
        columns_of_message(described, "old.Order"), TimeDefaults()
    )

    found = results_of(read_old(pa.array([b"\x08\1\x10\2", b"\x08\1", b"\x10\2"])), 3)

    missing = "a required value is missing"

    assert [[1, 2], Refusal(missing, "$.b at byte 2"), Refusal(missing, "$.a at byte 2")] == found


def test_a_message_that_stands_for_a_billion_fields_is_refused() -> None:
    """Each message has two fields of the next type; building all of them used all memory."""
    file = descriptor_pb2.FileDescriptorProto(name="large.proto", package="large", syntax="proto3")
    for depth in range(30):
        message = file.message_type.add(name=f"M{depth}")
        for number in (1, 2):
            inner = {"type": _F.TYPE_MESSAGE, "type_name": f".large.M{depth + 1}"} if depth < 29 else {"type": 5}
            message.field.add(name=f"f{number}", number=number, label=_F.LABEL_OPTIONAL, **inner)
    described = bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())

    with pytest.raises(SchemaError, match="more than 10,000 fields"):
        columns_of_message(described, "large.M0")


def _read_with_google(body: bytes) -> Message | None:
    """Return the message that Google's package reads; None if it fails, or ignores a part of the body."""
    try:
        message: Message = ORDER.FromString(body)
    except DecodeError:
        return None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return message if size == message.ByteSize() else None


def _as_columns(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in {"at", "w"}:
            at = dt.timedelta(seconds=getattr(value, "seconds", 0), microseconds=getattr(value, "nanos", 0) // 1000)
            value = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + at if field.name == "at" else value.value
        elif field.name in {"who", "rw"}:
            values = [
                {"name": who.name, "self": who.self.SerializeToString() if who.HasField("self") else None}
                for who in ([value] if field.name == "who" else value)
            ]
            value = values[0] if field.name == "who" else values
        elif field.name == "k":
            value = {0: "NEW", -2: "OLD"}[value]
        elif field.name == "m":
            value = {str(key): text for key, text in value.items()}
        elif field.name in {"r", "rs"}:
            value = list(value)
        found[field.name] = value if not field.has_presence or message.HasField(field.name) else None
    return found


_INT = st.integers(-(2**31), 2**31 - 1)
_LONG = st.integers(-(2**63), 2**63 - 1)
_UNSIGNED = st.integers(0, 2**64 - 1)
_DRAWN = {
    "d": st.floats(allow_nan=False), "f": st.floats(width=32, allow_nan=False), "i8": _LONG, "u8": _UNSIGNED,
    "i4": _INT,
    "x8": _UNSIGNED, "x4": st.integers(0, 2**32 - 1), "b": st.booleans(), "s": st.text(max_size=5),
    "y": st.binary(max_size=5), "u4": st.integers(0, 2**32 - 1), "s4": _INT, "s8": _LONG, "z4": _INT, "z8": _LONG,
    "k": st.sampled_from([0, -2]), "who": st.just({"name": "a", "self": {"name": "b"}}),
    "m": st.dictionaries(_INT, st.text(max_size=2), max_size=2), "r": st.lists(_INT, max_size=3),
    "rs": st.lists(st.text(max_size=2), max_size=2), "rw": st.just([{"name": "c"}, {}]),
    "at": st.integers(-(10**9), 10**9).map(lambda at: {"seconds": at, "nanos": 1000}),
    "w": st.just({"value": 7}), "l": _INT, "o": _INT,
}  # fmt: skip
_BODIES = st.fixed_dictionaries({}, optional=_DRAWN).map(
    lambda fields: ORDER(**fields).SerializeToString(deterministic=True)
)
_STRICTER = {
    "a field occurs twice in one message", "two fields of a oneof are set", "a key occurs twice in one object",
    "not a valid boolean",
    "a number is out of range for int", "a number is out of range for a 32-bit field",
    "an undeclared enum value",
    "an invalid or out-of-range time", "a time more precise than a microsecond", "a number of more than 64 bits",
}  # fmt: skip


@example(b"\xaa\x01\x05\x12\x03\n\x01b", 5, b"\0\0", 2)  # a recursive message, in which a field number is 0
@given(_BODIES, st.integers(0, 300), st.binary(max_size=3), st.integers(0, 3))
def test_a_body_is_read_as_by_the_package_or_is_refused(good: bytes, at: int, new: bytes, size: int) -> None:
    at %= len(good) + 1
    for body in (good, good[:at] + new + good[at + size :], good[:at]):
        found = read(body)
        if body[:1] == b"\0":
            continue
        if isinstance(found, Refusal):
            assert _read_with_google(body) is None or found.reason in _STRICTER
            assert body is not good
        else:
            expected = _as_columns(ORDER.FromString(body))
            ours = {**found, "m": dict(found["m"])}
            # This package ignores an entry of a map with an additional field; the Java package reads it.
            if _read_with_google(body) is None:
                assert expected["m"].items() <= ours["m"].items()
                expected["m"] = ours["m"]

            assert ours == expected or "nan" in repr(found)
