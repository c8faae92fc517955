"""The `query` command: its options, output formats, files and exit codes."""

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

from jobs.command_line import cli
from jobs.console.result import ExitCode
from rmq_formats.trace import TRACE_TOPIC
from tests.golden import StoreOf
from tests.support.commands import ROOT, Run, packages_loaded_by
from tests.support.lakes import delta_extension, rows_of
from tests.support.query_stores import Sent, stored, write_lake, write_store

FIRST = ("by-offset", "-t", "Orders", "-i", "0", "-o", "0")


_HEAVY = {"pyspark", "numba", "pandas", "py4j"}
_NOT_FOR_STORES = {"numpy", "pyarrow", "deltalake", "_hashlib", "subprocess", "tempfile", "traceback", "asyncio"}


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        ("inspect {store} --quiet", _HEAVY | _NOT_FOR_STORES),
        ("query by-key -t T1 -k k0 --store {store} --quiet", _HEAVY | _NOT_FOR_STORES),
        ("query by-key -t T1 -k k0 --lake {lake} --quiet", _HEAVY),
    ],
)
def test_a_small_command_imports_only_what_it_uses(
    line: str, unused: set[str], golden: StoreOf, newer_lake: Path
) -> None:
    """Imports take half of the time of such a command."""
    loaded = packages_loaded_by(*line.format(store=golden("b551-base"), lake=newer_lake).split())

    assert not loaded & unused


ESC = "\x1b]0;owned\x07"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    line = f"{ESC}\nrmq-lake: all is well"
    hostile = Sent(
        topic="Orders", keys=(f"k{ESC}",), unique_key=f"id{ESC}", tags=f"paid{line}",
        body=f"{ESC}\x9b31mbody\u202e".encode(),
    )  # fmt: skip
    traced = f"Pub\x011700000000000\x01region\x01g{line}\x01T\x01ID\x01null\x01null\x01host\x014\x017\x010\x01true\x02"
    trace = Sent(TRACE_TOPIC, ("ID",), body=traced.encode())
    return str(write_store(tmp_path / "hostile", stored([hostile, trace]), with_index=False))


