"""
A second actor that changes one file of a store between any two file-system effects of a command.

The interpreter tells of each effect on a path before it happens (`sys.addaudithook`); exchanging two files is a system
call of its own, and is counted as well.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from jobs.rebuild import install as installing
from jobs.repair import journal

MARKER = b"what came later"
_EFFECTS = {"open", *(f"os.{name}" for name in ("rename", "link", "remove", "mkdir", "rmdir", "scandir", "listdir"))}
_EFFECTS |= {f"os.{name}" for name in ("truncate", "chmod", "chown")}


class _Listener:
    """Receives the effects while a block runs; an audit hook cannot be removed."""

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


_listener = _Listener()


@contextmanager
def effects(root: Path, number: int = -1, act: Callable[[], object] = lambda: None) -> Iterator[list[str]]:
    """List the effects below *root*, and *act* before the one of that number."""
    seen: list[str] = []

    def effect(name: str) -> None:
        if len(seen) == number:
            act()
        seen.append(name)

    exchange = installing.exchange

    def exchanged(new: Path, old: Path) -> None:
        _listener.hear(f"exchange {old}")
        exchange(new, old)

    _listener.root, _listener.call = str(root), effect
    try:
        with patch.object(installing, "exchange", exchanged), patch.object(journal, "exchange", exchanged):
            yield seen
    finally:
        _listener.call = None


class Change(NamedTuple):
    """One change of one file."""

    name: str
    apply: Callable[[Path], None]
    adds: bool  # bytes that nobody else has


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
    Return what is wrong with the store *after* a command.

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
