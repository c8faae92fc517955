"""
Kill `type`, `restore` and commits in Spark: `python -m tests.support.killed_commands SCENARIO DIRECTORY NUMBER`.

Only forks open a lake.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import duckdb
import pyarrow as pa

from jobs.console.result import ExitCode
from jobs.lake import commit, upkeep
from jobs.lake.lake import Lake
from jobs.lake.upkeep import optimize
from jobs.requests.restore import RestoreRequest
from jobs.requests.typing import TypeRequest
from jobs.restore.run import MANIFEST_FILE, restore
from jobs.storage import local
from jobs.store.request import GivenSettings
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from rmq_formats.broker_conf import BrokerConf
from tests.golden import unpack
from tests.rmq_formats.builders import make_record
from tests.support import killing, lakes
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, rows_of
from tests.support.other_engine import FEATURES, WORKS, find_protocol_violations, read_documented_features
from tests.support.stores import read_files

# --- typings ---------------------------------------------------------------------------------------------------------

_TYPES = """
[topic.Orders]
format = "json"
schema = "id {id}"
[topic.Payments]
format = "json"
schema = "id int, at timestamp"
{epoch}
"""
_TRUNCATE_PROBABILITY = 0.15  # before each burst
_KILLS_BETWEEN_CHECKS = 10
_TABLES = {"Orders": "typed/Orders", "Payments": "typed/Payments"}


def _type(root: Path, *, is_later: bool = True, retries: bool = True) -> None:
    """Type the lake; if *is_later*, one topic has a wider type, and dead letters of the other become valid times."""
    declared = _TYPES.format(id="bigint", epoch='epoch = "s"') if is_later else _TYPES.format(id="int", epoch="")
    (root / "types.toml").write_text(declared)
    types = read_types(root / "types.toml")
    type_lake(TypeRequest(Lake(str(root / "lake")), types, retry=retries), SerialWorkers())


def _write(broker: Broker, start: int, messages: int) -> None:
    broker.append(
        make_record(_body(number), topic=("Orders", "Payments")[number % 2], store_timestamp=1_795_000_000_000 + number)
        for number in range(start, start + messages)
    )


def _body(number: int) -> bytes:
    if number % 5 == 0:
        return b"x"
    return b'{"id": %d%b}' % (number, b', "at": %d' % number if number % 3 == 0 else b"")


def _make_typed_lake(root: Path) -> int:
    """Create a lake that was typed before its last messages were superseded and others added; return the log's end."""
    broker = Broker(root / "store")
    _write(broker, 0, 40)
    at = broker.offset
    _write(broker, 100, 20)
    killing.run(root)
    _type(root, is_later=False)
    broker.truncate(at)
    _write(broker, 200, 60)
    killing.run(root)
    return broker.offset


def _find_wrong_typings(root: Path) -> list[str]:
    wrong = []
    for topic, table in _TABLES.items():
        messages = {row["physical_offset"]: row["body"] for row in rows_of(root / "lake") if row["topic"] == topic}
        rows = [(row["physical_offset"], row["id"]) for row in rows_of(root / "lake", table)]
        dead = [row["physical_offset"] for row in rows_of(root / "lake", "dead_letters") if row["topic"] == topic]
        ids = [(at, json.loads(body)["id"]) for at, body in messages.items() if body != b"x"]
        if sorted(rows) != sorted(ids) or sorted(dead) != sorted(at for at, body in messages.items() if body == b"x"):
            wrong.append(f"{topic}: {len(messages)} messages, {len(rows)} rows, {len(dead)} dead letters")
    for table in (*_TABLES.values(), "dead_letters", "typings"):
        log = "".join(path.read_text() for path in (root / "lake" / table / "_delta_log").glob("*.json"))
        wrong += [path.name for path in (root / "lake" / table).glob("*.parquet") if path.name not in log]
    return wrong


def _complete_typing(root: Path) -> list[str]:
    code = killing.run_in_fork(partial(_type, root))
    return [f"exit code {code}"] * (code != 0) + killing.result_of_fork(root, partial(_find_wrong_typings, root))


def kill_typings_during_ingests(directory: Path, kills: int) -> dict[str, Any]:
    """Kill `type` at random moments during an ingest; sometimes the broker truncates its log before."""
    random = Random(int(os.environ.get("SEED", "1000")))
    directory.mkdir(parents=True, exist_ok=True)
    broker = Broker(directory / "store", offset=killing.result_of_fork(directory, partial(_make_typed_lake, directory)))
    number, longest, killed, ends = 1000, 1.0, 0, [broker.offset]
    bad: list[str] = []
    while killed < kills:
        if random.random() < _TRUNCATE_PROBABILITY:
            broker.truncate(ends.pop(random.randrange(max(0, len(ends) - 4), len(ends))))
            ends = [end for end in ends if end < broker.offset] or [broker.offset]
        ends.append(broker.offset)
        messages = random.randrange(5, 60)
        _write(broker, number, messages)
        number += messages
        ingesting = killing.start_fork(partial(killing.run, directory))
        started = time.monotonic()
        code = killing.fork_and_kill(
            partial(_type, directory, retries=random.random() < 0.5), random.random() * longest
        )
        killed += code == -signal.SIGKILL
        longest = (longest + 1.5 * (time.monotonic() - started)) / 2 if code >= 0 else longest * 1.05
        killing.wait_for_exit(ingesting)
        if killed and killed % _KILLS_BETWEEN_CHECKS == 0:
            bad += _complete_typing(directory)
    return {"reached": killed, "bad": bad + _complete_typing(directory)}


