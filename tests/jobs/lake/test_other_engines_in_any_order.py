"""Statements of Spark SQL and `deltalake`, our runs and merges, in any order: no lost, duplicated or restored rows."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import duckdb
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobs.ingest import run as steps
from jobs.lake import upkeep
from jobs.lake.lake import Lake
from jobs.lake.manifest import Manifest
from jobs.lake.runs import prepare_run
from jobs.lake.snapshots import UnsupportedTableError
from jobs.lake.table_file import AddedFile
from jobs.lake.upkeep import MergeGroup, merge_group
from jobs.store.workers import SerialWorkers
from tests.support.broker import some_records
from tests.support.lakes import delta_extension
from tests.support.other_engine import NO_SHORT_RETENTION_CHECK, SharedLake, shared_lake

STEPS = 6
DRAWS = 500
FEW = 2  # of the draws, in `make test-slow`
LOOKS = 10  # Spark reads the rows in one of so many draws, because that takes as long as a statement
SET = "ALTER TABLE {messages} SET TBLPROPERTIES ('delta.%s' = '%s')"
PROPERTIES = {  # properties that platforms enable by default
    "enableDeletionVectors": ("true", "false"),
    "enableChangeDataFeed": ("true", "false"),
    "enableRowTracking": ("true", "false"),
    "enableInCommitTimestamps": ("true", "false"),
    "checkpointPolicy": ("v2", "classic"),
    "checkpointInterval": ("1", "10"),
    "deletedFileRetentionDuration": ("interval 30 days", "interval 7 days"),
}
MAPPED = SET % ("columnMapping.mode", "name")
REFUSED = {
    "rename": (MAPPED, "ALTER TABLE {messages} RENAME COLUMN flag TO flags"),
    "drop a column": (MAPPED, "ALTER TABLE {messages} DROP COLUMN flag"),
    "widen": (SET % ("enableTypeWidening", "true"), "ALTER TABLE {messages} CHANGE COLUMN queue_id TYPE BIGINT"),
    "constrain": ("ALTER TABLE {messages} ADD CONSTRAINT few CHECK (queue_id < 100)",),
    "append only": (SET % ("appendOnly", "true"),),
    "forget": (SET % ("setTransactionRetentionDuration", "interval 7 days"),),
}

Row = tuple[str | None, str | None]  # the values of `tags` and of the other engine's column


class State(NamedTuple):
    """The expected content of the table of messages."""

    rows: dict[int, Row]
    has_note: bool


class RandomSteps:
    """Performs statements and runs in a random order, and checks the lake after each."""

    def __init__(self, lake: SharedLake, seed: int) -> None:
        self._random = Random(seed)
        self.lake = lake
        self.state = State(dict.fromkeys(self.lake.offsets(), ("TagA", None)), has_note=False)
        self.superseded: list[int] = []
        self._log = sorted(self.state.rows)
        self._restorable: dict[int, State] = {}
        self.done: list[str] = []

    def perform(self, steps: int) -> None:
        for _ in range(steps):
            self._random.choice((self.run, self.run, self.optimize, self.rewrite_log, self.statement, self.statement))()
            self.check()

    def check(self) -> None:
        columns = "physical_offset, tags" + (", note" if self.state.has_note else "")
        found = sorted((r["physical_offset"], (r["tags"], r.get("note"))) for r in self._rows("messages", columns))
        assert sorted(self.state.rows.items()) == found, self.done
        if self.superseded:
            moved = sorted(row["physical_offset"] for row in self._rows("superseded_messages", "physical_offset"))
            assert sorted(self.superseded) == moved, self.done
        self._restorable[DeltaTable(self.lake.path / "messages").version()] = self.state

    def _rows(self, name: str, columns: str) -> list[dict[str, Any]]:
        with duckdb.connect() as connection:
            connection.load_extension(str(delta_extension()))
            found = connection.execute(f"SELECT {columns} FROM delta_scan('{self.lake.path / name}')")
            rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
        return rows

    def run(self) -> None:
        self.done.append("run")
        new = self.lake.grow(self._random.randrange(1, 9))
        with self._maybe_interleave():
            self.lake.run()
        self._add(new)

    def rewrite_log(self) -> None:
        """Truncate the log after a message that the lake still has, write other records, and run."""
        live = [at for at in self._log[:-1] if at in self.state.rows]
        if not live:
            return
        before = self._random.choice(live[-8:])
        cut = self._log[self._log.index(before) + 1]
        self.done.append(f"log again from {cut}")
        old_end = self.lake.broker.offset
        self.lake.broker.truncate(cut)
        new: list[int] = []
        while self.lake.broker.offset <= old_end + 1000:
            some = self.lake.broker.append(some_records(5, seed=self._random.randrange(1 << 30)))
            new += [record.physical_offset for record in some]
        with self._maybe_interleave(may_delete_before=before):
            self.lake.run()
        self.superseded += [at for at in self.state.rows if at >= cut]
        self.state = self.state._replace(rows={at: row for at, row in self.state.rows.items() if at < cut})
        self._log = [at for at in self._log if at < cut]
        self._restorable.clear()
        self._add(new)

    def optimize(self) -> None:
        self.done.append("optimize")
        with self._maybe_interleave():
            upkeep.optimize(str(self.lake.path), SerialWorkers())

    def statement(self) -> None:
        self._random.choice(
            (
                *(self.delete, self.delete, self.update, self.merge, self.set_property, self.add_column, self.restore),
                *(
                    self.spark_optimize,
                    self.purge,
                    self.vacuum,
                    self.set_property,
                    self.cluster,
                    self.widen_other_column,
                ),
                *(self.write_with_deltalake, self.compact_log, self.clone, self.enable_refused_feature),
            )
        )()

    def delete(self) -> None:
        self._delete(self._draw_offsets())

    def _delete(self, some: list[int]) -> None:
        self.done.append(f"delete {some}")
        self.lake.sql(f"DELETE FROM {{messages}} WHERE physical_offset IN ({_join(some)})")
        self.state = self.state._replace(rows={at: row for at, row in self.state.rows.items() if at not in some})

    def update(self) -> None:
        some = self._draw_offsets()
        value = f"u{len(self.done)}"
        column = "note" if self.state.has_note and self._random.random() < 0.5 else "tags"
        self.done.append(f"update {column} of {some}")
        self.lake.sql(f"UPDATE {{messages}} SET {column} = '{value}' WHERE physical_offset IN ({_join(some)})")
        self._change(some, column, value)

    def merge(self) -> None:
        """Change some rows and delete others in one statement."""
        changed = self._draw_offsets()
        value = f"m{len(self.done)}"
        deleted = [at for at in self._draw_offsets() if at not in changed]
        self.done.append(f"merge: change {changed}, delete {deleted}")
        self.lake.sql(
            "MERGE INTO {messages} AS t USING (SELECT explode(array("
            + ", ".join(f"{at}L" for at in [*changed, *deleted, -1])
            + ")) AS at) AS s ON t.physical_offset = s.at "
            f"WHEN MATCHED AND s.at IN ({_join(deleted)}) THEN DELETE WHEN MATCHED THEN UPDATE SET tags = '{value}'"
        )
        self._change(changed, "tags", value)
        self.state = self.state._replace(rows={at: row for at, row in self.state.rows.items() if at not in deleted})

    def _change(self, some: list[int], column: str, value: str) -> None:
        changed = {
            at: (value, row[1]) if column == "tags" else (row[0], value)
            for at, row in self.state.rows.items()
            if at in some
        }
        self.state = self.state._replace(rows=self.state.rows | changed)

    def set_property(self, names: tuple[str, ...] = tuple(PROPERTIES)) -> None:
        name = self._random.choice(names)
        value = self._random.choice(PROPERTIES[name])
        self.done.append(f"{name} = {value}")
        self.lake.sql(SET % (name, value))

    def cluster(self) -> None:
        by = self._random.choice(("(topic)", "(store_time, topic)", "NONE"))
        self.done.append(f"cluster by {by}")
        self.lake.sql(f"ALTER TABLE {{messages}} CLUSTER BY {by}")

    def widen_other_column(self) -> None:
        name = f"theirs_{len(self.done)}"
        self.done.append(f"widen {name}")
        self.lake.sql(
            SET % ("enableTypeWidening", "true"),
            f"ALTER TABLE {{messages}} ADD COLUMNS ({name} INT)",
            f"UPDATE {{messages}} SET {name} = queue_id WHERE physical_offset % 2 = 0",
            f"ALTER TABLE {{messages}} CHANGE COLUMN {name} TYPE BIGINT",
        )

    def write_with_deltalake(self) -> None:
        table = DeltaTable(self.lake.path / "messages")
        some = self._draw_offsets()
        where = f"physical_offset IN ({_join(some)})"
        value = f"d{len(self.done)}"
        operations: dict[str, Callable[[], object]] = {
            "delete": lambda: table.delete(where),
            "update": lambda: table.update({"tags": f"'{value}'"}, predicate=where),
            "compact": table.optimize.compact,
            "z-order": lambda: table.optimize.z_order(["topic"]),
            "checkpoint": table.create_checkpoint,
        }
        operation = self._random.choice(sorted(operations))
        self.done.append(f"deltalake: {operation} {some}")
        try:
            operations[operation]()
        except (DeltaError, OSError, ValueError) as error:  # it does not support a feature
            self.done.append(str(error)[:60])
            return
        if operation == "delete":
            self.state = self.state._replace(rows={at: row for at, row in self.state.rows.items() if at not in some})
        elif operation == "update":
            self._change(some, "tags", value)

    def compact_log(self) -> None:
        """Write a compacted file of the last commits of the log, as PROTOCOL.md allows."""
        log = self.lake.path / "messages" / "_delta_log"
        commits = sorted(log.glob(f"{'[0-9]' * 20}.json"))[-3:]
        newest: dict[tuple[Any, ...], str] = {}
        for line in (line for path in commits for line in path.read_text().splitlines()):
            ((kind, action),) = json.loads(line).items()
            vector = action.get("deletionVector") or {}
            key = {
                "add": ("file", action.get("path"), vector.get("pathOrInlineDv"), vector.get("offset")),
                "remove": ("file", action.get("path"), vector.get("pathOrInlineDv"), vector.get("offset")),
                "txn": (kind, action.get("appId")),
                "domainMetadata": (kind, action.get("domain")),
            }.get(kind, (kind,))
            if kind not in {"commitInfo", "cdc"}:
                newest[key] = line
        self.done.append(f"compact the log of {[path.name for path in commits]}")
        (log / f"{commits[0].stem}.{commits[-1].stem}.compacted.json").write_text("\n".join(newest.values()) + "\n")

    def clone(self) -> None:
        """Create another table with the same files, and delete rows from it."""
        copy = f"delta.`{self.lake.root}/copy-{len(self.done)}`"
        self.done.append("clone")
        self.lake.sql(f"CREATE TABLE {copy} SHALLOW CLONE {{messages}}", f"DELETE FROM {copy} WHERE queue_id = 0")

    def enable_refused_feature(self) -> None:
        """Let the other engine enable a feature that runs refuse; then follow the remedy in the message."""
        name = self._random.choice(sorted(REFUSED))
        before = DeltaTable(self.lake.path / "messages").version()
        self.done.append(name)
        try:
            self.lake.sql(*REFUSED[name])
        except AnalysisException as error:  # a feature of the table forbids it
            self.done.append(str(error)[:60])
        new = self.lake.grow(2)
        try:
            self.lake.run()
        except UnsupportedTableError as error:
            self.done.append(str(error))
            restored = re.search(r"TO VERSION AS OF (\d+)", str(error))
            assert restored is None or int(restored[1]) >= before, self.done
            self.lake.run_remedy(error)
            self.lake.run()
        self._add(new)

    def add_column(self) -> None:
        if not self.state.has_note:
            self.done.append("add column")
            self.lake.sql("ALTER TABLE {messages} ADD COLUMNS (note STRING)")
            self.state = self.state._replace(has_note=True)

    def spark_optimize(self) -> None:
        order = self._random.choice(("", " ZORDER BY (topic, queue_id)"))
        self.done.append(f"their optimize{order}")
        try:
            self.lake.sql("OPTIMIZE {messages}" + order)
        except AnalysisException:  # Delta allows only one order
            assert order, self.done

    def purge(self) -> None:
        """Let the other engine rewrite files with deletion vectors."""
        self.done.append("purge")
        self.lake.sql("REORG TABLE {messages} APPLY (PURGE)")

    def vacuum(self) -> None:
        self.done.append("vacuum")
        self.lake.sql(NO_SHORT_RETENTION_CHECK, "VACUUM {messages} RETAIN 0 HOURS")
        self._restorable.clear()

    def restore(self) -> None:
        if self._restorable:
            version, state = self._random.choice(sorted(self._restorable.items(), key=lambda item: item[0]))
            self.done.append(f"restore {version}")
            self.lake.sql(f"RESTORE TABLE {{messages}} TO VERSION AS OF {version}")
            self.state = state

    @contextmanager
    def _maybe_interleave(self, may_delete_before: int | None = None) -> Iterator[None]:
        """Sometimes run a statement of the other engine after our files are written and before they are committed."""
        if self._random.random() < 0.6:
            yield
            return
        vectors = partial(self.set_property, ("enableDeletionVectors",))
        between = self._random.choice((self.delete, self.update, self.spark_optimize, vectors))
        if may_delete_before is not None:  # rows after the cut are superseded as they were read
            some = [at for at in self._draw_offsets() if at < may_delete_before]
            between = lambda: self._delete(some)  # noqa: E731 - a callable, like the others
        with (
            patch.object(steps, "prepare_run", _after_statement(between, self.done, prepare_run)),
            patch.object(upkeep, "merge_group", _after_statement(between, self.done, merge_group)),
        ):
            yield

    def _draw_offsets(self) -> list[int]:
        rows = sorted(self.state.rows)
        return sorted(self._random.sample(rows, min(len(rows), self._random.randrange(1, 6))))

    def _add(self, new: list[int]) -> None:
        self._log += new
        self.state = self.state._replace(rows=self.state.rows | dict.fromkeys(new, ("TagA", None)))


def _after_statement(
    statement: Callable[[], None], done: list[str], original: Callable[..., Any]
) -> Callable[..., Any]:
    left = [statement]

    def call(*arguments: Lake | Manifest | MergeGroup) -> AddedFile | None:
        while left:
            done.append("meanwhile:")
            left.pop()()
        return original(*arguments)  # type: ignore[no-any-return]

    return call


def _join(offsets: list[int]) -> str:
    return ", ".join(map(str, offsets or [-1]))


@pytest.fixture(scope="module")
def first_runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SharedLake:
    return shared_lake(spark, tmp_path_factory.mktemp("first-runs"), runs=(12, 8))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed < FEW else pytest.mark.campaign) for seed in range(DRAWS)],
)
def test_every_row_exists_once_in_any_order_of_operations(first_runs: SharedLake, tmp_path: Path, seed: int) -> None:
    with patch.object(upkeep, "MAX_SMALL_FILES", 2):  # so that runs also merge files
        steps = RandomSteps(first_runs.copied(tmp_path), seed)
        steps.perform(STEPS)
    if seed % LOOKS == 0:
        assert sorted(steps.state.rows) == steps.lake.read_by_spark(), steps.done
