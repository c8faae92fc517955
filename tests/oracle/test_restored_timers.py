"""Timer messages after a restore: a real broker delivers pending ones, and repeats as many as `restore` states."""

from collections import Counter
from pathlib import Path

from jobs.lake.lake import Lake
from jobs.restore.run import RestoreRequest, restore
from jobs.store.workers import SerialWorkers
from tests.oracle.releases import SMALL_GEOMETRY, on_releases
from tests.oracle.sessions import ClientMessage, RealBroker, real_broker
from tests.support.lakes import ingest_store
from tests.support.waiting import wait_until

_TOPIC = "Orders"
_TIMERS = {"timerWheelEnable": "true"}


def _send(broker: RealBroker, keys: str, delay_ms: int) -> None:
    broker.send(ClientMessage(_TOPIC, keys=keys, properties={"TIMER_DELAY_MS": str(delay_ms)}))


def _count(broker: RealBroker) -> int:
    return broker.queue_edges(_TOPIC, 0)[1]


@on_releases("5.1.4", "5.3.3", "5.5.1", in_every_run="5.5.1")
def test_a_broker_delivers_each_pending_timer_message_once(tmp_path: Path, release: str) -> None:
    """Messages that were delivered before the first pending one are not repeated; of later ones, all are."""
    store, lake, out = tmp_path / "store", tmp_path / "lake", tmp_path / "restored"
    delivered, pending, later = [[f"{name}{number}" for number in range(4)] for name in ("first", "far", "later")]
    with real_broker(release, store, settings=_TIMERS) as broker:
        broker.make_topic(_TOPIC)
        for key in delivered:
            _send(broker, key, 1000)
        for key in pending:
            _send(broker, key, 60_000)
        for key in later:
            _send(broker, key, 1000)
        wait_until(lambda: _count(broker) == 8, lambda: "timers did not fire")
    ingest_store(store, lake, release=release)
    wanted = SMALL_GEOMETRY.wanted_with_conf(release)
    summary = restore(RestoreRequest(Lake(str(lake)), out, given_settings=wanted), SerialWorkers())

    assert "4 timer messages will be delivered a second time" in " ".join(summary.notes)
    with real_broker(release, out, settings=_TIMERS) as broker:
        broker.send(ClientMessage(_TOPIC, keys="new"))
        wait_until(lambda: _count(broker) >= 8 + 4 + 4 + 1, lambda: f"{_count(broker)} messages")
        _send(broker, "last", 2000)  # timers before it have fired
        wait_until(lambda: "last" in {one.keys for one in broker.pull(_TOPIC)}, lambda: "the last timer did not fire")
        received = Counter(one.keys for one in broker.pull(_TOPIC))
    once = dict.fromkeys([*delivered, *pending, "new", "last"], 1)
    assert received == once | dict.fromkeys(later, 2)
