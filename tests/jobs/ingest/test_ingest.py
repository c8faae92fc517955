"""Ingest stores of real brokers into Delta tables, and read them with engines other than Spark."""

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.upkeep import optimize
from jobs.requests.ingest import IngestRequest
from jobs.store.spark_workers import SparkWorkers
from jobs.store.store import Store, StoredFile
from jobs.store.workers import InProcessWorkers, SerialWorkers
from rmq_formats.commitlog.record import encode_record
from rmq_formats.commitlog.segment import PieceKind
from tests.golden import GOLDEN, StoreOf, unpack
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.killing import FAULTS, check_lake, growing_store, interrupt_run, new_store, rewritten_store
from tests.support.lakes import (
    LakeOfBroker,
    compare_with_lake,
    ingest_store,
    list_leftovers,
    raw_rows,
    request_of,
    restore_log,
    rows_of,
    state_without_locks,
    table_of,
)
from tests.support.stores import list_segments, log_folders, read_records, read_store_records, walk_store

_QUICK = ("b420-crash-later", "b498-dledger", "b498-dledger-upgraded", "b498-multipath", "b533-expired")


@pytest.mark.sample(2, always=_QUICK)
@pytest.mark.parametrize("name", GOLDEN)
def test_rows_of_a_real_store_have_its_bytes_and_restore_its_log(name: str, golden: StoreOf, tmp_path: Path) -> None:
    """The lake also keeps underivable bytes, such as stale bytes at the end of files and DLedger's entry numbers."""
    store = golden(name)
    lake = tmp_path / "lake"

    assert ingest(request_of(name, store, lake), SerialWorkers()).exit_code is ExitCode.CLEAN
    compared = compare_with_lake(store, lake, log_folders(store))
    restored = restore_log(lake, tmp_path / "out")

    rows = raw_rows(lake)

    assert [raw for _, raw in read_records(list_segments(store))] == [raw for _, raw in rows]
    assert [one for one in compared.differences if "damaged when it was read" not in one.cause] == []
    assert compared.equal == len(rows)
    assert restored.exit_code == 0
    assert restored.missing == []
    assert restored.assumed == []
    ends = {path: max(restored.to_offset - int(path[-20:]), 0) for path in log_of(store)}
    expected = {path: data[: ends[path]] for path, data in log_of(store).items() if data[: ends[path]]}

    assert {path: data[: ends[path]] for path, data in log_of(tmp_path / "out").items()} == expected


def log_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in list_segments(store)}


_GROUP = ("killed-leader", "rejoined-leader", "former-leader", "store")  # the last two at the end


def test_a_log_of_a_group_has_the_messages_that_its_leader_committed(situation: StoreOf) -> None:
    """A killed leader had two entries that no other member had received; see the transcript `dledger-group`."""
    group = situation("b550-dledger-group")
    replies = json.loads((group / "EXPECT.json").read_text())
    agreed, lost, overwritten = replies["agreed"], replies["answers"], replies["overwritten"]
    ends = (lost, overwritten, [*overwritten, replies["newest"]], [*overwritten, replies["newest"]])
    for name, end in zip(_GROUP, ends, strict=True):
        records = list(read_store_records(group / name))

        assert [*agreed, *end] == [record.physical_offset for record, _ in records]
        assert all(encode_record(record) == raw for record, raw in records)
        assert PieceKind.DAMAGE not in {piece.kind for _, pieces in walk_store(group / name) for piece in pieces}

    assert 1 == len({b"".join(path.read_bytes() for path in list_segments(group / name)) for name in _GROUP[2:]})


def test_spark_tasks_and_one_process_write_the_same_rows(golden: StoreOf, spark: SparkSession, tmp_path: Path) -> None:
    for name, workers in (("here", SerialWorkers()), ("tasks", SparkWorkers(spark))):
        ingest(request_of("b551-base", golden("b551-base"), tmp_path / name), workers)

    assert contents(tmp_path / "tasks") == contents(tmp_path / "here")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-types", "b533-dledger", "b420-live", "b498-expired"])
