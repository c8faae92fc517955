"""
The interface between tests and a real store or broker.

Both leave the store as written by RocketMQ. Their `with` block closes them cleanly, unless the driver was killed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord
from tests.oracle.process import AT_FULL_SPEED, Answer, DriverError, DriverProcess, Value, run_driver
from tests.oracle.releases import OPTIONAL_SETTINGS, PATIENCE, REAL_GEOMETRY, SMALL_GEOMETRY, Geometry, store_settings
from tests.support.waiting import free_port


class StoreRefusedError(Exception):
    """A release refuses to start with a store."""


class Stored(NamedTuple):
    """The location of a stored message; with another status than PUT_OK, it was refused."""

    status: str
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_timestamp: int = 0


class Consumed(NamedTuple):
    """A message, as received by a consumer."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    keys: str


class MqadminOutput(NamedTuple):
    """The output of mqadmin."""

    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class DirectMessage:
    """A message for the store's internal interface: each field as it is stored, with properties as text."""

    topic: str
    queue_id: int = 0
    body: bytes | None = b"body"
    properties: str | None = ""
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    born_host: str = "10.1.2.3"
    store_host: str = "127.0.0.1"
    store_timestamp: int | None = None
    """None: the current time."""


def endless_messages(life: str) -> Iterator[DirectMessage]:
    """Yield endless messages for three topics with two queues, each with a unique key and a common one."""
    for number in count():
        properties = f"UNIQ_KEY\1{life}-{number}\2KEYS\1k{number} all\2TAGS\1Tag{number % 3}\2"
        yield DirectMessage(f"K{number % 3}", number % 2, bytes(300 + number % 7), properties)


@dataclass(frozen=True, slots=True)
class Consumption:
    """A consumer group's task: it ends some time after *at_least* messages, and fails for keys with a prefix."""

    topic: str
    group: str
    at_least: int
    milliseconds: int = 1000
    failing_keys: str = ""
    is_traced: bool = False
    attempts: int = 1
    pops: bool = False


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message of an application."""

    topic: str
    body: bytes = b"body"
    tags: str | None = None
    keys: str | None = None
    delay_level: int | None = None
    flag: int = 0
    waits_for_store: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)


def request_fields(message: DirectMessage | ClientMessage | Consumption) -> dict[str, Value]:
    """Return the fields as a request names them; the name of a mapping is the prefix of its keys."""
    found: dict[str, Value] = {}
    for name, value in asdict(message).items():
        key = name.replace("_", "-")
        found |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    return found


def fields_of_each(messages: Iterable[ClientMessage]) -> dict[str, Value]:
    return {f"{at}.{name}": value for at, one in enumerate(messages) for name, value in request_fields(one).items()}


class SendResult(NamedTuple):
    """The result of a send, as texts for mqadmin."""

    topic: str
    queue: str
    queue_offset: str
    message_id: str
    offset_message_id: str


class RealStore:
    """A running DefaultMessageStore."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        self.note: Callable[[str], None] = lambda _: None
        self.next_offset = 0

    def put(self, message: DirectMessage, label: str = "") -> Stored:
        return self._note_stored(label, self.driver.ask("put", request_fields(message)))

    def put_each(self, messages: Iterable[DirectMessage]) -> Iterator[Stored]:
        return map(_stored, self.driver.ask_each("put", map(request_fields, messages)))

    def put_all(self, messages: Iterable[DirectMessage], label: str = "") -> list[Stored]:
        answers = self.driver.ask_each("put", map(request_fields, messages))
        stored = [self._note_stored(f"{label}-{number}", answer) for number, answer in enumerate(answers)]
        assert {message.status for message in stored} <= {"PUT_OK"}
        return stored

    def put_batch(self, envelope: DirectMessage, messages: Iterable[ClientMessage]) -> Stored:
        values = request_fields(envelope) | {"body": None}
        return _stored(self.driver.ask("put-batch", values | fields_of_each(messages)))

    def _note_stored(self, label: str, answer: Answer) -> Stored:
        stored = _stored(answer)
        self.note(
            f"PUT {label} {stored.status} offset={stored.physical_offset} bytes={stored.size}"
            f" logicOffset={stored.queue_offset} storeTime={stored.store_timestamp}"
        )
        if stored.size:
            self.next_offset = stored.physical_offset + stored.size
        return stored

    def find_offsets(
        self, topic: str, key: str, *, begin: int = -(1 << 63), end: int = (1 << 63) - 1, limit: int = 64
    ) -> list[int]:
        answer = self.driver.ask(
            "find-offsets", {"topic": topic, "key": key, "begin": begin, "end": end, "limit": limit}
        )
        return [int(offset) for offset in answer["offsets"].split()]

    def list_not_found(self, log: Iterable[MessageRecord]) -> list[int]:
        """Return the offsets of records that a lookup of their unique key, their first property, does not find."""
        missing = []
        for record in log:
            name, _, key = record.properties_raw.partition(b"\2")[0].partition(b"\1")
            is_asked = name == b"UNIQ_KEY" and transaction_type(record.sys_flag) is not TransactionType.ROLLBACK
            if is_asked and record.physical_offset not in self.find_offsets(record.topic, key.decode()):
                missing.append(record.physical_offset)
        return missing

    def read_queue(self, topic: str, queue_id: int) -> list[tuple[int, int]]:
        rows = self.driver.ask("read", {"topic": topic, "queue": queue_id})["rows"].splitlines()
        return [(int(queue_offset), int(offset)) for queue_offset, offset in map(str.split, rows)]

    def queue_edges(self, topic: str, queue_id: int) -> tuple[int, int]:
        answer = self.driver.ask("edges", {"topic": topic, "queue": queue_id})
        return int(answer["min"]), int(answer["max"])

    def log_end(self) -> int:
        return int(self.driver.ask("log-end")["offset"])

    def drain(self) -> float:
        return int(self.driver.ask("drain")["drain-ns"]) / 1e9

    def expire(self) -> None:
        self.driver.ask("expire")


