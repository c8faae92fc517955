"""`query sql`: what another engine answers on the same tables, in every form, with limits on rows and time."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.lakes import DELTA_EXTENSION, ingest_store

QUERIES = (
    "SELECT topic, count(*) AS messages FROM messages GROUP BY topic ORDER BY topic",
    (
        "SELECT queue_id, min(queue_offset) AS low, max(queue_offset) AS high FROM messages WHERE topic = 'T1' "
        "GROUP BY queue_id ORDER BY queue_id"
    ),
    "SELECT uniq_key, tags, body_length FROM messages WHERE tags = 'TagA' ORDER BY physical_offset LIMIT 7",
    "SELECT kind, count(*) AS entries FROM index_entries GROUP BY kind ORDER BY kind",
    (
        "SELECT m.topic, u.status, count(*) AS units FROM consume_queue u JOIN messages m "
        "ON m.physical_offset = u.physical_offset GROUP BY m.topic, u.status ORDER BY m.topic, u.status"
    ),
    "SELECT sum(total_size) AS bytes, avg(body_length) AS length FROM messages",
    (
        "SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY physical_offset) AS place, physical_offset "
        "FROM messages ORDER BY physical_offset DESC LIMIT 9"
    ),
    (
        "SELECT consumer_group, topic, max(next_offset) AS next_offset FROM consumer_offsets WHERE kind = 'consumer' "
        "GROUP BY consumer_group, topic ORDER BY consumer_group, topic"
    ),
    "WITH long AS (SELECT * FROM messages WHERE body_length > 10) SELECT count(*) AS messages FROM long",
    "SELECT state, from_offset, to_offset, messages FROM runs ORDER BY run, state",
)


@pytest.fixture(scope="module")
def lake(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql") / "lake"
    ingest_store(golden("b551-base"), folder, "b0")
    return folder


def _of_duckdb(lake: Path, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD '{DELTA_EXTENSION}'")
        for table in sorted(path.parent.name for path in lake.glob("*/_delta_log")):
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM delta_scan('{lake / table}')")
        found = connection.execute(sql)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_statement_gives_what_another_engine_gives(run: Run, lake: Path, sql: str) -> None:
    expected = _of_duckdb(lake, sql)
    answer = run("query", "sql", "--lake", lake, sql, "--output", "ndjson")

    assert answer.code is ExitCode.CLEAN
    assert expected == answer.lines != []


def test_every_form_has_the_same_rows(run: Run, lake: Path, tmp_path: Path) -> None:
    sql = (
        "SELECT uniq_key, store_time, keys, properties, body FROM messages WHERE topic = 'T1' ORDER BY physical_offset"
    )
    lines = run("query", "sql", "--lake", lake, sql, "--output", "ndjson").lines
    array = run("query", "sql", "--lake", lake, sql, "--output", "json").document
    cells = list(csv.DictReader(io.StringIO(run("query", "sql", "--lake", lake, sql, "--output", "csv").out)))
    parquet = run("query", "sql", "--lake", lake, sql, "--output", "parquet", "--out", tmp_path / "rows.parquet")
    stored = pq.read_table(tmp_path / "rows.parquet").to_pylist()

    assert parquet.code is ExitCode.CLEAN
    assert lines == array
    assert [line["uniq_key"] for line in lines] == [cell["uniq_key"] for cell in cells]
    assert [line["properties"] for line in lines] == [json.loads(cell["properties"]) for cell in cells]
    assert [line["body"] for line in lines] == [row["body"].hex() for row in stored]
    assert [line["store_time"][:19] for line in lines] == [row["store_time"].isoformat()[:19] for row in stored]


def test_without_a_statement_tables_and_views_are_listed(run: Run, lake: Path) -> None:
    named = {row["name"]: row for row in run("query", "sql", "--lake", lake, "--output", "ndjson").lines}

    assert {path.parent.name for path in lake.glob("*/_delta_log")} <= {*named}
    assert {"dead_letters", "transactions", "timers_pending"} <= {*named}
    assert all(row["row"] for row in named.values())
    for name in named:
        assert run("query", "sql", "--lake", lake, f"SELECT count(*) FROM {name}").code is ExitCode.CLEAN


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{out}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
        "SELECT 1; COPY (SELECT 1) TO '{out}'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{out}'",
        "INSERT INTO messages SELECT * FROM messages",
        "SELECT * FROM nowhere",
        "SELECT FROM",
        "",
    ],
)
def test_a_statement_that_does_more_than_read_or_is_not_valid_is_refused(
    run: Run, lake: Path, tmp_path: Path, sql: str
) -> None:
    out = tmp_path / "out.csv"
    answer = run("query", "sql", "--lake", lake, sql.format(out=out))

    assert (answer.code, answer.out) == (ExitCode.USAGE, "")
    assert not out.exists()


def test_a_limit_on_rows_is_said(run: Run, lake: Path) -> None:
    cut = run(
        "query", "sql", "--lake", lake, "SELECT physical_offset FROM messages", "--limit", "3", "--output", "ndjson"
    )
    whole = run("query", "sql", "--lake", lake, "SELECT physical_offset FROM messages LIMIT 3", "--output", "ndjson")

    assert cut.out == whole.out
    assert "only the first 3 rows; --limit 0 gives all" in cut.err
    assert not whole.err


def test_a_limit_on_time_ends_a_statement_that_the_engine_does_not_end(lake: Path) -> None:
    crossed = "SELECT count(*) FROM messages " + " ".join(f"CROSS JOIN messages m{n}" for n in range(12))
    line = ["query", "sql", "--lake", str(lake), crossed, "--seconds", "0.5"]
    ended = subprocess.run([sys.executable, "-m", "jobs.main", *line], capture_output=True, check=False, timeout=60)

    assert ended.returncode == ExitCode.FAILED
    assert b"stopped after 0.5 s" in ended.stderr
