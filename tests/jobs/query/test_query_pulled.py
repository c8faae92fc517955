"""printMsgByQueue and consumeMessage, where no live broker has to be asked what it prints."""

import json
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from tests.support.commands import Run
from tests.support.query_lakes import write_messages
from tests.support.query_stores import RELEASE, Sent, stored, write_store

_TAGS = ("AaAa", "BBBB", None, "TagA", "TagA", "TagA")  # the first two have one hash
_COUNT = 24  # in two queues; a third one has other tags of that hash in its first file


@pytest.fixture
def store(tmp_path: Path) -> Path:
    messages = [
        Sent(tags=_TAGS[number % len(_TAGS)], queue_id=number % 2, keys=(f"k{number}",)) for number in range(_COUNT)
    ]
    messages += [Sent(tags=tag, queue_id=2) for tag in ["AaAa"] * 10 + ["BBBB"]]
    return write_store(tmp_path / "store", stored(messages))


@pytest.fixture
def ask(store: Path, ask: Run) -> Run:
    return lambda line, *options, place=store: ask(place, line, "--release", str(RELEASE), *options)


def test_a_queue_is_counted_by_tag(ask: Run) -> None:
    code, out, _ = ask("printMsgByQueue -t Orders -a b0 -i 1 -f true")

    assert code == ExitCode.CLEAN
    assert [line.split() for line in out.splitlines()] == [
        ["Tag:", "TagA", "Count:", "8"],
        ["Tag:", "BBBB", "Count:", "4"],
    ]


def test_a_pull_that_finds_only_another_tag_of_the_same_hash_is_no_end(ask: Run) -> None:
    """The broker has found messages, and the client drops them: the next file of the queue is pulled all the same."""
    _, by_queue, _ = ask("printMsgByQueue -t Orders -a b0 -i 2 -s BBBB -p true")
    _, by_topic, _ = ask("printMsg -t Orders -s BBBB -d false")

    assert by_queue.count("MSGID") == 1
    assert by_topic.count("MSGID") == 5
    assert "queueId=2] no matched msg" not in by_topic


def test_one_queue_from_an_offset_on_is_consumed_to_its_end(ask: Run) -> None:
    code, out, _ = ask("consumeMessage -t Orders -b b0 -i 0 -o 8")

    assert code == ExitCode.CLEAN
    assert [line.split(" ")[0] for line in out.splitlines()] == [
        *("Consume", "MSGID:", "MSGID:"),
        *("Consume", "MSGID:", "MSGID:"),
        "MessageQueue",
    ]
    assert out.endswith("queueId=0] print msg finished. status=NO_NEW_MSG, offset=12\n")


def test_the_oldest_messages_of_a_topic_are_consumed(ask: Run) -> None:
    """Which queue comes first is up to the client's set, and so is which has none left."""
    code, out, _ = ask("consumeMessage -t Orders -c 5 -g AnyGroup")

    assert code == ExitCode.CLEAN
    assert out.splitlines()[0].startswith("The older 5 message of the ")
    assert out.count("MSGID") == 5


@pytest.mark.parametrize(
    ("line", "code", "printed", "said"),
    [
        ("consumeMessage -t Orders -c 0", ExitCode.USAGE, "Please input a positive messageNumber!", ""),
        ("consumeMessage -t Orders -i 0", ExitCode.USAGE, "Please set the brokerName before queueId!", ""),
        ("consumeMessage -t Orders -o 0", ExitCode.USAGE, "Please set queueId before offset!", ""),
        ("consumeMessage -t Orders -s 99999999999999", ExitCode.USAGE, "Please set the beginTimestamp before now!", ""),
        ("consumeMessage -t Orders -e 99999999999999", ExitCode.USAGE, "Please set the endTimestamp before now!", ""),
        ("consumeMessage -t Orders -b b1 -i 0", ExitCode.NOT_FOUND, "", "b1"),
        ("consumeMessage -t Missing", ExitCode.NOT_FOUND, "", "Missing"),
        ("printMsgByQueue -t Orders -a b0 -i 7", ExitCode.NOT_FOUND, "", "queue"),
        ("printMsgByQueue -t Orders -a b1 -i 0", ExitCode.NOT_FOUND, "", "b1"),
        ("printMsgByQueue -t Orders -a b0 -i 0 -s Other", ExitCode.NOT_FOUND, "", "the first pull without one"),
        ("printMsgByQueue -t Orders -a b0 -i 0", ExitCode.CLEAN, "", "12 messages were pulled"),
        ("printMsgByQueue -t Orders -i 0", ExitCode.USAGE, "", "needs -a"),
    ],
)
def test_what_makes_no_sense_is_said_as_mqadmin_says_it(
    line: str, code: ExitCode, printed: str, said: str, ask: Run
) -> None:
    ended, out, err = ask(line)

    assert (ended, out) == (code, printed)
    assert said in err


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("printMsg -t Orders", _COUNT + 11),
        ("printMsgByQueue -t Orders -a b0 -i 0 -s TagA", 4),
        ("consumeMessage -t Orders -c 3", 3),
    ],
)
def test_pulled_messages_are_json_for_scripts(line: str, count: int, ask: Run) -> None:
    rows = [json.loads(row) for row in ask(line, "--json")[1].splitlines()]

    assert [row["type"] for row in rows] == ["message"] * count


@pytest.mark.parametrize("line", ["printMsgByQueue -t Orders -a b0 -i 1 -p true", "consumeMessage -t Orders -c 30"])
def test_a_lake_gives_the_messages_of_its_store(line: str, store: Path, ask: Run, tmp_path: Path) -> None:
    write_messages(tmp_path / "lake", store, RELEASE)
    _, of_store, _ = ask(line)
    code, of_lake, _ = ask(line, place=tmp_path / "lake")

    shown = [[row for row in text.splitlines() if row.startswith("MSGID")] for text in (of_store, of_lake)]
    assert code == ExitCode.CLEAN
    assert shown[0] == shown[1] != []