ASKED = (
    (*FIRST, "--body"),
    ("message", "-t", "Orders", "-i", f"id{ESC}", "--body"),
    ("by-key", "-t", "Orders", "-k", f"k{ESC}"),
    ("by-key", "-t", "Orders", "-k", f"k{ESC}", "--json", "--body"),
    (*FIRST, "--body", "--json"),
    ("mqadmin", "printMsg", "-t", "Orders"),
    ("mqadmin", "queryMsgTraceById", "-i", "ID"),
)


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_a_message_cannot_control_the_terminal(
    hostile: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    command, *rest = arguments
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.main(["query", command, "--store", hostile, *rest])
    sys.stdout.flush()
    captured = capfdbinary.readouterr()
    shown = captured.out.decode()

    assert "owned" in shown
    assert all(character.isprintable() for character in shown.replace("\n", ""))
    assert "\nrmq-lake: all is well" not in shown
    assert all(character.isprintable() for character in captured.err.decode().replace("\n", ""))
    if "--json" in arguments:
        assert ESC in json.loads(shown)["keys"][0]


def test_piped_output_equals_that_of_mqadmin_byte_for_byte(run: Run, hostile: str) -> None:
    assert ESC in run("query", *FIRST, "--body", "--store", hostile).out


# SQL: the same rows as those of another engine, in every output format

QUERIES = (
    "SELECT topic, count(*) AS messages FROM messages GROUP BY topic ORDER BY topic",
    "SELECT uniq_key, tags, body_length FROM messages WHERE tags = 'TagA' ORDER BY physical_offset LIMIT 7",
    (
        "SELECT m.topic, u.status, count(*) AS units FROM consume_queue u JOIN messages m "
        "ON m.physical_offset = u.physical_offset GROUP BY m.topic, u.status ORDER BY m.topic, u.status"
    ),
    (
        "SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY physical_offset) AS place, physical_offset "
        "FROM messages ORDER BY physical_offset DESC LIMIT 9"
    ),
    (
        "SELECT consumer_group, topic, max(next_offset) AS next_offset FROM consumer_offsets WHERE kind = 'consumer' "
        "GROUP BY consumer_group, topic ORDER BY consumer_group, topic"
    ),
    "SELECT state, from_offset, to_offset, messages FROM runs ORDER BY run, state",
)


def _query_duckdb(lake: Path, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD '{delta_extension()}'")
        for table in sorted(path.parent.name for path in lake.glob("*/_delta_log")):
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM delta_scan('{lake / table}')")
        found = connection.execute(sql)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_statement_returns_the_same_rows_as_another_engine(run: Run, newer_lake: Path, sql: str) -> None:
    expected = _query_duckdb(newer_lake, sql)
    answer = run("query", "sql", "--lake", newer_lake, sql, "--output", "ndjson")

    assert answer.code is ExitCode.CLEAN
    assert expected == answer.lines != []


def test_views_state_the_space_of_topics_and_the_lag_of_groups(run: Run, tmp_path: Path) -> None:
    """In both engines: DuckDB runs the same files."""
    sent = [Sent("T1") for _ in range(10)] + [Sent("%RETRY%pay"), Sent("%DLQ%pay"), Sent("T2", queue_id=1)]
    records = stored(sent)
    store = write_store(tmp_path / "store", records)
    (store / "config").mkdir()
    positions = {"T1@pay": {"0": 4}, "T2@pay": {"1": 1}, "Other@pay": {"0": 3}}
    (store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": positions}), encoding="utf-8")
    write_lake(store, tmp_path / "lake")
    size = {record.topic: record.total_size for record in records}
    log_size = sum(record.total_size for record in records)
    waited = (records[-1].store_timestamp - records[4].store_timestamp) / 1000

    usage = "topic, content, consumer_group, messages, record_bytes, round(percent, 3) AS percent"
    lag = "consumer_group, topic, queue_id, next_offset, end_offset, lag, lag_seconds"
    expected = {
        "disk_usage": [
            ("%DLQ%pay", "dead letters", "pay", 1, size["%DLQ%pay"], round(size["%DLQ%pay"] * 100 / log_size, 3)),
            ("%RETRY%pay", "retries", "pay", 1, size["%RETRY%pay"], round(size["%RETRY%pay"] * 100 / log_size, 3)),
            ("T1", "messages", None, 10, size["T1"] * 10, round(size["T1"] * 1000 / log_size, 3)),
            ("T2", "messages", None, 1, size["T2"], round(size["T2"] * 100 / log_size, 3)),
        ],
        "consumer_lag": [
            ("pay", "Other", 0, 3, None, None, None),
            ("pay", "T1", 0, 4, 10, 6, waited),
            ("pay", "T2", 1, 1, 1, 0, 0.0),
        ],
    }
    for view, columns in (("disk_usage", usage), ("consumer_lag", lag)):
        text = (ROOT / f"jobs/lake/views/{view}.sql").read_text(encoding="utf-8")
        asked = f"SELECT {columns} FROM {{}} ORDER BY topic"
        answer = run("query", "sql", "--lake", tmp_path / "lake", asked.format(view), "--output", "ndjson").lines
        by_other_engine = _query_duckdb(tmp_path / "lake", asked.format(f"({text})"))

        assert [tuple(row.values()) for row in answer] == expected[view]
        assert [tuple(row.values()) for row in by_other_engine] == expected[view]


def test_every_output_format_has_the_same_rows(run: Run, newer_lake: Path, tmp_path: Path) -> None:
    sql = (
        "SELECT uniq_key, store_time, keys, properties, body FROM messages WHERE topic = 'T1' ORDER BY physical_offset"
    )
    lines = run("query", "sql", "--lake", newer_lake, sql, "--output", "ndjson").lines
    array = run("query", "sql", "--lake", newer_lake, sql, "--output", "json").document
    cells = list(csv.DictReader(io.StringIO(run("query", "sql", "--lake", newer_lake, sql, "--output", "csv").out)))
    parquet = run("query", "sql", "--lake", newer_lake, sql, "--output", "parquet", "--out", tmp_path / "rows.parquet")
    stored = pq.read_table(tmp_path / "rows.parquet").to_pylist()

    assert parquet.code is ExitCode.CLEAN
    assert lines == array
    assert [line["uniq_key"] for line in lines] == [cell["uniq_key"] for cell in cells]
    assert [line["properties"] for line in lines] == [json.loads(cell["properties"]) for cell in cells]
    assert [line["body"] for line in lines] == [row["body"].hex() for row in stored]
    assert [line["store_time"][:19] for line in lines] == [row["store_time"].isoformat()[:19] for row in stored]


def test_without_a_statement_tables_and_views_are_listed(run: Run, newer_lake: Path) -> None:
    named = {row["name"]: row for row in run("query", "sql", "--lake", newer_lake, "--output", "ndjson").lines}

    assert {path.parent.name for path in newer_lake.glob("*/_delta_log")} <= {*named}
    assert {"dead_letters", "transactions", "timers_pending"} <= {*named}
    assert all(row["row"] for row in named.values())
    for name in named:
        assert run("query", "sql", "--lake", newer_lake, f"SELECT count(*) FROM {name}").code is ExitCode.CLEAN


def test_a_limit_on_time_ends_a_statement_that_the_engine_does_not_end(newer_lake: Path) -> None:
    crossed = "SELECT count(*) FROM messages " + " ".join(f"CROSS JOIN messages m{n}" for n in range(12))
    line = ["query", "sql", "--lake", str(newer_lake), crossed, "--timeout", "0.5"]
    ended = subprocess.run([sys.executable, "-m", "jobs.main", *line], capture_output=True, check=False, timeout=60)

    assert ended.returncode == ExitCode.FAILED
    assert b"stopped after 0.5 s" in ended.stderr


def test_a_statement_that_needs_more_memory_than_the_limit_is_an_error(
    run: Run, newer_lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.query.lake_tables.count_memory", lambda: 1 << 20)
    pairs = "select a.body, count(*) from messages a, messages b group by a.body, b.body"
    code, _, err = run("query", "sql", pairs, "--lake", newer_lake)
    error = "out of memory: the statement needs more than 512.0 KiB, half of the memory that this process may use"

    assert ExitCode.FAILED == code
    assert f"rmq-lake: {error}. Read fewer rows or columns\n" == err


@pytest.mark.parametrize("place", ["store", "lake"])
def test_a_message_with_a_key_twice_is_printed_once_and_counts_once_towards_the_limit(
    place: str, tmp_path: Path, run: Run
) -> None:
    """52 lines were printed for 26 messages, and with `-m 2` one message twice."""
    store = write_store(tmp_path / "store", stored([Sent(keys=("dup", "dup")) for _ in range(26)]))
    write_lake(store, tmp_path / "lake")
    options = ("--hash-slots", "7", "--index-num", "9", "--release", "5.5.1", "--json")
    asked = (f"--{place}", tmp_path / place, *options)
    every = run("query", "by-key", "-t", "Orders", "-k", "dup", "-m", "0", *asked).lines
    newest = run("query", "by-key", "-t", "Orders", "-k", "dup", "-m", "2", *asked).lines
    as_mqadmin = run("query", "mqadmin", *asked, "queryMsgByKey", "-t", "Orders", "-k", "dup").lines

    assert list(range(26)) == [row["queue_offset"] for row in every]
    assert [24, 25] == [row["queue_offset"] for row in newest]
    assert [number for number in range(26) for _ in range(2)] == [row["queue_offset"] for row in as_mqadmin]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("make_array(to_timestamp_nanos(1))", ["1970-01-01T00:00:00.000000001Z"]),
        ("struct(to_timestamp_micros(253402300800000000))", {"c0": "10000-01-01T00:00:00.000000Z"}),
        ("to_timestamp_micros(253402300800000000)", "10000-01-01T00:00:00.000000Z"),
        ("map(make_array('k', 'n'), make_array(to_timestamp_nanos(1), NULL))",
         {"k": "1970-01-01T00:00:00.000000001Z", "n": None}),
        ("make_array(arrow_cast(3000000, 'Date32'))", ["10183-09-21"]),
        ("make_array(arrow_cast(arrow_cast(1, 'Int64'), 'Time64(Nanosecond)'))", ["00:00:00.000000001"]),
        ("make_array(struct(to_timestamp_nanos(1) AS t, X'ff' AS b))",
         [{"t": "1970-01-01T00:00:00.000000001Z", "b": "ff"}]),
        ("make_array(store_date)", ["2026-11-20"]),
    ],
)  # fmt: skip
def test_times_that_python_does_not_have_are_printed(
    expression: str, expected: object, newer_lake: Path, run: Run
) -> None:
    """Nested ones ended in a traceback, below an array that looked empty and complete."""
    statement = f"SELECT DISTINCT {expression} AS value FROM messages"
    outcome = run("query", "sql", "--lake", newer_lake, statement, "--output", "json")

    assert ExitCode.CLEAN == outcome.code
    assert "" == outcome.err
    assert [{"value": expected}] == outcome.document


@pytest.mark.parametrize(
    ("number", "instead"),
    [
        ("20261121", "Write 2026-11-21\n"),
        ("202611211530", "Write '2026-11-21 15:30'\n"),
        ("20261121153001", "Write '2026-11-21 15:30:01'\n"),
        ("1795158000", "For 2026-11-20 07:00:00.000 UTC, write 1795158000000\n"),
        ("1795158000000000", "For 2026-11-20 07:00:00.000 UTC, write 1795158000000\n"),
        ("1795158000000000000", "For 2026-11-20 07:00:00.000 UTC, write 1795158000000\n"),
        ("1000", "Write the time in another way"),
    ],
)
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_numbers_that_are_hardly_milliseconds_are_refused(
    option: str, number: str, instead: str, golden: StoreOf, run: Run
) -> None:
    """They were times in 1970, and the answer had all messages or none."""
    outcome = run("query", "list", "--store", golden("b551-base"), option, number)

    assert ExitCode.USAGE == outcome.code
    assert "" == outcome.out
    assert f"{number} milliseconds since 1970 would be" in outcome.err
    assert instead in outcome.err


@pytest.mark.parametrize("number", ["0", "-1", "946684800000", "9999999999999", "9223372036854775807"])
def test_plausible_numbers_are_milliseconds(number: str, golden: StoreOf, run: Run) -> None:
    assert ExitCode.USAGE != run("query", "list", "--store", golden("b551-base"), "--since", number).code


@pytest.mark.parametrize(
    "statement",
    [
        "/* c */ SELECT 1 AS n",
        "/* a\n -- b */ -- c\n (SELECT 1 AS n)",
        "SELECT 1 AS n -- into",
        "EXPLAIN /* c */ SELECT 1",
        "VALUES (1)",
    ],
)
def test_a_statement_that_reads_may_begin_with_comments(statement: str, newer_lake: Path, run: Run) -> None:
    """It was refused because it was not read-only."""
    assert ExitCode.CLEAN == run("query", "sql", "--lake", newer_lake, statement).code


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SHOW TABLES", "SHOW is not supported: without a statement"),
        ("/* c */ show columns from messages", "SHOW is not supported: without a statement"),
        ("TABLE messages", "TABLE is not supported: write SELECT"),
        (
            "SELECT topic INTO x FROM messages",
            "the statement returns no columns; only read-only statements are allowed",
        ),
        ("/* c */ INSERT INTO messages SELECT 1", "only read-only statements are allowed"),
        ("/* SELECT */ DROP TABLE messages", "only read-only statements are allowed"),
        ("/* SELECT 1", "only read-only statements are allowed"),
        ("EXPLAIN INSERT INTO messages SELECT 1", "only read-only statements are allowed"),
    ],
)
def test_a_refused_statement_has_its_own_reason(statement: str, reason: str, newer_lake: Path, run: Run) -> None:
    """SELECT … INTO printed nothing, and ended with 0."""
    outcome = run("query", "sql", "--lake", newer_lake, statement, "--output", "json")

    assert ExitCode.USAGE == outcome.code
    assert "" == outcome.out
    assert outcome.err.startswith(f"rmq-lake: {reason}")


