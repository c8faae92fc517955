"""Older copies, lagging replicas and lost ends: stores whose log ends before the rows that the lake has of them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.lake.directory_id import DirectoryId
from tests.rmq_formats.builders import STORED
from tests.support.broker import SEGMENT_SIZE, Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import encode_rows, ingest_store, raw_rows, rows_of, state_without_locks


def write_offsets(store: Path, offset: int) -> None:
    """Write the position of a consumer group, as a broker does, and a topic."""
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"Orders@group": {"0": offset}}}))
    topics = {"Orders": {"topicName": "Orders", "readQueueNums": offset, "writeQueueNums": 4}}
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))


def read_positions(lake: Path) -> list[int]:
    """Return the positions of the group in the order of the runs that recorded them."""
    return [row["next_offset"] for row in rows_of(lake, "consumer_offsets", "run")]


def erase_end(store: Path, offset: int) -> None:
    """Replace the log after *offset* by zeros, as after a power failure."""
    for path in (store / "commitlog").iterdir():
        start = min(max(offset - int(path.name), 0), SEGMENT_SIZE)
        data = path.read_bytes()
        path.write_bytes(data[:start] + bytes(len(data) - start))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(50))
    write_offsets(broker.root, 10)
    return broker


@pytest.mark.parametrize("lagging", ["", "its last record is incomplete", "without queues"])
def test_an_older_copy_of_a_store_leaves_the_lake_unchanged(lagging: str, broker: Broker, tmp_path: Path) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "copy"
    shutil.copytree(broker.root, copy)
    end = broker.offset
    new = broker.append(some_records(60, seed=2))
    write_offsets(broker.root, 20)
    ingest_store(broker.root, lake, "b")
    before = state_without_locks(lake)
    rows = raw_rows(lake)
    if lagging == "without queues":
        shutil.rmtree(copy / "consumequeue")
    elif lagging:
        place = copy / "commitlog" / f"{new[0].physical_offset // SEGMENT_SIZE * SEGMENT_SIZE:020}"
        data = bytearray(place.read_bytes())
        at = new[0].physical_offset % SEGMENT_SIZE
        data[at : at + 60] = (broker.root / "commitlog" / place.name).read_bytes()[at : at + 60]
        place.write_bytes(data)

    summary = ingest_store(copy, lake)

    assert summary.run is None
    assert summary.exit_code == ExitCode.CLEAN
    assert summary.lost_end is None
    assert [
        f"ends {broker.offset - end:,} bytes before what the lake has, at offset {end:,} instead of {broker.offset:,}"
        in note
        for note in summary.notes
    ] == [True]
    assert state_without_locks(lake) == before
    assert read_positions(lake) == [20]
    assert raw_rows(lake) == rows
    write_offsets(broker.root, 25)

    assert ingest_store(broker.root, lake).notes == []
    assert read_positions(lake) == [20, 25]


def test_the_times_of_an_older_copy_are_named(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.root, copy)
    for path in copy.rglob("*"):
        os.utime(path, (STORED / 1000 + 40, STORED / 1000 + 40))
    broker.append(some_records(3, seed=2, stored=STORED + 90_000))
    ingest_store(broker.root, tmp_path / "lake", "b")

    (note,) = ingest_store(copy, tmp_path / "lake").notes

    assert "last modified at 2025-11-20 00:54:00.005 UTC, before the newest message" in note
    assert "was stored at 2025-11-20 00:54:50.007 UTC" in note


@pytest.mark.parametrize("was_closed", [False, True])
def test_a_directory_that_has_lost_the_end_of_its_log_is_reported_until_it_is_acknowledged(
    was_closed: bool, broker: Broker, tmp_path: Path, run: Run
) -> None:
    """The queues may have lost their end as well: the lake has read more from this directory."""
    lake = tmp_path / "lake"
    end = broker.offset
    broker.append(some_records(60, seed=2))
    ingest_store(broker.root, lake, "b")
    rows = raw_rows(lake)
    erase_end(broker.root, end)
    shutil.rmtree(broker.root / "consumequeue")
    write_offsets(broker.root, 5)
    if was_closed:
        (broker.root / "abort").unlink()

    for _ in range(2):
        code, out, _ = run("ingest", broker.root, "--lake", lake, "--json")

        found = json.loads(out)

        assert code is ExitCode.DAMAGE
        assert found["lost_end"]["from"] == end
        assert found["lost_end"]["to"] == broker.offset
        assert found["severity"] == "gap"
        assert f"ends {broker.offset - end:,} bytes before what the lake has" in found["lost_end"]["why"]
        assert f"repair {broker.root} --lake {lake} --out REPAIR" in found["lost_end"]["why"]
    code, *_ = run("ingest", broker.root, "--lake", lake, "--acknowledge")

    assert code is ExitCode.CLEAN
    code, *_ = run("ingest", broker.root, "--lake", lake)

    assert code is ExitCode.CLEAN
    assert read_positions(lake) == [10]
    assert raw_rows(lake) == rows


def test_a_log_that_ends_before_its_queues_and_the_lake_has_lost_its_end_in_any_directory(
    broker: Broker, tmp_path: Path
) -> None:
    end = broker.offset
    broker.append(some_records(60, seed=2))
    ingest_store(broker.root, tmp_path / "lake", "b")
    shutil.copytree(broker.root, tmp_path / "moved")
    erase_end(tmp_path / "moved", end)

    summary = ingest_store(tmp_path / "moved", tmp_path / "lake")

    assert summary.exit_code is ExitCode.DAMAGE
    assert summary.lost_end is not None
    assert summary.lost_end["from"] == end
    assert summary.lost_end["to"] == broker.offset
    assert "before its queues and index: no queue or index file was modified after" in summary.lost_end["why"]


def test_a_killed_broker_whose_log_ends_before_its_queues_is_reported_by_the_first_run(
    broker: Broker, tmp_path: Path
) -> None:
    end = broker.offset
    lost = broker.append(some_records(60, seed=2))
    erase_end(broker.root, end)

    first = ingest_store(broker.root, tmp_path / "lake", "b")
    second = ingest_store(broker.root, tmp_path / "lake", "b")

    for summary in (first, second):
        assert summary.exit_code is ExitCode.DAMAGE
        assert summary.lost_end is not None
        assert summary.lost_end["from"] == end
        assert summary.lost_end["to"] == lost[-1].end_offset


def test_a_copy_whose_log_was_copied_minutes_before_its_queues_has_lost_nothing(broker: Broker, tmp_path: Path) -> None:
    """Copying a large store of a running broker takes minutes, in which the queues grow."""
    end = broker.offset
    broker.append(some_records(60, seed=2))
    erase_end(broker.root, end)
    for path in (broker.root / "consumequeue").rglob("*"):
        os.utime(path, (path.stat().st_mtime + 300, path.stat().st_mtime + 300))

    summary = ingest_store(broker.root, tmp_path / "lake", "b")

    assert summary.exit_code == ExitCode.CLEAN
    assert summary.lost_end is None
    assert any("the log was copied before it" in note for note in summary.notes)


def test_a_truncated_log_that_goes_on_is_superseded_and_no_longer_reported(broker: Broker, tmp_path: Path) -> None:
    kept = broker.append(some_records(20, seed=2))
    ingest_store(broker.root, tmp_path / "lake", "b")
    erase_end(broker.root, kept[9].physical_offset)
    broker.truncate(kept[9].physical_offset)
    new = broker.append(some_records(30, seed=3, stored=STORED + 10_000))

    summary = ingest_store(broker.root, tmp_path / "lake", acknowledge=True)
    again = ingest_store(broker.root, tmp_path / "lake")

    assert summary.superseded is not None
    assert raw_rows(tmp_path / "lake")[-30:] == encode_rows(new)
    assert again.lost_end is None
    assert again.notes == []


@pytest.mark.parametrize("with_config", [True, False])
def test_positions_of_a_copy_with_the_same_log_do_not_go_back(
    with_config: bool, broker: Broker, tmp_path: Path
) -> None:
    """Consumers go on while no message arrives: the log of last night's backup may end where that of today does."""
    lake = tmp_path / "lake"
    shutil.copytree(broker.root, tmp_path / "copy")
    write_offsets(broker.root, 30)
    ingest_store(broker.root, lake, "b")
    if not with_config:
        shutil.rmtree(tmp_path / "copy" / "config")

    for _ in range(2):
        summary = ingest_store(tmp_path / "copy", lake)

        assert summary.run is None
        assert summary.exit_code == ExitCode.CLEAN
        assert any("older than those that an earlier run read" in note for note in summary.notes)

    assert read_positions(lake) == [30]
    assert [row["name"] for row in rows_of(lake, "config_files", "name")] == ["consumerOffset.json", "topics.json"]
    write_offsets(broker.root, 20)

    assert ingest_store(broker.root, lake).notes == []
    assert read_positions(lake) == [30, 20]


