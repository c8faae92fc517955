"""Histories of messages with random lives, from a store and from its lake, compared with the driver's own log."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from jobs.query import story as timeline
from jobs.query.mqadmin import HALF_TOPIC
from jobs.query.reasons import OP_TOPIC
from jobs.query.source import PointerCheck, Source
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.query.story import ConsumptionState as ConsumedFact
from jobs.query.story import Role, Story
from jobs.store.store import list_store
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import KEYS, parse_properties
from rmq_formats.release import Release
from rmq_formats.trace import TRACE_TOPIC
from tests.oracle.judge import read_log
from tests.oracle.process import Answer
from tests.oracle.scenarios import SHORT_DELAYS
from tests.oracle.sessions import ClientMessage, Consumed, Consumption, RealBroker
from tests.oracle.stage import Stage
from tests.support.lakes import ingest_store
from tests.support.query_stores import open_lake
from tests.support.waiting import wait_until

_LAST_LEVEL = 18  # two hours; other messages wait for a second
_TRACED = 4
_BATCH = 3


class ConsumerGroup(NamedTuple):
    """A consumer group, its number of retries, and whether it uses pop."""

    group: str
    attempts: int
    pops: bool = False


GROUPS = {"T1": ConsumerGroup("g1", 1), "T2": ConsumerGroup("g2", 2), "TP": ConsumerGroup("poppers", 1, pops=True)}
_TOPICS = (*GROUPS, "T3")  # no group consumes the last one


@dataclass(slots=True)
class Note:
    """The record of a message: how it was sent, the producer's result, and its deliveries to consumers."""

    key: str
    way: str
    topic: str
    unique_key: str = ""
    offset_id: str | None = None
    place: tuple[int, int] | None = None  # queue id and queue offset
    fails: bool = False
    is_late: bool = False  # sent after consumers have stopped
    pulled: list[int] = field(default_factory=list)  # physical offsets, under its topic
    consumed: list[int] = field(default_factory=list)  # physical offsets of deliveries to its group

    @property
    def is_seen(self) -> bool:
        """Whether consumers receive the message before the broker stops."""
        return self.way not in {"far", "timed far", "rolled back", "open"}


