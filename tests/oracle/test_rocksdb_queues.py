"""Queues in RocksDB that a repair leaves to the broker: what the repair says about them is what helps."""

import subprocess
from pathlib import Path

import pytest

from jobs.repair.run import RepairRequest, repair
from jobs.store.workers import OneByOne
from tests.oracle.conftest import BrokerFactory
from tests.oracle.releases import version_of
from tests.oracle.sessions import ClientMessage
from tests.oracle.settings import SMALL_GEOMETRY

_TOPIC, _COUNT = "Orders", 300
_LIMITED_SINCE = (5, 4, 0)
_MADE_AGAIN_SINCE = (5, 3, 3)
_LIMIT = "commitLogRecoverMaxNum"


@pytest.mark.since("5.2.0")  # up to 5.1.4 the setting moves the topics alone
def test_a_broker_makes_queues_in_rocksdb_again_after_what_a_repair_says(
    real_broker: BrokerFactory, tmp_path: Path, release: str
) -> None:
    """The database is damaged and an index file lost: the file comes back, then the command is run as it is printed."""
    store, settings = tmp_path / "store", {"storeType": "defaultRocksDB"}
    with real_broker(release, store, settings=settings) as broker:
        broker.make_topic(_TOPIC, 2)
        keys = [f"k-{number}" for number in range(_COUNT)]
        broker.send_each(ClientMessage(_TOPIC, bytes(300 + at), "TagA", key) for at, key in enumerate(keys))
        broker.drain()
        pulled = sorted(broker.pull(_TOPIC))
    min((store / "consumequeue").glob("MANIFEST-*")).unlink()
    sorted((store / "index").iterdir())[2].unlink()
    wanted = SMALL_GEOMETRY.wanted(release)
    summary = repair(RepairRequest(str(store), tmp_path / "repair", wanted=wanted, apply=True), OneByOne())
    (note,) = summary.notes
    subprocess.run(["bash", "-c", note.rpartition(":")[2]], check=True)
    segments = len(list((store / "commitlog").iterdir()))
    if version_of(release) >= _LIMITED_SINCE:
        settings[_LIMIT] = str(segments)
    with real_broker(release, store, settings=settings) as broker:
        broker.drain()
        served = sorted(broker.pull(_TOPIC))

    if version_of(release) < _MADE_AGAIN_SINCE:
        assert not [one for one in served if one.physical_offset]
        return
    assert summary.left is not None
    assert ["unreadable_database"] == [finding.kind for finding in summary.left.findings]
    assert f"{_LIMIT}={segments}" in note
    # Of the log's very first message such a broker may say that it has expired: its offset is 0.
    assert [one for one in pulled if one.physical_offset] == [one for one in served if one.physical_offset]
