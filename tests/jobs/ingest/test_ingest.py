"""From real brokers' stores to Delta tables, read back by readers that are not Spark."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.console.exit_codes import ExitCode
from jobs.ingest.run import ingest
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.record import encode_record, record_of_row
from tests.golden import GOLDEN, SCENARIO, StoreOf
from tests.support.lakes import DELTA_EXTENSION, request_of, table_of
from tests.support.stores import records_of, segments_of, tree_state

_BASES = ("b420-base", "b551-base")
_ALWAYS = {*_BASES, "b533-dledger"}

_ORDER = [("broker", "ascending"), ("physical_offset", "ascending")]


@pytest.fixture(scope="module")
def golden_lakes(request: pytest.FixtureRequest, golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Ingest the golden stores that this run asks for, each under its own broker; those of one scenario share a lake.

    Those of several scenarios cannot: some stores are one store at different times.
    """
    lakes = tmp_path_factory.mktemp("lakes")
    asked = [item for item in request.session.items if item.path == request.path]
    for name in (name for name in GOLDEN if name in _ALWAYS or any(f"[{name}]" in item.nodeid for item in asked)):
        summary = ingest(request_of(name, golden(name), lakes / SCENARIO[name]), OneByOne())
        assert summary.exit_code is ExitCode.CLEAN, name
    return lakes


@pytest.fixture(scope="module")
def rows(golden_lakes: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {name: [] for name in GOLDEN}
    for lake in golden_lakes.iterdir():
        table = table_of(lake / "messages").sort_by("physical_offset")
        for row in table.to_pylist(maps_as_pydicts="strict"):
            found[row["broker"]].append(row)
    return found


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_record_of_a_real_store_is_a_row_that_encodes_to_its_own_bytes(
    name: str, golden: StoreOf, rows: dict[str, list[dict[str, object]]]
) -> None:
    store = golden(name)
    segments = segments_of(store)

    assert [raw for _, raw in records_of(segments)] == [encode_record(record_of_row(row)) for row in rows[name]]


def test_a_second_reader_that_is_not_spark_reads_the_same(
    golden_lakes: Path, rows: dict[str, list[dict[str, object]]]
) -> None:
    columns = "broker, physical_offset, topic, queue_offset, born_host, body, uniq_key, tags"
    with duckdb.connect() as connection:
        connection.load_extension(str(DELTA_EXTENSION))
        found = [
            row
            for lake in golden_lakes.iterdir()
            for row in connection.execute(f"SELECT {columns} FROM delta_scan('{lake}/messages')").fetchall()
        ]
    expected = [tuple(row[name] for name in columns.split(", ")) for its_rows in rows.values() for row in its_rows]

    assert sorted(expected, key=repr) == sorted(found, key=repr)


@pytest.fixture(scope="module")
def spark_lake(spark: SparkSession, golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("lake")
    for name in _BASES:
        ingest(request_of(name, golden(name), lake), SparkWorkers(spark))
    return lake


def test_spark_s_tasks_write_what_one_process_writes(spark_lake: Path, golden_lakes: Path) -> None:
    made, expected = (
        table_of(lake / "messages").drop_columns("store_id").sort_by(_ORDER)
        for lake in (spark_lake, golden_lakes / "base")
    )

    assert expected.filter(pc.is_in(expected["broker"], pa.array(_BASES))).equals(made)


def test_spark_reads_what_the_tasks_wrote(spark: SparkSession, spark_lake: Path) -> None:
    frame = spark.read.format("delta").load(str(spark_lake / "messages"))
    of_queue = frame.where("broker = 'b551-base' and topic = 'T1' and queue_id = 0").orderBy("queue_offset")
    expected = spark.createDataFrame([(offset,) for offset in range(26)], "queue_offset bigint")

    assert_df_equality(of_queue.select("queue_offset"), expected, ignore_nullable=True, ignore_metadata=True)


def test_any_engine_may_read_the_tables(golden_lakes: Path) -> None:
    for name in ("messages", "runs"):
        assert DeltaTable(golden_lakes / "base" / name).protocol().min_reader_version == 1


def test_a_store_is_never_written_to(golden: StoreOf, tmp_path: Path) -> None:
    before = tree_state(golden("b470-base"))

    ingest(request_of("b470-base", golden("b470-base"), tmp_path), OneByOne())

    assert before == tree_state(golden("b470-base"))


def test_a_dry_run_writes_nothing(golden: StoreOf, tmp_path: Path) -> None:
    summary = ingest(request_of("b551-base", golden("b551-base"), tmp_path / "lake", dry_run=True), OneByOne())

    assert summary.plan is not None
    assert summary.plan["segments"] == len(segments_of(golden("b551-base")))
    assert not (tmp_path / "lake").exists()
