"""`ingest --follow` for hours, while Spark SQL maintains the tables and other engines read them."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from signal import SIGTERM
from threading import Event, Thread
from typing import Final

import duckdb
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from tests.support.broker import Broker, some_records
from tests.support.lakes import DELTA_EXTENSION, ingest_store, raw_rows
from tests.support.other_engine import NO_SHORT_RETENTION_CHECK, SharedLake
from tests.support.stores import stored_records

MINUTES: Final = float(os.environ.get("FOLLOW_MINUTES", "25"))
KEPT: Final = "interval 5 minutes"  # so that VACUUM finds much to delete; a step that takes longer is made again
STATEMENTS: Final = (
    "OPTIMIZE {messages}",
    "ALTER TABLE {messages} CLUSTER BY (topic)",
    "OPTIMIZE {consume_queue}",
    "OPTIMIZE {messages} FULL",
    "VACUUM {messages}",
    "ALTER TABLE {messages} CLUSTER BY (store_time)",
    "OPTIMIZE {index_entries}",
    "VACUUM {consume_queue}",
)
_FOLLOW: Final = (sys.executable, "-m", "jobs.main", "ingest", "--follow", "--every", "1s", "--quiet")


def _written(broker: Broker, ends: Event) -> Iterator[int]:
    """Append some messages every second; yield how many there are."""
    total = 0
    for seed in count(1):
        total += len(broker.append(some_records(5, seed=seed, stored=time.time_ns() // 1_000_000)))
        yield total
        if ends.wait(1):
            return


def _seen(messages: Path) -> list[int]:
    with duckdb.connect() as connection:
        connection.load_extension(str(DELTA_EXTENSION))
        query = f"SELECT physical_offset FROM delta_scan('{messages}') ORDER BY 1"
        return [row[0] for row in connection.execute(query).fetchall()]


@pytest.mark.campaign
@pytest.mark.timeout(60 * MINUTES + 1800)
def test_a_followed_lake_that_spark_looks_after_has_the_rows_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """Another engine clusters, optimises and vacuums beside it; at no moment does a reader miss a row in the middle."""
    broker = Broker(tmp_path / "store", segment_size=1 << 22, history=tmp_path / "history", dispatches=True)
    broker.append(some_records(10, seed=0))
    lake, done, ends = SharedLake(spark, tmp_path), Counter[str](), Event()
    ingest_store(broker.root, lake.path, "b")
    lake.sql(NO_SHORT_RETENTION_CHECK)  # its RETAIN 0.1 HOURS would be none at all: it rounds
    for table in ("messages", "consume_queue"):
        lake.sql(f"ALTER TABLE {{{table}}} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '{KEPT}')")
    writer = Thread(target=lambda: done.update(messages=list(_written(broker, ends))[-1]))
    seen = 0
    command = [*_FOLLOW, str(broker.root), "--lake", str(lake.path), "--broker", "b"]
    with subprocess.Popen(command) as follower:
        writer.start()
        until = time.monotonic() + 60 * MINUTES
        for statement in cycle(STATEMENTS):
            try:
                lake.sql(statement)
                done[statement] += 1
            except (Py4JJavaError, PySparkException) as error:
                if "CONCURRENT" not in str(error).upper():
                    raise
                done["conflicts of the other engine"] += 1
            offsets = _seen(lake.path / "messages")
            known = sorted(record.physical_offset for record, _ in stored_records(tmp_path / "history"))
            assert offsets == known[: len(offsets)]
            assert len(offsets) >= seen
            seen = len(offsets)
            done["looks of a reader"] += 1
            print(int(until - time.monotonic()), seen, len(known), statement, file=sys.stderr, flush=True)
            assert follower.poll() is None
            if time.monotonic() > until:
                break
        ends.set()
        writer.join()
        follower.send_signal(SIGTERM)
        assert follower.wait() == ExitCode.CLEAN
    done["commits"] = lake.spark.sql(f"DESCRIBE HISTORY {lake.name()}").count()
    ingest_store(broker.root, lake.path, "b")

    expected = sorted((record.physical_offset, raw) for record, raw in stored_records(tmp_path / "history"))
    assert sorted(raw_rows(lake.path)) == expected
