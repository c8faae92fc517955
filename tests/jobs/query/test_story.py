"""The history of a message, compared with the log of the driver that sent and consumed it on a real broker."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.browse.pages import find_message_at, message_reference
from jobs.browse.rendering import Translator
from jobs.query import KeyQuery
from jobs.query import story as timeline
from jobs.query.source import PointerCheck, Source
from jobs.query.story import ConsumptionState, Role, Story, timeline_lines
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.release import Release
from tests.golden import StoreOf, golden_stores, release_of
from tests.support.commands import Run
from tests.support.lakes import ingest_store
from tests.support.query_stores import open_lake, opened

_SENT = re.compile(
    r"^SENT (\S+) status=SEND_OK msgId=(\S+) offsetMsgId=(\S+) queue=(\S+)/(\d+) queueOffset=(\d+)", re.MULTILINE
)
_CONSUMED = re.compile(r"^CONSUME \S+ (?:bad|good)(\d+) .*reconsumeTimes=(\d+)", re.MULTILINE)
_LAKE_IS_ASKED = 4  # for every fourth message, because each story takes a second
_CHINESE = re.compile("[\u4e00-\u9fff]")
# English words of sentences; values are ids, topics, hosts, files and tables.
_ENGLISH = re.compile(
    r"\b(sent|queue|number|offset|due|ended|waits|group|trace|not|by|under|found|leads|index: )\b(?![/.])"
)
# Stores whose drivers recorded their messages, except those copied from a running broker or on several disks.
TOLD = golden_stores(
    "base", "cqext", "dledger", "dledger-upgraded", "retry", "rockscq", "timer", "transient", "types", "types-crc"
)


class SentLine(NamedTuple):
    """The broker's reply to a producer, as the driver recorded it."""

    name: str
    unique_key: str
    offset_id: str
    topic: str
    queue_id: int
    queue_offset: int


def sent_lines(store: Path) -> list[SentLine]:
    text = (store / "EXPECT" / "sent.txt").read_text()
    found = [
        SentLine(name, key, offset_id, topic, int(queue_id), int(queue_offset))
        for name, key, offset_id, topic, queue_id, queue_offset in _SENT.findall(text)
    ]
    return [line for line in found if "," not in line.unique_key and line.offset_id != "null"]


def read_story(source: Source, message_id: str, topic: str | None = None) -> Story:
    (story,) = timeline.find_stories(source, timeline.find_copies_by_id(source, message_id, topic).messages)
    return story


def roles(story: Story) -> list[Role]:
    return [copy.role for copy in story.copies]


def check_sent(source: Source, line: SentLine) -> Story:
    """Compare a story with the reply to the producer; each unit and key of an intact store points to its copy."""
    story = read_story(source, line.unique_key, line.topic)
    first = story.copies[0]
    assert line.offset_id == first.message.offset_id
    assert line.queue_id == (first.message.record.queue_id if first.role is Role.SENT else line.queue_id)
    assert line.queue_offset == (first.message.record.queue_offset if first.role is Role.SENT else line.queue_offset)
    checks = {fact.check for copy in story.copies for fact in copy.queues}
    checks |= {fact.check for copy in story.copies for fact in copy.keys}
    assert {PointerCheck.LEADS_THERE} == checks, line
    return story