def test_a_copy_of_a_directory_is_another_directory(tmp_path: Path) -> None:
    original = tmp_path / "store"
    original.mkdir()
    found = DirectoryId.read(str(original))
    shutil.copytree(original, tmp_path / "copy")

    assert DirectoryId.read(str(original)) == found
    assert found.created_ns > 0
    assert DirectoryId.read(str(tmp_path / "copy")) != found
    original.rmdir()
    original.mkdir()

    assert DirectoryId.read(str(original)) != found


@pytest.mark.parametrize(
    ("later_ms", "was_ingested"), [(10_000, True), (100_000, True), (100_000, False)], ids=["known", "later", "unknown"]
)
def test_a_copy_from_before_a_restored_backup_does_not_replace_newer_messages(
    later_ms: int, was_ingested: bool, broker: Broker, tmp_path: Path
) -> None:
    """The broker is restored from last night's backup and goes on; the disk that failed is ingested afterwards."""
    backup = broker.copied(tmp_path / "backup")
    broker.append(some_records(40, seed=2))
    if was_ingested:
        ingest_store(broker.root, tmp_path / "lake", "b")
    write_offsets(broker.root, 15)
    new = backup.append(some_records(20, seed=3, stored=STORED + later_ms))
    ingest_store(backup.root, tmp_path / "lake", "b", acknowledge=True)
    before = state_without_locks(tmp_path / "lake")
    rows = raw_rows(tmp_path / "lake")

    assert rows[-20:] == encode_rows(new)

    summary = ingest_store(broker.root, tmp_path / "lake", "b")

    assert summary.exit_code is ExitCode.DAMAGE
    assert summary.left_out is not None
    assert summary.left_out["from"] == new[0].physical_offset
    assert summary.left_out["to"] == broker.offset
    assert state_without_locks(tmp_path / "lake") == before
    new += backup.append(some_records(5, seed=4, stored=STORED + 200_000))

    assert ingest_store(backup.root, tmp_path / "lake", "b").superseded is None
    assert raw_rows(tmp_path / "lake")[-25:] == encode_rows(new)


