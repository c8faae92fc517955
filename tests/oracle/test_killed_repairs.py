"""Repairs are killed, the broker takes messages, they are undone and made again: no message is lost or doubled."""

from contextlib import suppress
from pathlib import Path

import pytest

from jobs.repair.run import NotRepairableError, repair, undo
from jobs.store.workers import OneByOne
from tests.golden import StoreOf
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess, running
from tests.oracle.sessions import DirectMessage, RealStore, open_store
from tests.support.faults import QUEUE_FILE, STORE
from tests.support.killed_repairs import Scene, scene_of
from tests.support.stores import content_of, flip

_RELEASE = "5.3.3"  # that wrote the store
_KEEP = {"fileReservedTime": "1000000"}  # hours: the store is older than a broker keeps its files
_TOPIC, _MORE = "T1", 3


def _plant(store: Path) -> None:
    """Damage files of each part that a broker starts with, and writes on."""
    sorted((store / "commitlog").iterdir())[1].unlink()
    queue, index = store / f"consumequeue/{_TOPIC}/0", sorted((store / "index").iterdir())
    (queue / f"{QUEUE_FILE:020d}").unlink()
    flip(min(queue.iterdir()), 5)
    index[3].unlink()
    flip(index[7], 50)


@pytest.mark.campaign
def test_a_broker_goes_on_after_a_killed_repair_and_no_message_is_lost(golden: StoreOf, tmp_path: Path) -> None:
    scene = scene_of(golden(STORE), _plant, tmp_path)
    healthy = {record.physical_offset for record in records(golden(STORE)) if record.topic == _TOPIC}
    known: list[dict[str, bytes]] = []
    with running(_RELEASE) as driver:
        for number in scene.steps:
            scene.killed_at(number)
            if content_of(scene.store) not in known:  # stores with the same bytes are started alike
                known.append(content_of(scene.store))
                expected = healthy | _written(driver, scene, number)
                with suppress(NotRepairableError):  # the broker wrote into a new file
                    undo(str(scene.store), scene.request.out)
                repair(scene.request, OneByOne())
                with open_store(driver, scene.store, settings=_KEEP) as opened:
                    served = _served(opened, scene.store)
                assert sorted(expected) == sorted(served), number
    assert len(known) > 3  # each part


def _written(driver: DriverProcess, scene: Scene, number: int) -> set[int]:
    """Let the broker start and take messages; return their offsets."""
    with open_store(driver, scene.store, settings=_KEEP) as opened:
        messages = [DirectMessage(_TOPIC, 0, b"more", f"KEYS\1more-{number}-{n}\2") for n in range(_MORE)]
        opened.put_all(messages)
        opened.drain()
    return {record.physical_offset for record in records(scene.store) if record.body == b"more"}


def _served(opened: RealStore, store: Path) -> list[int]:
    queues = sorted(int(queue.name) for queue in (store / "consumequeue" / _TOPIC).iterdir())
    return [offset for queue in queues for _, offset in opened.read_queue(_TOPIC, queue)]
