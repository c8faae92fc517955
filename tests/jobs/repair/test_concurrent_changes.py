"""
Changes that another process makes between two steps of a command are kept, or the command refuses.

A repair that is killed before any of its steps can be undone, or repeated and undone, and no message is lost.

`WORLD_DRAWS` and `SEED` in the environment set the number of changes that the campaign draws, and the first seed.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import Mock, patch

import pytest

from jobs.console.result import ExitCode, RequestError
from jobs.lake.lake import Lake
from jobs.rebuild import install as install_module
from jobs.rebuild.install import Installation, install
from jobs.repair import Journal, journal
from jobs.repair import run as repair_run
from jobs.repair.run import repair, undo
from jobs.requests.repair import RepairRequest
from jobs.requests.restore import RestoreRequest
from jobs.requests.verify import VerifyRequest
from jobs.restore.run import restore
from jobs.store.request import GivenSettings
from jobs.store.running_broker import FileState, list_file_states, lock_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.errors import FormatError
from tests.golden import StoreOf
from tests.jobs.rebuild.test_install import INDEX, QUEUES, make_plan
from tests.support.commands import Outcome, Run
from tests.support.fault_kinds import QUEUE_FILE, SETTINGS, STORE
from tests.support.lakes import ingest_store
from tests.support.stores import flip, read_store_files


class KilledError(BaseException):
    """Stands for a kill."""


class RepairCase(NamedTuple):
    """A damaged store and its planned repair: every part has files to replace, and all but one part have lost files."""

    damaged: Path
    store: Path  # where copies of it are repaired
    request: RepairRequest
    plans: Sequence[Installation]
    steps: list[int]  # before which a repair is killed; of a series of kept files, only the first and the last
    repaired: dict[str, bytes]

    def reset(self) -> Path:
        """Reset the store to its state before the repair, without a journal."""
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self.damaged, self.store)
        shutil.rmtree(self.request.out, ignore_errors=True)
        self.request.out.mkdir()
        return self.store

    def kill_before_step(self, number: int) -> None:
        """Repair a copy, and stop before the step of that number of the installation."""
        self.reset()
        before = iter(range(number))

        def step(_: str) -> None:
            if next(before, None) is None:
                raise KilledError

        with suppress(KilledError):
            _apply(self.request, self.plans, step)


def _apply(request: RepairRequest, plans: Sequence[Installation], step: Callable[[str], object]) -> None:
    with pytest.MonkeyPatch.context() as patch, lock_store(request.store, request.out) as held:
        patch.setattr(repair_run, "install", lambda plan: install(with_current_states(plan), step))
        repair_run._apply(request, plans, held)  # noqa: SLF001 - only this part of a repair changes the store


def with_current_states(plan: Installation) -> Installation:
    if plan.is_exchange:
        return replace(
            plan,
            states={
                str(path.relative_to(plan.target_directory)): it for path, it in list_file_states(plan.target_directory)
            },
        )
    states = {name: FileState.read(plan.target_directory / name) for name in plan.set_aside}
    return replace(plan, states={name: state for name, state in states.items() if state is not None})


def make_repair_case(healthy: Path, damage: Callable[[Path], None], directory: Path) -> RepairCase:
    """Damage a copy of a store, and plan its repair with a lake that contains the whole store."""
    damaged = directory / "damaged"
    ingest_store(healthy, directory / "lake", release="5.3.3")
    damage(Path(shutil.copytree(healthy, damaged)))
    lake = Lake(str(directory / "lake"))
    store = directory / "store"
    request = RepairRequest(str(store), directory / "repair", lake, None, given_settings=SETTINGS, apply=True)
    shutil.copytree(damaged, store)
    planned: list[Installation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair_run, "_apply", lambda _, plans, __: planned.extend(plans))
        repair(replace(request, out=directory / "plan"), SerialWorkers())
    steps: list[str] = []
    scenario = RepairCase(damaged, store, request, planned, [], {})
    scenario.reset()
    _apply(request, planned, steps.append)
    assert verify(VerifyRequest(str(store)), SerialWorkers()).exit_code == 0
    to_test = [n for n, step in enumerate(steps) if not all("keep " in other for other in steps[max(n - 1, 0) : n + 2])]
    return scenario._replace(steps=[*to_test, len(steps)], repaired=read_store_files(store))


MARKER = b"what came later"
_OF_COMMANDS = re.compile(r"\.replaced-|\.attempt-|/\.restore/")  # files that are not the broker's
_EFFECTS = {"open", *(f"os.{name}" for name in ("rename", "link", "remove", "mkdir", "rmdir", "scandir", "listdir"))}
_EFFECTS |= {f"os.{name}" for name in ("truncate", "chmod", "chown")}


class _EffectListener:
    """Receives the effects while a block runs; shared, as an audit hook cannot be removed and slows later tests."""

    def __init__(self) -> None:
        self.call: Callable[[str], None] | None = None
        self.root = ""
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.call is None or event not in _EFFECTS:
            return
        path = arguments[0] if arguments else None
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root):
            self.notify(f"{event} {path}")

    def notify(self, effect: str) -> None:
        call, self.call = self.call, None  # effects of the change itself are not counted
        try:
            if call is not None:
                call(effect)
        finally:
            self.call = call


_listener = cache(_EffectListener)


@contextmanager
def record_effects(root: Path, number: int = -1, act: Callable[[], object] = lambda: None) -> Iterator[list[str]]:
    """List the effects below *root*, and call *act* before the effect of that number."""
    seen: list[str] = []

    def record(name: str) -> None:
        if len(seen) == number:
            act()
        seen.append(name)

    swap = install_module.swap_paths

    def recorded_swap(new: Path, old: Path) -> None:
        listener.notify(f"exchange {old}")
        swap(new, old)

    listener = _listener()
    listener.root, listener.call = str(root), record
    try:
        with (
            patch.object(install_module, "swap_paths", recorded_swap),
            patch.object(journal, "swap_paths", recorded_swap),
        ):
            yield seen
    finally:
        listener.call = None


class Change(NamedTuple):
    """One change of one file."""

    name: str
    apply: Callable[[Path], None]
    adds: bool  # whether it adds bytes that no other file contains


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(MARKER)


def _replace(path: Path) -> None:
    other = path.with_name(f"{path.name}-new")
    other.write_bytes(MARKER)
    other.replace(path)


CHANGES = (
    Change("grow", _grow, adds=True),
    Change("replace", _replace, adds=True),
    Change("truncate", lambda path: os.truncate(path, path.stat().st_size // 2), adds=False),
    Change("delete", Path.unlink, adds=False),
)


class Disturbance(NamedTuple):
    """A change of a file while a command ran, and the error of the command."""

    error: Exception | None
    change: Change
    victim: str
    effect: str
    left: bytes | None  # the content of the changed file

    def __str__(self) -> str:
        return f"{self.change.name} {self.victim} before {self.effect}: {self.error!r}"


def run_with_change(command: Callable[[], object], store: Path, number: int, random: Random) -> Disturbance:
    """Run a command, and change a random file of the store before the effect of that *number*."""
    change = random.choice(CHANGES)
    acted: list[tuple[str, bytes | None]] = []

    def act() -> None:
        files = sorted(path for path in store.rglob("*") if path.is_file() and not _OF_COMMANDS.search(str(path)))
        if files:
            victim = random.choice(files)
            change.apply(victim)
            acted.append((str(victim.relative_to(store)), victim.read_bytes() if victim.exists() else None))

    error = None
    with record_effects(store.parent, number, act) as seen:
        try:
            command()
        except (RequestError, OSError, FormatError) as refused:
            error = refused
    victim, left = acted[0] if acted else ("", None)
    return Disturbance(error, change, victim, seen[number] if number < len(seen) else "the end", left)


def find_wrong_files(
    disturbance: Disturbance, before: dict[str, bytes], result: dict[str, bytes], after: dict[str, bytes]
) -> list[str]:
    """
    Return the wrong files of the store *after* a command, given *before* and the *result* of an undisturbed command.

    Bytes that the change added must still be in its file; bytes that it removed are missing, or the file is as in
    *before* or *result*. Every other file must be as in *before* or *result*.
    """
    wrong = []
    for name in before.keys() | result.keys() | {disturbance.victim} - {""}:
        possible = [before.get(name), result.get(name)]
        if name == disturbance.victim:
            possible = [disturbance.left] if disturbance.change.adds else [*possible, disturbance.left]
        is_new = disturbance.error is not None and name not in before and name != disturbance.victim
        if after.get(name) not in possible and not is_new:
            wrong.append(f"{name} after {disturbance}")
    return wrong


PARTS = 12


def damage_all_parts(store: Path) -> None:
    segments = sorted((store / "commitlog").iterdir())
    queue = store / "consumequeue/T1/0"
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
def scene(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> RepairCase:
    return make_repair_case(golden(STORE), damage_all_parts, tmp_path_factory.mktemp("killed"))


def test_a_killed_repair_is_undone(scene: RepairCase) -> None:
    damaged = read_store_files(scene.damaged)
    for number in scene.steps:
        scene.kill_before_step(number)
        undo(str(scene.store), scene.request.out)

        assert read_store_files(scene.store) == damaged, number
        assert not list(scene.store.glob("*.*-*")), number


def test_an_undo_that_is_killed_after_a_step_is_completed_by_the_next_undo(
    scene: RepairCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored file of the log was taken for one that a broker had changed, so the next undo restored nothing."""
    write = Journal.write
    for number in range(2 * len(scene.plans)):
        scene.kill_before_step(scene.steps[-1])  # after the last step: the repair is complete
        before = iter(range(number))

        def killed(journal: Journal, before: Iterator[int] = before) -> None:
            if next(before, None) is None:
                raise KilledError
            write(journal)

        with monkeypatch.context() as patch, suppress(KilledError):
            patch.setattr(Journal, "write", killed)
            undo(str(scene.store), scene.request.out)
        journal = Journal.read(scene.request.out)
        if journal is not None and journal.entries:
            undo(str(scene.store), scene.request.out)

        assert read_store_files(scene.store) == read_store_files(scene.damaged), number


