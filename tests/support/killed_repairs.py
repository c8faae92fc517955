"""Repairs that are killed before each of their steps."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.lake.lake import Lake
from jobs.rebuild.install import Installation, install
from jobs.repair import run as story
from jobs.repair.run import RepairRequest, repair
from jobs.store.beside_broker import FileState, file_states, hold_store
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from tests.support.fault_kinds import WANTED
from tests.support.lakes import ingest_store
from tests.support.stores import content_of


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
    with pytest.MonkeyPatch.context() as patch, hold_store(request.store, request.out) as held:
        patch.setattr(story, "install", lambda plan: install(of_now(plan), step))
        story._apply(request, plans, held)  # noqa: SLF001 - the part of a repair that can be killed


def of_now(plan: Installation) -> Installation:
    """Return a plan with the states of the files of this copy of the store."""
    if plan.is_exchange:
        return replace(plan, states={str(path.relative_to(plan.folder)): it for path, it in file_states(plan.folder)})
    states = {name: FileState.of(plan.folder / name) for name in plan.set_aside}
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
        repair(replace(request, out=folder / "plan"), OneByOne())
    steps: list[str] = []
    made = Scene(damaged, store, request, planned, [], {})
    made.again()
    _apply(request, planned, steps.append)
    assert verify(VerifyRequest(str(store)), OneByOne()).exit_code == 0
    some = [n for n, step in enumerate(steps) if not all("keep " in near for near in steps[max(n - 1, 0) : n + 2])]
    return made._replace(steps=[*some, len(steps)], repaired=content_of(store))
