"""
Run each command while one of its system calls fails with an error of a disk: a read, a write, or a listing.

`failing_calls.c` makes the calls fail; this process imports and compiles everything once, and forks each command. A
seed draws a command of `failing_commands.txt`, the error and the call: first a file and a kind of call, because
otherwise most draws would be reads of records. The command must fail and name the path, or produce the result of an
undisturbed run; the next run must produce that result in any case. Run it as a program, which restarts itself with the
library: `python -m tests.support.failing_commands FIRST_SEED COUNT [COMMAND]`, or with these on a line of standard
input for each campaign; it prints the result of each as a line of JSON. `ERROR KINDS [COMMAND]`, for example `EIO
stat,close query`, does not draw: the first and the last call of each kind fail, for each file. `every NTH [COMMAND]`
lists these calls for all kinds, with an error that suits each, and lets every n-th of them fail. With `sites NTH
[COMMAND]`, one call of each kind fails for each place in our code that makes such calls, for any file: errors of
the others are handled by the same lines. Of all commands that come to a place, the one with the fewest calls is run.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from html import unescape
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from deltalake import DeltaTable

from jobs.command_line import cli
from jobs.console import progress
from jobs.console.result import ExitCode
from jobs.requests.query import QueryTarget
from tests.golden import unpack
from tests.support.killing import load_everything, result_of_fork, run_in_fork
from tests.support.lakes import list_leftovers
from tests.support.pages import render_page
from tests.support.stores import damage_log_queue_and_index, read_files

SOURCE = Path(__file__).with_name("failing_calls.c")
WRITING = ("create", "write", "fsync", "truncate", "rename", "link", "mkdir", "close")
READING = ("open", "read", "list", "stat", "unlink")
ALL = (*WRITING, *READING)
# A signal interrupts any call where a file system waits for another machine or process.
ERRORS = {
    "EIO": (*WRITING, *READING),
    "ENOSPC": WRITING,
    "ETIMEDOUT": (*WRITING, *READING),
    "EINTR": (*WRITING, *READING),
}
# Errors that a file system returns for a call, one after the other in an enumeration.
SUITED_ERRORS = {
    "open": ("EIO", "EACCES", "EMFILE", "ESTALE", "EINTR"),
    "read": ("EIO", "ESTALE", "EINTR"),
    "list": ("EIO", "EACCES", "ESTALE", "EMFILE"),
    "stat": ("EIO", "EACCES", "ESTALE"),
    "close": ("EIO", "ESTALE", "EINTR"),
    "create": ("EACCES", "ENOSPC", "EMFILE", "EIO"),
    "write": ("EIO", "ENOSPC", "EINTR"),
    "fsync": ("EIO", "ENOSPC"),
    "truncate": ("EIO", "ENOSPC"),
    "rename": ("EIO", "EACCES", "ENOSPC"),
    "link": ("EIO", "EACCES", "ENOSPC"),
    "mkdir": ("EIO", "EACCES", "ENOSPC"),
    "unlink": ("EIO", "EACCES"),
}
COMMANDS = Path(__file__).with_name("failing_commands.txt").read_text(encoding="utf-8").splitlines()
# Commands of the enumeration alone: a further line above would change the draw of each seed.
ENUMERATED = (
    *COMMANDS,
    "inspect --usage {good}",
    "dump {queue}",
    "dump {good}/checkpoint",
    "diff {bad} {good}",
    "query message -i 7F000001000051AF00000000000000F2 --store {good}",
    "query mqadmin --lake {lake} queryMsgByKey -t T1 -k k1",
    "query story -t T1 -k k1 --lake {lake}",
    "query by-offset -t T1 -i 0 -o 3 --lake {lake}",
    "query sql --lake {lake} --output csv 'SELECT physical_offset FROM messages ORDER BY 1'",
    "browse lake={lake} /groups",
    "browse lake={lake} /topics",
)
_LAKE_COMMANDS = ("ingest", "type", "optimize", "verify {bad} --findings-lake")
# Output that differs from run to run: seconds, rates, ids, file times; a failed `close` of a file that Arrow has read.
_VOLATILE = re.compile(
    r"\S*/io/interfaces\.cc:\d+: Error ignored when destroying file .*\n|"
    r"\([\d.,]+ (?:s|min [\d.]+ s).*|replaced-\d{8}T\d{6}-[0-9a-f]{8}|"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*"
)

_NUMBERED = re.compile(r"\d{6,}|[0-9a-z_]{8}$")  # parts of names that differ from file to file of the same kind
_ROOT = Path(__file__).parents[2]
_OUR_CODE = tuple(f"{_ROOT / name}/" for name in ("jobs", "rmq_formats"))
_FRAMES_OF_SITE = 4  # the innermost lines of our code that make a call: those that may handle its error
# The directories of a queue and of a lake's table: all of them are read and written in the same way.
_OF_SAME_KIND = re.compile(r"(?<=consumequeue/)[^/]+/\d+|(?<=[ /]queues/)[^/]+/\d+|(?<= lake/)\w+/|(?<= out/)\w+/\d*")


class Failure(NamedTuple):
    """The failing call, by its number among the calls of some kinds; with 0 no call fails, and all are recorded."""

    error: str
    kinds: tuple[str, ...]
    number: int = 0


FailCall = Callable[[Path, Failure, int], None]  # the directory, and the descriptor to which calls are written


class Outcome(NamedTuple):
    """The result of a command: its exit code, its output, and the hashes of all files afterwards."""

    code: int
    out: str
    err: str
    left: dict[str, str]
    hit: str = ""  # the call that failed

    @property
    def output(self) -> str:
        return self.out + self.err


class Undisturbed(NamedTuple):
    """The result of a command without a failing call, its calls, and the content of the lakes afterwards."""

    outcome: Outcome
    calls: list[str]
    sites: list[
        str
    ]  # for each call, the lines of our code that made it, the innermost first; empty in a foreign thread
    rows: dict[str, str]


class Commands:
    """The commands with their stores and lakes; each command runs in a fork, on its own copy."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.base = directory / "base"
        self._undisturbed: dict[str, Undisturbed] = {}

    def prepare(self) -> None:
        """Create a store, a damaged copy, a repaired copy, the lake of the store, and an interrupted restore."""
        base = self.base
        base.mkdir(parents=True)
        good = unpack("b551-base", base).rename(base / "good")
        shutil.rmtree(good / "EXPECT")
        for name in ("bad", "applied"):
            damage_log_queue_and_index(Path(shutil.copytree(good, base / name)))
        (base / "types.toml").write_text('topic.T1 = {format = "json", schema = "id bigint"}')
        here = self.copy_base()
        for line in ("ingest {good} --lake {lake}", "repair {applied} --out {work} --lake {lake} --apply"):
            assert self.run(line, here).code in {0, 3, 4}, line
        stopped = self.run("restore {lake} --out {stopped}", here, Failure("EIO", ("link",), 5))
        assert stopped.code == ExitCode.FAILED, stopped
        shutil.rmtree(base)
        here.rename(base)

    def undisturbed(self, line: str) -> Undisturbed:
        if line not in self._undisturbed:
            found = self.run(line, self.copy_base(), Failure("EIO", (*WRITING, *READING)), record_calls)
            recorded = [one.partition("\t") for one in (self._directory / "calls").read_text().splitlines()]
            calls, sites = [call for call, _, _ in recorded], [site for _, _, site in recorded]
            self._undisturbed[line] = Undisturbed(found, calls, sites, self.lake_content(line))
        return self._undisturbed[line]

    def find_errors(self, line: str, failure: Failure) -> tuple[list[str], Outcome]:
        """Run a command while a call fails, then without a failure; return the errors, and the first run."""
        expected, _, _, rows = self.undisturbed(line)
        here = self.copy_base()
        disturbed = self.run(line, here, failure)
        if not disturbed.hit:
            return [], disturbed  # this run made fewer calls, because the order of threads varies
        # A file of the store that the disk cannot open or read is damage, which `ingest` records.
        is_of_store = disturbed.hit.startswith(("open good", "open bad", "read good", "read bad"))
        is_recorded = line.startswith("ingest") and failure.error == "EIO" and is_of_store
        if is_recorded and disturbed.code == ExitCode.DAMAGE:
            return [], disturbed
        wrong = _find_errors(expected, disturbed)
        is_done = _is_same_result(expected, disturbed)
        # `verify` may write its findings successfully although the flush to disk failed.
        is_failed_read = disturbed.hit.startswith((*READING, "close bad"))  # `verify` reports it as one more finding
        is_written = "--findings-lake" in line and disturbed.code == expected.code
        is_done |= is_written and not is_failed_read
        again = disturbed if is_done else self.repeat(line, here)
        if again.code != expected.code and not self.may_differ(line):
            wrong.append(f"the next run ended with {again.code}, not {expected.code}: {again.output[-600:]}")
        names = self.different_files(line, expected.left, again.left)
        if names and again.code in {expected.code, ExitCode.CLEAN, ExitCode.USAGE}:
            wrong.append(f"the next run left different files: {', '.join(names[:8])}")
        # `restore` resumes with the files below `.restore`; after a failed deletion, the file may remain.
        left = [] if disturbed.hit.startswith("unlink") else _list_leftovers(disturbed.left)
        if left and not is_done:
            wrong.append(f"leftovers: {', '.join(left[:8])}")
        content = self.lake_content(line)
        if is_written and is_failed_read and not is_done:  # the lake has the findings of both runs
            content["lake/findings"] = rows["lake/findings"]
        if "leftovers" in content and disturbed.hit.startswith("unlink"):  # deleted by a later run, when they are old
            left_in_lake = content["leftovers"].split()
            content["leftovers"] = " ".join(name for name in left_in_lake if ".json.attempt-" not in name)
        if content != rows:
            wrong.append(f"the lake has different rows: {content}, not {rows}")
        return wrong, disturbed

    @staticmethod
    def may_differ(line: str) -> bool:
        """Return whether a second run has another exit code: it does not install files, or report damage, again."""
        is_reported_once = line.startswith(("ingest {bad}", "type"))
        return "--undo" in line or "--install" in line or "--apply" in line or is_reported_once

    @staticmethod
    def different_files(line: str, expected: dict[str, str], found: dict[str, str]) -> list[str]:
        """Return the names of the files that must be equal, and are not."""
        first, second = _comparable_files(line, expected), _comparable_files(line, found)
        return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))

    def lake_content(self, line: str) -> dict[str, str]:
        """Summarize the rows of the lakes, and leftovers of an ingest, in a fork, as threads do not survive one."""
        here = self._directory / "here"
        if not line.startswith(_LAKE_COMMANDS):
            return {}

        def describe() -> dict[str, str]:
            tables = sorted({path.parent for path in here.rglob("_delta_log")})
            found = {
                table.relative_to(here).as_posix(): _summarize_rows(table)
                for table in tables
                if table.name != "runs" and any((table / "_delta_log").iterdir())
            }
            found = {name: rows for name, rows in found.items() if not rows.startswith("0 ")}
            left = [name for lake in ("lake", "out") for name in list_leftovers(here / lake)]
            return found | {"leftovers": " ".join(left) if line.startswith("ingest") else ""}

        return result_of_fork(self._directory, describe)

    def repeat(self, line: str, here: Path) -> Outcome:
        """Run a command again, as its message recommends: some need an empty output directory."""
        if "repair" not in line and "ingest" not in line:
            shutil.rmtree(here / "out", ignore_errors=True)
            (here / "file").unlink(missing_ok=True)
        return self.run(line, here)

    def copy_base(self) -> Path:
        """Copy the stores and the lake for one command."""
        here = self._directory / "here"
        shutil.rmtree(here, ignore_errors=True)
        # A restore recognizes its finished segments by their inodes.
        copy = lambda source, to: (os.link if "/stopped/" in source else shutil.copy2)(source, to)  # noqa: E731
        shutil.copytree(self.base, here, symlinks=True, copy_function=copy)
        return here

    def run(self, line: str, here: Path, failure: Failure | None = None, fail: FailCall | None = None) -> Outcome:
        """Run a command in a fork on the copy *here*; *fail* arranges the failure."""
        places = {name: here / name for name in ("good", "bad", "applied", "lake", "out", "work", "file", "stopped")}
        places["segment"] = sorted((here / "bad" / "commitlog").iterdir())[1]
        places["index"] = min((here / "good" / "index").iterdir())
        places["queue"] = min((here / "good" / "consumequeue" / "T1" / "0").iterdir())
        places["types"] = here / "types.toml"
        words = [word.format(**places) for word in shlex.split(line)]
        for name in ("calls", "out", "err"):
            (self._directory / name).unlink(missing_ok=True)
        code = run_in_fork(partial(self._run_child, words, failure, here, fail or fail_call))
        calls = self._directory / "calls"
        hits = calls.read_text().splitlines() if calls.exists() else []
        out, err = (
            (self._directory / name).read_text(errors="replace").replace(str(here), "") for name in ("out", "err")
        )
        is_counted = failure is not None and failure.number == 0
        return Outcome(code, out, err, self.read_left(here), "" if is_counted or not hits else hits[0])

    @staticmethod
    def read_left(here: Path) -> dict[str, str]:
        """Return the hashes of all files of a copy, except those of repairs."""
        left = {name: data for name, data in read_files(here).items() if not name.startswith(("work/", "types"))}
        return {name: sha256(data).hexdigest()[:16] for name, data in left.items()}

    def _run_child(self, words: Sequence[str], failure: Failure | None, here: Path, fail: FailCall) -> int:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
        if failure is not None:
            fail(here, failure, os.open(self._directory / "calls", os.O_WRONLY | os.O_CREAT, 0o644))
        progress._PLAIN_INTERVAL = float("inf")  # noqa: SLF001 - otherwise slow machines print progress
        try:
            # No call fails in another process.
            with patch("jobs.command_line.engine.count_worker_processes", lambda _: 0):
                return _browse(words[1], words[2]) if words[0] == "browse" else int(cli.main(words))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _browse(place: str, path: str) -> int:
    """Render a page as a process of `browse` does, and print it."""
    reply = render_page(QueryTarget(**dict([place.split("=", 1)])), path)  # type: ignore[arg-type] # text fields
    sys.stdout.write(f"{reply.status} {reply.headers['location']}\n{unescape(reply.body.decode(errors='replace'))}")
    return int(ExitCode.CLEAN if reply.status < HTTPStatus.BAD_REQUEST else ExitCode.FAILED)


