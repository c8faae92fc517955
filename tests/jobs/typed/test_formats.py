"""Values in each format, text bodies, fuzzed bodies, and the tutorial of docs/guides/typed-tables.md."""

import json
import os
import re
import resource
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from random import Random
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.requests.typing import TypeRequest
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import SerialWorkers, Workers
from jobs.typed.avro import avro_format
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import JSON_FORMAT, TopicType
from jobs.typed.formats import BodyFormat, check_pattern, text_format
from jobs.typed.protobuf import protobuf_format
from jobs.typed.run import type_lake
from jobs.typed.values import Refusal, TimeDefaults
from tests.jobs.typed import test_avro, test_protobuf
from tests.jobs.typed.test_json import both, format_as_on_page, results_of, rows_of_page
from tests.jobs.typed.test_typing import ingested
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker
from tests.support.commands import ROOT, Run
from tests.support.lakes import delta_extension, ingest_store, rows_of, table_of


class EncodedValue(NamedTuple):
    """A value in each format that supports it; docs/reference/types.md shows its column and the result."""

    json: bytes | None  # the value of the field v
    avro: tuple[object, str] | None  # the type of the field v, and the body in hexadecimal
    protobuf: tuple[str, str] | None  # the field of shop.Order, and the body in hexadecimal
    text: bytes | None  # the group v


def _logical(type_: str, name: str, **more: int) -> dict[str, object]:
    return {"type": type_, "logicalType": name, **more}


_DECIMAL = _logical("bytes", "decimal", precision=3, scale=2)
_TIME = b"2026-11-23T10:00:00.000000001Z"
SPELLED = {
    "9223372036854775807": EncodedValue(
        b"9223372036854775807",
        ("long", "fe ff ff ff ff ff ff ff ff 01"),
        ("i8", "18 ff ff ff ff ff ff ff ff 7f"),
        b"9223372036854775807",
    ),
    "more than 64 bits": EncodedValue(
        b"18446744073709551616",
        ("long", "80 80 80 80 80 80 80 80 80 04"),
        ("i8", "18 80 80 80 80 80 80 80 80 80 02"),
        b"18446744073709551616",
    ),
    "2147483648": EncodedValue(b"2147483648", ("int", "80 80 80 80 10"), ("i4", "28 80 80 80 80 08"), b"2147483648"),
    "NaN": EncodedValue(b"NaN", ("double", "00 00 00 00 00 00 f8 7f"), ("d", "09 00 00 00 00 00 00 f8 7f"), b"NaN"),
    "infinity (JSON and text: `1e309`)": EncodedValue(
        b"1e309", ("double", "00 00 00 00 00 00 f0 7f"), ("d", "09 00 00 00 00 00 00 f0 7f"), b"1e309"
    ),
    "2^53 + 1": EncodedValue(b"9007199254740993", None, None, b"9007199254740993"),
    "-1.23": EncodedValue(b"-1.23", (_DECIMAL, "02 85"), None, b"-1.23"),
    "12.34": EncodedValue(b"12.34", (_DECIMAL, "04 04 d2"), None, b"12.34"),
    "2": EncodedValue(b"2", ("boolean", "02"), ("b", "40 02"), b"2"),
    "the byte 0xff": EncodedValue(b'"\xff"', ("string", "02 ff"), ("s", "4a 01 ff"), b"\xff"),
    "one key twice": EncodedValue(
        b'{"0": "", "0": ""}',
        ({"type": "map", "values": "string"}, "04 02 30 00 02 30 00 00"),
        ("m", "b2 01 00 b2 01 00"),
        None,
    ),
    "2026-11-23 10:00 in UTC": EncodedValue(
        b'"2026-11-23T10:00:00Z"',
        (_logical("long", "timestamp-millis"), "80 84 c9 fd c0 68"),
        ("at", "d2 01 06 08 a0 9d 90 d8 06"),
        b"2026-11-23T10:00:00Z",
    ),
    "a time that is not a whole number of microseconds": EncodedValue(
        b'"%b"' % _TIME, (_logical("long", "timestamp-nanos"), "02"), ("at", "d2 01 08 08 a0 9d 90 d8 06 10 01"), _TIME
    ),
    "a second before the year 1": EncodedValue(
        b'"0001-01-01T00:00:00+00:01"',
        (_logical("long", "timestamp-millis"), "cf ef e6 a2 e2 a0 1c"),
        ("at", "d2 01 0b 08 ff 91 b8 c3 98 fe ff ff ff 01"),
        b"0001-01-01T00:00:00+00:01",
    ),
    "a date that does not exist": EncodedValue(
        b'"2026-02-30"', (_logical("int", "date"), "fe ff ff ff 0f"), None, b"2026-02-30"
    ),
    "null or a missing field": EncodedValue(b"null", (["null", "long"], "00"), ("o", "18 01"), b""),
}


