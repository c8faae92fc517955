"""
Bodies typed a second: our readers, and Spark's `from_json` on the same bodies, in one run.

`python benchmarks/typed.py [MESSAGES]` makes bodies of eight columns, of which one in a hundred is broken, as a lake's
file of messages has them; then a task of `type` types the file, Parquet to Parquet, in one thread; and Spark reads the
same file with one core and writes what `from_json` makes of it.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import files
from jobs.lake.tables import MESSAGES
from jobs.typed.ddl import parse_columns
from jobs.typed.declaration import Json, TopicType
from jobs.typed.task import FromOffset, TypingTask
from tests.support.typing_campaign import write_messages

_SCHEMA = (
    "id bigint, name string, amount decimal(12,2), price double, at timestamp, ok boolean, labels array<string>, "
    "who struct<name: string, age: int>"
)
_BROKEN = (b"", b'{"id": 1.7}', b'{"id": 1, "id": 2}', b"{} {}", b'{"id": "1"}', b'{"name": "\xff"}')


def bodies(count: int, random: Random) -> list[bytes]:
    """Return bodies, some of them broken."""
    return [
        random.choice(_BROKEN)
        if number % 100 == 0
        else json.dumps(
            {
                "id": number, "name": f"name {number}", "amount": number / 4, "price": number * 1.5, "ok": True,
                "at": f"2026-11-23T10:00:{number % 60:02}.123Z", "labels": ["a", "b"], "who": {"name": "x", "age": 7},
            }
        ).encode()
        for number in range(count)
    ]  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    """Return how long a second call takes: the first one compiles."""
    work()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(count: int) -> None:
    """Print messages a second of both."""
    some = bodies(count, Random(1))
    with TemporaryDirectory() as folder:
        lake = Lake(folder)
        write_messages(lake, some, 0)
        (file,) = files(lake, DeltaTable(lake.locate(MESSAGES.name)))
        type_ = TopicType("Orders", Json(), parse_columns(_SCHEMA))
        task = TypingTask(lake, 1, (FromOffset(type_, {}),))
        ours = count / seconds(lambda: task(file))
        print(f"type: {ours:,.0f} messages/s in one thread")
        theirs = count / seconds(_from_json(Path(folder)))
        print(f"from_json: {theirs:,.0f} messages/s on one core; type is {ours / theirs:.1f} times as fast")


def _from_json(folder: Path) -> Callable[[], object]:
    from pyspark.sql import SparkSession, functions

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    path = str(folder / "messages" / "messages-0.parquet")
    body = functions.col("body").cast("string")

    def work() -> None:
        rows = spark.read.parquet(path).select("physical_offset", functions.from_json(body, _SCHEMA).alias("row"))
        rows.select("physical_offset", "row.*").write.mode("overwrite").parquet(str(folder / "spark"))

    return work


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
