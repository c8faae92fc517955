"""
Measure `query` commands that find one message in a lake, by key and by ID.

    python -m benchmarks.query_lake [--entries N] [--no-baselines] [--directory DIR]

`ingest` creates the lake from a generated log, whose messages have nine keys and a unique key each. An existing lake of
the same size is used again. The baselines are DuckDB, which reads the lake's Parquet files in a new process, and Spark,
which reads its Delta tables in a new session. Each figure is the median of five runs after a warm-up.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.broker import RELEASE
from benchmarks.lakes import create_once, ingest_into_new_lake, start_spark_workers
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, compute_offsets, make_store
from rmq_formats.commitlog.record import Host
from rmq_formats.message_id import encode_offset_id

_KEYS = 9
_RECORD_SIZE = 448
_RUNS = 5
_TOPIC = "Bench000"


def _recipe(messages: int) -> Recipe:
    return Recipe(messages * _RECORD_SIZE, _RECORD_SIZE, topics=1, keys=_KEYS)


def make_lake(directory: Path, messages: int) -> Path:
    """Return the lake of a generated store, and create it if it does not exist."""

    def create(lake: Path) -> None:
        store = make_store(_recipe(messages), directory)
        workers = start_spark_workers()
        ingest_into_new_lake(store, lake, workers, frozenset({"messages", "index"}))
        workers.spark.stop()

    return create_once(directory / f"lake-{messages}", create)


def measure_query(lake: Path, expected: str, *arguments: str) -> float:
    """Return the seconds of a `query` command, from the start of its process to its end."""
    words = ["query", *arguments, "--lake", str(lake), "--release", RELEASE, "-q"]
    return _measure_program(
        "from jobs.command_line import cli; import sys; sys.exit(cli.main(sys.argv[1:]))", words, expected
    )


def _measure_program(program: str, arguments: list[str], expected: str) -> float:
    """Return the median seconds of a Python program, whose output must contain *expected*."""
    seconds = []
    for _ in range(_RUNS + 1):
        began = time.perf_counter()
        process = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
        )
        seconds.append(time.perf_counter() - began)
        if process.returncode or expected not in process.stdout:
            raise SystemExit(f"{arguments}: {expected!r} was not found: {process.stdout}{process.stderr}")
    return round(median(seconds[1:]), 3)


_DUCKDB = """
import sys
import duckdb
sql, *values = sys.argv[1:]
print("rows", len(duckdb.execute(sql, values).fetchall()))
"""
_BY_KEY = """
SELECT m.* FROM read_parquet(?) m
JOIN (SELECT physical_offset FROM read_parquet(?) WHERE topic = ? AND key = ?) USING (physical_offset)
"""
_BY_UNIQUE_KEY = "SELECT * FROM read_parquet(?) WHERE uniq_key = ?"


def measure_duckdb(sql: str, *values: str) -> float:
    """Return the seconds of a new process in which DuckDB runs *sql*, which must return one row."""
    return _measure_program(_DUCKDB, [sql, *values], "rows 1\n")


_SPARK = """
import sys
from jobs.launch.session import spark_session
spark = spark_session("baseline")
lake, topic, key = sys.argv[1:]
entries = spark.read.format("delta").load(lake + "/index_entries")
entries = entries.where((entries.topic == topic) & (entries.key == key))
messages = spark.read.format("delta").load(lake + "/messages")
print("rows", messages.join(entries.select("physical_offset"), "physical_offset").count())
"""


def measure_spark(lake: Path, key: str) -> float:
    """Return the seconds of a new process in which Spark finds the message of a key with a join."""
    return _measure_program(_SPARK, [str(lake), _TOPIC, key], "rows 1\n")


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, directory=DIRECTORY, entries=100_000_000, no_baselines=False)
    messages = options.entries // (_KEYS + 1)
    lake = make_lake(options.directory, messages)
    number = messages * 2 // 3  # of the message that is queried
    key, unique_key = f"order-{number * _KEYS:012d}", f"0A0000078C3C18B4AAC2{number:012d}"
    offset = int(compute_offsets(_recipe(messages))[number])
    offset_id = encode_offset_id(Host(bytes([10, 0, 0, 1]), 10911), offset)
    figures: dict[str, object] = {
        "entries": messages * (_KEYS + 1),
        "files": {table: len(list((lake / table).rglob("*.parquet"))) for table in ("index_entries", "messages")},
        "by_key_s": measure_query(lake, str(offset), "by-key", "-t", _TOPIC, "-k", key, "--json"),
        "by_unique_key_s": measure_query(lake, str(offset), "by-unique-key", "-t", _TOPIC, "-i", unique_key, "--json"),
        "by_offset_id_s": measure_query(lake, str(offset), "by-id", "-i", offset_id, "--json"),
    }
    if not options.no_baselines:
        stored, entries = (f"{lake}/{table}/**/*.parquet" for table in ("messages", "index_entries"))
        figures |= {
            "baseline_duckdb_key_s": measure_duckdb(_BY_KEY, stored, entries, _TOPIC, key),
            "baseline_duckdb_unique_key_s": measure_duckdb(_BY_UNIQUE_KEY, stored, unique_key),
            "baseline_spark_key_s": measure_spark(lake, key),
        }
    print_result(figures)


if __name__ == "__main__":
    main()