class RealBroker(RealStore):
    """A name server, a broker and their clients."""

    def __init__(self, driver: DriverProcess, name_server: str, port: int) -> None:
        super().__init__(driver)
        self.name_server = name_server
        self.address = f"127.0.0.1:{port}"
        self.sent: dict[str, SendResult] = {}  # by label
        self.batch_topics = set[str]()

    def make_topic(self, name: str, queues: int = 1, **attributes: str) -> None:
        """Create a topic like mqadmin updateTopic; `queue_type="BatchCQ"` sets the attribute queue.type."""
        attribute_fields = {
            f"attribute.{attribute.replace('_', '.')}": value for attribute, value in attributes.items()
        }
        self.driver.ask("topic", {"name": name, "queues": queues, **attribute_fields})
        if attributes.get("queue_type") == "BatchCQ":
            self.batch_topics.add(name)

    def send(
        self, message: ClientMessage, producer: str = "producers", compression: str | None = None, *, label: str = ""
    ) -> Answer:
        fields = request_fields(message) | {"producer": producer, "compression": compression}
        return self._note_sent(label, message.topic, self.driver.ask("send", fields))

    def send_each(self, messages: Iterable[ClientMessage]) -> list[Answer]:
        return list(self.driver.ask_each("send", map(request_fields, messages)))

    def send_batch(self, messages: Sequence[ClientMessage], label: str = "") -> Answer:
        answer = self.driver.ask("send-batch", fields_of_each(messages))
        return self._note_sent(label, messages[0].topic, answer)

    def send_in_transaction(self, message: ClientMessage, decision: str, label: str = "") -> Answer:
        answer = self.driver.ask("send-in-transaction", request_fields(message) | {"decision": decision})
        return self._note_sent(label, message.topic, answer)

    def _note_sent(self, label: str, topic: str, answer: Answer) -> Answer:
        self.sent[label] = SendResult(
            topic, answer["queue"], answer["queue-offset"], answer["message-id"], answer.get("offset-message-id", "")
        )
        self.note(
            f"SENT {label} status={answer['status']} msgId={answer['message-id']}"
            f" offsetMsgId={answer.get('offset-message-id')} queue={topic}/{answer['queue']}"
            f" queueOffset={answer['queue-offset']}"
        )
        return answer

    def pull(self, topic: str, *, at_once: int = 32) -> list[Consumed]:
        """
        Read every message of a topic as a consumer.

        After a message that it cannot read, a client drops the rest of the pull, which has up to *at_once* messages.
        """
        return _consumed(self.driver.ask("pull", {"topic": topic, "at-once": at_once}))

    def send_traced(self, messages: Iterable[ClientMessage]) -> list[str]:
        return self.driver.ask("send-traced", fields_of_each(messages))["message-ids"].split()

    def consume(self, consumption: Consumption) -> list[Consumed]:
        return _consumed(self.driver.ask("consume", request_fields(consumption)))

    def mqadmin(self, *arguments: str) -> MqadminOutput:
        numbered = {f"argument.{number}": argument for number, argument in enumerate(arguments)}
        answer = self.driver.ask("mqadmin", numbered | {"argument.n": "-n", "argument.ns": self.name_server})
        return MqadminOutput(answer["stdout"], answer["stderr"])


@contextmanager
def open_store(
    driver: DriverProcess, store: Path, geometry: Geometry = SMALL_GEOMETRY, settings: dict[str, str] | None = None
) -> Iterator[RealStore]:
    answer = driver.ask("open-store", _store_values(store, geometry, settings))
    _check_known(driver, answer)
    if answer["loaded"] != "true":
        raise StoreRefusedError(f"RocketMQ {driver.release} does not load {store}")
    opened = RealStore(driver)
    yield opened
    if driver.is_running:
        opened.drain()
        driver.ask("close-store")


