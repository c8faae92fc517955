"""
Random damage to every kind of file of a small lake: each command answers as before, or fails and names the cause.

    python -m tests.support.damaged_lakes FIRST COUNT      check damages number FIRST and following ones

Each damage is drawn from its number; positions in files may shift by a few bytes between lakes, because files contain
times. A line `wrong …` reports a violation; without a line `end …` for a number, a
library has aborted the process. Delta's log has no checksums, so a damage that changes a statement of it, such as the
limits of a column, may change an answer.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable

from jobs.browse import PageRequest
from jobs.browse.pages import Pages
from jobs.console.result import ExitCode
from jobs.query.place import Place
from tests.support.commands import run_in_process
from tests.support.fault_kinds import golden
from tests.support.lakes import ingest_store
from tests.support.stores import read_store_files

Given = tuple[int, str, object]  # exit code, messages and answer of a command
RELEASE = "5.3.3"
TYPES = '[topic.T1]\nformat = "json"\nschema = "id bigint"\n'
LINES = {
    "by-key": "query by-key -t T1 -k dup --json --lake LAKE",
    "by-offset": "query by-offset -t T1 -i 1 -o 3 --json --lake LAKE",
    "list": "query list --json --lake LAKE",
    "sql": "query sql --output ndjson --lake LAKE",
    "counts": "query sql --output ndjson --lake LAKE|select topic, count(*) from messages group by 1 order by 1",
    "entries": "query sql --output ndjson --lake LAKE|select count(*), sum(key_hash) from index_entries",
    "export": "export --lake LAKE --out OUT/exported.ndjson",
    "restore": "restore LAKE --out OUT/restored --release " + RELEASE,
    "diff": "diff STORE LAKE",
    "repair": "repair STORE --lake LAKE --out OUT/plan --release " + RELEASE,
    "optimize": "optimize LAKE --dry-run",
    "heal": "optimize LAKE --heal --dry-run",
    "type": "type LAKE --types OUT/types.toml --max-dead-letters 1.0",
    "ingest": "ingest STORE --lake LAKE --release " + RELEASE,
}
PAGES = ("/", "/messages", "/topics", "/groups", "/runs")


def make_lake(folder: Path) -> Path:
    """Make a lake with typed bodies, a second run, and checkpoints of some tables."""
    store, lake = golden("b533-base"), folder / "lake"
    (folder / "types.toml").write_text(TYPES)
    with patch.object(os, "urandom", Random(0).randbytes):  # so that the files of every lake have the same names
        ingest_store(store, lake, release=RELEASE)
        run_in_process("type", lake, "--types", folder / "types.toml", "--max-dead-letters", "1.0")
    for table in ("messages", "runs"):
        DeltaTable(lake / table).create_checkpoint()
        for commit in sorted((lake / table / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()
    return lake


def answers_of(lake: Path, out: Path) -> Iterator[tuple[str, Given]]:
    """Yield the name of each command, and its result."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "types.toml").write_text(TYPES)
    words = {"LAKE": str(lake), "STORE": str(golden("b533-base")), "OUT": str(out)}
    for name, line in LINES.items():
        parts = [part for text in line.split("|")[:1] for part in text.split()] + line.split("|")[1:]
        for word, place in words.items():
            parts = [part.replace(word, place) if part.startswith(word) else part for part in parts]
        code, printed, err = run_in_process(*parts)
        answer: object = printed if line.startswith("query") else None
        if name == "export":
            answer = (out / "exported.ndjson").read_text() if (out / "exported.ndjson").exists() else None
        if name == "restore":
            files = read_store_files(out / "restored")
            answer = {path: raw for path, raw in files.items() if "commitlog/" in path}
        yield name, (code, err, answer)
    for path in PAGES:
        reply = Pages(Place(lake=str(lake))).answer(0, PageRequest(path, {}, "en"))
        yield path, (ExitCode.CLEAN if reply.status == HTTPStatus.OK else ExitCode.FAILED, "a page", None)