def _summarize_rows(table: Path) -> str:
    """Return the number of rows of a table, and a hash of their physical offsets."""
    rows = DeltaTable(str(table)).to_pyarrow_dataset()
    offsets = rows.to_table(columns=[name for name in rows.schema.names if name == "physical_offset"])
    digest = sha256(repr(sorted(offsets.to_pydict().get("physical_offset", []))).encode()).hexdigest()[:16]
    return f"{rows.count_rows()} rows, offsets {digest}"


def compile_library(directory: Path) -> Path:
    """Compile the library that makes calls fail; it is loaded before libc, so calls of Arrow and deltalake count."""
    target = directory / "failing_calls.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"], check=True)
    return target


def fail_call(below: Path, failure: Failure, calls: int) -> None:
    """Let a call on a file below a directory fail; its name is written to the descriptor *calls*."""
    names = " ".join(failure.kinds).encode()
    ctypes.CDLL(None).fail_call(
        os.fsencode(below), names, ctypes.c_long(failure.number), getattr(errno, failure.error), calls
    )


def record_calls(below: Path, failure: Failure, calls: int) -> None:
    """Write all calls on files below a directory to the descriptor *calls*, each with its site."""
    fail_call(below, failure, calls)
    ctypes.CDLL(None).record_sites(_SITE_DESCRIPTION)


