"""topicList, consumerProgress and getConsumerConfig: a live broker's answers and ours are the same text."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from jobs.lake.findings import QUEUES
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.trace import TRACE_TOPIC
from tests.oracle.answers import differing_answers, on_releases
from tests.oracle.sessions import ClientMessage, Consumption, RealBroker
from tests.oracle.stage import Asked, Line, Stage, StageBroker
from tests.support.lakes import ingest_store, rows_of
from tests.support.waiting import wait_until

_RELEASES = ("4.9.8", "5.0.0", "5.1.0", "5.1.4", "5.3.3", "5.5.0")
_RETRIES = "%RETRY%G"
_OFFSETS = {
    "Orders@G": {"0": 3, "1": 0},
    "OrdersLonger@G": {"0": 2},
    f"{_RETRIES}@G": {"0": 0},
    "Orders@Nobody": {"0": 1},
}


def _lines(stage: Stage) -> list[Line]:
    progress: Line = ("consumerProgress", "-g", "G")
    lines: list[Line] = [("topicList",), progress, (*progress, "-s", "true"), ("getConsumerConfig", "-g", "G")]
    lines += [("getConsumerConfig", "-g", "Nobody"), ("consumerProgress", "-g", "Nobody")]
    if stage.runs(since="5.0.0"):
        lines += [(*progress, "-t", "Orders"), (*progress, "-t", "Unread"), (*progress, "-t", "Missing")]
        lines += [("consumerProgress", "-g", "Nobody", "-t", "Orders")]
    if stage.runs(since="5.3.1"):
        for group in ("Nobody", "G"):
            cluster: Line = ("consumerProgress", "-g", group, "-c", "DefaultCluster")
            lines += [cluster, (*cluster, "-t", "Orders")]
    return lines


def _comparable(text: str, line: Line) -> str:
    return "\n".join(sorted(text.splitlines())) if line[0] == "topicList" else text


def _play(stage: Stage) -> None:
    with stage.broker() as broker:
        for topic, queues in (("Orders", 2), ("OrdersLonger", 1), ("Unread", 1), (_RETRIES, 1)):
            broker.make_topic(topic, queues=queues)
        broker.real.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "G", "-r", "3")
        for number in range(12):
            broker.send(f"message-{number}", ClientMessage(("Orders", "OrdersLonger")[number % 2], b"body", None, None))
            time.sleep(0.01)
    stage.end()
    config = stage.store_directory / "config"
    for path in config.glob("consumerOffset.json*"):
        path.unlink()
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": _OFFSETS}))
    with stage.broker() as broker:
        stage.ask(broker.real, _lines(stage))


@on_releases(*_RELEASES, in_every_run="4.9.8")
def test_a_brokers_tables_are_printed_as_a_live_broker_prints_them(
    version: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Columns, order and fields of the release; what mqadmin cannot answer is empty here, too."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        _play(stage)
    differing = differing_answers(stage, capfdbinary, comparable=_comparable)

    assert len(stage.asked) == len(_lines(stage))
    assert differing == []


_SETTINGS = {
    "compactionMappedFileSize": "16384",
    "compactionCqMappedFileSize": "460",
    "compactionScheduleInternal": "2000",
    "maxOffsetMapSize": "1048576",
}
_NEVER_AGAIN = {"compactionScheduleInternal": "3600000"}
_KEYS = tuple(f"key-{number}" for number in range(7))
_COUNT = 120
_POSITIONS = "compaction/position-checkpoint"


def _send(broker: StageBroker, numbers: range) -> None:
    messages = [ClientMessage("Comp", b"body" * 20, "TagA", _KEYS[number % len(_KEYS)]) for number in numbers]
    broker.real.send_each([*messages, ClientMessage("Orders", b"body", "TagA", "key-0")])


def _play_compacted(stage: Stage, *, is_killed: bool) -> None:
    with stage.broker(_SETTINGS) as broker:
        broker.make_topic("Comp", cleanup_policy="COMPACTION")
        broker.make_topic("Orders")
        _send(broker, range(_COUNT))
        wait_until((stage.store_directory / _POSITIONS).exists, lambda: "nothing was compacted")
        _send(broker, range(_COUNT, _COUNT + 10))
        broker.real.drain()
        if is_killed:
            stage.crash()


@on_releases("5.1.4", "5.3.3", "5.5.0", "5.5.1", in_every_run="5.5.0")
@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "killed"])
def test_copies_are_those_that_the_broker_serves(version: str, tmp_path: Path, *, is_killed: bool) -> None:
    """Each has its unit, and is the record of the log; a broker that starts again serves as many."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        _play_compacted(stage, is_killed=is_killed)
        verdict = verify(VerifyRequest(str(stage.store_directory)), OneByOne())
        with stage.broker(_SETTINGS | _NEVER_AGAIN) as broker:
            copies = len(broker.real.pull("Comp"))
    notes = verdict.parts[QUEUES].notes

    assert len(_KEYS) < copies < _COUNT
    assert [] == verdict.findings
    assert f"{copies} messages in compacted logs of 1 queue, {copies} compared with the log" in notes


