"""A lake of which something is missing, or older than the rest: it is named, and nothing is read or written over it."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.lake.integrity import newest_runs
from jobs.lake.lake import Lake
from jobs.lake.runs import HeldByOtherError, known_stores
from jobs.lake.upkeep import optimize
from jobs.store.workers import OneByOne
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import ingest_beside, ingest_store, raw_rows, state_without_locks
from tests.support.stores import tree_state

TABLES = ("messages", "consume_queue", "index_entries", "index_files")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """Return a broker whose lake has had three runs, and whose log has grown since."""
    broker = Broker(tmp_path_factory.mktemp("grown") / "store")
    for number in range(3):
        broker.append(some_records(20, seed=number + 1))
        run(broker)
    broker.append(some_records(20, seed=9))
    return broker


@pytest.fixture
def broker(grown: Broker, tmp_path: Path) -> Broker:
    shutil.copytree(lake_of(grown), tmp_path / "lake")
    return grown.copied(tmp_path / "store")


def run(broker: Broker) -> Summary:
    return ingest_store(broker.root, lake_of(broker), "b")


def lake_of(broker: Broker) -> Path:
    return broker.root.parent / "lake"


def commits(lake: Path, table: str) -> list[Path]:
    return sorted((lake / table / "_delta_log").glob("*.json"))


def put_back(lake: Path, table: str, count: int) -> None:
    """Take away the newest commits of a table, as a restored copy or a broken disk would."""
    for path in commits(lake, table)[-count:]:
        path.unlink()


def refused(broker: Broker, match: str) -> None:
    """Expect an error that says so, and a lake that nobody has touched but for the lock's note."""
    before = state_without_locks(lake_of(broker))
    with pytest.raises(OSError, match=match):
        run(broker)
    assert before == state_without_locks(lake_of(broker))


@pytest.mark.parametrize("table", [*TABLES, "runs"])
def test_a_table_that_is_missing_is_named(table: str, broker: Broker) -> None:
    """A new empty one in its place would hide that the rows are lost; tables without `runs` are no new lake."""
    shutil.rmtree(lake_of(broker) / table)

    refused(broker, f"{table}: .* is missing")


def test_what_is_prepared_is_not_committed_to_a_new_table_in_the_place_of_one_that_is_gone(broker: Broker) -> None:
    put_back(lake_of(broker), "runs", 1)
    shutil.rmtree(lake_of(broker) / "messages")

    refused(broker, "messages: .* is missing")
    with pytest.raises(OSError, match=r"messages: .* is missing"):
        optimize(str(lake_of(broker)), OneByOne())


def test_a_table_that_nobody_wants_may_go(broker: Broker) -> None:
    lake = lake_of(broker)
    shutil.rmtree(lake / "consume_queue")
    request = IngestRequest(str(broker.root), str(lake), broker="b", tables=frozenset({"index"}))

    assert ingest(request, OneByOne()).messages == 20
    broker.append(some_records(20, seed=10))
    refused(broker, "consume_queue: .* is missing")
    assert ingest(request, OneByOne()).messages == 20


def test_a_table_that_has_a_newer_run_because_another_process_is_faster_is_no_harm(broker: Broker) -> None:
    lake = Lake(str(lake_of(broker)))
    (store,) = known_stores(lake)
    run(broker)

    with pytest.raises(HeldByOtherError):
        newest_runs(lake, store, is_done=True)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        *((table, f"{table}: .*has run 1 .*should have run 3") for table in TABLES),
        ("runs", "messages: .*has run 3 .*should have run 2"),
    ],
)
def test_a_table_that_is_older_than_its_runs_or_they_than_it_is_named(table: str, said: str, broker: Broker) -> None:
    """Put back from a copy, or without its newest commits: rows are lost, or the next run's number is taken."""
    put_back(lake_of(broker), table, 2)

    refused(broker, said)