def _describe_site(buffer: int, size: int) -> None:
    """Write the lines of our code that lead to the current call into a buffer, the innermost first."""
    frame = sys._getframe().f_back  # noqa: SLF001 - of the thread that makes the call; None in a thread of a library
    lines = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OUR_CODE):
            lines.append(f"{Path(name).relative_to(_ROOT)}:{frame.f_lineno}")
        frame = frame.f_back
    text = " ".join(lines).encode()[: size - 1] + b"\0"
    ctypes.memmove(buffer, text, len(text))


_SITE_DESCRIPTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(_describe_site)


def _find_errors(expected: Outcome, found: Outcome) -> list[str]:
    """Return the errors in the result of a run in which a call failed."""
    if "Traceback" in found.output or found.code not in set(map(int, ExitCode)):
        return [f"traceback, exit code {found.code}: {found.output[-1500:]}"]
    if _is_same_result(expected, found):
        return []
    if len(re.findall(r"^rmq-lake: ", found.err, re.MULTILINE)) > 1:
        return [f"more than one error: {found.err[-800:]}"]
    # A file is first written as `.NAME.attempt-UUID`, or into `.NAME.parts-ID`; the user knows it as NAME.
    parts = [re.sub(r"^\.(.+)\.(?:attempt|parts)-.*", r"\1", part) for part in Path(found.hit.partition(" ")[2]).parts]
    # For a full disk or a temporary file, the name of the directory is enough.
    is_enough = "No space left on device" in found.output or any(part.startswith(".") for part in parts)
    is_named = any(part in found.output for part in (parts if is_enough else parts[1:] or parts))
    if found.code in {ExitCode.CLEAN, ExitCode.NOT_FOUND} and found.code != expected.code:
        return [f"exit code {found.code}, not {expected.code}: {found.output[-800:]}"]
    if not is_named:
        return [f"the path of {found.hit} is not named: {found.output[-800:]}"]
    return []


