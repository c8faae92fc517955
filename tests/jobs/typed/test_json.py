"""Both JSON readers: docs/reference/types.md shows the expected values; the fast reader must equal the scalar one."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.typed.ddl import parse_columns
from jobs.typed.fast_json import read_bodies
from jobs.typed.formats import TypedRows, UnknownField, read_bodies_exactly
from jobs.typed.values import Refusal, TimeDefaults
from tests.support.commands import measure_peak

WIDE = parse_columns(
    "a bigint, b double, c decimal(8,2), d timestamp, e string, f boolean, g array<int>, h map<string,int>, "
    "i struct<a: int NOT NULL, b: date>, j date, k binary, l float, m tinyint, n bigint NOT NULL, `o-p` string, "
    "q array<struct<a: int NOT NULL>>, r json"
)


def results_of(found: TypedRows, bodies: int) -> list[list[object] | Refusal]:
    """Return the results of a reader as one list, in the order of the bodies."""
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return [found.refusals[number] if number in found.refusals else list(next(rows)) for number in range(bodies)]


def both(
    bodies: Sequence[bytes],
    columns: Sequence[pa.Field],
    times: TimeDefaults = TimeDefaults(),  # noqa: B008 - frozen
) -> list[list[object] | Refusal]:
    """Return the rows of the fast reader, which must equal those of the scalar one."""
    fast = read_bodies(columns, times, pa.array(bodies, pa.binary()))
    exact = read_bodies_exactly(bodies, columns, times)
    rows = results_of(exact, len(bodies))
    assert rows == results_of(fast, len(bodies))
    assert exact.unknown_fields == fast.unknown_fields
    return rows


def test_fields_without_a_column_are_counted_with_an_example() -> None:
    """Fields of a refused body are not counted; a field that occurs twice in a body is counted once."""
    columns = parse_columns("a bigint, who struct<name: string>, items array<struct<id: int>>, more map<string, int>")
    bodies = [
        b'{"a": "refused", "z": 1}',
        b'{"a": 1, "z": 2.50, "who": {"name": "n", "age": 30}, "more": {"any": 1}}',
        b'{"items": [{"id": 1, "n": "x"}, {"n": "y"}], "z": {"b": [1]}}',
        b'{"z": [], "\\u0061": 1, "long": "%b"}' % (b"l" * 100),
    ]
    found = read_bodies(columns, TimeDefaults(), pa.array(bodies, pa.binary()))

    assert read_bodies_exactly(bodies, columns, TimeDefaults()).unknown_fields == found.unknown_fields
    assert found.unknown_fields == {
        "$.z": UnknownField(3, 1, "2.50"),
        "$.who.age": UnknownField(1, 1, "30"),
        "$.items[].n": UnknownField(1, 2, '"x"'),
        "$.long": UnknownField(1, 3, '"' + "l" * 59 + "…"),
    }


PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "types.md").read_text(encoding="utf-8")


def rows_of_page(heading: str) -> list[list[str]]:
    """Return the rows of a table of values in docs/reference/types.md, which is written by hand."""
    rows = PAGE.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
    return [row.strip("| ").split(" | ") for row in rows]


def format_as_on_page(found: list[object] | Refusal) -> str:
    if isinstance(found, Refusal):
        return f"dead letter: {found.reason}"
    return (
        "(empty string)"
        if not str(found[0])
        else f"`{found[0]}`".replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
    )


def _body_of(cell: str) -> bytes:
    """Return the body with the value of a cell; the page describes long numbers and raw bytes."""
    if digits := re.fullmatch(r"an integer of ([\d,]+) digits", cell):
        return b"1" * int(digits[1].replace(",", ""))
    if raw := re.fullmatch(r"a string with the raw bytes? ([0-9a-f ]+)", cell):
        return b'"%b"' % bytes.fromhex(raw[1])
    return cell.strip("`").encode("ascii")


@pytest.mark.parametrize(("column", "value", "expected"), rows_of_page("| column | value in the body |"))
def test_a_value_is_in_its_column_exactly_or_refused(column: str, value: str, expected: str) -> None:
    (row,) = both([b'{"v": %b}' % _body_of(value)], parse_columns(f"v {column.strip('`')}"))

    assert expected == format_as_on_page(row)


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


@pytest.mark.parametrize(("body", "reason", "place"), BODIES)
def test_an_invalid_body_is_rejected_with_its_position(body: bytes, reason: str, place: str) -> None:
    assert [Refusal(reason, place)] == both([body], parse_columns("a bigint"))


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (b'"h": [1, 2, 3]', "not an object", "$.h"),
        (b'"i": [{"a": 1}]', "not an object", "$.i"),
        (b'"g": {"a": 1, "b": 2}', "not an array", "$.g"),
        (b'"q": [{"a": 1}, {}]', "a required value is missing", "$.q[1].a"),
    ],
)
def test_a_value_of_another_kind_than_declared_is_refused(text: bytes, reason: str, place: str) -> None:
    rows = both([b'{"n": 1}', b'{"n": 2, %b}' % text, b'{"n": 3}'], WIDE)

    assert [1, Refusal(reason, place), 3] == [row if isinstance(row, Refusal) else row[13] for row in rows]


@pytest.mark.parametrize(
    "body", [b'{"e": "' + b"x" * 1_000_000, b'{"e": "' + b"\\n" * 500_000, b"[]{}" * 10_000 + b'"' + b"\\\\" * 500_000]
)
def test_a_long_body_that_is_refused_takes_little_memory(body: bytes) -> None:
    rows, most = measure_peak(lambda: read_bodies_exactly([body], WIDE, TimeDefaults()))

    assert rows.refusals
    assert most < 12 * len(body)


@pytest.mark.parametrize(
    ("text", "times", "expected"),
    [
        ("1795428000123", TimeDefaults(unit="ms"), "2026-11-23T10:00:00.123000+00:00"),
        ("1795428000", TimeDefaults(unit="s"), "2026-11-23T10:00:00+00:00"),
        ("1.5", TimeDefaults(unit="s"), "a time as a number with a fraction"),
        ("1" * 30, TimeDefaults(unit="us"), "an invalid or out-of-range time"),
        ('"2026-11-23 18:00:00"', TimeDefaults(zone=ZoneInfo("Asia/Shanghai")), "2026-11-23T10:00:00+00:00"),
        ('"2026-10-25 02:30:00"', TimeDefaults(zone=ZoneInfo("Europe/Berlin")),
         "a local time that occurs twice or never in its zone"),
        ('"2026-03-29 02:30:00"', TimeDefaults(zone=ZoneInfo("Europe/Berlin")),
         "a local time that occurs twice or never in its zone"),
    ],
)  # fmt: skip
def test_times_without_zone_or_unit_take_them_from_the_declaration(
    text: str, times: TimeDefaults, expected: str
) -> None:
    (row,) = both([b'{"t": %b}' % text.encode()], parse_columns("t timestamp"), times)

    assert expected == (row.reason if isinstance(row, Refusal) else row[0].isoformat())  # type: ignore[attr-defined]


_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["1.0", "-0", "-0.0", "1e5", "1E-7", "0.10", "12345.678", "1e400", "NaN", "01", "9007199254740993"]
    ),
)
_STRINGS = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.datetimes().map(lambda time: f'"{time.isoformat()}Z"'),
    st.dates().map(lambda day: f'"{day}"'),
    st.sampled_from(['"\\ud800"', '"\\uD83D\\uDE00"', '"1.50"', '"2026-02-30"', '"aGk="', '"\\q"']),
)  # fmt: skip
_NAMES = st.sampled_from([*(field.name for field in WIDE), "z", "\\u0061", ""])


def _documents(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(_NAMES, inner), max_size=5)
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        pairs.map(lambda items: "{" + " , ".join(f'"{name}" : {value}' for name, value in items) + "}"),
    )


_VALUES = st.recursive(st.one_of(_NUMBERS, _STRINGS, st.sampled_from(["true", "null"])), _documents, max_leaves=8)
_PLAIN = (
    '{"a":1,"b":-2.5e3,"c":"12.50","d":"2026-11-23T10:00:00.123Z","e":"a\\u00e9\\ud83d\\ude00\\n","f":true,'
    '"g":[1,null,3],"h":{"x":1,"y":2},"i":{"a":1,"b":"2026-11-23"},"j":"2024-02-29","k":"aGk=","l":0.5,"m":-128,'
    '"n":9223372036854775807,"o-p":"","z":[{"q":[]},{}]}'
)
_REPLACEMENTS = st.binary(max_size=3) | st.sampled_from([bytes([byte]) for byte in b'"\\{}[],:0.9eE-+ntfZ \xff\x00'])
_CHANGES = st.lists(st.tuples(st.integers(0, 400), _REPLACEMENTS, st.integers(0, 3)), min_size=1, max_size=3)
_OBJECTS = st.lists(st.tuples(_NAMES, _VALUES), max_size=6).map(
    lambda items: '{"n": 7' + "".join(f',"{name}":{value}' for name, value in items) + "}"
)


def _mutated(text: str, changes: list[tuple[int, bytes, int]]) -> bytes:
    body = text.encode("utf-8", "surrogatepass")
    for position, new, size in changes:
        at = position % (len(body) + 1)
        body = body[:at] + new + body[at + size :]
    return body


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\x01", "ü", "", "a b"])
def test_fields_of_any_name_are_read(name: str) -> None:
    columns = (pa.field(name, pa.struct([pa.field(name, pa.int64())])), pa.field("n", pa.int64()))

    assert [[{name: 1}, 2]] == both([json.dumps({name: {name: 1}, "n": 2}).encode()], columns)


@given(
    st.lists(
        st.one_of(
            _OBJECTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
            st.builds(_mutated, _OBJECTS, _CHANGES),
            st.builds(_mutated, st.just(_PLAIN), _CHANGES),
            st.binary(max_size=12),
        ),
        max_size=6,
    )
)
@example([b'{"n": 1, "b": 1e400}', b'{"n": 2, "\\u0061": 5}', b'{"n": 3}', b'{"n": 4, "\\u0061": 6}'])  # read again
@settings(max_examples=200)
def test_the_compiled_reader_agrees_with_the_scalar_one(bodies: list[bytes]) -> None:
    both(bodies, WIDE)