def test_several_threads_write_the_same_rows_as_one_even_if_started_from_a_thread(
    name: str, golden: StoreOf, tmp_path: Path
) -> None:
    store = golden(name)
    lakes = {width: tmp_path / str(width) for width in (1, 4)}
    with ThreadPoolExecutor(1) as elsewhere:
        for width, lake in lakes.items():
            asked = request_of(name, store, lake, range_size=1 << 12)
            elsewhere.submit(ingest, asked, InProcessWorkers(width=width)).result()

    one, four = (contents(lake) for lake in lakes.values())

    assert one == four
    assert [] == list_leftovers(lakes[4])


def test_a_run_in_several_threads_finds_nothing_new_in_a_log_with_a_large_unwritten_end(
    tmp_path: Path,
) -> None:
    """The queues are divided into groups by the size of the files, although no queue has a new unit."""
    made = LakeOfBroker(tmp_path, dispatches=True)
    made.grow(40)
    made.run()
    with list_segments(made.broker.root)[-1].open("r+b") as segment:
        segment.truncate(1 << 30)

    again = ingest(IngestRequest(str(made.broker.root), str(made.path), "b"), InProcessWorkers(width=4))

    assert again.run is None
    assert 0 == again.behind


def contents(lake: Path, *names: str) -> dict[str, list[str]]:
    """Return the rows of tables (by default all except `runs`), without the columns that name the run."""
    found = {}
    for name in names or [path.name for path in lake.iterdir() if path.name != "runs"]:
        if (lake / name / "_delta_log").exists():
            table = table_of(lake / name)
            kept = [column for column in table.column_names if column not in {"run", "ingested_at", "store_id"}]
            found[name] = sorted(map(repr, table.select(kept).to_pylist()))
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "step"), [("b498-base", 4_000), ("b533-expired", 5_000), ("b498-dledger", 5_000)])
def test_steps_of_any_size_write_the_same_rows_as_one_run(name: str, step: int, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    whole = ingest_store(store, tmp_path / "whole", "b")
    stepped = ingest_store(store, tmp_path / "stepped", "b", step_bytes=step)

    names = ("messages", "consume_queue", "index_entries", "quarantine")

    assert contents(tmp_path / "stepped", *names) == contents(tmp_path / "whole", *names)
    for field in ("messages", "to_offset", "units", "index_entries", "exit_code"):
        assert getattr(stepped, field) == getattr(whole, field)

    assert stepped.steps > 1


def test_a_later_run_needs_no_index_file_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: StoredFile, _: Store) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", file.location)

    monkeypatch.setattr("jobs.products.index.product.read_index_header", refuse)
    store = unpack("b551-base", tmp_path)
    ingested = ingest_store(store, tmp_path / "lake", "b", step_bytes=10_000)

    assert 286 == ingested.index_entries
    assert ExitCode.CLEAN == ingested.exit_code
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="which file is flushed is read from Linux's /proc")
def test_files_are_flushed_before_their_commit_and_the_commit_before_the_next_step(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(30))
    lake = tmp_path / "lake"
    flushed: list[tuple[Path, set[Path]]] = []  # and the number of earlier commits

    def note_call(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path, {*lake.glob("*/_delta_log/*.json")}))
        fsync(descriptor)

    def find_after(start: int, path: Path) -> int:
        return next(number for number, (one, _) in enumerate(flushed) if number >= start and one == path)

    with patch.object(os, "fsync", note_call):
        ingest_store(broker.root, lake)

    named = 0
    for commit in lake.glob("*/_delta_log/*.json"):
        table = commit.parent.parent
        adds = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
        for path in (table / add["path"] for add in adds if add):
            directory = find_after(find_after(0, path), table)

            assert commit not in flushed[directory][1]
            find_after(find_after(directory, commit), commit.parent)
            named += 1

    assert named > 5
    [manifest] = (lake / "_manifests").iterdir()
    written = next(number for number, (path, _) in enumerate(flushed) if manifest.name in path.name)
    held = flushed[find_after(written, manifest.parent)][1]
    prepared = next(one for one in (lake / "runs" / "_delta_log").glob("*.json") if "-prepared-" in one.read_text())

    assert prepared not in held


