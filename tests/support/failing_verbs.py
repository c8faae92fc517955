"""
Runs each verb while one of its system calls fails: a read, a write, a listing, with an error that a disk gives.

`failing_calls.c` makes the calls fail; this process imports and compiles everything once, and forks each command. A
seed draws the command, the error and the call: first a file and a kind of call, so that reads of many records do not
hide the rest. Afterwards the verb has failed and has named the place, or it gives what an undisturbed run gives; and
the next undisturbed run gives that in any case. Run it as a program, which starts itself again with the library:
`python -m tests.support.failing_verbs FIRST_SEED COUNT [VERB]`, or with a line of these on standard input for each
campaign; it prints the result of each as a line of JSON.
"""

import ctypes
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from html import unescape
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from deltalake import DeltaTable

from jobs.command import cli
from jobs.console import progress
from jobs.console.result import ExitCode
from jobs.query.place import Place
from tests.golden import unpack
from tests.support.killing import load_everything, result_of_fork, start_fork, wait_for_exit
from tests.support.lakes import list_leftovers
from tests.support.pages import rendered
from tests.support.stores import damage_log_queue_and_index, read_files

SOURCE = Path(__file__).with_name("failing_calls.c")
WRITING = ("create", "write", "fsync", "truncate", "rename", "link", "mkdir")
READING = ("open", "read", "list", "unlink")
# A signal interrupts any call where a file system waits for another machine or process.
ERRORS = {
    "EIO": (*WRITING, *READING),
    "ENOSPC": WRITING,
    "ETIMEDOUT": (*WRITING, *READING),
    "EINTR": (*WRITING, *READING),
}
COMMANDS = (
    "inspect {bad}",
    "inspect --deep {good}",
    "dump {segment}",
    "dump {index}",
    "verify {good}",
    "verify {bad}",
    "verify {bad} --findings-lake {lake}",
    "rebuild-index {bad} --out {out}",
    "rebuild-index {bad} --out {out} --lost-only --install",
    "rebuild-index {bad} --out {out} --lost-only --install --dry-run",
    "rebuild-consumequeue {bad} --out {out}",
    "rebuild-consumequeue {bad} --out {out} --dry-run",
    "rebuild-consumequeue {bad} --out {out} --lost-only --install",
    "restore {lake} --out {out}",
    "restore {lake} --out {stopped} --resume",
    "repair {bad} --out {out} --lake {lake}",
    "repair {bad} --out {out} --lake {lake} --apply",
    "repair {applied} --out {work} --undo",
    "diff {bad} {lake}",
    "ingest {good} --lake {out}",
    "ingest {bad} --lake {out}",
    "ingest {good} --lake {lake}",
    "ingest {bad} --lake {out} --dry-run",
    "query by-key -t T1 -k k1 --store {bad}",
    "query by-unique-key -t T1 -i 0A010203075F4E0E2F2A63805CCB0001 --store {bad}",
    "query by-unique-key -t T1 -i 0A010203075F4E0E2F2A63805CCB0001 --lake {lake}",
    "query by-id -i 7F000001000051AF00000000000000F2 --store {bad}",
    "query by-id -i 7F000001000051AF00000000000000F2 --lake {lake}",
    "query message -i 0A010203075F4E0E2F2A63805CCB0001 --store {bad}",
    "query message -i 7F000001000051AF00000000000000F2 --lake {lake}",
    "query sql --lake {lake} 'SELECT topic, count(*) FROM messages GROUP BY topic ORDER BY topic'",
    "query by-offset -t T1 -i 0 -o 3 --store {bad}",
    "query list -t T1 --store {bad}",
    "query mqadmin --store {bad} topicStatus -t T1",
    "query story -t T1 -k k1 --store {good}",
    "query by-key -t T1 -k k1 --lake {lake}",
    "query list -t T1 --lake {lake}",
    "export --store {bad} --out {file}",
    "export --lake {lake} --out {file}",
    "export --lake {lake} --out {file} --dry-run",
    "type {lake} --types {types}",
    "optimize {lake}",
    "optimize {lake} --dry-run",
    "optimize {lake} --heal",
    "catalog {lake}",
    "browse store={bad} /",
    "browse store={bad} /messages?topic=T1",
    "browse store={good} /messages.ndjson?key=k1",
    "browse store={good} /find?id=k1",
    "browse store={bad} /topics",
    "browse store={good} /groups",
    "browse store={good} /unfinished",
    "browse lake={lake} /",
    "browse lake={lake} /messages?topic=T1",
    "browse lake={lake} /find?id=k1",
    "browse lake={lake} /tables/messages",
)
_CHANGE_LAKES = ("ingest", "type", "optimize", "verify {bad} --findings-lake")
# What differs from run to run: seconds, rates, ids, times of files, names that a run makes.
_OF_THE_RUN = re.compile(
    r"\([\d.,]+ (?:s|min [\d.]+ s).*|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*"
)