def test_a_promoted_replica_whose_clock_is_behind_replaces_the_messages_that_it_lacked(
    broker: Broker, tmp_path: Path
) -> None:
    replica = broker.copied(tmp_path / "replica")
    broker.append(some_records(40, seed=2))
    ingest_store(broker.root, tmp_path / "lake", "b")
    new = replica.append(some_records(20, seed=3, stored=STORED - 3_000))

    summary = ingest_store(replica.root, tmp_path / "lake", "b")

    assert summary.superseded is not None
    assert raw_rows(tmp_path / "lake")[-20:] == encode_rows(new)


def test_an_old_copy_that_ends_before_the_first_message_of_the_lake_is_not_another_store(
    broker: Broker, tmp_path: Path
) -> None:
    """The lake began after retention had deleted the messages of the copy, so that they have no bytes in common."""
    shutil.copytree(broker.root, tmp_path / "copy")
    broker.append(some_records(150, seed=2))
    broker.expire(2)
    write_offsets(broker.root, 20)
    ingest_store(broker.root, tmp_path / "lake", "b")
    before = state_without_locks(tmp_path / "lake")

    summary = ingest_store(tmp_path / "copy", tmp_path / "lake", "b")

    assert summary.run is None
    assert summary.exit_code == ExitCode.CLEAN
    assert any("bytes before what the lake has" in note for note in summary.notes)
    assert state_without_locks(tmp_path / "lake") == before


def test_a_copy_that_ends_in_a_part_that_the_lake_lacks_replaces_nothing(broker: Broker, tmp_path: Path) -> None:
    """Retention deleted segments before they were read; the copy has the first of their messages."""
    ingest_store(broker.root, tmp_path / "lake", "b")
    broker.append(some_records(60, seed=2))
    shutil.copytree(broker.root, tmp_path / "copy")
    broker.append(some_records(200, seed=3, stored=STORED + 100))
    broker.expire(3)
    ingest_store(broker.root, tmp_path / "lake", "b")
    rows = raw_rows(tmp_path / "lake")

    summary = ingest_store(tmp_path / "copy", tmp_path / "lake", "b", acknowledge=True)

    assert summary.superseded is None
    assert summary.left_out is None
    assert summary.lost_end is None
    assert any("bytes before what the lake has" in note for note in summary.notes)
    assert raw_rows(tmp_path / "lake") == rows
