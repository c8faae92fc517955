"""`type`: each message of a topic becomes one typed row or one dead letter, after any interruption."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode, RequestError
from jobs.lake.lake import Lake
from jobs.requests.typing import TypeRequest
from jobs.store.workers import SerialWorkers
from jobs.typed import run, typings
from jobs.typed.declaration import read_types
from jobs.typed.run import TypingSummary, type_lake
from rmq_formats.errors import UnsupportedFormat
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker
from tests.support.commands import Run, start_campaigns
from tests.support.lakes import delta_extension, ingest_store, rows_of, table_of
from tests.support.query_stores import Sent, stored, write_store

ORDERS = '[topic."Orders"]\nformat = "json"\nschema = "id bigint, name string"\n'


def write(broker: Broker, *bodies: bytes, topic: str = "Orders") -> None:
    broker.append(make_record(body, topic=topic, properties={"region": "eu"}) for body in bodies)


def ingested(directory: Path, *bodies: bytes, topic: str = "Orders") -> None:
    """Ingest a store: one of these messages, or that which is there."""
    if bodies:
        write(Broker(directory / "store"), *bodies, topic=topic)
    ingest_store(directory / "store", directory / "lake", "b", range_size=4096)


def typed(directory: Path, declared: str = ORDERS) -> TypingSummary:
    path = directory / "types.toml"
    path.write_text(declared)
    return type_lake(TypeRequest(Lake(str(directory / "lake")), read_types(path)), SerialWorkers())


def count_rows_and_dead_letters(lake: Path, table: str = "typed/Orders", topic: str = "Orders") -> tuple[int, int]:
    """Return the numbers of typed rows and dead letters, which must contain each message once."""
    messages = [row["physical_offset"] for row in rows_of(lake) if row["topic"] == topic]
    good = [row["physical_offset"] for row in rows_of(lake, table)]
    dead = [row["physical_offset"] for row in rows_of(lake, "dead_letters") if row["topic"] == topic]
    assert messages == sorted(good + dead)
    return len(good), len(dead)


@pytest.mark.parametrize(
    "declared", ['format = "avro"\nschema_file = "a.avsc"', 'format = "protobuf"\ndescriptors = "a"\nmessage = "A"']
)
def test_only_avro_and_protobuf_need_the_libraries_of_the_extra_types(
    declared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.typed.declaration.find_spec", lambda _: None)
    ingested(tmp_path, b'{"id": 1}')

    assert typed(tmp_path).topics[0].rows == 1
    with pytest.raises(UnsupportedFormat, match="requires additional libraries"):
        typed(tmp_path, f'[topic."Orders"]\n{declared}\n')


def test_an_incremental_model_of_typed_rows_loses_no_row_of_the_slower_of_two_brokers(tmp_path: Path) -> None:
    """The recipe of the guide: all rows of later runs of `type` than those that were loaded."""
    slow = Broker(tmp_path / "slow")
    fast = Broker(tmp_path / "fast")
    lake = tmp_path / "lake"
    newest = 0
    found = list[tuple[str, int]]()
    expected = set[tuple[str, int]]()

    def load() -> None:
        nonlocal newest
        typed(tmp_path)
        new = [row for row in rows_of(lake, "typed/Orders") if row["typing"] > newest]
        found.extend((row["broker"], row["id"]) for row in new)
        newest = max([newest, *(row["typing"] for row in new)])

    for number in range(3):
        write(slow, b'{"id": %d}' % number)  # before those of the other broker, and loaded after them
        write(fast, b'{"id": %d}' % (number + 100))
        expected |= {("slow", number), ("fast", number + 100)}
        ingest_store(tmp_path / "fast", lake, "fast")
        load()
        ingest_store(tmp_path / "slow", lake, "slow")
    load()

    assert sorted(expected) == sorted(found)


def test_typed_rows_have_the_start_of_their_typing_unless_the_body_has_such_a_column(tmp_path: Path) -> None:
    ingested(tmp_path, b'{"id": 1, "typing": "x"}')
    before = datetime.now(UTC)

    typed(tmp_path, ORDERS.replace("name string", "typing string"))

    (row,) = rows_of(tmp_path / "lake", "typed/Orders")

    assert "x" == row["typing"]
    assert before <= row["ingested_at"] <= datetime.now(UTC)


def test_readers_skip_files_by_the_day_and_by_declared_columns(tmp_path: Path) -> None:
    ingested(tmp_path, b'{"id": 7, "name": "a"}', b'{"id": 9, "name": "b"}')
    typed(tmp_path)

    table = DeltaTable(tmp_path / "lake" / "typed" / "Orders")
    (file,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()

    days = {row["store_time"].date() for row in rows_of(tmp_path / "lake", "typed/Orders")}

    assert days == {row["store_date"] for row in rows_of(tmp_path / "lake", "typed/Orders")}
    assert min(days) == file["min.store_date"]
    assert max(days) == file["max.store_date"]
    assert 7 == file["min.id"]
    assert 9 == file["max.id"]
    assert "a" == file["min.name"]
    assert "b" == file["max.name"]


def test_optimize_merges_typed_tables_dead_letters_and_the_runs_of_type(tmp_path: Path, run: Run) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    for number in range(4):
        write(broker, b'{"id": %d, "name": "a"}' % number, b"-")
        ingested(tmp_path)
        typed(tmp_path)
    tables = ("typed/Orders", "dead_letters", "typings")
    before = {table: rows_of(lake, table, "typing" if table == "typings" else "physical_offset") for table in tables}

    assert ExitCode.CLEAN == run("optimize", lake, "--engine", "local").code

    assert before == {
        table: rows_of(lake, table, "typing" if table == "typings" else "physical_offset") for table in tables
    }
    assert [1, 1, 2] == [len(DeltaTable(lake / table).file_uris()) for table in tables]
    write(broker, b'{"id": 9, "name": "a"}')
    ingested(tmp_path)

    assert typed(tmp_path).topics[0].rows == 1
    count_rows_and_dead_letters(lake)


def test_messages_of_a_gap_that_was_filled_later_are_typed_once(tmp_path: Path) -> None:
    records = stored([Sent(body=b'{"id": %d}' % number) for number in range(80)])
    store = write_store(tmp_path / "store", records)
    lost = sorted((store / "commitlog").iterdir())[1]
    data = lost.read_bytes()
    lost.unlink()
    ingested(tmp_path)
    typed(tmp_path)

    assert len(rows_of(tmp_path / "lake", "typed/Orders")) < len(records)
    lost.write_bytes(data)
    ingested(tmp_path)

    assert typed(tmp_path).topics[0].rows > 0
    typed(tmp_path)

    assert list(range(80)) == [row["id"] for row in rows_of(tmp_path / "lake", "typed/Orders")]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("committed", "lost"),
    [(0, "typed/Orders"), (0, "typed/Payments"), (0, "dead_letters"), (1, "typed/Payments"), (2, "dead_letters")],
)
def test_files_of_a_prepared_typing_that_a_vacuum_deleted_are_typed_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: int, lost: str
) -> None:
    both = ORDERS + ORDERS.replace("Orders", "Payments")
    for id_ in (1, 2):
        for topic in ("Orders", "Payments"):
            write(broker, b'{"id": %d}' % id_, b"x", topic=topic)
        ingested(tmp_path)
        with monkeypatch.context() as patch:
            if id_ == 2:
                patch.setattr(run, "commit_typing", lambda lake, typing: _some_of(lake, typing, committed))
            with suppress(KeyboardInterrupt):
                typed(tmp_path, both)
    lake = Lake(str(tmp_path / "lake"))
    left = typings.without_committed_changes(lake, typings.read_newest_typing(lake))
    change = next(change for change in left.changes if change.table == lost)
    (tmp_path / "lake" / lost / change.added[0].path).unlink()

    with pytest.raises(RequestError, match="must also declare Payments"):
        typed(tmp_path)
    again = typed(tmp_path, both)

    assert 3 == again.number
    assert again.recovered is None
    for topic in ("Orders", "Payments"):
        assert (2, 2) == count_rows_and_dead_letters(tmp_path / "lake", f"typed/{topic}", topic)

    assert typed(tmp_path, both).number is None


def _some_of(lake: Lake, typing: typings.Typing, some: int) -> None:
    typings.commit_typing(lake, replace(typing, changes=typing.changes[:some]))
    if typing.changes:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def campaign() -> Iterator[Callable[..., dict[str, Any]]]:
    with start_campaigns("tests.support.killed_commands") as campaign:
        yield campaign


@pytest.mark.parametrize(
    ("scenario", "number", "more_than"),
    [
        ("typings", 47, 0),  # after each *stride*-th effect, the next run completes the work without leftovers
        pytest.param("typings-during-ingests", 1, 0, marks=pytest.mark.slow),
        pytest.param("typings", 1, 30, marks=pytest.mark.campaign),
        pytest.param("typings-during-ingests", int(os.environ.get("KILLS", "100")), 30, marks=pytest.mark.campaign),
    ],
)
def test_after_killed_runs_each_message_is_in_one_table(
    scenario: str, number: int, more_than: int, tmp_path: Path, campaign: Callable[..., dict[str, Any]]
) -> None:
    result = campaign(scenario, tmp_path, number)

    assert result["reached"] > more_than
    assert [] == result["bad"]


@pytest.mark.slow  # Spark needs seconds to compile
def test_spark_types_the_same_rows(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    import polars as pl  # slow to load, and each test process collects this module

    (tmp_path / "types.toml").write_text(
        '[topic.Orders]\nformat = "json"\nschema = "id int, d decimal(5,2), at timestamp, who struct<n: array<int>>"'
    )
    found = []
    for engine in ("local", "spark"):
        directory = tmp_path / engine
        fitting = b'{"id": 1, "d": 1.5, "at": "2026-11-23T10:00:00Z", "who": {"n": [1, null]}}'
        ingested(directory, *[body for body in (fitting, b'{"id": 1.5}', b"") for _ in range(20)])
        command = ("type", directory / "lake", "--types", tmp_path / "types.toml", "--engine", engine)

        assert ExitCode.CLEAN is run(*command, "--max-dead-letters", "100%").code
        assert len(DeltaTable(directory / "lake" / "messages").file_uris()) > 1  # one task for each
        assert (20, 40) == count_rows_and_dead_letters(directory / "lake")
        rows = [rows_of(directory / "lake", table) for table in ("typed/Orders", "dead_letters")]
        found.append([[{**row, "store_id": "", "ingested_at": None} for row in some] for some in rows])

    assert found[0] == found[1]

    path = str(tmp_path / "spark" / "lake" / "typed" / "Orders")
    columns = ["physical_offset", "id", "d", "at", "who"]
    ours = table_of(Path(path), columns).sort_by("physical_offset").to_pylist()
    of_polars = pl.read_delta(path).select(columns).sort("physical_offset").to_dicts()
    of_spark = spark.sql(
        f"SELECT physical_offset, id, d, unix_micros(at) AS at, to_json(who) AS who FROM delta.`{path}`"
    )
    connection = duckdb.connect()
    connection.execute(f"LOAD '{delta_extension()}'")
    names = ", ".join(f'"{name}"' for name in columns)
    of_duckdb = connection.sql(f"SELECT {names} FROM delta_scan('{path}') ORDER BY physical_offset")

    assert ours == of_polars == of_duckdb.to_arrow_table().to_pylist()
    assert {(1, "1.50", 1795428000000000, '{"n":[1,null]}')} == {
        (row.id, str(row.d), row.at, row.who) for row in of_spark.collect()
    }


STRICT = '[topic."Orders"]\nformat = "json"\nschema = "id bigint NOT NULL, number bigint NOT NULL"\n'
WIDER = STRICT.replace("number bigint NOT NULL", "number bigint")
ANY = STRICT.replace(" NOT NULL", "")
GOOD, HALF, EMPTY = b'{"id": 1, "number": 1}', b'{"id": 1}', b"{}"


@pytest.fixture
def type_orders(tmp_path: Path, run: Run) -> Callable[..., tuple[int, int]]:
    """Return a function that types, and returns the exit code and the number of dead letters in the metrics."""

    def type_orders(declared: str, *options: str) -> tuple[int, int]:
        types, metrics = tmp_path / "types.toml", tmp_path / "metrics"
        types.write_text(declared)
        outcome = run("type", tmp_path / "lake", "--types", types, "--engine", "local", "--metrics", metrics, *options)
        lines = [line.removeprefix("rmq_lake_type_") for line in metrics.read_text().splitlines()]

        assert f"exit_code {outcome.code}" in lines
        return outcome.code, sum(int(line.split()[-1]) for line in lines if line.startswith("dead_letters{"))

    return type_orders


def test_the_alert_of_dead_letters_stays_until_it_is_acknowledged(
    tmp_path: Path, type_orders: Callable[..., tuple[int, int]]
) -> None:
    """A retry of the scheduler ended with 0, and deleted the dead letters from the metrics."""
    broker = Broker(tmp_path / "store")
    write(broker, GOOD, HALF, EMPTY)
    ingested(tmp_path)

    assert (ExitCode.DAMAGE, 2) == type_orders(STRICT, "--max-dead-letters", "1")
    assert (ExitCode.DAMAGE, 2) == type_orders(STRICT, "--max-dead-letters", "1")

    write(broker, GOOD, HALF)
    ingested(tmp_path)

    assert (ExitCode.DAMAGE, 3) == type_orders(STRICT, "--max-dead-letters", "100")

    write(broker, EMPTY)
    ingested(tmp_path)

    # As with `ingest`, the run's own findings are not acknowledged.
    assert (ExitCode.DAMAGE, 1) == type_orders(STRICT, "--max-dead-letters", "0", "--acknowledge")
    assert (ExitCode.CLEAN, 0) == type_orders(STRICT, "--max-dead-letters", "0", "--acknowledge")
    assert (ExitCode.CLEAN, 0) == type_orders(STRICT, "--max-dead-letters", "0")


def test_the_alert_of_dead_letters_ends_when_they_are_typed(
    tmp_path: Path, type_orders: Callable[..., tuple[int, int]]
) -> None:
    ingested(tmp_path, HALF, EMPTY)

    assert (ExitCode.DAMAGE, 2) == type_orders(STRICT)
    assert (ExitCode.DAMAGE, 2) == type_orders(STRICT, "--retry")
    assert (ExitCode.DAMAGE, 1) == type_orders(WIDER, "--retry")
    assert (ExitCode.CLEAN, 0) == type_orders(ANY, "--retry")
    assert (ExitCode.CLEAN, 0) == type_orders(ANY)


def test_the_alert_of_dead_letters_survives_a_killed_run(
    tmp_path: Path, type_orders: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested(tmp_path, EMPTY)
    with monkeypatch.context() as patch:
        patch.setattr(run, "commit_typing", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            typed(tmp_path, STRICT)

    assert (ExitCode.DAMAGE, 1) == type_orders(STRICT)


def test_a_retype_within_the_limit_ends_the_alert(tmp_path: Path, type_orders: Callable[..., tuple[int, int]]) -> None:
    ingested(tmp_path, EMPTY)

    assert (ExitCode.DAMAGE, 1) == type_orders(STRICT)
    assert (ExitCode.DAMAGE, 1) == type_orders(STRICT, "--retype", "Orders")
    assert (ExitCode.CLEAN, 0) == type_orders(ANY, "--retype", "Orders")


MIXED = (b'{"id": 1}', b'{"id": "two", "name": "a"}', b'{"id": 3.50}', b'{"id": {"n": [4]}}', b'{"id": null}')


def test_a_number_that_became_text_is_typed_in_a_json_column_over_several_runs(tmp_path: Path, run: Run) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    declared = ORDERS.replace("id bigint", "id json")
    for body in MIXED:
        write(broker, body)
        ingested(tmp_path)
        typed(tmp_path, declared)
    optimized = run("optimize", lake, "--engine", "local")

    assert ExitCode.CLEAN == optimized.code
    assert ["1", '"two"', "3.50", '{"n": [4]}', None] == [row["id"] for row in rows_of(lake, "typed/Orders")]
    assert (len(MIXED), 0) == count_rows_and_dead_letters(lake)


def test_a_column_becomes_json_only_with_retype(tmp_path: Path, run: Run) -> None:
    ingested(tmp_path, *MIXED)
    typed(tmp_path)
    before = count_rows_and_dead_letters(tmp_path / "lake")
    (tmp_path / "types.toml").write_text(ORDERS.replace("id bigint", "id json"))
    command = ("type", tmp_path / "lake", "--types", tmp_path / "types.toml", "--engine", "local")

    refused = run(*command)
    retyped = run(*command, "--retype", "Orders")

    assert (2, 3) == before
    assert ExitCode.USAGE == refused.code
    assert "drops or narrows these columns: id bigint" in refused.err
    assert ExitCode.CLEAN == retyped.code
    assert (len(MIXED), 0) == count_rows_and_dead_letters(tmp_path / "lake")


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ('format = "json"\nschema = "a array<json>"', "expected a type"),
        ('format = "text"\npattern = "(?P<a>.*)"\nschema = "a json"', "a group can only have a scalar type"),
    ],
)
def test_a_json_column_is_refused_inside_other_types_and_for_text(declared: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "types.toml").write_text(f'[topic."Orders"]\n{declared}\n')

    with pytest.raises(RequestError, match=reason):
        read_types(tmp_path / "types.toml")


def test_a_field_with_several_kinds_of_values_is_proposed_as_json(tmp_path: Path, run: Run) -> None:
    ingested(tmp_path, *MIXED, b'{"id": 6}', b'{"id": 7}')

    proposed = run("type", tmp_path / "lake", "--infer", "-t", "Orders", "--engine", "local")

    assert "#   id: number: 4, text: 1, object: 1; declared as json, the column takes all of them" in proposed.out