def damage(lake: Path, random: Random) -> str:
    """Damage one file, and return a description of the damage."""
    files: dict[str, list[Path]] = {}
    for path in sorted(path for path in lake.rglob("*") if path.is_file() and path.stat().st_size):
        kind = "log" if path.parent.name == "_delta_log" else path.parent.name if path.suffix == ".json" else "data"
        files.setdefault(kind + path.suffix, []).append(path)
    path = random.choice(files[random.choice(sorted(files))])
    data = bytearray(path.read_bytes())
    change = random.choice(_JSON if path.suffix == ".json" and random.random() < _PART_OF_VALUES else _BYTES)
    described = f"{path.relative_to(lake)}: {change.__name__[1:]} {change(data, random)}"
    path.write_bytes(data)
    return described


_VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    1 << 70,
    0,
    1.5,
    "",
    "\0",
    "../x",
    "x" * 100,
    [],
    {},
    [[]],
    [None],
    {"a": None},
    -(1 << 63),
)


def _flip(data: bytearray, random: Random) -> str:
    at = random.randrange(len(data))
    data[at] ^= 1 << random.randrange(8)
    return str(at)


def _zero(data: bytearray, random: Random) -> str:
    start = random.randrange(len(data))
    end = min(start + random.choice((1, 8, 64, 512)), len(data))
    data[start:end] = bytes(end - start)
    return f"{start} to {end}"


def _cut(data: bytearray, random: Random) -> str:
    del data[random.randrange(len(data)) :]
    return f"to {len(data)}"


def _noise(data: bytearray, random: Random) -> str:
    start = random.randrange(len(data))
    end = min(start + random.choice((4, 40)), len(data))
    data[start:end] = random.randbytes(end - start)
    return f"{start} to {end}"


def _footer(data: bytearray, random: Random) -> str:
    """Overwrite bytes of a Parquet footer with those of large numbers."""
    size = int.from_bytes(data[-8:-4], "little") if data[-4:] == b"PAR1" else len(data)
    at = random.randrange(max(len(data) - 8 - size, 0), len(data))
    large = random.choice((b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x20", b"\xfe\xff\x03"))
    data[at : at + len(large)] = large
    return f"{at}: {large.hex()}"


def _value(data: bytearray, random: Random) -> str:
    return _change_json(data, random, lambda parent, key: parent.__setitem__(key, random.choice(_VALUES)))


def _key(data: bytearray, random: Random) -> str:
    return _change_json(data, random, lambda parent, key: parent.__delitem__(key))


def _change_json(data: bytearray, random: Random, change: Callable[[Any, Any], None]) -> str:
    """Change one value of one line."""
    try:
        lines = [json.loads(line) for line in bytes(data).splitlines()]
    except ValueError:  # a lock
        return _flip(data, random)
    places = [place for line in lines for place in _places(line)]
    parent, key, path = random.choice(places)
    change(parent, key)
    now = parent.get(key, "deleted") if isinstance(parent, dict) else parent
    data[:] = b"\n".join(json.dumps(line).encode() for line in lines)
    return f"{path} {str(now)[:60]}"


def _places(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:  # noqa: ANN401 - JSON
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key, f"{path}.{key}"
        yield from _places(inner, f"{path}.{key}")


_BYTES = (_flip, _flip, _zero, _cut, _noise, _footer, _footer)
_JSON = (_value, _value, _value, _key)
_PART_OF_VALUES = 0.8  # of the damages of JSON files; the others change bytes


def find_violation(name: str, given: Given, whole: Given) -> str | None:
    """Compare the answer of a damaged lake with that of the undamaged lake; describe a violation."""
    code, err, answer = given
    if "Traceback" in err or "this is a bug" in err:
        return f"{name}: traceback: {err[-700:]}"
    if code not in {*ExitCode}:
        return f"{name}: exit code {code}"
    if code == whole[0] and answer != whole[2]:
        return f"{name}: exit code {code}, but another answer: {str(answer)[:200]}"
    if code == ExitCode.FAILED and not err.strip():
        return f"{name}: no message"
    return None


def check(numbers: range, folder: Path, lake: Path) -> None:
    """Print each violation of the damages with these *numbers*."""
    whole = dict(answers_of(Path(shutil.copytree(lake, folder / "whole")), folder / "out"))
    for number in numbers:
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(lake, copy)
        described = damage(copy, Random(number))
        print("begin", number, described, flush=True)
        for name, given in answers_of(copy, folder / "out"):
            violation = find_violation(name, given, whole[name])
            if violation:
                print("wrong", number, described, "·", violation.replace("\n", " "), flush=True)
        print("end", number, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "MiB", flush=True)


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        base = Path(temporary)
        check(range(first, first + count), base, make_lake(base))
