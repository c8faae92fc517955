"""
Commands that are killed between what they have prepared and their last commit, on tables with features of Delta.

`python -m tests.support.killing_spark_commits FOLDER KILLS FEATURE…`, with port and secret of a JVM in the environment;
without features, all that work. Each kill has a lake of its own. A run appends, replaces what its broker took back, or
merges at its end; or `optimize` merges. Where Spark's Delta commits, one command in ten starts a JVM of its own, which
dies with it. The JVM of the others lives on: it may end what they have begun, beside the next run.
"""

import faulthandler
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import duckdb
import pyarrow as pa

from jobs.console.exit_codes import ExitCode
from jobs.lake import commit, spark_writer, upkeep
from jobs.lake.optimization import optimize
from jobs.storage import local
from jobs.store.workers import OneByOne
from tests.support import lakes
from tests.support.broker import some_records
from tests.support.killing import (
    FAULTS,
    MANY,
    busy_store,
    compile_everything,
    ended,
    forked,
    growing_store,
    in_fork,
    jvm_of_tests,
    new_store,
    rewritten_store,
    run,
    run_and_judge,
    run_in_fork,
    spark_of_tests,
    without_merged,
)
from tests.support.killing_commands import effects, stage_of
from tests.support.spark_settings import SMALL
from tests.support.table_features import FEATURES, WORKS, promised

_OF_SPARK: Final = re.compile(r"/part-|/_delta_log/(\.|_sidecars)")  # what commands of Delta leave that are killed, too
_OWN_JVM: Final = 10  # one command in so many
_LOOK_S: Final = 0.002
_LONGEST_S: Final = 300.0  # of one command: beyond, it hangs
_connected_by_itself: Final = spark_writer.connected


def _lake_of_small_files(root: Path) -> None:
    broker = new_store(root)
    for seed in (2, 3):
        run_in_fork(root)
        broker.append(some_records(20, seed=seed))
    run_in_fork(root)


def _optimize(root: Path) -> int:
    optimize(str(root / "lake"), OneByOne())
    return 0


class Cell(NamedTuple):
    """A way to write a table, as the columns of the page have them."""

    prepare: Callable[[Path], object]
    command: Callable[[Path], int]


CELLS: Final = {
    "append": Cell(growing_store, run),
    "rewritten log": Cell(rewritten_store, run),
    "merge of a run": Cell(busy_store, run),
    "optimize": Cell(_lake_of_small_files, _optimize),
}


class Draw(NamedTuple):
    """A kill to come."""

    cell: str
    feature: str
    has_own_jvm: bool
    share: float  # of the time from the first commit, which prepares a run, until the command's end

    @property
    def way(self) -> tuple[str, bool, bool]:
        """The cell, the writer and the JVM: commands that share these take about the same time."""
        return self.cell, is_by_spark(self.feature), self.has_own_jvm


def is_by_spark(feature: str) -> bool:
    """Return whether Spark's Delta commits, as the page says it."""
    return "by Spark's Delta" in promised()[feature][-1]


def working() -> list[str]:
    """Return the features with which every step works."""
    return [name for name, cells in promised().items() if set(cells[1:5]) == {WORKS}]


def _turn_on(root: Path, feature: str) -> None:
    for statement in FEATURES[feature]:
        jvm_of_tests("").session.sql(re.sub(r"\{(\w+)\}", rf"delta.`{root}/lake/\1`", statement))


def _base_of(folder: Path, draw: Draw) -> Path:
    base = folder / f"{draw.cell}, {draw.feature}"
    if not base.exists():
        CELLS[draw.cell].prepare(base)
        in_fork(partial(_turn_on, base, draw.feature))
    return base


def _victim(root: Path, draw: Draw, begun: int) -> int:
    """Do a command's work; say through a pipe when its first commit is to be written."""
    faulthandler.dump_traceback_later(_LONGEST_S / 2)
    write = commit._write  # noqa: SLF001 - every commit comes by here

    def written(*arguments: Any, **named: Any) -> int:  # noqa: ANN401 - passed on as they come
        os.write(begun, b".")
        return write(*arguments, **named)

    options = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
    os.environ["RMQ_LAKE_SPARK_OPTIONS"] = f"--master local[1] {options}"
    connected = _connected_by_itself if draw.has_own_jvm else jvm_of_tests
    with patch.object(spark_writer, "connected", connected), patch.object(commit, "_write", written):
        return CELLS[draw.cell].command(root)


