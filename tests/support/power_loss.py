"""
Cut the power while a command writes, or after it has said that it is done, and run it again.

`failing_calls.c` kills the command before one of its calls, and keeps what it has flushed until then. `lose` then turns
the directory into one of the states that POSIX allows after a power failure: whatever was not flushed is there, lost,
torn or zero. An entry of a directory that was flushed stays, a file that was flushed has at least these bytes; a rename
is complete or did not happen. `python -m tests.support.power_loss FIRST_SEED COUNT [COMMAND]`, or with these on a line
of standard input for each campaign, prints the result of each as a line of JSON.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from jobs.console.result import ExitCode
from tests.support.failing_commands import COMMANDS, WRITING, Commands, Failure, Outcome, restart_with_library
from tests.support.killing import load_everything

_CHANGING = (*(kind for kind in WRITING if kind != "close"), "unlink")
_WRITERS = (  # every command that writes; the last one is a restore that continues
    *("ingest {good} --lake", "ingest {bad} --lake {out}", "type", "optimize {lake}", "catalog", "export"),
    *(
        "rebuild",
        "restore",
        "repair {bad} --out {out} --lake {lake}",
        "repair {applied}",
        "verify {bad} --findings-lake",
    ),
)
_BLOCK = 512  # bytes that a disk writes as a whole
_DONE_PROBABILITY = 0.3  # of a power failure after the end of the command
Entries = dict[str, int]  # names and inodes


class Disk:
    """A directory before a command: what the disk has of it, as far as nothing else is flushed."""

    def __init__(self, root: Path, kept: Path) -> None:
        self.root, self.kept = root, kept
        self.files: dict[int, bytes] = {}
        self.directories: dict[int, Entries] = {}
        for inode, path in _list_directories(root):
            self.directories[inode] = _entries(path)
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.files[path.stat().st_ino] = path.read_bytes()
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()

    def lose(self, random: Random) -> None:
        """Replace the directory by a state that the disk may have; whatever was flushed, is there."""
        self._collect_flushed()
        style = random.choice(("lost", "empty", "zero", "random", "random"))
        root = self.root.stat().st_ino
        actual = {inode: _entries(path) for inode, path in _list_directories(self.root)}
        chosen = self._choose_entries(actual, style, random)
        places = self._take_apart()
        written, placed = set[int](), {root}

        def build(place: Path, inode: int) -> None:
            for name, child in sorted(chosen.get(inode, {}).items()):
                target = place / name
                if child in chosen and child not in placed:
                    placed.add(child)
                    places[child].rename(target) if child in places else target.mkdir()
                    build(target, child)
                elif child in places and child not in chosen:
                    os.link(places[child], target, follow_symlinks=False)
                    if child not in written and not target.is_symlink():
                        self._write(target, child, style, random)
                    written.add(child)

        build(self.root, root)

    def _take_apart(self) -> dict[int, Path]:
        """Move all files and directories out of the root; return their places by inode, also those of deleted files."""
        places: dict[int, Path] = {}
        for path in sorted(self.root.rglob("*"), reverse=True):
            inode = path.lstat().st_ino
            kept = self.kept / f"moved-{inode}"
            if inode in places:
                path.unlink()  # a second name
            else:
                places[inode] = path.rename(kept)
        for path in self.kept.glob("deleted-*"):
            places.setdefault(path.stat().st_ino, path)
        return places

    def _collect_flushed(self) -> None:
        for path in self.kept.glob("flushed-*"):
            self.files[int(path.name.partition("-")[2])] = path.read_bytes()
        for path in self.kept.glob("gone-*"):
            self.directories.pop(int(path.name.partition("-")[2]), None)
        for path in self.kept.glob("listed-*"):
            lines = (line.split(" ", 1) for line in path.read_text().splitlines())
            entries = {name: int(inode) for inode, name in lines if name not in {".", ".."}}
            self.directories[int(path.name.partition("-")[2])] = entries

    def _choose_entries(self, actual: dict[int, Entries], style: str, random: Random) -> dict[int, Entries]:
        """Return the entries of each directory; the names of one rename change together."""
        changed: list[tuple[int, str, int | None, int | None]] = []
        chosen: dict[int, Entries] = {}
        for inode in actual.keys() | self.directories.keys():
            before, after = self.directories.get(inode, {}), actual.get(inode, {})
            chosen[inode] = {name: child for name, child in before.items() if after.get(name) == child}
            names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            changed += [(inode, name, before.get(name), after.get(name)) for name in names]
        for group in _group_renames(changed):
            is_new = style in {"empty", "zero"} or (style == "random" and random.random() < 0.5)
            for inode, name, old, new in group:
                child = new if is_new else old
                if child is not None:
                    chosen[inode][name] = child
        return chosen

    def _write(self, target: Path, inode: int, style: str, random: Random) -> None:
        """Give a file bytes that the disk may have; its inode and times stay."""
        actual = target.read_bytes()
        flushed = self.files.get(inode, b"")
        if actual == flushed:
            return
        how = random.choice(("lost", "kept", "zero", "torn")) if style == "random" else style
        content = {
            "lost": flushed,
            "empty": flushed,
            "kept": actual,
            "zero": flushed + bytes(max(len(actual) - len(flushed), 0)),
            "torn": actual[: random.randrange(len(actual) // _BLOCK + 1) * _BLOCK],
        }[how]
        status = target.stat()
        target.write_bytes(content)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _list_directories(root: Path) -> Iterator[tuple[int, Path]]:
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            yield path.stat().st_ino, path


def _entries(directory: Path) -> Entries:
    return {path.name: path.lstat().st_ino for path in directory.iterdir()}


def _group_renames(
    changed: Sequence[tuple[int, str, int | None, int | None]],
) -> Iterator[list[tuple[int, str, int | None, int | None]]]:
    """Yield names that change together: one of them loses the inode that another one gets."""
    groups: list[list[tuple[int, str, int | None, int | None]]] = []
    for one in changed:
        related = [
            group for group in groups if any({one[2], one[3]} & {other[2], other[3]} - {None} for other in group)
        ]
        groups = [group for group in groups if group not in related]
        groups.append([one, *(other for group in related for other in group)])
    yield from groups


def _record(below: Path, kept: Path, failure: Failure, calls: int) -> None:
    library = ctypes.CDLL(None)
    names = " ".join(failure.kinds).encode()
    library.fail_call(os.fsencode(below), names, ctypes.c_long(failure.number), -1, calls)
    library.record_flushes(os.fsencode(kept))


def list_changes(commands: Commands, line: str) -> int:
    """Return the number of calls of a command that change files."""
    calls = commands.undisturbed(line).calls
    return sum(call.partition(" ")[0] in _CHANGING for call in calls)


def cut_power(commands: Commands, line: str, number: int, random: Random) -> tuple[list[str], Outcome]:
    """
    Cut the power before a call of a command, or after its end if *number* is 0; return the errors, and the outcome.

    After the end, the state must be that of an undisturbed command; before, the next command must reach it.
    """
    expected, _, _, rows = commands.undisturbed(line)
    here = commands.copy_base()
    disk = Disk(here, here.with_name("kept"))
    found = commands.run(line, here, Failure("EIO", _CHANGING, number or 1 << 60), partial_record(disk.kept))
    is_done = found.code != -signal.SIGKILL
    if is_done and found.code != expected.code:
        return [f"exit code {found.code} without a power failure: {found.output[-800:]}"], found
    disk.lose(random)
    if is_done:
        return _find_differences(commands, line, expected, commands.read_left(here), rows), found
    again = commands.repeat(line, here)
    wrong = []
    if "Traceback" in again.output or again.code < 0 or again.code == ExitCode.FAILED:
        wrong.append(f"the next run ended with {again.code}: {again.output[-1500:]}")
    elif again.code != expected.code and not commands.may_differ(line):
        wrong.append(f"the next run ended with {again.code}, not {expected.code}: {again.output[-1500:]}")
    return wrong or _find_differences(commands, line, expected, again.left, rows), found


def partial_record(kept: Path) -> Any:  # noqa: ANN401 - a function of the child
    """Return the function with which the child records its flushes."""
    return lambda below, failure, calls: _record(below, kept, failure, calls)


def _find_differences(
    commands: Commands, line: str, expected: Outcome, left: dict[str, str], rows: dict[str, str]
) -> list[str]:
    names = commands.different_files(line, expected.left, left)
    wrong = [f"different files: {', '.join(names[:8])}"] if names else []
    if (content := commands.lake_content(line)) != rows:
        wrong.append(f"the lake has different rows: {content}, not {rows}")
    return wrong


def _draw(commands: Commands, seed: int, command: str) -> tuple[str, int, Random]:
    random = Random(seed)
    line = random.choice(
        [line for line in COMMANDS if line.startswith(command or _WRITERS) and "--dry-run" not in line]
    )
    count = list_changes(commands, line)
    is_after_end = random.random() < _DONE_PROBABILITY or not count
    number = 0 if is_after_end else random.randrange(1, count + 1)
    return line, number, random


def campaign(commands: Commands, seeds: Iterable[int], command: str = "") -> dict[str, Any]:
    """Cut the power once for each seed; return the number of cases by command, and the errors."""
    tried, bad = Counter[str](), []
    for seed in seeds:
        line, number, random = _draw(commands, seed, command)
        wrong, found = cut_power(commands, line, number, random)
        tried[f"{line.partition(' ')[0]} {'done' if not found.hit else 'killed'}"] += 1
        if wrong:
            bad.append({"seed": seed, "command": line, "number": number, "call": found.hit, "wrong": wrong})
            print(json.dumps(bad[-1]), file=sys.stderr, flush=True)
    return {"tried": tried.total(), "by": dict(sorted(tried.items())), "bad": bad}


def main() -> None:
    restart_with_library("tests.support.power_loss")
    load_everything()
    with tempfile.TemporaryDirectory() as directory:
        commands = Commands(Path(directory))
        commands.prepare()
        for line in [" ".join(sys.argv[1:])] if sys.argv[1:] else sys.stdin:
            first, count, *command = line.rstrip("\n").split(" ", 2)
            seeds = range(int(first), int(first) + int(count))
            print(json.dumps(campaign(commands, seeds, "".join(command))), flush=True)


if __name__ == "__main__":
    main()
