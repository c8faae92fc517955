"""Runs of a store with many queues: their work and their manifests depend on the queues that have new messages."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from jobs.ingest import Summary
from jobs.ingest.run import FollowedStore, run_steps
from jobs.lake.lake_stores import list_lake_stores
from jobs.products import state_file
from jobs.products.queues import processed_ends
from jobs.products.state_file import forget_state_files
from jobs.requests.ingest import IngestRequest
from jobs.store import queue_ends
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import MessageRecord
from tests.rmq_formats.builders import make_record
from tests.support.lakes import LakeOfBroker


def make_records(topics: int, first: int = 0) -> Iterator[MessageRecord]:
    for number in range(first, first + topics):
        yield make_record(topic=f"T{number}", properties={"KEYS": f"k{number}", "TAGS": "TagA"})


class FollowedLake(LakeOfBroker):
    """A store and its lake, followed by one process."""

    def __init__(self, root: Path, topics: int) -> None:
        super().__init__(root, dispatches=True)
        self.followed = FollowedStore()
        self.broker.append(make_records(topics))
        self.step()

    def step(self) -> Summary:
        (summary,) = run_steps(self.request, SerialWorkers(), self.followed)
        return summary

    @property
    def request(self) -> IngestRequest:
        return IngestRequest(str(self.broker.root), str(self.path), broker="b")

    def list_manifest_sizes(self) -> Mapping[int, int]:
        """Return the size of each run's manifest."""
        files = (self.path / "_manifests").glob("*.json")
        return {int(path.name[37:].partition("-")[0]): path.stat().st_size for path in files}


def test_a_step_probes_only_the_queues_of_topics_with_new_messages(tmp_path: Path) -> None:
    probes = []
    for topics in (30, 60, 120):
        made = FollowedLake(tmp_path / str(topics), topics)
        made.broker.append(make_records(3, first=10))
        with patch.object(queue_ends, "probe_queue_end", wraps=queue_ends.probe_queue_end) as probe:
            summary = made.step()

        assert 3 == summary.messages
        assert 3 == summary.units["matched"]
        assert 0 == summary.behind
        assert 0 == summary.contradictions
        probes.append(len({call.args[0].name.topic for call in probe.call_args_list}))

    assert [3, 3, 3] == probes


def test_a_step_sees_new_topics_and_topics_that_were_deleted_and_created_again(tmp_path: Path) -> None:
    made = FollowedLake(tmp_path, 20)
    made.broker.append(make_records(2, first=100))
    first = made.step()
    made.broker.delete_queues("T3")
    made.broker.append(make_records(1, first=3))
    second = made.step()

    assert [2, 1] == [first.units["matched"], second.units["matched"]]
    assert [0, 0] == [first.contradictions, second.contradictions]


@pytest.mark.parametrize("lists_all", [False, True])
def test_a_step_reports_a_lost_queue_of_a_topic_with_new_messages_as_a_run_that_probes_all_queues(
    lists_all: bool, tmp_path: Path
) -> None:
    made = FollowedLake(tmp_path / "made", 20)
    made.broker.append(make_records(1, first=3))
    shutil.rmtree(made.broker.root / "consumequeue/T3")
    made.broker.append(make_records(1, first=4))
    other = made.copied(tmp_path / "other")
    other.followed, made.followed.lists_all = FollowedStore(), lists_all

    expected = other.step().notes

    assert ["'T3'" in note for note in expected] == [True]
    assert expected == made.step().notes


def test_a_step_that_lists_all_probes_queues_whose_files_have_changed(tmp_path: Path) -> None:
    made = FollowedLake(tmp_path, 20)
    made.followed.lists_all = True
    (path,) = (made.broker.root / "consumequeue/T7/0").iterdir()
    path.write_bytes(path.read_bytes()[:40])
    with patch.object(queue_ends, "probe_queue_end", wraps=queue_ends.probe_queue_end) as probe:
        made.step()

    assert {"T7"} == {call.args[0].name.topic for call in probe.call_args_list}


def test_a_manifest_has_the_ends_of_queues_with_new_messages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "MAX_VALUES_IN_MANIFEST", 10)
    sizes = []
    for topics in (30, 60, 120):
        made = FollowedLake(tmp_path / str(topics), topics)
        made.broker.append(make_records(3, first=10))
        made.step()
        sizes.append(made.list_manifest_sizes()[2])

    assert max(sizes) - min(sizes) < 100


def test_ends_are_the_same_in_files_and_in_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs change ends, more of them than a manifest has; then the files are gone from memory."""
    found = []
    for most in (1000, 5):
        monkeypatch.setattr(state_file, "MAX_VALUES_IN_MANIFEST", most)
        made = FollowedLake(tmp_path / str(most), 30)
        for number in range(6):
            made.broker.append(make_records(2 + number, first=4 * number))

            assert 0 == made.step().contradictions
        forget_state_files()
        (lake_store,) = list_lake_stores(made.lake)
        state = lake_store.newest_manifest.state["queues"] if lake_store.newest_manifest is not None else None

        assert isinstance(state, dict)
        found.append(processed_ends.read_processed_ends(made.lake, state))

    assert 30 == len(found[0])
    assert found[0] == found[1]


def test_a_lost_or_damaged_file_of_ends_stops_runs_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "MAX_VALUES_IN_MANIFEST", 5)
    made = FollowedLake(tmp_path, 30)
    (path,) = (made.path / "_manifests").glob("*.json.gz")
    for damage, text in ((lambda: path.write_bytes(b"[]"), "not a valid file"), (path.unlink, "is missing")):
        damage()
        forget_state_files()
        with pytest.raises(OSError, match=text) as raised:
            made.step()

        assert str(path) in str(raised.value)


def test_files_of_ends_that_no_manifest_needs_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "MAX_VALUES_IN_MANIFEST", 3)
    monkeypatch.setattr("jobs.lake.upkeep._MANIFESTS_KEPT", 1)
    made = FollowedLake(tmp_path, 30)
    for number in range(40):
        made.broker.append(make_records(2, first=number % 28))
        made.step()

    assert len([*(made.path / "_manifests").glob("*.json.gz")]) < 15
    assert 0 == made.step().contradictions


def test_a_broker_that_writes_during_the_scan_is_behind_and_not_contradicted(tmp_path: Path) -> None:
    made = FollowedLake(tmp_path, 20)
    made.broker.append(make_records(2))
    probe = queue_ends.probe_queue_ends

    def append_before(*arguments: Any) -> queue_ends.QueueEnds:  # noqa: ANN401 - passed on
        made.broker.append(make_records(4, first=1))
        return probe(*arguments)

    with patch("jobs.products.queues.product.probe_queue_ends", append_before):
        behind = made.step()
    caught_up = made.step()

    assert 6 == behind.messages
    assert 2 == behind.units["matched"]
    assert 0 == behind.contradictions
    assert behind.behind > 0
    assert 0 == caught_up.messages
    assert 4 == caught_up.units["matched"]
    assert 0 == caught_up.contradictions
