"""Configuration in the lake: changes of settings and offsets since the run before, and each version of its files."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.products.broker_state import kept_state, new_state
from jobs.restore.config import write_config
from jobs.store.broker_config import broker_config
from jobs.store.store import list_store
from jobs.store.workers import OneByOne
from tests.golden import unpack_feature
from tests.support.lakes import rows_of


def request(store: Path) -> IngestRequest:
    return IngestRequest(str(store), str(store.parent / "lake"), release="5.3.3")


def confirm(store: Path, offsets: dict[str, dict[str, int]]) -> None:
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))


def changes(store: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = rows_of(store.parent / "lake", table, "run")
    return sorted(tuple(row[column] for column in ("run", *columns)) for row in rows)


def test_a_first_run_has_all_settings_and_offsets_as_the_broker_has_them(store: Path) -> None:
    ingest(request(store), OneByOne())
    topics = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
    lake = store.parent / "lake"

    settings = {
        row["name"]: row["settings"] for row in rows_of(lake, "broker_config", "name") if row["kind"] == "topic"
    }
    assert {name: json.loads(text) for name, text in settings.items()} == topics
    assert {row["kind"] for row in rows_of(lake, "broker_config", "name")} == {"topic", "group"}
    assert {
        (row["kind"], row["consumer_group"], row["topic"], row["queue_id"], row["next_offset"])
        for row in rows_of(lake, "consumer_offsets", "run")
        if row["kind"] == "consumer"
    } == {
        ("consumer", "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 4),
        ("consumer", "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 2),
    }


def test_a_later_run_holds_what_has_not_changed_once(store: Path) -> None:
    """There may be a million positions."""
    confirm(store, {"T1@g": {"0": 1, "1": 5}, "T1@h": {"0": 2}})
    known = new_state(broker_config(list_store(str(store))), kept_state(None))
    confirm(store, {"T1@g": {"0": 1, "1": 5}, "T1@h": {"0": 3}})
    there = new_state(broker_config(list_store(str(store))), known)

    assert [there.offsets[key] is queues for key, queues in known.offsets.items() if key[2] == "T1"] == [True, False]


def test_later_runs_add_what_has_changed(store: Path) -> None:
    confirm(store, {"T1@g": {"0": 1, "1": 5}, "T1@h": {"0": 2}})
    ingest(request(store), OneByOne())
    assert PreRunCheck(request(store)).nothing_new() is not None
    confirm(store, {"T1@g": {"0": 1, "1": 7}, "T1@i": {"0": 0}})
    path = store / "config" / "topics.json"
    config = json.loads(path.read_text())
    del config["topicConfigTable"]["BenchmarkTest"]
    config["topicConfigTable"]["TBW102"]["perm"] = 6
    path.write_text(json.dumps(config))
    assert PreRunCheck(request(store)).nothing_new() is None
    ingest(request(store), OneByOne())

    offsets = changes(store, "consumer_offsets", "kind", "consumer_group", "topic", "queue_id", "next_offset")
    assert [row[2:] for row in offsets if row[:2] == (2, "consumer")] == [
        ("g", "T1", 1, 7),
        ("h", "T1", 0, None),
        ("i", "T1", 0, 0),
    ]
    settings = {row[2]: row[3] for row in changes(store, "broker_config", "kind", "name", "settings") if row[0] == 2}
    assert settings.keys() == {"BenchmarkTest", "TBW102"}
    assert settings["BenchmarkTest"] is None
    assert json.loads(settings["TBW102"])["perm"] == 6
    assert PreRunCheck(request(store)).nothing_new() is not None


@pytest.mark.parametrize("name", ["b551-rockscq-clean", "b551-configv2"])
def test_offsets_in_rocksdb_become_rows(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    asked = IngestRequest(str(unpacked.root), str(tmp_path / "lake"), release="5.5.1")
    ingest(asked, OneByOne())

    assert {
        f"{row['topic']}@{row['consumer_group']}/{row['queue_id']}": row["next_offset"]
        for row in rows_of(tmp_path / "lake", "consumer_offsets", "run")
        if row["kind"] == "consumer" and row["consumer_group"] == "G"
    } == {
        f"{name}/{queue}": offset
        for name, queues in unpacked.of_disk["consumerOffsets"].items()
        for queue, offset in queues.items()
    }
    assert PreRunCheck(asked).nothing_new() is not None


def test_what_cannot_be_read_is_not_called_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = unpack_feature("b551-rockscq-clean", tmp_path)
    asked = IngestRequest(str(unpacked.root), str(tmp_path / "lake"), release="5.5.1")
    ingest(asked, OneByOne())
    before = rows_of(tmp_path / "lake", "consumer_offsets", "run")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rocksdict", None)
        summary = ingest(asked, OneByOne())
    again = ingest(asked, OneByOne())

    assert any("pip install" in note for note in summary.notes)
    assert again.run is None
    assert rows_of(tmp_path / "lake", "consumer_offsets", "run") == before


KEPT = {
    "consumerFilter.json", "consumerOffset.json", "consumerOrderInfo.json", "delayOffset.json",
    "subscriptionGroup.json", "topics.json", "transactionMetrics",
}  # fmt: skip


def restored(store: Path, folder: str, until: int | None = None) -> dict[str, bytes]:
    lake, out = store.parent / "lake", store.parent / folder
    (store_id,) = {row["store_id"] for row in rows_of(lake, "runs", "time")}
    files, _, _ = write_config(Lake(str(lake)), store_id, out, until, {})
    return {Path(path).name: Path(path).read_bytes() for path in files}


def of_broker(store: Path) -> dict[str, bytes]:
    return {name: (store / "config" / name).read_bytes() for name in KEPT if (store / "config" / name).exists()}


def test_the_brokers_configuration_comes_back_byte_for_byte(store: Path) -> None:
    ingest(request(store), OneByOne())

    assert of_broker(store) == restored(store, "out")
    assert set(of_broker(store)) == KEPT


def test_a_run_keeps_what_has_changed_and_what_was_deleted(store: Path) -> None:
    ingest(request(store), OneByOne())
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@g":{0:1}}}')
    (store / "config" / "delayOffset.json").unlink()
    (store / "config" / "delayOffset.json.bak").unlink()

    assert PreRunCheck(request(store)).nothing_new() is None
    again = ingest(request(store), OneByOne())

    assert (again.messages, again.run) == (0, 2)
    assert ["consumerOffset.json", "delayOffset.json"] == sorted(
        row["name"] for row in rows_of(store.parent / "lake", "config_files", "run") if row["run"] == again.run
    )
    assert of_broker(store) == restored(store, "out")
    assert PreRunCheck(request(store)).nothing_new() is not None


def test_a_file_that_is_being_written_again_is_its_backup(store: Path) -> None:
    """A broker that finds an empty file loads the backup, and so does who reads beside it."""
    expected = (store / "config" / "topics.json.bak").read_bytes()
    (store / "config" / "topics.json").write_bytes(b"")

    ingest(request(store), OneByOne())

    assert expected == restored(store, "out")["topics.json"]


def test_progress_after_the_end_of_a_shorter_log_is_left_out(store: Path) -> None:
    """The lake knows no earlier version: topics are better than none, offsets are not."""
    until = ingest(request(store), OneByOne()).to_offset - 1

    assert set(restored(store, "then", until=until)) == {
        "consumerFilter.json", "subscriptionGroup.json", "topics.json", "transactionMetrics",
    }  # fmt: skip


def test_a_run_in_steps_keeps_the_configuration_with_its_last_step(store: Path) -> None:
    """Consumers are where they are now: the first step's part of the log ends long before."""
    summary = ingest(replace(request(store), step_bytes=20_000), OneByOne())

    (run,) = {row["run"] for row in rows_of(store.parent / "lake", "config_files", "run")}
    assert (summary.steps > 1, run) == (True, summary.run)
    assert of_broker(store) == restored(store, "out")
