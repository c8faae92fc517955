"""Spark's tasks type as this process does, and every reader finds the same rows."""

from pathlib import Path

import duckdb
import polars as pl
from pyspark.sql import SparkSession

from jobs.console.exit_codes import ExitCode
from tests.jobs.typed.test_typing import ingested, typed_and_dead, write
from tests.support.broker import Broker
from tests.support.commands import Run
from tests.support.lakes import DELTA_EXTENSION, rows_of, table_of


def test_spark_types_the_same_rows(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    (tmp_path / "types.toml").write_text(
        '[topic.Orders]\nformat = "json"\nschema = "id int, d decimal(5,2), at timestamp, who struct<n: array<int>>"'
    )
    found = []
    for engine in ("here", "spark"):
        folder = tmp_path / engine
        broker = Broker(folder / "store")
        for body in (
            b'{"id": 1, "d": 1.5, "at": "2026-11-23T10:00:00Z", "who": {"n": [1, null]}}',
            b'{"id": 1.5}',
            b"",
        ):
            write(broker, *[body] * 20)
            ingested(folder)
            command = (
                "type",
                folder / "lake",
                "--types",
                tmp_path / "types.toml",
                "--engine",
                engine,
                "--max-dead-letters",
                "100%",
            )
            assert ExitCode.CLEAN is run(*command).code
        assert (20, 40) == typed_and_dead(folder / "lake")
        rows = [rows_of(folder / "lake", table) for table in ("typed/Orders", "dead_letters")]
        found.append([[{**row, "store_id": ""} for row in some] for some in rows])
    assert found[0] == found[1]

    path = str(tmp_path / "spark" / "lake" / "typed" / "Orders")
    columns = ["physical_offset", "id", "d", "at", "who"]
    ours = table_of(Path(path), columns).sort_by("physical_offset").to_pylist()
    of_polars = pl.read_delta(path).select(columns).sort("physical_offset").to_dicts()
    of_spark = spark.sql(
        f"SELECT physical_offset, id, d, unix_micros(at) AS at, to_json(who) AS who FROM delta.`{path}`"
    )
    connection = duckdb.connect()
    connection.execute(f"LOAD '{DELTA_EXTENSION}'")
    names = ", ".join(f'"{name}"' for name in columns)
    of_duckdb = connection.sql(f"SELECT {names} FROM delta_scan('{path}') ORDER BY physical_offset")
    assert ours == of_polars == of_duckdb.to_arrow_table().to_pylist()
    assert {(1, "1.50", 1795428000000000, '{"n":[1,null]}')} == {
        (row.id, str(row.d), row.at, row.who) for row in of_spark.collect()
    }
