"""
`--iceberg`: the catalog shows the content of Delta's log, exactly once, after any interruption.

pyiceberg is imported by functions, because importing it takes a second in each test process.
"""

import pkgutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.commands import lake as option
from jobs.console.result import ExitCode
from jobs.lake import catalog as registration
from jobs.lake.catalog import Registrar
from jobs.lake.lake import Lake
from jobs.lake.tables import Table
from jobs.store.workers import SerialWorkers
from rmq_formats.arrow import column
from tests.support.commands import ROOT, Run
from tests.support.lakes import LakeOfBroker, table_of
from tests.support.other_engine import WITH_VECTORS, shared_lake
from tests.support.scenes import fences

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog

HERE = "here.rocketmq"
EXTENSIONS = [
    next(Path(package.__path__[0]).rglob("*.duckdb_extension"))
    for package in (duckdb_extension_avro, duckdb_extension_iceberg)
]


_OPENED: list["Catalog"] = []


@pytest.fixture(autouse=True)
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    configure(monkeypatch, f"sqlite:///{tmp_path}/catalog.db")
    yield
    while _OPENED:
        _OPENED.pop().close()


def configure(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__URI", uri)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def grow_and_run(store_with_lake: LakeOfBroker) -> None:
    store_with_lake.grow()
    store_with_lake.run()


@pytest.fixture
def store_with_lake(tmp_path: Path) -> LakeOfBroker:
    return LakeOfBroker(tmp_path)


@pytest.fixture
def register(store_with_lake: LakeOfBroker, run: Run) -> Run:
    return partial(run, "ingest", store_with_lake.broker.root, "--lake", store_with_lake.path, "--iceberg", "here")


def catalog() -> "Catalog":
    from pyiceberg.catalog import load_catalog

    _OPENED.append(load_catalog("here"))
    return _OPENED[-1]


def rows(table: pa.Table, names: list[str]) -> list[str]:
    return sorted(map(repr, table.select(names).to_pylist()))


def list_data_files(lake: Path, name: str) -> tuple[list[str], list[str]]:
    """Return the files of a table in Iceberg and in Delta; a file that is registered twice is listed twice."""
    found = catalog().load_table(("rocketmq", name)).inspect.files()["file_path"].to_pylist()
    return sorted(Path(path).name for path in found), sorted(
        Path(path).name for path in DeltaTable(lake / name).file_uris()
    )


def assert_equal_to_delta(lake: Path) -> None:
    there = sorted(path.parent.name for path in lake.glob("*/_delta_log"))
    assert there == sorted(name for _, name in catalog().list_tables("rocketmq"))
    for name in there:
        registered, known = list_data_files(lake, name)
        assert registered == known, name


def test_iceberg_readers_return_the_same_rows_as_delta(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars as pl

    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    store_with_lake = LakeOfBroker(tmp_path, "a l#ake? ü")
    for _ in range(3):
        store_with_lake.grow()
        done = run(
            "ingest", store_with_lake.broker.root, "--lake", store_with_lake.path, "--broker", "b", "--iceberg", "here"
        )

        assert ExitCode.CLEAN == done.code

    assert ExitCode.CLEAN == run("optimize", store_with_lake.path, "--engine", "local", "--iceberg", "here").code

    assert_equal_to_delta(store_with_lake.path)
    messages = catalog().load_table(("rocketmq", "messages"))
    operations = [snapshot.summary.operation.value for snapshot in messages.snapshots() if snapshot.summary is not None]

    assert ["append", "append", "append", "overwrite"] == operations
    assert "physical offset of the record's first byte" == messages.schema().find_field("physical_offset").doc
    for _, table in catalog().list_tables("rocketmq"):
        registered = catalog().load_table(("rocketmq", table))
        delta = table_of(store_with_lake.path / table)
        names = delta.column_names
        with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
            for extension in EXTENSIONS:
                connection.execute(f"LOAD '{extension}'")
            connection.execute("SET TimeZone = 'UTC'")
            scan = f"SELECT * FROM iceberg_scan('{registered.metadata_location}')"
            by_duckdb = connection.sql(scan).to_arrow_table()

        assert rows(delta, names) == rows(registered.scan().to_arrow(), names)
        assert rows(delta, names) == rows(pl.scan_iceberg(registered).collect().to_arrow().cast(delta.schema), names)
        assert rows(delta, names) == rows(by_duckdb.cast(delta.schema), names)
    before = {ident: len(catalog().load_table(ident).snapshots()) for ident in catalog().list_tables("rocketmq")}
    again = run("catalog", store_with_lake.path, "--iceberg", "here", "--json").document

    assert before == {ident: len(catalog().load_table(ident).snapshots()) for ident in before}
    assert {(0, 0)} == {(table["added"], table["removed"]) for table in again}


def test_iceberg_readers_see_no_expired_rows(tmp_path: Path, run: Run) -> None:
    store_with_lake = LakeOfBroker(tmp_path)
    for _ in range(3):
        grow_and_run(store_with_lake)
    Registrar(HERE).register(Lake(str(store_with_lake.path)))
    before = table_of(store_with_lake.path / "messages").num_rows

    done = run("optimize", store_with_lake.path, "--engine", "local", "--keep", "1h", "--iceberg", "here", "--json")

    assert [before] == [one["messages"] for one in done.document["expired"]]
    assert_equal_to_delta(store_with_lake.path)

    assert catalog().load_table(("rocketmq", "messages")).scan().to_arrow().num_rows == 0


class _KilledError(BaseException):
    """Stands for a kill: error handlers do not catch it."""


EFFECTS = (
    "jobs.lake.commit._write",
    "pyiceberg.io.pyarrow.PyArrowFile.create",
    "pyiceberg.catalog.sql.SqlCatalog.create_table",
    "pyiceberg.catalog.sql.SqlCatalog.commit_table",
)


def kill_after_effects(number: int, work: Callable[[], object]) -> bool:
    """Do *work*, and stop it after *number* effects; return whether it was stopped."""
    seen = 0

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal seen
            seen += 1
            if seen > number:
                raise _KilledError
            return original(*args, **kwargs)

        return call

    patches = [patch(name, counted(pkgutil.resolve_name(name))) for name in EFFECTS]
    for patcher in patches:
        patcher.start()
    try:
        work()
    except _KilledError:
        return True
    finally:
        for patcher in patches:
            patcher.stop()
    return False


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("has_merged", [False, True])
def test_after_a_kill_at_any_effect_the_next_run_registers_each_file_once(
    store_with_lake: LakeOfBroker, register: Run, *, has_merged: bool
) -> None:
    from jobs.lake.upkeep import optimize

    grow_and_run(store_with_lake)
    if has_merged:
        register()
        grow_and_run(store_with_lake)

    def work() -> None:
        if has_merged:
            optimize(str(store_with_lake.path), SerialWorkers())
        Registrar(HERE).register(store_with_lake.lake)

    number = 0
    while kill_after_effects(number, work):
        number += 4

    assert number > 5
    assert_equal_to_delta(store_with_lake.path)

    store_with_lake.grow()
    killed = 0
    while kill_after_effects(killed, register):
        killed += 14

        assert ExitCode.CLEAN == register().code
        assert_equal_to_delta(store_with_lake.path)
        store_with_lake.grow()

    assert killed > 10


def test_two_registrations_at_once_register_each_file_once(store_with_lake: LakeOfBroker) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    grow_and_run(store_with_lake)
    Registrar(HERE).register(store_with_lake.lake)
    grow_and_run(store_with_lake)
    original = SqlCatalog.commit_table
    others = iter([Registrar(HERE)])

    def commit_after_other(self: "SqlCatalog", *args: Any) -> object:  # noqa: ANN401 - arguments of commit_table
        for other in others:
            other.register(store_with_lake.lake)
        return original(self, *args)

    with patch.object(SqlCatalog, "commit_table", commit_after_other):
        done = Registrar(HERE).register(store_with_lake.lake)

    assert {(0, 0), (1, 0)} >= {(one.added, one.removed) for one in done if one.table == "messages"}
    assert_equal_to_delta(store_with_lake.path)


def test_a_table_of_another_program_is_not_changed(
    store_with_lake: LakeOfBroker, register: Run, tmp_path: Path
) -> None:
    catalog().create_namespace("rocketmq")
    foreign_table = catalog().create_table(
        ("rocketmq", "messages"), pa.schema([("mine", pa.int64())]), location=f"file://{tmp_path}/theirs"
    )
    foreign_table.append(pa.table({"mine": [1]}))
    store_with_lake.grow()

    outcome = register("--json")

    assert ExitCode.FAILED == outcome.code
    assert 20 == outcome.document["messages"]
    assert "rocketmq.messages was not created by rmq-lake" in outcome.err
    assert "next command with --iceberg" in outcome.err
    assert "Traceback" not in outcome.err
    assert [{"mine": 1}] == catalog().load_table(("rocketmq", "messages")).scan().to_arrow().to_pylist()
    known, registered = list_data_files(store_with_lake.path, "consume_queue")

    assert known == registered
    other = LakeOfBroker(tmp_path / "other")
    grow_and_run(other)
    with pytest.raises(OSError, match=r"rocketmq\.consume_queue belongs to file://.*another namespace"):
        Registrar(HERE).register(other.lake)


FAULTS = {
    "no database": "sqlite:///{root}/not/there.db",
    "read-only": "sqlite:///file:{root}/catalog.db?mode=ro&uri=true",
    "no server": "http://127.0.0.1:9",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_catalog_loses_no_row_and_the_next_run_completes_it(
    fault: str, store_with_lake: LakeOfBroker, register: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with_lake.grow()

    assert ExitCode.CLEAN == register().code
    store_with_lake.grow()
    configure(monkeypatch, FAULTS[fault].format(root=tmp_path))

    outcome = register()

    assert ExitCode.FAILED == outcome.code
    assert "20 messages" in outcome.out
    (said,) = (line for line in outcome.err.splitlines() if "Iceberg catalog here.rocketmq: not up to date" in line)

    assert said.endswith("registers the missing files")
    assert 40 == DeltaTable(store_with_lake.path / "messages").to_pyarrow_table().num_rows
    configure(monkeypatch, f"sqlite:///{tmp_path}/catalog.db")

    assert ExitCode.CLEAN == register().code  # the store has no new messages
    assert_equal_to_delta(store_with_lake.path)


def test_a_missing_iceberg_extra_is_reported_with_the_command_that_installs_it(
    store_with_lake: LakeOfBroker, register: Run
) -> None:
    store_with_lake.grow()
    with patch("jobs.lake.catalog.find_spec", lambda _: None):
        outcome = register()

    assert ExitCode.FAILED == outcome.code
    assert outcome.err.strip().endswith("pip install 'rocketmq-lake[iceberg]'")
    assert not store_with_lake.path.exists()


def test_a_followed_store_is_registered_in_parallel_with_the_commits(
    store_with_lake: LakeOfBroker, register: Run
) -> None:
    store_with_lake.grow()

    assert ExitCode.CLEAN == register("--follow", "--every", "100ms", "--until", "+1s").code

    assert_equal_to_delta(store_with_lake.path)


def test_a_catalog_that_hangs_does_not_delay_commits(
    store_with_lake: LakeOfBroker, register: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Registrar, "register", lambda *_: ended.wait(60))
    monkeypatch.setattr(option, "_LAST_S", 0.1)
    for _ in range(3):
        store_with_lake.grow()
    try:
        outcome = register("--follow", "--every", "100ms", "--until", "+1s", "--max-bytes-per-step", "1000")
    finally:
        ended.set()

    assert ExitCode.FAILED == outcome.code
    assert "no response" in outcome.err
    assert 60 == DeltaTable(store_with_lake.path / "messages").to_pyarrow_table().num_rows


def test_iceberg_columns_follow_those_of_delta(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    place = tmp_path / "lake" / "typed" / "orders"
    versions = (
        {"id": pa.array([1], pa.int32()), "price": pa.array([2], pa.int64())},
        {"id": pa.array([1], pa.int32()), "price": pa.array([2], pa.int64()), "new": pa.array(["x"])},
        {"id": pa.array(["one"]), "new": pa.array([{"a": 1}]), "other": pa.array([2.5])},
    )
    for number, columns in enumerate(versions):
        rows_ = pa.table({"broker": ["b"], "store_id": ["s"], **columns})
        mode: Any = "overwrite" if number == 2 else "append"
        write_deltalake(place, rows_, mode=mode, schema_mode="overwrite" if number == 2 else "merge")
        table = Table("typed/orders", "one order", tuple(column(n, v.type, f"the {n}") for n, v in columns.items()))
        Registrar(HERE).register(lake, [table])

        shown = catalog().load_table(("rocketmq", "typed_orders")).scan().to_arrow()
        delta = table_of(place)

        assert delta.column_names == shown.column_names
        assert rows(delta, delta.column_names) == rows(shown, delta.column_names)

    named_otherwise = pa.table({"broker": ["b"], "store_id": ["s"], "list": pa.array([["a"]])})
    write_deltalake(place, named_otherwise, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(OSError, match=r"\.parquet: another engine wrote a column .*list\.item.*INSERT OVERWRITE"):
        Registrar(HERE).register(lake, [Table("typed/orders", "one order", ())])


@pytest.mark.slow
def test_old_snapshots_are_deleted_with_the_files_that_only_they_need(
    store_with_lake: LakeOfBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_KEPT", 3)
    for _ in range(6):
        grow_and_run(store_with_lake)
        Registrar(HERE).register(store_with_lake.lake)

    messages = catalog().load_table(("rocketmq", "messages"))
    counts = [messages.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows for snapshot in messages.snapshots()]

    assert [80, 100, 120] == counts
    needed = {Path(snapshot.manifest_list).name for snapshot in messages.snapshots()}
    needed |= {
        Path(manifest.manifest_path).name
        for snapshot in messages.snapshots()
        for manifest in snapshot.manifests(messages.io)
    }
    there = {path.name for path in (store_with_lake.path / "_iceberg/rocketmq/messages/metadata").glob("*.avro")}

    assert needed == there


@pytest.mark.slow
def test_rows_that_another_engine_deleted_are_never_shown(spark: SparkSession, tmp_path: Path) -> None:
    shared = shared_lake(spark, tmp_path)
    lake = Lake(str(shared.path))
    Registrar(HERE).register(lake)
    shared.sql(WITH_VECTORS, "DELETE FROM {messages} WHERE physical_offset % 3 = 0")
    before = catalog().load_table(("rocketmq", "messages")).metadata_location

    with pytest.raises(OSError, match=r"messages: .*deletion vectors.*REORG TABLE .* APPLY \(PURGE\)"):
        Registrar(HERE).register(lake)

    assert before == catalog().load_table(("rocketmq", "messages")).metadata_location

    shared.sql("SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS", "REORG TABLE {messages} APPLY (PURGE)")
    Registrar(HERE).register(lake)
    shown = catalog().load_table(("rocketmq", "messages")).scan().to_arrow()

    assert 0 < shown.num_rows < 30
    assert shared.read_by_spark() == sorted(shown["physical_offset"].to_pylist())

    shared.sql("ALTER TABLE {consume_queue} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with pytest.raises(OSError, match=r"consume_queue: .*column mapping"):
        Registrar(HERE).register(lake)


DELETION = next(iter(fences(ROOT / "docs" / "guides" / "delete-a-customer.md")))[1]
# Values of each type of column that has views, or that readers filter by.
FILTERS = (
    "topic = 'Orders'",
    "broker LIKE 'b%'",
    "uniq_key IS NOT NULL",
    "tags = 'none'",
    "physical_offset > 1000",
    "body IS NOT NULL",
    "store_time > '2020-01-01T00:00:00+00:00'",
)


def test_iceberg_stays_readable_after_messages_are_deleted_by_the_documented_script(
    store_with_lake: LakeOfBroker, register: Run
) -> None:
    """Every filter of pyiceberg failed, because deltalake writes types that it cannot compare (`string_view`)."""
    for _ in range(2):
        store_with_lake.grow()

        assert ExitCode.CLEAN == register().code
    offsets = sorted(row["physical_offset"] for row in table_of(store_with_lake.path / "messages").to_pylist())
    script = DELETION.replace("/data/lake", str(store_with_lake.path))
    exec(script.replace("properties['customer'] = '4711'", f"physical_offset = {offsets[3]}"), {})  # noqa: S102 - ours

    assert ExitCode.CLEAN == register().code
    assert_equal_to_delta(store_with_lake.path)
    expected = [offset for offset in offsets if offset != offsets[3]]
    messages = catalog().load_table(("rocketmq", "messages"))
    delta = DeltaTable(store_with_lake.path / "messages")

    assert expected == sorted(messages.scan(selected_fields=("physical_offset",)).to_arrow()[0].to_pylist())
    assert expected == sorted(delta.to_pyarrow_table(columns=["physical_offset"])[0].to_pylist())
    for condition in FILTERS:
        by_iceberg = messages.scan(row_filter=condition, selected_fields=("physical_offset",)).to_arrow()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("messages", delta.to_pyarrow_table())
            found = connection.sql(f"SELECT physical_offset FROM messages WHERE {condition}").fetchall()

        assert sorted(offset for (offset,) in found) == sorted(by_iceberg[0].to_pylist()), condition
    for name in ("consume_queue", "index_entries"):
        table = catalog().load_table(("rocketmq", name))

        assert table.scan(row_filter="topic = 'nowhere'").to_arrow().num_rows == 0

    # Nothing is written again, and the next run of the store continues.
    before = {ident: len(catalog().load_table(ident).snapshots()) for ident in catalog().list_tables("rocketmq")}

    assert ExitCode.CLEAN == register().code
    assert before == {ident: len(catalog().load_table(ident).snapshots()) for ident in before}
    store_with_lake.grow()

    assert ExitCode.CLEAN == register().code
    assert_equal_to_delta(store_with_lake.path)
