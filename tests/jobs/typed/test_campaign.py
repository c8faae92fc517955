"""Bodies of each format by the thousand, and by the million: each is a row or a dead letter, by its offset."""

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from jobs.lake.lake import Lake
from jobs.store.workers import OneByOne
from jobs.typed.avro import Avro
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import TopicType
from jobs.typed.formats import BodyFormat, Json, Text
from jobs.typed.protobuf import Protobuf
from jobs.typed.run import TypeRequest, type_lake
from tests.rmq_formats.builders import a_record
from tests.support.broker import Broker
from tests.support.lakes import ingest_store, rows_of, table_of

_BROKEN = 100  # one in so many
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


class Planted(NamedTuple):
    """A body that is broken, and the reason that is to be found."""

    body: bytes
    reason: str


class Format(NamedTuple):
    """How a campaign makes bodies of a format."""

    format: BodyFormat
    good: Callable[[int], bytes]
    broken: tuple[Planted, ...]
    columns: tuple[pa.Field, ...] = tuple(parse_columns("id bigint, name string, price double"))


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
FORMATS: Mapping[str, Format] = {
    "json": Format(
        Json(),
        lambda number: b'{"id": %d, "name": "name %d \xc3\xbc", "price": %d.25, "more": [1, {}]}' % ((number,) * 3),
        (
            Planted(b"", "an empty body"),
            Planted(b'{"id": 1.7}', "a number with a fraction or an exponent is no bigint"),
            Planted(b'{"id": 9223372036854775808}', "a number is too large for bigint"),
            Planted(b'{"id": 1, "id": 2}', "a key occurs twice in one object"),
            Planted(b'{"id": 1} {"id": 2}', "more after the document"),
            Planted(b'{"id": "1"}', "no bigint"),
            Planted(b'{"name": "\xff"}', "invalid UTF-8"),
            Planted(b'{"name": "\\ud83d"}', "half of a surrogate pair"),
            Planted(b'{"price": 9007199254740993}', "an integer that double does not hold exactly"),
            Planted(b'{"price": NaN}', "NaN is no number of JSON"),
            Planted(b'{"id": 1, "na', "invalid JSON"),
            Planted(b'{"x": ' + b"[" * 100_000, "nested deeper than 100"),
        ),
    ),
    "avro": Format(
        Avro({None: json.dumps({"type": "record", "name": "Order", "fields": _FIELDS})}),
        _avro,
        (
            Planted(b"", "an empty body"),
            Planted(_avro(7)[:-1], "cut off"),
            Planted(_avro(7) + b"\0", "more after the record"),
            Planted(_avro(7, b"\xff"), "invalid UTF-8"),
            Planted(b"\xff" * 9 + b"\x7f", "a number of more than 64 bits"),
        ),
    ),
    "protobuf": Format(
        Protobuf(_descriptors(), "shop.Order"),
        _protobuf,
        (
            Planted(_protobuf(7)[:-1], "cut off"),
            Planted(_protobuf(7, b"\xff"), "invalid UTF-8"),
            Planted(b"\x08" + b"\xff" * 9 + b"\x7f", "a number of more than 64 bits"),
        ),
    ),
    "text": Format(
        Text(r"(?P<id>[^ ]*) (?P<name>[^ ]*) (?P<price>[^ ]*)"),
        lambda number: b"%d name\xc3\xbc %d.25" % (number, number),
        (
            Planted(b"", "does not match the pattern"),
            Planted(b"1 name\xff 1.5", "invalid UTF-8"),
            Planted(b"1.5 name 1.5", "a number with a fraction or an exponent is no bigint"),
            Planted(b"1 name 1e999", "a number is too large for double"),
        ),
    ),
}  # fmt: skip


def _typed(folder: Path, name: str, bodies: Iterator[bytes]) -> tuple[int, dict[int, str]]:
    """Type bodies; return how many became rows, and the reasons of the others by their numbers."""
    broker = Broker(folder / "store", segment_size=1 << 26)
    placed = broker.append(a_record(body) for body in bodies)
    ingest_store(broker.root, folder / "lake")
    declared = TopicType("Orders", FORMATS[name].format, FORMATS[name].columns)
    (summary,) = type_lake(TypeRequest(Lake(str(folder / "lake")), (declared,)), OneByOne()).topics
    rows = table_of(folder / "lake" / "typed" / "Orders", ["physical_offset"]).column("physical_offset").to_pylist()
    dead = {row["physical_offset"]: row["reason"] for row in rows_of(folder / "lake", "dead_letters")}
    numbers = {record.physical_offset: number for number, record in enumerate(placed)}
    assert (len(rows), len(dead)) == (summary.rows, summary.dead_letters)
    assert sorted([*rows, *dead]) == sorted(numbers), "a body is in neither table, or in both"
    return len(rows), {numbers[offset]: reason for offset, reason in dead.items()}


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
def test_each_of_many_bodies_is_a_row_or_a_dead_letter_with_the_planted_reason(
    name: str, count: int, tmp_path: Path
) -> None:
    """Of generated bodies one in a hundred is broken; as many again are fuzzed."""
    of, random = FORMATS[name], Random(35)
    planted = {number: of.broken[number // _BROKEN % len(of.broken)] for number in range(0, count, _BROKEN)}

    rows, reasons = _typed(
        tmp_path / "planted", name, (planted[n].body if n in planted else of.good(n) for n in range(count))
    )
    fuzzed, _ = _typed(tmp_path / "fuzzed", name, (_mutated(of.good(n), random) for n in range(count)))

    assert reasons == {number: one.reason for number, one in planted.items()}
    assert rows == count - len(planted)
    assert fuzzed > 0
