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
from jobs.export import COLUMNS, SCHEMA, LakeItem
from jobs.export import condition as conditions
from jobs.export.condition import Condition, parse_condition
from jobs.export.export import ExportRequest, PartTask, export, plan_export
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

_SECTION = PAGE.read_text(encoding="utf-8").partition("## Conditions of export")[2].partition("\n## ")[0]
# Those of the page and more; in DuckDB's words, where these are others.
CONDITIONS: dict[str, str | None] = {
    **dict.fromkeys(re.findall(r"^\| `([^`]+)`", _SECTION, re.MULTILINE)),
    "tags <> 'TagA'": None,
    "topic NOT IN ('Orders', 'Bills')": None,
    "topic ILIKE 'ord%'": None,
    "topic ~ '^[oO]rders(_\\d)?$'": "regexp_matches(topic, '^[oO]rders(_\\d)?$')",
    "regexp_like(body_text, 'n.: 1[0-9]')": "regexp_matches(body_text, 'n.: 1[0-9]')",
    "queue_offset BETWEEN 3 AND 7": None,
    "total_size % 2 = 1": None,
    "properties['region'] IS NULL": None,
    "try_cast(substr(uniq_key, 3, 1) AS INT) > 2": None,
    "array_contains(keys, 'k4')": None,
    "cardinality(keys) = 2": "len(keys) = 2",
    "store_time >= '2026-11-21T00:00:00Z'": None,
    "store_time < TIMESTAMP '2026-11-20 23:30:00'": "store_time < TIMESTAMPTZ '2026-11-20 23:30:00Z'",
    "store_time = to_timestamp_millis(1795219200000)": "epoch_ms(store_time) = 1795219200000",
    "store_timestamp >= 1795219200000": None,
    "store_date = DATE '2026-11-21'": None,
    "store_date = '2026-11-21'": None,
    "date_part('hour', store_time) = 23": None,
    "hour(store_time) = 23": None,
    "date_trunc('hour', store_time) = TIMESTAMP '2026-11-21 01:00:00'": (
        "date_trunc('hour', store_time) = TIMESTAMPTZ '2026-11-21 01:00:00Z'"
    ),
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
        ("topic = '\udcff'", "surrogates not allowed"),
        ("TRUE -- '\n" + " IS TRUE" * 20_000 + " OR topic = ''", "comments"),
    ],
)
def test_a_condition_that_no_shell_passes_is_refused(text: str, reason: str) -> None:
    """The transcript of export has the others."""
    with pytest.raises(UnsupportedFormat, match=reason):
        parse_condition(text)


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
