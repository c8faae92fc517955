"""
Commits by Spark's Delta, killed between what a command has prepared and its last commit.

`python -m tests.support.killing_spark_commits FOLDER KILLS`, with port and secret of a JVM in the environment. Each
kill has a lake of its own, whose tables have features that `deltalake` does not write. A run appends, replaces what its
broker took back, or merges at its end; or `optimize` merges. One command in four starts a JVM of its own, which dies
with it. The JVM of the others lives on: it may end what they have begun, beside the next run.
"""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from jobs.console.exit_codes import ExitCode
from jobs.lake import spark_writer
from jobs.lake.optimization import optimize
from jobs.lake.spark_writer import Connection
from jobs.store.workers import OneByOne
from tests.support.broker import some_records
from tests.support.killing import (
    FAULTS,
    busy_store,
    compile_everything,
    ended,
    forked,
    growing_store,
    jvm_of_tests,
    new_store,
    rewritten_store,
    run,
    run_and_judge,
    spark_of_tests,
)
from tests.support.killing_commands import effects, stage_of
from tests.support.other_engine import SMALL

_ROW_IDS: Final = "ALTER TABLE {0} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
_TIMES: Final = "ALTER TABLE {0} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
_CLUSTERS: Final = "ALTER TABLE {0} CLUSTER BY (topic)"
_FEATURES: Final = {
    "rowTracking": (_ROW_IDS,),
    "inCommitTimestamp": (_TIMES,),
    "clustering": (_CLUSTERS,),
    "all three": (_ROW_IDS, _TIMES, _CLUSTERS),
}
_OF_SPARK: Final = re.compile(r"/part-|/_delta_log/\.")  # files that Delta's own commands leave when they are killed
_OWN_JVM: Final = 4  # one command in so many
_LOOK_S: Final = 0.005
_connected_by_itself: Final = spark_writer.connected


def _lake_of_small_files(root: Path) -> None:
    broker = new_store(root)
    for seed in (2, 3):
        assert ended(forked(partial(run, root))) == 0
        broker.append(some_records(20, seed=seed))
    assert ended(forked(partial(run, root))) == 0


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
    features: str
    has_own_jvm: bool
    share: float  # of the time from the first word to Spark's Delta until the command's end


def _turn_on(root: Path, features: str) -> None:
    for table in ("messages", "consume_queue", "runs"):
        for statement in _FEATURES[features]:
            if table != "runs" or statement is not _CLUSTERS:  # its rows have no topic
                jvm_of_tests("").session.sql(statement.format(f"delta.`{root}/lake/{table}`"))


def _base_of(folder: Path, draw: Draw) -> Path:
    base = folder / f"{draw.cell}, {draw.features}"
    if not base.exists():
        CELLS[draw.cell].prepare(base)
        assert ended(forked(partial(_turn_on, base, draw.features))) == 0
    return base


def _victim(root: Path, draw: Draw, asked: int) -> int:
    """Do a command's work; say through a pipe when Spark's Delta is asked."""

    def connected(table: str) -> Connection:
        found = (_connected_by_itself if draw.has_own_jvm else jvm_of_tests)(table)
        os.write(asked, b".")
        return found

    options = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
    os.environ["RMQ_LAKE_SPARK_OPTIONS"] = f"--master local[1] {options}"
    with patch.object(spark_writer, "connected", connected):
        return CELLS[draw.cell].command(root)


class Campaign:
    """Kills, and how they went."""

    def __init__(self, folder: Path) -> None:
        """Begin without any."""
        self.folder = folder
        self.kills, self.stages, self.codes = Counter[str](), Counter[str](), Counter[str]()
        self.bad: list[dict[str, Any]] = []
        self._spans: dict[tuple[str, bool], float] = {}  # seconds that a command takes after its first word to Delta

    def one(self, draw: Draw) -> None:
        """Kill a command, do its work again, and judge."""
        root = (
            self.folder / f"here-{self.kills.total()}-{self.codes.total()}"
        )  # Delta in a JVM remembers a table's path
        copytree(_base_of(self.folder, draw), root)
        before = effects(root / "lake")
        code = self._killed(root, draw)
        if code == -signal.SIGKILL:
            self.kills[f"{draw.cell}, {draw.features}{', with its JVM' if draw.has_own_jvm else ''}"] += 1
            self.stages[f"{draw.cell}: {stage_of(effects(root / 'lake') - before)}"] += 1
        again = ended(forked(partial(CELLS[draw.cell].command, root)))
        self.codes[f"{code}, then {again}"] += 1
        verdict = run_and_judge(root)
        verdict["leftovers"] = [name for name in verdict["leftovers"] if not _OF_SPARK.search(name)]
        verdict["protocol"] = wrong_promises(root / "lake")
        ends = {ExitCode.CLEAN, ExitCode.MISMATCH}  # units of records that a broker took back contradict its log
        fine = code in {*ends, -signal.SIGKILL} and again in {*ends, ExitCode.HELD}
        if not fine or any(verdict[fault] for fault in (*FAULTS, "protocol")):
            self.bad.append({**draw._asdict(), "codes": [code, again], **verdict})
        print(self.kills.total(), *draw, code, again, len(self.bad), file=sys.stderr, flush=True)
        rmtree(root)

    def _killed(self, root: Path, draw: Draw) -> int:
        way = draw.cell, draw.has_own_jvm
        reading, asked = os.pipe()
        pid = forked(partial(_victim, root, draw, asked))
        os.close(asked)
        os.read(reading, 1)  # or it has ended
        os.close(reading)
        began = time.monotonic()
        while way not in self._spans or time.monotonic() < began + draw.share * self._spans[way]:
            ended_one, status = os.waitpid(pid, os.WNOHANG)
            if ended_one:  # the first of its way is not killed
                self._spans[way] = time.monotonic() - began
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
        for path in sorted((lake / table / "_delta_log").glob("*.json")):
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


def campaign(folder: Path, kills: int) -> dict[str, Any]:
    """Draw so many kills, each cell and feature as often as the others."""
    random, state = Random(34), Campaign(folder)
    waiting: list[tuple[str, str]] = []
    began = time.monotonic()
    while state.kills.total() < kills:
        if not waiting:
            waiting = [(cell, features) for features in _FEATURES for cell in CELLS]
            random.shuffle(waiting)
        state.one(Draw(*waiting.pop(), random.randrange(_OWN_JVM) == 0, random.random()))
    return {
        "kills": dict(state.kills),
        "stages": dict(state.stages),
        "codes": dict(state.codes),
        "seconds": round(time.monotonic() - began),
        "bad": state.bad,
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    compile_everything(place / "compiled")
    with spark_of_tests():
        print(json.dumps(campaign(place, int(sys.argv[2]))))
