"""Timer messages after a restore: a real broker delivers each of them once."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.lake.lake import Lake
from jobs.requests.restore import RestoreRequest
from jobs.restore.run import restore
from jobs.store.workers import SerialWorkers
from rmq_formats.broker_conf import BrokerConf
from tests.oracle.process import Answer
from tests.oracle.releases import SMALL_GEOMETRY, marks, on_releases, version_of
from tests.oracle.sessions import ClientMessage, RealBroker, real_broker
from tests.support.lakes import ingest_store
from tests.support.waiting import wait_until

_TOPIC = "Orders"
_ENABLED = {"timerWheelEnable": "true"}
_EARLY, _FAR, _LATER, _SOON = [[f"{name}{number}" for number in range(4)] for name in ("early", "far", "later", "soon")]
_FOUR_UNITS = 4 * 52 + 16  # bytes of a file of the timer log


def _send(broker: RealBroker, keys: str, **properties: int | str) -> Answer:
    texts = {f"TIMER_{name.upper()}": str(value) for name, value in properties.items()}
    return broker.send(ClientMessage(_TOPIC, keys=keys, properties=texts))


def _count(broker: RealBroker) -> int:
    return broker.queue_edges(_TOPIC, 0)[1]


def _send_timers(broker: RealBroker, release: str) -> None:
    """
    Send timer messages, and stop when those of `early` and `later` were delivered, perhaps also those of `soon`.

    The message `again` has the unique key of the last one of `early`, as if a client had sent its object again.
    """
    *_, last_early = [_send(broker, key, delay_ms=1000) for key in _EARLY]
    due = (int(time.time()) + 60) * 1000
    recalled = _send(broker, "recalled", deliver_ms=due)
    for key in _FAR:
        _send(broker, key, deliver_ms=due)
    properties = {"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": last_early["message-id"]}
    broker.send(ClientMessage(_TOPIC, keys="again", properties=properties))
    for key in _LATER:
        _send(broker, key, delay_ms=1000)
    prefix = f"{_TOPIC}+" if version_of(release) >= (5, 3, 2) else ""
    _send(broker, "recall", deliver_ms=due, del_uniqkey=prefix + recalled["message-id"])
    for key in _SOON:
        _send(broker, key, delay_ms=4000)
    wait_until(lambda: _count(broker) >= len(_EARLY + _LATER), lambda: "timers did not fire")


def _restore_and_consume(release: str, directory: Path, conf: BrokerConf, settings: dict[str, str]) -> Counter[str]:
    """Return how often a topic has each message after a restore, with `recalled` if it was delivered."""
    store, lake, out = directory / "store", directory / "lake", directory / "restored"
    with real_broker(release, store, settings=settings) as broker:
        broker.make_topic(_TOPIC)
        _send_timers(broker, release)
    ingest_store(store, lake, release=release)
    wanted = SMALL_GEOMETRY.wanted_with_conf(release)
    wanted = replace(wanted, conf=replace(conf, consume_queue_size=wanted.conf.consume_queue_size))
    summary = restore(RestoreRequest(Lake(str(lake)), out, given_settings=wanted), SerialWorkers())

    assert "in timerwheel and timerlog" in " ".join(summary.notes)
    with real_broker(release, out, settings=settings) as broker:
        count = len(_EARLY + _FAR + _LATER + _SOON) + 1
        wait_until(lambda: _count(broker) >= count, lambda: f"{_count(broker)} messages")
        _send(broker, "last", delay_ms=2000)  # timers before it have fired
        wait_until(lambda: "last" in {one.keys for one in broker.pull(_TOPIC)}, lambda: "the last timer did not fire")
        return Counter(one.keys for one in broker.pull(_TOPIC))


_ONCE = dict.fromkeys([*_EARLY, *_FAR, "again", *_LATER, *_SOON, "last"], 1)


@on_releases(since="5.0.0", in_every_run="5.5.1")
def test_a_broker_delivers_each_timer_message_once_after_a_restore(tmp_path: Path, release: str) -> None:
    received = _restore_and_consume(release, tmp_path, BrokerConf(), _ENABLED)

    assert received == _ONCE


@pytest.mark.parametrize(
    ("conf", "settings"),
    [
        (BrokerConf(), {"timerWheelSnapshotFlush": "true"}),
        (BrokerConf(), {"timerRocksDBEnable": "true"}),
        (
            BrokerConf(timer_log_size=_FOUR_UNITS, timer_precision_ms=100),
            {"mappedFileSizeTimerLog": str(_FOUR_UNITS), "timerPrecisionMs": "100"},
        ),
        (BrokerConf(), {"timerPrecisionMs": "100"}),
        (BrokerConf(), {"timerPrecisionMs": "5000"}),
    ],
    ids=["snapshots", "RocksDB", "small files", "finer slots", "coarser slots"],
)
@pytest.mark.parametrize("release", [pytest.param("5.5.1", marks=marks(in_every_run=False))])
def test_settings_of_the_broker_change_nothing(
    tmp_path: Path, release: str, conf: BrokerConf, settings: dict[str, str]
) -> None:
    received = _restore_and_consume(release, tmp_path, conf, _ENABLED | settings)

    assert received == _ONCE