def test_columns_with_chinese_text_are_aligned(newer_lake: Path, run: Run) -> None:
    """Their widths were counted in characters, of which a terminal shows these in two columns."""
    rows = "VALUES ('订单', 'a', 1), ('Orders', 'b', 22), ('e\u0301', 'c', 333)"
    outcome = run("query", "sql", "--lake", newer_lake, f"SELECT * FROM ({rows}) AS t(topic, name, number)")

    expected = ["topic   name  number", "订单    a          1", "Orders  b         22", "e\u0301       c        333"]

    assert expected == outcome.out.splitlines()


def test_a_list_of_many_values_does_not_crash_the_process(newer_lake: Path) -> None:
    """The engine recurses for each value: a list of 22,000 offsets ended with a segmentation fault."""
    condition = f"physical_offset IN ({','.join(map(str, range(22_000)))})"
    statement = f"SELECT count(*) AS messages FROM messages WHERE {condition}"
    command = [sys.executable, "-m", "jobs.main", "query", "sql", "--lake", str(newer_lake), "--output", "ndjson"]
    done = subprocess.run([*command, statement], capture_output=True, text=True, cwd=ROOT, check=False)
    expected = sum(row["physical_offset"] < 22_000 for row in rows_of(newer_lake))

    assert ExitCode.CLEAN == done.returncode
    assert {"messages": expected} == json.loads(done.stdout)


@pytest.mark.parametrize("sql", ["SELECT 1 FROM messages LIMIT 1", "SELECT 'x' FROM (SELECT * FROM messages LIMIT 2)"])
def test_a_limit_that_the_engine_ignores_is_refused(sql: str, newer_lake: Path, run: Run) -> None:
    """Without columns, the engine returned all rows."""
    refused = run("query", "sql", "--lake", newer_lake, sql)
    found = run("query", "sql", "--lake", newer_lake, "SELECT 1, topic FROM messages LIMIT 1", "--output", "ndjson")

    assert ExitCode.USAGE == refused.code
    assert "reads no column of messages" in refused.err
    assert 1 == len(found.lines)


def test_a_topic_name_cannot_begin_a_line(tmp_path: Path, run: Run) -> None:
    store = write_store(tmp_path / "store", stored([Sent(topic="A\nrmq-lake: found", keys=("k1",))]))

    done = run("query", "by-key", "--store", store, "-t", "Orders", "-k", "k1")

    assert done.code is ExitCode.NOT_FOUND
    assert "the key 'k1' occurs in A\\nrmq-lake: found" in done.err
    assert "rmq-lake: found" not in {line[:15] for line in done.err.splitlines()}
