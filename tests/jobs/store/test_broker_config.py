"""A broker's configuration, by table and by file."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.store.broker_config import (
    TOPIC_TABLE,
    TOPICS_FILE,
    BrokerConfig,
    Progress,
    ReaderKind,
    broker_config,
    read_config,
)
from jobs.store.store import list_store, read_broker_conf
from tests.golden import FEATURES, FeatureStore, StoreOf, unpack_feature
from tests.support.commands import Run, copy_of

_IN_ROCKSDB = ("b551-rockscq-clean", "b551-rockscq-killed", "b551-rockscq-separate")
_V2 = "b551-configv2"
# What a stop or a check of transactions writes after the broker was asked.
_OF_THE_BROKER = "CID_RMQ_SYS_TRANS"


def config_of(store: Path) -> BrokerConfig:
    return broker_config(list_store(str(store)))


def consumers(config: BrokerConfig) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for reader in config.progress:
        if reader.kind is ReaderKind.CONSUMER and reader.consumer_group != _OF_THE_BROKER:
            queues = found.setdefault(f"{reader.topic}@{reader.consumer_group}", {})
            queues[str(reader.queue_id)] = reader.next_offset
    return found


@pytest.mark.parametrize("name", FEATURES)
def test_offsets_topics_and_groups_are_those_that_the_broker_answered(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    config, answers = config_of(unpacked.root), unpacked.of_disk

    assert config.unread is None
    assert consumers(config) == answers["consumerOffsets"]
    if name != _V2:
        assert {
            topic: f"{about['readQueueNums']},{about['writeQueueNums']},{about['perm']}"
            for topic, about in config.topics.items()
        } == {topic: ",".join(text.split(",")[:3]) for topic, text in answers["topics"].items()}
    if name not in {_V2, "b551-transrocks-killed"}:
        assert sorted(config.groups) == sorted(answers["subscriptionGroups"])


def test_version_2_keeps_what_somebody_has_made(tmp_path: Path) -> None:
    """The broker's own topics and groups are made again at each start, and are in no row."""
    config = config_of(unpack_feature(_V2, tmp_path).root)

    assert sorted(config.topics) == ["Bills", "Orders"]
    assert list(config.groups) == ["G"]
    pulled = [reader for reader in config.progress if reader.kind is ReaderKind.PULL]
    assert pulled == [Progress(ReaderKind.PULL, "G", "Orders", queue, 15, "config/rdb") for queue in range(2)]


def test_delay_levels_are_queues_of_the_schedule_topic(tmp_path: Path) -> None:
    """Level 3 is queue 2."""
    config = config_of(unpack_feature("b551-cqdouble", tmp_path).root)

    delays = {reader.queue_id: reader.next_offset for reader in config.progress if reader.kind is ReaderKind.DELAY}
    assert delays == {0: 2, 2: 11, 3: 0}


def _migrated(unpacked: FeatureStore, counter: int) -> Path:
    """Put JSON files beside the database, as a switch leaves them, that count so many changes."""
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    tables: dict[str, dict[str, object]] = {
        "topics.json": {TOPIC_TABLE: {"Old": {"topicName": "Old"}}},
        "consumerOffset.json": {"offsetTable": {"Orders@G": {"0": 3}}},
    }
    for name, table in tables.items():
        (unpacked.root / "config" / name).write_text(json.dumps({"dataVersion": version, **table}))
    return unpacked.root


def test_json_that_a_switch_to_rocksdb_left_is_not_what_counts(tmp_path: Path) -> None:
    root = _migrated(unpack_feature("b551-rockscq-clean", tmp_path), counter=0)

    assert "Old" not in config_of(root).topics
    assert consumers(config_of(root))["Orders@G"] == {"0": 30, "1": 30}
    assert "Old" not in json.dumps(read_config(list_store(str(root)), TOPICS_FILE))


def test_json_that_counts_more_changes_than_the_database_is_loaded(tmp_path: Path) -> None:
    root = _migrated(unpack_feature("b551-rockscq-clean", tmp_path), counter=1000)

    assert list(config_of(root).topics) == ["Old"]
    assert consumers(config_of(root)) == {"Orders@G": {"0": 3}}
    assert "Old" in json.dumps(read_config(list_store(str(root)), TOPICS_FILE))


@pytest.mark.parametrize("name", [*_IN_ROCKSDB, _V2])
def test_without_the_package_it_is_said_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    config = config_of(unpack_feature(name, tmp_path).root)

    assert config.topics == {}
    assert "pip install" in (config.unread or "")


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    root = Path(shutil.copytree(unpack_feature("b551-cqdouble", tmp_path).root, tmp_path / "copy"))
    (root / "config" / "consumerOffset.json").write_text("{")
    config = config_of(root)

    assert "config/consumerOffset.json" in (config.unread or "")
    assert config.topics
    assert consumers(config) == {}


TOPICS = "topics.json"


@pytest.fixture
def root(golden: StoreOf, tmp_path: Path) -> Path:
    copied = copy_of(golden("b551-base"), tmp_path)
    (copied / "config").mkdir(exist_ok=True)
    return copied


def a_number_of_5000_digits(path: Path) -> None:
    """Python refuses to read it, for it would take long."""
    path.write_text('{"topicConfigTable":{"T1":{"writeQueueNums":' + "9" * 5000 + "}}}")


def a_terabyte_of_nothing(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def a_tower_of_brackets(path: Path) -> None:
    path.write_text('{"topicConfigTable":' + "[" * 1_000_000)


HOSTILE = [a_number_of_5000_digits, a_terabyte_of_nothing, a_tower_of_brackets]


@pytest.mark.parametrize(
    "line",
    [
        ("inspect", "STORE"),
        ("query", "by-offset", "-t", "T1", "-i", "0", "-o", "3", "--store", "STORE"),
        ("query", "mqadmin", "--store", "STORE", "topicStatus", "-t", "T1"),
    ],
)
def test_a_table_of_topics_that_cannot_be_read_says_nothing(line: tuple[str, ...], root: Path, run: Run) -> None:
    words = [str(root) if word == "STORE" else word for word in line]
    assert ExitCode.CLEAN == run(*words).code
    for make in HOSTILE:
        make(root / "config" / TOPICS)
        outcome = run(*words)

        assert read_config(list_store(str(root)), TOPICS) is None
        assert "Traceback" not in outcome.err
        assert outcome.code in {ExitCode.CLEAN, *([ExitCode.DAMAGE] if line[0] == "inspect" else [])}


def test_a_configuration_of_a_terabyte_is_refused(tmp_path: Path) -> None:
    a_terabyte_of_nothing(tmp_path / "broker.conf")

    with pytest.raises(OSError, match="no broker's configuration"):
        read_broker_conf(tmp_path / "broker.conf")
