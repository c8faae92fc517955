"""`export` writes the messages of a store or a lake that match a condition, as evaluated by DuckDB."""

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.command_line import cli
from jobs.console.result import ExitCode
from jobs.console.rows import RowFormat
from jobs.export import COLUMNS, SCHEMA, LakeItem, LogItem, iterate_decoded_slices
from jobs.export.condition import Condition, parse_condition
from jobs.export.export import ExportSummary, plan_export, write_part
from jobs.export.export import export as export_messages
from jobs.requests.export import ANY_TIME, ExportRequest
from jobs.requests.query import QueryTarget
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.layout import COMPRESSED
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker
from tests.support.commands import ROOT, Run, ignore_spark_session, measure_peak
from tests.support.query_stores import Sent, stored, write_lake, write_store
from tests.support.stores import flip

Export = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("export")
    messages = []
    for number in range(30):
        body = f'{{"order": {number}}}'.encode() if number % 3 else bytes([0xFF, number])
        sent = Sent(
            topic=("Orders", "Bills")[number % 2], keys=(f"k{number}",), properties=(("region", f"r{number % 4}"),)
        )
        packed = sent._replace(body=zlib.compress(body), sys_flag=COMPRESSED)
        messages.append(packed if number % 2 else sent._replace(body=body))
    store = write_store(root / "store", stored(messages))
    return {"--store": store, "--lake": write_lake(store, root / "lake")}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-t", "Bills", "--where", "body_text LIKE '%: 7}'"), ["k7"]),
        (("--where", "body_text ~ 'order.: 1[0-9]'"), [f"k{number}" for number in (10, 11, 13, 14, 16, 17, 19)]),
        (("--where", "rand() < 2"), [f"k{number}" for number in range(30)]),  # without a column
    ],
)
def test_spark_tasks_evaluate_the_condition(
    places: dict[str, Path], tmp_path: Path, run: Run, options: tuple[str, ...], expected: list[str]
) -> None:
    for place, path in places.items():
        out = tmp_path / place

        assert ExitCode.CLEAN is run("export", place, path, "--engine", "spark", "--out", out, *options).code
        assert expected == [key for line in out.read_text().splitlines() for key in json.loads(line)["keys"]]


def test_json_array_csv_and_parquet_have_the_same_rows_as_ndjson(
    places: dict[str, Path], tmp_path: Path, run: Run
) -> None:
    for kind in ("ndjson", "json", "csv", "parquet"):
        assert run("export", "--lake", places["--lake"], "--format", kind, "--out", tmp_path / kind).code == 0
    lines = [json.loads(line) for line in (tmp_path / "ndjson").read_text().splitlines()]
    array = json.loads((tmp_path / "json").read_text())
    table = list(csv.DictReader(StringIO((tmp_path / "csv").read_text())))
    rows = pq.read_table(tmp_path / "parquet").to_pylist()

    assert lines == array
    assert [row["keys"] for row in rows] == [row["keys"] for row in lines]
    assert [row["body"] for row in rows] == [b64decode(row["decoded_body_base64"]) for row in lines]
    assert [row["message_id"] for row in table] == [row["message_id"] for row in lines]
    assert list(table[0]) == list(lines[0])[2:]  # all except version and type


