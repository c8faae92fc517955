"""Files of a prepared run that another engine deletes before their commit: their rows come from the store once more."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.runs import known_stores, unfinished
from jobs.lake.upkeep import optimize
from jobs.store.workers import OneByOne
from tests.golden import unpack_situation
from tests.support.broker import Broker
from tests.support.killing import (
    FAULTS,
    CutShortError,
    growing_store,
    judge,
    new_store,
    rewritten_store,
    vacuumed_before_commit,
)
from tests.support.lakes import ingest_store, rows_of, said, state_without_locks, taken


def run(root: Path) -> Summary:
    return ingest_store(root / "store", root / "lake", "b", range_size=4096)


def grown(root: Path) -> Broker:
    return growing_store(root, run)


def rewritten(root: Path) -> Broker:
    return rewritten_store(root, run)


def vacuumed(root: Path, table: str) -> None:
    """Prepare a run that ends before its commit of a table, whose files are deleted."""
    with vacuumed_before_commit(table), pytest.raises(CutShortError):
        run(root)


def prepared(lake: Path) -> list[dict[str, Any]]:
    return sorted(
        (row for row in rows_of(lake, "runs", "time") if row["state"] == "prepared"), key=lambda row: row["run"]
    )


@pytest.mark.parametrize("table", ["messages", "consume_queue", "index_entries"])
@pytest.mark.parametrize("store", [new_store, grown])
def test_the_next_run_reads_again_what_was_lost(
    store: Callable[[Path], object], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path)
    vacuumed(tmp_path, table)

    summary = run(tmp_path)

    runs = [row["run"] for row in prepared(tmp_path / "lake")]
    assert [*range(1, len(runs) + 1)] == runs
    assert (summary.recovered, summary.run, summary.exit_code) == (*runs[-2:], 0)
    assert re.search(
        rf"/{table}/.*\.parquet: deleted before its commit .* left out of .*{table}", capsys.readouterr().err
    )
    verdict = judge(tmp_path)
    assert dict.fromkeys(FAULTS, 0) | {"leftovers": []} == {fault: verdict[fault] for fault in FAULTS}
    assert verdict["history"] == verdict["rows"]
    assert verdict["history"] == sum(row["messages"] for row in prepared(tmp_path / "lake"))
    assert run(tmp_path).run is None


def test_a_run_over_a_rewritten_log_begins_again_while_no_table_has_it(tmp_path: Path) -> None:
    broker = rewritten(tmp_path)
    vacuumed(tmp_path, "superseded_messages")
    (store,) = known_stores(Lake(str(tmp_path / "lake")))
    assert store.newest is not None
    for action in store.newest.tables["messages"]:
        (tmp_path / "lake/messages" / action.path).unlink()

    summary = run(tmp_path)

    verdict = judge(tmp_path)
    assert dict.fromkeys(FAULTS, 0) | {"leftovers": []} == {fault: verdict[fault] for fault in FAULTS}
    assert summary.superseded is not None
    assert broker.offset == summary.to_offset
    assert {row["superseded_by_run"] for row in rows_of(tmp_path / "lake", "superseded_messages")} == {summary.run}


@pytest.mark.parametrize(("store", "table"), [(grown, "log_pieces"), (rewritten, "messages")])
def test_a_file_whose_other_rows_are_in_a_table_already_is_named_with_what_to_do(
    store: Callable[[Path], object], table: str, tmp_path: Path
) -> None:
    store(tmp_path)
    vacuumed(tmp_path, table)
    before = state_without_locks(tmp_path / "lake")

    with pytest.raises(
        FileNotFoundError, match=rf"/{table}/.*: deleted before its commit .* from a copy of the lake, or"
    ):
        run(tmp_path)

    assert before == state_without_locks(tmp_path / "lake")


def test_optimize_says_that_the_next_run_brings_the_rows(tmp_path: Path) -> None:
    grown(tmp_path)
    vacuumed(tmp_path, "messages")

    with pytest.raises(FileNotFoundError, match="The next run brings its rows"):
        optimize(str(tmp_path / "lake"), OneByOne())

    run(tmp_path)
    (store,) = known_stores(Lake(str(tmp_path / "lake")))
    assert unfinished(Lake(str(tmp_path / "lake")), store) is None
    assert judge(tmp_path)["rows"] == judge(tmp_path)["history"]


def test_a_tier_is_read_again(tmp_path: Path) -> None:
    place = unpack_situation("b550-tiered", tmp_path)
    (place / "tiered").rename(tmp_path / "store")
    request = IngestRequest(str(tmp_path / "store"), str(tmp_path / "lake"))
    with vacuumed_before_commit("tiered"), pytest.raises(CutShortError):
        ingest(request, OneByOne())

    summary = ingest(request, OneByOne())

    assert summary.recovered == 1
    assert said(place / "EXPECT.json") == taken(tmp_path / "lake")
    assert [0, len(taken(tmp_path / "lake"))] == [
        json.loads(row["detail"])["counts"].get("tiered", 0) for row in prepared(tmp_path / "lake")
    ]
