"""Random mqadmin lines: a live broker's answers and ours are the same text."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.oracle.answers import differing_answers
from tests.oracle.sessions import ClientMessage
from tests.oracle.stage import Line, Stage, StageBroker

# `AaAa`, `BBBB`, `AaBB` have one hash in Java, and so have the topics, and a topic with a key after it.
_TOPICS: Final = ("Orders", "OrdersAa", "OrdersBB")
_KEYS: Final = ("AaAa", "BBBB", "AaBB", "k1", "k2", "键", "C#AaAa")
_TAGS: Final = (None, "TagA", "TagB", "AaAa", "BBBB", "тег")
_BODIES: Final = (b"plain", "正文 тело".encode(), "订单".encode("gbk"), bytes(range(256)), b"x" * 700)
_CHARSETS: Final = ("UTF-8", "GBK", "ISO-8859-1", "US-ASCII")
_EXPRESSIONS: Final = ("*", "TagA", "TagA || TagB", "AaAa||BBBB", "Nothing", "тег")
_STATIC: Final = "Static"
_MESSAGES: Final = 70


@dataclass
class Played:
    """What was sent, and when."""

    queues: dict[str, dict[int, int]] = field(default_factory=dict)  # topic: queue id: messages
    ids: list[tuple[str, str, str]] = field(default_factory=list)  # topic, unique key, offset id
    times: list[int] = field(default_factory=list)  # ms


def play(stage: Stage, broker: StageBroker, random: Random) -> Played:
    played = Played()
    for topic in _TOPICS:
        broker.make_topic(topic, queues=2)
    topics = list(_TOPICS)
    if stage.runs(since="5.0.0"):
        broker.real.mqadmin("updateStaticTopic", "-t", _STATIC, "-qn", "2", "-c", "DefaultCluster")
        topics.append(_STATIC)
    for number in range(_MESSAGES):
        topic = random.choice(topics)
        keys = " ".join(random.choices(_KEYS, k=random.randrange(4)))
        message = ClientMessage(topic, random.choice(_BODIES), random.choice(_TAGS), keys or None)
        played.times.append(time.time_ns() // 1_000_000)
        answer = broker.send(f"message-{number}", message)
        played.times.append(time.time_ns() // 1_000_000)
        if topic != _STATIC:
            queues = played.queues.setdefault(topic, {})
            queues[int(answer["queue"])] = int(answer["queue-offset"]) + 1
            played.ids.append((topic, answer["message-id"], answer["offset-message-id"]))
        if random.random() < 0.2:
            time.sleep(random.random() / 5)
    return played


def lines(stage: Stage, played: Played, random: Random, count: int) -> list[Line]:
    kinds = [_by_key, _by_unique_key, _by_id, _by_offset, _print_msg, _print_msg, _topic_status]
    kinds += [_print_by_queue, _print_by_queue]
    if stage.runs(since="4.3.2"):
        kinds += [_consume, _consume]
    if stage.runs(since="4.7.0"):
        kinds.append(_query_cq)
    return [tuple(random.choice(kinds)(stage, played, random)) for _ in range(count)]


def _by_key(stage: Stage, played: Played, random: Random) -> Iterator[str]:
    yield from ("queryMsgByKey", "-t", random.choice(_TOPICS), "-k", random.choice(_KEYS))
    if stage.runs(since="5.1.1") and random.random() < 0.4:
        begin, end = sorted(_times(played, random))
        yield from ("-b", str(begin), "-e", str(end))
    if stage.runs(since="5.1.1") and random.random() < 0.3:
        yield from ("-m" if stage.runs(since="5.3.1") else "-c", str(random.choice((1, 3, 64))))


def _by_unique_key(stage: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, unique_key, _ = random.choice(played.ids)
    yield from ("queryMsgByUniqueKey", "-t", topic, "-i", unique_key)
    if stage.runs(since="4.9.0") and random.random() < 0.5:
        yield "-a"


def _by_id(stage: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, _, offset_id = random.choice(played.ids)
    yield from ("queryMsgById", *(("-t", topic) if stage.runs(since="5.3.0") else ()), "-i", offset_id)


def _by_offset(stage: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, queue_id = _queue(played, random)
    offset = random.randrange(played.queues[topic][queue_id])
    yield from ("queryMsgByOffset", "-t", topic, "-b", "b0", "-i", str(queue_id), "-o", str(offset))
    if stage.runs(since="5.0.0") and random.random() < 0.5:
        yield from ("-f", random.choice(_CHARSETS))


def _print_msg(_: Stage, played: Played, random: Random) -> Iterator[str]:
    yield from ("printMsg", "-t", random.choice(_TOPICS), "-d", random.choice(("true", "false")))
    begin, end = sorted(_times(played, random))
    if random.random() < 0.7:
        yield from ("-b", _time(begin, random))
    if random.random() < 0.7:
        yield from ("-e", _time(end, random))
    if random.random() < 0.3:
        yield from ("-s", random.choice(_EXPRESSIONS))
    if random.random() < 0.3:
        yield from ("-c", random.choice(_CHARSETS))


def _print_by_queue(_: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, queue_id = _queue(played, random)
    yield from ("printMsgByQueue", "-t", topic, "-a", "b0", "-i", str(queue_id), "-f", "true")
    begin, end = sorted(_times(played, random))
    choices = (
        ("-p", random.choice(("true", "TRUE", "no"))),
        ("-d", "true"),
        ("-b", _time(begin, random)),
        ("-e", _time(end, random)),
        ("-s", random.choice(_EXPRESSIONS)),
        ("-c", random.choice(_CHARSETS)),
    )
    for option in choices:
        if random.random() < 0.4:
            yield from option


def _consume(_: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, queue_id = _queue(played, random)
    yield from ("consumeMessage", "-t", topic)
    if random.random() < 0.6:
        yield from ("-b", "b0", "-i", str(queue_id))
        if random.random() < 0.6:
            yield from ("-o", str(random.randrange(played.queues[topic][queue_id] + 3)))
    if random.random() < 0.6:
        yield from ("-c", str(random.choice((1, 2, 10, 11, 12, 33, 40, 500))))
    begin, end = (min(time, max(played.times)) for time in sorted(_times(played, random)))
    if random.random() < 0.3:
        yield from ("-s", _time(begin, random))
    if random.random() < 0.3:
        yield from ("-e", _time(end, random))


def _query_cq(_: Stage, played: Played, random: Random) -> Iterator[str]:
    topic, queue_id = _queue(played, random)
    first = random.randrange(played.queues[topic][queue_id])
    yield from ("queryCq", "-t", topic, "-q", str(queue_id), "-i", str(first), "-c", str(random.choice((1, 5, 30))))


def _topic_status(stage: Stage, _: Played, random: Random) -> Iterator[str]:
    yield from ("topicStatus", "-t", random.choice((*_TOPICS, _STATIC) if stage.runs(since="5.0.0") else _TOPICS))


def _queue(played: Played, random: Random) -> tuple[str, int]:
    topic = random.choice(sorted(played.queues))
    return topic, random.choice(sorted(played.queues[topic]))


def _times(played: Played, random: Random) -> tuple[int, int]:
    near = (-1, 0, 1, 7, 60)
    chosen = [random.choice(played.times) + random.choice(near) for _ in range(2)]
    far = random.choice((-100_000, 0, 0, 0, 0, 0, 0, 100_000))
    return chosen[0], chosen[1] + far


def _time(milliseconds: int, random: Random) -> str:
    if random.random() < 0.5:
        return str(milliseconds)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{milliseconds % 1000:03d}"


def stage_of(release: str, folder: Path, seed: int, count: int) -> Stage:
    """Let *release* store messages and mqadmin answer *count* lines about them; its processes are ended."""
    random = Random(seed)
    with Stage(release, folder / "store", folder / "scratch") as stage, stage.broker() as broker:
        played = play(stage, broker, random)
        asked: Sequence[Line] = lines(stage, played, random, count)
        stage.ask(broker.real, asked)
    return stage


_IN_EVERY_RUN = pytest.param("5.5.0", 25, marks=[pytest.mark.oracle, pytest.mark.slow])
_MANY = [
    pytest.param(release, 80, marks=pytest.mark.campaign) for release in ("4.5.2", "4.9.8", "5.1.0", "5.3.3", "5.5.0")
]
_SEED = 20


@pytest.mark.parametrize(("version", "count"), [_IN_EVERY_RUN, *_MANY])
def test_random_lines_are_answered_as_a_live_broker_answers_them(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], version: str, count: int
) -> None:
    """With times, limits, charsets and collisions; what differs would have to have a name here, and nothing has."""
    stage = stage_of(version, tmp_path, _SEED, count)

    assert len(stage.asked) == count
    assert differing_answers(stage, capfdbinary, bodies=tmp_path / "bodies") == []
