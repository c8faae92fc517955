"""
Measure what a reader of one of 20 topics reads, before and after `optimize --by-topic`.

    python -m benchmarks.topic_layout [--messages N N N] [--directory DIR]

DuckDB reads the Parquet files of the table `messages`: all bodies of a topic, one message by its unique key, and all
messages of a twentieth of the time. The baseline of the topic is a copy of the table that DuckDB has sorted by topic,
with the same compression, and so few rows in each row group that most groups have one topic. Figures are CPU seconds,
the median of five runs.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
from deltalake import DeltaTable

from benchmarks.lakes import ingest_into_new_lake
from benchmarks.measuring import parse_options, print_result
from benchmarks.stores import DIRECTORY, Recipe, make_store
from jobs.lake.upkeep import optimize
from jobs.store.workers import SerialWorkers

_RECORD_SIZE, _TOPICS = 1024, 20
_RUNS = 5
_ROWS_OF_GROUP = 20_480  # of the baseline: a multiple of DuckDB's vectors
_BYTES = "sum(octet_length(body))"


def measure(directory: Path, messages: int) -> dict[str, Any]:
    """Return the figures for one number of messages."""
    recipe = Recipe(messages * _RECORD_SIZE, _RECORD_SIZE, compressible=True, topics=_TOPICS, distinct_bodies=True)
    store, lake = make_store(recipe, directory), directory / f"lake-by-topic-{messages}"
    ingest_into_new_lake(store, lake, SerialWorkers(), frozenset({"messages"}))
    optimize(str(lake), SerialWorkers())
    before = _measure_queries(_list_files(lake))
    began = time.process_time()
    optimize(str(lake), SerialWorkers(), by_topic=True)
    sorting_s = time.process_time() - began
    after = _measure_queries(_list_files(lake))
    by_hand = lake / "by-hand.parquet"
    rows = f"FROM read_parquet({_list_files(lake)}) ORDER BY topic, physical_offset"
    duckdb.sql(f"COPY ({rows}) TO '{by_hand}' (COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS_OF_GROUP})")
    figures = {
        "messages": messages,
        "before": before,
        "by_topic": after,
        "sorting_s": round(sorting_s, 2),
        "baseline_sorted_by_hand": _measure_queries([str(by_hand)]),
    }
    shutil.rmtree(lake)
    return figures


def _list_files(lake: Path) -> list[str]:
    return DeltaTable(lake / "messages").file_uris()


def _measure_queries(files: list[str]) -> dict[str, float]:
    table = f"read_parquet({files})"
    with duckdb.connect(config={"threads": 1}) as connection:
        limits = "max(topic), max(uniq_key), min(store_timestamp), max(store_timestamp)"
        topic, key, low, high = connection.execute(_select(limits, table)).fetchall()[0]
        since = low + (high - low) // 2
        until = since + (high - low) // 20
        of_topic, of_key = f"{table} WHERE topic = '{topic}'", f"{table} WHERE uniq_key = '{key}'"
        queries = {
            "topic_s": _select(_BYTES, of_topic),
            "unique_key_s": _select("count(body)", of_key),
            "time_s": _select(_BYTES, f"{table} WHERE store_timestamp BETWEEN {since} AND {until}"),
        }
        return {name: median(_measure(connection, query)) for name, query in queries.items()}


def _select(columns: str, rows: str) -> str:
    return f"SELECT {columns} FROM {rows}"  # noqa: S608 - of this benchmark


def _measure(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[float]:
    for _ in range(_RUNS):
        began = time.process_time()
        connection.execute(query).fetchall()
        yield round(time.process_time() - began, 4)


def main() -> None:
    """Print the figures as JSON."""
    options = parse_options(__doc__, messages=[250_000, 500_000, 1_000_000], directory=DIRECTORY)
    print_result({"sizes": [measure(options.directory, messages) for messages in options.messages]})


if __name__ == "__main__":
    main()
