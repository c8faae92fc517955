"""A tier comes into the lake: each message once, in a table of its own, one commit for all queues."""

import shutil
from pathlib import Path

import pytest

from jobs.ingest.follow import Follower, Pace, Stop
from jobs.ingest.request import IngestRequest, Summary
from jobs.store.workers import OneByOne
from tests.support.lakes import BROKER, files, ingest_store, rows_of, said, taken

_OF_ITS_LOG = {"physical_offset", "segment", "offset_msg_id", "store_id", "generation", "record_crc"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def test_every_message_that_the_broker_sent_is_there_once(place: Path, tier: Path, lake: Path) -> None:
    summary = ingest_store(tier, lake)

    assert said(place / "EXPECT.json") == taken(lake)
    assert (summary.broker, summary.messages, summary.tier_queues) == ("b0", len(said(place / "EXPECT.json")), 3)
    assert {"tiered": 1} | summary.versions == summary.versions


def test_a_row_is_that_of_the_broker_but_for_its_place_in_a_log(place: Path, tier: Path, lake: Path) -> None:
    ingest_store(tier, lake, "b")
    ingest_store(place / "store", lake, "b")

    def known(table: str) -> list[dict[str, object]]:
        rows = [{name: row[name] for name in row if name not in _OF_ITS_LOG} for row in rows_of(lake, table)]
        own = [row for row in rows if row["topic"] in {"Orders", "Bills"}]
        return sorted(own, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))

    assert known("messages") == known("tiered")


def test_a_topic_that_was_made_again_is_another_log_of_its_queue(tier: Path, lake: Path) -> None:
    """Its messages come to the earlier ones, from the same offsets on."""
    ingest_store(tier, lake)
    folder = tier / BROKER / "Bills/0"
    shutil.rmtree(folder)
    shutil.copytree(tier / BROKER / "Orders/0", folder)
    again = ingest_store(tier, lake)
    generations = {(row["segment"], row["generation"]) for row in rows_of(lake, "tiered") if row["generation"]}

    assert len(files(tier, "Bills/0")) == len(generations)
    assert again.messages == sum(1 for row in rows_of(lake, "tiered") if row["generation"] == 1)
    assert (None, 0) == (ingest_store(tier, lake).run, again.exit_code)


def test_a_tier_that_is_followed_is_looked_at_again_and_again(place: Path, tier: Path, lake: Path) -> None:
    newest = files(tier, "Orders/1")[-1]
    held_back = newest.read_bytes()
    newest.unlink()
    stop = Stop()

    def done(_: Summary) -> None:
        newest.write_bytes(held_back)
        if len(taken(lake)) == len(said(place / "EXPECT.json")):
            stop.wish()

    summary = Follower(IngestRequest(str(tier), str(lake)), OneByOne(), Pace(0.01), stop, done).run()

    assert said(place / "EXPECT.json") == taken(lake)
    assert summary.messages == len(taken(lake))
