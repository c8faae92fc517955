"""Random lives of messages at a real broker, and what those who sent and consumed them wrote down of each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from jobs.query.mqadmin.text import HALF_TOPIC
from jobs.query.transactions import OP_TOPIC
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.properties import KEYS, parse_properties
from rmq_formats.release import Release
from tests.oracle.judge import records
from tests.oracle.process import Answer
from tests.oracle.scenarios import SHORT_DELAYS
from tests.oracle.sessions import ClientMessage, Consumed, Consumption
from tests.oracle.stage import Stage, StageBroker
from tests.support.waiting import wait_until

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_LAST_LEVEL = 18  # two hours, while the others wait for a second
_TRACED = 4
_BATCH = 3


class Readers(NamedTuple):
    """A consumer group, how often it tries a message again, and whether it pops."""

    group: str
    attempts: int
    pops: bool = False


GROUPS = {"T1": Readers("g1", 1), "T2": Readers("g2", 2), "TP": Readers("poppers", 1, pops=True)}
_TOPICS = (*GROUPS, "T3")  # nobody reads the last one


@dataclass(slots=True)
class Note:
    """What is written down of a message: how it was sent, what its producer was told, where consumers saw it."""

    key: str
    way: str
    topic: str
    unique_key: str = ""
    offset_id: str | None = None
    place: tuple[int, int] | None = None  # queue and number in it
    fails: bool = False
    is_late: bool = False  # sent after consumers have left
    pulled: list[int] = field(default_factory=list)  # physical offsets, under its topic
    consumed: list[int] = field(default_factory=list)  # physical offsets that its group was given

    @property
    def is_seen(self) -> bool:
        """Whether consumers see the message before the broker ends."""
        return self.way not in {"far", "timed far", "rolled back", "open"}


class Lives:
    """The messages of one play: sent, half of them before the broker is killed, and consumed after it."""

    def __init__(self, stage: Stage, seed: int, count: int) -> None:
        self.notes: list[Note] = []
        self._stage = stage
        self._random = Random(seed)
        self._count = count
        self._asks_again = bool(seed % 2)  # the broker asks producers what became of open transactions
        self._has_timers = stage.runs(since="5.0.0")
        self._parser = Release.of(stage.release).property_parser
        self._topics = [topic for topic in _TOPICS if self._has_timers or topic != "TP"]

    def play(self) -> list[Note]:
        with self._opened() as broker:
            self._send(broker, self._count // 2)
            wait_until(self._are_ended, lambda: "transactions are not ended")
            self._stage.crash()
        self._stage.remove_empty_files()
        with self._opened() as broker:
            self._send(broker, self._count - self._count // 2 - len(self._topics))
            self._trace(broker)
            wait_until(lambda: not self._missing(), self._missing)
            wait_until(self._are_ended, lambda: "transactions are not ended")
            broker.real.drain()
            for topic in self._topics:
                self._note_rows(broker.real.pull(topic), "pulled")
            for topic, readers in GROUPS.items():
                if topic in self._topics:
                    self._consume(broker, topic, readers)
            for topic in self._topics:
                late = self._send_one(broker, topic, "sent")
                late.is_late = True
                self._note_rows(broker.real.pull(topic), "pulled", {late.key})
        return self.notes

    @contextmanager
    def _opened(self) -> Iterator[StageBroker]:
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

    def _send(self, broker: StageBroker, count: int) -> None:
        ways = ["sent", "batched", "delayed", "far", "committed", "rolled back"]
        ways.append("asked" if self._asks_again else "open")
        ways += ["timed", "timed far"] if self._has_timers else []
        goal = len(self.notes) + count
        while len(self.notes) < goal:
            topic, way = self._random.choice(self._topics), self._random.choice(ways)
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

    def _send_one(self, broker: StageBroker, topic: str, way: str) -> Note:
        note, message = self._new(topic, way)
        decision = {
            "committed": "COMMIT_MESSAGE",
            "rolled back": "ROLLBACK_MESSAGE",
            "asked": "UNKNOW",
            "open": "UNKNOW",
        }
        if way in decision:
            answer = broker.send_in_transaction(note.key, message, decision[way])
        else:
            answer = broker.send(note.key, message)
        self._note_answer([note], answer)
        return note

    def _send_batch(self, broker: StageBroker, topic: str) -> None:
        made = [self._new(topic, "batched") for _ in range(_BATCH)]
        self._note_answer([note for note, _ in made], broker.send_batch(made[0][0].key, [one for _, one in made]))

    def _trace(self, broker: StageBroker) -> None:
        made = [self._new("T3", "traced") for _ in range(_TRACED)]
        for (note, _), unique_key in zip(made, broker.real.send_traced([one for _, one in made]), strict=True):
            note.unique_key = unique_key

    @staticmethod
    def _note_answer(notes: list[Note], answer: Answer) -> None:
        assert answer["status"] == "SEND_OK"
        keys, offset_ids = answer["message-id"].split(","), (answer.get("offset-message-id") or "").split(",")
        for number, note in enumerate(notes):
            note.unique_key = keys[number]
            note.offset_id = (offset_ids[number] or None) if len(offset_ids) == len(notes) else None
            note.place = int(answer["queue"]), int(answer["queue-offset"]) + number

    # waiting

    def _are_ended(self) -> bool:
        """Return whether an op message is stored of the newest half message of each transaction that shall end."""
        log = records(self._stage.store_directory)
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
        """Return the keys of messages that are due and not under their topic, and the traces that have not come."""
        log = records(self._stage.store_directory)
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

    def _consume(self, broker: StageBroker, topic: str, readers: Readers) -> None:
        if readers.pops:
            whose = ("-b", broker.real.address, "-t", topic, "-g", readers.group)
            printed = broker.real.mqadmin("setConsumeMode", *whose, "-m", "POP", "-q", "0")
            assert "success" in printed.stdout, printed
        notes = [note for note in self.notes if note.topic == topic]
        rows = sum(len(note.pulled) * (1 + readers.attempts * note.fails) for note in notes)
        asked = Consumption(topic, readers.group, rows, 3000, "bad", attempts=readers.attempts, pops=readers.pops)
        self._note_rows(broker.real.consume(asked), "consumed")
        dead = 0 if readers.pops else sum(len(note.pulled) for note in notes if note.fails)
        wait_until(
            lambda: sum(one.topic == f"%DLQ%{readers.group}" for one in records(self._stage.store_directory)) >= dead,
            lambda: f"no dead letters of {readers}",
        )
