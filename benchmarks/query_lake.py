"""
Look messages up in a lake by key and by id: whole commands, against DuckDB on the same rows without our layout.

    python benchmarks/query_lake.py [--entries N] [--peers] [FOLDER]

The entries are generated, 10 million a file and sorted by hash in each, as runs leave them; a message has ten.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import convert_to_deltalake

from jobs.lake.tables import MESSAGES
from jobs.lake.writing import writer_settings
from rmq_formats.commitlog.record import Host
from rmq_formats.message_id import encode_offset_id

_FILE_ENTRIES = 10_000_000
_KEYS_OF_MESSAGE = 10
_ROW_GROUP = 1 << 17
_MESSAGE_SIZE = 256
_RUNS = 5
_BORN = 1_763_600_000_000
_STORE_ID = "00000000-0000-4000-8000-000000000001"
_HOST = Host(bytes([10, 0, 0, 1]), 10911)


def _hashes(keys: np.ndarray) -> np.ndarray:
    """Return the index hashes of `Orders#<key>` for keys of ten digits, all at once."""
    value = np.full(len(keys), _prefix_hash(), np.int64)
    for digit in range(9, -1, -1):
        value = (value * 31 + 48 + keys // 10**digit % 10) & 0xFFFFFFFF
    signed = np.where(value >> 31, value - (1 << 32), value)
    return np.abs(signed).astype(np.int32)


def _prefix_hash() -> int:
    value = 0
    for unit in b"Orders#":
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value


def make_lake(lake: Path, entries: int) -> None:
    """Write both tables, file by file."""
    if (lake / "index_entries" / "_delta_log").exists():
        return
    for first in range(0, entries, _FILE_ENTRIES):
        last = min(first + _FILE_ENTRIES, entries)
        _write_entries(lake / "index_entries" / f"entries-{first:012d}.parquet", first, last)
        _write_messages(lake / "messages" / f"messages-{first:012d}.parquet", first // 10, last // 10)
    for name in ("index_entries", "messages"):
        convert_to_deltalake(lake / name)


def _write_entries(path: Path, first: int, last: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = np.arange(first, last, dtype=np.int64)
    hashes = _hashes(keys)
    order = np.argsort(hashes, kind="stable")
    ordered = keys[order]
    table = pa.table(
        {
            "broker": pa.repeat(pa.scalar("broker-a"), len(keys)),
            "store_id": pa.repeat(pa.scalar(_STORE_ID), len(keys)),
            "key_hash": hashes[order],
            "physical_offset": ordered // _KEYS_OF_MESSAGE * _MESSAGE_SIZE,
            "topic": pa.repeat(pa.scalar("Orders"), len(keys)),
            "key": pa.array(np.char.zfill(ordered.astype("U10"), 10)),
            "kind": pa.repeat(pa.scalar("key"), len(keys)),
            "store_timestamp": _BORN + ordered // _KEYS_OF_MESSAGE,
        }
    )
    pq.write_table(table, path, row_group_size=_ROW_GROUP, compression="zstd")


def _write_messages(path: Path, first: int, last: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(first, last, dtype=np.int64)
    count = len(numbers)
    offsets = numbers * _MESSAGE_SIZE
    ids = [encode_offset_id(_HOST, int(offset)) for offset in offsets]
    uniques = [f"0A010203{number:024X}" for number in numbers]
    given = {
        "broker": "broker-a", "store_id": _STORE_ID, "segment": 0, "total_size": _MESSAGE_SIZE,
        "magic_code": -626843481, "body_crc": 0, "queue_id": 0, "flag": 0, "sys_flag": 0, "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body_length": 64, "topic_length": 6, "properties_length": 0,
        "is_compressed": False, "transaction_type": "none", "topic": "Orders", "born_host": "10.0.0.7:51234",
        "store_host": "10.0.0.1:10911", "body": b"x" * 64,
    }  # fmt: skip
    made = {
        "queue_offset": pa.array(numbers),
        "physical_offset": pa.array(offsets),
        "born_timestamp": pa.array(_BORN + numbers),
        "store_timestamp": pa.array(_BORN + numbers),
        "offset_msg_id": pa.array(ids),
        "uniq_key": pa.array(uniques),
        "properties": _properties(first, uniques),
    }
    columns = []
    for field in MESSAGES.schema:
        if field.name in made:
            columns.append(made[field.name].cast(field.type))
        elif field.name in given:
            columns.append(pa.repeat(pa.scalar(given[field.name], field.type), count))
        else:
            columns.append(pa.nulls(count, field.type))
    table = pa.Table.from_arrays(columns, schema=MESSAGES.schema)
    with pq.ParquetWriter(path, MESSAGES.schema, **writer_settings(MESSAGES, _ROW_GROUP)) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)


def _properties(first: int, uniques: list[str]) -> pa.Array:
    """Return the map of each message: its id and its ten keys."""
    texts = []
    for number, unique in enumerate(uniques, first):
        keys = range(number * _KEYS_OF_MESSAGE, (number + 1) * _KEYS_OF_MESSAGE)
        texts += [unique, " ".join(f"{key:010d}" for key in keys)]
    ends = np.arange(0, len(texts) + 1, 2, dtype=np.int32)
    names = pa.array(["UNIQ_KEY", "KEYS"]).take(pa.array(np.arange(len(texts)) % 2))
    return pa.MapArray.from_arrays(ends, names, pa.array(texts))


def timed(run: Callable[[], object]) -> float:
    """Return the median seconds of a run, the first one apart."""
    run()
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return round(median(seconds), 4)


def ours(lake: Path, *arguments: str) -> float:
    """Return the seconds of a whole command."""
    command = [
        sys.executable,
        "-m",
        "jobs.launch",
        "query",
        *arguments,
        "--lake",
        str(lake),
        "--release",
        "5.3.3",
        "-q",
    ]

    def run() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        if "Orders" not in done.stdout and "#Message ID" not in done.stdout:
            raise SystemExit(f"wrong answer: {done.stdout}")

    return timed(run)


def duckdb_peer(lake: Path, sql: str) -> float:
    """Return the seconds of a new process that runs *sql* on the Parquet files."""
    program = f"import duckdb; print(len(duckdb.sql({sql!r}).fetchall()))"

    def run() -> None:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=lake)
        if done.stdout.strip() == "0":
            raise SystemExit(f"wrong answer to {sql}")

    return timed(run)


def main() -> None:
    """Print the figures as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()) / "rocketmq-lake-benchmark"
    )
    options.add_argument("--entries", type=int, default=100_000_000)
    options.add_argument("--peers", action="store_true")
    asked = options.parse_args()
    lake = asked.folder / f"lake-{asked.entries}"
    make_lake(lake, asked.entries)
    wanted = asked.entries * 2 // 3
    offset = wanted // _KEYS_OF_MESSAGE * _MESSAGE_SIZE
    key, offset_id = f"{wanted:010d}", encode_offset_id(_HOST, offset)
    unique = f"0A010203{wanted // _KEYS_OF_MESSAGE:024X}"
    figures = {
        "entries": asked.entries,
        "by_offset_id_s": ours(lake, "by-id", "-i", offset_id),
        "by_unique_key_s": ours(lake, "by-unique-key", "-t", "Orders", "-i", unique),
        "by_key_s": ours(lake, "by-key", "-t", "Orders", "-k", key),
    }
    if asked.peers:
        messages, entries = "'messages/*.parquet'", "'index_entries/*.parquet'"
        figures |= {
            "duckdb_key_by_text_s": duckdb_peer(
                lake,
                f"SELECT m.* FROM {messages} m JOIN (SELECT physical_offset FROM {entries} "  # noqa: S608 - our own texts
                f"WHERE topic = 'Orders' AND key = '{key}') USING (physical_offset)",
            ),
            "duckdb_unique_key_s": duckdb_peer(
                lake,
                f"SELECT * FROM {messages} WHERE uniq_key = '{unique}'",  # noqa: S608 - our own texts
            ),
        }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
