"""What becomes of each value in a column of each type: written by hand, as docs/typed.md has it."""

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


_FRACTION = "a number with a fraction or an exponent is no bigint"
_NO_CALENDAR = "a time that no calendar has"

CELLS = (
    Cell("bigint", b"1", 1),
    Cell("bigint", b"-0", 0),
    Cell("bigint", b"9223372036854775807", 2**63 - 1),
    Cell("bigint", b"-9223372036854775808", -(2**63)),
    Cell("bigint", b"9223372036854775808", reason="a number is too large for bigint"),
    Cell("bigint", b"18446744073709551616", reason="a number is too large for bigint"),
    Cell("bigint", b"1" * 100_000, reason="a number is too large for bigint"),
    Cell("bigint", b"1.0", reason=_FRACTION),
    Cell("bigint", b"1.7", reason=_FRACTION),
    Cell("bigint", b"1e2", reason=_FRACTION),
    Cell("bigint", b'"1"', reason="no bigint"),
    Cell("bigint", b"true", reason="no bigint"),
    Cell("bigint", b"01", reason="invalid JSON"),
    Cell("bigint", b"null", None),
    Cell("tinyint", b"127", 127),
    Cell("tinyint", b"128", reason="a number is too large for tinyint"),
    Cell("smallint", b"-32769", reason="a number is too large for smallint"),
    Cell("int", b"2147483648", reason="a number is too large for int"),
    Cell("double", b"0.1", 0.1),
    Cell("double", b"1", 1.0),
    Cell("double", b"9007199254740992", 2.0**53),
    Cell("double", b"9007199254740993", reason="an integer that double does not hold exactly"),
    Cell("double", b"9007199254740994", 2.0**53 + 2),
    Cell("double", b"1e308", 1e308),
    Cell("double", b"1e309", reason="a number is too large for double"),
    Cell("double", b"1" * 400, reason="a number is too large for double"),
    Cell("double", b"NaN", reason="NaN is no number of JSON"),
    Cell("double", b"-Infinity", reason="-Infinity is no number of JSON"),
    Cell("double", b'"0.1"', reason="no double"),
    Cell("float", b"0.5", 0.5),
    Cell("float", b"16777217", reason="an integer that float does not hold exactly"),
    Cell("float", b"1e39", reason="a number is too large for float"),
    Cell("decimal(5,2)", b"123.45", Decimal("123.45")),
    Cell("decimal(5,2)", b'"123.45"', Decimal("123.45")),
    Cell("decimal(5,2)", b"1.500", Decimal("1.50")),
    Cell("decimal(5,2)", b"1e2", Decimal("100.00")),
    Cell("decimal(5,2)", b"1.234", reason="a number has more digits than decimal(5,2)"),
    Cell("decimal(5,2)", b"1234", reason="a number has more digits than decimal(5,2)"),
    Cell("decimal(5,2)", b"1e999999", reason="a number has more digits than decimal(5,2)"),
    Cell("decimal(5,2)", b'"NaN"', reason="no decimal(5,2)"),
    Cell("decimal(5,2)", b'" 1"', reason="no decimal(5,2)"),
    Cell("decimal(5,2)", b'"1_0"', reason="no decimal(5,2)"),
    Cell("decimal(5,2)", b"null", None),
    Cell("decimal(38,0)", b"9" * 38, Decimal("9" * 38)),
    Cell("boolean", b"true", True),  # noqa: FBT003 - the value
    Cell("boolean", b"1", reason="no boolean"),
    Cell("boolean", b'"true"', reason="no boolean"),
    Cell("string", b'"a\\u00e9\\ud83d\\ude00"', "aé😀"),
    Cell("string", b'""', ""),
    Cell("string", b"1", reason="no string"),
    Cell("string", b'"\\ud83d"', reason="half of a surrogate pair"),
    Cell("string", b'"\xff"', reason="invalid UTF-8"),
    Cell("string", b'"\xed\xa0\x80"', reason="invalid UTF-8"),
    Cell("string", b'"\n"', reason="invalid JSON"),
    Cell("binary", b'"aGk="', b"hi"),
    Cell("binary", b'"aGk"', reason="no bytes in base64"),
    Cell("date", b'"2026-11-23"', dt.date(2026, 11, 23)),
    Cell("date", b'"2026-02-30"', reason="a day that no calendar has"),
    Cell("date", b'"20261123"', reason="no date like 2026-11-23"),
    Cell("date", b"20261123", reason="no date like 2026-11-23"),
    Cell("timestamp", b'"2026-11-23T10:00:00Z"', _at(10)),
    Cell("timestamp", b'"2026-11-23 10:00:00.5Z"', _at(10, micros=500_000)),
    Cell("timestamp", b'"2026-11-23T10:00:00.123456Z"', _at(10, micros=123_456)),
    Cell("timestamp", b'"2026-11-23T10:00:00.123456000Z"', _at(10, micros=123_456)),
    Cell("timestamp", b'"2026-11-23T10:00:00.1234567Z"', reason="a time finer than a microsecond"),
    Cell("timestamp", b'"2026-11-23T10:00:00,5+0800"', _at(2, micros=500_000)),
    Cell("timestamp", b'"2026-11-23T10:00+08:00"', _at(2)),
    Cell("timestamp", b'"2026-11-23T23:00:00-05"', _at(4, day=24)),
    Cell("timestamp", b'"2026-11-23 10:00:00"', reason="a time without a zone (time_zone in types.toml says which)"),
    Cell("timestamp", b'"2026-11-23T24:00:00Z"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"2026-11-23T10:00:60Z"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"0001-01-01T00:00:00+01:00"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"2026-11-23T10:00:00+24:00"', reason=_NO_CALENDAR),
    Cell("timestamp", b'"yesterday"', reason="no time of ISO 8601"),
    Cell("timestamp", b"1", reason="a time as a number (epoch in types.toml says of what unit)"),
    Cell("array<int>", b"[1, null]", [1, None]),
    Cell("array<int>", b"[1, 1.5]", reason="a number with a fraction or an exponent is no int"),
    Cell("array<int>", b"{}", reason="no array"),
    Cell("map<string,double>", b'{"a": 1}', [("a", 1.0)]),
    Cell("map<string,int>", b'{"a": 1, "a": 1}', reason="a key occurs twice in one object"),
    Cell("struct<a: int, b: string>", b'{"a": 1, "c": 2}', {"a": 1, "b": None}),
    Cell("struct<a: int NOT NULL>", b"{}", reason="a value that must be there is missing"),
    Cell("struct<a: timestamp>", b'{"a": "2026-11-23T10:00:00Z"}', {"a": _at(10)}),
    Cell("struct<a: decimal(3,1)>", b"null", None),
)

