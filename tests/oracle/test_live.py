"""Ingest, inspect and verify a store repeatedly while a real broker appends, rolls, flushes and deletes."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.requests.ingest import IngestRequest
from jobs.store.spark_workers import SparkWorkers
from tests.oracle.judge import read_log
from tests.oracle.releases import MATRIX, Geometry, on_releases
from tests.oracle.sessions import DirectMessage, RealStore, Stored, real_store
from tests.oracle.stage import Stage
from tests.oracle.verdicts import verdict
from tests.support.commands import runner
from tests.support.lakes import table_of

_MESSAGES = 10_000
_AT_ONCE = 250
_PAUSE_S = 0.05
_RUNS = 4
_SEGMENT_SIZE = 1 << 18
_GEOMETRY = Geometry(commit_log_file_size=_SEGMENT_SIZE, consume_queue_units=100, hash_slots=1000, index_entries=2000)
_QUEUES = [(f"L{topic}", queue) for topic in range(3) for queue in range(2)]
_COLUMNS = ["physical_offset", "total_size", "topic", "queue_id", "queue_offset"]


@on_releases(MATRIX[0], "4.9.8", "5.5.0", MATRIX[-1], in_every_run="5.5.0")
def test_a_lake_ingested_next_to_a_working_broker_has_all_sent_and_consumed_messages(
    spark: SparkSession, tmp_path: Path, release: str
) -> None:
    """Every message is in the lake once, although files grew, were added and deleted during reads."""
    workers = SparkWorkers(spark)
    store, lake = tmp_path / "store", tmp_path / "lake"
    request = IngestRequest(str(store), str(lake), broker="b0", release=release)
    runs: list[Summary] = []
    stage = Stage(release, store, tmp_path, _GEOMETRY)
    with real_store(release, store, _GEOMETRY, {"fileReservedTime": "72"}) as opened:
        with _producing(opened) as sent:
            while len(runs) < _RUNS or len(sent) < _MESSAGES:
                summary = ingest(request, workers)

                assert _lost_bytes(summary) == 0, summary
                # Usually, retention follows days after a run; here, it follows after one run.
                stage.age(path for path in stage.segments()[:-2] if int(path.name) + _SEGMENT_SIZE <= summary.to_offset)
                runs.append(summary)
        opened.drain()
        opened.expire()
        summary = ingest(request, workers)
        consumed = {queue: opened.read_queue(*queue) for queue in _QUEUES}
    table = table_of(lake / "messages", _COLUMNS)
    rows = sorted(zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))
    log = read_log(store)

    assert log[0].physical_offset > 0, "nothing was deleted"
    assert _lost_bytes(summary) == 0
    assert rows == sorted(
        (stored.physical_offset, stored.size, message.topic, message.queue_id, stored.queue_offset)
        for message, stored in sent
    )
    for (topic, queue_id), seen in consumed.items():
        in_lake = [(row[4], row[0]) for row in rows if row[2:4] == (topic, queue_id)]

        assert seen == in_lake[-len(seen) :]

    assert {row[0] for row in rows} >= {record.physical_offset for record in log}
    verdict(release, "ingested next to a working broker", f"{len(rows)} messages, each once, in {len(runs) + 1} runs")


_LOOKS = int(os.environ.get("LIVE_LOOKS", "24"))
_PER_LOOK = 4000  # messages at most, so that a slow machine does not have more to read in each look


@on_releases("4.9.8", "5.3.3", "5.5.0", in_every_run="5.3.3")
def test_inspect_and_verify_next_to_a_working_broker_report_no_problem(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], release: str
) -> None:
    """While the files are read, the broker creates files and writes the newest record, unit and entry."""
    store = tmp_path / "store"
    run = runner(capfd)
    geometry = ["--hash-slots", str(_GEOMETRY.hash_slots), "--index-num", str(_GEOMETRY.index_entries)]
    looks = [["inspect", "--json"], ["verify", "--json", "--engine", "local", "--release", release, *geometry]]
    outcomes: list[tuple[str, int, list[dict[str, object]]]] = []

    def may_send(count: int) -> bool:
        return count < (len(outcomes) + 1) * _PER_LOOK

    with real_store(release, store, _GEOMETRY) as opened, _producing(opened, may_send):
        for number in range(_LOOKS):
            verb, *options = looks[number % len(looks)]
            outcome = run(verb, *options, store)
            found = outcome.document["problems" if verb == "inspect" else "findings"]
            outcomes.append((verb, int(outcome.code), found))

    assert [outcome for outcome in outcomes if outcome[1] or outcome[2]] == []
    verdict(release, "looked at beside a working broker", f"{len(outcomes)} looks, none of which names anything wrong")


@contextmanager
def _producing(
    opened: RealStore, may_send: Callable[[int], bool] = lambda _: True
) -> Iterator[list[tuple[DirectMessage, Stored]]]:
    """
    Store up to two thousand messages a second during the block, let old files be deleted, and yield the messages.

    No message is stored while *may_send* says no to the number of messages so far.
    """
    sent: list[tuple[DirectMessage, Stored]] = []
    stop = threading.Event()

    def produce() -> None:
        begin = time.monotonic()
        while not stop.wait(max(len(sent) / 2000 - (time.monotonic() - begin), 0)):
            if not may_send(len(sent)):
                stop.wait(_PAUSE_S)
                continue
            messages = [_message(number) for number in range(len(sent), len(sent) + _AT_ONCE)]
            sent.extend(zip(messages, opened.put_each(messages), strict=True))
            opened.expire()

    with ThreadPoolExecutor() as pool:
        producer = pool.submit(produce)
        try:
            yield sent
        finally:
            stop.set()
        producer.result()
    assert {stored.status for _, stored in sent} == {"PUT_OK"}


def _lost_bytes(summary: Summary) -> int:
    return sum(max(gap["to"] - gap["from"], 0) for gap in summary.gaps) + summary.quarantined


def _message(number: int) -> DirectMessage:
    topic, queue_id = _QUEUES[number % len(_QUEUES)]
    properties = f"UNIQ_KEY\1live-{number}\2KEYS\1k{number} all\2TAGS\1TagL\2"
    return DirectMessage(topic, queue_id, bytes([number % 251]) * (200 + number % 300), properties)
