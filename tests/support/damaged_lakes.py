"""
Random damage to every kind of file of a small lake: each command answers as before, or fails and names the cause.

    python -m tests.support.damaged_lakes FIRST COUNT      check damages number FIRST and following ones

Each damage is drawn from its number; positions in files may shift by a few bytes between lakes, because files contain
times and random ids. A line `wrong …` reports a violation. Delta's log has no checksums, so a damage that changes a
statement of it, such as the limits of a column, may change an answer.
"""

import resource
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from deltalake import DeltaTable

from jobs.console.result import ExitCode
from tests.support.commands import overwrite, run_in_process
from tests.support.failing_commands import COMMANDS, Commands, Outcome, restart_with_library
from tests.support.fault_kinds import Change, Target, cut, shift, zero_page_of
from tests.support.fuzzing import hostile_json
from tests.support.killing import call_in_fork, load_everything

LINES = (
    *(line for line in COMMANDS if "{lake}" in line),
    "query by-offset -t T1 -i 0 -o 3 --lake {lake}",
    "query sql --output ndjson --lake {lake}",
    "query sql --lake {lake} 'SELECT count(*), sum(key_hash) FROM index_entries'",
    "browse lake={lake} /topics",
    "browse lake={lake} /groups",
    "browse lake={lake} /runs",
)


def prepare(commands: Commands) -> None:
    """Create the lake, with typed bodies, and with checkpoints of some tables."""
    commands.prepare()
    call_in_fork(partial(_add_tables_and_checkpoints, commands.base))


def _add_tables_and_checkpoints(base: Path) -> None:
    run_in_process("type", base / "lake", "--types", base / "types.toml", "--max-dead-letters", "1.0")
    for table in ("messages", "runs"):
        DeltaTable(base / "lake" / table).create_checkpoint()
        for commit in sorted((base / "lake" / table / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()


def damage(lake: Path, random: Random) -> str:
    """Damage one file, and return a description of the damage."""
    files: dict[str, list[Path]] = {}
    for path in sorted(path for path in lake.rglob("*") if path.is_file() and path.stat().st_size):
        kind = "log" if path.parent.name == "_delta_log" else path.parent.name if path.suffix == ".json" else "data"
        files.setdefault(kind + path.suffix, []).append(path)
    path = random.choice(files[random.choice(sorted(files))])
    if path.suffix == ".json" and random.random() < _PART_OF_VALUES:
        described = _change_json(path, random)
    else:
        described = random.choice(sorted(_CHANGES))
        _CHANGES[described](Target(lake, random, lake), path)
    return f"{path.relative_to(lake)}: {described}"


def _change_json(path: Path, random: Random) -> str:
    """Change one line of a JSON file."""
    lines = path.read_bytes().splitlines()
    number = random.randrange(len(lines))
    before = lines[number]
    with suppress(ValueError):  # a lock
        lines[number] = hostile_json(before, random)
    path.write_bytes(b"\n".join(lines))
    at = next((at for at, pair in enumerate(zip(before, lines[number], strict=False)) if len({*pair}) > 1), 0)
    return f"line {number}: {lines[number][max(at - 40, 0) :][:80]!r}"


def _overwrite_footer(target: Target, path: Path) -> None:
    """Overwrite bytes of a Parquet footer with those of large numbers."""
    data, random = path.read_bytes(), target.random
    size = int.from_bytes(data[-8:-4], "little") if data[-4:] == b"PAR1" else len(data)
    large = random.choice((b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x20", b"\xfe\xff\x03"))
    overwrite(path, random.randrange(max(len(data) - 8 - size, 0), len(data)), large)


_CHANGES: dict[str, Change] = {
    "bit": lambda target, path: target.flip(path, target.random.randrange(path.stat().st_size)),
    "footer": _overwrite_footer,
    "cut": cut,
    "shift": shift,
    "page of zeros": zero_page_of,
}
_PART_OF_VALUES = 0.8  # of the damages of JSON files; the others change bytes


def _answer(line: str, outcome: Outcome) -> object:
    """Return the messages that a command printed or wrote; None for commands that describe the lake."""
    if line.startswith("query"):
        return outcome.out
    kept = {"export": "file", "restore": "out/commitlog/"}.get(line.partition(" ")[0])
    return kept and {name: digest for name, digest in outcome.left.items() if name.startswith(kept)}


def find_violation(line: str, found: Outcome, whole: Outcome) -> str | None:
    """Compare the result of a command on a damaged lake with that on the undamaged lake; describe a violation."""
    if "Traceback" in found.output or "this is a bug" in found.output:
        return f"traceback: {found.output[-700:]}"
    if found.code not in {*ExitCode}:  # a library may have aborted the process
        return f"exit code {found.code}: {found.output[-700:]}"
    if found.code == whole.code and _answer(line, found) != _answer(line, whole):
        return f"exit code {found.code}, but another answer: {found.out[:200]}"
    if found.code == ExitCode.FAILED and not found.output.strip():
        return "no message"
    return None


def check(numbers: range, directory: Path) -> None:
    """Print each violation of the damages with these *numbers*."""
    commands = Commands(directory)
    prepare(commands)
    whole = {line: commands.run(line, commands.copy_base()) for line in LINES}
    lake = commands.base / "lake"
    shutil.copytree(lake, directory / "undamaged")
    for number in numbers:
        shutil.rmtree(lake)
        shutil.copytree(directory / "undamaged", lake)
        described = damage(lake, Random(number))
        print("begin", number, described, flush=True)
        for line in LINES:
            if violation := find_violation(line, commands.run(line, commands.copy_base()), whole[line]):
                print("wrong", number, line, "·", violation.replace("\n", " "), flush=True)
        print("end", number, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, "MiB", flush=True)


if __name__ == "__main__":
    restart_with_library("tests.support.damaged_lakes")
    load_everything()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        check(range(int(sys.argv[1]), sum(map(int, sys.argv[1:3]))), Path(temporary))