_ON_THE_PAGE = rows_of_page("| value | column | JSON |")


@pytest.mark.parametrize(("name", "column", "json", "avro", "protobuf", "text"), _ON_THE_PAGE)
def test_a_value_is_the_same_in_every_format(  # noqa: PLR0913, PLR0917 - cells of a row
    name: str, column: str, json: str, avro: str, protobuf: str, text: str
) -> None:
    spelled, column = SPELLED[name], column.strip("`")
    found: list[list[object] | Refusal | None] = [None] * len(spelled)
    if spelled.json is not None:
        (found[0],) = both([b'{"v": %b}' % spelled.json], parse_columns(f"v {column}"))
    if spelled.avro is not None:
        found[1] = test_avro.read(bytes.fromhex(spelled.avro[1]), v=spelled.avro[0])
    if spelled.protobuf is not None:
        row = test_protobuf.read(bytes.fromhex(spelled.protobuf[1]))
        found[2] = row if isinstance(row, Refusal) else [row[spelled.protobuf[0]]]
    if spelled.text is not None:
        found[3] = read(spelled.text, "(?P<v>.*)", f"v {column}")

    shown = ["-" if value is None else format_as_on_page(value).replace("`None`", "`NULL`") for value in found]

    assert [json, avro, protobuf, text] == shown


def test_every_value_is_documented() -> None:
    assert [*SPELLED] == [row[0] for row in _ON_THE_PAGE]


_PATTERN = r"(?P<level>[A-Z]+) (?P<took>[^ ]*)(?: (?P<message>.*))?"
_COLUMNS = parse_columns("message string, level string, took double NOT NULL")


def read(body: bytes, pattern: str = _PATTERN, columns: str | None = None) -> list[object] | Refusal:
    declared = _COLUMNS if columns is None else parse_columns(columns)
    check_pattern(pattern, declared)
    return results_of(text_format(pattern).reader(declared, TimeDefaults())(pa.array([body])), 1)[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"INFO 1.5 up and running", ["up and running", "INFO", 1.5]),
        ("INFO 2 ü".encode(), ["ü", "INFO", 2.0]),
        (b"INFO 2", ["", "INFO", 2.0]),
        (b"INFO " + b"0" * 5000 + b"7", ["", "INFO", 7.0]),
        (b"INFO NaN", ("not a valid double", "$.took")),
        (b"INFO 9007199254740993", ("an integer that double cannot represent exactly", "$.took")),
        (b"INFO ", ("a required value is missing", "$.took")),
        (b"info 1", ("does not match the pattern", "$")),
        (b"INFO 1 a\n", ("does not match the pattern", "$")),
        (b"", ("does not match the pattern", "$")),
        (b"INFO 1 \xff", ("invalid UTF-8", "byte 7")),
    ],
)
def test_a_body_becomes_a_row_of_its_groups_or_is_refused(body: bytes, expected: object) -> None:
    assert (Refusal(*expected) if isinstance(expected, tuple) else expected) == read(body)