class Failure(NamedTuple):
    """The call that fails, by its number among those of some kinds; with 0 none fails, and each one is noted."""

    error: str
    kinds: tuple[str, ...]
    number: int = 0


class Try(NamedTuple):
    """One run of a command: its exit code, its output, and the files that it left."""

    code: int
    said: str
    left: dict[str, str]
    hit: str = ""  # the call that failed


class Commands:
    """The commands with their stores and lakes, each run in a fork on a copy of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = folder / "base"
        self._rows: dict[str, dict[str, str]] = {}
        self._undisturbed: dict[str, tuple[Try, list[str]]] = {}

    def prepare(self) -> None:
        """Make a store, a damaged one, one that has been repaired, and the lake of the first."""
        base = self._base
        base.mkdir(parents=True)
        good = unpack("b551-base", base).rename(base / "good")
        shutil.rmtree(good / "EXPECT")
        for name in ("bad", "applied"):
            damage_log_queue_and_index(Path(shutil.copytree(good, base / name)))
        (base / "types.toml").write_text('topic.T1 = {format = "json", schema = "id bigint"}')
        here = self._fresh()
        for line in ("ingest {good} --lake {lake}", "repair {applied} --out {work} --lake {lake} --apply"):
            assert self._run(line, here, None).code in {0, 3, 4}, line
        half = self._run("restore {lake} --out {stopped}", here, Failure("EIO", ("link",), 5))
        assert half.code == ExitCode.FAILED, half
        shutil.rmtree(base)
        here.rename(base)

    def undisturbed(self, line: str) -> tuple[Try, list[str]]:
        """Return what a command gives when no call fails, and its calls."""
        if line not in self._undisturbed:
            here = self._fresh()
            found = self._run(line, here, Failure("EIO", (*WRITING, *READING)))
            calls = (self._folder / "noted").read_text().splitlines()
            self._undisturbed[line] = found, calls
        return self._undisturbed[line]

    def faults(self, line: str, failure: Failure) -> tuple[list[str], Try]:
        """Run a command while a call fails, then without a failure; return the errors, and the first run."""
        expected, _ = self.undisturbed(line)
        here = self._fresh()
        disturbed = self._run(line, here, failure)
        if not disturbed.hit:
            return [], disturbed  # this run made fewer calls: threads take turns as they like
        wrong = _wrong(expected, disturbed)
        is_done = disturbed.code == expected.code and _text(disturbed.said) == _text(expected.said)
        # A verdict says that its findings are in the lake, also where it cannot say that they survive a loss of power.
        is_done |= "--findings-lake" in line and disturbed.code == expected.code
        again = disturbed if is_done else self._again(line, here)
        # What is installed already, the next run does not install; nor does it name damage and dead letters that the
        # failed run has committed.
        is_said_once = line.startswith(("ingest {bad}", "type"))
        may_differ = "--undo" in line or "--install" in line or "--apply" in line or is_said_once
        if again.code != expected.code and not may_differ:
            wrong.append(f"the next run ended with {again.code}, not {expected.code}: {again.said[-600:]}")
        first, second = _content(line, expected.left), _content(line, again.left)
        names = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        if names and again.code in {expected.code, ExitCode.CLEAN, ExitCode.USAGE}:
            wrong.append(f"the next run left something else: {', '.join(names[:8])}")
        if line.startswith(_CHANGE_LAKES):
            if line not in self._rows:
                kept = self._run(line, self._fresh(), None)
                assert kept.code == expected.code
                self._rows[line] = self._lake_content(line)
                wrong += self.faults(line, failure)[0]  # on another copy: the first one is gone
            elif (content := self._lake_content(line)) != self._rows[line]:
                wrong.append(f"something else is in the lake: {content}, not {self._rows[line]}")
        return wrong, disturbed

    def _lake_content(self, line: str) -> dict[str, str]:
        """Describe the lakes here, and what an ingest left over, in a fork: threads do not survive one."""
        here = self._folder / "here"

        def describe() -> dict[str, str]:
            tables = sorted({path.parent for path in here.rglob("_delta_log")})
            found = {
                table.relative_to(here).as_posix(): _rows_of(table)
                for table in tables
                if table.name != "runs" and any((table / "_delta_log").iterdir())
            }
            found = {name: rows for name, rows in found.items() if not rows.startswith("0 ")}
            left = [name for lake in ("lake", "out") for name in list_leftovers(here / lake)]
            return found | {"leftovers": " ".join(left) if line.startswith("ingest") else ""}

        return result_of_fork(self._folder, describe)

    def _again(self, line: str, here: Path) -> Try:
        """Run a command once more, as its message says: some begin with an empty directory."""
        if "repair" not in line and "ingest" not in line:
            shutil.rmtree(here / "out", ignore_errors=True)
            (here / "file").unlink(missing_ok=True)
        return self._run(line, here, None)

    def _fresh(self) -> Path:
        here = self._folder / "here"
        shutil.rmtree(here, ignore_errors=True)
        # A restore knows the segments that it has finished by their inodes.
        copy = lambda source, to: (os.link if "/stopped/" in source else shutil.copy2)(source, to)  # noqa: E731
        shutil.copytree(self._base, here, symlinks=True, copy_function=copy)
        return here

    def _run(self, line: str, here: Path, failure: Failure | None) -> Try:
        places = {name: here / name for name in ("good", "bad", "applied", "lake", "out", "work", "file", "stopped")}
        places["segment"] = sorted((here / "bad" / "commitlog").iterdir())[1]
        places["index"] = min((here / "good" / "index").iterdir())
        places["types"] = here / "types.toml"
        words = [word.format(**places) for word in shlex.split(line)]
        for name in ("noted", "said"):
            (self._folder / name).unlink(missing_ok=True)
        code = wait_for_exit(start_fork(partial(self._child, words, failure, here)))
        noted = self._folder / "noted"
        hits = noted.read_text().splitlines() if noted.exists() else []
        said = (self._folder / "said").read_text(errors="replace").replace(str(here), "")
        is_counted = failure is not None and failure.number == 0
        return Try(code, said, _left(here), "" if is_counted or not hits else hits[0])

    def _child(self, words: Sequence[str], failure: Failure | None, here: Path) -> int:
        said = os.open(self._folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if failure is not None:
            fail_call(here, failure, os.open(self._folder / "noted", os.O_WRONLY | os.O_CREAT, 0o644))
        progress._PLAIN_INTERVAL = float("inf")  # noqa: SLF001 - a slow machine would print lines that a fast one does not
        try:
            return _browsed(words[1], words[2]) if words[0] == "browse" else int(cli.main(words))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _browsed(place: str, path: str) -> int:
    """Answer for a page as a process of `browse` does, and print the answer."""
    reply = rendered(Place(**dict([place.split("=", 1)])), path)  # type: ignore[arg-type] # two of its texts
    sys.stdout.write(f"{reply.status} {reply.headers['location']}\n{unescape(reply.body.decode(errors='replace'))}")
    return int(ExitCode.CLEAN if reply.status < HTTPStatus.BAD_REQUEST else ExitCode.FAILED)


def _rows_of(table: Path) -> str:
    """Return how many rows a table has, and a hash of their offsets in the log."""
    rows = DeltaTable(str(table)).to_pyarrow_dataset()
    offsets = rows.to_table(columns=[name for name in rows.schema.names if name == "physical_offset"])
    digest = sha256(repr(sorted(offsets.to_pydict().get("physical_offset", []))).encode()).hexdigest()[:16]
    return f"{rows.count_rows()} rows, offsets {digest}"


def library(folder: Path) -> Path:
    """Compile the library that makes calls fail; it is loaded before libc, so calls of Arrow and deltalake count."""
    made = folder / "failing_calls.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


def fail_call(below: Path, failure: Failure, noted: int) -> None:
    """Let a call on a file below a folder fail; *noted* is the descriptor that its name is written to."""
    names = " ".join(failure.kinds).encode()
    ctypes.CDLL(None).fail_call(
        os.fsencode(below), names, ctypes.c_long(failure.number), getattr(errno, failure.error), noted
    )


def _wrong(expected: Try, found: Try) -> list[str]:
    """Return the errors in the result of a run in which a call failed."""
    if "Traceback" in found.said or found.code not in set(map(int, ExitCode)):
        return [f"traceback, exit code {found.code}: {found.said[-1500:]}"]
    if found.code == expected.code and _text(found.said) == _text(expected.said):
        return []
    # A file is written as `.NAME.attempt-UUID` first: NAME is what a user knows.
    parts = [re.sub(r"^\.(.+)\.attempt-.*", r"\1", part) for part in Path(found.hit.partition(" ")[2]).parts]
    # Of a full disk, and of a temporary file of ours, the directory says enough.
    is_enough = "No space left on device" in found.said or any(part.startswith(".") for part in parts)
    is_named = any(part in found.said for part in (parts if is_enough else parts[1:] or parts))
    if found.code == ExitCode.CLEAN and found.code != expected.code:
        return [f"exit code 0, not {expected.code}: {found.said[-800:]}"]
    if not is_named:
        return [f"the place of {found.hit} is not named: {found.said[-800:]}"]
    return []


def _text(said: str) -> str:
    return _OF_THE_RUN.sub("", said)


def _left(here: Path) -> dict[str, str]:
    """Return the files below *here* with their content, but for what differs from run to run."""
    found = {name: data for name, data in read_files(here).items() if not name.startswith(("work/", "types"))}
    return {name: sha256(data).hexdigest()[:16] for name, data in found.items()}


def _content(line: str, left: dict[str, str]) -> dict[str, str]:
    """Return what must be equal: a changed store, an export, rebuilt files; of lakes the rows are counted."""
    changed = line.split()[1].strip("{}") if "--install" in line or "--apply" in line or "--undo" in line else ""
    return {
        name: digest
        for name, digest in left.items()
        if name.startswith(changed) and ".replaced-" not in name and not _OF_A_LAKE.search(name)
    }


_OF_A_LAKE = re.compile(r"^lake/|_delta_log/|\.parquet$|\.json$|^out/_|/\.")


def draw(commands: Commands, seed: int, verb: str = "") -> tuple[str, Failure] | None:
    """Return the command and the failing call of a seed."""
    random = Random(seed)
    lines = [line for line in COMMANDS if line.startswith(verb)]
    line = random.choice(lines)
    error = random.choice(sorted(ERRORS))
    _, calls = commands.undisturbed(line)
    kinds = [call.partition(" ")[0] for call in calls]
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if kinds[place] in ERRORS[error]:
            places.setdefault(_OF_THE_RUN.sub("", call), []).append(place)
    if not places:
        return None
    place = random.choice(places[random.choice(sorted(places))])
    return line, Failure(error, (kinds[place],), kinds[: place + 1].count(kinds[place]))


def campaign(commands: Commands, first: int, count: int, verb: str = "") -> dict[str, Any]:
    """Try each seed; return the number of failed calls by verb and error, how many of them differ, and the errors."""
    tried, different, bad = Counter[str](), set[tuple[str, str, str]](), []
    codes = Counter[int]()
    for seed in range(first, first + count):
        drawn = draw(commands, seed, verb)
        if drawn is None:
            continue
        line, failure = drawn
        wrong, found = commands.faults(line, failure)
        if not found.hit:
            continue
        tried[f"{line.partition(' ')[0]} {failure.error}"] += 1
        codes[found.code] += 1
        different.add((line, found.hit, failure.error))
        if wrong:
            bad.append({"seed": seed, "command": line, "error": failure.error, "call": found.hit, "wrong": wrong})
            print(json.dumps(bad[-1]), file=sys.stderr, flush=True)
    by = dict(sorted(tried.items()))
    return {"tried": tried.total(), "different": len(different), "by": by, "codes": dict(codes), "bad": bad}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "LD_PRELOAD" not in os.environ:
            command = [sys.executable, "-m", "tests.support.failing_verbs", *sys.argv[1:]]
            sys.exit(subprocess.call(command, env={**os.environ, "LD_PRELOAD": str(library(Path(folder)))}))
        load_everything()
        commands = Commands(Path(folder))
        commands.prepare()
        for line in [" ".join(sys.argv[1:])] if sys.argv[1:] else sys.stdin:
            first, count, *verb = line.rstrip("\n").split(" ", 2)
            print(json.dumps(campaign(commands, int(first), int(count), "".join(verb))), flush=True)


if __name__ == "__main__":
    main()
