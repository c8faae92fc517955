"""The explanation of a key that no message has: how much of a lake is read for it."""

from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.ingest.run import ingest
from jobs.query import lookups
from jobs.query.lake_source import LakeSource, open_lake_stores
from jobs.query.lake_tables import LakeTables
from jobs.query.source import Answer, ReasonKind
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker


def open_lake(root: Path, batches: int, count: int = 40) -> LakeSource:
    """Write a lake with one file of messages for each batch."""
    broker = Broker(root / "store", dispatches=True)
    for batch in range(batches):
        broker.append(
            make_record(properties={"KEYS": f"Order-{batch}-{number}", "UNIQ_KEY": f"U{batch:04}{number:027}"})
            for number in range(count)
        )
        ingest(IngestRequest(str(broker.root), str(root / "lake"), "b"), SerialWorkers())
    (source,) = open_lake_stores(str(root / "lake"))
    return source


def explain(source: LakeSource, key: str) -> tuple[Answer, list[str]]:
    """Return an answer, and the statements that search all messages for a key."""
    statements: list[str] = []
    execute = LakeTables.execute

    def record_and_execute(tables: LakeTables, sql: str) -> object:
        statements.append(sql)
        return execute(tables, sql)

    with patch.object(LakeTables, "execute", record_and_execute):
        answer = lookups.by_key(source, "Orders", key)
    return answer, [sql for sql in statements if "array_has" in sql]


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_one_pass_over_the_messages_explains_a_missing_key(batches: int, tmp_path: Path) -> None:
    answer, scans = explain(open_lake(tmp_path, batches), "no-such-Key")

    assert answer.reason is not None
    assert ReasonKind.NOT_ON_DISK is answer.reason.kind
    assert 1 == len(scans)


def test_the_same_pass_finds_the_key_in_another_spelling(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append([make_record(properties={"KEYS": "ORDER-7"})])
    ingest(IngestRequest(str(broker.root), str(tmp_path / "lake"), "b"), SerialWorkers())
    (source,) = open_lake_stores(str(tmp_path / "lake"))

    answer, scans = explain(source, "order-7")

    assert answer.reason is not None
    assert "did you mean 'ORDER-7'?" in answer.reason.text
    assert 1 == len(scans)


def test_a_search_that_takes_too_long_stops_and_says_which_messages_were_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a large table are searched from the newest one."""
    monkeypatch.setattr("jobs.query.lake_source._FIRST_ROWS", 30)
    source = open_lake(tmp_path, 6)
    complete, all_scans = explain(source, "no-such-Key")
    monkeypatch.setattr("jobs.query.lake_source.EXPLAINED_S", 0.0)
    stopped, scans = explain(source, "no-such-Key")

    assert complete.reason is not None
    assert stopped.reason is not None
    assert [ReasonKind.NOT_ON_DISK, ReasonKind.NOT_ALL_SEARCHED] == [complete.reason.kind, stopped.reason.kind]
    assert "were not searched" in stopped.reason.text
    assert 1 == len(scans) < len(all_scans)
