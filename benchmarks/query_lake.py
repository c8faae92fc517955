"""
Look messages up in a lake by key and by id: whole commands, against engines without our layout and Spark.

    python -m benchmarks.query_lake [--entries N] [--no-peers] [--folder DIR]

The lake is what `ingest` makes of a generated log whose messages have nine keys and a unique one: its own files and row
groups. DuckDB searches the same Parquet files by text; Spark reads the same Delta table in a new session.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.broker import RELEASE
from benchmarks.lakes import ingest_into_new_lake, make_once, spark_workers
from benchmarks.measuring import answer, asked
from benchmarks.stores import FOLDER, Recipe, make_store, offsets_of
from rmq_formats.commitlog.record import Host
from rmq_formats.message_id import encode_offset_id

_KEYS = 9
_RECORD_SIZE = 448
_RUNS = 5
_TOPIC = "Bench000"


def _recipe(messages: int) -> Recipe:
    return Recipe(messages * _RECORD_SIZE, _RECORD_SIZE, topics=1, keys=_KEYS)


def make_lake(folder: Path, messages: int) -> Path:
    """Ingest a generated store, unless its lake is there."""

    def make(lake: Path) -> None:
        store = make_store(_recipe(messages), folder)
        ingest_into_new_lake(store, lake, spark_workers(), frozenset({"messages", "index"}))

    return make_once(folder / f"lake-{messages}", make)


def timed(run: Callable[[], object]) -> float:
    """Return the median seconds of a run, the first one apart."""
    run()
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return round(median(seconds), 3)


def ours(lake: Path, expected: str, *arguments: str) -> float:
    """Return the seconds of a whole command."""
    whole = ["query", *arguments, "--lake", str(lake), "--release", RELEASE, "-q"]
    return _program("from jobs.command import cli; import sys; sys.exit(cli.main(sys.argv[1:]))", whole, expected)


def _program(program: str, arguments: list[str], expected: str) -> float:
    def run() -> None:
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        if expected not in done.stdout:
            raise SystemExit(f"wrong answer: {done.stdout}")

    return timed(run)


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


def duckdb_peer(sql: str, *values: str) -> float:
    """Return the seconds of a new process in which DuckDB runs *sql* on Parquet files."""
    return _program(_DUCKDB, [sql, *values], "rows 1")


_SPARK = """
import sys
from jobs.launch.session import spark_session
spark = spark_session("peer")
lake, topic, key = sys.argv[1:]
entries = spark.read.format("delta").load(lake + "/index_entries")
entries = entries.where((entries.topic == topic) & (entries.key == key))
messages = spark.read.format("delta").load(lake + "/messages")
print("rows", messages.join(entries.select("physical_offset"), "physical_offset").count())
"""


def spark_peer(lake: Path, key: str) -> float:
    """Return the seconds of a new session that looks a key up and joins its message."""
    return _program(_SPARK, [str(lake), _TOPIC, key], "rows 1")


def main() -> None:
    """Print the figures as JSON."""
    given = asked(__doc__, folder=FOLDER, entries=100_000_000, no_peers=False)
    messages = given.entries // (_KEYS + 1)
    lake = make_lake(given.folder, messages)
    wanted = messages * 2 // 3
    key, unique = f"order-{wanted * _KEYS:012d}", f"0A0000078C3C18B4AAC2{wanted:012d}"
    offset = int(offsets_of(_recipe(messages))[wanted])
    offset_id = encode_offset_id(Host(bytes([10, 0, 0, 1]), 10911), offset)
    figures: dict[str, object] = {
        "entries": messages * (_KEYS + 1),
        "files": {table: len(list((lake / table).rglob("*.parquet"))) for table in ("index_entries", "messages")},
        "by_key_s": ours(lake, str(offset), "by-key", "-t", _TOPIC, "-k", key, "--json"),
        "by_unique_key_s": ours(lake, str(offset), "by-unique-key", "-t", _TOPIC, "-i", unique, "--json"),
        "by_offset_id_s": ours(lake, str(offset), "by-id", "-i", offset_id, "--json"),
    }
    if not given.no_peers:
        stored, entries = (f"{lake}/{table}/**/*.parquet" for table in ("messages", "index_entries"))
        figures |= {
            "duckdb_key_by_text_s": duckdb_peer(_BY_KEY, stored, entries, _TOPIC, key),
            "duckdb_unique_key_s": duckdb_peer(_BY_UNIQUE_KEY, stored, unique),
            "spark_key_s": spark_peer(lake, key),
        }
    answer(figures)


if __name__ == "__main__":
    main()
