"""Avro bodies: bytes written by hand, and comparisons with fastavro."""

import datetime as dt
import json
import uuid
from decimal import Decimal
from io import BytesIO
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from jobs.lake.tables import sql_columns
from jobs.typed.avro import avro_format, columns_of_schemas
from jobs.typed.ddl import SchemaError
from jobs.typed.values import Refusal, TimeDefaults
from tests.jobs.typed.test_json import results_of

_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_FIELDS = {
    "a": "long", "b": ["null", "int"], "c": "double", "d": "float", "e": "string", "f": "boolean",
    "g": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "h": {"type": "int", "logicalType": "date"}, "i": {"type": "long", "logicalType": "timestamp-millis"},
    "j": {"type": "long", "logicalType": "timestamp-micros"}, "k": {"type": "array", "items": ["long", "null"]},
    "l": {"type": "map", "values": "string"}, "m": _ENUM, "n": ["null", "E"],
    "o": {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "bytes"}]},
    "p": ["null", "string", "long"], "q": {"type": "fixed", "name": "F", "size": 3}, "r": "null", "s": ["int", "long"],
    "t": {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9},
    "v": ["null", {"type": "array", "items": "S"}],
}  # fmt: skip
_COLUMNS = (
    "a bigint, b int, c double, d float, e string, f boolean, g decimal(12,2), h date, i timestamp, j timestamp, "
    "k array<bigint>, l map<string,string>, m string, n string, o struct<x: int, y: binary>, "
    "p struct<member0: string, member1: bigint>, q binary, s bigint, t decimal(9,0), "
    "v array<struct<x: int, y: binary>>"
)


def schema_of(**fields: object) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields.items()]}
    )


def read(body: bytes, times: TimeDefaults = TimeDefaults(), **fields: object) -> list[object] | Refusal:  # noqa: B008 - frozen
    """Return the row of a body with a schema of the given fields."""
    schemas: dict[int | None, str] = {None: schema_of(**fields)}
    return results_of(avro_format(schemas).reader(columns_of_schemas(schemas), times)(pa.array([body])), 1)[0]


def test_the_columns_follow_from_the_schema() -> None:
    assert _COLUMNS == sql_columns(columns_of_schemas({None: schema_of(**_FIELDS)}))


_INSTANT = {"type": "long", "logicalType": "timestamp-millis"}
_LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}


@pytest.mark.parametrize(
    ("type_", "body", "expected"),
    [
        ("long", "ff ff ff ff ff ff ff ff ff 01", -(2**63)),
        ("long", "80 00", 0),  # longer than necessary, as Avro allows
        ("long", "fe ff ff ff ff ff ff ff ff 03", ("a number of more than 64 bits", "$.v at byte 0")),
        ("long", "ff ff ff ff ff ff ff ff ff ff 01", ("a number of more than 64 bits", "$.v at byte 0")),
        ("long", "", ("an empty body", "byte 0")),
        ("long", "80", ("truncated", "$.v at byte 1")),
        ("long", "02 02", ("extra bytes after the record", "byte 1")),
        ("boolean", "02", ("not a valid boolean", "$.v at byte 0")),
        ("double", "00 00", ("truncated", "$.v at byte 0")),
        ("string", "04 68 69", "hi"),
        ("string", "06 68 69", ("truncated", "$.v at byte 1")),
        ("string", "01", ("a negative length", "$.v at byte 1")),
        ("string", "fe ff ff ff ff ff ff ff ff 01", ("truncated", "$.v at byte 10")),
        ("string", "06 68 c3 28", ("invalid UTF-8", "$.v at byte 2")),
        (["null", "int"], "04", ("an invalid union branch index", "$.v at byte 0")),
        (["null", "int"], "01 02", ("an invalid union branch index", "$.v at byte 0")),
        (["int", "string"], "02 02 61", {"member0": None, "member1": "a"}),
        (["float", "double"], "00 00 00 00 3f", 0.5),
        (_ENUM, "04", ("an invalid enum symbol index", "$.v at byte 0")),
        (_ENUM, "01", ("an invalid enum symbol index", "$.v at byte 0")),
        (_INSTANT, "fe ff ff ff ff ff ff ff ff 01", ("an invalid or out-of-range time", "$.v")),
        (_LOCAL, "00", ("a time without a zone; set time_zone in types.toml", "$.v")),
        (_DECIMAL, "04 ff 85", Decimal("-12.3")),
        (_DECIMAL, "04 03 e8", ("a number that decimal(3,1) cannot represent exactly", "$.v")),
        (_DECIMAL, "00", ("not a valid decimal(3,1)", "$.v")),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "00" * 16, str(uuid.UUID(int=0))),
        ({"type": "array", "items": "int"}, "03 04 02 04 00", [1, 2]),
        ({"type": "array", "items": "int"}, "03 06 02 04 00",
         ("a block whose actual size differs from its stated size", "$.v at byte 0")),
        ({"type": "array", "items": "int"}, "02 02", ("truncated", "$.v at byte 2")),
        ({"type": "array", "items": ["null", "string"]}, "04 00 02 02 ff 00", ("invalid UTF-8", "$.v[1] at byte 4")),
        ({"type": "array", "items": ["null", "int"]}, "fe ff ff ff ff ff ff ff ff 01",
         ("a block declares more items than the body has bytes", "$.v at byte 0")),
        ({"type": "map", "values": "int"}, "02 02 61 02 02 02 61 02 00",
         ("a key occurs twice in one object", "$.v at byte 5")),
        ({"type": "map", "values": "int"}, "02 02 61 80", ("truncated", "$.v.a at byte 4")),
    ],
)  # fmt: skip
def test_a_value_is_read_exactly_or_rejected_with_its_position(type_: object, body: str, expected: object) -> None:
    found = read(bytes.fromhex(body), v=type_)

    assert (Refusal(*expected) if isinstance(expected, tuple) else [expected]) == found


