"""
The messages sent to a real RocketMQ: one function per scenario, with the reason in its docstring.

A scenario uses a `Stage`, and runs on every release from `since` on. `tests/oracle/test_*.py` check its stores, and
`tests/oracle/plays.py` archives them as golden stores.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from tests.oracle.releases import group_of_one_settings, version_of
from tests.oracle.sessions import ClientMessage, Consumption, DirectMessage, RealBroker, RealStore
from tests.oracle.stage import Stage
from tests.support.waiting import wait_until

_UNIQUE_KEY_PREFIX: Final = "0A0102031234ABCD"
_IPV6: Final = "2001:db8::1"
_OTHER_IPV6: Final = "fd00::abcd"
_KEYS_OVER_SEVERAL_FILES: Final = (45, 70)
_DAY: Final = 86_400_000

_Labelled: TypeAlias = tuple[str, DirectMessage]

SHORT_DELAYS: Final = "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 2h"
"""Delay levels that let a message through within seconds; a rebuild of queues must know them."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A sequence of operations on a store."""

    name: str
    why: str
    play: Callable[[Stage], None]
    since: str

    def runs_on(self, release: str) -> bool:
        return version_of(release) >= version_of(self.since)

    def on(self, release: str, store: Path, scratch: Path) -> Stage:
        with Stage(release, store, scratch) as stage:
            self.play(stage)
        return stage


SCENARIOS: dict[str, Scenario] = {}


def scenario(*, since: str = "4.0.0") -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    def add(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        name = play.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, (play.__doc__ or "").strip(), play, since)
        return play

    return add


@scenario()
def everyday(stage: Stage) -> None:
    """Send everything that applications send: keys, tags, duplicates, compression, delays, batches, transactions."""
    with stage.broker({"messageDelayLevel": SHORT_DELAYS}) as broker:
        for topic in ("T1", "T2", "T3"):
            broker.make_topic(topic, queues=2)
        _send_keys_and_tags(broker)
        _send_odd_texts(broker)
        for number in range(9):
            topic = "T1" if number % 2 else "T3"
            broker.send(
                ClientMessage(topic, _noise(3500, number), "TagN", f"noise{number} nn"), label=f"large-{number}"
            )
        broker.send(ClientMessage("T1", b"delayed", "TagD", "delaykey", delay_level=1), label="delayed")
        broker.send(ClientMessage("T2", b"far", "TagD", "farkey", delay_level=18), label="far")
        if stage.runs(since="4.1.0"):
            broker.send_batch([_batch_message("T1", number) for number in range(4)], label="batch")
        for decision in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"):
            message = ClientMessage("T1", decision.encode(), "TagTx", f"tx{decision} txshared")
            broker.send_in_transaction(message, decision, label=f"transaction-{decision}")
        # Wait for the delay; brokers since 5.1.0 write one op message for several transactions after 3 s.
        time.sleep(4)
        for number in range(3):
            broker.send(ClientMessage("T1", b"last", "TagZ", f"last{number}"), label=f"last-{number}")
        stage.ask(broker, _mqadmin_lines(stage, broker))


def _mqadmin_lines(stage: Stage, broker: RealBroker) -> Iterator[tuple[str, ...]]:
    """Yield mqadmin lines of all kinds, for existing and missing messages."""
    for topic, key in _ASKED_KEYS:
        yield "queryMsgByKey", "-t", topic, "-k", key
    topic_of_id = ("-t", "T1") if stage.runs(since="5.3.0") else ()
    for label, sent in broker.sent.items():
        if label not in _ASKED_LABELS:
            continue
        yield "queryMsgByUniqueKey", "-t", sent.topic, "-i", sent.message_id
        yield "queryMsgByOffset", "-t", sent.topic, "-b", "b0", "-i", sent.queue, "-o", sent.queue_offset
        yield "queryMsgById", *topic_of_id, "-i", sent.offset_message_id
    yield "queryMsgById", *topic_of_id, "-i", "7F00000100002A9F0000000000FFFFFF"
    yield "queryMsgByUniqueKey", "-t", "T1", "-i", "0A010203000000000000000000000000"
    yield "printMsg", "-t", "T3", "-d", "true"
    if stage.runs(since="4.7.0"):
        yield "queryCq", "-t", "T1", "-q", "0", "-i", "0", "-c", "5", "-b", broker.address
    yield "topicStatus", "-t", "T1"
    if stage.runs(since="5.0.0"):
        # An older broker would store another message for it.
        yield "queryMsgByOffset", "-t", "T1", "-b", "b0", "-i", "0", "-o", "9999"


