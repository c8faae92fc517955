"""The expected value of each input in a column of each type: written by hand, as in docs/typed.md."""

import datetime as dt
from decimal import Decimal
from typing import NamedTuple


class Cell(NamedTuple):
    """A value as a body spells it, the type of its column, and the value there; or the reason why there is none."""

    type: str
    text: bytes
    value: object = None
    reason: str = ""


def _at(hour: int, minute: int = 0, second: int = 0, micros: int = 0, day: int = 23) -> dt.datetime:
    return dt.datetime(2026, 11, day, hour, minute, second, micros, dt.UTC)


_FRACTION = "a number with a fraction or an exponent is not a valid bigint"
_NO_CALENDAR = "an invalid or out-of-range time"

CELLS = (
    Cell("bigint", b"1", 1),
    Cell("bigint", b"-0", 0),
    Cell("bigint", b"9223372036854775807", 2**63 - 1),
    Cell("bigint", b"-9223372036854775808", -(2**63)),
    Cell("bigint", b"9223372036854775808", reason="a number is out of range for bigint"),
    Cell("bigint", b"18446744073709551616", reason="a number is out of range for bigint"),
    Cell("bigint", b"1" * 100_000, reason="a number is out of range for bigint"),
    Cell("bigint", b"1.0", reason=_FRACTION),
    Cell("bigint", b"1.7", reason=_FRACTION),
    Cell("bigint", b"1e2", reason=_FRACTION),
    Cell("bigint", b'"1"', reason="not a valid bigint"),
    Cell("bigint", b"true", reason="not a valid bigint"),
    Cell("bigint", b"01", reason="invalid JSON"),
    Cell("bigint", b"null", None),
    Cell("tinyint", b"127", 127),
    Cell("tinyint", b"128", reason="a number is out of range for tinyint"),
    Cell("smallint", b"-32769", reason="a number is out of range for smallint"),
    Cell("int", b"2147483648", reason="a number is out of range for int"),
    Cell("double", b"0.1", 0.1),
    Cell("double", b"1", 1.0),
    Cell("double", b"9007199254740992", 2.0**53),
    Cell("double", b"9007199254740993", reason="an integer that double cannot represent exactly"),
    Cell("double", b"9007199254740994", 2.0**53 + 2),
    Cell("double", b"1e308", 1e308),
    Cell("double", b"1e309", reason="a number is out of range for double"),
    Cell("double", b"1" * 400, reason="a number is out of range for double"),
    Cell("double", b"NaN", reason="NaN is not a valid JSON number"),
    Cell("double", b"-Infinity", reason="-Infinity is not a valid JSON number"),
    Cell("double", b'"0.1"', reason="not a valid double"),
    Cell("float", b"0.5", 0.5),
    Cell("float", b"16777217", reason="an integer that float cannot represent exactly"),
    Cell("float", b"1e39", reason="a number is out of range for float"),
    Cell("decimal(5,2)", b"123.45", Decimal("123.45")),
    Cell("decimal(5,2)", b'"123.45"', Decimal("123.45")),
    Cell("decimal(5,2)", b"1.500", Decimal("1.50")),
    Cell("decimal(5,2)", b"1e2", Decimal("100.00")),
    Cell("decimal(5,2)", b"1.234", reason="a number that decimal(5,2) cannot represent exactly"),
    Cell("decimal(5,2)", b"1234", reason="a number that decimal(5,2) cannot represent exactly"),
    Cell("decimal(5,2)", b"1e999999", reason="a number that decimal(5,2) cannot represent exactly"),
    Cell("decimal(5,2)", b'"NaN"', reason="not a valid decimal(5,2)"),
    Cell("decimal(5,2)", b'" 1"', reason="not a valid decimal(5,2)"),
    Cell("decimal(5,2)", b'"1_0"', reason="not a valid decimal(5,2)"),
    Cell("decimal(5,2)", b"null", None),
    Cell("decimal(38,0)", b"9" * 38, Decimal("9" * 38)),
    Cell("boolean", b"true", True),  # noqa: FBT003 - the value
    Cell("boolean", b"1", reason="not a valid boolean"),
    Cell("boolean", b'"true"', reason="not a valid boolean"),
    Cell("string", b'"a\\u00e9\\ud83d\\ude00"', "aé😀"),
    Cell("string", b'""', ""),
    Cell("string", b"1", reason="not a valid string"),
    Cell("string", b'"\\ud83d"', reason="an unpaired surrogate"),
    Cell("string", b'"\xff"', reason="invalid UTF-8"),
    Cell("string", b'"\xed\xa0\x80"', reason="invalid UTF-8"),
    Cell("string", b'"\n"', reason="invalid JSON"),
    Cell("binary", b'"aGk="', b"hi"),
    Cell("binary", b'"aGk"', reason="not valid base64"),
    Cell("date", b'"2026-11-23"', dt.date(2026, 11, 23)),
    Cell("date", b'"2026-02-30"', reason="an invalid or out-of-range date"),
    Cell("date", b'"20261123"', reason="not a date like 2026-11-23"),
    Cell("date", b"20261123", reason="not a date like 2026-11-23"),
    Cell("timestamp", b'"2026-11-23T10:00:00Z"', _at(10)),
    Cell("timestamp", b'"2026-11-23 10:00:00.5Z"', _at(10, micros=500_000)),
    Cell("timestamp", b'"2026-11-23T10:00:00.123456Z"', _at(10, micros=123_456)),
    Cell("timestamp", b'"2026-11-23T10:00:00.123456000Z"', _at(10, micros=123_456)),
    Cell("timestamp", b'"2026-11-23T10:00:00.1234567Z"', reason="a time more precise than a microsecond"),
    Cell("timestamp", b'"2026-11-23T10:00:00,5+0800"', _at(2, micros=500_000)),
    Cell("timestamp", b'"2026-11-23T10:00+08:00"', _at(2)),
    Cell("timestamp", b'"2026-11-23T23:00:00-05"', _at(4, day=24)),
    Cell("timestamp", b'"2026-11-23 10:00:00"', reason="a time without a zone; set time_zone in types.toml"),
    Cell("timestamp", b'"2026-11-23T24:00:00Z"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"2026-11-23T10:00:60Z"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"0001-01-01T00:00:00+01:00"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"2026-11-23T10:00:00+24:00"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"yesterday"', reason="not an ISO 8601 time"),
    Cell("timestamp", b"1", reason="a time as a number; set its unit as epoch in types.toml"),
    Cell("array<int>", b"[1, null]", [1, None]),
    Cell("array<int>", b"[1, 1.5]", reason="a number with a fraction or an exponent is not a valid int"),
    Cell("array<int>", b"{}", reason="not an array"),
    Cell("map<string,double>", b'{"a": 1}', [("a", 1.0)]),
    Cell("map<string,int>", b'{"a": 1, "a": 1}', reason="a key occurs twice in one object"),
    Cell("struct<a: int, b: string>", b'{"a": 1, "c": 2}', {"a": 1, "b": None}),
    Cell("struct<a: int NOT NULL>", b"{}", reason="a required value is missing"),
    Cell("struct<a: timestamp>", b'{"a": "2026-11-23T10:00:00Z"}', {"a": _at(10)}),
    Cell("struct<a: decimal(3,1)>", b"null", None),
)

