"""Stores restored from a lake: a real broker starts on them and serves their messages, and groups continue."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.lake.lake import Lake
from jobs.requests.restore import RestoreRequest
from jobs.requests.verify import VerifyRequest
from jobs.restore.run import RestoreSummary, restore
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from tests.oracle.judge import read_log
from tests.oracle.releases import SMALL_GEOMETRY, group_of_one_settings, on_releases
from tests.oracle.sessions import ClientMessage, Consumed, Consumption, RealBroker, real_broker
from tests.support.lakes import ingest_store

_TOPIC, _GROUP = "Orders", "billing"
_CONSUMED, _LEFT, _MORE = 120, 30, 20


class _ClientView(NamedTuple):
    """The messages that clients of a broker receive."""

    served: list[Consumed]  # every message
    printed: list[str]  # by mqadmin


@on_releases(in_every_run="4.9.8")
def test_a_broker_serves_restored_stores_and_continues_writing(tmp_path: Path, release: str) -> None:
    """
    Consumers and mqadmin get every message, a group continues at its offset, and new messages follow.

    A restore of an earlier state may lack the beginning of the log. There too, the group continues at its former
    offset, and new messages follow the last one.
    """
    store, lake, out, earlier = (tmp_path / name for name in ("store", "lake", "restored", "earlier"))
    with real_broker(release, store) as broker:
        _fill(broker)
        expected = _read_as_client(broker)
    until = ingest_store(store, lake, release=release).to_offset
    log = read_log(store)
    summary = _restore(lake, out, release)
    with real_broker(release, out) as broker:
        assert expected == _read_as_client(broker)
        _assert_continued(broker)

    assert 0 == summary.exit_code
    assert [] == summary.notes
    assert log == [record for record in read_log(out) if record.physical_offset <= log[-1].physical_offset]
    assert (
        [] == verify(VerifyRequest(str(out), given_settings=SMALL_GEOMETRY.wanted(release)), SerialWorkers()).findings
    )

    with real_broker(release, store) as broker:
        broker.send_each(_messages("later", _MORE))

        assert len(_consumed(broker, _LEFT + _MORE)) == _LEFT + _MORE
    ingest_store(store, lake, release=release)
    start = _restore(lake, earlier, release, start=log[len(log) // 3].physical_offset, until=until).from_offset
    left = [one.physical_offset for one in log if one.physical_offset >= start]

    assert 0 < len(left) < len(log)
    with real_broker(release, earlier) as broker:
        served = _read_as_client(broker).served

        assert [one for one in expected.served if one.physical_offset in left] == served
        _assert_continued(broker)


@on_releases(since="4.5.2", in_every_run="4.9.8")  # the first release with DLedger
def test_a_dledger_group_of_one_continues_a_restored_log(tmp_path: Path, release: str) -> None:
    """DLedger rebuilds its own index of entries from their headers, which are restored with the log."""
    store, lake, out = (tmp_path / name for name in ("store", "lake", "restored"))
    with real_broker(release, store, settings=group_of_one_settings()) as broker:
        _fill(broker)
        pulled = _read_as_client(broker).served
    ingest_store(store, lake, release=release)
    summary = _restore(lake, out, release)

    assert 0 == summary.exit_code
    assert [] == summary.notes
    with real_broker(release, out, settings=group_of_one_settings()) as broker:
        # Without the output of mqadmin: the start may index the newest messages again, like any start of such a broker.
        assert pulled == _read_as_client(broker).served
        _assert_continued(broker)


def _fill(broker: RealBroker) -> None:
    broker.make_topic(_TOPIC, 2)
    broker.send_each(_messages("first", _CONSUMED))
    assert _numbered("first", _CONSUMED) == _keys(_consumed(broker, _CONSUMED))
    broker.send_each(_messages("second", _LEFT))
    broker.drain()


def _read_as_client(broker: RealBroker) -> _ClientView:
    lines = [("queryMsgByKey", "-t", _TOPIC, "-k", key) for key in ("first-0", f"second-{_LEFT - 1}")]
    printed = [broker.mqadmin(*line).stdout for line in (*lines, ("topicStatus", "-t", _TOPIC))]
    return _ClientView(sorted(broker.pull(_TOPIC)), printed)


def _assert_continued(broker: RealBroker) -> None:
    """Check that the group receives the messages that it had not consumed, and then new ones."""
    assert _numbered("second", _LEFT) == _keys(_consumed(broker, _LEFT))
    broker.send_each(_messages("third", _MORE))
    assert _numbered("third", _MORE) == _keys(_consumed(broker, _MORE))


def _consumed(broker: RealBroker, count: int) -> list[Consumed]:
    return broker.consume(Consumption(_TOPIC, _GROUP, count))


def _restore(lake: Path, out: Path, release: str, *, start: int = 0, until: int | None = None) -> RestoreSummary:
    wanted = SMALL_GEOMETRY.wanted_with_conf(release)
    request = RestoreRequest(Lake(str(lake)), out, start=start, until=until, given_settings=wanted)
    return restore(request, SerialWorkers())


def _messages(life: str, count: int) -> list[ClientMessage]:
    return [ClientMessage(_TOPIC, bytes(300 + number), "TagA", f"{life}-{number}") for number in range(count)]


def _numbered(life: str, count: int) -> list[str]:
    return sorted(f"{life}-{number}" for number in range(count))


def _keys(consumed: Sequence[Consumed]) -> list[str]:
    return sorted(message.keys for message in consumed)
