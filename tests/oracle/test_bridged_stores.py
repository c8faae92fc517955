"""Consumers on a store with bridges: they get every whole message, and nothing for the lost ones."""

import shutil
from pathlib import Path

import pytest

from jobs.repair.run import RepairRequest, repair
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import MessageRecord
from tests.oracle.broker_starts import GEOMETRY, RELEASES
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess, running
from tests.oracle.sessions import ClientMessage, Consumption, open_broker
from tests.support.commands import overwrite

_TOPIC = "T"
_MESSAGES = 60
_KEEP = {"fileReservedTime": "1000000"}


def _plant(store: Path, lost: MessageRecord) -> None:
    """Zero a record, and let the next start walk the log from its beginning."""
    base = lost.physical_offset // GEOMETRY.commit_log_file_size * GEOMETRY.commit_log_file_size
    overwrite(store / "commitlog" / f"{base:020d}", lost.physical_offset - base + 4, bytes(100))
    (store / "abort").touch()
    (store / "checkpoint").unlink()


def _received(driver: DriverProcess, store: Path) -> dict[str, list[int]]:
    """Return the offsets that each kind of consumer receives."""
    with open_broker(driver, store, GEOMETRY, _KEEP, home=store.parent / "home") as broker:
        received = {f"pull {at_once}": broker.pull(_TOPIC, at_once=at_once) for at_once in (1, 32)}
        kinds = (False, True) if driver.release >= "5" else (False,)
        for pops in kinds:
            asked = Consumption(_TOPIC, f"group-{pops}", at_least=_MESSAGES - 1, milliseconds=2000, pops=pops)
            received["pop" if pops else "push"] = broker.consume(asked)
    return {kind: sorted({one.physical_offset for one in messages}) for kind, messages in received.items()}


@pytest.mark.oracle
@pytest.mark.parametrize("writer", RELEASES)
def test_no_consumer_receives_anything_for_a_bridge(writer: str, tmp_path: Path) -> None:
    with running(writer) as driver:
        (tmp_path / "home").mkdir()
        healthy = tmp_path / "healthy"
        with open_broker(driver, healthy, GEOMETRY, _KEEP, home=tmp_path / "home") as broker:
            broker.make_topic(_TOPIC, 1)
            broker.send_each(ClientMessage(_TOPIC, b"%05d" % number * 80) for number in range(_MESSAGES))
        log = [record for record in records(healthy) if record.topic == _TOPIC]
        lost = next(one for one in log if one.physical_offset > GEOMETRY.commit_log_file_size * 3 // 2)
        store = Path(shutil.copytree(healthy, tmp_path / "store"))
        _plant(store, lost)
        wanted = GEOMETRY.wanted(writer)._replace(conf=BrokerConf(consume_queue_size=GEOMETRY.consume_queue_file_size))
        repair(RepairRequest(str(store), tmp_path / "repair", wanted=wanted, apply=True, bridge=True), OneByOne())
        received = _received(driver, store)

    whole = [one.physical_offset for one in log if one is not lost]
    assert dict.fromkeys(received, whole) == received
