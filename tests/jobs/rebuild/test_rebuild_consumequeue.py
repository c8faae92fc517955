"""`rebuild-consumequeue`: the queues of real brokers, written again from their logs."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.rebuild.queue_run import MANIFEST, RebuildQueuesRequest, rebuild
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.stores import files_in, log_folders

# Halted between append and dispatch, copied while being written, deleted in part, without queue files.
DIFFERENT = {"b533-crash-before", "b498-live", "b551-rockscq", *golden_stores("expired")}
FOLDERS = ("batchconsumequeue", "consumequeue_ext")


def request_for(store: Path, out: Path, name: str) -> RebuildQueuesRequest:
    return RebuildQueuesRequest(str(store), out, commitlog=log_folders(store), release=release_of(name))


def made_files(out: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_in(out).items() if path != MANIFEST}


def real_files(store: Path) -> dict[str, bytes]:
    found = files_in(store / "consumequeue")
    for folder in FOLDERS:
        found |= {f"{folder}/{path}": data for path, data in files_in(store / folder).items()}
    return found


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in DIFFERENT])
def test_the_files_are_the_brokers_own(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store = golden(name)
    rebuild(request_for(store, tmp_path / "out", name), OneByOne())

    assert real_files(store) == made_files(tmp_path / "out")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b514-types", "b498-dledger-upgraded"])
def test_the_cut_of_ranges_and_groups_changes_nothing(
    spark: SparkSession, golden: StoreOf, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    request = replace(request_for(store, tmp_path / "out", name), range_size=1024, groups=3)
    rebuild(request, SparkWorkers(spark))

    assert real_files(store) == made_files(tmp_path / "out")


def test_the_manifest_names_every_file_and_its_hash(golden: StoreOf, tmp_path: Path) -> None:
    rebuild(request_for(golden("b551-types"), tmp_path, "b551-types"), OneByOne())
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    made = made_files(tmp_path)

    files = [file for queue in manifest["queues"] for file in queue["files"]]
    assert sorted(file["path"] for file in files) == sorted(made)
    for file in files:
        data = made[file["path"]]
        assert len(data) == file["size"]
        assert sha256(data[: file["written"]]).hexdigest() == file["sha256"]
        assert not any(data[file["written"] :])


def test_what_the_log_does_not_tell_is_named(golden: StoreOf, tmp_path: Path) -> None:
    """The units of deleted messages are blanks in a rebuild; which queues have such is said."""
    summary = rebuild(request_for(golden("b533-expired"), tmp_path, "b533-expired"), OneByOne())

    (note,) = summary.notes
    assert note.startswith("queues that begin after queue offset 0: 3 (")
    assert all(topic in note for topic in ("'E1' 0", "'E1' 1", "'E2' 1"))


def test_the_delay_levels_of_the_broker_decide_times_of_delivery(golden: StoreOf, tmp_path: Path) -> None:
    """`messageDelayLevel` is no part of the store; a broker's configuration file gives it."""
    name = "b551-base"
    conf = BrokerConf(delay_level="1s 5s")
    rebuild(replace(request_for(golden(name), tmp_path, name), conf=conf), OneByOne())
    changed = {path for path, data in real_files(golden(name)).items() if made_files(tmp_path)[path] != data}

    assert changed == {"SCHEDULE_TOPIC_XXXX/15/00000000000000000000"}


def test_a_topic_that_is_no_folder_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    log = a_segment([a_record(topic="../../evil"), a_record(topic="good")])
    (tmp_path / "store" / "commitlog" / "00000000000000000000").write_bytes(log)
    conf = BrokerConf(consume_queue_size=200)
    summary = rebuild(RebuildQueuesRequest(str(tmp_path / "store"), tmp_path / "out", conf), OneByOne())

    assert list(made_files(tmp_path / "out")) == ["good/0/00000000000000000000"]
    assert summary.notes == ["queues that are not written: 1 ('../../evil' 0); no folder can have their topic's name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