_TRACED_RELEASES = ("4.9.3", "4.9.8", "5.0.0", "5.1.0", "5.1.4", "5.3.3", "5.5.0")
_SENT = ("Pub", "1700000000000", "region", "группа", "Orders", "{id}", "TagA", "null", "10.0.0.1:10911", "4", "7", "0")
_CONSUMED = ("SubAfter", "request", "{id}", "3", "true", "keys", "0", "1700000000001", "{group}")
_TAKEN = ("SubBefore", "1700000000000", "region", "group", "request", "{id}", "0", "null")
_ENDED = (*_SENT[:9], "2", "transaction", "COMMIT_MESSAGE", "false")
_RECALLED = ("Recall", "1700000000002", "region", "group", "Orders", "{id}", "true")
_ARABIC_DIGITS = "\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT SEVEN}" + "\N{ARABIC-INDIC DIGIT ZERO}" * 11
_TRACED = ("traced-producers", "G1 ", "G2 ", "success", "failed")
_KINDS = {"Pub": "Pub", "Sub": "SubAfter"}
# Groups of one bucket of mqadmin's map, of one hash, and ones that fill it.
_GROUPS = ("AaAa", "BBBB", "AaBB", "a", "q", "group-with-a-name-longer-than-its-column", *map(str, range(13)))


def _line(fields: tuple[str, ...], **values: str) -> str:
    return "\x01".join(fields).format(**{"group": "G", **values}) + "\x02"


def _crafted() -> dict[str, list[str]]:
    def about(name: str, *lines: tuple[str, ...]) -> str:
        return "".join(_line(line, id=name) for line in lines)

    offset_id = "7F00000100002A9F0000000000000000"
    bodies = {
        "sent-12": [about("sent-12", _SENT)],
        "sent-13": [about("sent-13", (*_SENT, "false"))],
        "sent-14": [about("sent-14", (*_SENT, offset_id, "TRUE"))],
        "sent-15": [about("sent-15", (*_SENT, offset_id, "tru", "10.9.9.9"))],
        "sent-20": [about("sent-20", (*_SENT, offset_id, "true", "10.9.9.9", *"abcde"))],
        "groups": ["".join(_line(_CONSUMED, id="groups", group=group) for group in _GROUPS) * 2],
        "all-kinds": [about("all-kinds", _TAKEN, _ENDED, _CONSUMED, _SENT)],
        "not-printed": [about("not-printed", _TAKEN, _ENDED)],
        "recalled": [about("recalled", _RECALLED, _SENT)],
        "unknown-kind": [about("unknown-kind", ("Other", "x"), _SENT), "\x02\x02" + about("unknown-kind", _SENT)],
        "no-line-end": [about("no-line-end", _SENT).rstrip("\x02")],
        "of-another": [about("another", _SENT)],
        "short": [about("short", _SENT[:11])],
        "empty-at-the-end": [about("empty-at-the-end", (*_TAKEN[:7], ""))],
        "empty-inside": [about("empty-inside", (*_SENT[:2], "", "", *_SENT[4:]))],
        "no-enum": [about("no-enum", (*_SENT[:11], "9"))],
        "no-state": [about("no-state", (*_ENDED[:11], "ENDED", "false"))],
        "signs": [about("signs", ("Pub", "+1700000000000", *_SENT[2:9], "-4", "-7", "0"))],
        "digits": [about("digits", ("Pub", _ARABIC_DIGITS, *_SENT[2:]))],
        "controls": [about("controls", (*_SENT[:3], "\x1b[31mred\x1b[0m", *_SENT[4:]))],
        "far": [about("far", ("Pub", "99999999999999", *_SENT[2:]))],
        "large": [about("large", _SENT) + about("other", (*_SENT[:6], "x" * 9000, *_SENT[7:]))],
    }
    wrong = {"letters": "7x", "blank": " 7", "too-much": str(1 << 31), "underscore": "1_0", "nothing": ""}
    bodies |= {name: [about(name, (*_SENT[:10], cost, *_SENT[11:]))] for name, cost in wrong.items()}
    times = {"long": str(1 << 63), "zeros": "0" * 5000 + "1700000000000"}
    return bodies | {name: [about(name, ("Pub", time, *_SENT[2:]))] for name, time in times.items()}


