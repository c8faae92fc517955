"""Rows that another engine has updated in any column: each changed record is reported and not restored."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.manifest import Manifest
from jobs.lake.snapshot_files import SnapshotFile
from jobs.lake.tables import BODY_ERROR, BODY_INFLATED, MESSAGES, RECORD_CRC, Table
from jobs.restore import TableFiles, plan_log
from jobs.restore import plan as restore_plan
from jobs.restore.run import find_store
from jobs.restore.segment import restore_segment
from jobs.store.record_places import find_record
from jobs.store.selection import Selection
from jobs.store.store import list_store
from rmq_formats.commitlog.assembly import ASSEMBLED_COLUMNS
from tests.golden import StoreOf, release_of
from tests.support.lakes import compare_with_lake, ingest_store, restore_log, rows_of, table_of

STORES = ("b420-base", "b498-base", "b533-base")
ROWS = 30  # updated in one lake, each once
CAMPAIGN = 1200  # draws, of which about a thousand change a row
STRUCTURES = {"deltalake": ("make_array('x')", "MAP(['x'], ['y'])"), "duckdb": ("['x']", "MAP(['x'], ['y'])")}
OF_SPARK = ("array('x')", "map('x', 'y')")


class Update(NamedTuple):
    """An update of one value of a row."""

    at: int
    column: str
    value: str  # in SQL

    @property
    def is_unreported(self) -> bool:
        """Whether the update must not be reported: `optimize --inflate` also writes these values."""
        return self.column in {BODY_ERROR, BODY_INFLATED} and self.value == "NULL"


DELETED = "no row"
OF_RECORDS = {"store_id", *ASSEMBLED_COLUMNS, RECORD_CRC, DELETED}  # other columns are derived from the record


def updates(lake: Path, engine: str, random: Random) -> Iterator[Update]:
    rows = random.sample(rows_of(lake), ROWS)
    for row in rows:
        field = random.choice(MESSAGES.schema_without_dictionaries)
        value = random.choice([*_values(field.type, row[field.name], engine), "NULL"])
        update = Update(row["physical_offset"], field.name, value)
        if random.random() < 1 / ROWS:
            yield update._replace(column=DELETED, value="NULL")
        elif (row[field.name] is None) != (value == "NULL") and not update.is_unreported:
            yield update


def _values(type_: pa.DataType, old: object, engine: str) -> list[str]:
    if pa.types.is_integer(type_):
        number = old if isinstance(old, int) else 0
        return [str(number + 1), str(number ^ 1 << 20), "0" if number else "7"]
    if pa.types.is_string(type_):
        return ["''" if old else "'x'", "'{}x'".format(str(old or "").replace("'", "''"))]
    list_, map_ = STRUCTURES.get(engine, OF_SPARK)
    return {
        "bool": [str(not old).upper()],
        "date32[day]": ["CAST('2001-02-03' AS DATE)"],
        "timestamp[us, tz=UTC]": ["CAST('2001-02-03 04:05:06' AS TIMESTAMP)"],
        "binary": [r"'\x01\x02'::BLOB" if engine == "duckdb" else "X'0102'"],
    }.get(str(type_), [map_ if pa.types.is_map(type_) else list_])


def update_expressions(changes: Sequence[Update]) -> dict[str, str]:
    by_column: dict[str, str] = {}
    for update in (update for update in changes if update.column != DELETED):
        when = f"WHEN physical_offset = {update.at} THEN {update.value} "
        by_column[update.column] = by_column.get(update.column, "") + when
    return {column: f"CASE {whens}ELSE {column} END" for column, whens in by_column.items()}


def deleted_condition(changes: Sequence[Update]) -> str:
    return f"physical_offset IN (-1, {', '.join(str(one.at) for one in changes if one.column == DELETED) or -1})"


def update_with_deltalake(lake: Path, changes: Sequence[Update]) -> None:
    """Update and delete rows, after an update of all rows that is reverted."""
    table = DeltaTable(lake / "messages")
    before = table.version()
    table.update({"body": "NULL"})
    table.restore(before)
    table.update(update_expressions(changes))
    table.delete(deleted_condition(changes))


def update_with_duckdb(lake: Path, changes: Sequence[Update]) -> None:
    """Rewrite the whole table, because DuckDB cannot update Delta tables."""
    rows = table_of(lake / "messages")
    columns = ", ".join(f"{case} AS {column}" for column, case in update_expressions(changes).items())
    found = duckdb.sql(
        f"SELECT * REPLACE ({columns}) FROM rows WHERE NOT {deleted_condition(changes)}"
    ).to_arrow_table()
    write_deltalake(lake / "messages", found.cast(rows.schema), mode="overwrite")


def update_with_spark(lake: Path, changes: Sequence[Update]) -> None:
    """Update, merge and delete rows, after an update of all rows that is reverted."""
    from pyspark.sql import SparkSession

    sql = SparkSession.active().sql
    table = f"delta.`{lake / 'messages'}`"
    before = DeltaTable(lake / "messages").version()
    sql(f"UPDATE {table} SET body = NULL")
    sql(f"RESTORE TABLE {table} TO VERSION AS OF {before}")
    sql(f"UPDATE {table} SET {_assignments(changes[::2])}")
    places = f"SELECT explode(array({', '.join(str(update.at) for update in changes[1::2])})) AS place"
    matched = f"MERGE INTO {table} USING ({places}) ON physical_offset = place WHEN MATCHED THEN UPDATE SET"
    sql(f"{matched} {_assignments(changes[1::2])}")
    sql(f"DELETE FROM {table} WHERE {deleted_condition(changes)}")


def _assignments(changes: Sequence[Update]) -> str:
    return ", ".join(f"{column} = {case}" for column, case in update_expressions(changes).items())


ENGINES: dict[str, Callable[[Path, Sequence[Update]], None]] = {
    "deltalake": update_with_deltalake, "duckdb": update_with_duckdb, "spark": update_with_spark,
}  # fmt: skip


@pytest.fixture(scope="module")
def lakes(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    known_lakes: dict[str, Path] = {}

    def lake(name: str) -> Path:
        if name not in known_lakes:
            known_lakes[name] = tmp_path_factory.mktemp("lakes") / name
            everything = Selection(with_inflated=True)
            store = str(golden(name))
            ingest_store(store, known_lakes[name], selection=everything, release=release_of(name))
        return known_lakes[name]

    return lake


def check(store: Path, lake: Path, out: Path, changes: Sequence[Update]) -> None:
    """Require that exactly the changed rows are reported, and that none of them is restored."""
    restored = restore_log(lake, out / "out")
    compared = compare_with_lake(store, lake)
    found = {*restored.changed, *restored.incomplete}
    places = [*restored.missing, *restored.unchecked, *((at, at + 1) for at in found)]
    differing = [*compared.unchecked, *((one.start, max(one.end, one.start + 1)) for one in compared.differences)]
    for update in (one for one in changes if one.column in OF_RECORDS):
        if not any(start <= update.at < end for start, end in places):
            assert _is_restored(store, out / "out", update.at), ("restore", update)
            continue  # the column is redundant
        assert any(start <= update.at < end for start, end in differing), ("diff", update)
    moved = {int(update.value) for update in changes if update.column == "physical_offset" and update.value != "NULL"}
    assert found <= {update.at for update in changes} | moved | {-1}
    for start, end in differing:
        assert any(start <= at < end for at in {update.at for update in changes} | moved | {-1})
    plan = plan_log(Lake(str(lake)), find_store(Lake(str(lake)), None))
    for segment in plan.segments:
        target = out / "proven" / segment.path
        restore_segment(replace(segment, path=str(target), proven_only=True), out)
        proven, stored = (np.frombuffer(path.read_bytes(), np.uint8) for path in (target, store / segment.path))
        assert ((proven == stored) | (proven == 0))[: plan.end - segment.base_offset].all()


def _is_restored(store: Path, out: Path, at: int) -> bool:
    """Return whether the restored record has the bytes of the store, which `record_crc` proves."""
    logs = (list_store(str(root)) for root in (store, out))
    first, second = (find_record(log, at) for log in logs)
    return first is not None and first == second


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", ["deltalake", "duckdb"])
@pytest.mark.parametrize("name", STORES)
def test_every_updated_row_is_reported(name: str, engine: str, golden: StoreOf, lakes: StoreOf, tmp_path: Path) -> None:
    _check_case(Random(f"{name} {engine}"), engine, golden(name), lakes(name), tmp_path)


@pytest.mark.slow
def test_every_row_that_spark_updated_is_reported(
    spark: object, golden: StoreOf, lakes: StoreOf, tmp_path: Path
) -> None:
    del spark
    _check_case(Random(1), "spark", golden("b533-base"), lakes("b533-base"), tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(CAMPAIGN // ROWS))
def test_a_thousand_updated_rows_are_reported(
    seed: int, spark: object, golden: StoreOf, lakes: StoreOf, tmp_path: Path
) -> None:
    del spark
    random = Random(seed)
    name = random.choice(STORES)
    _check_case(random, random.choice([*ENGINES]), golden(name), lakes(name), tmp_path)


def _check_case(random: Random, engine: str, store: Path, whole: Path, directory: Path) -> None:
    lake = Path(shutil.copytree(whole, directory / "lake"))
    changes = list(updates(lake, engine, random))
    ENGINES[engine](lake, changes)
    check(store, lake, directory, changes)


@pytest.mark.parametrize("segments", [10, 40, 160])
def test_a_plan_looks_at_each_file_once_and_gives_a_task_only_the_files_of_its_segment(
    segments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment was compared with each file, and each task carried all files with other bytes."""
    size = 1 << 20
    looked_at = Counter[str]()

    def make_file(table: Table, number: int) -> SnapshotFile:
        limits = {"store_id": "s", "segment": number * size, "physical_offset": number * size}
        return SnapshotFile(
            f"{table.name}-{number}", 1, 1, limits, {**limits, "physical_offset": (number + 1) * size - 1}
        )

    def count(self: SnapshotFile, column: str, otherwise: int, read: Callable[..., int] = SnapshotFile.minimum) -> int:
        looked_at[column] += 1
        return read(self, column, otherwise)

    def find_files(lake: Lake, table: Table, _: str) -> TableFiles:
        return TableFiles(lake, table, tuple(make_file(table, number) for number in range(segments)))

    monkeypatch.setattr(restore_plan, "find_table_files", find_files)
    monkeypatch.setattr(restore_plan, "_find_causes", lambda *_: ())
    monkeypatch.setattr(TableFiles, "read_rows", lambda *_: iter(()))
    monkeypatch.setattr(SnapshotFile, "minimum", count)
    newest = Manifest("s", "b", 1, 0, segments * size, None, (), {})

    plan = plan_log(Lake(str(tmp_path)), LakeStore("s", "b", (), newest))

    assert segments == len(plan.segments)
    assert {(1, 1)} == {(len(one.message_files), len(one.piece_files)) for one in plan.segments}
    assert [f"messages-{number}" for number in range(segments)] == [one.message_files[0].path for one in plan.segments]
    assert looked_at.total() <= 3 * segments