def test_a_commit_that_is_cut_off_is_told(broker: Broker) -> None:
    for table in ("messages", "runs"):
        newest = commits(lake_of(broker), table)[-1]
        whole = newest.read_text()
        newest.write_text(whole[: len(whole) // 2])
        refused(broker, f"{table}: Delta's log cannot be read: .*")
        newest.write_text(whole)

    assert run(broker).messages == 20


def test_a_checkpoint_that_is_gone_is_told(broker: Broker) -> None:
    """The commits before it were deleted because it is there."""
    lake = lake_of(broker)
    log = lake / "runs" / "_delta_log"
    DeltaTable(lake / "runs").create_checkpoint()
    assert run(broker).messages == 20
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for path in commits(lake, "runs"):
        if int(path.stem) <= int(checkpoint.name.partition(".")[0]):
            path.unlink()
    checkpoint.unlink()

    refused(broker, "runs: Delta's log cannot be read: .*[Cc]heckpoint")


def test_a_file_of_rows_that_is_gone_is_told_by_name_where_it_is_needed(broker: Broker) -> None:
    gone = max((lake_of(broker) / "messages").glob("*.parquet"))
    gone.unlink()

    with pytest.raises(FileNotFoundError, match=gone.name):
        optimize(str(lake_of(broker)), OneByOne())


def test_a_whole_lake_is_whole_after_every_kind_of_run(broker: Broker) -> None:
    lake = lake_of(broker)
    ingest_store(broker.root, lake, "b", tables=frozenset())
    assert run(broker).messages == 0
    newest = max((lake / "_manifests").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    manifest = json.loads(newest.read_text())
    del manifest["state"]["tables"]
    newest.write_text(json.dumps(manifest))
    broker.append(some_records(20, seed=10))

    assert run(broker).messages == 20
    assert len(raw_rows(lake)) == 100


@pytest.mark.parametrize(
    "change",
    [
        *({"run": "x"}, {"to_offset": "x"}, {"state": []}, {"tables": []}, {"fingerprints": [["a", "b", "c"]]}),
        *({"version": 99}, "{", "[" * 100_000),
    ],
    ids=lambda change: str(change)[:20],
)
def test_a_manifest_with_something_else_in_it_or_without_an_end_is_named(
    change: dict[str, Any] | str, broker: Broker
) -> None:
    newest = max((lake_of(broker) / "_manifests").iterdir(), key=lambda path: path.name[37:].split("-")[0])
    text = change if isinstance(change, str) else json.dumps({**json.loads(newest.read_text()), **change})
    newest.write_text(text)
    refused(broker, "written by a newer program" if "version" in change else "no manifest of a run")


def test_a_lock_that_is_a_link_is_not_written_over(broker: Broker) -> None:
    (lock,) = (lake_of(broker) / "_locks").iterdir()
    mine = broker.root.parent / "mine"
    mine.write_text("precious")
    lock.unlink()
    lock.symlink_to(mine)
    with pytest.raises(OSError, match="a link, which is not followed"):
        run(broker)
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("name", ["more", "a b%20c"])
def test_what_a_link_in_a_table_leads_to_is_not_deleted(name: str, broker: Broker) -> None:
    """The vacuum of `deltalake` follows links, and took for obsolete all that is older than a week."""
    mine = broker.root.parent / "mine"
    mine.mkdir()
    table = lake_of(broker) / "messages"
    for path in (mine / "precious", table / "obsolete.parquet"):
        path.write_text("x")
        os.utime(path, (0, 0))
    (table / name).symlink_to(mine)

    optimize(str(lake_of(broker)), OneByOne())

    assert (mine / "precious").exists()
    assert not (table / "obsolete.parquet").exists()


def test_a_file_that_lies_outside_of_its_table_is_not_merged(broker: Broker) -> None:
    """Whoever may write the lake would have somebody with more rights copy their files into it."""
    lake = lake_of(broker)
    last = commits(lake, "messages")[-1]
    add = next(json.loads(line)["add"] for line in last.read_text().splitlines() if '"add"' in line)
    shutil.copy(lake / "messages" / add["path"], lake.parent / "private.parquet")
    action = {"add": {**add, "path": "../../private.parquet"}}
    last.with_name(f"{int(last.stem) + 1:020d}.json").write_text(json.dumps(action))
    with pytest.raises(OSError, match="outside of the table"):
        optimize(str(lake), OneByOne())


@pytest.mark.parametrize("foreign", ["meta.properties", "orders-0/00000000000000000000.log", "_delta_log/0.json"])
def test_a_folder_of_another_program_is_no_place_for_a_lake(foreign: str, tmp_path: Path, run: Run) -> None:
    """Tables among the files of a Kafka broker are a surprise for both."""
    broker = Broker(tmp_path / "store")
    broker.append(some_records(3))
    path = tmp_path / "lake" / foreign
    path.parent.mkdir(parents=True)
    path.touch()
    before = tree_state(tmp_path)
    done = run("ingest", broker.root, "--lake", tmp_path / "lake")

    assert ExitCode.USAGE == done.code
    assert f"has files of another program ({foreign.partition('/')[0]}) and is not a lake" in done.err
    assert before == tree_state(tmp_path)


@pytest.mark.parametrize("there", [(), ("lost+found", ".snapshot"), ("messages", "_manifests", "_locks")])
def test_an_empty_folder_and_one_of_a_killed_first_run_become_a_lake(there: Sequence[str], tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    broker.append(some_records(3))
    for name in there:
        (tmp_path / "lake" / name).mkdir(parents=True)

    assert 3 == ingest_beside(broker.root).messages
    (tmp_path / "lake" / "notes.txt").touch()  # in a lake, files of others are nobody's business
    broker.append(some_records(2, seed=2))
    assert 2 == ingest_beside(broker.root).messages
