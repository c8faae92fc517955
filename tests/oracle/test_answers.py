"""The output of mqadmin about topics, groups, traces and messages equals ours."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from rmq_formats.trace import TRACE_TOPIC
from tests.oracle.releases import marks, on_releases
from tests.oracle.sessions import ClientMessage, Consumption, RealBroker, SendResult
from tests.oracle.stage import AnsweredLine, Line, Stage, find_different_answers
from tests.support.lakes import ingest_store, rows_of
from tests.support.waiting import wait_until

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


def _play(stage: Stage) -> None:
    with stage.broker() as broker:
        for topic, queues in (("Orders", 2), ("OrdersLonger", 1), ("Unread", 1), (_RETRIES, 1)):
            broker.make_topic(topic, queues=queues)
        broker.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "G", "-r", "3")
        for number in range(12):
            broker.send(
                ClientMessage(("Orders", "OrdersLonger")[number % 2], b"body", None, None), label=f"message-{number}"
            )
            time.sleep(0.01)
    stage.end()
    config = stage.store_directory / "config"
    for path in config.glob("consumerOffset.json*"):
        path.unlink()
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": _OFFSETS}))
    with stage.broker() as broker:
        stage.ask(broker, _lines(stage))


@on_releases("4.9.8", "5.0.0", "5.1.0", "5.1.4", "5.3.3", "5.5.0", in_every_run="4.9.8")
def test_tables_of_a_store_are_printed_as_by_a_live_broker(
    release: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Columns, order and fields are those of the release; the output is empty if that of mqadmin is."""
    with Stage(release, tmp_path / "store", tmp_path / "scratch") as stage:
        _play(stage)
    differing = find_different_answers(stage, capfdbinary)

    assert len(stage.answered_lines) == len(_lines(stage))
    assert differing == []


_SENT = ("Pub", "1700000000000", "region", "группа", "Orders", "{id}", "TagA", "null", "10.0.0.1:10911", "4", "7", "0")
_CONSUMED = ("SubAfter", "request", "{id}", "3", "true", "keys", "0", "1700000000001", "{group}")
_TAKEN = ("SubBefore", "1700000000000", "region", "group", "request", "{id}", "0", "null")
_ENDED = (*_SENT[:9], "2", "transaction", "COMMIT_MESSAGE", "false")
_RECALLED = ("Recall", "1700000000002", "region", "group", "Orders", "{id}", "true")
_ARABIC_DIGITS = "\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT SEVEN}" + "\N{ARABIC-INDIC DIGIT ZERO}" * 11
_TRACED = ("traced-producers", "G1 ", "G2 ", "success", "failed")
_KINDS = {"Pub": "Pub", "Sub": "SubAfter"}
# Groups in the same bucket of mqadmin's map, groups with the same hash, and groups that fill the map.
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
        ids = broker.send_traced(orders)
        for group, failing in (("G1", ""), ("G2", "fails")):
            broker.consume(Consumption("Orders", group, 3, 5000, failing, is_traced=True))
        crafted = _crafted()
        for name, bodies in crafted.items():
            for number, body in enumerate(bodies):
                broker.send(
                    ClientMessage(TRACE_TOPIC, body.encode(), None, f"{name} alias-{name}"), label=f"{name}-{number}"
                )

        def has_all_traces() -> bool:  # clients report traces asynchronously
            printed = "".join(broker.mqadmin("queryMsgTraceById", "-i", name).stdout for name in ids)
            return all(word in printed for word in _TRACED)

        wait_until(has_all_traces, lambda: f"traces of {_TRACED} did not come")
        lines: list[Line] = [("queryMsgTraceById", "-i", name) for name in (*ids, *crafted, "missing", "alias-sent-12")]
        lines.append(("queryMsgTraceById", "-i", ids[0], "-t", TRACE_TOPIC))
        lines.append(("QUERYMSGTRACEBYID", "-i", ids[0], "-t", "Orders"))
        if stage.runs(since="5.1.1"):
            times: Line = ("queryMsgTraceById", "-i", ids[0], "-b", "0")
            lines += [times, (*times, "-e", "1"), (*times, "-c", "1"), ("queryMsgTraceById", "-i", "groups", "-c", "9")]
        stage.ask(broker, lines)