class MessageDriver:
    """Sends messages, half of them before the broker is killed, and consumes them afterwards."""

    def __init__(self, stage: Stage, seed: int, count: int) -> None:
        self.notes: list[Note] = []
        self._stage = stage
        self._random = Random(seed)
        self._count = count
        self._asks_again = bool(seed % 2)  # the broker checks pending transactions
        self._has_timers = stage.runs(since="5.0.0")
        self._parser = Release.from_version(stage.release).property_parser
        self._topics = [topic for topic in _TOPICS if self._has_timers or topic != "TP"]

    def play(self) -> list[Note]:
        with self._open_broker() as broker:
            self._send(broker, self._count // 2)
            wait_until(self._are_ended, lambda: "transactions are not ended")
            self._stage.crash()
        self._stage.remove_empty_files()
        with self._open_broker() as broker:
            self._send(broker, self._count - self._count // 2 - len(self._topics))
            self._trace(broker)
            wait_until(lambda: not self._missing(), self._missing)
            wait_until(self._are_ended, lambda: "transactions are not ended")
            broker.drain()
            for topic in self._topics:
                self._note_rows(broker.pull(topic), "pulled")
            for topic, readers in GROUPS.items():
                if topic in self._topics:
                    self._consume(broker, topic, readers)
            for topic in self._topics:
                late = self._send_one(broker, topic, "sent")
                late.is_late = True
                self._note_rows(broker.pull(topic), "pulled", {late.key})
        return self.notes

    @contextmanager
    def _open_broker(self) -> Iterator[RealBroker]:
        asking = "1000" if self._asks_again else "100000000"
        settings = {
            "messageDelayLevel": SHORT_DELAYS,
            "timerWheelEnable": str(self._has_timers).lower(),
            "broker.transactionTimeOut": "1000",
            "broker.transactionCheckInterval": asking,
            **self._stage.thorough_recovery,
        }
        settings |= {"broker.transactionOpBatchInterval": "100"} if self._stage.runs(since="5.1.0") else {}
        with self._stage.broker(settings) as broker:
            for topic in self._topics:
                broker.make_topic(topic, queues=2)
            broker.make_topic(TRACE_TOPIC)
            yield broker

    # sending

    def _send(self, broker: RealBroker, count: int) -> None:
        ways = ["sent", "batched", "delayed", "far", "committed", "rolled back"]
        ways.append("asked" if self._asks_again else "open")
        ways += ["timed", "timed far"] if self._has_timers else []
        goal = len(self.notes) + count
        while len(self.notes) < goal:
            topic = self._random.choice(self._topics)
            way = self._random.choice(ways)
            if way == "batched" and goal - len(self.notes) >= _BATCH:
                self._send_batch(broker, topic)
            else:
                self._send_one(broker, topic, "sent" if way == "batched" else way)

    def _new(self, topic: str, way: str) -> tuple[Note, ClientMessage]:
        number = len(self.notes)
        fails = topic in GROUPS and self._random.random() < 0.2
        note = Note(f"{'bad' if fails else 'm'}{number}", way, topic, fails=fails)
        self.notes.append(note)
        body = self._random.randbytes(self._random.randrange(600)) or b"-"
        if self._random.random() < 0.1:
            body = b"compressed " * self._random.randrange(100, 300)
        tags = self._random.choice((None, "TagA", "TagB", "тег"))
        shared = self._random.choice(("", " all", f" order{number % 7}", " all  all"))
        properties = {"timed": {"TIMER_DELAY_MS": str(self._random.randrange(1, 3000))},
                      "timed far": {"TIMER_DELAY_SEC": "3600"}}.get(way, {})  # fmt: skip
        level = {"delayed": self._random.randrange(1, _LAST_LEVEL), "far": _LAST_LEVEL}.get(way)
        return note, ClientMessage(topic, body, tags, note.key + shared, level, properties=properties)

    def _send_one(self, broker: RealBroker, topic: str, way: str) -> Note:
        note, message = self._new(topic, way)
        decision = {
            "committed": "COMMIT_MESSAGE",
            "rolled back": "ROLLBACK_MESSAGE",
            "asked": "UNKNOW",
            "open": "UNKNOW",
        }
        if way in decision:
            answer = broker.send_in_transaction(message, decision[way], label=note.key)
        else:
            answer = broker.send(message, label=note.key)
        self._note_answer([note], answer)
        return note

    def _send_batch(self, broker: RealBroker, topic: str) -> None:
        made = [self._new(topic, "batched") for _ in range(_BATCH)]
        self._note_answer([note for note, _ in made], broker.send_batch([one for _, one in made], label=made[0][0].key))

    def _trace(self, broker: RealBroker) -> None:
        made = [self._new("T3", "traced") for _ in range(_TRACED)]
        for (note, _), unique_key in zip(made, broker.send_traced([one for _, one in made]), strict=True):
            note.unique_key = unique_key

    @staticmethod
    def _note_answer(notes: list[Note], answer: Answer) -> None:
        assert answer["status"] == "SEND_OK"
        keys = answer["message-id"].split(",")
        offset_ids = (answer.get("offset-message-id") or "").split(",")
        for number, note in enumerate(notes):
            note.unique_key = keys[number]
            note.offset_id = (offset_ids[number] or None) if len(offset_ids) == len(notes) else None
            note.place = int(answer["queue"]), int(answer["queue-offset"]) + number

    # waiting

    def _are_ended(self) -> bool:
        """Return whether the newest half message of each transaction that must end has an op message."""
        log = read_log(self._stage.store_directory)
        ended = {
            (record.queue_id, number)
            for record in log if record.topic == OP_TOPIC for number in record.body.decode().split(",")
        }  # fmt: skip
        halves = {
            self._keys(record)[0]: (record.queue_id, str(record.queue_offset))
            for record in log if record.topic == HALF_TOPIC
        }  # fmt: skip
        transactions = [note.key for note in self.notes if note.way in {"committed", "rolled back", "asked"}]
        return all(halves.get(key) in ended for key in transactions)

    def _keys(self, record: MessageRecord) -> list[str]:
        return parse_properties(record.properties_raw, self._parser).get(KEYS, "").split()

    def _missing(self) -> set[str]:
        """Return the keys of due messages that are not in their topic yet, and of missing traces."""
        log = read_log(self._stage.store_directory)
        found = {(record.topic, key) for record in log for key in self._keys(record)[:1]}
        traced = {key for record in log if record.topic == TRACE_TOPIC for key in self._keys(record)}
        missing = {note.key for note in self.notes if note.is_seen and (note.topic, note.key) not in found}
        return missing | {note.key for note in self.notes if note.way == "traced" and note.unique_key not in traced}

    # consuming

    def _note_rows(self, rows: list[Consumed], name: str, keys: set[str] | None = None) -> None:
        notes = {note.key: note for note in self.notes}
        for row in rows:
            key = row.keys.split()[0]
            if keys is None or key in keys:
                getattr(notes[key], name).append(row.physical_offset)

    def _consume(self, broker: RealBroker, topic: str, readers: ConsumerGroup) -> None:
        if readers.pops:
            whose = ("-b", broker.address, "-t", topic, "-g", readers.group)
            printed = broker.mqadmin("setConsumeMode", *whose, "-m", "POP", "-q", "0")
            assert "success" in printed.stdout, printed
        notes = [note for note in self.notes if note.topic == topic]
        rows = sum(len(note.pulled) * (1 + readers.attempts * note.fails) for note in notes)
        asked = Consumption(topic, readers.group, rows, 3000, "bad", attempts=readers.attempts, pops=readers.pops)
        self._note_rows(broker.consume(asked), "consumed")
        dead = 0 if readers.pops else sum(len(note.pulled) for note in notes if note.fails)
        wait_until(
            lambda: sum(one.topic == f"%DLQ%{readers.group}" for one in read_log(self._stage.store_directory)) >= dead,
            lambda: f"no dead letters of {readers}",
        )


_FIRST = {
    **dict.fromkeys(("delayed", "far"), (Role.DELAYED, Role.DELIVERED)),
    **dict.fromkeys(("timed", "timed far"), (Role.TIMED, Role.DELIVERED)),
    **dict.fromkeys(("committed", "rolled back", "asked", "open"), (Role.HALF, Role.COMMITTED)),
}
_RELEASES = ("4.7.1", "4.9.8", "5.1.4", "5.3.3", "5.5.0")


def _find_differences(note: Note, story: Story) -> Iterator[str]:
    copies = [copy for copy in story.copies if copy.role is not Role.RETRY_WAITING]
    first = story.copies[0]
    expected = _roles(note)
    record = first.message.record
    if note.offset_id not in {None, first.message.offset_id} or first.role is not next(iter(expected)):
        yield f"{first.role} first, at {first.message.offset_id}"
    if first.role is Role.SENT and note.place not in {None, (record.queue_id, record.queue_offset)}:
        yield f"first is in queue {record.queue_id}, {record.queue_offset}"
    roles = Counter(copy.role for copy in copies)
    roles[Role.HALF] = min(roles[Role.HALF], 1)  # the half message is rewritten for each check
    if roles != expected:
        yield f"{roles}, not {expected}"
    seen = [copy.message.record.physical_offset for copy in copies if copy.message.topic == note.topic]
    if seen != sorted(note.pulled):
        yield f"in its topic at {seen}"
    retried = [copy.message.record.physical_offset for copy in copies if copy.role is Role.RETRIED]
    if retried != sorted(set(note.consumed) - set(note.pulled)):
        yield f"retried at {retried}"
    tries = 0 if note.topic not in GROUPS else GROUPS[note.topic].attempts + 1
    yield from (
        one.text for one in copies if one.role is Role.DEAD_LETTER and f" after {tries} attempts," not in one.text
    )
    if story.state != _expected_state(note):
        yield f"state is '{story.state}', not '{_expected_state(note)}'"
    traces = [(trace.client_group, trace.is_success) for trace, _, _ in story.reports]
    if traces != [("traced-producers", True)] * (note.way == "traced"):
        yield f"traces {traces}"


def _find_other_differences(note: Note, story: Story) -> Iterator[str]:
    """Yield each unit, key and consumer group of the copies that differs from the note."""
    for copy in story.copies:
        yield from (f"{fact}" for fact in copy.queues if fact.check is not PointerCheck.LEADS_THERE)
        yield from (f"{fact}" for fact in copy.keys if fact.check is not PointerCheck.LEADS_THERE)
        if copy.message.topic == note.topic in GROUPS:
            is_consumed = copy.message.record.physical_offset in note.consumed
            expected = [(GROUPS[note.topic].group, ConsumedFact.CONSUMED if is_consumed else ConsumedFact.NOT_YET)]
            told = [(fact.group, fact.state) for fact in copy.groups]
            if told != expected:
                yield f"{told}, not {expected}"


def _roles(note: Note) -> Counter[Role]:
    """Return the number of copies by role, without copies that wait for a retry."""
    begun, moved = _FIRST.get(note.way, (Role.SENT, Role.SENT_AGAIN))
    dead = len(note.pulled) if _is_dead(note) else 0
    retried = len(set(note.consumed) - set(note.pulled))
    seen = len(note.pulled) - (begun is Role.SENT)
    return +Counter({begun: 1, moved: seen, Role.RETRIED: retried, Role.DEAD_LETTER: dead})


def _is_dead(note: Note) -> bool:
    return note.fails and bool(note.consumed) and not GROUPS[note.topic].pops


def _expected_state(note: Note) -> str:
    if _is_dead(note):
        return f"dead letter of {GROUPS[note.topic].group}"
    if not note.pulled:
        ended = {"rolled back": "rolled back", "open": "neither committed nor rolled back yet"}
        return ended.get(note.way, "waiting for its delivery time")
    begun, moved = _FIRST.get(note.way, (Role.SENT, Role.SENT))
    role = begun if begun is Role.SENT else moved
    if note.topic not in GROUPS:
        return f"{role}; no consumer group has an offset in its queue"
    role = Role.RETRIED if note.fails and note.consumed else role
    return f"{role}, {'not yet' if note.is_late else 'consumed'} by {GROUPS[note.topic].group}"


def _read_story(source: Source, note: Note) -> Story:
    """Read a story by the id of the producer's result; in lakes, messages of a batch may have another id."""
    for named in (note.unique_key, note.offset_id):
        for story in timeline.find_stories(
            source, timeline.find_copies_by_id(source, named or "", note.topic).messages
        ):
            return story
    raise AssertionError(note)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("version", "seed", "count"),
    [pytest.param("5.5.0", 1, 50, marks=pytest.mark.campaign)]
    + [pytest.param(release, 2 + number, 200, marks=pytest.mark.campaign) for number, release in enumerate(_RELEASES)],
)
def test_each_story_equals_the_notes_of_its_driver(version: str, seed: int, count: int, tmp_path: Path) -> None:
    """Normal, batched, delayed, timed, transactional, retried, popped, dead and traced messages, half before a kill."""
    with Stage(version, tmp_path / "store", tmp_path / "scratch") as stage:
        notes = MessageDriver(stage, seed, count).play()
    release = Release.from_version(version)
    lake = str(tmp_path / "lake")
    ingest_store(tmp_path / "store", lake)
    surprises = []
    with StoreReader(list_store(str(tmp_path / "store"))) as reader:
        places: dict[str, Source] = {"store": StoreSource(reader, release), "lake": open_lake(lake, release)}
        for note in notes:
            for place, source in places.items():
                story = _read_story(source, note)
                found = (*_find_differences(note, story), *_find_other_differences(note, story))
                surprises += [f"{place}: {note}: {text}" for text in found]

    assert surprises == []
