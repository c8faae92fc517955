"""The configuration of a broker, its rows in the lake, and the detection of its release."""

import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.products.broker_config import BrokerState, find_new_state
from jobs.query.store_reader import StoreReader
from jobs.store.broker_config import BrokerConfig, ConsumerKind, read_broker_config
from jobs.store.release import QUICK, detect_store_eras
from jobs.store.store import list_store
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.indexfile.lookup import IndexReader
from tests.golden import FEATURES, unpack_feature
from tests.support.lakes import ingest_store, rows_of
from tests.support.query_stores import Sent, stored, write_store

_V2 = "b551-configv2"
_OF_THE_BROKER = "CID_RMQ_SYS_TRANS"  # writes offsets after the broker's answers, at a stop or a check of transactions


def config_of(store: Path) -> BrokerConfig:
    return read_broker_config(list_store(str(store)))


def consumers(config: BrokerConfig) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for reader in config.progress:
        if reader.kind is ConsumerKind.CONSUMER and reader.consumer_group != _OF_THE_BROKER:
            queues = found.setdefault(f"{reader.topic}@{reader.consumer_group}", {})
            queues[str(reader.queue_id)] = reader.next_offset
    return found


@pytest.mark.parametrize("name", FEATURES)
def test_offsets_topics_and_groups_are_those_that_the_broker_answered(name: str, tmp_path: Path) -> None:
    unpacked = unpack_feature(name, tmp_path)
    config = config_of(unpacked.root)
    answers = unpacked.answers_on_disk

    assert config.unread_reason is None
    assert consumers(config) == answers["consumerOffsets"]
    if name != _V2:
        assert {
            topic: f"{about['readQueueNums']},{about['writeQueueNums']},{about['perm']}"
            for topic, about in config.topics.items()
        } == {topic: ",".join(text.split(",")[:3]) for topic, text in answers["topics"].items()}
    if name not in {_V2, "b551-transrocks-killed"}:
        assert sorted(config.groups) == sorted(answers["subscriptionGroups"])


def test_unchanged_offsets_are_shared_with_the_previous_state(store: Path) -> None:
    """There may be a million positions."""
    known: BrokerState = ({}, {})
    states = []
    for offset in (2, 3):
        table = {"offsetTable": {"T1@g": {"0": 1, "1": 5}, "T1@h": {"0": offset}}}
        (store / "config" / "consumerOffset.json").write_text(json.dumps(table))
        states.append(known := find_new_state(config_of(store), known))
    (_, before), (_, after) = states

    assert [after[key] is queues for key, queues in before.items() if key[2] == "T1"] == [True, False]


def test_a_half_written_file_is_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store / "config" / "consumerOffset.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    assert config_of(store).unread_reason
    monkeypatch.setattr("jobs.store.repeated_reads.sleep", lambda _: path.write_bytes(whole))

    assert config_of(store).unread_reason is None


@pytest.mark.parametrize("name", ["b551-rockscq-clean", "b551-configv2"])
def test_ingested_offsets_of_rocksdb_stay_when_they_cannot_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack_feature(name, tmp_path).root
    lake = tmp_path / "lake"
    ingest_store(store, lake, release="5.5.1")
    before = rows_of(lake, "consumer_offsets", "run")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rocksdict", None)
        summary = ingest_store(store, lake, release="5.5.1")

    assert before
    assert any("pip install" in note for note in summary.notes)
    assert ingest_store(store, lake, release="5.5.1").run is None
    assert rows_of(lake, "consumer_offsets", "run") == before


def test_a_tag_of_many_messages_is_looked_up_without_its_chain(tmp_path: Path) -> None:
    """Following a chain of a million entries once delayed every query by half a minute."""
    messages = [Sent(tags="TagA", unique_key=f"{number:032X}") for number in range(2000)]
    geometry = Geometry(50, 10_000)
    write_store(tmp_path / "store", stored(messages), geometry=geometry)
    with (
        patch.object(IndexReader, "entry", autospec=True, side_effect=IndexReader.entry) as read,
        StoreReader(list_store(str(tmp_path / "store")), geometry) as reader,
    ):
        (era,) = detect_store_eras(reader.store, QUICK, reader.index_readers())

    assert "an index entry for a message's tags" in {mark.reason for mark in era.marks}
    assert read.call_count < 500
