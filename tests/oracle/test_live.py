"""Ingest, inspect and verify a store repeatedly while a real broker appends, rolls, flushes and deletes."""

import os
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.ingest import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.store.spark_workers import SparkWorkers
from tests.oracle.conftest import Verdict
from tests.oracle.judge import read_log
from tests.oracle.process import run_driver
from tests.oracle.releases import MATRIX, NEWEST_OF_TWO_LINES, Geometry, marks
from tests.oracle.sessions import DirectMessage, RealStore, Stored, open_store
from tests.oracle.stage import Stage
from tests.support.commands import runner
from tests.support.lakes import table_of

_MESSAGES = 10_000
_AT_ONCE = 250
_RUNS = 4
_SEGMENT_SIZE = 1 << 18
_GEOMETRY = Geometry(commit_log_file_size=_SEGMENT_SIZE, consume_queue_units=100, hash_slots=1000, index_entries=2000)
_QUEUES = [(f"L{topic}", queue) for topic in range(3) for queue in range(2)]
_WRITERS = [
    pytest.param(one, marks=marks(in_every_run=one == "5.5.0")) for one in (MATRIX[0], *NEWEST_OF_TWO_LINES, MATRIX[-1])
]
_COLUMNS = ["physical_offset", "total_size", "topic", "queue_id", "queue_offset"]


@pytest.mark.parametrize("writer", _WRITERS)
def test_a_lake_ingested_next_to_a_working_broker_has_all_sent_and_consumed_messages(
    spark: SparkSession, tmp_path: Path, verdict: Verdict, writer: str
) -> None:
    """Every message is in the lake once, although files grew, were added and deleted during reads."""
    workers = SparkWorkers(spark)
    store, lake = tmp_path / "store", tmp_path / "lake"
    request = IngestRequest(str(store), str(lake), broker="b0", release=writer)
    sent: list[tuple[DirectMessage, Stored]] = []
    runs: list[Summary] = []
    stage = Stage(writer, store, tmp_path, _GEOMETRY)
    with run_driver(writer) as driver, open_store(driver, store, _GEOMETRY, {"fileReservedTime": "72"}) as opened:
        producer = threading.Thread(target=_produce, args=(opened, sent, runs))
        producer.start()
        while producer.is_alive():
            summary = ingest(request, workers)
            assert _lost_bytes(summary) == 0, summary
            # Usually, retention follows days after a run; here, it follows after one run.
            stage.age(path for path in stage.segments()[:-2] if int(path.name) + _SEGMENT_SIZE <= summary.to_offset)
            runs.append(summary)
        producer.join()
        opened.drain()
        opened.expire()
        summary = ingest(request, workers)
        consumed = {queue: opened.read_queue(*queue) for queue in _QUEUES}
    table = table_of(lake / "messages", _COLUMNS)
    rows = sorted(zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))
    log = read_log(store)

    assert len(runs) >= _RUNS
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
    verdict(writer, "ingested next to a working broker", f"{len(rows)} messages, each once, in {len(runs) + 1} runs")


_LOOKS = int(os.environ.get("LIVE_LOOKS", "24"))
_OBSERVED = ("4.9.8", "5.3.3", "5.5.0")


@pytest.mark.parametrize("writer", [pytest.param(one, marks=marks(in_every_run=one == "5.3.3")) for one in _OBSERVED])
def test_inspect_and_verify_next_to_a_working_broker_report_no_problem(
    tmp_path: Path, verdict: Verdict, capfd: pytest.CaptureFixture[str], writer: str
) -> None:
    """While the files are read, the broker creates files and writes the newest record, unit and entry."""
    store = tmp_path / "store"
    run = runner(capfd)
    geometry = ["--hash-slots", str(_GEOMETRY.hash_slots), "--index-num", str(_GEOMETRY.index_entries)]
    looks = [["inspect", "--json"], ["verify", "--json", "--engine", "here", "--release", writer, *geometry]]
    outcomes: list[tuple[str, int, list[dict[str, object]]]] = []
    stop = threading.Event()
    with run_driver(writer) as driver, open_store(driver, store, _GEOMETRY) as opened:
        producer = threading.Thread(target=_produce_until, args=(opened, stop))
        producer.start()
        try:
            for number in range(_LOOKS):
                verb, *options = looks[number % len(looks)]
                outcome = run(verb, *options, store)
                found = outcome.document["problems" if verb == "inspect" else "findings"]
                outcomes.append((verb, int(outcome.code), found))
        finally:
            stop.set()
            producer.join()

    assert [outcome for outcome in outcomes if outcome[1] or outcome[2]] == []
    verdict(writer, "looked at beside a working broker", f"{len(outcomes)} looks, none of which names anything wrong")


def _produce_until(opened: RealStore, stop: threading.Event) -> None:
    """Store up to a thousand messages a second until stopped."""

    def messages() -> Iterator[DirectMessage]:
        begin = time.monotonic()
        for number in count():
            if stop.is_set():
                return
            time.sleep(max(number / 1000 - (time.monotonic() - begin), 0))
            yield _message(number)

    for stored in opened.put_each(messages()):
        assert stored.status == "PUT_OK"


def _produce(opened: RealStore, sent: list[tuple[DirectMessage, Stored]], runs: list[Summary]) -> None:
    for start in range(0, _MESSAGES, _AT_ONCE):
        while len(runs) * _MESSAGES < (start - _MESSAGES // _RUNS) * _RUNS:
            time.sleep(0.05)
        messages = [_message(number) for number in range(start, start + _AT_ONCE)]
        sent += zip(messages, opened.put_each(messages), strict=True)
        opened.expire()
        time.sleep(0.05)


def _lost_bytes(summary: Summary) -> int:
    return sum(max(gap["to"] - gap["from"], 0) for gap in summary.gaps) + summary.quarantined


def _message(number: int) -> DirectMessage:
    topic, queue_id = _QUEUES[number % len(_QUEUES)]
    properties = f"UNIQ_KEY\1live-{number}\2KEYS\1k{number} all\2TAGS\1TagL\2"
    return DirectMessage(topic, queue_id, bytes([number % 251]) * (200 + number % 300), properties)