# --- restores --------------------------------------------------------------------------------------------------------

_RELEASE: Final = "5.3.3"
_RESTORE_EFFECTS: Final = [(os, name) for name in ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir")]


def _restore(root: Path, out: str = "out") -> int:
    settings = GivenSettings(100, 20, _RELEASE, conf=BrokerConf(consume_queue_size=200))
    request = RestoreRequest(Lake(str(root / "lake")), root / out, given_settings=settings, resume=True)
    return int(restore(request, SerialWorkers()).exit_code)


def _make_lake_to_restore(root: Path) -> None:
    root.mkdir(parents=True)
    ingest_store(unpack("b533-types", root), root / "lake", release=_RELEASE)  # a store with queues of both kinds
    _restore(root, "whole")


def _find_wrong_files(root: Path) -> list[str]:
    """Resume a restore; return the files that differ from those of a restore that was not killed."""
    code = killing.run_in_fork(partial(_restore, root))
    whole, found = read_files(root / "whole"), read_files(root / "out")
    manifests = [json.loads(files.pop(MANIFEST_FILE, b"{}")).get("files") for files in (whole, found)]
    names = {name for name in whole | found if whole.get(name) != found.get(name)}
    return [*[f"exit code {code}"] * (code != 0), *sorted(names), *[MANIFEST_FILE] * (manifests[0] != manifests[1])]


# --- commits in Spark ------------------------------------------------------------------------------------------------

_SPARK_LEFTOVERS: Final = re.compile(r"/part-|/_delta_log/(\.|_sidecars)")  # of killed commits of Delta
_TRACKED: Final = "rowTracking, clustering, deletionVectors, inCommitTimestamp"


def _make_small_files(root: Path) -> None:
    broker = killing.new_store(root)
    for seed in (2, 3):
        assert killing.run(root) == ExitCode.CLEAN
        broker.append(some_records(20, seed=seed))
    assert killing.run(root) == ExitCode.CLEAN


def _optimize(root: Path) -> None:
    optimize(str(root / "lake"), SerialWorkers())


_COMMITS: Mapping[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "append": (killing.growing_store, killing.run),
    "rewritten log": (killing.rewritten_store, killing.run),
    "merge of a run": (killing.busy_store, killing.run),
    "optimize": (_make_small_files, _optimize),
}


def _prepare_with_feature(prepare: Callable[[Path], object], feature: str, root: Path) -> None:
    prepare(root)
    for statement in FEATURES[feature]:
        killing.connect_to_test_jvm("")[1].sql(re.sub(r"\{(\w+)\}", rf"delta.`{root}/lake/\1`", statement))


def _find_faults(command: Callable[[Path], object], root: Path) -> dict[str, Any]:
    killing.run_in_fork(partial(command, root))
    verdict = killing.run_and_check(root)
    left = killing.exclude_compacted(verdict["leftovers"]) if command is _optimize else verdict["leftovers"]
    verdict["leftovers"] = [name for name in left if not _SPARK_LEFTOVERS.search(name)]
    verdict["protocol"] = find_protocol_violations(root / "lake")
    return {fault: verdict[fault] for fault in (*killing.FAULTS, "protocol") if verdict[fault]}


def kill_commits(
    directory: Path, stride: int, commands: Sequence[str] = tuple(_COMMITS), features: Sequence[str] = ()
) -> dict[str, Any]:
    """Kill each command that commits, on tables with each supported feature, after or during each effect."""
    reached, bad = 0, list[dict[str, Any]]()
    supported = [name for name, cells in read_documented_features().items() if set(cells[1:5]) == {WORKS}]
    for number, (name, feature) in enumerate(product(commands, features or supported)):
        prepare, command = _COMMITS[name]
        result = killing.kill_after_each_effect(
            partial(_prepare_with_feature, prepare, feature),
            directory / str(number),
            stride,
            command=command,
            finished=partial(_find_faults, command),
            effects=(*killing.EFFECTS, (commit, "_removals")),
            within_s=0.02,
        )
        reached += result["reached"]
        bad += [{"name": name, "feature": feature, **error} for error in result["bad"]]
    return {"reached": reached, "bad": bad}


def _read_by_duckdb(location: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table with DuckDB: `deltalake` cannot read files with deletion vectors as a data set."""
    with duckdb.connect() as connection:
        connection.load_extension(str(lakes.delta_extension()))
        found = connection.execute(f"SELECT * FROM delta_scan('{location}')").to_arrow_table()
    return found if columns is None else found.select(columns)


SCENARIOS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "typings": partial(killing.kill_after_each_effect, _make_typed_lake, command=_type, finished=_complete_typing),
    "typings-during-ingests": kill_typings_during_ingests,
    "restores": partial(
        killing.kill_after_each_effect,
        _make_lake_to_restore,
        command=_restore,
        finished=_find_wrong_files,
        effects=_RESTORE_EFFECTS,
    ),
    "commits": kill_commits,
    "tracked": partial(kill_commits, commands=["rewritten log"], features=[_TRACKED]),
}

if __name__ == "__main__":
    with (
        patch.multiple(local, _NICENESS=0, _IOPRIO_SET={}),  # on a busy machine, a low disk priority delays commands
        patch.object(lakes, "table_of", _read_by_duckdb) if killing.GATEWAY_VARIABLE in os.environ else nullcontext(),
        patch.object(upkeep, "MAX_SMALL_FILES", killing.MAX_SMALL_FILES),
    ):
        killing.main(SCENARIOS)