@pytest.mark.sample(3, always=["b551-rockscq"])
@pytest.mark.parametrize("name", TOLD)
def test_a_story_matches_the_notes_of_the_driver(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store = golden(name)
    release = Release.from_version(release_of(name))
    ingest_store(store, tmp_path / "lake")
    lake = open_lake(tmp_path / "lake", release)
    with opened(store, release, None) as source:
        consumed = _CONSUMED.findall((store / "EXPECT" / "sent.txt").read_text())
        lines = sent_lines(store)

        assert lines
        for number, line in enumerate(lines):
            story = check_sent(source, line)
            assert_as_sent(line, story, name, consumed)
            assert_in_chinese(story)
            if number % _LAKE_IS_ASKED == 0:
                again = check_sent(lake, line)

                assert roles(story) == roles(again)
                assert story.state == again.state
                assert_in_chinese(again)


def assert_as_sent(line: SentLine, story: Story, store: str, consumed: list[tuple[str, str]]) -> None:
    """
    Compare the copies with the consumed messages, and with the names: `timer6` waits for an hour.

    The group `cg` permits two attempts. Only the broker of 5.5.1 was stopped before the second one.
    """
    if "retry" in store:
        tries = sorted(int(times) for key, times in consumed if key == line.name.removeprefix("m"))
        retries = [copy.message.record.reconsume_times for copy in story.copies if copy.role is Role.RETRIED]
        if not line.name.startswith("last"):
            assert tries == [0, *retries][: len(tries)], line.name  # the driver ended before the last ones
        (group,) = story.copies[0].groups
        is_again = len(story.copies) > 1
        assert "cg" == group.group
        assert (ConsumptionState.FAILED if is_again else ConsumptionState.CONSUMED) == group.state
        failed = "retried, not yet consumed by cg" if store == "b551-retry" else "dead letter of cg"
        assert story.state == (failed if is_again else "sent, consumed by cg")
        if story.state == "dead letter of cg":
            assert [Role.DEAD_LETTER] == roles(story)[-1:]
            assert story.copies[-1].text.startswith("dead letter of cg after 2 attempts, from T1, in %DLQ%cg")
    elif line.name.startswith("timer"):
        waits = line.name == "timer6"
        assert ([Role.TIMED] if waits else [Role.TIMED, Role.DELIVERED]) == roles(story)
        assert waits == (story.state == "waiting for its delivery time")
    elif line.name.startswith("delay"):
        assert roles(story)[0] is Role.DELAYED
        assert story.copies[0].due is not None


def assert_in_chinese(story: Story) -> None:
    """Check that `browse` translates every sentence of a story into Chinese."""
    lines = [text for line in timeline_lines(story, None) for text in (line.text, *line.below)]
    for text in (story.state, *lines, *story.unknown):
        said = Translator("zh").translate(text)
        assert _CHINESE.search(said), text
        assert not _ENGLISH.search(said), said


@pytest.mark.parametrize("name", golden_stores("base"))
def test_transactions_end_as_the_driver_recorded(golden: StoreOf, name: str) -> None:
    store = golden(name)
    release = Release.from_version(release_of(name))
    with opened(store, release, None) as source:
        stories = {
            key: list(timeline.find_stories(source, timeline.find_copies_by_key(source, "T1", key).messages))
            for key in ("txc", "txr", "txu")
        }
        if not any(stories.values()):
            pytest.fail("no transaction in the store")
        ((committed,), (rolled_back,), (unknown,)) = stories.values()

        assert [Role.HALF, Role.COMMITTED] == roles(committed)
        assert committed.copies[0].text.endswith(": committed")
        assert Role.COMMITTED not in roles(rolled_back)
        assert rolled_back.state == "rolled back"
        assert Role.HALF is roles(unknown)[0]


def test_a_message_truncated_by_a_promotion_is_reported_as_such(situation: StoreOf, tmp_path: Path) -> None:
    disk = situation("b551-controller-failover")
    lake = str(tmp_path / "lake")
    for store in ("old-master-killed", "store"):
        ingest_store(disk / store, lake, "b")
    unreplicated = json.loads((disk / "EXPECT.json").read_text())["unreplicated"]

    assert unreplicated
    source = open_lake(lake)
    for reply in unreplicated:
        for message_id in (reply["message-id"], reply["offset-message-id"]):
            story = read_story(source, message_id)
            (copy,) = story.copies
            record = copy.message.record

            assert (reply["message-id"], int(reply["queue"]), int(reply["queue-offset"])) == (
                copy.message.unique_key, record.queue_id, record.queue_offset
            )  # fmt: skip
            assert "lost: its broker truncated the log" == story.state
            assert "superseded_messages" == copy.place.name
            assert [] == copy.queues
            assert [] == copy.keys
            assert_in_chinese(story)

            assert copy.message.record == find_message_at(source, message_reference(copy.message)).record
            wanted = KeyQuery(KeyKind.UNIQUE, copy.message.topic, reply["message-id"])

            assert ([], []) == (
                list(source.by_key_hash(wanted)),
                source.remarks.warnings,
            )  # its index entry is not a lost row


def test_a_story_fits_a_terminal(golden: StoreOf, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.commands.query.line_width_limit", lambda _stream: 80)
    story = run("query", "story", "-t", "T1", "-k", "k1", "--store", golden("b551-base")).out

    assert max(map(len, story.splitlines())) <= 80
