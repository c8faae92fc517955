"""Repairs that are killed before a step, and commands while another process changes a file of the store."""

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
from jobs.rebuild import install as installing
from jobs.rebuild.install import Installation, install
from jobs.repair import run as story
from jobs.repair.run import RepairRequest, repair
from jobs.store.running_broker import FileState, list_file_states, lock_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from tests.support.fault_kinds import WANTED
from tests.support.lakes import ingest_store
from tests.support.stores import read_files_except_replaced


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
    with pytest.MonkeyPatch.context() as patch, lock_store(request.store, request.out) as held:
        patch.setattr(story, "install", lambda plan: install(of_now(plan), step))
        story._apply(request, plans, held)  # noqa: SLF001 - the part of a repair that can be killed


def of_now(plan: Installation) -> Installation:
    """Return a plan with the states of the files of this copy of the store."""
    if plan.is_exchange:
        return replace(
            plan, states={str(path.relative_to(plan.folder)): it for path, it in list_file_states(plan.folder)}
        )
    states = {name: FileState.read(plan.folder / name) for name in plan.set_aside}
    return replace(plan, states={name: state for name, state in states.items() if state is not None})


def scene_of(healthy: Path, plant: Callable[[Path], None], folder: Path) -> Scene:
    """Damage a copy of a store, and plan its repair with a lake that has all of it."""
    damaged = folder / "damaged"
    ingest_store(healthy, folder / "lake", release="5.3.3")
    plant(Path(shutil.copytree(healthy, damaged)))
    lake, store = Lake(str(folder / "lake")), folder / "store"
    request = RepairRequest(str(store), folder / "repair", lake, None, WANTED, apply=True)
    shutil.copytree(damaged, store)
    planned: list[Installation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "_apply", lambda _, plans, __: planned.extend(plans))
        repair(replace(request, out=folder / "plan"), SerialWorkers())
    steps: list[str] = []
    made = Scene(damaged, store, request, planned, [], {})
    made.again()
    _apply(request, planned, steps.append)
    assert verify(VerifyRequest(str(store)), SerialWorkers()).exit_code == 0
    some = [n for n, step in enumerate(steps) if not all("keep " in near for near in steps[max(n - 1, 0) : n + 2])]
    return made._replace(steps=[*some, len(steps)], repaired=read_files_except_replaced(store))


MARKER = b"what came later"
_EFFECTS = {"open", *(f"os.{name}" for name in ("rename", "link", "remove", "mkdir", "rmdir", "scandir", "listdir"))}
_EFFECTS |= {f"os.{name}" for name in ("truncate", "chmod", "chown")}


class _Listener:
    """Receives the effects while a block runs; an audit hook cannot be removed, and slows every later test."""

    def __init__(self) -> None:
        self.call: Callable[[str], None] | None = None
        self.root = ""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.call is None or event not in _EFFECTS:
            return
        path = arguments[0] if arguments else None
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root):
            self.hear(f"{event} {path}")

    def hear(self, effect: str) -> None:
        call, self.call = self.call, None  # effects of the actor itself do not count
        try:
            if call is not None:
                call(effect)
        finally:
            self.call = call


@cache
def _listener() -> _Listener:
    return _Listener()


@contextmanager
def effects(root: Path, number: int = -1, act: Callable[[], object] = lambda: None) -> Iterator[list[str]]:
    """List the effects below *root*, and *act* before the one of that number."""
    seen: list[str] = []

    def effect(name: str) -> None:
        if len(seen) == number:
            act()
        seen.append(name)

    exchange = installing.swap_paths

    def exchanged(new: Path, old: Path) -> None:
        listener.hear(f"exchange {old}")
        exchange(new, old)

    listener = _listener()
    listener.root, listener.call = str(root), effect
    try:
        with patch.object(installing, "swap_paths", exchanged), patch.object(journal, "swap_paths", exchanged):
            yield seen
    finally:
        listener.call = None


class Change(NamedTuple):
    """One change of one file."""

    name: str
    apply: Callable[[Path], None]
    adds: bool  # bytes that no other file has


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


class Played(NamedTuple):
    """What a command left in whose way an actor was."""

    error: Exception | None
    change: Change
    victim: str
    effect: str
    left: bytes | None  # the victim, as the actor left it

    def __str__(self) -> str:
        return f"{self.change.name} {self.victim} before {self.effect}: {self.error!r}"


def play(
    command: Callable[[], object], store: Path, number: int, random: Random, refusals: tuple[type[Exception], ...]
) -> Played:
    """Run a command, and change a file of the store before its effect of that *number*."""
    change = random.choice(CHANGES)
    acted: list[tuple[str, bytes | None]] = []

    def act() -> None:
        files = sorted(path for path in store.rglob("*") if path.is_file() and _is_of_store(path.relative_to(store)))
        if files:
            victim = random.choice(files)
            change.apply(victim)
            acted.append((str(victim.relative_to(store)), victim.read_bytes() if victim.exists() else None))

    error = None
    with effects(store.parent, number, act) as seen:
        try:
            command()
        except refusals as refused:
            error = refused
    victim, left = acted[0] if acted else ("", None)
    return Played(error, change, victim, seen[number] if number < len(seen) else "the end", left)


def _is_of_store(path: Path) -> bool:
    return not any(".replaced-" in part or ".attempt-" in part or part == ".restore" for part in path.parts)


def faults(played: Played, before: dict[str, bytes], result: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """
    Return the wrong files of the store *after* a command.

    *before* is the store before it, *result* what the command makes of it alone. What the actor has added is where it
    added it; what it took away stays away, or is as the command has it; no other file is lost or half written.
    """
    wrong = []
    for name in before.keys() | result.keys() | {played.victim} - {""}:
        possible = [before.get(name), result.get(name)]
        if name == played.victim:
            possible = [played.left] if played.change.adds else [*possible, played.left]
        is_new = played.error is not None and name not in before and name != played.victim
        if after.get(name) not in possible and not is_new:
            wrong.append(f"{name} after {played}")
    return wrong