def _list_leftovers(left: dict[str, str]) -> list[str]:
    """Return the unfinished files outside a lake, whose next run deletes them, and outside an interrupted restore."""
    return sorted(
        name
        for name in left
        if re.search(r"\.(?:attempt|parts|scratch)-", name)
        and not re.match(r"lake/|out/_|stopped/|out/.restore/", name)
    )


def _is_same_result(expected: Outcome, found: Outcome) -> bool:
    texts = (_VOLATILE.sub("", outcome.output) for outcome in (expected, found))
    return expected.code == found.code and next(texts) == next(texts)


def _comparable_files(line: str, left: dict[str, str]) -> dict[str, str]:
    """Select the files that must be equal: a changed store, an export, rebuilt files, but not those of lakes."""
    changed = line.split()[1].strip("{}") if "--install" in line or "--apply" in line or "--undo" in line else ""
    return {
        name: digest
        for name, digest in left.items()
        if name.startswith(changed) and ".replaced-" not in name and not _LAKE_FILES.search(name)
    }


_LAKE_FILES = re.compile(r"^lake/|_delta_log/|\.parquet$|\.json$|^out/_|/\.")


def draw(commands: Commands, seed: int, command: str = "") -> tuple[str, Failure] | None:
    """Return the command and the failing call of a seed."""
    random = Random(seed)
    lines = [line for line in COMMANDS if line.startswith(command)]
    line = random.choice(lines)
    error = random.choice(sorted(ERRORS))
    calls = commands.undisturbed(line).calls
    kinds = [call.partition(" ")[0] for call in calls]
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if kinds[place] in ERRORS[error]:
            places.setdefault(_VOLATILE.sub("", call), []).append(place)
    if not places:
        return None
    place = random.choice(places[random.choice(sorted(places))])
    return line, Failure(error, (kinds[place],), kinds[: place + 1].count(kinds[place]))


