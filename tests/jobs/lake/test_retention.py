"""`optimize --keep` removes old rows from every table, and no later command brings them back or calls them lost."""

import json
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from deltalake import DeltaTable

from jobs.console.result import Severity
from jobs.lake.lake import Lake
from jobs.lake.retention import ExpirySummary, Retention, remove_expired_rows
from jobs.lake.upkeep import optimize
from jobs.requests.restore import RestoreRequest
from jobs.requests.typing import TypeRequest
from jobs.restore.check import check_restore
from jobs.store.workers import SerialWorkers
from jobs.typed.declaration import read_types
from jobs.typed.run import type_lake
from jobs.typed.typings import list_tables_by_topic
from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import STORED
from tests.support.commands import Run, overwrite
from tests.support.lakes import compare_with_lake, ingest_store, restore_log, rows_of
from tests.support.query_stores import SEGMENT_SIZE, Sent, stored, write_store
from tests.support.stopping import WRITE_COMMIT, KilledError, killing_after

_FORMS = "--hash-slots 7 --index-num 9 --release 5.5.1"
COUNT = 60
HOUR = 3_600_000
TABLES = ("messages", "consume_queue", "index_entries", "typed/Orders", "dead_letters")
Contents = dict[str, list[int]]  # the offsets of the rows of each table


def topic_of(number: int) -> str:
    return "Audit" if number % 3 == 0 else "Orders"


def time_of(number: int) -> int:
    return STORED + number * 100


def write_messages(root: Path) -> list[MessageRecord]:
    """Write a store; a fifth of its messages does not fit the type of Orders."""
    sent = [
        Sent(topic_of(number), (f"k{number}",), queue_id=number % 2, body=b'{"id": 1}' if number % 5 else b"-")
        for number in range(COUNT)
    ]
    records = stored(sent)
    write_store(root, records)
    return records


def type_orders(lake: Path) -> None:
    path = lake.parent / "types.toml"
    path.write_text('[topic."Orders"]\nformat = "json"\nschema = "id bigint"\n')
    type_lake(TypeRequest(Lake(str(lake)), read_types(path)), SerialWorkers())


def make_lake(directory: Path) -> tuple[Path, list[MessageRecord]]:
    """Return a lake with typed messages, in several files of each table, and its records."""
    records = write_messages(directory / "store")
    lake = directory / "lake"
    ingest_store(directory / "store", lake, "b", step_bytes=2 * SEGMENT_SIZE, range_size=SEGMENT_SIZE)
    type_orders(lake)
    return lake, records


def expire(lake: Path, first: int, topics: Mapping[str, int] | None = None) -> list[ExpirySummary]:
    """Remove the messages before the *first* one that is kept; of some topics, those before another one."""
    now = time_of(COUNT) + HOUR
    of_topics = {topic: (now - time_of(number)) / 1000 for topic, number in (topics or {}).items()}
    place = Lake(str(lake))
    retention = Retention((now - time_of(first)) / 1000, of_topics)
    return list(remove_expired_rows(place, retention, list_tables_by_topic(place), now_ms=now))


def read_contents(lake: Path) -> Contents:
    return {table: sorted(row["physical_offset"] for row in rows_of(lake, table)) for table in (*TABLES, "log_pieces")}


def keep(before: Contents, records: list[MessageRecord], firsts: Mapping[str, int]) -> Contents:
    """Return the rows that are left if the first kept message of each topic has this number."""
    numbers = {record.physical_offset: number for number, record in enumerate(records)}
    left = {offset for offset, number in numbers.items() if number >= firsts[topic_of(number)]}
    pieces = [offset for offset in before["log_pieces"] if offset + SEGMENT_SIZE > min(left)]
    found = {table: [offset for offset in before[table] if offset in left] for table in TABLES}
    return {**found, "log_pieces": pieces}


