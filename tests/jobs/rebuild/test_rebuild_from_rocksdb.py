"""`rebuild-consumequeue` of stores whose queues are in RocksDB: files of the same units, from the log."""

import shutil
from pathlib import Path

import pytest

from jobs.rebuild.queue_run import MANIFEST, RebuildQueuesRequest, rebuild
from jobs.store.queue_files import stored_queues
from jobs.store.store import list_store
from jobs.store.units import units_of
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from tests.golden.features import WRITTEN_BY_THE_STOP, unpack_feature

_FILE_SIZE = 400
_STORES = (
    "b540-cqcombine-rocksonly",
    "b551-lmq-rockscq",
    "b551-rockscq-clean",
    "b551-rockscq-killed",
    "b551-rockscq-separate",
)


@pytest.mark.parametrize("name", _STORES)
def test_files_hold_every_unit_that_the_broker_answered(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    out = tmp_path / "out"
    conf = BrokerConf(consume_queue_size=_FILE_SIZE)
    rebuild(RebuildQueuesRequest(str(unpacked.root), out, release="5.5.1", conf=conf), OneByOne())
    for folder in ("consumequeue", "consumequeue_rocksdb"):
        shutil.rmtree(unpacked.root / folder, ignore_errors=True)
    shutil.copytree(out, unpacked.root / "consumequeue", ignore=shutil.ignore_patterns(MANIFEST))

    found = {
        f"{queue.name.topic}/{queue.name.queue_id}": [
            [number, *map(int, unit)]
            for number, unit in enumerate(units_of(queue, queue.start, queue.written_end()).tolist(), queue.start)
        ]
        for queue in stored_queues(list_store(str(unpacked.root)))
    }
    expected = {queue: answer["units"] for queue, answer in unpacked.of_disk["queues"].items() if answer["units"]}
    assert found.keys() == expected.keys()
    for queue, units in expected.items():
        is_longer = queue.rpartition("/")[0] in WRITTEN_BY_THE_STOP
        assert (found[queue][: len(units)] if is_longer else found[queue]) == units, queue