BODIES = (
    (b"", "an empty body", "byte 0"),
    (b" \n", "an empty body", "byte 0"),
    (b"\xef\xbb\xbf{}", "invalid JSON", "byte 0"),
    (b"null", "not an object", "$"),
    (b"[]", "not an object", "$"),
    (b'{"a": 1', "invalid JSON", "byte 7"),
    (b'{"a": 1} {"a": 2}', "extra data after the document", "byte 9"),
    (b'{"a": 1}}', "extra data after the document", "byte 8"),
    (b'{"a": 1, "a": 2}', "a key occurs twice in one object", "key a"),
    (b'{"a": 1, "\\u0061": 2}', "a key occurs twice in one object", "key a"),
    (b'{"x": {"b": 1, "b": 1}}', "a key occurs twice in one object", "key b"),
    (b'{"x": "\xff"}', "invalid UTF-8", "byte 7"),
    (b'{"x": "\\ud800"}', "an unpaired surrogate", "$.x"),
    (b'{"x": NaN}', "NaN is not a valid JSON number", "NaN"),
    (b'{"x": ' + b"[" * 100_000, "nested deeper than 100", "byte 105"),
    (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 100", "byte 105"),
    (b'{"a": "x"}', "not a valid bigint", "$.a"),
)


class Spelled(NamedTuple):
    """A value in each format that has it, and what becomes of it: one thing for all, or another one by format."""

    value: str
    column: str
    json: bytes | None  # the value of the field v
    avro: tuple[object, str] | None  # the type of the field v, and the body in hexadecimal
    protobuf: tuple[str, str] | None  # the field of shop.Order, and the body in hexadecimal
    text: bytes | None  # the group v
    result: object  # by format where it is a dict; a reason is a `Dead`


class Dead(str):
    """Why a body is a dead letter."""

    __slots__ = ()


def _logical(type_: str, name: str, **more: int) -> dict[str, object]:
    return {"type": type_, "logicalType": name, **more}


_TIME = b"2026-11-23T10:00:00.%bZ"
_TOO_LONG = Dead("a number of more than 64 bits")
SPELLED = (
    Spelled("9223372036854775807", "bigint", b"9223372036854775807", ("long", "fe ff ff ff ff ff ff ff ff 01"),
            ("i8", "18 ff ff ff ff ff ff ff ff 7f"), b"9223372036854775807", 2**63 - 1),
    Spelled("more than 64 bits", "bigint", b"18446744073709551616", ("long", "80 80 80 80 80 80 80 80 80 04"),
            ("i8", "18 80 80 80 80 80 80 80 80 80 02"), b"18446744073709551616",
            {"json": Dead("a number is out of range for bigint"), "text": Dead("a number is out of range for bigint"),
             "avro": _TOO_LONG, "protobuf": _TOO_LONG}),
    Spelled("2147483648", "int", b"2147483648", ("int", "80 80 80 80 10"), ("i4", "28 80 80 80 80 08"), b"2147483648",
            Dead("a number is out of range for int")),
    Spelled("NaN", "double", b"NaN", ("double", "00 00 00 00 00 00 f8 7f"), ("d", "09 00 00 00 00 00 00 f8 7f"), b"NaN",
            {"json": Dead("NaN is not a valid JSON number"), "avro": "nan", "protobuf": "nan",
             "text": Dead("not a valid double")}),
    Spelled("infinity", "double", b"1e309", ("double", "00 00 00 00 00 00 f0 7f"), ("d", "09 00 00 00 00 00 00 f0 7f"),
            b"1e309", {"json": Dead("a number is out of range for double"), "avro": "inf", "protobuf": "inf",
                       "text": Dead("a number is out of range for double")}),
    Spelled("2^53 + 1", "double", b"9007199254740993", None, None, b"9007199254740993",
            Dead("an integer that double cannot represent exactly")),
    Spelled("-1.23", "decimal(3,2)", b"-1.23", (_logical("bytes", "decimal", precision=3, scale=2), "02 85"), None,
            b"-1.23", Decimal("-1.23")),
    Spelled("12.34", "decimal(3,2)", b"12.34", (_logical("bytes", "decimal", precision=3, scale=2), "04 04 d2"), None,
            b"12.34", Dead("a number that decimal(3,2) cannot represent exactly")),
    Spelled("2", "boolean", b"2", ("boolean", "02"), ("b", "40 02"), b"2", Dead("not a valid boolean")),
    Spelled("the byte 0xff", "string", b'"\xff"', ("string", "02 ff"), ("s", "4a 01 ff"), b"\xff",
            Dead("invalid UTF-8")),
    Spelled("one key twice", "map<string,string>", b'{"0": "", "0": ""}',
            ({"type": "map", "values": "string"}, "04 02 30 00 02 30 00 00"), ("m", "b2 01 00 b2 01 00"), None,
            Dead("a key occurs twice in one object")),
    Spelled("2026-11-23 10:00 in UTC", "timestamp", b'"2026-11-23T10:00:00Z"',
            (_logical("long", "timestamp-millis"), "80 84 c9 fd c0 68"), ("at", "d2 01 06 08 a0 9d 90 d8 06"),
            b"2026-11-23T10:00:00Z", _at(10)),
    Spelled("a time with nanosecond precision", "timestamp", b'"%b"' % (_TIME % b"000000001"),
            (_logical("long", "timestamp-nanos"), "02"), ("at", "d2 01 08 08 a0 9d 90 d8 06 10 01"),
            _TIME % b"000000001", Dead("a time more precise than a microsecond")),
    Spelled("a second before the year 1", "timestamp", b'"0001-01-01T00:00:00+00:01"',
            (_logical("long", "timestamp-millis"), "cf ef e6 a2 e2 a0 1c"),
            ("at", "d2 01 0b 08 ff 91 b8 c3 98 fe ff ff ff 01"), b"0001-01-01T00:00:00+00:01", Dead(_NO_CALENDAR)),
    Spelled("a date that does not exist", "date", b'"2026-02-30"', (_logical("int", "date"), "fe ff ff ff 0f"), None,
            b"2026-02-30", Dead("an invalid or out-of-range date")),
    Spelled("null or a missing field", "bigint", b"null", (["null", "long"], "00"), ("o", "18 01"), b"", None),
)  # fmt: skip


def formats_table() -> str:
    formats = ("json", "avro", "protobuf", "text")
    lines = ["| value | column | JSON | Avro | Protobuf | text |", "|---|---|---|---|---|---|"]
    for one in SPELLED:
        results = one.result if isinstance(one.result, dict) else dict.fromkeys(formats, one.result)
        shown = [_shown(results[name]) if getattr(one, name) is not None else "-" for name in formats]
        lines.append(f"| {one.value} | {one.column} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _shown(result: object) -> str:
    return f"dead letter: {result}" if isinstance(result, Dead) else f"`{'NULL' if result is None else result}`"


def table() -> str:
    """Return the cells as docs/typed.md has them: `python -m tests.jobs.typed.cells`."""
    lines = ["| column | value in the body | value in the table, as Python prints it |", "|---|---|---|"]
    for cell in CELLS:
        text = cell.text.decode("latin-1") if len(cell.text) < 50 else f"{len(cell.text):,} digits"
        shown = text.replace("\n", "\\n").replace("|", "\\|").encode("unicode_escape").decode("ascii")
        shown = shown.replace("\\\\", "\\")
        value = f"`{cell.value}`" if not cell.reason else f"dead letter: {cell.reason}"
        lines.append(f"| {cell.type} | `{shown}` | {value} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