def test_a_time_without_a_zone_is_in_the_declared_zone() -> None:
    (found,) = read(b"\x00", TimeDefaults(zone=ZoneInfo("Asia/Shanghai")), v=_LOCAL)  # type: ignore[misc]

    assert dt.datetime(1969, 12, 31, 16, tzinfo=dt.UTC) == found


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-(2**63), 2**63 - 1), "b": st.none() | st.integers(-(2**31), 2**31 - 1),
    "c": st.floats(allow_nan=False), "d": st.floats(width=32, allow_nan=False), "e": st.text(max_size=9),
    "f": st.booleans(), "g": st.decimals(-(10**9), 10**9, places=2), "h": st.dates(),
    "i": st.datetimes(timezones=st.just(dt.UTC)).map(lambda time: time.replace(microsecond=1000)),
    "j": st.datetimes(timezones=st.just(dt.UTC)),
    "k": st.lists(st.none() | st.integers(-9, 2**40), max_size=3),
    "l": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    "m": st.sampled_from("AB"), "n": st.none() | st.sampled_from("AB"),
    "o": st.fixed_dictionaries({"x": st.integers(-9, 9), "y": st.binary(max_size=3)}),
    "p": st.none() | st.text(max_size=3) | st.integers(-9, 9), "q": st.binary(min_size=3, max_size=3), "r": st.none(),
    "s": st.integers(-(2**40), 2**40), "t": st.integers(-999, 999).map(Decimal),
    "v": st.none() | st.just([{"x": 1, "y": b""}]),
}  # fmt: skip
_PARSED = parse_schema(json.loads(schema_of(**_FIELDS)))
_READ = columns_of_schemas({None: schema_of(**_FIELDS)})
_READER = avro_format({None: schema_of(**_FIELDS)}).reader(_READ, TimeDefaults())
_OF_VALUES = {
    "an invalid or out-of-range time", "an invalid or out-of-range date", "a key occurs twice in one object",
    "a number that decimal(12,2) cannot represent exactly", "a number that decimal(9,0) cannot represent exactly",
    "not a valid decimal(12,2)",
}  # fmt: skip


def _encoded(value: object) -> bytes:
    buffer = BytesIO()
    schemaless_writer(buffer, _PARSED, value)
    return buffer.getvalue()


def _read_with_fastavro(body: bytes) -> dict[str, Any] | None:
    """Return the value that fastavro reads; None if it does not write the same bytes for it."""
    buffer = BytesIO(body)
    try:
        value = schemaless_reader(buffer, _PARSED, None)
        is_whole = buffer.tell() == len(body) and _encoded(value) == body
    except Exception:  # noqa: BLE001 - errors of any kind
        return None
    return value if is_whole else None  # type: ignore[return-value]


def _as_column(name: str, value: Any) -> object:  # noqa: ANN401
    if name == "p" and value is not None:
        return {
            "member0": value if isinstance(value, str) else None,
            "member1": value if isinstance(value, int) else None,
        }
    if name == "l":
        return list(value.items())
    return value


@given(st.fixed_dictionaries(_VALUES).map(_encoded), st.integers(0, 200), st.binary(max_size=3), st.integers(0, 3))
def test_a_body_is_read_as_by_fastavro_or_is_refused(good: bytes, at: int, new: bytes, size: int) -> None:
    at %= len(good) + 1
    for body in (good, good[:at] + new + good[at + size :]):
        found = results_of(_READER(pa.array([body])), 1)[0]
        judged = _read_with_fastavro(body)
        if isinstance(found, list):  # fastavro may encode the value with fewer bytes, or in other blocks
            again = judged or schemaless_reader(BytesIO(body), _PARSED, None)
            expected = [_as_column(field.name, again[field.name]) for field in _READ]  # type: ignore[index]

            assert expected == found or "nan" in repr(found)
        else:
            assert judged is None or found.reason in _OF_VALUES


@given(st.fixed_dictionaries(_VALUES).map(_encoded))
def test_every_truncation_is_rejected(body: bytes) -> None:
    found = _READER(pa.array([body[:at] for at in range(len(body))])).refusals
    reasons = {"truncated", "an empty body", "a block declares more items than the body has bytes"}

    assert reasons >= {result.reason for result in found.values()}
    assert len(body) == len(found)


def test_a_schema_that_stands_for_a_billion_fields_is_refused() -> None:
    """Each record has two fields of the previous type; building all of them used all memory."""
    first = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "int"}]}
    named = [
        {"type": "record", "name": f"r{n}", "fields": [{"name": name, "type": f"r{n - 1}"} for name in "ab"]}
        for n in range(1, 30)
    ]
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate([first, *named])]

    with pytest.raises(SchemaError, match="more than 10,000 fields"):
        columns_of_schemas({None: json.dumps({"type": "record", "name": "top", "fields": fields})})
