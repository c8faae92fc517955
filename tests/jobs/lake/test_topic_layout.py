"""Messages sorted by topic: the same rows, in the order of the log within a topic, in row groups by topic."""

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode
from jobs.lake import topic_layout
from jobs.lake.topic_layout import divide_by_topic
from jobs.lake.upkeep import optimize
from jobs.store.workers import SerialWorkers
from tests.rmq_formats.builders import make_record
from tests.support.commands import Run
from tests.support.lakes import LakeOfBroker, compare_with_lake, raw_rows, restore_log
from tests.support.stores import read_store_records

_TOPICS = ("Orders", "Bills", "Small1", "Small2")
_LARGE = _TOPICS[:2]


@pytest.fixture
def lake_of_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeOfBroker:
    monkeypatch.setattr(topic_layout, "_LEAST_GROUP_BYTES", 4000)
    found = LakeOfBroker(tmp_path, dispatches=True)
    for run in range(3):
        found.broker.append(
            make_record(
                topic=_TOPICS[2 + number % 2 if number % 10 < 2 else number % 2], body=b"%d-%d" % (run, number) * 20
            )
            for number in range(100)
        )
        assert found.run().messages == 100
    return found


def sort_by_topic(lake_of_broker: LakeOfBroker) -> None:
    optimize(str(lake_of_broker.path), SerialWorkers(), by_topic=True)


def list_row_groups(lake_of_broker: LakeOfBroker) -> list[list[tuple[str, int]]]:
    """Return the topics and offsets of each row group, in the order of the files."""
    found = []
    for uri in sorted(DeltaTable(lake_of_broker.path / "messages").file_uris()):
        file = pq.ParquetFile(uri)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, ["topic", "physical_offset"]).to_pydict()
            found.append(list(zip(rows["topic"], rows["physical_offset"], strict=True)))
    return found


def test_rows_are_the_same_and_those_of_a_topic_stay_in_the_order_of_the_log(lake_of_broker: LakeOfBroker) -> None:
    before = sorted(raw_rows(lake_of_broker.path))

    sort_by_topic(lake_of_broker)

    by_topic = defaultdict(list)
    for topic, offset in (row for group in list_row_groups(lake_of_broker) for row in group):
        by_topic[topic].append(offset)
    assert before == sorted(raw_rows(lake_of_broker.path))
    assert {*_TOPICS} == by_topic.keys()
    assert all(offsets == sorted(offsets) for offsets in by_topic.values())


def test_a_large_topic_has_separate_row_groups(lake_of_broker: LakeOfBroker) -> None:
    sort_by_topic(lake_of_broker)

    topics = [{topic for topic, _ in group} for group in list_row_groups(lake_of_broker)]
    assert {"Orders"} in topics
    assert {"Bills"} in topics
    assert all(len(group) == 1 or not group.intersection(_LARGE) for group in topics)


def test_a_row_group_covers_only_its_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a reader of an hour would read the rows of all hours."""
    monkeypatch.setattr(topic_layout, "_PART_BYTES", 1000)
    rows = pa.record_batch({"topic": ["A", "B"] * 500, "physical_offset": range(1000)})

    groups = list(divide_by_topic(rows.slice(start, 10) for start in range(0, 1000, 10)))

    offsets = [group["physical_offset"].to_pylist() for group in groups]
    assert [*range(1000)] == sorted(offset for group in offsets for offset in group)
    assert all(max(group) - min(group) < 100 for group in offsets)


def test_only_new_files_are_sorted_again(lake_of_broker: LakeOfBroker) -> None:
    sort_by_topic(lake_of_broker)
    version = DeltaTable(lake_of_broker.path / "messages").version()
    sort_by_topic(lake_of_broker)
    assert version == DeltaTable(lake_of_broker.path / "messages").version()

    lake_of_broker.grow(5)
    lake_of_broker.run()
    sort_by_topic(lake_of_broker)

    names = [Path(uri).name for uri in DeltaTable(lake_of_broker.path / "messages").file_uris()]
    assert all(name.startswith(topic_layout.TOPIC_PREFIX) for name in names)
    assert len(raw_rows(lake_of_broker.path)) == 305


def test_a_log_is_restored_from_sorted_messages(lake_of_broker: LakeOfBroker, tmp_path: Path) -> None:
    sort_by_topic(lake_of_broker)

    summary = restore_log(lake_of_broker.path, tmp_path / "restored")

    assert summary.exit_code is ExitCode.CLEAN
    restored, there = read_store_records(tmp_path / "restored"), read_store_records(lake_of_broker.broker.root)
    assert list(there) == list(restored)
    assert [] == compare_with_lake(lake_of_broker.broker.root, lake_of_broker.path).differences


def test_the_command_sorts_by_topic_and_first_shows_how_many_files(lake_of_broker: LakeOfBroker, run: Run) -> None:
    version = DeltaTable(lake_of_broker.path / "messages").version()
    _, dry, _ = run("optimize", "--by-topic", "--dry-run", lake_of_broker.path)
    assert version == DeltaTable(lake_of_broker.path / "messages").version()
    assert "messages: 7 files" in dry  # six files into one, which is sorted

    code, out, _ = run("optimize", "--by-topic", lake_of_broker.path)

    assert (ExitCode.CLEAN, True) == (code, "messages: 7 files" in out)


def test_without_the_option_files_keep_their_order(lake_of_broker: LakeOfBroker) -> None:
    optimize(str(lake_of_broker.path), SerialWorkers())

    offsets = [offset for group in list_row_groups(lake_of_broker) for _, offset in group]
    assert sorted(offsets) == offsets