def run(root: Path) -> Summary:
    return ingest_store(root / "store", root / "lake", "b", range_size=4096)


def prepared(lake: Path) -> list[dict[str, Any]]:
    return sorted(
        (row for row in rows_of(lake, "runs", "time") if row["state"] == "prepared"), key=lambda row: row["run"]
    )


@pytest.mark.parametrize(
    ("store", "table"), [(new_store, "messages"), (growing_store, "consume_queue"), (growing_store, "index_entries")]
)
def test_the_next_run_rereads_lost_rows(
    store: Callable[[Path], object], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path)
    interrupt_run(tmp_path, table)
    with pytest.raises(FileNotFoundError, match="The next run writes the rows"):
        optimize(str(tmp_path / "lake"), SerialWorkers())

    summary = run(tmp_path)

    runs = [row["run"] for row in prepared(tmp_path / "lake")]

    assert [*range(1, len(runs) + 1)] == runs
    assert (summary.recovered, summary.run, summary.exit_code) == (*runs[-2:], 0)
    assert re.search(
        rf"/{table}/.*\.parquet: .*this file was deleted before it was committed.* adds no rows to .*{table}",
        capsys.readouterr().err,
    )
    verdict = check_lake(tmp_path)

    assert dict.fromkeys(FAULTS, 0) | {"leftovers": []} == {fault: verdict[fault] for fault in FAULTS}
    assert verdict["history"] == verdict["rows"]
    assert verdict["history"] == sum(row["messages"] for row in prepared(tmp_path / "lake"))
    assert run(tmp_path).run is None


def test_a_run_over_a_rewritten_log_is_repeated_if_no_table_contains_it(tmp_path: Path) -> None:
    broker = rewritten_store(tmp_path)
    interrupt_run(tmp_path, "superseded_messages")
    (store,) = list_lake_stores(Lake(str(tmp_path / "lake")))

    assert store.newest_manifest is not None
    for action in store.newest_manifest.tables["messages"]:
        (tmp_path / "lake/messages" / action.path).unlink()

    summary = run(tmp_path)

    verdict = check_lake(tmp_path)

    assert dict.fromkeys(FAULTS, 0) | {"leftovers": []} == {fault: verdict[fault] for fault in FAULTS}
    assert summary.superseded is not None
    assert broker.offset == summary.to_offset
    assert {row["superseded_by_run"] for row in rows_of(tmp_path / "lake", "superseded_messages")} == {summary.run}


@pytest.mark.parametrize(("store", "table"), [(growing_store, "log_pieces"), (rewritten_store, "messages")])
def test_a_lost_file_of_a_partly_committed_run_is_named_with_the_remedy(
    store: Callable[[Path], object], table: str, tmp_path: Path
) -> None:
    store(tmp_path)
    interrupt_run(tmp_path, table)
    before = state_without_locks(tmp_path / "lake")

    with pytest.raises(
        FileNotFoundError,
        match=rf"/{table}/.*: .*this file was deleted before it was committed.* from a copy of the lake, or",
    ):
        run(tmp_path)

    assert before == state_without_locks(tmp_path / "lake")


def test_a_stored_selection_of_topics_is_named_by_each_run_that_applies_it(tmp_path: Path, run: Run) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "lake"
    broker.append(some_records(20))
    command = ("ingest", broker.root, "--lake", lake)
    stored = "topics: --topics Orders, as in all runs since run 2 (to change the selection, pass --change-topics)"

    _, first, _ = run(*command)
    _, second, _ = run(*command, "--change-topics", "--topics", "Orders")
    results = [run(*command)[1] for _ in range(2)]  # the second one may use the note of the first
    broker.append(some_records(5, seed=2))
    results += [run(*command)[1]]
    _, same, _ = run(*command, "--topics", "Orders")
    _, changed, _ = run(*command, "--change-topics")
    _, after, _ = run(*command)

    assert ["topics:" in out for out in (first, second, same, changed, after)] == [False, True, False, False, False]
    assert "since run" not in second
    assert [" ".join(out.split()).count(stored) for out in results] == [1, 1, 1]
    assert ["nothing new" in out for out in results] == [True, True, False]