_ASKED_KEYS: Final = (
    *(("T1", key) for key in ("k0", "k1", "k2", "dup", "x7", "noted", "big", "nn", "delaykey", "bshared", "bk0")),
    *(("T1", key) for key in ("txshared", "absent", "K1", "dup dup", "T#TagA")),
    *(("T2", "zeros"), ("T2", "ключ"), ("T3", "k1"), ("T2", "farkey"), ("SCHEDULE_TOPIC_XXXX", "farkey")),
    *(("RMQ_SYS_TRANS_HALF_TOPIC", "txshared"), ("NoSuchTopic", "k1")),
)

_ASKED_LABELS: Final = frozenset({"key-0", "key-3", "noted", "no-key", "compressed", "unicode", "delayed", "last-2"})


def _send_keys_and_tags(broker: RealBroker) -> None:
    for number in range(26):
        tags = None if number % 4 == 3 else f"Tag{'ABC'[number % 3]}"
        keys = f"k{number % 3} dup dup  x{number}"
        broker.send(ClientMessage("T1", f"body{number}".encode(), tags, keys), label=f"key-{number}")
    noted = ClientMessage(
        "T1", b"noted", "TagA", "noted", flag=77, waits_for_store=False, properties={"userprop": "v-5"}
    )
    broker.send(noted, label="noted")
    broker.send(ClientMessage("T1", b"plain"), label="no-key")
    broker.send(ClientMessage("T2", b"only a tag", "TagOnly"), label="only-tag")


def _send_odd_texts(broker: RealBroker) -> None:
    broker.send(ClientMessage("T1", _prose(5000, 1), "TagB", "big"), label="compressed")
    broker.send(ClientMessage("T2", bytes(3000), "TagB", "zeros dup"), label="zeros")
    broker.send(ClientMessage("T2", "тело-正文".encode(), "тег", "ключ 键 \U0001f511 k1"), label="unicode")
    broker.send(ClientMessage("T3", b"same key in another topic", "TagA", "k1"), label="same")


def _batch_message(topic: str, number: int) -> ClientMessage:
    return ClientMessage(
        topic,
        f"batch{number}".encode(),
        tags=None if number == 2 else "TagBatch",
        keys=None if number == 3 else f"bk{number} bshared",
    )


@scenario()
def edges(stage: Stage) -> None:
    """Put messages that no client sends: all transaction bits, edge cases of hashes, parsers, and blanks of 8 bytes."""
    with stage.store() as store:
        unique_keys = (f"{_UNIQUE_KEY_PREFIX}{number:016X}" for number in range(10**6))
        for label, message in _edge_messages(stage, unique_keys):
            store.put(message, label=label)
        _put_to_the_last_byte(store, stage.geometry.commit_log_file_size)
        store.put(DirectMessage("D1", properties=_text(UNIQ_KEY=next(unique_keys), KEYS="last")), label="last")


def _edge_messages(stage: Stage, unique_keys: Iterator[str]) -> Iterator[_Labelled]:
    def message(topic: str, queue_id: int = 0, sys_flag: int = 0, **properties: str) -> DirectMessage:
        text = _text(UNIQ_KEY=next(unique_keys), **properties)
        return DirectMessage(topic, queue_id, b"edge body", text, sys_flag)

    yield from _edge_keys(message)
    yield from _edge_properties(message)
    yield from _edge_hosts(stage)
    yield "topic-127", message("t" + "x" * 126, KEYS="t127")
    if stage.runs(since="5.1.0"):
        for length in (128, 200, 255):
            yield f"topic-{length}", message("%RETRY%" + "r" * (length - 7), KEYS=f"t{length}", TAGS="TagV2")


