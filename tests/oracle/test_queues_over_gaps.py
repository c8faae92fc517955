"""Queues rebuilt over a log with a hole: real brokers load them, and serve every message under its own queue offset."""

import shutil
from pathlib import Path

import pytest

from jobs.rebuild import queue_run
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.consumequeue.unit import PRE_BLANK
from tests.oracle.conftest import StoreFactory, Verdict
from tests.oracle.releases import NEWEST_OF_TWO_LINES, marks
from tests.oracle.sessions import DirectMessage
from tests.oracle.settings import SMALL_GEOMETRY

_QUEUES = 2
_FILE = SMALL_GEOMETRY.consume_queue_units * UNIT.size
_MESSAGES = [DirectMessage("T", number % _QUEUES, bytes(600), f"KEYS\1k{number}\2") for number in range(100)]
_MORE = [DirectMessage("T", number % _QUEUES, b"more", f"KEYS\1m{number}\2") for number in range(10)]


@pytest.mark.parametrize(
    "writer", [pytest.param(one, marks=marks(in_every_run=one == "5.5.0")) for one in NEWEST_OF_TWO_LINES]
)
def test_a_broker_skips_blanks_and_serves_the_others_under_their_own_numbers(
    real_store: StoreFactory, tmp_path: Path, verdict: Verdict, writer: str
) -> None:
    """And the next message of each queue gets the number after the last one."""
    store = tmp_path / "store"
    with real_store(writer, store) as opened:
        opened.put_all(_MESSAGES)
    with real_store(writer, store) as opened:
        healthy = {queue: opened.read_queue("T", queue) for queue in range(_QUEUES)}
    segment = SMALL_GEOMETRY.commit_log_file_size
    lost = range(2 * segment, 3 * segment)
    (store / "commitlog" / f"{lost.start:020d}").unlink()
    out = tmp_path / "queues"
    request = queue_run.RebuildQueuesRequest(str(store), out, BrokerConf(consume_queue_size=_FILE), release=writer)
    summary = queue_run.rebuild(request, OneByOne())
    shutil.rmtree(store / "consumequeue")
    shutil.copytree(out, store / "consumequeue", ignore=shutil.ignore_patterns(queue_run.MANIFEST))
    with real_store(writer, store) as opened:
        served = {queue: opened.read_queue("T", queue) for queue in range(_QUEUES)}
        edges = {queue: opened.queue_edges("T", queue) for queue in range(_QUEUES)}
        opened.put_all(_MORE)

    left = {queue: [row for row in rows if row[1] not in lost] for queue, rows in healthy.items()}
    assert summary.blanks == sum(len(healthy[queue]) - len(left[queue]) for queue in range(_QUEUES)) > 0
    assert served == left
    assert edges == {queue: (0, rows[-1][0] + 1) for queue, rows in healthy.items()}
    data = b"".join(path.read_bytes() for path in sorted((store / "consumequeue" / "T" / "0").iterdir()))
    assert data.count(UNIT.pack(*PRE_BLANK)) == len(healthy[0]) - len(left[0])  # the broker leaves them as they are
    verdict(writer, "queues over a gap", f"{summary.blanks} blanks skipped, all others under their own numbers")