def _kinds_printed(answered: Iterable[AnsweredLine]) -> Counter[tuple[str, str]]:
    plain = [one for one in answered if len(one.arguments) == 3]
    words = ((one.arguments[2], line.partition(" ")[0]) for one in plain for line in one.printed.stdout.splitlines())
    return Counter((name, _KINDS[word]) for name, word in words if word in _KINDS)


@on_releases("4.9.3", "4.9.8", "5.0.0", "5.1.0", "5.1.4", "5.3.3", "5.5.0", in_every_run="5.5.0")
def test_traces_are_printed_as_by_mqadmin(
    release: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Columns and order of groups are equal, and the output is empty if the decoder fails; some traces are real."""
    with Stage(release, tmp_path / "store", tmp_path / "scratch") as stage:
        _play_traced(stage)
    lake = tmp_path / "lake"
    ingest_store(stage.snapshot, lake, "b0", release=release)

    assert find_different_answers(stage, capfdbinary) == []
    assert find_different_answers(stage, capfdbinary, lake=lake) == []
    counted = _kinds_printed(stage.answered_lines)
    rows = Counter((row["message_id"], row["kind"]) for row in rows_of(lake, "traces"))

    assert {key: rows[key] for key in counted} == counted


# `AaAa`, `BBBB`, `AaBB` have the same hash in Java, and so have the topics, and each topic followed by a key.
_TOPICS: Final = ("Orders", "OrdersAa", "OrdersBB")
_KEYS: Final = ("AaAa", "BBBB", "AaBB", "k1", "k2", "键", "C#AaAa")
_TAGS: Final = (None, "TagA", "TagB", "AaAa", "BBBB", "тег")
_BODIES: Final = (b"plain", "正文 тело".encode(), "订单".encode("gbk"), bytes(range(256)), b"x" * 700)
_CHARSETS: Final = ("UTF-8", "GBK", "ISO-8859-1", "US-ASCII")
_EXPRESSIONS: Final = ("*", "TagA", "TagA || TagB", "AaAa||BBBB", "Nothing", "тег")
_STATIC: Final = "Static"
_MESSAGES: Final = 70


def play(stage: Stage, broker: RealBroker, random: Random) -> list[int]:
    """Send random messages, and return the times of sending, in milliseconds."""
    times = []
    for topic in _TOPICS:
        broker.make_topic(topic, queues=2)
    topics = list(_TOPICS)
    if stage.runs(since="5.0.0"):
        broker.mqadmin("updateStaticTopic", "-t", _STATIC, "-qn", "2", "-c", "DefaultCluster")
        topics.append(_STATIC)
    for number in range(_MESSAGES):
        topic = random.choice(topics)
        keys = " ".join(random.choices(_KEYS, k=random.randrange(4)))
        message = ClientMessage(topic, random.choice(_BODIES), random.choice(_TAGS), keys or None)
        times.append(time.time_ns() // 1_000_000)
        broker.send(message, label=f"message-{number}")
        times.append(time.time_ns() // 1_000_000)
        if random.random() < 0.2:
            time.sleep(random.random() / 5)
    return times


class RandomLine(NamedTuple):
    """Words of mqadmin, the options that some lines have, and the releases that accept them."""

    words: str
    options: tuple[str, ...] = ()
    since: str = "4.0.0"
    before: str = "9.0.0"


_PRINTED: Final = ("-b {begin}", "-e {end}", "-s {expression}", "-c {charset}")
_CONSUMED_LINE: Final = ("-c {count}", "-s {past_begin}", "-e {past_end}")
_LINES: Final = (
    RandomLine("queryMsgByKey -t {topic} -k {key}", before="5.1.1"),
    RandomLine("queryMsgByKey -t {topic} -k {key}", ("-b {begin_ms} -e {end_ms}", "-c {limit}"), "5.1.1", "5.3.1"),
    RandomLine("queryMsgByKey -t {topic} -k {key}", ("-b {begin_ms} -e {end_ms}", "-m {limit}"), "5.3.1"),
    RandomLine("queryMsgByUniqueKey -t {sent_topic} -i {unique_key}", before="4.9.0"),
    RandomLine("queryMsgByUniqueKey -t {sent_topic} -i {unique_key}", ("-a",), "4.9.0"),
    RandomLine("queryMsgById -i {offset_id}", before="5.3.0"),
    RandomLine("queryMsgById -t {sent_topic} -i {offset_id}", since="5.3.0"),
    RandomLine("queryMsgByOffset -t {queue_topic} -b b0 -i {queue} -o {offset}", before="5.0.0"),
    RandomLine("queryMsgByOffset -t {queue_topic} -b b0 -i {queue} -o {offset}", ("-f {charset}",), "5.0.0"),
    RandomLine("printMsg -t {topic} -d true", _PRINTED),
    RandomLine("printMsg -t {topic} -d false", _PRINTED),
    RandomLine("printMsgByQueue -t {queue_topic} -a b0 -i {queue} -f true", ("-p {flag}", *_PRINTED)),
    RandomLine("printMsgByQueue -t {queue_topic} -a b0 -i {queue} -f true -d true", ("-p {flag}", *_PRINTED)),
    RandomLine("consumeMessage -t {topic}", _CONSUMED_LINE, "4.3.2"),
    RandomLine("consumeMessage -t {queue_topic} -b b0 -i {queue}", ("-o {any_offset}", *_CONSUMED_LINE), "4.3.2"),
    RandomLine("queryCq -t {queue_topic} -q {queue} -i {offset} -c {limit}", since="4.7.0"),
    RandomLine("topicStatus -t {topic}"),
    RandomLine(f"topicStatus -t {_STATIC}", since="5.0.0"),
)


def lines(stage: Stage, broker: RealBroker, times: list[int], random: Random, count: int) -> list[Line]:
    known = [line for line in _LINES if stage.runs(since=line.since) and not stage.runs(since=line.before)]
    sent = [one for one in broker.sent.values() if one.topic != _STATIC]
    drawn: list[Line] = []
    for _ in range(count):
        line = random.choice(known)
        values = _draw_values(sent, times, random)
        options = [option for option in line.options if random.random() < 0.4]
        drawn.append(tuple(word.format(**values) for word in " ".join((line.words, *options)).split()))
    return drawn


def _draw_values(sent: list[SendResult], sent_at: list[int], random: Random) -> dict[str, str | int]:
    message = random.choice(sent)
    ends = {(one.topic, one.queue): int(one.queue_offset) + 1 for one in sent}
    (queue_topic, queue), messages = random.choice(sorted(ends.items()))
    times = [random.choice(sent_at) + random.choice((-1, 0, 1, 7, 60)) for _ in range(2)]
    begin, end = sorted((times[0], times[1] + random.choice((-100_000, 0, 0, 0, 0, 0, 0, 100_000))))
    newest = max(sent_at)
    return {
        "sent_topic": message.topic, "unique_key": message.message_id, "offset_id": message.offset_message_id,
        "queue_topic": queue_topic, "queue": queue, "offset": random.randrange(messages),
        "any_offset": random.randrange(messages + 3), "topic": random.choice(_TOPICS), "key": random.choice(_KEYS),
        "begin_ms": begin, "end_ms": end, "begin": _time(begin, random), "end": _time(end, random),
        "past_begin": _time(min(begin, newest), random), "past_end": _time(min(end, newest), random),
        "expression": random.choice(_EXPRESSIONS), "charset": random.choice(_CHARSETS),
        "flag": random.choice(("true", "TRUE", "no")), "limit": random.choice((1, 3, 30, 64)),
        "count": random.choice((1, 2, 10, 11, 12, 33, 40, 500)),
    }  # fmt: skip


def _time(milliseconds: int, random: Random) -> str:
    if random.random() < 0.5:
        return str(milliseconds)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{milliseconds % 1000:03d}"


@pytest.mark.parametrize(
    ("release", "count"),
    [
        pytest.param("5.5.0", 25, marks=marks(in_every_run=True)),
        *(
            pytest.param(one, 80, marks=marks(in_every_run=False))
            for one in ("4.5.2", "4.9.8", "5.1.0", "5.3.3", "5.5.0")
        ),
    ],
)
def test_random_queries_are_answered_as_by_a_live_broker(
    release: str, count: int, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    random = Random(20)
    with Stage(release, tmp_path / "store", tmp_path / "scratch") as stage, stage.broker() as broker:
        times = play(stage, broker, random)
        stage.ask(broker, lines(stage, broker, times, random, count))

    assert len(stage.answered_lines) == count
    assert find_different_answers(stage, capfdbinary, bodies=tmp_path / "bodies") == []