def _edge_keys(message: Callable[..., DirectMessage]) -> Iterator[_Labelled]:
    for number in range(1, 6):
        yield f"same-key-{number}", message(f"D{number}", number % 3, KEYS=f"same own{number}", TAGS=f"Tag{number}")
    for bits, word in ((4, "prepared"), (8, "committed"), (12, "rolled-back")):
        yield word, message("D1", sys_flag=bits, KEYS=f"{word} same", TAGS="TagX")
    yield "after-rollback", message("D1", KEYS="afterroll")
    for label, keys in _KEY_TEXTS.items():
        yield label, message("D1", 1, KEYS=keys)
    yield "unicode", message("D2", KEYS="ключ 键 \U0001f511 e\u0301 \u00e9", TAGS="тег")
    yield "unicode-topic", message("топик-主题", KEYS="same", TAGS="TagU")
    for java_hash, key in (*_KEYS_BY_HASH.items(), (42, _KEYS_BY_HASH[42])):
        yield f"hash{java_hash}", message("D3", KEYS=f"{key} h{java_hash}")
    for count in _KEYS_OVER_SEVERAL_FILES:
        yield f"{count}-keys", message("D4", KEYS=" ".join(f"m{number}" for number in range(count)), TAGS="TagM")
        yield f"behind-{count}-keys", message("D4", KEYS="between")


def _edge_properties(message: Callable[..., DirectMessage]) -> Iterator[_Labelled]:
    yield "empty-body", DirectMessage("D2", body=b"", properties=_text(KEYS="emptybody"))
    yield "no-body", DirectMessage("D2", body=None, properties=_text(KEYS="nobody"))
    yield "multi-tag", message("D5", 1, sys_flag=2, TAGS="a||b||c")
    yield "tag-of-lowest-hash", message("D5", 1, TAGS="polygenelubricants")
    for label, text in _PROPERTY_TEXTS.items():
        yield label, DirectMessage("D5", 2, b"edge body", text)
    for level in ("5", "99", "0", "-1"):
        yield f"level{level}", message("SCHEDULE_TOPIC_XXXX", 4, KEYS=f"sk{level}", TAGS="TagS", DELAY=level)
    yield "level-elsewhere", message("D1", KEYS="dot", TAGS="TagS", DELAY="3")


def _edge_hosts(stage: Stage) -> Iterator[_Labelled]:
    if not stage.runs(since="4.6.0"):
        return
    for born, stored in ((_OTHER_IPV6, "127.0.0.1"), ("10.1.2.3", _IPV6), (_OTHER_IPV6, _IPV6)):
        text = _text(KEYS="v6", TAGS="Tag6")
        yield f"{born}-{stored}", DirectMessage("D6", 0, b"v6", text, born_host=born, store_host=stored)


# Java's hash of `D3#KEY`
_KEYS_BY_HASH: Final = {
    -(1 << 31): "30:9EH3",
    1 - (1 << 31): "30:9EH4",
    (1 << 31) - 1: "30:9EH2",
    -1: "0B9NF<0",
    0: "0B9NF<1",
    1: "0B9NF<2",
    100: "0B9NF?8",
    -100: "0B9NF8I",
    42: "0B9NF=<",
}

_KEY_TEXTS: Final = {
    "leading-space": " lead",
    "trailing-space": "trail ",
    "double-space": "dbl1  dbl2   dbl3",
    "only-spaces": "   ",
    "other-spaces": "ta\tb n\u00a0b i\u3000d",
    "separator-in-key": "a#b #c",
}

