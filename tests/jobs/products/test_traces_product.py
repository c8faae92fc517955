"""`traces`: one row for each line that clients report in messages."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from jobs.ingest import Summary
from jobs.products import messages
from jobs.store.selection import Selection
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.trace import TRACE_TOPIC
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.lakes import dataset_of, ingest_into_own_lake, rows_of
from tests.support.recipes import RECIPES

_SENT = "Pub\x01{time}\x01R\x01producers\x01Orders\x01{id}\x01TagA\x01k\x01host\x014\x017\x010\x01OFF\x01true\x02"
_CONSUMED = "SubAfter\x01Q\x01{id}\x013\x01false\x01k\x014\x01{time}\x01consumers\x02"


def reports(
    name: str, lines: str = _SENT + _CONSUMED, *, packs: bool = False, topic: str = TRACE_TOPIC
) -> MessageRecord:
    body = lines.format(id=name, time=1_700_000_000_000).encode()
    return make_record(zlib.compress(body) if packs else body, topic=topic, sys_flag=COMPRESSED * packs)


def ingest_traces(broker: Broker, selection: Selection = Selection()) -> Summary:  # noqa: B008 - frozen
    return ingest_into_own_lake(broker.root, selection=selection)


def lines(broker: Broker) -> list[tuple[int, int, str, str | None]]:
    rows = rows_of(broker.root.parent / "lake", "traces")
    found = [(row["physical_offset"], row["line"], row["kind"], row["message_id"]) for row in rows]
    return sorted(found)


def expected_rows(records: Sequence[MessageRecord], *names: str) -> list[tuple[int, int, str, str]]:
    return [
        (record.physical_offset, line, kind, name)
        for record, name in zip(records, names, strict=True)
        for line, kind in enumerate(("Pub", "SubAfter"))
    ]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path / "store", segment_size=1 << 16)
    broker.append(some_records(20))
    return broker


def test_each_line_is_a_row_with_its_fields(broker: Broker) -> None:
    records = broker.append(
        [reports("a"), reports("b", packs=True), reports("c", topic="rmq_sys_TRACE_DATA_region"), *some_records(5, 2)]
    )
    ingest_traces(broker)

    assert lines(broker) == expected_rows(records[:3], "a", "b", "c")
    sent, consumed = rows_of(broker.root.parent / "lake", "traces")[:2]
    assert {name: value for name, value in sent.items() if value is not None} == {
        **{name: sent[name] for name in ("store_id", "born_host")},
        "broker": "b",
        "physical_offset": records[0].physical_offset,
        "line": 0,
        "store_timestamp": records[0].store_timestamp,
        "kind": "Pub",
        "message_id": "a",
        "event_timestamp": 1_700_000_000_000,
        "region_id": "R",
        "client_group": "producers",
        "topic": "Orders",
        "tags": "TagA",
        "keys": "k",
        "store_host": "host",
        "body_length": 4,
        "cost_ms": 7,
        "message_type": 0,
        "offset_message_id": "OFF",
        "is_success": True,
    }
    assert (consumed["is_success"], consumed["context_code"], consumed["client_group"]) == (False, 4, "consumers")


def test_bodies_that_are_not_traces_do_not_stop_a_run(broker: Broker) -> None:
    broken = [
        reports("late", _SENT.replace("{time}", "long ago")),
        make_record(b"no stream", topic=TRACE_TOPIC, sys_flag=COMPRESSED),
        make_record(b"", topic=TRACE_TOPIC),
        make_record(b"\xff\x01\x02Pub\x01\xff\x02" + bytes(range(256)), topic=TRACE_TOPIC),
        make_record(zlib.compress(b"Pub\x01" * (5 << 20)), topic=TRACE_TOPIC, sys_flag=COMPRESSED),
    ]
    records = broker.append([*broken, reports("right")])
    summary = ingest_traces(broker)

    assert summary.messages == 26
    assert lines(broker) == [
        (records[0].physical_offset, 0, "Pub", "late"),
        (records[3].physical_offset, 0, "Pub", None),
        *expected_rows(records[5:], "right"),
    ]
    errors = [row["error"] for row in rows_of(broker.root.parent / "lake", "traces")]
    assert errors == ["event_timestamp is 'long ago'", "event_timestamp is '\N{REPLACEMENT CHARACTER}'", None, None]


def test_a_store_without_traces_decodes_no_bodies(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "decode_trace_bodies", None)

    assert ingest_traces(broker).messages == 20
    assert not (broker.root.parent / "lake" / "traces").exists()


@pytest.mark.parametrize("selection", [Selection(with_body=False), Selection(topics=("Orders",))])
def test_traces_need_bodies_and_their_topic(selection: Selection, broker: Broker) -> None:
    broker.append([reports("a")])
    ingest_traces(broker, selection)

    assert lines(broker) == []


def test_recipes_find_slow_consumers_and_unconsumed_messages(broker: Broker) -> None:
    failed = _CONSUMED
    succeeded = _CONSUMED.replace("false", "true").replace("\x013\x01", "\x0190\x01").replace("consumers", "slow")
    broker.append(
        [
            reports("never", _SENT),
            reports("in-vain", _SENT + failed),
            reports("at-last", failed + _SENT),
            *some_records(2),
        ]
    )
    broker.append([reports("at-last", succeeded)])
    ingest_traces(broker)
    slow, never = (recipe.text for recipe in RECIPES if "FROM traces " in recipe.text)
    with duckdb.connect() as connection:
        connection.register("traces", dataset_of(broker.root.parent / "lake" / "traces"))
        groups = connection.execute(slow).fetchall()
        unconsumed = connection.execute(never).fetchall()

    assert groups == [("b", "slow", 1, 0, 90.0, 90, "at-last"), ("b", "consumers", 2, 2, 3.0, 3, groups[1][-1])]
    assert sorted(row[1] for row in unconsumed) == ["in-vain", "never"]
