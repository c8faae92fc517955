"""
Bodies by the million: `python -m tests.support.typing_campaign FORMAT FOLDER BODIES`.

First generated ones, of which one in a hundred is broken, then as many fuzzed ones: each is a row or a dead letter, by
its offset, and the broken ones have the reasons that were planted. A further format is one more line of FORMATS.
"""

import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from jobs.lake.commit import commit
from jobs.lake.lake import Lake
from jobs.lake.table_file import TableFile
from jobs.lake.tables import MESSAGES
from jobs.store.workers import OneByOne
from jobs.typed.avro import Avro
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import Json, TopicType
from jobs.typed.protobuf import Protobuf
from jobs.typed.rows import BodyFormat
from jobs.typed.run import TypeRequest, type_lake
from jobs.typed.text import Text
from tests.support.lakes import table_of

_IN_A_FILE = 100_000
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


def write_messages(lake: Lake, bodies: Iterable[bytes], number: int) -> None:
    """Commit a file of messages that have nothing but a topic and their bodies; their offsets are consecutive."""
    some = list(bodies)
    first = number * _IN_A_FILE
    known = {"topic": "Orders", "broker": "b", "store_id": "s"}
    with TableFile(lake, MESSAGES, f"messages-{number}.parquet", {}) as file:
        for start in range(0, len(some), 4096):
            part = some[start : start + 4096]
            columns = [
                pa.array(part, pa.binary()) if field.name == "body"
                else pa.array(range(first + start, first + start + len(part))) if field.name == "physical_offset"
                else pa.array([known.get(field.name, _nothing(field))] * len(part), field.type)
                for field in MESSAGES.schema
            ]  # fmt: skip
            file.write(pa.RecordBatch.from_arrays(columns, schema=MESSAGES.schema))
        action = file.close()
    assert action is not None
    commit(lake, MESSAGES, [action], ("s", number + 1), {})


def _nothing(field: pa.Field) -> object:
    if field.nullable:
        return None
    if pa.types.is_map(field.type):
        return []
    if pa.types.is_boolean(field.type):
        return False
    return "" if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type) else 0


def _typed(lake: Lake, name: str, make: Callable[[int], bytes], count: int) -> dict[str, Any]:
    """Type bodies; return how many became rows, and the reasons of the others by their offsets."""
    for number, start in enumerate(range(0, count, _IN_A_FILE)):
        write_messages(lake, map(make, range(start, min(start + _IN_A_FILE, count))), number)
    declared = TopicType("Orders", FORMATS[name].format, FORMATS[name].columns)
    began = time.process_time()
    (summary,) = type_lake(TypeRequest(lake, (declared,)), OneByOne()).topics
    seconds = time.process_time() - began
    folder = Path(lake.location)
    rows = table_of(folder / "typed" / "Orders", ["physical_offset"]).column("physical_offset").to_numpy()
    dead = table_of(folder / "dead_letters", ["physical_offset", "reason"])
    both = np.sort(np.concatenate([rows, dead.column("physical_offset").to_numpy()]))
    assert (len(rows), dead.num_rows) == (summary.rows, summary.dead_letters)
    assert np.array_equal(both, np.arange(count)), "a body is in neither table, or in both"
    reasons = dict(zip(*(column.to_pylist() for column in dead.columns), strict=True))
    return {"rows": len(rows), "dead_letters": len(reasons), "reasons": reasons, "cpu_seconds": round(seconds, 1)}


def _mutated(body: bytes, random: Random) -> bytes:
    """Return a body of which some bytes are replaced, left out, or there twice."""
    for _ in range(random.randrange(1, 4)):
        at, size = random.randrange(len(body) + 1), random.randrange(4)
        new = random.choice((random.randbytes(size), random.choice(_PIECES), body[at : at + 8] * 2))
        body = body[:at] + new + body[at + size :]
    return body


def campaign(name: str, folder: Path, count: int) -> dict[str, Any]:
    """Return figures; an `AssertionError` says which promise was not kept."""
    of = FORMATS[name]
    planted = {number: of.broken[number // _BROKEN % len(of.broken)] for number in range(0, count, _BROKEN)}
    made = _typed(Lake(str(folder / "planted")), name, lambda n: planted[n].body if n in planted else of.good(n), count)
    assert made["reasons"] == {number: one.reason for number, one in planted.items()}
    random = Random(35)
    fuzzed = _typed(Lake(str(folder / "fuzzed")), name, lambda n: _mutated(of.good(n), random), count)
    return {
        kind: {**found, "reasons": dict(Counter(found["reasons"].values()).most_common())}
        for kind, found in (("planted", made), ("fuzzed", fuzzed))
    }


if __name__ == "__main__":
    print(json.dumps(campaign(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