_PROPERTY_TEXTS: Final = {
    "nothing-known": "X\1y\2",
    "empty-text": "",
    "only-unique-key": "UNIQ_KEY\1only\2",
    "only-keys": "KEYS\1onlykeys\2",
    "only-tags": "TAGS\1OnlyTags\2",
    "unique-key-equals-key": "UNIQ_KEY\1sameuk\2KEYS\1sameuk\2",
    "names-twice": "KEYS\1first\2UNIQ_KEY\1u-dup1\2KEYS\1second\2UNIQ_KEY\1u-dup2\2",
    "empty-value": "KEYS\1\2UNIQ_KEY\1u-ev\2TAGS\1\2",
    "value-with-separator": "KEYS\1x\1y\2UNIQ_KEY\1u-vs\2",
    "empty-name": "\1v\2KEYS\1en\2UNIQ_KEY\1u-en\2",
    "no-last-separator": "UNIQ_KEY\1u-nt\2KEYS\1notrail",
    "junk": "junk\2KEYS\1jk\2\2\2ab\2UNIQ_KEY\1u-j\2x",
    "too-short": "a\1b\2K\2KEYS\1sh\2\1\2",
    "second-is-empty": "KEYS\1kept\2KEYS\1\2UNIQ_KEY\1u-de\2",
}


def _put_to_the_last_byte(store: RealStore, file_size: int) -> None:
    """Fill a file up to the last byte that a record may use, and the next file up to one byte less."""
    for number in range(6):
        store.put(DirectMessage("D1", body=_noise(2500, number), properties=_text(KEYS="fill")), label=f"fill-{number}")
    for label, left in (("leaves-8", 8), ("would-leave-7", 7)):
        probe = store.put(DirectMessage("D1", body=_noise(10, 1), properties=_text(KEYS="edgekey0")), label="probe")
        overhead = probe.size - 10
        while (room := -store.next_offset % file_size) < 2 * overhead:
            store.put(DirectMessage("D1", body=_noise(10, 1), properties=_text(KEYS="edgekey0")), label="probe")
        body = _noise(room - left - overhead, left)
        store.put(DirectMessage("D1", body=body, properties=_text(KEYS="edgekey0")), label=label)
        store.put(DirectMessage("D1", properties=_text(KEYS="edgekeyN")), label="next")


@scenario()
def clock(stage: Stage) -> None:
    """Let store times stand still, jump, go back, be zero or negative: index entries truncate and clamp seconds."""
    with stage.store() as store:
        for number, timestamp in enumerate(_jumping_times()):
            properties = _text(UNIQ_KEY=f"{_UNIQUE_KEY_PREFIX}{number:016X}", KEYS=f"c{number} all", TAGS="TagC")
            message = DirectMessage(f"C{number % 2}", 0, b"clock", properties, store_timestamp=timestamp)
            store.put(message, label=f"clock-{number}")
        store.put(DirectMessage("C0", properties=_text(KEYS="now")), label="now")


def _jumping_times() -> list[int]:
    now = 1_795_000_000_000
    steps = (0, 1, 999, 1000, 1001, 1999, 2000, -1, -999, -1000, -5000, 3_600_000, -7_200_000, 0, 400 * _DAY)
    far = [now + 1000 * ((1 << 31) + seconds) for seconds in (-2, -1, 0, 5)]
    small = [1, 2500, 0, 7000, 0, 0, 0, 0, 0, 0, -1, 9000, -5000, 3, 5003]
    late = (0, 100, -100, 0, 10_000, 0, 60_000, 59_999, 61_000, 1, 2, 3, 4, 5, 6, 3000, 2000, 1000)
    return [*(now + step for step in steps), *far, now, *small, *(now + step for step in late), now]


@scenario()
def restarted(stage: Stage) -> None:
    """Stop and start a store repeatedly: each run continues in the last file of every kind."""
    for run in range(4):
        with stage.store() as store:
            store.put_all((_numbered_message("R", run * 17 + number) for number in range(17)), label=f"run{run}")
    with stage.store():
        stage.note("nothing sent")


@scenario()
def killed(stage: Stage) -> None:
    """Kill a process while it writes, restart it and use it: the result of a broker's recovery."""
    with stage.store(stage.thorough_recovery) as store:
        store.put_all((_numbered_message("W", number) for number in range(300)), label="before")
    with stage.store(stage.thorough_recovery) as store:
        store.put_all((_numbered_message("W", number) for number in range(300, 340)), label="unflushed")
        stage.crash()
    stage.remove_empty_files()
    with stage.store(stage.thorough_recovery) as store:
        store.put_all((_numbered_message("W", number) for number in range(340, 352)), label="after")


