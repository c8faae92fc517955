"""Stores restored from a lake: a real broker starts on them and serves their messages, and groups continue."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.lake.lake import Lake
from jobs.restore.run import RestoreRequest, RestoreSummary, restore
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from tests.oracle.judge import read_log
from tests.oracle.releases import SMALL_GEOMETRY, group_of_one_settings
from tests.oracle.sessions import ClientMessage, Consumed, Consumption, RealBroker, real_broker
from tests.support.lakes import ingest_store

_TOPIC, _GROUP = "Orders", "billing"
_CONSUMED, _LEFT, _MORE = 120, 30, 20


def test_a_broker_serves_a_restored_store_and_continues_writing(tmp_path: Path, release: str) -> None:
    """Consumers and mqadmin get every message, a group continues at its offset, and new messages follow."""
    store, out = tmp_path / "store", tmp_path / "restored"
    with real_broker(release, store) as broker:
        _fill(broker)
        pulled = sorted(broker.pull(_TOPIC))
        printed = _printed(broker)
    summary = _restore(store, out, release)
    log = read_log(store)
    with real_broker(release, out) as broker:
        life = _read_as_clients(broker)

    assert (0, []) == (summary.exit_code, summary.notes)
    assert _ClientView(pulled, printed, *_continued()) == life
    kept = [record for record in read_log(out) if record.physical_offset <= log[-1].physical_offset]
    assert log == kept
    assert [] == verify(VerifyRequest(str(out), SMALL_GEOMETRY.wanted(release)), SerialWorkers()).findings


@pytest.mark.since("4.5.2")  # the first release with DLedger
def test_a_dledger_group_of_one_continues_a_restored_log(tmp_path: Path, release: str) -> None:
    """DLedger rebuilds its own index of entries from their headers, which are restored with the log."""
    store, out = tmp_path / "store", tmp_path / "restored"
    with real_broker(release, store, settings=group_of_one_settings()) as broker:
        _fill(broker)
        pulled = sorted(broker.pull(_TOPIC))
    summary = _restore(store, out, release)
    with real_broker(release, out, settings=group_of_one_settings()) as broker:
        life = _read_as_clients(broker)

    assert (0, []) == (summary.exit_code, summary.notes)
    # Without the output of mqadmin: the start may index the newest messages again, like any start of such a broker.
    assert (pulled, *_continued()) == (life.served, life.left, life.more)


def test_a_broker_starts_on_a_log_without_its_beginning_and_its_end(tmp_path: Path, release: str) -> None:
    """A restore of an earlier state: the group continues at its former offset, and new messages follow the last one."""
    store, out = tmp_path / "store", tmp_path / "restored"
    lake = tmp_path / "lake"
    with real_broker(release, store) as broker:
        _fill(broker)
    until = ingest_store(store, lake, release=release).to_offset
    log = read_log(store)
    with real_broker(release, store) as broker:
        broker.send_each(_messages("later", _MORE))
        assert len(_consumed(broker, _LEFT + _MORE)) == _LEFT + _MORE
    ingest_store(store, lake, release=release)
    start = log[len(log) // 3].physical_offset
    summary = restore(_request(lake, out, release, start=start, until=until), SerialWorkers())
    expected = [record for record in log if record.physical_offset >= summary.from_offset]
    assert 0 < len(expected) < len(log)
    with real_broker(release, out) as broker:
        life = _read_as_clients(broker)

    orders = [record.physical_offset for record in expected if record.topic == _TOPIC]
    assert orders == sorted(message.physical_offset for message in life.served)
    assert _continued() == (life.left, life.more)


def _fill(broker: RealBroker) -> None:
    broker.make_topic(_TOPIC, 2)
    broker.send_each(_messages("first", _CONSUMED))
    assert _numbered("first", _CONSUMED) == _keys(_consumed(broker, _CONSUMED))
    broker.send_each(_messages("second", _LEFT))
    broker.drain()


class _ClientView(NamedTuple):
    """The messages that clients of a broker receive."""

    served: list[Consumed]  # every message
    printed: list[str]  # by mqadmin
    left: list[str]  # keys of messages that the group had not consumed
    more: list[str]  # keys of new messages that the group receives


def _read_as_clients(broker: RealBroker) -> _ClientView:
    served, printed = sorted(broker.pull(_TOPIC)), _printed(broker)
    left = _consumed(broker, _LEFT)
    broker.send_each(_messages("third", _MORE))
    return _ClientView(served, printed, _keys(left), _keys(_consumed(broker, _MORE)))


def _continued() -> tuple[list[str], list[str]]:
    return _numbered("second", _LEFT), _numbered("third", _MORE)


def _consumed(broker: RealBroker, count: int) -> list[Consumed]:
    return broker.consume(Consumption(_TOPIC, _GROUP, count))


def _restore(store: Path, out: Path, release: str) -> RestoreSummary:
    lake = out.with_name(f"{out.name}-lake")
    ingest_store(store, lake, release=release)
    return restore(_request(lake, out, release), SerialWorkers())


def _request(lake: Path, out: Path, release: str, *, start: int = 0, until: int | None = None) -> RestoreRequest:
    wanted = SMALL_GEOMETRY.wanted_with_conf(release)
    return RestoreRequest(Lake(str(lake)), out, start_offset=start, end_offset=until, given_settings=wanted)


def _messages(life: str, count: int) -> list[ClientMessage]:
    return [ClientMessage(_TOPIC, bytes(300 + number), "TagA", f"{life}-{number}") for number in range(count)]


def _numbered(life: str, count: int) -> list[str]:
    return sorted(f"{life}-{number}" for number in range(count))


def _keys(consumed: Sequence[Consumed]) -> list[str]:
    return sorted(message.keys for message in consumed)


def _printed(broker: RealBroker) -> list[str]:
    lines = [("queryMsgByKey", "-t", _TOPIC, "-k", key) for key in ("first-0", f"second-{_LEFT - 1}")]
    return [broker.mqadmin(*line).stdout for line in (*lines, ("topicStatus", "-t", _TOPIC))]
