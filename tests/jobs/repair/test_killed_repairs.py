"""A repair is killed before each of its steps: it is undone, or done again and undone, and no message is lost."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.rebuild.install import Installation, install
from jobs.repair import run as story
from jobs.repair.run import NotRepairableError, RepairRequest, repair, undo
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.golden import StoreOf
from tests.support.faults import GEOMETRY, QUEUE_FILE, STORE
from tests.support.stores import content_of, flip

PARTS = 12


class KilledError(BaseException):
    """Stands for a kill."""


class Scene(NamedTuple):
    """A damaged store, and the planned repair of it: every part has files to be replaced, and all but one lost ones."""

    damaged: Path
    store: Path  # where copies of it are repaired
    request: RepairRequest
    plans: Sequence[Installation]
    steps: list[int]  # before which a repair is killed: of many files that are kept, the first and the last
    repaired: dict[str, bytes]

    def again(self) -> Path:
        """Make the store as it was before the repair, without a journal."""
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self.damaged, self.store)
        shutil.rmtree(self.request.out, ignore_errors=True)
        self.request.out.mkdir()
        return self.store

    def killed_at(self, number: int) -> None:
        """Repair a copy, and die before a step of the installation, whichever part it is in."""
        self.again()
        before = iter(range(number))

        def step(_: str) -> None:
            if next(before, None) is None:
                raise KilledError

        with suppress(KilledError):
            _apply(self.request, self.plans, step)


def _apply(request: RepairRequest, plans: Sequence[Installation], step: Callable[[str], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "install", lambda plan: install(plan, step))
        story._apply(request, plans)  # noqa: SLF001 - the part of a repair that can be killed


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
    folder = tmp_path_factory.mktemp("killed")
    healthy, damaged = golden(STORE), folder / "damaged"
    ingest(IngestRequest(str(healthy), str(folder / "lake"), release="5.3.3"), OneByOne())
    plant(Path(shutil.copytree(healthy, damaged)))
    wanted = Wanted(GEOMETRY.hash_slots, GEOMETRY.index_num, "5.3.3")
    lake, store = Lake(str(folder / "lake")), folder / "store"
    request = RepairRequest(str(store), folder / "repair", lake, None, wanted, QUEUE_FILE, apply=True)
    shutil.copytree(damaged, store)
    planned: list[Installation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "_apply", lambda _, plans: planned.extend(plans))
        repair(replace(request, out=folder / "plan"), OneByOne())
    steps: list[str] = []
    made = Scene(damaged, store, request, planned, [], {})
    made.again()
    _apply(request, planned, steps.append)
    assert verify(VerifyRequest(str(store)), OneByOne()).exit_code == 0
    some = [n for n, step in enumerate(steps) if not all("keep " in near for near in steps[max(n - 1, 0) : n + 2])]
    return made._replace(steps=[*some, len(steps)], repaired=content_of(store))


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


@pytest.mark.sample(6)
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