@scenario()
def expired(stage: Stage) -> None:
    """Delete the oldest files of the log, and send more: the remaining files, and the start of a new queue."""
    with stage.store({"fileReservedTime": "72"}) as store:
        store.put_all((_numbered_message("E", number, body_size=1200) for number in range(64)), label="old")
        store.drain()
        old = stage.segments()[:3]
        stage.age(old)
        # The cleaning service deletes a file after it is flushed, and then those of queues and index.
        wait_until(lambda: _are_expired(store, old), lambda: "the oldest files are still there")
        store.expire()
        stage.note(f"left {[segment.name for segment in stage.segments()]}")
        store.put_all((_numbered_message("E", number, body_size=100) for number in range(64, 70)), label="new")
        store.put(DirectMessage("E9", properties=_text(KEYS="e9 all", TAGS="TagX")), label="new-topic")


def _are_expired(store: RealStore, files: list[Path]) -> bool:
    store.expire()
    return not any(path.exists() for path in files)


@scenario(since="4.9.3")
def typed(stage: Stage) -> None:
    """Use features of 4.9 and 5.x: compressors, light queues, inner batches, IPv6 and IPv4."""
    _play_typed(stage, {})


@scenario(since="5.2.0")
def property_crc(stage: Stage) -> None:
    """Use the same features with a CRC at the end of each record's properties."""
    _play_typed(stage, {"enabledAppendPropCRC": "true"})


def _play_typed(stage: Stage, settings: dict[str, str]) -> None:
    with stage.broker({"enableLmq": "true", "enableMultiDispatch": "true"} | settings) as broker:
        for topic in ("T1", "TZ", "TL"):
            broker.make_topic(topic)
        for compression in ("ZLIB", "LZ4", "ZSTD"):
            for number in range(3):
                message = ClientMessage("TZ", _prose(2500 + 400 * number, number), f"Tag{compression}", "zall")
                broker.send(message, f"producers{compression}", compression, label=f"{compression}-{number}")
        if stage.runs(since="5.0.0"):
            broker.make_topic("TB", queue_type="BatchCQ")
            for size in (1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4):
                broker.send_batch([_batch_message("TB", number) for number in range(size)], label="inner-batch")
        for number in range(14):
            queues = "%LMQ%qa,%LMQ%qb" if number % 2 else "%LMQ%qa"
            properties = {"INNER_MULTI_DISPATCH": queues}
            broker.send(
                ClientMessage("TL", b"lmq", "TagL", f"lmq{number}", properties=properties), label=f"lmq-{number}"
            )
        broker.send_batch([_batch_message("T1", number) for number in range(4)], label="batch")
        broker.send_in_transaction(
            ClientMessage("T1", _prose(1500, 5), "TagTx", "tx"), "COMMIT_MESSAGE", label="transaction"
        )
        inner = DirectMessage("T6", 0, b"v6", _text(KEYS="v6"), born_host=_OTHER_IPV6, store_host=_IPV6)
        stage.note(f"PUT v6 {broker.put(inner)}")
        time.sleep(4)
        broker.send(ClientMessage("T1", _noise(3000, 9), "TagZ", "last"), label="last")


@scenario()
def retried(stage: Stage) -> None:
    """Let a consumer fail: a message becomes up to five records with the same unique key, in four topics."""
    with stage.broker({"messageDelayLevel": SHORT_DELAYS}) as broker:
        broker.make_topic("T1", queues=2)
        for number in range(12):
            keys = f"{'bad' if number % 4 == 0 else 'good'}{number} all"
            broker.send(ClientMessage("T1", b"body", f"Tag{number % 2}", keys), label=f"message-{number}")
        for consumed in broker.consume(Consumption("T1", "consumers", 12, milliseconds=8000, failing_keys="bad")):
            stage.note(f"CONSUME {consumed}")
        broker.send(ClientMessage("T1", b"last", "TagZ", "last"), label="last")