@contextmanager
def real_store(
    release: str, store: Path, geometry: Geometry = SMALL_GEOMETRY, settings: dict[str, str] | None = None
) -> Iterator[RealStore]:
    """Open a store with the store classes of a release, and close it after the block."""
    with run_driver(release) as driver, open_store(driver, store, geometry, settings) as opened:
        yield opened


@contextmanager
def real_broker(release: str, store: Path, settings: dict[str, str] | None = None) -> Iterator[RealBroker]:
    """Open a store with a broker of a release, a name server and clients, and stop them after the block."""
    home = store.parent / "home"
    with run_driver(release) as driver, open_broker(driver, store, settings=settings, home=home) as broker:
        yield broker


def rebuild_by_broker(
    release: str,
    store: Path,
    geometry: Geometry = REAL_GEOMETRY,
    settings: dict[str, str] | None = None,
    patience: int = 120,
) -> float:
    """
    Let *release* rebuild queues and index files of *store*, which has only a log; return the time in seconds.

    The time is that from loading the store to dispatching the last message, without the start of the JVM. Measure only
    stores of real geometry: small index files are slowed down, because a name is a millisecond.
    """
    with run_driver(release, AT_FULL_SPEED) as driver:
        values = _store_values(store, geometry, settings) | {"patience": patience * 1000}
        answer = driver.ask("open-store-timed", values, patience)
        _check_known(driver, answer)
        driver.ask("close-store", patience=patience)
    return int(answer["rebuild-ns"]) / 1e9


def _store_values(store: Path, geometry: Geometry, settings: dict[str, str] | None) -> dict[str, Value]:
    return _prefixed("store", store_settings(store, geometry, settings)) | _prefixed("broker", _BROKER)


@contextmanager
def open_broker(  # noqa: PLR0913 - where it runs, its settings, and its cluster
    driver: DriverProcess,
    store: Path,
    geometry: Geometry = SMALL_GEOMETRY,
    settings: dict[str, str] | None = None,
    *,
    home: Path,
    name_server: str | None = None,
) -> Iterator[RealBroker]:
    """
    Open a name server and a broker in *driver*; after the block both are stopped, unless killed.

    *settings* that begin with `broker.` are those of the broker, all others those of the store. The broker joins a
    *name_server* that another driver runs.
    """
    own = {name: value for name, value in (settings or {}).items() if name.startswith("broker.")}
    settings = {name: value for name, value in (settings or {}).items() if name not in own}
    port, name_server_port = free_port(), free_port()
    joins = name_server is not None
    name_server = name_server or f"127.0.0.1:{name_server_port}"
    has_group = settings.get("enableDLegerCommitLog") == "true"
    values = _prefixed("store", store_settings(store, geometry, settings)) | _prefixed(
        "broker", _BROKER | {"rocketmqHome": str(home)} | ({"brokerId": "-1"} if has_group else {})
    )
    # In a group of several members, none leads before a second one has started; such members have no name server.
    is_member = has_group and ";" in settings["dLegerPeers"]
    values |= own
    values |= {"home": str(home), "port": port, "name-server": name_server}
    values |= {} if is_member or joins else {"name-server-port": name_server_port, "leads": has_group}
    _check_known(driver, driver.ask("open-broker", values))
    broker = RealBroker(driver, name_server, port)
    yield broker
    if driver.is_running:
        driver.ask("close-producers")
        driver.ask("close-broker")


_BROKER = {
    "brokerName": "b0",
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "defaultTopicQueueNums": "2",
    # A thread of brokers of 5.x spins for this time after the start: three seconds, in 5.5.0 ten.
    "transactionMetricFlushInterval": "500",
    **PATIENCE,
}


def _prefixed(kind: str, settings: Mapping[str, str]) -> dict[str, Value]:
    return {f"{kind}.{name}": value for name, value in settings.items()}


def _check_known(driver: DriverProcess, answer: Answer) -> None:
    unknown = set(answer["unknown"].split(",")) - OPTIONAL_SETTINGS - {""}
    if unknown:
        raise DriverError(f"RocketMQ {driver.release} does not know {sorted(unknown)}")


def _stored(answer: Answer) -> Stored:
    if "offset" not in answer:
        return Stored(answer["status"])
    numbers = (int(answer[name]) for name in ("offset", "size", "queue-offset", "store-timestamp"))
    return Stored(answer["status"], *numbers)


def _consumed(answer: Answer) -> list[Consumed]:
    rows = (line.split(" ", 3) for line in answer["rows"].splitlines())
    return [Consumed(int(queue), int(queue_offset), int(offset), keys) for queue, queue_offset, offset, keys in rows]