def list_first_and_last_calls(commands: Commands, line: str, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the kind and the number of the first and the last call of each kind on each file of a command."""
    calls = commands.undisturbed(line).calls
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if call.partition(" ")[0] in kinds:
            places.setdefault(_NUMBERED.sub("", _VOLATILE.sub("", call)), []).append(place)
    for place in sorted({place for found in places.values() for place in (found[0], found[-1])}):
        kind = calls[place].partition(" ")[0]
        yield kind, sum(call.startswith(f"{kind} ") for call in calls[: place + 1])


def list_calls_of_sites(commands: Commands, command: str = "") -> Iterator[tuple[str, str, int]]:
    """
    Yield a command, the kind and the number of one call, for each kind of call of each site.

    Calls in threads of a library have no site; of these, one is yielded for each command and kind of file.
    """
    lines = sorted(
        (line for line in ENUMERATED if line.startswith(command)),
        key=lambda line: len(commands.undisturbed(line).calls),
    )
    known = set[tuple[str, ...]]()
    for line in lines:
        _, calls, sites, _ = commands.undisturbed(line)
        numbers = Counter[str]()
        for call, site in zip(calls, sites, strict=True):
            kind = call.partition(" ")[0]
            numbers[kind] += 1
            alike = line.partition(" ")[0], _OF_SAME_KIND.sub("", _NUMBERED.sub("", _VOLATILE.sub("", call)))
            key = (kind, *(site.split()[:_FRAMES_OF_SITE] or alike))
            if key not in known:
                known.add(key)
                yield line, kind, numbers[kind]


def every_file(commands: Commands, error: str, kinds: Sequence[str], command: str) -> dict[str, Any]:
    """Let the first and the last call of each kind on each file fail, for each command that begins with *command*."""
    cases = (
        (number, line, Failure(error, (kind,), number))
        for line in COMMANDS
        if line.startswith(command)
        for kind, number in list_first_and_last_calls(commands, line, kinds)
    )
    return _run_cases(commands, cases)


def campaign(commands: Commands, first: int, count: int, command: str = "") -> dict[str, Any]:
    """Run each seed."""
    cases = (
        (seed, *case) for seed in range(first, first + count) if (case := draw(commands, seed, command)) is not None
    )
    return _run_cases(commands, cases)


def list_every_call(commands: Commands, command: str = "") -> Iterator[tuple[str, str, int]]:
    """Yield the first and the last call of each kind on each file, for each command that begins with *command*."""
    for line in ENUMERATED:
        if line.startswith(command):
            for kind, number in list_first_and_last_calls(commands, line, ALL):
                yield line, kind, number


def enumerate_calls(listed: Iterable[tuple[str, str, int]], nth: int) -> Iterator[tuple[int, str, Failure]]:
    """Yield every *nth* of the listed calls, with the errors that suit its kind, one after the other."""
    turns = Counter[str]()
    for place, (line, kind, number) in enumerate(listed):
        turns[kind] += 1
        errors = SUITED_ERRORS[kind]
        if place % nth == nth // 2:
            yield place, line, Failure(errors[turns[kind] % len(errors)], (kind,), number)


def _run_cases(commands: Commands, cases: Iterable[tuple[int, str, Failure]]) -> dict[str, Any]:
    """Return the number of failed calls (total, distinct, by command and error), and the errors."""
    tried, different, bad = Counter[str](), set[tuple[str, str, str]](), []
    codes = Counter[int]()
    for number, line, failure in cases:
        wrong, found = commands.find_errors(line, failure)
        if not found.hit:
            continue
        tried[f"{line.partition(' ')[0]} {failure.error}"] += 1
        codes[found.code] += 1
        different.add((line, found.hit, failure.error))
        if wrong:
            error = {"command": line, "error": failure.error, "call": found.hit}
            bad.append({"seed": number, **error, "wrong": wrong})
            print(json.dumps(bad[-1]), file=sys.stderr, flush=True)
    by = dict(sorted(tried.items()))
    return {"tried": tried.total(), "different": len(different), "by": by, "codes": dict(codes), "bad": bad}


_ENUMERATIONS = {"every": list_every_call, "sites": list_calls_of_sites}


def restart_with_library(module: str) -> None:
    """Restart this program with the library that makes calls fail, unless the library is loaded."""
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", module, *sys.argv[1:]]
            sys.exit(subprocess.call(command, env={**os.environ, "LD_PRELOAD": str(compile_library(Path(directory)))}))


def main() -> None:
    restart_with_library("tests.support.failing_commands")
    load_everything()
    with tempfile.TemporaryDirectory() as directory:
        commands = Commands(Path(directory))
        commands.prepare()
        for line in [" ".join(sys.argv[1:])] if sys.argv[1:] else sys.stdin:
            first, second, *command = line.rstrip("\n").split(" ", 2)
            if first in _ENUMERATIONS:
                listed = _ENUMERATIONS[first](commands, "".join(command))
                result = _run_cases(commands, enumerate_calls(listed, int(second)))
            elif first in ERRORS:
                result = every_file(commands, first, second.split(","), "".join(command))
            else:
                result = campaign(commands, int(first), int(second), "".join(command))
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