@pytest.mark.parametrize("kind", ["ndjson", "csv"])
def test_standard_output_receives_the_same_bytes_as_a_file(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_spark_session(monkeypatch)
    monkeypatch.setattr("jobs.export.export._AT_ONCE", 2)
    store = write_store(tmp_path / "store", stored([Sent(body=b"%d" % number) for number in range(200)]))
    command = ("export", "--store", store, "--format", kind, "--engine", "local")
    run(*command, "--out", tmp_path / "file")
    streamed = run(*command, "--out", "-")

    assert len(list((store / "commitlog").iterdir())) > 4
    assert streamed.out == (tmp_path / "file").read_text()
    assert len(streamed.out.splitlines()) == 200 + (kind == "csv")  # one header
    assert "export: done: 200 messages" in streamed.err


_KILLED = """
import os, signal
from pathlib import Path
from jobs.main import main
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_an_export_deletes_leftovers_of_a_killed_export_to_the_same_file_and_nothing_else(
    places: dict[str, Path], tmp_path: Path, run: Run
) -> None:
    """The hidden directory of parts and the unfinished merged file were never deleted."""
    words = ("export", "--store", str(places["--store"]), "--out", str(tmp_path / "file"))
    killed = subprocess.run([sys.executable, "-c", _KILLED, *words], cwd=ROOT, check=False)

    assert -signal.SIGKILL == killed.returncode
    assert list(tmp_path.iterdir())
    kept = [tmp_path / name for name in (".file.parts-12345678", ".file.parts-of-mine", ".other.parts-12345678")]
    for directory in kept:
        directory.mkdir()
    running = os.open(kept[0], os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)

    assert ExitCode.CLEAN == run(*words).code
    assert {*kept, tmp_path / "file"} == {*tmp_path.iterdir()}
    os.close(running)


# the memory of decompressed bodies, and bodies that stay compressed

LIMIT = 1 << 16
SMALL = b"small"
LARGE = bytes(LIMIT)
CUT = bytes(LIMIT + 1)


def _export(request: ExportRequest) -> ExportSummary:
    return export_messages(request, *plan_export(request, {}), SerialWorkers())


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_body_larger_than_the_limit_is_reported(place: str, tmp_path: Path) -> None:
    bodies = [*map(zlib.compress, (SMALL, LARGE, CUT)), b"no stream"]
    store = write_store(tmp_path / "store", stored([Sent(body=body, sys_flag=COMPRESSED) for body in bodies]))
    write_lake(store, tmp_path / "lake")
    at = QueryTarget(store=str(store)) if place == "store" else QueryTarget(lake=str(tmp_path / "lake"))
    request = ExportRequest(at, max_body_size=LIMIT, out=tmp_path / "out")
    summary = _export(request)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    _export(replace(request, out=tmp_path / "table", form=RowFormat.PARQUET))
    table = pq.read_table(tmp_path / "table").to_pylist()

    assert [SMALL, LARGE] == [b64decode(row["decoded_body_base64"]) for row in rows[:2]]
    assert [(None, None)] * 2 == [(row["decoded_body_base64"], row["decoded_body_text"]) for row in rows[2:]]
    assert [None, None] == [row["body_error"] for row in rows[:2]]
    assert f"larger than {LIMIT} bytes" in rows[2]["body_error"]
    assert "not a zlib stream" in rows[3]["body_error"]
    assert CUT == zlib.decompress(b64decode(rows[2]["body_base64"]))
    offsets = [int(row["physical_offset"]) for row in rows[2:]]

    assert 2 == summary.undecoded_bodies
    assert offsets == [place.offset for place in summary.undecoded]
    assert [SMALL, LARGE] == [row["body"] for row in table[:2]]
    assert CUT == zlib.decompress(table[2]["body"])
    assert [row["body_error"] for row in rows] == [row["body_error"] for row in table]
    assert [SMALL.decode(), LARGE.decode(), None, None] == [row["body_text"] for row in table]


def test_a_batch_of_decompression_bombs_is_cut_into_slices_within_the_budget() -> None:
    stored_ = [zlib.compress(bytes(LIMIT)) for _ in range(10)]
    batch = pa.RecordBatch.from_pydict({"body": stored_, "sys_flag": [COMPRESSED] * 10})
    found = [len(bodies) for _, bodies in iterate_decoded_slices(batch, LIMIT, budget=3 * LIMIT)]

    assert [3, 3, 3, 1] == found


@pytest.mark.parametrize("how", ["with a condition", "parquet", "by times"])
def test_an_export_of_large_bodies_holds_one_batch_and_one_slice(how: str, tmp_path: Path) -> None:
    size = 4 << 20
    broker = Broker(tmp_path / "store", segment_size=64 << 20)
    broker.append(make_record(bytes(size)) for _ in range(15))
    between = (0, ANY_TIME[1]) if how == "by times" else ANY_TIME
    condition = parse_condition("body IS NOT NULL") if how == "with a condition" else None
    place = QueryTarget(store=str(broker.root))
    request = ExportRequest(place, time_range=between, form=RowFormat.PARQUET, condition=condition)
    [item], _ = plan_export(request, {})
    next(item.read())  # loads cached data
    part, peak = measure_peak(lambda: write_part(tmp_path, request, (0, item)))

    assert part.messages == 15
    assert peak < 4 * size + (2 << 20)  # the bytes of a record, its row, the last record, a body


@pytest.mark.parametrize(
    ("bad", "times", "counts"),
    [(2, (0, 9), (3, 1)), (2, (3, 9), (1, 1)), (2, (9, 9), (0, 0)), (3, (2, 9), (1, 1)), (3, (0, 1), (2, 0))],
)
def test_an_export_by_times_reads_a_segment_once(
    bad: int, times: tuple[int, int], counts: tuple[int, int], tmp_path: Path
) -> None:
    records = stored([*(Sent(body=bytes(50)) for _ in range(4)), Sent("Bills")])
    store = write_store(tmp_path / "store", records)
    flip(store / "commitlog" / f"{0:020d}", records[bad].physical_offset + 90)  # its body
    since, until = (records[0].store_timestamp + time * 100 for time in times)
    request = ExportRequest(QueryTarget(store=str(store)), ("Orders",), time_range=(since, until), out=tmp_path / "out")
    with patch.object(LogItem, "read", autospec=True, side_effect=LogItem.read) as read:
        summary = _export(request)

    assert 1 == read.call_count
    assert counts == (summary.messages, len(summary.damaged))
    assert {(records[bad].physical_offset, records[bad].total_size)} >= {place[1:3] for place in summary.damaged}


PAGE = Path(__file__).parents[3] / "docs" / "guides" / "export.md"
START = datetime(2026, 11, 20, 22, tzinfo=UTC)


def _rows() -> Iterator[dict[str, Any]]:
    for number in range(40):
        time = START + timedelta(minutes=10 * number)
        body = f'{{"id": "{number % 9}", "n": {number}}}'.encode() if number % 4 else bytes([0xFF, number])
        yield {
            "topic": ("Orders", "Bills", "orders_2", None)[number % 4],
            "queue_id": number % 3,
            "physical_offset": number * 100,
            "store_time": time,
            "store_date": time.date() if number % 7 else date(2026, 11, 20),
            "tags": None if number % 5 == 0 else f"Tag{'ABC'[number % 3]}",
            "uniq_key": f"id{number}",
            "keys": [f"k{number}", "all"][: number % 3],
            "properties": [("region", f"r{number % 4}"), ("amount", str(number))] if number % 5 else [],
            "body": body,
            "body_text": body.decode() if number % 4 else None,
        }


ROWS = pa.RecordBatch.from_pylist([*_rows()], SCHEMA)

_SECTION = PAGE.read_text(encoding="utf-8")
# Conditions of the page and others, with the text for DuckDB if it differs.
CONDITIONS: dict[str, str | None] = {
    **dict.fromkeys(re.findall(r"^\| `([^`]+)`", _SECTION, re.MULTILINE)),
    "topic ~ '^[oO]rders(_\\d)?$'": "regexp_matches(topic, '^[oO]rders(_\\d)?$')",
    "regexp_like(body_text, 'n.: 1[0-9]')": "regexp_matches(body_text, 'n.: 1[0-9]')",
    "cardinality(keys) = 2": "len(keys) = 2",
    "store_time >= '2026-11-21T00:00:00Z'": None,
    "store_date = '2026-11-21'": None,
    "date_trunc('hour', store_time) = TIMESTAMP '2026-11-21 01:00:00'": (
        "date_trunc('hour', store_time) = TIMESTAMPTZ '2026-11-21 01:00:00Z'"
    ),
    "length(encode(body, 'hex')) = 4": "octet_length(body) = 2",
    "concat(tags, topic) = 'TagBBills'": "tags || topic = 'TagBBills'",
    "body = X'FF08'": "body = '\\xFF\\x08'::BLOB",
    'body_text LIKE \'%"id": "7"%\'': None,
    "NULL": None,
    "TRUE": None,
    "rand() < 2": "TRUE",
}


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("messages", pa.Table.from_batches([ROWS]))
        yield connection


def _matching(condition: Condition) -> list[int]:
    rows = ROWS.select(condition.columns)
    found: list[int] = ROWS.filter(condition.find_matches(rows)).column("physical_offset").to_pylist()
    return found


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_chooses_the_rows_that_duckdb_chooses(text: str, duck: duckdb.DuckDBPyConnection) -> None:
    query = f"SELECT physical_offset FROM messages WHERE {CONDITIONS[text] or text} ORDER BY 1"
    expected = [offset for (offset,) in duck.execute(query).fetchall()]

    assert expected == _matching(parse_condition(text))
    assert 0 < len(expected) < ROWS.num_rows or text in {"NULL", "TRUE", "rand() < 2"} or "now()" in text


@pytest.mark.parametrize(
    ("column", "value"), [("uniq_key", "'id{}'"), ("uniq_key", "'id{}', 'a/{}'"), ("queue_id", "-{}"), ("flag", "{}.5")]
)
def test_a_condition_accepts_long_lists(column: str, value: str) -> None:
    values = ", ".join(value.format(number, number) for number in range(0, 40_000, 2))
    condition = parse_condition(f"{column} IN ({values})")

    if column == "uniq_key":
        assert [*range(0, 4000, 200)] == _matching(condition)


def test_a_condition_with_another_value_at_each_evaluation_is_evaluated_once(tmp_path: Path) -> None:
    """Files of a lake are first searched for a match, so a random condition was evaluated twice."""
    store = write_store(tmp_path / "store", stored([Sent() for _ in range(50)]))
    place = QueryTarget(lake=str(write_lake(store, tmp_path / "lake")))
    request = ExportRequest(
        place, out=tmp_path / "out", form=RowFormat.PARQUET, condition=parse_condition("rand() < 2")
    )
    items, summary = plan_export(request, {})
    with patch.object(Condition, "find_matches", autospec=True, side_effect=Condition.find_matches) as evaluated:
        assert 50 == export_messages(request, items, summary, SerialWorkers()).messages

    assert len(items) == evaluated.call_count


def test_a_file_of_a_lake_without_a_match_is_read_only_in_the_columns_of_the_condition(tmp_path: Path) -> None:
    records = stored([Sent(keys=(f"k{number}",)) for number in range(200)])
    place = QueryTarget(lake=str(write_lake(write_store(tmp_path / "store", records), tmp_path / "lake")))
    condition = parse_condition(f"physical_offset = {records[0].physical_offset}")
    request = ExportRequest(place, out=tmp_path / "out", form=RowFormat.PARQUET, condition=condition)
    items, summary = plan_export(request, {})
    with patch.object(LakeItem, "read", autospec=True, side_effect=LakeItem.read) as read:
        assert 1 == export_messages(request, items, summary, SerialWorkers()).messages

    columns = [call.args[1] for call in read.call_args_list]

    assert len(items) > 1
    assert [("physical_offset",)] * len(items) == [column for column in columns if column != COLUMNS]
    assert columns.count(COLUMNS) == 1


def test_the_time_zone_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert [1200] == _matching(parse_condition("store_time = '2026-11-21 00:00:00'"))


@pytest.fixture
def bodiless(tmp_path: Path) -> list[str]:
    """Return the options of a lake without bodies; one of its messages has an empty one."""
    store = write_store(tmp_path / "store", stored([Sent(body=b"red"), Sent(body=b"red"), Sent(body=b"")]))
    selection = Selection(with_body=False)
    return ["--lake", str(write_lake(store, tmp_path / "lake", selection=selection))]


@pytest.mark.parametrize("form", ["ndjson", "json", "csv", "parquet"])
def test_an_export_of_a_lake_without_bodies_says_so(form: str, bodiless: list[str], run: Run, tmp_path: Path) -> None:
    """It wrote empty bodies with a right CRC, and said nothing."""
    out = tmp_path / "out"
    outcome = run("export", *bodiless, "--format", form, "--out", out)

    assert ExitCode.CLEAN == outcome.code
    assert "  this lake has no body of 2 messages (`ingest --no-body`)" in outcome.out
    if form == "parquet":
        assert [None] * 3 == pq.read_table(out)["body"].to_pylist()
        return
    rows: list[dict[str, Any]]
    expected: list[tuple[Any, ...]]
    if form == "csv":
        rows = [*csv.DictReader(StringIO(out.read_text(encoding="utf-8")))]
        expected = [("", "", "", "")] * 2 + [("true", "", "", "")]
    else:
        rows = json.loads(out.read_text()) if form == "json" else [*map(json.loads, out.read_text().splitlines())]
        expected = [(None, None, None, None)] * 2 + [(True, "", "", "")]
    names = ("has_right_body_crc", "decoded_body_text", "decoded_body_base64", "body_base64")

    assert expected == [tuple(row[name] for name in names) for row in rows]


def test_words_cannot_be_searched_in_a_lake_without_bodies(bodiless: list[str], run: Run) -> None:
    """The answer was that no message contains them."""
    outcome = run("query", "list", *bodiless, "--body-contains", "red")

    assert ExitCode.USAGE == outcome.code
    assert "" == outcome.out
    assert outcome.err.startswith("rmq-lake: this lake has no message bodies (`ingest --no-body`)")


def test_words_that_some_bodies_of_a_lake_may_have_are_an_incomplete_answer(run: Run, tmp_path: Path) -> None:
    messages = [Sent(body=b"red"), Sent(body=b"blue")]
    lake = tmp_path / "lake"
    write_lake(write_store(tmp_path / "a", stored(messages)), lake, selection=Selection(with_body=False))
    write_lake(write_store(tmp_path / "b", stored([*messages, Sent(body=b"reddish")])), lake)
    outcome = run("query", "list", "--lake", lake, "--body-contains", "red", "--json")

    assert ExitCode.DAMAGE == outcome.code
    assert [2] == [message["queue_offset"] for message in outcome.lines]
    assert "this lake has no bodies of some messages (`ingest --no-body`)" in outcome.err


def test_bodies_of_a_lake_without_bodies_are_not_printed_as_empty(
    bodiless: list[str], run: Run, tmp_path: Path
) -> None:
    first = ("by-offset", "-t", "Orders", "-i", "0", "-o", "0")
    text = run("query", *first, *bodiless, "--body", "--body-dir", tmp_path / "bodies")
    (row,) = run("query", *first, *bodiless, "--body", "--json").lines

    assert ExitCode.CLEAN == text.code
    assert "Message Body:        (not in the lake)\n" in text.out
    assert "rmq-lake: this lake has no message bodies (`ingest --no-body`)\n" in text.err
    assert [] == [*tmp_path.glob("bodies/*")]
    assert [None] * 4 == [row[name] for name in row if "body" in name and name not in {"body_crc", "body_length"}]


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_an_exported_message_cannot_control_the_terminal(
    form: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys and body reached the terminal unchanged."""
    escape = "\x1b]0;owned\x07\x9b2J\u202e"
    store = write_store(tmp_path / "store", stored([Sent(keys=(escape,), body=escape.encode())]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    cli.main(["export", "--store", str(store), "--out", "-", "--format", form])
    sys.stdout.flush()
    shown = capfdbinary.readouterr().out.decode()

    assert "owned" in shown
    assert shown.replace("\n", "").isprintable()
