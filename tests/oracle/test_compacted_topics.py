"""Compacted topics of real brokers: what a consumer gets, and what `verify` says of the copies that it comes from."""

from pathlib import Path

import pytest

from jobs.lake.findings import QUEUES
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.oracle.answers import on_releases
from tests.oracle.sessions import ClientMessage
from tests.oracle.stage import Stage, StageBroker
from tests.support.waiting import wait_until

_SETTINGS = {
    "compactionMappedFileSize": "16384",
    "compactionCqMappedFileSize": "460",
    "compactionScheduleInternal": "2000",
    "maxOffsetMapSize": "1048576",
}
_NEVER_AGAIN = {"compactionScheduleInternal": "3600000"}
_KEYS = tuple(f"key-{number}" for number in range(7))
_COUNT = 120
_POSITIONS = "compaction/position-checkpoint"


def _send(broker: StageBroker, numbers: range) -> None:
    messages = [ClientMessage("Comp", b"body" * 20, "TagA", _KEYS[number % len(_KEYS)]) for number in numbers]
    broker.real.send_each([*messages, ClientMessage("Orders", b"body", "TagA", "key-0")])


def _play(stage: Stage, *, is_killed: bool) -> None:
    with stage.broker(_SETTINGS) as broker:
        broker.make_topic("Comp", cleanup_policy="COMPACTION")
        broker.make_topic("Orders")
        _send(broker, range(_COUNT))
        wait_until((stage.store_directory / _POSITIONS).exists, lambda: "nothing was compacted")
        _send(broker, range(_COUNT, _COUNT + 10))
        broker.real.drain()
        if is_killed:
            stage.crash()


@on_releases("5.1.4", "5.3.3", "5.5.0", "5.5.1", in_every_run="5.5.0")
@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "killed"])
def test_copies_are_those_that_the_broker_serves(version: str, tmp_path: Path, *, is_killed: bool) -> None:
    """Each has its unit, and is the record of the log; a broker that starts again serves as many."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        _play(stage, is_killed=is_killed)
        verdict = verify(VerifyRequest(str(stage.store_directory)), OneByOne())
        with stage.broker(_SETTINGS | _NEVER_AGAIN) as broker:
            copies = len(broker.real.pull("Comp"))
    notes = verdict.parts[QUEUES].notes

    assert len(_KEYS) < copies < _COUNT
    assert [] == verdict.findings
    assert f"{copies} messages in compacted logs of 1 queue, {copies} compared with the log" in notes
