"""A store whose queues or index are in RocksDB: files are repaired, rows are left to the broker, and it is said."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.repair.run import RepairRequest, RepairSummary, repair
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import advice
from rmq_formats.rocksdb.layout import UNIT_VALUE
from tests.golden import StoreOf
from tests.support.lakes import ingest_store
from tests.support.stores import content_of, flip

WANTED = Wanted(release="5.5.1")
ALONE = {"b551-rockscq-clean": "consumequeue", "b551-rockscq-separate": "consumequeue_rocksdb"}
DOUBLE = "b551-cqdouble"


def copied(situation: StoreOf, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(situation(name) / "store", tmp_path / "store"))


def repaired(
    store: Path,
    lake: Path | None = None,
    out: str = "repair",
    *,
    apply: bool = True,
    **options: Any,  # noqa: ANN401 - further fields of the request
) -> RepairSummary:
    source = None if lake is None else Lake(str(lake))
    request = RepairRequest(str(store), store.parent / out, source, None, WANTED, apply, **options)
    return repair(request, OneByOne())


def first(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def test_no_store_is_made_loadable_that_a_start_may_cut(situation: StoreOf, tmp_path: Path) -> None:
    """Starts beside RocksDB are not foretold: what keeps the broker from one is left, or what is lost is bridged."""
    store = copied(situation, DOUBLE, tmp_path)
    segment = first(store, "commitlog/*")
    os.truncate(segment, segment.stat().st_size // 2)
    before = content_of(store)

    alone = repaired(store)
    assert "it may start then, cut the log at" in (alone.withheld or "")
    assert before == content_of(store)

    refused = repaired(store, out="refused", bridge=True)
    assert refused.withheld is not None
    assert refused.delivered
    assert repaired(store, out="bridges", bridge=True, deliver_empty=True).withheld is None
    assert len({one.stat().st_size for one in (store / "commitlog").iterdir()}) == 1


DAMAGE: dict[str, Callable[[Path], object]] = {
    "CURRENT lost": lambda folder: (folder / "CURRENT").unlink(),
    "manifest lost": lambda folder: first(folder, "MANIFEST-*").unlink(),
    "table lost": lambda folder: first(folder, "*.sst").unlink(),
    "table: one bit": lambda folder: flip(first(folder, "*.sst"), 100),
}


def delete_rows(folder: Path) -> None:
    _change_rows(folder, lambda units, key: units.delete(key))


def redirect_rows(folder: Path) -> None:
    """Have some rows point elsewhere."""
    _change_rows(folder, lambda units, key: units.put(key, b"\1" * UNIT_VALUE.size))


def _change_rows(folder: Path, change: Callable[[Rdict, Any], object]) -> None:
    raw = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder), raw)}
    database = Rdict(str(folder), raw, families, AccessType.read_write())
    units = database.get_column_family("default")
    for key in list(units.keys())[10:14]:
        change(units, key)
    units.flush()
    units.close()
    database.close()
    (folder / "rocksdict-config.json").unlink()


@pytest.mark.parametrize("name", ["b551-rockscq-clean", "b551-rockscq-killed"])
def test_lost_index_files_come_back_beside_queues_in_rocksdb(situation: StoreOf, tmp_path: Path, name: str) -> None:
    store = copied(situation, name, tmp_path)
    before = content_of(store)
    lost = first(store / "index", "*")
    lost.unlink()

    summary = repaired(store)

    after = content_of(store)
    changed = {path for path in before if before[path] != after.get(path)}
    assert summary.exit_code is ExitCode.CLEAN
    # A file is named by the clock of the broker that made it; after a crash the checkpoint says what is indexed.
    assert changed <= {f"index/{lost.name}", "checkpoint"}


@pytest.mark.parametrize("name", ALONE)
def test_a_segment_comes_back_from_the_lake_beside_queues_in_rocksdb(
    situation: StoreOf, tmp_path: Path, name: str
) -> None:
    store, lake = copied(situation, name, tmp_path), tmp_path / "lake"
    ingest_store(store, lake, release="5.5.1")
    before = content_of(store)
    segment = first(store / "commitlog", "*")
    segment.write_bytes(segment.read_bytes()[:5000])

    summary = repaired(store, lake)

    assert (ExitCode.CLEAN, before) == (summary.exit_code, content_of(store))


@pytest.mark.parametrize(
    ("name", "damage"),
    [*(("b551-rockscq-clean", damage) for damage in DAMAGE), ("b551-rockscq-separate", "table lost")],
)
def test_no_queue_files_take_the_place_of_a_damaged_database(
    situation: StoreOf, tmp_path: Path, name: str, damage: str
) -> None:
    """They would look healthy, and the broker would read none of them; what it needs is said, files are repaired."""
    store = copied(situation, name, tmp_path)
    folder = ALONE.get(name, "consumequeue")
    DAMAGE[damage](store / folder)
    queues = {path for path in content_of(store) if path.startswith("consumequeue")}
    first(store / "index", "*").unlink()

    summary = repaired(store)

    assert summary.left is not None
    assert [("unreadable_database", folder)] == [(one.kind, one.file) for one in summary.left.findings]
    assert summary.exit_code is ExitCode.DAMAGE
    assert queues == {path for path in content_of(store) if path.startswith("consumequeue")}
    (note,) = summary.notes
    assert f"{folder}: queues in RocksDB, whose rows only a broker makes" in note


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("lose", [delete_rows, shutil.rmtree])
def test_no_queue_files_take_the_place_of_rows_that_rocksdb_lacks_or_of_a_lost_database(
    situation: StoreOf, tmp_path: Path, name: str, lose: Callable[[Path], object]
) -> None:
    """The topics are in RocksDB, so the queues were: the broker makes them again when it starts."""
    store = copied(situation, name, tmp_path)
    lose(store / ALONE[name])
    before = content_of(store)

    summary = repaired(store)

    said = f"mv {quote(str(store / ALONE[name]))} "
    if lose is shutil.rmtree:
        said = "storeType=defaultRocksDB makes the queues again from the log"
    assert (ExitCode.MISMATCH, [], before) == (summary.exit_code, summary.plan, content_of(store))
    assert any(said in note for note in summary.notes)


def test_rows_that_a_killed_broker_had_in_memory_are_left_to_its_next_start(situation: StoreOf, tmp_path: Path) -> None:
    store = copied(situation, "b551-rockscq-killed", tmp_path)
    before = content_of(store)

    summary = repaired(store)

    assert ([], before) == (summary.plan, content_of(store))
    assert any("the next start makes every unit from the log" in note for note in summary.notes)


BESIDE_A_COPY: dict[str, Callable[[Path], object]] = {
    "a topic is lost": lambda queues: shutil.rmtree(queues / "Orders"),
    "the copies differ": lambda queues: flip(first(queues / "Orders" / "0", "*"), 19),
}


@pytest.mark.parametrize("damage", BESIDE_A_COPY)
def test_files_are_repaired_beside_a_second_copy_in_rocksdb(situation: StoreOf, tmp_path: Path, damage: str) -> None:
    """With double write files are what the broker reads; the database between them stays as it is."""
    store = copied(situation, DOUBLE, tmp_path)
    before = content_of(store)
    BESIDE_A_COPY[damage](store / "consumequeue")

    plan, summary = repaired(store, out="plan", apply=False), repaired(store)

    assert [] == plan.notes
    assert (ExitCode.CLEAN, before, []) == (summary.exit_code, content_of(store), summary.notes)


def test_rows_of_a_second_copy_that_differ_alone_are_set_aside(situation: StoreOf, tmp_path: Path) -> None:
    store = copied(situation, DOUBLE, tmp_path)
    redirect_rows(store / "consumequeue")

    (note,) = repaired(store, apply=False).notes

    assert "set the database aside" in note


def test_what_is_said_about_a_second_copy_sets_only_the_database_aside(situation: StoreOf, tmp_path: Path) -> None:
    """Its files lie between the folders of topics: after the command these are compared, and repaired."""
    store = copied(situation, DOUBLE, tmp_path)
    files = {path for path in content_of(store) if path.count("/") > 1}
    DAMAGE["table lost"](store / "consumequeue")
    (note,) = repaired(store).notes

    subprocess.run(["bash", "-c", note.rpartition(":")[2]], check=True)

    assert files == {path for path in content_of(store) if path.count("/") > 1}
    assert repaired(store, out="again").exit_code is ExitCode.CLEAN


def test_no_index_files_take_the_place_of_an_index_in_rocksdb(situation: StoreOf, tmp_path: Path) -> None:
    """Its broker would never read them."""
    store = copied(situation, "b551-indexrocks", tmp_path)
    segment = store / "commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"k3 ", b"k? ", 1))  # a key of a record, which no checksum covers
    before = content_of(store)

    summary = repaired(store)

    assert (ExitCode.MISMATCH, [], before) == (summary.exit_code, summary.plan, content_of(store))
    assert ["rocksdbstore: only a broker makes rows of RocksDB; they stay as they are"] == summary.notes


def test_the_steps_of_verify_make_no_queue_files_for_a_broker_that_reads_none(
    situation: StoreOf, tmp_path: Path
) -> None:
    store = copied(situation, "b551-rockscq-clean", tmp_path)
    delete_rows(store / "consumequeue")
    verdict = verify(VerifyRequest(str(store), WANTED), OneByOne())
    words = [command for step, _ in advice(verdict) for command in step.commands]

    assert [f"mv {quote(str(store / 'consumequeue'))} {quote(f'{store}-consumequeue-aside')}"] == words
