"""A repair is killed before each of its steps: it is undone, or done again and undone, and no message is lost."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.repair.run import NotRepairableError, repair, undo
from jobs.store.workers import OneByOne
from tests.golden import StoreOf
from tests.support.disturbed_repairs import Scene, scene_of
from tests.support.fault_kinds import QUEUE_FILE, STORE
from tests.support.stores import content_of, flip

PARTS = 12


def plant(store: Path) -> None:
    segments, queue = sorted((store / "commitlog").iterdir()), store / "consumequeue/T1/0"
    segments[1].unlink()
    segments[-1].write_bytes(segments[-1].read_bytes()[:600] + bytes(100) + segments[-1].read_bytes()[700:])
    (queue / f"{QUEUE_FILE:020d}").unlink()
    newest = max(queue.iterdir())
    newest.write_bytes(newest.read_bytes()[:-40])
    index = sorted((store / "index").iterdir())
    index[3].unlink()
    flip(index[7], 50)
    (store / "checkpoint").write_bytes((store / "checkpoint").read_bytes()[:20])


@pytest.fixture(scope="module")
def scene(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene_of(golden(STORE), plant, tmp_path_factory.mktemp("killed"))


def test_a_killed_repair_is_undone(scene: Scene) -> None:
    damaged = content_of(scene.damaged)
    for number in scene.steps:
        scene.killed_at(number)
        undo(str(scene.store), scene.request.out)
        assert content_of(scene.store) == damaged, number
        assert not list(scene.store.glob("*.*-*")), number


def appended(store: Path) -> Iterator[tuple[Path, bytes]]:
    """Let a broker go on: into its newest segment, and into the newest file of a queue; yield what it wrote where."""
    for folder in (store / "commitlog", store / "consumequeue/T1/0"):
        newest = max(folder.iterdir())
        data = newest.read_bytes()
        end = len(data.rstrip(b"\0"))
        written = data[:end] + b"written by a broker"
        with newest.open("r+b") as file:  # the broker writes into the file, wherever else it has a name
            file.write(written + data[len(written) :])
        yield newest, written


def test_what_a_broker_wrote_after_a_killed_repair_is_kept_or_the_undo_refuses(scene: Scene) -> None:
    outcomes = []
    for number in scene.steps:
        scene.killed_at(number)
        written = dict(appended(scene.store))
        before = content_of(scene.store)
        try:
            undo(str(scene.store), scene.request.out)
            outcomes.append("undone")
        except NotRepairableError:
            outcomes.append("refused")
            assert content_of(scene.store) == before, number
        assert all(path.read_bytes().startswith(data) for path, data in written.items()), number
    assert {*outcomes} == {"undone", "refused"}


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_repair_is_done_again_and_both_are_undone(scene: Scene, part: int) -> None:
    for number in scene.steps[part::PARTS]:
        scene.killed_at(number)
        assert repair(scene.request, OneByOne()).exit_code == 0, number
        assert content_of(scene.store) == scene.repaired, number
        undo(str(scene.store), scene.request.out)
        assert content_of(scene.store) == content_of(scene.damaged), number


def test_repairs_one_after_the_other_are_undone_together(scene: Scene) -> None:
    """Bridges first, then the records themselves, from a lake that was found later."""
    store = scene.again()
    repair(replace(scene.request, lake=None, bridge=True), OneByOne())
    assert repair(scene.request, OneByOne()).files > 0
    undo(str(store), scene.request.out)
    assert content_of(store) == content_of(scene.damaged)
