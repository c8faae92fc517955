"""Bodies of each format by the thousand, and by the million, every second one fuzzed."""

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from jobs.lake.lake import Lake
from jobs.store.workers import OneByOne
from jobs.typed.avro import avro_format
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import TopicType
from jobs.typed.formats import JSON, BodyFormat, text_format
from jobs.typed.protobuf import protobuf_format
from jobs.typed.run import TypeRequest, type_lake
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.lakes import ingest_store, rows_of, table_of

_PIECES = (
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"{",
    b"}",
    b"[" * 200,
    b"\\u",
    b"1e999",
    b"-",
    b"\n",
    b"\xed\xa0\x80",
    b"9" * 5000,
)


_COLUMNS = parse_columns("id bigint, name string, price double")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _avro(number: int, name: bytes = b"name \xc3\xbc") -> bytes:
    return _varint(2 * number) + _varint(2 * len(name)) + name + struct.pack("<d", number / 4)


def _protobuf(number: int, name: bytes = b"name \xc3\xbc") -> bytes:
    return b"\x08" + _varint(number) + b"\x12" + _varint(len(name)) + name + b"\x19" + struct.pack("<d", number / 4)


def _descriptors() -> bytes:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, type_) in enumerate((("id", "INT64"), ("name", "STRING"), ("price", "DOUBLE")), 1):
        order.field.add(name=name, number=number, type=FieldDescriptorProto.Type.Value(f"TYPE_{type_}"), label=1)
    return bytes(FileDescriptorSet(file=[file]).SerializeToString())


_FIELDS = [{"name": name, "type": type_} for name, type_ in (("id", "long"), ("name", "string"), ("price", "double"))]
FORMATS: Mapping[str, tuple[BodyFormat, Callable[[int], bytes]]] = {  # and how a body of each is made
    "json": (
        JSON,
        lambda number: b'{"id": %d, "name": "name %d \xc3\xbc", "price": %d.25, "more": [1, {}]}' % ((number,) * 3),
    ),
    "avro": (avro_format({None: json.dumps({"type": "record", "name": "Order", "fields": _FIELDS})}), _avro),
    "protobuf": (protobuf_format(_descriptors(), "shop.Order"), _protobuf),
    "text": (
        text_format(r"(?P<id>[^ ]*) (?P<name>[^ ]*) (?P<price>[^ ]*)"),
        lambda number: b"%d name\xc3\xbc %d.25" % (number, number),
    ),
}


def _mutated(body: bytes, random: Random) -> bytes:
    """Return a body of which some bytes are replaced, left out, or there twice."""
    for _ in range(random.randrange(1, 4)):
        at, size = random.randrange(len(body) + 1), random.randrange(4)
        new = random.choice((random.randbytes(size), random.choice(_PIECES), body[at : at + 8] * 2))
        body = body[:at] + new + body[at + size :]
    return body


@pytest.mark.parametrize(
    "count", [3000, pytest.param(int(os.environ.get("BODIES", "1000000")), marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("name", FORMATS)
def test_each_of_many_bodies_is_a_row_or_a_dead_letter(name: str, count: int, tmp_path: Path) -> None:
    """Every second body is fuzzed."""
    (format_, good), random = FORMATS[name], Random(35)
    broker = Broker(tmp_path / "store", segment_size=1 << 26)
    bodies = (good(number) if number % 2 else _mutated(good(number), random) for number in range(count))
    placed = [record.physical_offset for record in broker.append(a_record(body) for body in bodies)]
    ingest_store(broker.root, tmp_path / "lake")
    declared = TopicType("Orders", format_, _COLUMNS)
    (summary,) = type_lake(TypeRequest(Lake(str(tmp_path / "lake")), (declared,)), OneByOne()).topics

    rows = table_of(tmp_path / "lake" / "typed" / "Orders", ["physical_offset"]).column("physical_offset").to_pylist()
    dead = [row["physical_offset"] for row in rows_of(tmp_path / "lake", "dead_letters")]
    assert (len(rows), len(dead)) == (summary.rows, summary.dead_letters)
    assert sorted([*rows, *dead]) == placed, "a body is in neither table, or in both"
    assert set(placed[1::2]) <= set(rows)
    assert dead