def _play_traced(stage: Stage) -> None:
    with stage.broker() as broker:
        for topic in ("Orders", TRACE_TOPIC):
            broker.make_topic(topic, queues=2)
        orders = [ClientMessage("Orders", b"body", "TagA", key) for key in ("k1 k2", "fails", None)]
        ids = broker.real.send_traced(orders)
        for group, failing in (("G1", ""), ("G2", "fails")):
            broker.real.consume(Consumption("Orders", group, 3, 5000, failing, is_traced=True))
        crafted = _crafted()
        for name, bodies in crafted.items():
            for number, body in enumerate(bodies):
                broker.send(f"{name}-{number}", ClientMessage(TRACE_TOPIC, body.encode(), None, f"{name} alias-{name}"))
        _await_traces(broker.real, ids)
        lines: list[Line] = [("queryMsgTraceById", "-i", name) for name in (*ids, *crafted, "missing", "alias-sent-12")]
        lines.append(("queryMsgTraceById", "-i", ids[0], "-t", TRACE_TOPIC))
        lines.append(("QUERYMSGTRACEBYID", "-i", ids[0], "-t", "Orders"))
        if stage.runs(since="5.1.1"):
            times: Line = ("queryMsgTraceById", "-i", ids[0], "-b", "0")
            lines += [times, (*times, "-e", "1"), (*times, "-c", "1"), ("queryMsgTraceById", "-i", "groups", "-c", "9")]
        stage.ask(broker.real, lines)


def _await_traces(broker: RealBroker, ids: list[str]) -> None:
    """Wait until what clients have reported on their own time can be queried."""

    def have_come() -> bool:
        printed = "".join(broker.mqadmin("queryMsgTraceById", "-i", name).stdout for name in ids)
        return all(word in printed for word in _TRACED)

    wait_until(have_come, lambda: f"traces of {_TRACED} did not come")


def _kinds_printed(asked: Iterable[Asked]) -> Counter[tuple[str, str]]:
    plain = [one for one in asked if len(one.arguments) == 3]
    words = ((one.arguments[2], line.partition(" ")[0]) for one in plain for line in one.printed.stdout.splitlines())
    return Counter((name, _KINDS[word]) for name, word in words if word in _KINDS)


@on_releases(*_TRACED_RELEASES, in_every_run="5.5.0")
def test_traces_are_printed_as_a_live_mqadmin_prints_them(
    version: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Columns, order of groups, and nothing where its decoder fails; real clients' traces are among them."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        _play_traced(stage)
    lake = tmp_path / "lake"
    ingest_store(stage.snapshot, lake, "b0", release=version)

    assert differing_answers(stage, capfdbinary) == []
    assert differing_answers(stage, capfdbinary, lake=lake) == []
    counted = _kinds_printed(stage.asked)
    rows = Counter((row["message_id"], row["kind"]) for row in rows_of(lake, "traces"))
    assert {key: rows[key] for key in counted} == counted