def append_as_broker(store: Path) -> Iterator[tuple[Path, bytes]]:
    """Append to the newest segment and the newest file of a queue; yield each file and its expected beginning."""
    for directory in (store / "commitlog", store / "consumequeue/T1/0"):
        newest = max(directory.iterdir())
        data = newest.read_bytes()
        end = len(data.rstrip(b"\0"))
        written = data[:end] + b"written by a broker"
        with newest.open("r+b") as file:  # in place, because the file may have other hard links
            file.write(written + data[len(written) :])
        yield newest, written


def test_changes_by_a_broker_after_a_killed_repair_are_kept_or_the_undo_refuses(scene: RepairCase) -> None:
    outcomes = []
    for number in scene.steps:
        scene.kill_before_step(number)
        written = dict(append_as_broker(scene.store))
        before = read_store_files(scene.store)
        try:
            undo(str(scene.store), scene.request.out)
            outcomes.append("undone")
        except RequestError:
            outcomes.append("refused")

            assert read_store_files(scene.store) == before, number

        assert all(path.read_bytes().startswith(data) for path, data in written.items()), number

    assert {*outcomes} == {"undone", "refused"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_repair_is_repeated_and_both_are_undone(scene: RepairCase, part: int) -> None:
    for number in scene.steps[part::PARTS]:
        scene.kill_before_step(number)

        assert repair(scene.request, SerialWorkers()).exit_code == 0, number
        assert read_store_files(scene.store) == scene.repaired, number
        undo(str(scene.store), scene.request.out)

        assert read_store_files(scene.store) == read_store_files(scene.damaged), number


DRAWS = int(os.environ.get("WORLD_DRAWS", "200"))
SEED = int(os.environ.get("SEED", "0"))
KEPT_SEEDS = {"restore": [9, 73, 116]}  # draws that once found a fault


class DisturbedCommand:
    """One command, and the content of the store before and after an undisturbed run of it."""

    def __init__(self, scene: RepairCase, command: str) -> None:
        self._scene, self._command = scene, command
        self.store = scene.store
        self.prepare()
        self.before = _content_of(self.store)
        with record_effects(self.store.parent) as seen:
            self.command()
        self.effects = list(seen)
        self.result = _content_of(self.store)

    def prepare(self) -> None:
        scene = self._scene
        if self._command == "restore":
            shutil.rmtree(scene.store, ignore_errors=True)
            interrupt = Mock(side_effect=KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt), record_effects(scene.store.parent, 150, interrupt):
                self._restore()
            return
        scene.reset()
        if self._command == "undo":
            repair(scene.request, SerialWorkers())

    def command(self) -> None:
        scene = self._scene
        if self._command == "apply":
            repair(scene.request, SerialWorkers())
        elif self._command == "undo":
            undo(str(scene.store), scene.request.out)
        elif self._command == "restore":
            self._restore()
        else:
            self._install(scene.store)

    def _install(self, store: Path) -> None:
        out = store.parent / "out"
        shutil.rmtree(out, ignore_errors=True)
        with lock_store(str(store), out) as held, held.checking_changes_on_error():
            plan = make_plan(store, QUEUES if self._command == "queues" else INDEX)
            held.refuse_changes()
            install(plan)

    def _restore(self) -> None:
        assert self._scene.request.lake is not None
        settings = GivenSettings(100, 20, "5.3.3", conf=BrokerConf(consume_queue_size=200))
        request = RestoreRequest(
            Lake(self._scene.request.lake.location), self.store, given_settings=settings, resume=self.store.exists()
        )
        restore(request, SerialWorkers())

    def draw(self, seed: int) -> list[str]:
        """Run the command with one random change of a file, and return the wrong files."""
        random = Random(f"{self._command}-{seed}")
        self.prepare()
        # Half of the draws are among the few effects that install files.
        near = [n for n, effect in enumerate(self.effects) if ".replaced-" in effect or ".attempt-" in effect]
        number = random.choice(near) if near and random.random() < 0.5 else random.randrange(len(self.effects) + 1)
        before = _content_of(self.store)
        disturbance = run_with_change(self.command, self.store, number, random)
        disturbance = disturbance._replace(left=_without_count(disturbance.left))
        after = {
            name: data
            for name, data in _content_of(self.store).items()
            if name in {*before, *self.result, disturbance.victim}
        }
        return [f"seed {seed}: {fault}" for fault in find_wrong_files(disturbance, before, self.result, after)]


def _content_of(store: Path) -> dict[str, bytes]:
    """Return the files of a store, without the number of segments that a restore had found: it rebuilds lost ones."""
    return {
        name: _without_count(data) or b"" if name == "MANIFEST.json" else data
        for name, data in read_store_files(store).items()
    }


def _without_count(data: bytes | None) -> bytes | None:
    return None if data is None else re.sub(rb'"resumed": \d+', b"", data)


COMMANDS = ("apply", "index", "queues", "undo", "restore")


@pytest.fixture(scope="module")
def disturbed(scene: RepairCase) -> Callable[[str], DisturbedCommand]:
    known: dict[str, DisturbedCommand] = {}
    return lambda command: (
        known[command] if command in known else known.setdefault(command, DisturbedCommand(scene, command))
    )


@pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        pytest.param(range(1, 4), marks=pytest.mark.slow),
        pytest.param(range(SEED, SEED + DRAWS), marks=pytest.mark.campaign),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", COMMANDS)
def test_changes_by_another_process_are_kept(
    disturbed: Callable[[str], DisturbedCommand], command: str, seeds: range
) -> None:
    kept = KEPT_SEEDS.get(command, ()) if seeds.start == 0 else ()

    assert [] == [fault for seed in (*kept, *seeds) for fault in disturbed(command).draw(seed)]


@pytest.mark.parametrize("command", ["repair", "rebuild-index", "rebuild-consumequeue"])
def test_nothing_is_installed_into_a_store_that_changed_meanwhile(scene: RepairCase, run: Run, command: str) -> None:
    """A broker that ran during the planning of a repair lost a message."""
    out, lake = scene.store.parent / "installed", scene.store.parent / "lake"
    sizes = () if command == "rebuild-consumequeue" else ("--hash-slots", 100, "--index-num", 20)
    options = (
        ("--consume-queue-size", 200, "--lake", lake, "--apply")
        if command == "repair"
        else ("--lost-only", "--install")
    )
    appended: list[tuple[Path, bytes]] = []

    def start(number: int = -1) -> tuple[Outcome, list[str]]:
        shutil.rmtree(out, ignore_errors=True)
        act = partial(next, append_as_broker(scene.reset()))
        with record_effects(scene.store.parent, number, lambda: appended.append(act())) as seen:
            return run(command, scene.store, "--out", out, "--release", "5.3.3", *sizes, *options), seen

    _, seen = start()
    installed = next(n for n, effect in enumerate(seen) if ".attempt-" in effect and effect.startswith("os.mkdir"))
    if command == "repair":
        moments = [installed // 2, installed, installed + 3]
    else:  # the first effect in the output comes after the lock was taken
        moments = [(next(n for n, effect in enumerate(seen) if str(out) in effect) + installed) // 2]
    for number in moments:
        done, _ = start(number)

        assert done.code is ExitCode.USAGE
        assert re.search(r"changed (this file )?while this command ran", " ".join(done.err.split()))
        segment, content = appended.pop()

        assert segment.read_bytes().startswith(content)
        assert command == "repair" or not list(scene.store.glob("*.replaced-*"))