def _seen_by_duckdb(location: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table as DuckDB reads it: `deltalake` gives no data set of files with vectors."""
    with duckdb.connect() as connection:
        connection.load_extension(str(lakes.DELTA_EXTENSION))
        found = connection.execute(f"SELECT * FROM delta_scan('{location}')").to_arrow_table()
    return found if columns is None else found.select(columns)


class Campaign:
    """Kills, and how they went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills, self.stages, self.codes = Counter[str](), Counter[str](), Counter[str]()
        self.bad: list[dict[str, Any]] = []
        self._spans: dict[tuple[str, bool, bool], float] = {}  # seconds from the first commit to the end

    def one(self, draw: Draw) -> None:
        number = self.codes.total()  # Delta in a JVM remembers a table's path
        root = self.folder / f"here-{number}"
        copytree(_base_of(self.folder, draw), root)
        before = effects(root / "lake")
        code = self._killed(root, draw)
        if code == -signal.SIGKILL:
            self.kills[f"{draw.feature}: {draw.cell}{', with its JVM' if draw.has_own_jvm else ''}"] += 1
            self.stages[f"{draw.cell}: {stage_of(effects(root / 'lake') - before)}"] += 1
        again = ended(forked(partial(CELLS[draw.cell].command, root)))
        self.codes[f"{code}, then {again}"] += 1
        verdict = run_and_judge(root)
        left = verdict["leftovers"] if draw.cell != "optimize" else without_merged(verdict["leftovers"])
        verdict["leftovers"] = [name for name in left if not _OF_SPARK.search(name)]
        verdict["protocol"] = wrong_promises(root / "lake")
        ends = {ExitCode.CLEAN, ExitCode.MISMATCH}  # units of records that a broker took back contradict its log
        fine = code in {*ends, -signal.SIGKILL} and again in {*ends, ExitCode.HELD} and verdict["code"] in ends
        if not fine or any(verdict[fault] for fault in (*FAULTS, "protocol")):
            self.bad.append({**draw._asdict(), "codes": [code, again], **verdict})
        print(self.kills.total(), *draw, code, again, self.bad[-1:], file=sys.stderr, flush=True)
        rmtree(root, ignore_errors=True)  # the JVM may still be at work there

    def _killed(self, root: Path, draw: Draw) -> int:
        reading, begun = os.pipe()
        pid = forked(partial(_victim, root, draw, begun))
        os.close(begun)
        os.read(reading, 1)  # or it has ended
        os.close(reading)
        began = time.monotonic()
        until = draw.share * self._spans.get(draw.way, _LONGEST_S / draw.share)
        while time.monotonic() < began + until:
            ended_one, status = os.waitpid(pid, os.WNOHANG)
            if ended_one:  # the first of its way is not killed
                self._spans[draw.way] = time.monotonic() - began
                return os.waitstatus_to_exitcode(status)
            time.sleep(_LOOK_S)
        os.killpg(pid, signal.SIGKILL)
        return ended(pid)


def wrong_promises(lake: Path) -> list[str]:
    """Return the row ids and times that the tables' properties demand and Delta's logs lack."""
    found = []
    for table in ("messages", "consume_queue", "runs"):
        rows: dict[str, tuple[int, int]] = {}
        last, demanded = 0, ""
        for path in sorted((lake / table / "_delta_log").glob(f"{'[0-9]' * 20}.json")):
            for line in map(json.loads, path.read_text().splitlines()):
                demanded = json.dumps(line["metaData"]) if "metaData" in line else demanded
                if "add" in line and '"delta.enableRowTracking": "true"' in demanded:
                    add = line["add"]
                    first = add.get("baseRowId", -1)
                    rows[add["path"]] = first, first + json.loads(add["stats"])["numRecords"]
                if "commitInfo" in line and '"delta.enableInCommitTimestamps": "true"' in demanded:
                    moment = line["commitInfo"].get("inCommitTimestamp", 0)
                    found += [f"{table}: {path.name} is not later"] if moment <= last else []
                    last = moment
        ends = sorted(rows.values())
        found += [
            f"{table}: row {first} has no id of its own"
            for (first, _), (_, end) in zip(ends[1:], ends, strict=False)
            if first < end
        ]
        found += [f"{table}: rows without ids"] if ends and ends[0][0] < 0 else []
    return found


def campaign(folder: Path, kills: int, features: Sequence[str]) -> dict[str, Any]:
    random, state = Random(34), Campaign(folder)
    waiting: list[tuple[str, str]] = []
    began = time.monotonic()
    until = began + float(os.environ.get("KILLING_S", "inf"))
    while state.kills.total() < kills and time.monotonic() < until:
        if not waiting:
            waiting = [(cell, feature) for feature in features for cell in CELLS]
            random.shuffle(waiting)
        cell, feature = waiting.pop()
        has_own_jvm = is_by_spark(feature) and random.randrange(_OWN_JVM) == 0
        state.one(Draw(cell, feature, has_own_jvm, random.random()))
    return {
        "kills": dict(sorted(state.kills.items())),
        "stages": dict(sorted(state.stages.items())),
        "codes": dict(state.codes),
        "seconds": round(time.monotonic() - began),
        "bad": state.bad,
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    with (
        patch.multiple(local, _NICENESS=0, _IOPRIO_SET={}),  # else a busy machine's disk is waited for
        spark_of_tests(),
        patch.object(lakes, "table_of", _seen_by_duckdb),
        patch.object(upkeep, "MANY", MANY),
    ):
        compile_everything(place / "compiled")
        print(json.dumps(campaign(place, int(sys.argv[2]), sys.argv[3:] or working())))