def test_expired_messages_leave_all_tables_and_do_not_return(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    before = read_contents(lake)
    expected = keep(before, records, {"Orders": 25, "Audit": 25})

    (summary,) = expire(lake, 25)

    assert 25 == summary.messages
    assert records[25].physical_offset == summary.to_offset
    assert expected == {**read_contents(lake), "log_pieces": expected["log_pieces"]}
    assert ingest_store(tmp_path / "store", lake).run is None
    type_orders(lake)
    shutil.copytree(tmp_path / "store", tmp_path / "replica")

    assert ingest_store(tmp_path / "replica", lake).messages == 0
    optimize(str(lake), SerialWorkers())

    assert expected == {**read_contents(lake), "log_pieces": expected["log_pieces"]}
    assert [file["physical_offset"] for file in rows_of(lake, "log_pieces") if file["kind"] == "file"] == [
        offset for offset in range(0, records[-1].end_offset, SEGMENT_SIZE) if offset + SEGMENT_SIZE > summary.to_offset
    ]


def test_expired_messages_are_not_reported_as_lost(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    expire(lake, 25)
    end = records[25].physical_offset

    compared = compare_with_lake(tmp_path / "store", lake)
    restored = restore_log(lake, tmp_path / "out")
    (check,) = check_restore(RestoreRequest(Lake(str(lake))), SerialWorkers()).stores

    assert {(one.severity, one.cause) for one in compared.differences} == {
        (Severity.HEALTHY, "expired: removed from the lake by `optimize --keep`")
    }
    assert sum(one.records for one in compared.differences) == 25
    assert restored.missing == []
    assert restored.expired == [(end // SEGMENT_SIZE * SEGMENT_SIZE, end)]
    assert check.severity is Severity.NOT_VERIFIED
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "store" / "commitlog").iterdir()))
    again = b"".join(path.read_bytes() for path in sorted((tmp_path / "out" / "commitlog").iterdir()))

    assert log[end : records[-1].end_offset] == again[end - restored.from_offset :][: records[-1].end_offset - end]


def test_a_repair_says_that_the_lake_no_longer_has_damaged_records(tmp_path: Path, run: Run) -> None:
    """It said that the lake "has none of the records that the log has lost", or, next to other damage, nothing."""
    lake, records = make_lake(tmp_path)
    expire(lake, 10, {"Audit": 40})
    store = tmp_path / "store"
    for number in (3, 33, 35):  # expired, expired because it is of Audit, and kept
        offset = records[number].physical_offset
        path = store / f"commitlog/{offset // SEGMENT_SIZE * SEGMENT_SIZE:020}"
        overwrite(path, offset % SEGMENT_SIZE + 90, b"?")
    found = run("repair", store, "--lake", lake, "--out", tmp_path / "out", *shlex.split(_FORMS))
    compared = compare_with_lake(store, lake)
    (note,) = [line for line in found.out.splitlines() if "expired in the lake" in line]

    assert f"the records at offsets {records[3].physical_offset:,}, {records[33].physical_offset:,} have" in note
    assert "stored before 2025-11-20 00:53:21.005 UTC, of 'Audit' before 2025-11-20 00:53:24.005 UTC" in note
    assert "replaced: commitlog/" in found.out
    assert {(one.severity, one.start) for one in compared.differences if one.severity is not Severity.HEALTHY} == {
        (Severity.NOT_VERIFIED, records[33].physical_offset),
        (Severity.DAMAGE, records[35].physical_offset),
    }


def test_topics_may_be_kept_for_a_shorter_or_longer_time_than_others(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    before = read_contents(lake)

    expire(lake, 10, {"Audit": 40})
    shorter = read_contents(lake)
    expire(lake, 30, {"Audit": 20})
    longer = read_contents(lake)

    assert keep(before, records, {"Orders": 10, "Audit": 40}) == shorter
    assert keep(before, records, {"Orders": 30, "Audit": 40}) == longer
    assert compare_with_lake(tmp_path / "store", lake).severity is Severity.HEALTHY
    assert restore_log(lake, tmp_path / "out").missing == []


def test_a_row_that_another_engine_deleted_is_lost_although_older_ones_have_expired(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    expire(lake, 25)
    DeltaTable(lake / "messages").delete(f"physical_offset = {records[30].physical_offset}")

    lost = (records[30].physical_offset, records[30].end_offset)

    assert restore_log(lake, tmp_path / "out").missing == [lost]
    assert compare_with_lake(tmp_path / "store", lake).severity is Severity.GAP


def test_an_expiry_is_a_row_of_runs(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    expire(lake, 10)
    expire(lake, 10)
    expire(lake, 25)

    rows = [row for row in rows_of(lake, "runs", "time") if row["state"] == "expired" and row["run"]]

    found = [json.loads(row["detail"])["expired"] for row in rows]

    assert [(1, 10, records[10].physical_offset), (2, 15, records[25].physical_offset)] == [
        (one["number"], one["messages"], one["to_offset"]) for one in found
    ]
    assert time_of(25) == found[-1]["cutoffs"][""]


def test_changed_bytes_of_expired_messages_bring_none_of_them_back(tmp_path: Path) -> None:
    """All rows after the changed fingerprint have expired, so that no row shows that the same log goes on."""
    lake, _ = make_lake(tmp_path)
    expire(lake, COUNT)
    for path in (tmp_path / "store" / "commitlog").iterdir():
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)

    with suppress(OSError):
        ingest_store(tmp_path / "store", lake)

    assert rows_of(lake) == []


def test_messages_that_a_run_of_type_read_before_they_expired_leave_with_the_next_upkeep(tmp_path: Path) -> None:
    lake, _ = make_lake(tmp_path)
    before = read_contents(lake)["typed/Orders"]
    old = shutil.copytree(lake / "typed", tmp_path / "typed")
    expire(lake, 25)
    left = read_contents(lake)["typed/Orders"]
    shutil.rmtree(lake / "typed")
    shutil.copytree(old, lake / "typed")

    assert before == read_contents(lake)["typed/Orders"]

    place = Lake(str(lake))
    list(remove_expired_rows(place, Retention(), list_tables_by_topic(place)))

    assert left == read_contents(lake)["typed/Orders"]


def test_an_expiry_killed_after_any_effect_is_completed_by_the_next_one(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    expected = keep(read_contents(lake), records, {"Orders": 25, "Audit": 40})
    kills = 0
    while True:
        copy = Path(shutil.copytree(lake, tmp_path / f"lake-{kills}"))
        with killing_after(kills + 1) as seen, suppress(KilledError):
            expire(copy, 25, {"Audit": 40})
        was_killed = len(seen) > kills
        if was_killed and kills % 2:  # the next upkeep completes it without --keep
            place = Lake(str(copy))
            list(remove_expired_rows(place, Retention(), list_tables_by_topic(place)))
        ingest_store(tmp_path / "store", copy)
        (summary,) = expire(copy, 25, {"Audit": 40})

        assert expected == read_contents(copy)
        assert summary.to_offset == records[25].physical_offset
        if not was_killed:
            break
        kills += 1

    assert kills > 10


def test_an_expiry_next_to_a_merge_of_the_same_files_removes_each_row_once(tmp_path: Path) -> None:
    lake, records = make_lake(tmp_path)
    expected = keep(read_contents(lake), records, {"Orders": 25, "Audit": 25})
    merged: list[bool] = []

    def merge_first(*args: object, **named: object) -> object:
        if not merged:
            merged.append(True)
            optimize(str(lake), SerialWorkers())
        return WRITE_COMMIT(*args, **named)

    with patch("jobs.lake.commit._write", merge_first):
        expire(lake, 25)

    assert expected == read_contents(lake)


def test_a_misspelled_topic_of_keep_once_lost_its_messages_to_the_duration_of_all_topics(
    tmp_path: Path, run: Run
) -> None:
    lake, records = make_lake(tmp_path)

    for keep_option, reason in (
        ("audit=10000d", "the lake has no such topic. Did you mean Audit? Nothing was removed"),
        ("Aud*=10000d", "write the whole name of one topic"),
        ("Audit,Orders=10000d", "write the whole name of one topic"),
    ):
        refused = run("optimize", str(lake), "--keep", "1h", "--keep", keep_option)

        assert refused.code == 2
        assert reason in refused.err

    assert len(rows_of(lake, "messages")) == len(records)


def test_a_topic_of_keep_that_the_lake_does_not_have_yet_is_a_warning(tmp_path: Path, run: Run) -> None:
    lake, _ = make_lake(tmp_path)

    warned = run("optimize", str(lake), "--keep", "Audit=10000d", "--keep", "Auditt=10000d", "--dry-run")

    assert warned.code == 0
    assert warned.err.splitlines() == ["rmq-lake: --keep Auditt: the lake has no such topic. Did you mean Audit?"]
