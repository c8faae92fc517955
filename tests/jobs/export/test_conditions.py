"""A condition chooses the rows that DuckDB chooses, and can do nothing but that."""

import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest

from jobs.console.rows import RowFormat
from jobs.export import condition as conditions
from jobs.export.condition import Condition, parse_condition
from jobs.export.export import ExportRequest, PartTask, export, plan_export
from jobs.export.items import COLUMNS, SCHEMA, LakeItem
from jobs.launch.engine import SetupError
from jobs.query.place import Place
from jobs.store.workers import SerialWorkers
from rmq_formats.errors import UnsupportedFormat
from tests.support.query_stores import Sent, stored, write_lake, write_store

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"
START = datetime(2026, 11, 20, 22, tzinfo=UTC)


def _rows() -> Iterator[dict[str, Any]]:
    for number in range(40):
        time = START + timedelta(minutes=10 * number)
        body = f'{{"id": "{number % 9}", "n": {number}}}'.encode() if number % 4 else bytes([0xFF, number])
        yield {
            "broker": "b",
            "topic": ("Orders", "Bills", "orders_2", None)[number % 4],
            "queue_id": number % 3,
            "queue_offset": number // 2,
            "physical_offset": number * 100,
            "total_size": 90 + number,
            "reconsume_times": number % 5,
            "store_timestamp": int(time.timestamp() * 1000),
            "store_time": time,
            "store_date": time.date() if number % 7 else date(2026, 11, 20),
            "tags": None if number % 5 == 0 else f"Tag{'ABC'[number % 3]}",
            "uniq_key": f"id{number}",
            "keys": [f"k{number}", "all"][: number % 3],
            "properties": [("region", f"r{number % 4}"), ("amount", str(number))] if number % 5 else [],
            "is_compressed": number % 2 == 0,
            "body": body,
            "body_text": body.decode() if number % 4 else None,
            "body_error": None,
        }


ROWS = pa.RecordBatch.from_pylist([*_rows()], SCHEMA)

# In DuckDB's words, where these are others.
CONDITIONS: dict[str, str | None] = {
    "tags = 'TagA'": None,
    "tags <> 'TagA'": None,
    "tags IS NULL AND NOT (topic = 'Orders')": None,
    "topic IN ('Orders', 'Bills') OR queue_id = 2": None,
    "topic NOT IN ('Orders', 'Bills')": None,
    "topic LIKE 'Ord%'": None,
    "topic ILIKE 'ord%'": None,
    "topic ~ '^[oO]rders(_\\d)?$'": "regexp_matches(topic, '^[oO]rders(_\\d)?$')",
    "regexp_like(body_text, 'n.: 1[0-9]')": "regexp_matches(body_text, 'n.: 1[0-9]')",
    "queue_offset BETWEEN 3 AND 7": None,
    "physical_offset >= 1000 AND physical_offset < 2000": None,
    "total_size % 2 = 1": None,
    "properties['region'] = 'r1'": None,
    "properties['region'] IS NULL": None,
    "CAST(properties['amount'] AS BIGINT) > 20": None,
    "try_cast(substr(uniq_key, 3, 1) AS INT) > 2": None,
    "array_has(keys, 'all')": None,
    "array_contains(keys, 'k4')": None,
    "keys[1] = 'k4'": None,
    "cardinality(keys) = 2": "len(keys) = 2",
    "store_time >= '2026-11-21T00:00:00Z'": None,
    "store_time BETWEEN '2026-11-20 23:00:00' AND '2026-11-21 01:00:00'": None,
    "store_time < TIMESTAMP '2026-11-20 23:30:00'": "store_time < TIMESTAMPTZ '2026-11-20 23:30:00Z'",
    "store_time = to_timestamp_millis(1795219200000)": "epoch_ms(store_time) = 1795219200000",
    "store_time > now() - INTERVAL '1 day'": None,
    "store_timestamp >= 1795219200000": None,
    "store_date = DATE '2026-11-21'": None,
    "store_date = '2026-11-21'": None,
    "date_part('hour', store_time) = 23": None,
    "hour(store_time) = 23": None,
    "date_trunc('hour', store_time) = TIMESTAMP '2026-11-21 01:00:00'": (
        "date_trunc('hour', store_time) = TIMESTAMPTZ '2026-11-21 01:00:00Z'"
    ),
    "lower(topic) = 'orders'": None,
    "upper(topic) = 'BILLS'": None,
    "length(topic) = 5": None,
    "length(body) = 2": "octet_length(body) = 2",
    "substr(topic, 1, 3) = 'Ord'": None,
    "starts_with(uniq_key, 'id1')": None,
    "split_part(body_text, ':', 3) LIKE '%3%'": None,
    "concat(tags, topic) = 'TagBBills'": "tags || topic = 'TagBBills'",
    "coalesce(tags, topic) = 'Orders'": None,
    "CASE WHEN queue_id = 1 THEN tags = 'TagB' ELSE is_compressed END": None,
    "body = X'FF08'": "body = '\\xFF\\x08'::BLOB",
    "encode(body, 'hex') LIKE 'ff1%'": "lower(hex(body)) LIKE 'ff1%'",
    'body_text LIKE \'%"id": "7"%\'': None,
    "json_tuple(body_text, 'id')['c0'] = '7'": "body_text::JSON->>'id' = '7'",
    "json_tuple(body_text, 'n')['c0'] = '7'": "body_text::JSON->>'n' = '7'",
    "is_compressed AND reconsume_times > 1": None,
    "tags IS DISTINCT FROM 'TagA'": None,
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


def test_every_condition_of_the_page_is_compared() -> None:
    section = PAGE.read_text().partition("## Conditions of export")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)

    assert shown
    assert set() == {*shown} - {*CONDITIONS}