@scenario(since="5.0.0")
def timed(stage: Stage) -> None:
    """Send messages with a delivery time: they wait in the timer's topic and are then rewritten."""
    with stage.broker({"timerWheelEnable": "true"}) as broker:
        broker.make_topic("T1", queues=2)
        for number in range(6):
            properties = {"TIMER_DELAY_MS": str(1000 + 500 * number)}
            keys = f"timer{number} all"
            broker.send(ClientMessage("T1", b"timer", "TagT", keys, properties=properties), label=f"timer-{number}")
        far = ClientMessage("T1", b"far", "TagT", "far all", properties={"TIMER_DELAY_SEC": "3600"})
        broker.send(far, label="far")
        wait_until(
            lambda: sum(broker.queue_edges("T1", queue)[1] for queue in range(2)) == 6, lambda: "timers did not fire"
        )
        broker.send(ClientMessage("T1", b"last", "TagZ", "last"), label="last")


@scenario(since="4.5.2")
def dledger(stage: Stage) -> None:
    """Run a DLedger group with one member: each record is in an entry of the log, after the entry's header."""
    stage.note("group of one")
    with stage.broker(group_of_one_settings()) as broker:
        for topic in ("T1", "T2"):
            broker.make_topic(topic, queues=2)
        _send_keys_and_tags(broker)
        for number in range(20):
            keys = f"noise{number} nn"
            broker.send(
                ClientMessage(f"T{number % 2 + 1}", _noise(3500, number), "TagN", keys), label=f"large-{number}"
            )
        stage.ask(broker, [("queryMsgByKey", "-t", "T1", "-k", "dup")])
        broker.send(ClientMessage("T1", b"last", "TagZ", "last"), label="last")


def upgraded(*releases: str) -> Scenario:
    """Return the scenario of a store that several releases wrote one after another."""

    def play(stage: Stage) -> None:
        next_offset = 0
        for run, release in enumerate(releases):
            if next_offset:
                stage.upgrade(release, next_offset)
            with stage.store() as store:
                store.put_all((_numbered_message("U", run * 45 + number) for number in range(45)), label=release)
                next_offset = store.next_offset

    why = "Files that two releases wrote: each message follows the rules of the release that dispatched it."
    return Scenario("-".join(("upgraded", *releases)), why, play, releases[0])


UPGRADES: Final = (
    upgraded("4.7.0", "4.7.1"),
    upgraded("4.7.0", "5.5.1"),
    upgraded("4.9.8", "5.5.1"),
    upgraded("5.3.3", "5.4.0"),
)


def _numbered_message(prefix: str, number: int, body_size: int = 500) -> DirectMessage:
    properties = _text(
        UNIQ_KEY=f"{_UNIQUE_KEY_PREFIX}{number:016X}", KEYS=f"{prefix}{number} all", TAGS=f"Tag{number % 3}"
    )
    return DirectMessage(f"{prefix}{number % 3}", number % 2, _noise(body_size + number % 7, number), properties)


def _text(**properties: str) -> str:
    return "".join(f"{name}\1{value}\2" for name, value in properties.items())


def _noise(size: int, seed: int) -> bytes:
    return Random(seed).randbytes(size)


def _prose(size: int, seed: int) -> bytes:
    random = Random(seed)
    return " ".join(f"word{random.randrange(50)}" for _ in range(size // 5)).encode()[:size].ljust(size)


def _orders(stage: Stage) -> None:
    """Send the orders of the demo as JSON texts, one of which is truncated."""
    bodies = (
        b'{"id": 1, "customer": "Ada", "total": 12.50}',
        b'{"id": 2, "customer": "Grace", "total": 7.25}',
        b'{"id": 3, "customer": "Ada", "to',
        b'{"id": 4, "customer": "Grace", "total": "30.00", "note": "gift"}',
        b'{"id": 5, "customer": "Ada", "total": 1}',
    )
    with stage.broker() as broker:
        broker.make_topic("Orders")
        for number, body in enumerate(bodies, 1):
            broker.send(ClientMessage("Orders", body, keys=f"order{number}"), label=f"order-{number}")


ORDERS: Final = Scenario("orders", (_orders.__doc__ or "").strip(), _orders, "5.5.1")
"""The second store of the demo, next to `b551-base`; not part of the matrix."""
