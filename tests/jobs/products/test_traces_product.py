"""`traces`: one row for each line that clients report in messages."""

import duckdb
import pytest

from jobs.products import messages
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import TRACE_TOPIC
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import dataset_of, ingest_into_own_lake
from tests.support.recipes import RECIPES

_SENT = "Pub\x01{time}\x01R\x01producers\x01Orders\x01{id}\x01TagA\x01k\x01host\x014\x017\x010\x01OFF\x01true\x02"
_CONSUMED = "SubAfter\x01Q\x01{id}\x013\x01false\x01k\x014\x01{time}\x01consumers\x02"


def report(name: str, lines: str) -> MessageRecord:
    return make_record(lines.format(id=name, time=1_700_000_000_000).encode(), topic=TRACE_TOPIC)


def test_a_store_without_traces_decodes_no_bodies(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "decode_trace_bodies", None)
    broker.append(some_records(20))

    assert ingest_into_own_lake(broker.root).messages == 20
    assert not (broker.root.parent / "lake" / "traces").exists()


def test_recipes_find_slow_consumers_and_unconsumed_messages(broker: Broker) -> None:
    failed = _CONSUMED
    succeeded = _CONSUMED.replace("false", "true").replace("\x013\x01", "\x0190\x01").replace("consumers", "slow")
    broker.append(
        [report("never", _SENT), report("in-vain", _SENT + failed), report("at-last", failed + _SENT), *some_records(2)]
    )
    broker.append([report("at-last", succeeded)])
    ingest_into_own_lake(broker.root)
    slow, never = (recipe.text for recipe in RECIPES if "FROM traces " in recipe.text)
    with duckdb.connect() as connection:
        connection.register("traces", dataset_of(broker.root.parent / "lake" / "traces"))
        groups = connection.execute(slow).fetchall()
        unconsumed = connection.execute(never).fetchall()

    assert groups == [("b", "slow", 1, 0, 90.0, 90, "at-last"), ("b", "consumers", 2, 2, 3.0, 3, groups[1][-1])]
    assert sorted(row[1] for row in unconsumed) == ["in-vain", "never"]
