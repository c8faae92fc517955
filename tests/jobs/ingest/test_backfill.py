"""A backfill reads a topic that earlier runs left out from what the store still has, into all tables, exactly once."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs.console.result import RequestError, Severity
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import list_lake_stores
from jobs.lake.retention import Retention, remove_expired_rows
from jobs.requests.typing import TypeRequest
from jobs.store.selection import Selection
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import STORED
from tests.support.lakes import (
    compare_with_lake,
    encode_rows,
    ingest_store,
    raw_rows,
    restore_log,
    rows_of,
    state_without_locks,
)
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stopping import KilledError, killing_after

COUNT = 120
TOPICS = ("Orders", "Audit", "Debug")
SELECTIONS = [
    Selection(exclude_topics=("Audit",)),
    Selection(topics=("Orders",)),
    Selection(topics=("Orders", "A*"), exclude_topics=("Audit", "Debug")),
]


def write_messages(root: Path, count: int = COUNT) -> list[MessageRecord]:
    """Write a store with messages of three topics, and delayed and retried copies of them."""
    shutil.rmtree(root, ignore_errors=True)
    sent = []
    for number in range(count):
        topic = TOPICS[number % 3]
        body, keys = b'{"id": %d}' % number, (f"k{number}",)
        sent.append(Sent(topic, keys=keys, body=body, tags=f"tag-{topic}"))
        if number % 10 == 0:
            sent.append(Sent("SCHEDULE_TOPIC_XXXX", keys=keys, body=body, properties=(("REAL_TOPIC", topic),)))
            sent.append(Sent("%RETRY%group", keys=keys, body=body, properties=(("RETRY_TOPIC", topic),)))
    records = stored(sent)
    write_store(root, records)
    return records


def list_backfilled(lake: Path) -> list[dict[str, Any]]:
    details = [json.loads(row["detail"] or "{}") for row in rows_of(lake, "runs", "time")]
    return [one for detail in details for one in detail.get("backfilled", ())]


def describe_units(lake: Path, *, with_tags: bool = True) -> list[tuple[object, ...]]:
    """Return the rows of the queues, without the column that differs if a topic was excluded."""
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "status", *(("tags",) * with_tags))
    return sorted(tuple(str(row[name]) for name in names) for row in rows_of(lake, "consume_queue"))


def without_loads(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in {"store_id", "run", "ingested_at"}}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_lake_with_a_backfilled_topic_has_the_rows_of_one_that_never_left_it_out(
    selection: Selection, tmp_path: Path
) -> None:
    write_messages(tmp_path / "store")
    lake, other = tmp_path / "lake", tmp_path / "other"
    ingest_store(tmp_path / "store", lake, "b", selection=selection)
    left = {row["topic"] for row in rows_of(lake)}

    summary = ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    wider = list_lake_stores(Lake(str(lake)))[0].newest_manifest

    assert wider is not None
    ingest_store(tmp_path / "store", other, "b", selection=Selection.from_manifest(wider.selection))

    assert "Audit" not in left
    assert list(map(without_loads, rows_of(other))) == list(map(without_loads, rows_of(lake)))
    assert describe_units(other, with_tags=False) == describe_units(lake, with_tags=False)
    assert [("Audit", 0)] == [(one["topic"], one["from"]) for one in list_backfilled(lake)]
    assert summary.backfilled == list_backfilled(lake)
    assert summary.backfilled_messages == len([row for row in rows_of(lake) if row["topic"] == "Audit"]) + (
        len([row for row in rows_of(lake) if dict(row["properties"]).get("REAL_TOPIC") == "Audit"]) * 2
    )
    is_whole = not selection.topics
    expected = Severity.HEALTHY if is_whole else Severity.NOT_VERIFIED  # other topics were not selected

    assert compare_with_lake(tmp_path / "store", lake).severity is expected


def test_the_log_is_restored_byte_for_byte_after_the_backfill_of_the_only_topic_left_out(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    restored = restore_log(lake, tmp_path / "out")

    assert encode_rows(records) == raw_rows(lake)
    assert restored.missing == []
    assert restored.twice == []
    assert restored.lost == []
    for path in sorted((tmp_path / "store" / "commitlog").iterdir()):
        assert path.read_bytes() == (tmp_path / "out" / "commitlog" / path.name).read_bytes()
    (lake_store,) = list_lake_stores(Lake(str(lake)))

    assert lake_store.topic_choices.left_out_note() is None


def test_later_runs_read_new_messages_of_a_backfilled_topic(tmp_path: Path) -> None:
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    records = write_messages(tmp_path / "store", COUNT + 30)

    summary = ingest_store(tmp_path / "store", lake)

    assert encode_rows(records) == raw_rows(lake)
    assert len(describe_units(lake)) == len(records)
    assert summary.notes == []


def test_a_repeated_backfill_reads_nothing(tmp_path: Path) -> None:
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    before = state_without_locks(lake)

    summary = ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    assert before == state_without_locks(lake)
    assert ["--backfill Audit: the lake already has its messages from offset 0 on"] == summary.notes


def test_a_topic_that_is_left_out_again_is_backfilled_again(tmp_path: Path) -> None:
    excluded = Selection(exclude_topics=("Audit",))
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=excluded)
    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    ingest_store(tmp_path / "store", lake, selection=excluded, change_topics=True)
    records = write_messages(tmp_path / "store", COUNT + 30)
    ingest_store(tmp_path / "store", lake)
    lacking = len(raw_rows(lake))
    (lake_store,) = list_lake_stores(Lake(str(lake)))

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    assert lacking < len(records)
    assert lake_store.topic_choices.left_out_note(["Audit"]) is not None
    assert encode_rows(records) == raw_rows(lake)
    assert len(describe_units(lake)) == len(records)


def test_a_topic_that_was_added_for_new_messages_is_backfilled(tmp_path: Path) -> None:
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("A*", "Debug")))
    ingest_store(tmp_path / "store", lake, selection=Selection(exclude_topics=("Debug",)), change_topics=True)
    records = write_messages(tmp_path / "store", COUNT + 30)
    ingest_store(tmp_path / "store", lake)

    ingest_store(tmp_path / "store", lake, backfill=("Audit", "Debug"))

    assert encode_rows(records) == raw_rows(lake)
    assert len(describe_units(lake)) == len(records)


@pytest.mark.slow
def test_a_backfill_that_is_killed_after_any_effect_and_repeated_loses_and_repeats_nothing(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store", 60)
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    kills = 0
    while True:
        copy = Path(shutil.copytree(lake, tmp_path / f"lake-{kills}"))
        with killing_after(kills + 1) as seen, suppress(KilledError):
            ingest_store(tmp_path / "store", copy, backfill=("Audit",))
        ingest_store(tmp_path / "store", copy, backfill=("Audit",))

        assert encode_rows(records) == raw_rows(copy)
        assert len(list_backfilled(copy)) == 1
        assert len(describe_units(copy)) == len(records)
        if len(seen) <= kills:
            break
        kills += 1

    assert kills > 10


def test_a_backfill_says_from_which_offset_the_store_still_has_the_topic(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    (tmp_path / "store" / "commitlog" / f"{0:020}").unlink()

    summary = ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    (lake_store,) = list_lake_stores(Lake(str(lake)))
    (row,) = list_backfilled(lake)

    assert SEGMENT_SIZE == row["from"]
    assert summary.to_offset == row["to"]
    assert f"before offset {SEGMENT_SIZE:,}, the store no longer has the log: nothing was backfilled" in summary.notes
    assert f"messages of Audit only at and after offset {SEGMENT_SIZE:,}" in str(
        lake_store.topic_choices.left_out_note(["Audit"])
    )
    audited = [one.physical_offset for one in records if one.topic == "Audit" and one.physical_offset >= SEGMENT_SIZE]

    assert audited == [row["physical_offset"] for row in rows_of(lake) if row["topic"] == "Audit"]


def test_a_part_that_the_store_lost_since_is_a_gap_that_a_later_run_fills(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    lost = tmp_path / "store" / "commitlog" / f"{SEGMENT_SIZE:020}"
    lost.rename(tmp_path / "lost")

    summary = ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    partly = len(rows_of(lake))
    (tmp_path / "lost").rename(lost)
    later = ingest_store(tmp_path / "store", lake)

    assert Severity.GAP == summary.severity
    assert Severity.NOT_VERIFIED == later.severity
    assert partly < len(records)
    assert encode_rows(records) == raw_rows(lake)


def test_a_damaged_record_of_a_backfilled_topic_is_quarantined_once(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    damaged = next(one for one in records if one.topic == "Audit" and one.physical_offset > SEGMENT_SIZE)
    path = tmp_path / "store" / "commitlog" / f"{damaged.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE:020}"
    intact = path.read_bytes()
    path.write_bytes(intact.replace(damaged.body, b"X" * len(damaged.body), 1))
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    before = rows_of(lake, "quarantine")

    for _ in range(2):
        ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    found = rows_of(lake, "quarantine")
    path.write_bytes(intact)
    ingest_store(tmp_path / "store", lake)

    assert before == []
    assert [damaged.physical_offset] == [row["physical_offset"] for row in found]
    assert encode_rows(records) == raw_rows(lake)


def test_expired_messages_of_a_backfilled_topic_stay_out(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    cutoff = records[len(records) // 2].store_timestamp
    list(remove_expired_rows(Lake(str(lake)), Retention(1), now_ms=cutoff + 1000))

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    assert [one.physical_offset for one in records if one.store_timestamp >= cutoff] == [
        row["physical_offset"] for row in rows_of(lake)
    ]
    assert cutoff <= min(row["store_timestamp"] for row in rows_of(lake, "consume_queue"))
    assert compare_with_lake(tmp_path / "store", lake).severity is Severity.HEALTHY


def test_a_topic_with_a_longer_retention_is_backfilled_from_its_first_message(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    cutoff = records[len(records) // 2].store_timestamp
    list(remove_expired_rows(Lake(str(lake)), Retention(1, {"Audit": 10_000}), now_ms=cutoff + 1000))

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    kept = [one for one in records if one.topic == "Audit" or one.store_timestamp >= cutoff]
    assert encode_rows(kept) == raw_rows(lake)


def test_diff_calls_expired_messages_of_a_backfilled_topic_expired_after_those_of_other_topics(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    early, late = records[10].store_timestamp, records[COUNT].store_timestamp
    kept_s = (late - early) / 1000 + 1
    list(remove_expired_rows(Lake(str(lake)), Retention(kept_s, {"Audit": 1}), now_ms=late + 1000))

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    audited = [row["store_timestamp"] for row in rows_of(lake) if row["topic"] == "Audit"]
    restored = restore_log(lake, tmp_path / "out")

    assert late <= min(audited)
    assert compare_with_lake(tmp_path / "store", lake).severity is Severity.HEALTHY
    assert restored.missing == []


def test_type_adds_the_messages_of_a_backfilled_topic(tmp_path: Path) -> None:
    records = write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    (tmp_path / "types.toml").write_text('[topic."Audit"]\nformat = "json"\nschema = "id bigint"\n')
    request = TypeRequest(Lake(str(lake)), read_types(tmp_path / "types.toml"))
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    type_lake(request, SerialWorkers())

    ingest_store(tmp_path / "store", lake, backfill=("Audit",))
    type_lake(request, SerialWorkers())

    audited = [one.physical_offset for one in records if one.topic == "Audit"]

    assert audited == [row["physical_offset"] for row in rows_of(lake, "typed/Audit")]


def test_a_backfill_that_cannot_be_done_writes_nothing(tmp_path: Path) -> None:
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    with pytest.raises(RequestError, match="the lake has no run of this store"):
        ingest_store(tmp_path / "store", lake, "b", backfill=("Audit",))
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("A*",)))
    before = state_without_locks(lake)

    for topic, reason in (("Audit", "--exclude-topics A.* excludes this topic"), ("Nope", "no such topic")):
        with pytest.raises(RequestError, match=reason):
            ingest_store(tmp_path / "store", lake, backfill=(topic,))
    with pytest.raises(RequestError, match="not the name of a topic"):
        ingest_store(tmp_path / "store", lake, backfill=("Aud*",))

    assert before == state_without_locks(lake)


def test_a_store_whose_log_ends_earlier_is_not_backfilled(tmp_path: Path) -> None:
    write_messages(tmp_path / "store")
    lake = tmp_path / "lake"
    ingest_store(tmp_path / "store", lake, "b", selection=Selection(exclude_topics=("Audit",)))
    before = rows_of(lake)
    write_messages(tmp_path / "store", COUNT // 2)

    with pytest.raises(RequestError, match="continues the lake's rows"):
        ingest_store(tmp_path / "store", lake, backfill=("Audit",))

    assert before == rows_of(lake)
    assert STORED <= before[0]["store_timestamp"]
