"""Kill repairs before a step, and change a file of the store while a command runs."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import pytest

import jobs.repair as journal
from jobs.lake.lake import Lake
from jobs.rebuild import install as install_module
from jobs.rebuild.install import Installation, install
from jobs.repair import run as repair_run
from jobs.repair.run import RepairRequest, repair
from jobs.store.running_broker import FileState, list_file_states, lock_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from tests.support.fault_kinds import SETTINGS
from tests.support.lakes import ingest_store
from tests.support.stores import read_store_files


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
            states={str(path.relative_to(plan.target_folder)): it for path, it in list_file_states(plan.target_folder)},
        )
    states = {name: FileState.read(plan.target_folder / name) for name in plan.set_aside}
    return replace(plan, states={name: state for name, state in states.items() if state is not None})


def make_repair_case(healthy: Path, damage: Callable[[Path], None], folder: Path) -> RepairCase:
    """Damage a copy of a store, and plan its repair with a lake that contains the whole store."""
    damaged = folder / "damaged"
    ingest_store(healthy, folder / "lake", release="5.3.3")
    damage(Path(shutil.copytree(healthy, damaged)))
    lake, store = Lake(str(folder / "lake")), folder / "store"
    request = RepairRequest(str(store), folder / "repair", lake, None, SETTINGS, apply=True)
    shutil.copytree(damaged, store)
    planned: list[Installation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair_run, "_apply", lambda _, plans, __: planned.extend(plans))
        repair(replace(request, out=folder / "plan"), SerialWorkers())
    steps: list[str] = []
    scenario = RepairCase(damaged, store, request, planned, [], {})
    scenario.reset()
    _apply(request, planned, steps.append)
    assert verify(VerifyRequest(str(store)), SerialWorkers()).exit_code == 0
    to_test = [n for n, step in enumerate(steps) if not all("keep " in other for other in steps[max(n - 1, 0) : n + 2])]
    return scenario._replace(steps=[*to_test, len(steps)], repaired=read_store_files(store))


MARKER = b"what came later"
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


@cache
def _listener() -> _EffectListener:
    return _EffectListener()


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


def run_with_change(
    command: Callable[[], object], store: Path, number: int, random: Random, refusals: tuple[type[Exception], ...]
) -> Disturbance:
    """Run a command, and change a random file of the store before the effect of that *number*."""
    change = random.choice(CHANGES)
    acted: list[tuple[str, bytes | None]] = []

    def act() -> None:
        files = sorted(path for path in store.rglob("*") if path.is_file() and _is_store_file(path.relative_to(store)))
        if files:
            victim = random.choice(files)
            change.apply(victim)
            acted.append((str(victim.relative_to(store)), victim.read_bytes() if victim.exists() else None))

    error = None
    with record_effects(store.parent, number, act) as seen:
        try:
            command()
        except refusals as refused:
            error = refused
    victim, left = acted[0] if acted else ("", None)
    return Disturbance(error, change, victim, seen[number] if number < len(seen) else "the end", left)


def _is_store_file(path: Path) -> bool:
    return not any(".replaced-" in part or ".attempt-" in part or part == ".restore" for part in path.parts)


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
