"""A tier comes into the lake: each message once, in a table of its own, one commit for all queues."""

import shutil
from pathlib import Path

import pytest

from jobs.ingest.follow import Follower, Pace, Stop
from jobs.ingest.request import IngestRequest, Summary
from jobs.lake.identity import AmbiguousBrokerError
from jobs.lake.lake import Lake
from jobs.lake.runs import known_logs, known_stores
from jobs.store.selection import Selection, TopicsError
from jobs.store.workers import OneByOne
from tests.support.commands import overwrite
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


def test_later_runs_add_what_the_tier_has_got_since(place: Path, tier: Path, lake: Path) -> None:
    whole = shutil.copytree(tier, tier.with_name("whole"))
    shutil.rmtree(tier / BROKER / "Bills")
    files(tier, "Orders/0")[-1].unlink()
    newest = files(tier, "Orders/1")[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    first = ingest_store(tier, lake)
    shutil.rmtree(tier)
    whole.rename(tier)
    second = ingest_store(tier, lake)

    assert said(place / "EXPECT.json") == taken(lake)
    assert (first.run, second.run) == (1, 2)
    assert 0 < first.messages < first.messages + second.messages == len(said(place / "EXPECT.json"))


def test_segments_that_expired_since_they_were_read_are_no_gap(place: Path, tier: Path, lake: Path) -> None:
    ingest_store(tier, lake)
    files(tier, "Orders/0")[0].unlink()
    shutil.rmtree(tier / BROKER / "Orders/1")
    again = ingest_store(tier, lake)

    assert said(place / "EXPECT.json") == taken(lake)
    assert ([], 0) == (again.gaps, again.exit_code)


def test_a_tier_whose_beginning_has_expired_is_taken_from_there_on(place: Path, tier: Path, lake: Path) -> None:
    lost = files(tier, "Orders/0")[0]
    lost.unlink()
    summary = ingest_store(tier, lake)

    assert [] == summary.gaps
    assert 0 < len(set(said(place / "EXPECT.json")) - set(taken(lake))) < len(said(place / "EXPECT.json"))


def test_segments_that_expired_before_they_were_read_are_a_gap_of_their_queue(tier: Path, lake: Path) -> None:
    later = [files(tier, "Orders/0")[at] for at in (1, 2)]
    kept = [(path, path.read_bytes()) for path in later]
    for path in later:
        path.unlink()
    ingest_store(tier, lake)
    kept[1][0].write_bytes(kept[1][1])
    files(tier, "Orders/0")[0].unlink()
    second = ingest_store(tier, lake)
    third = ingest_store(tier, lake)

    (gap,) = second.gaps
    assert [int(path.name[-20:]) for path in later] == [gap["from"], gap["to"]]
    assert str(gap["why"]).startswith("Orders 0: ")
    assert [] == third.gaps


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


def test_a_damaged_body_is_in_quarantine_with_the_name_of_its_file(tier: Path, lake: Path) -> None:
    segment = files(tier, "Orders/0")[1]
    overwrite(segment, 120, b"?")
    summary = ingest_store(tier, lake)
    (row,) = rows_of(lake, "quarantine")

    assert (str(segment), int(segment.name[-20:])) == (row["file"], row["physical_offset"])
    assert (1, 3) == (summary.quarantined, summary.exit_code)


def test_a_run_in_steps_commits_after_each_of_them(place: Path, tier: Path, lake: Path) -> None:
    summary = ingest_store(tier, lake, step_bytes=9_000)

    assert said(place / "EXPECT.json") == taken(lake)
    assert summary.steps > 3
    assert summary.messages == len(said(place / "EXPECT.json"))
    assert ingest_store(tier, lake).run is None


def test_a_pattern_that_matches_no_topic_of_a_tier_leaves_no_registration(tier: Path, lake: Path) -> None:
    with pytest.raises(TopicsError, match="no topic of this tier matches"):
        ingest_store(tier, lake, selection=Selection(topics=("Bill",)))

    assert not lake.exists()


def test_topics_that_are_not_wanted_come_when_they_are(place: Path, tier: Path, lake: Path) -> None:
    ingest_store(tier, lake, selection=Selection(topics=("Bills",)))
    assert {"Bills"} == {topic for topic, _, _ in taken(lake)}

    ingest_store(tier, lake, change_topics=True)
    assert said(place / "EXPECT.json") == taken(lake)


def test_a_copy_of_a_tier_is_the_same_tier_whatever_it_is_called(place: Path, tier: Path, lake: Path) -> None:
    ingest_store(tier, lake, "b0")
    copy = shutil.copytree(tier, tier.with_name("copy"))
    again = ingest_store(copy, lake, "another")

    assert ("b0", None) == (again.broker, again.run)
    assert said(place / "EXPECT.json") == taken(lake)


def test_a_tier_and_the_log_of_its_broker_are_two_stores_with_one_label(place: Path, tier: Path, lake: Path) -> None:
    first = ingest_store(tier, lake, "b")
    second = ingest_store(place / "store", lake, "b")

    assert first.store_id != second.store_id
    assert [second.store_id] == [known.store_id for known in known_logs(Lake(str(lake)))]
    assert 2 == len(known_stores(Lake(str(lake))))
    assert (None, None) == (ingest_store(tier, lake, "b").run, ingest_store(place / "store", lake, "b").run)


def test_a_dry_run_says_what_it_would_read_and_writes_nothing(tier: Path, lake: Path) -> None:
    summary = ingest_store(tier, lake, dry_run=True)
    size = sum(path.stat().st_size for path in (tier / BROKER).rglob("COMMIT_LOG/*"))

    assert summary.plan is not None
    assert size == summary.plan["bytes"]
    assert not lake.exists()


def test_of_brokers_that_share_a_tier_one_is_named(tier: Path, lake: Path) -> None:
    shutil.copytree(tier / BROKER, (tier / BROKER).with_name("b1"))

    with pytest.raises(AmbiguousBrokerError, match="b0, b1"):
        ingest_store(tier, lake)
    assert "b1" == ingest_store(tier, lake, "b1").broker


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
