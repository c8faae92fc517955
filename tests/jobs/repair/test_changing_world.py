"""
The world changes between any two steps: what another process writes meanwhile is not lost, or the command refuses.

`WORLD_DRAWS` and `SEED` in the environment set how many changes the campaign draws, and from where.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.rebuild import queue_run
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.rebuild.install import install, plan_index, plan_queues
from jobs.repair.journal import NotRepairableError
from jobs.repair.run import repair, undo
from jobs.restore.config import NotResumableError
from jobs.restore.run import RestoreRequest, restore
from jobs.store.beside_broker import RefusedError, hold_store
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.errors import FormatError
from tests.golden import StoreOf
from tests.jobs.repair.test_killed_repairs import plant
from tests.support.commands import Run, overwrite
from tests.support.disturbed_repairs import Scene, effects, faults, play, scene_of
from tests.support.fault_kinds import STORE, WANTED
from tests.support.stores import content_of

REFUSALS = (RefusedError, NotRepairableError, NotResumableError, OSError, FormatError)
DRAWS = int(os.environ.get("WORLD_DRAWS", "200"))
SEED = int(os.environ.get("SEED", "0"))
KEPT_SEEDS = {"restore": [9, 73, 116]}  # draws that once found a fault


@pytest.fixture(scope="module")
def scene(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene_of(golden(STORE), plant, tmp_path_factory.mktemp("world"))


class World:
    """One command, and the stores before and after it."""

    def __init__(self, scene: Scene, verb: str) -> None:
        self._scene, self._verb = scene, verb
        self.store = scene.store
        self.prepare()
        self.before = _content_of(self.store)
        with effects(self.store.parent) as seen:
            self.command()
        self.effects = list(seen)
        self.result = _content_of(self.store)

    def prepare(self) -> None:
        scene = self._scene
        if self._verb == "restore":
            shutil.rmtree(scene.store, ignore_errors=True)
            with pytest.raises(KeyboardInterrupt), effects(scene.store.parent, 150, _interrupt):
                self._restore()
            return
        scene.again()
        if self._verb == "undo":
            repair(scene.request, OneByOne())

    def command(self) -> None:
        scene = self._scene
        if self._verb == "apply":
            repair(scene.request, OneByOne())
        elif self._verb == "undo":
            undo(str(scene.store), scene.request.out)
        elif self._verb == "restore":
            self._restore()
        else:
            self._install(scene.store, scene.store.parent / "rebuilt")

    def _install(self, store: Path, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        with hold_store(str(store), out) as held, held.explaining_errors():
            if self._verb == "index":
                rebuild(RebuildIndexRequest(str(store), str(out), WANTED, lost_only=True), OneByOne())
                [plan] = plan_index(str(store), str(out))
            else:
                conf = BrokerConf(consume_queue_size=WANTED.conf.consume_queue_size)
                asked = queue_run.RebuildQueuesRequest(str(store), out, conf, release="5.3.3", lost_only=True)
                queue_run.rebuild(asked, OneByOne())
                (plan,) = plan_queues(str(store), out)
            held.refuse_changes()
            install(plan)

    def _restore(self) -> None:
        assert self._scene.request.lake is not None
        wanted = Wanted(100, 20, "5.3.3", conf=BrokerConf(consume_queue_size=200))
        asked = RestoreRequest(
            Lake(self._scene.request.lake.location), self.store, wanted=wanted, resume=self.store.exists()
        )
        restore(asked, OneByOne())

    def draw(self, seed: int) -> list[str]:
        """Play one draw, and return what is wrong after it."""
        random = Random(f"{self._verb}-{seed}")
        self.prepare()
        # Half of the draws are among the effects of putting files in place, which are few.
        close = [n for n, effect in enumerate(self.effects) if ".replaced-" in effect or ".attempt-" in effect]
        number = random.choice(close) if close and random.random() < 0.5 else random.randrange(len(self.effects) + 1)
        before = _content_of(self.store)
        played = play(self.command, self.store, number, random, REFUSALS)
        played = played._replace(left=_without_count(played.left))
        after = {
            name: data
            for name, data in _content_of(self.store).items()
            if name in {*before, *self.result, played.victim}
        }
        return [f"seed {seed}: {fault}" for fault in faults(played, before, self.result, after)]


def _content_of(store: Path) -> dict[str, bytes]:
    """Return the files of a store, without how many segments a restore has found there: a lost one is made again."""
    return {
        name: _without_count(data) or b"" if name == "MANIFEST.json" else data
        for name, data in content_of(store).items()
    }


def _without_count(data: bytes | None) -> bytes | None:
    return None if data is None else re.sub(rb'"resumed": \d+', b"", data)


def _interrupt() -> None:
    raise KeyboardInterrupt


VERBS = ("apply", "index", "queues", "undo", "restore")


@pytest.fixture(scope="module")
def world(scene: Scene) -> Callable[[str], World]:
    worlds: dict[str, World] = {}
    return lambda verb: worlds[verb] if verb in worlds else worlds.setdefault(verb, World(scene, verb))


@pytest.mark.parametrize("verb", VERBS)
def test_what_another_process_writes_meanwhile_is_kept(world: Callable[[str], World], verb: str) -> None:
    found = [fault for seed in (*KEPT_SEEDS.get(verb, ()), *range(8)) for fault in world(verb).draw(seed)]
    assert [] == found


@pytest.mark.campaign
@pytest.mark.parametrize("verb", VERBS)
def test_what_another_process_writes_meanwhile_is_kept_in_many_draws(world: Callable[[str], World], verb: str) -> None:
    found = [fault for seed in range(SEED, SEED + DRAWS) for fault in world(verb).draw(seed)]
    assert [] == found


def test_a_message_that_a_broker_accepted_before_the_lock_stays_in_the_log(scene: Scene) -> None:
    """A supervisor starts the broker and stops it while the plan is made: its message was gone from the log."""
    store = scene.again()
    segment = max((store / "commitlog").iterdir())

    def accept() -> None:
        data = segment.read_bytes()
        end = len(data.rstrip(b"\0"))
        segment.write_bytes(data[:end] + b"accepted" + data[end + 8 :])

    with effects(store.parent) as seen:
        repair(scene.request, OneByOne())
    installed = next(n for n, effect in enumerate(seen) if ".attempt-" in effect and effect.startswith("os.mkdir"))
    for number in (installed // 2, installed, installed + 3):
        scene.again()
        with pytest.raises(RefusedError, match="changed"), effects(store.parent, number, accept):
            repair(scene.request, OneByOne())
        assert b"accepted" in segment.read_bytes()


@pytest.mark.parametrize("verb", ["rebuild-index", "rebuild-consumequeue"])
def test_a_rebuild_installs_nothing_into_a_store_that_changed_meanwhile(scene: Scene, run: Run, verb: str) -> None:
    out = scene.store.parent / "installed"
    sizes = ("--hash-slots", "100", "--index-num", "20") if verb == "rebuild-index" else ()
    asked = (verb, scene.store, "--out", out, "--lost-only", "--install", "--release", "5.3.3", *sizes)
    shutil.rmtree(out, ignore_errors=True)
    scene.again()
    with effects(scene.store.parent) as seen:
        run(*asked)
    # The first effect in the output comes after the lock was taken.
    middle = (next(n for n, effect in enumerate(seen) if str(out) in effect) + len(seen)) // 2
    shutil.rmtree(out)
    segment = max((scene.again() / "commitlog").iterdir())
    with effects(scene.store.parent, middle, lambda: overwrite(segment, 0, b"accepted")):
        done = run(*asked)

    assert done.code is ExitCode.USAGE
    assert "not installed: 1 file of the store changed while this command ran" in " ".join(done.err.split())
    assert segment.read_bytes().startswith(b"accepted")
    assert not list(scene.store.glob("*.replaced-*"))
