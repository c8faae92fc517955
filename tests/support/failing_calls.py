"""
Runs one of whose system calls fails: each one in turn, with an error of the disk, of space, or of a signal.

`failing_calls.c` is loaded before libc, so the calls of Python, Arrow and deltalake all count. As in `killing`, this
process imports and compiles everything once and forks one run after the other. Run it as a program, which starts
itself again with the library: `python -m tests.support.failing_calls SCENARIO FOLDER ERROR STRIDE [EVERY [CALL …]]`,
where CALL is a kind such as `unlink`; without one, each kind that may fail with this error. With a STRIDE of 0 one call
of each kind fails.
"""

import ctypes
import errno
import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, NamedTuple

from tests.support.killing import (
    FAULTS,
    busy_store,
    compile_everything,
    ended,
    forked,
    growing_store,
    judge,
    new_store,
    rewritten_store,
    run,
    told_by_fork,
)
from tests.support.lakes import rows_of

SOURCE = Path(__file__).with_suffix(".c")
WRITING = ("create", "write", "fsync", "truncate", "rename", "link", "mkdir")
READING = ("open", "read", "list", "unlink")
# A signal interrupts any call where a file system waits for another machine or process.
ERRORS = {"EIO": (*WRITING, *READING), "ENOSPC": WRITING, "EINTR": (*WRITING, *READING)}
PREPARED = {"new": new_store, "growing": growing_store, "rewritten": rewritten_store, "busy": busy_store}


def library(folder: Path) -> Path:
    made = folder / "failing_calls.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return made


class Failure(NamedTuple):
    """The call that fails, by its number among those of some kinds; with 0 none fails, and each one is noted."""

    error: str
    kinds: tuple[str, ...]
    number: int = 0


def fail_call(below: Path, failure: Failure, noted: int) -> None:
    """Let a call on a file below a folder fail; *noted* is the descriptor that its name is written to."""
    names = " ".join(failure.kinds).encode()
    ctypes.CDLL(None).fail_call(
        os.fsencode(below), names, ctypes.c_long(failure.number), getattr(errno, failure.error), noted
    )


def verdict(root: Path) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        code = run(root)
        read = [row for row in rows_of(root / "lake", "quarantine") if row["reason"] == "io_error"]
        return {"code": code, "unread": len(read), **judge(root)}

    return told_by_fork(root, look)


def faults_of(result: dict[str, Any]) -> list[str]:
    expected = ("lost", "units", "entries") if result["unread"] else ()
    return [fault for fault in FAULTS if result[fault] and fault not in expected]


def every_call(scenario: str, folder: Path, failure: Failure, stride: int, every: int = 1) -> dict[str, Any]:
    """Let calls of a run fail, one in *every* so many of those that are chosen; run again, and judge."""
    base = folder / "base" / "files"
    base.parent.mkdir(parents=True)
    PREPARED[scenario](base)
    calls = _noted(_one(folder, base, failure))
    counted, codes, bad, unread = Counter[str](), Counter[int](), list[dict[str, Any]](), 0
    for kind, number in chosen(calls, stride, every):
        root = _one(folder, base, failure._replace(kinds=(kind,), number=number))
        hit = _noted(root)
        if not hit:
            continue  # this run made fewer calls: threads take turns as they like
        code = int((root / "code").read_text())
        counted[hit[0].partition(" ")[0]] += 1
        codes[code] += 1
        result = verdict(root / "files")
        unread += bool(result["unread"])
        wrong = faults_of(result)
        if wrong:
            said = (root / "said").read_text()[-2000:]
            bad.append({"number": number, "call": hit[0], "run": code, "wrong": wrong, **result, "said": said})
            sys.stderr.write(json.dumps(bad[-1]) + "\n")  # the campaign takes long
    return {
        "calls": len(calls), "failed": sum(counted.values()), "by_call": dict(counted), "unread": unread,
        "codes": {str(code): count for code, count in sorted(codes.items())}, "bad": bad,
    }  # fmt: skip


def chosen(calls: list[str], stride: int, every: int = 1) -> list[tuple[str, int]]:
    """
    Return kinds of calls, and their numbers among the calls of their kind, in the order of the calls.

    They are one in *every* so many of: each *stride*-th call of a kind on a file, and the first and last one. With a
    stride of 0 they are the calls in the middle of each kind.
    """
    same: dict[str, list[int]] = {}
    kinds = [call.partition(" ")[0] for call in calls]
    for place, call in enumerate(calls):
        same.setdefault(call if stride else kinds[place], []).append(place)
    if stride:
        wanted = sorted({place for places in same.values() for place in (*places[::stride], places[-1])})
    else:
        wanted = sorted(places[len(places) // 2] for places in same.values())
    return [(kinds[place], kinds[: place + 1].count(kinds[place])) for place in wanted[every // 2 :: every]]


def _one(folder: Path, base: Path, failure: Failure) -> Path:
    root = folder / "here"
    rmtree(root, ignore_errors=True)
    copytree(base, root / "files")
    code = ended(forked(partial(_failing, root, failure)))
    (root / "code").write_text(str(code))
    return root


def _failing(root: Path, failure: Failure) -> int:
    os.dup2(os.open(root / "said", os.O_WRONLY | os.O_CREAT, 0o644), 2)
    noted = os.open(root / "noted", os.O_WRONLY | os.O_CREAT, 0o644)
    fail_call(root / "files", failure, noted)
    try:
        return run(root / "files")
    finally:
        fail_call(root / "nothing", failure._replace(number=0), -1)


def _noted(root: Path) -> list[str]:
    return (root / "noted").read_text().splitlines()


if __name__ == "__main__":
    scenario, place, error, stride, *more = sys.argv[1:]
    every, *kinds = more or ["1"]
    where = Path(place)
    if "LD_PRELOAD" not in os.environ:
        command = [sys.executable, "-m", "tests.support.failing_calls", *sys.argv[1:]]
        sys.exit(subprocess.call(command, env={**os.environ, "LD_PRELOAD": str(library(where))}))
    compile_everything(where / "compiled")
    failure = Failure(error, tuple(kinds) or ERRORS[error])
    print(json.dumps(every_call(scenario, where / scenario, failure, int(stride), int(every))))