def test_no_body_makes_a_pattern_slow() -> None:
    """Python's `re` would need more than 10^10 years for this pattern."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert isinstance(read(b"a" * 4_000_000 + b"!", "(?P<a>(?:a+)+)", "a string"), Refusal)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@given(st.text("AZ 1.\n", max_size=12))
def test_a_body_matches_as_in_python(text: str) -> None:
    expected = re.fullmatch(_PATTERN, text)
    found = read(text.encode(), columns="level string, took string, message string")

    if expected is None:
        assert isinstance(found, Refusal)
    else:
        assert [group or "" for group in expected.groups()] == found


_PIECES = (
    b"", b"\0", b"\xff", b'"', b"{", b"}", b"[" * 200, b"\\u", b"1e999", b"-", b"\n", b"\xed\xa0\x80", b"9" * 5000,
)  # fmt: skip
_OF_ORDERS = parse_columns("id bigint, name string, price double")


_SCHEMA = test_avro.schema_of(id="long", name="string", price="double")


def _avro(number: int) -> bytes:
    buffer = BytesIO()
    values = {"id": number, "name": "name ü", "price": number / 4}
    schemaless_writer(buffer, parse_schema(json.loads(_SCHEMA)), values)
    return buffer.getvalue()


FORMATS: Mapping[str, tuple[BodyFormat, Callable[[int], bytes]]] = {  # and a function that makes a body
    "json": (
        JSON_FORMAT,
        lambda number: b'{"id": %d, "name": "name %d \xc3\xbc", "price": %d.25, "more": [1, {}]}' % ((number,) * 3),
    ),
    "avro": (avro_format({None: _SCHEMA}), _avro),
    "protobuf": (
        protobuf_format(test_protobuf.DESCRIPTORS, "shop.Order"),
        lambda number: bytes(test_protobuf.ORDER(i8=number, s="name ü", d=number / 4).SerializeToString()),
    ),
    "text": (
        text_format(r"(?P<id>[^ ]*) (?P<name>[^ ]*) (?P<price>[^ ]*)"),
        lambda number: b"%d name\xc3\xbc %d.25" % (number, number),
    ),
}


def _mutated(body: bytes, random: Random) -> bytes:
    """Replace, delete or repeat some bytes of a body."""
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(body) + 1)
        size = random.randrange(4)
        new = random.choice((random.randbytes(size), random.choice(_PIECES), body[at : at + 8] * 2))
        body = body[:at] + new + body[at + size :]
    return body


@pytest.mark.parametrize(
    "count", [1500, pytest.param(int(os.environ.get("BODIES", "1000000")), marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("name", FORMATS)
def test_each_of_many_bodies_is_a_row_or_a_dead_letter(name: str, count: int, tmp_path: Path) -> None:
    """Every second body is fuzzed."""
    (format_, good), random = FORMATS[name], Random(35)
    broker = Broker(tmp_path / "store", segment_size=1 << 26)
    bodies = (good(number) if number % 2 else _mutated(good(number), random) for number in range(count))
    placed = [record.physical_offset for record in broker.append(make_record(body) for body in bodies)]
    ingest_store(broker.root, tmp_path / "lake")
    sources = {"id": "i8", "name": "s", "price": "d"} if name == "protobuf" else {}
    declared = TopicType("Orders", format_, _OF_ORDERS, sources)
    (summary,) = type_lake(TypeRequest(Lake(str(tmp_path / "lake")), (declared,)), SerialWorkers()).topics

    rows = table_of(tmp_path / "lake" / "typed" / "Orders", ["physical_offset"]).column("physical_offset").to_pylist()
    dead = [row["physical_offset"] for row in rows_of(tmp_path / "lake", "dead_letters")]

    assert len(rows) == summary.rows
    assert len(dead) == summary.dead_letters
    assert sorted([*rows, *dead]) == placed, "a body is in neither table, or in both"
    assert set(placed[1::2]) <= set(rows)
    assert dead


@pytest.mark.parametrize("name", FORMATS)
def test_worker_processes_type_the_same_rows(name: str, tmp_path: Path) -> None:
    """Formats have values that only some libraries can send to another process."""
    format_, good = FORMATS[name]
    broker = Broker(tmp_path / "store", segment_size=1 << 20)
    broker.append(make_record(good(number) if number % 5 else b"") for number in range(200))
    sources = {"id": "i8", "name": "s", "price": "d"} if name == "protobuf" else {}
    declared = TopicType("Orders", format_, _OF_ORDERS, sources)
    results = []
    with closing(ProcessWorkers({}, threads=1, processes=2, patience_s=0)) as processes:
        both: list[Workers] = [SerialWorkers(), processes]
        for number, workers in enumerate(both):
            lake = tmp_path / str(number)
            ingest_store(broker.root, lake, range_size=4096)
            summary = type_lake(TypeRequest(Lake(str(lake)), (declared,)), workers)
            rows = table_of(lake / "typed" / "Orders", ["physical_offset", "id", "name", "price"])
            results.append((summary.topics, rows.sort_by("physical_offset").to_pylist()))

        assert processes.has_started
    assert results[0] == results[1]


TUTORIAL = (ROOT / "docs" / "guides" / "typed-tables.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(json|toml|console|sql)\n(.*?)^```\n(?:\n((?:\|[^\n]*\n)+))?", re.DOTALL | re.MULTILINE)


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    connection = duckdb.connect()
    connection.execute(f"LOAD '{delta_extension()}'")
    shown = []
    for language, text, answer in _BLOCK.findall(TUTORIAL.partition("## Your first typed table")[2]):
        shown.append(language)
        if language == "json":
            ingested(tmp_path, *text.encode().splitlines())
        elif language == "toml":
            (tmp_path / "types.toml").write_text(text)
        elif language == "console":
            command, *lines = text.splitlines()
            outcome = run(*command.split()[2:], "--engine", "local")

            assert ExitCode.CLEAN is outcome.code
            assert lines == outcome.out.splitlines()[: len(lines)]
        else:
            found = connection.sql(text).fetchall()

            assert [f"| {' | '.join(map(str, row))} |" for row in found] == answer.splitlines()[2:]

    assert ["json", "toml", "console", "sql", "sql", "toml", "console", "sql"] == shown
    (words,) = re.findall(r"`rmq-lake (query sql [^`]+)`", TUTORIAL)

    assert ExitCode.CLEAN is run(*shlex.split(words)).code
