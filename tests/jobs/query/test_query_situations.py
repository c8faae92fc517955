"""Queries in stores of operators' situations: what the broker itself answered, or true words."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.query.mqadmin.arguments import parse
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release
from tests.golden import FOLDER, StoreOf
from tests.support.commands import Run
from tests.support.query_stores import Sent, stored, write_store

ROCKSDB = json.loads((FOLDER / "field-rocksonly-550.admin.json").read_text())


@pytest.mark.parametrize("is_read", [True, False], ids=["RocksDB", "the log alone"])
@pytest.mark.parametrize("line", ROCKSDB)
def test_queues_in_rocksdb_are_answered_as_the_real_mqadmin_did(  # noqa: PLR0913 - fixtures
    situation: StoreOf, tmp_path: Path, ask: Run, monkeypatch: pytest.MonkeyPatch, line: str, *, is_read: bool
) -> None:
    """`topicStatus` printed a header without rows, `printMsg` nothing, `queryCq` no units, all with exit code 0."""
    store = situation("field-rocksonly-550") / "store"
    if not is_read:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        store = Path(shutil.copytree(store, tmp_path / "store"))  # what was read of a database once is kept
    code, out, err = ask(store, line, "--release", "5.5.0", "--bodies", str(tmp_path))

    expected = ROCKSDB[line]["stdout"].replace("/tmp/rocketmq/msgbodys/", f"{tmp_path}/")
    assert out == expected.replace("WARN: No Consumer", "")
    assert code == ExitCode.CLEAN
    if is_read:
        assert "RocksDB" not in err
    else:
        assert ("those of the log" in err) == (line.split(maxsplit=1)[0] != "queryMsgByKey")


@pytest.mark.parametrize("line", ["topicStatus -t Empty", "printMsg -t Empty", "queryCq -t Empty -q 0 -i 0"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_topic_that_the_table_in_rocksdb_lacks_was_never_there_and_nobody_knows_without_it(
    situation: StoreOf, tmp_path: Path, ask: Run, line: str, *, is_damaged: bool
) -> None:
    store = situation("field-rocksonly-550") / "store"
    if is_damaged:
        store = Path(shutil.copytree(store, tmp_path / "store"))
        for folder in ("consumequeue", "config/topics"):
            next((store / folder).glob("MANIFEST-*")).unlink()
    code, out, err = ask(store, line)

    assert (code, out) == (ExitCode.NOT_FOUND, "")
    said = "whether there is such a topic is not known" if is_damaged else "no topic Empty was ever seen there"
    assert said in err


def test_a_topic_that_was_deleted_is_called_deleted(situation: StoreOf, ask: Run) -> None:
    store = situation("field-deleted-498") / "store"

    for line in ("topicStatus -t Gone", "printMsg -t Gone", "queryMsgByOffset -t Gone -b b0 -i 0 -o 0"):
        code, out, err = ask(store, line)

        assert (code, out) == (ExitCode.NOT_FOUND, "")
        assert "the topic Gone was deleted" in err
        assert "never seen" not in err
    code, out, _ = ask(store, "topicStatus -t Gone", "--through-log")
    assert code == ExitCode.CLEAN
    assert len(out.splitlines()) > 1
    assert "was ever seen" in ask(store, "topicStatus -t Goner")[2]


def test_messages_that_a_promotion_took_back_are_not_answered(situation: StoreOf, ask: Run) -> None:
    """Two units at the end of a queue point at stale records: the broker gives 41 and 36 for the ends."""
    place = situation("b551-controller-failover")
    broker = json.loads((place / "EXPECT.json").read_text())["oldMasterAfterReturn"]["queues"]
    store = place / "store"

    rows = {
        (row[1], row[2], row[3]) for row in map(str.split, ask(store, "topicStatus -t Orders")[1].splitlines()[1:3])
    }
    assert rows == {(name[-1], str(queue["min"]), str(queue["max"])) for name, queue in broker.items()}
    for number in (36, 37):
        code, out, err = ask(store, f"queryMsgByOffset -t Orders -b b0 -i 1 -o {number}")
        assert (code, out) == (ExitCode.NOT_FOUND, "")
        assert "taken back" in err
    assert ask(store, "queryMsgByOffset -t Orders -b b0 -i 1 -o 35")[0] == ExitCode.CLEAN


def test_an_offset_after_the_end_of_a_log_that_was_cut_back_names_no_message(situation: StoreOf, ask: Run) -> None:
    """The stale bytes there are a complete record that states its own offset."""
    place = situation("b551-controller-failover")
    taken_back = json.loads((place / "EXPECT.json").read_text())["unreplicated"]
    store = place / "store"

    assert taken_back
    for message in taken_back:
        # Where such a message was, one of the new master may be now.
        _, out, _ = ask(store, f"queryMsgById -t Orders -i {message['offset-message-id']}", "--any-host")
        assert message["message-id"] not in out
        code, out, _ = ask(store, f"queryMsgByUniqueKey -t Orders -i {message['message-id']}")
        assert (code, out) == (ExitCode.NOT_FOUND, "")


@pytest.fixture
def colliding(tmp_path: Path) -> Path:
    """Write a store whose keys, and topics, have the same hash: `AaAa`, `BBBB`, `AaBB`."""
    messages = [
        *(Sent(keys=("AaAa", "BBBB"), unique_key=f"both{n}") for n in range(5)),
        *(Sent(keys=("AaAa",), unique_key=f"one{n}") for n in range(7)),
        *(Sent(keys=("BBBB",), unique_key=f"other{n}") for n in range(4)),
        *(Sent(topic="OrdersAa", keys=("AaAa",), unique_key=f"a{n}") for n in range(3)),
        *(Sent(topic="OrdersBB", keys=("AaAa",), unique_key=f"b{n}") for n in range(6)),
    ]
    return write_store(tmp_path / "store", stored(messages), release=Release.of("4.9.2"), geometry=Geometry(50, 300))


@pytest.mark.parametrize(
    ("release", "topic", "rows"),
    [("4.9.2", "Orders", 17), ("5.5.1", "Orders", 17), ("4.9.2", "OrdersAa", 9), ("4.9.3", "OrdersAa", 3)],
)
def test_colliding_keys_are_answered_as_the_client_of_the_release_answers_them(
    ask: Run, colliding: Path, release: str, topic: str, rows: int
) -> None:
    """A message whose two keys collide comes twice, and up to 4.9.2 messages of a topic that collides come, too."""
    options = ("--release", release, "--hash-slots", "50", "--index-num", "300")
    code, out, _ = ask(colliding, f"queryMsgByKey -t {topic} -k AaAa", *options)

    assert code == ExitCode.CLEAN
    assert len(out.splitlines()) - 1 == rows


def test_a_query_of_our_own_gives_each_message_once(run: Run, colliding: Path) -> None:
    place = ("--store", colliding, "--release", "4.9.2", "--hash-slots", "50", "--index-num", "300")
    shown = run("query", "by-key", "-t", "Orders", "-k", "AaAa", *place).out

    assert len(shown.splitlines()) - 1 == 12


@pytest.mark.parametrize(
    "line",
    [
        "mqadmin topicStatus -t T",
        "sh mqadmin topicStatus -t T",
        "bin/mqadmin topicStatus -t T",
        "sh bin/mqadmin topicStatus -t T",
        "bash ./mqadmin topicStatus -t T",
        "/opt/rocketmq/bin/mqadmin topicStatus -t T",
        r"'bin\mqadmin.cmd' topicStatus -t T",
    ],
)
def test_a_line_is_taken_as_it_was_pasted(line: str) -> None:
    assert parse(shlex.split(line), Release.of("5.5.1")).command == "topicStatus"


# As RocketMQ 5.1.1 wrote it: keys that are numbers have no quotes.
_MAPPING = """{"topicQueueMappingInfoMap":{"Orders":{"bname":"b0","hostedQueues":{0:[
{"bname":"b0","endOffset":-1,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0}
],1:[{"bname":"b1","endOffset":5,"gen":0,"logicOffset":0,"queueId":3,"startOffset":0},
{"bname":"b0","endOffset":-1,"gen":1,"logicOffset":5,"queueId":1,"startOffset":0}]
},"scope":"__global__","topic":"Orders","totalQueues":2}}}"""


def test_a_static_topic_has_rows_of_its_own_queues(tmp_path: Path, ask: Run) -> None:
    """Mqadmin shows them under `__syslo__global__`; a queue that another broker has the beginning of is left out."""
    store = write_store(tmp_path / "store", stored([Sent(queue_id=number % 2) for number in range(9)]))
    (store / "config").mkdir()
    (store / "config" / "topicQueueMapping.json").write_text(_MAPPING)

    code, out, err = ask(store, "topicStatus -t Orders", "--release", "5.1.1")

    assert code == ExitCode.CLEAN
    assert [row[:4] for row in map(str.split, out.splitlines()[1:])] == [
        ["__syslo__global__", "0", "0", "5"],
        ["b0", "0", "0", "5"],
        ["b0", "1", "0", "4"],
    ]
    assert "queue 1 of Orders is in part on another broker" in err