def test_only_columns_that_the_text_names_are_read() -> None:
    assert ("topic", "tags") == parse_condition("TAGS = 'x' OR topic = 'y'").columns
    assert ("physical_offset",) == parse_condition("rand() < 0.5").columns
    assert not parse_condition("tags = 'a'").uses_bodies
    assert parse_condition("length(body) > 1").uses_bodies
    assert parse_condition("body_text = 'a'").uses_bodies
    for name in COLUMNS:
        assert parse_condition(f"{name} IS NOT NULL").columns == (name,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("((", "Expected: an expression"),
        ("topic ==== 1", "Expected: an expression"),
        ("colour = 'red'", "No field named colour"),
        ('tags = "TagA"', 'No field named "TagA"'),
        ("store_tme > 1", "Did you mean 'store_time'"),
        ("body_error IS NULL", "No field named body_error"),
        ("nothing(topic)", "Invalid function 'nothing'"),
        ("topic RLIKE 'a'", "use the operator ~"),
        ("topic", "non-boolean"),
        ("1", "non-boolean"),
        ("queue_id = 'x'", "Cannot cast string 'x'"),
        ("1 / 0 = 1", "Divide by zero"),
        ("topic ~ '('", "unclosed group"),
        ("topic = $1", "dollar signs"),
        ("topic = ?", "without subqueries, aggregates, window functions, UNNEST, parameters"),
        ("count(*) > 1", "must be a boolean expression"),
        ("row_number() OVER () > 1", "must be a boolean expression"),
        ("unnest(keys) = 'a'", "must be a boolean expression"),
        ("EXISTS (SELECT 1)", "must be a boolean expression"),
        ("queue_id IN (SELECT 1)", "must be a boolean expression"),
        ("lower((SELECT 'a')) = 'a'", "must be a boolean expression"),
        ("topic = 'a' OR (SELECT count(*) FROM '{file}') > 0", "not found"),
        ("EXISTS (SELECT * FROM read_csv('{file}'))", "not found"),
        ("TRUE; COPY (SELECT 1) TO '{file}'", "Expected: end of expression"),
        ("TRUE; CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{file}'", "Expected: end of expression"),
        ("COPY (SELECT 1) TO '{file}'", "Unsupported command in expression"),
        ("TRUE UNION SELECT TRUE", "Expected: end of expression"),
        ("(" * 1000 + "TRUE" + ")" * 1000, "RecursionLimitExceeded"),
        (" OR ".join(["queue_id = 1"] * 20_000), "use IN"),
        ("queue_id" + "::INT" * 20_000 + " = 1", "use IN"),
        ("topic = '$' OR TRUE" + " IS TRUE" * 20_000 + " OR topic = '$'", "use IN"),
        ("/*'*/ TRUE" + " IS TRUE" * 20_000 + "/*'*/", "comments"),
        ("/*" + "," * 40_000 + "*/ TRUE" + " IS TRUE" * 20_000, "comments"),
        ("TRUE -- '\n" + " IS TRUE" * 20_000 + " OR topic = ''", "comments"),
        ("topic = E'\\'' OR TRUE" + " IS TRUE" * 20_000 + " OR topic = E'\\''", "prefixed strings"),
        ("topic = '\udcff'", "surrogates not allowed"),
    ],
)
def test_only_a_boolean_expression_on_columns_is_accepted(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    with pytest.raises(UnsupportedFormat, match=re.escape(reason)) as refused:
        parse_condition(text.replace("{file}", str(file)))

    assert 1 == len(str(refused.value).splitlines())
    assert len(str(refused.value)) <= 300
    assert not file.exists()


@pytest.mark.parametrize(
    ("column", "value"), [("uniq_key", "'id{}'"), ("uniq_key", "'id{}', 'a/{}'"), ("queue_id", "-{}"), ("flag", "{}.5")]
)
def test_a_condition_accepts_long_lists(column: str, value: str) -> None:
    values = ", ".join(value.format(number, number) for number in range(0, 40_000, 2))
    condition = parse_condition(f"{column} IN ({values})")

    if column == "uniq_key":
        assert [*range(0, 4000, 200)] == _matching(condition)


def test_a_condition_with_another_value_at_each_evaluation_is_evaluated_once(tmp_path: Path) -> None:
    """A file of a lake was first searched for a match, so that rows were drawn twice."""
    store = write_store(tmp_path / "store", stored([Sent() for _ in range(50)]))
    place = Place(lake=str(write_lake(store, tmp_path / "lake")))
    request = ExportRequest(
        place, out=tmp_path / "out", form=RowFormat.PARQUET, condition=parse_condition("rand() < 2")
    )
    planned = plan_export(request, {})
    with patch.object(Condition, "find_matches", autospec=True, side_effect=Condition.find_matches) as evaluated:
        assert 50 == export(request, planned, SerialWorkers()).messages

    assert len(planned.items) == evaluated.call_count


@pytest.mark.parametrize("text", ["CAST(topic AS INT) = 1", "1 / (queue_id - 1) = 1", "CAST(body AS STRING) = 'a'"])
def test_a_value_of_the_wrong_type_is_reported_in_one_line(text: str) -> None:
    condition = parse_condition(text)
    with pytest.raises(UnsupportedFormat, match=r"^--where: "):
        _matching(condition)


def test_a_file_of_a_lake_without_a_match_is_read_only_in_the_columns_of_the_condition(tmp_path: Path) -> None:
    records = stored([Sent(keys=(f"k{number}",)) for number in range(200)])
    place = Place(lake=str(write_lake(write_store(tmp_path / "store", records), tmp_path / "lake")))
    condition = parse_condition(f"physical_offset = {records[0].physical_offset}")
    request = ExportRequest(place, out=tmp_path / "out", form=RowFormat.PARQUET, condition=condition)
    planned = plan_export(request, {})
    with patch.object(LakeItem, "read", autospec=True, side_effect=LakeItem.read) as read:
        assert 1 == export(request, planned, SerialWorkers()).messages

    columns = [call.args[1] for call in read.call_args_list]
    assert len(planned.items) > 1
    assert [("physical_offset",)] * len(planned.items) == [one for one in columns if one != COLUMNS]
    assert columns.count(COLUMNS) == 1


def test_undecodable_bodies_are_reported_for_every_row_that_the_condition_reads(tmp_path: Path) -> None:
    sent = [Sent(keys=("a",), body=zlib.compress(b"text"), sys_flag=1), Sent(keys=("b",), body=b"no", sys_flag=1)]
    store = write_store(tmp_path / "store", stored(sent))
    asked = ExportRequest(Place(store=str(store)))
    [item] = plan_export(asked, {}).items
    for text, undecoded in {"body_text = 'text'": 1, "array_has(keys, 'a')": 0, "array_has(keys, 'b')": 1}.items():
        part = PartTask(tmp_path, replace(asked, condition=parse_condition(text)))((0, item))
        assert (1, undecoded) == (part.messages, part.undecoded_bodies)


def test_the_time_zone_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert [1200] == _matching(parse_condition("store_time = '2026-11-21 00:00:00'"))


@pytest.mark.parametrize("names", [None, (), ("SessionConfig", "SessionContext")])
def test_a_missing_or_old_datafusion_is_named_with_the_remedy(
    names: Sequence[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = None if names is None else ModuleType("datafusion")
    for name in names or ():
        monkeypatch.setattr(module, name, lambda *_: object(), raising=False)
    monkeypatch.setitem(sys.modules, "datafusion", module)
    conditions._context.cache_clear()  # noqa: SLF001 - the context of earlier tests
    with pytest.raises(SetupError, match=r"^--where requires datafusion 55 or newer: pip install .*\[where\]'"):
        parse_condition("topic = 'T1'")