BODIES = (
    (b"", "an empty body", "byte 0"),
    (b" \n", "an empty body", "byte 0"),
    (b"\xef\xbb\xbf{}", "invalid JSON", "byte 0"),
    (b"null", "no object", "$"),
    (b"[]", "no object", "$"),
    (b'{"a": 1', "invalid JSON", "byte 7"),
    (b'{"a": 1} {"a": 2}', "more after the document", "byte 9"),
    (b'{"a": 1}}', "more after the document", "byte 8"),
    (b'{"a": 1, "a": 2}', "a key occurs twice in one object", "key a"),
    (b'{"a": 1, "\\u0061": 2}', "a key occurs twice in one object", "key a"),
    (b'{"x": {"b": 1, "b": 1}}', "a key occurs twice in one object", "key b"),
    (b'{"x": "\xff"}', "invalid UTF-8", "byte 7"),
    (b'{"x": "\\ud800"}', "half of a surrogate pair", "$.x"),
    (b'{"x": NaN}', "NaN is no number of JSON", "NaN"),
    (b'{"x": ' + b"[" * 100_000, "nested deeper than 100", "byte 105"),
    (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 100", "byte 105"),
    (b'{"a": "x"}', "no bigint", "$.a"),
)


def table() -> str:
    """Return the cells as docs/typed.md has them: `python -m tests.jobs.typed.cells`."""
    lines = ["| column | value in the body | in the table |", "|---|---|---|"]
    for cell in CELLS:
        text = cell.text.decode("latin-1") if len(cell.text) < 50 else f"{len(cell.text):,} digits"
        shown = text.replace("\n", "\\n").replace("|", "\\|").encode("unicode_escape").decode("ascii")
        shown = shown.replace("\\\\", "\\")
        value = f"`{cell.value}`" if not cell.reason else f"dead letter: {cell.reason}"
        lines.append(f"| {cell.type} | `{shown}` | {value} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
