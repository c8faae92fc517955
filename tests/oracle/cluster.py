"""
A cluster of two masters with a slave each: its stores, and the answers of mqadmin, which asks all brokers.

    python -m tests.oracle.cluster --out build/golden --release 5.3.3
"""

import argparse
import hashlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Self

from rmq_formats.trace import TRACE_TOPIC
from tests.oracle.process import DriverProcess
from tests.oracle.releases import class_path_of, version_of
from tests.oracle.scenarios import SHORT_DELAYS
from tests.oracle.sessions import ClientMessage, Consumption, DirectMessage, MqadminOutput, RealBroker, open_broker
from tests.oracle.stage import AnsweredLine, Line
from tests.support.stores import read_files
from tests.support.waiting import wait_until

MASTERS: Final = ("broker-a", "broker-b")
_SMALL_HEAP: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_NOT_KEPT: Final = ("lock", "abort", "abort.bak", "compaction", "rocksdbstore", "timerlog", "timerwheel")
_SENT_TWICE: Final = "0A010203000418B4AAC2000000000001"
_CALLS: Final = 40


class Cluster:
    """Two masters with a slave each, in four processes; the first one also runs the name server."""

    def __init__(self, release: str, directory: Path) -> None:
        self.release = release
        self._directory = directory
        self._stack = ExitStack()
        self.brokers: dict[str, RealBroker] = {}

    def store_of(self, name: str) -> Path:
        return self._directory / name

    def __enter__(self) -> Self:
        for master in MASTERS:
            self._start(master, {"broker.brokerName": master, "brokerRole": "ASYNC_MASTER"})
        for master in MASTERS:
            own = {"broker.brokerName": master, "broker.brokerId": "1", "brokerRole": "SLAVE"}
            self._start(f"{master}-slave", own)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, name: str, settings: dict[str, str]) -> None:
        scratch = self._directory / "scratch" / name
        driver = self._stack.enter_context(DriverProcess(self.release, scratch, _SMALL_HEAP))
        first = next(iter(self.brokers.values()), None)
        opened = open_broker(
            driver,
            self.store_of(name),
            settings={"messageDelayLevel": SHORT_DELAYS, "broker.traceTopicEnable": "true", **settings},
            home=scratch / "home",
            name_server=None if first is None else first.name_server,
        )
        self.brokers[name] = self._stack.enter_context(opened)

    def mqadmin(self, *arguments: str) -> MqadminOutput:
        return self.brokers[MASTERS[0]].mqadmin(*arguments)

    def make_topic(self, name: str, *masters: str) -> None:
        """Create a topic with two queues on each of the masters, and wait until clients find all of them."""
        for master in masters:
            address = self.brokers[master].address
            self.mqadmin("updateTopic", "-b", address, "-t", name, "-r", "2", "-w", "2")
        wait_until(
            lambda: all(f'"{master}"' in self.mqadmin("topicRoute", "-t", name).stdout for master in masters),
            lambda: self.mqadmin("topicRoute", "-t", name),
        )

    def await_replication(self) -> None:
        for master in MASTERS:
            leader, follower = (self.brokers[name] for name in (master, f"{master}-slave"))
            leader.drain()
            wait_until(partial(_have_one_end, leader, follower), partial(_have_one_end, leader, follower))
            follower.drain()


def _have_one_end(leader: RealBroker, follower: RealBroker) -> bool:
    return leader.log_end() == follower.log_end()


class Facts(NamedTuple):
    """What the lines for mqadmin name."""

    middle_ms: int  # a time between two messages of `Plain`, whose queues have one file each
    traced_ids: Sequence[str]


def send_messages(cluster: Cluster) -> Facts:
    """Send messages of one topic to both masters, consume some, and wait until slaves and rates are as at rest."""
    brokers = cluster.brokers
    for topic in ("Orders", "Plain"):
        cluster.make_topic(topic, *MASTERS)
    cluster.make_topic("Alone", MASTERS[1])
    wait_until(
        lambda: all(name in cluster.mqadmin("clusterList").stdout for name in MASTERS),
        lambda: cluster.mqadmin("clusterList"),
    )
    first = brokers[MASTERS[0]]
    for number in range(36):
        keys = f"{'bad' if number % 9 == 4 else 'order'}{number} all"
        first.send(ClientMessage("Orders", f"order {number}".encode(), f"Tag{number % 3}", keys))
    middle_ms = 0
    for number in range(20):
        if number == 10:
            middle_ms = _wait_for_next_millisecond() + 1
            wait_until(partial(_is_past, middle_ms), lambda: "the clock stands still")
        body = bytes([65 + number]) * (700 + 100 * number)
        first.send(ClientMessage("Plain", body, "TagP", f"plain{number} all"), label=f"plain-{number}")
    for number in range(6):
        first.send(ClientMessage("Alone", b"alone", "TagA", f"alone{number} all"), label=f"alone-{number}")
    for number, decision in enumerate(("COMMIT_MESSAGE", "ROLLBACK_MESSAGE") * 3):
        message = ClientMessage("Plain", b"in a transaction", "TagX", f"tx{number} transactions")
        first.send_in_transaction(message, decision, label=f"transaction-{number}")
    for number in range(4):
        first.send(ClientMessage("Plain", b"delayed", "TagD", f"delayed{number} later", delay_level=1))
    # A producer sends a message again to the other broker if the first one did not confirm it.
    properties = f"UNIQ_KEY\1{_SENT_TWICE}\2KEYS\1twice all\2TAGS\1TagT\2"
    for master in reversed(MASTERS):
        stored = brokers[master].put(DirectMessage("Plain", 0, b"sent twice", properties)).store_timestamp
        wait_until(partial(_is_past, stored), lambda: "the clock stands still")
    wait_until(
        lambda: cluster.mqadmin("queryMsgByKey", "-t", "Plain", "-k", "later").stdout.count("\n") == 5,
        lambda: "delayed messages are not delivered",
    )
    traced_ids = send_traced_messages(cluster)
    first.consume(Consumption("Orders", "billing", 36, milliseconds=9000, failing_keys="bad"))
    for number in range(6):
        first.send(ClientMessage("Orders", b"not consumed yet", "TagN", f"new{number} all"))
    cluster.await_replication()
    wait_until(
        lambda: "\nConsume TPS: 0.00\n" in cluster.mqadmin("consumerProgress", "-g", "billing").stdout,
        lambda: "the rate of the last minute is not zero",
    )
    return Facts(middle_ms, traced_ids)


def send_traced_messages(cluster: Cluster) -> list[str]:
    """Send and consume messages whose clients report traces, and wait until both kinds are stored."""
    first = cluster.brokers[MASTERS[0]]
    cluster.make_topic("Observed", *MASTERS)
    wait_until(
        lambda: all(f'"{master}"' in cluster.mqadmin("topicRoute", "-t", TRACE_TOPIC).stdout for master in MASTERS),
        lambda: cluster.mqadmin("topicRoute", "-t", TRACE_TOPIC),
    )
    ids = first.send_traced(ClientMessage("Observed", b"traced", "TagA", f"traced{number}") for number in range(4))
    first.consume(Consumption("Observed", "auditors", 4, 5000, is_traced=True))
    wait_until(
        lambda: all(_has_traces(cluster, one) for one in ids),
        lambda: [cluster.mqadmin("queryMsgTraceById", "-i", one) for one in ids],
    )
    return ids


def _has_traces(cluster: Cluster, message_id: str) -> bool:
    printed = cluster.mqadmin("queryMsgTraceById", "-i", message_id).stdout
    return "Pub" in printed and "auditors" in printed


def _wait_for_next_millisecond() -> int:
    now = time.time_ns() // 1_000_000
    wait_until(partial(_is_past, now), lambda: "the clock stands still")
    return time.time_ns() // 1_000_000


def _is_past(milliseconds: int) -> bool:
    return time.time_ns() // 1_000_000 > milliseconds


def list_lines(cluster: Cluster, facts: Facts) -> Iterator[Line]:
    """Yield the lines for mqadmin."""
    sent = cluster.brokers[MASTERS[0]].sent
    of_both = [sent[f"plain-{number}"] for number in range(4)]
    yield from (("queryMsgByKey", "-t", topic, "-k", "all") for topic in ("Orders", "Plain", "Alone"))
    yield from (("queryMsgByKey", "-t", "Plain", "-k", key) for key in ("transactions", "later", "nothing"))
    yield ("queryMsgByKey", "-t", "Nowhere", "-k", "all")
    if version_of(cluster.release) >= (5, 3, 1):
        yield ("queryMsgByKey", "-t", "Plain", "-k", "all", "-m", "2")
    yield ("queryMsgByUniqueKey", "-t", "Plain", "-i", _SENT_TWICE)
    yield ("queryMsgByUniqueKey", "-t", "Plain", "-i", _SENT_TWICE, "-a")
    yield from (("queryMsgByUniqueKey", "-t", "Plain", "-i", one.message_id) for one in of_both[:2])
    named = ("-t", "Plain") if version_of(cluster.release) >= (5, 3, 0) else ()
    yield from (("queryMsgById", *named, "-i", one.offset_message_id) for one in of_both)
    for master in MASTERS:
        yield ("queryMsgByOffset", "-t", "Plain", "-b", master, "-i", "1", "-o", "2")
        yield ("printMsgByQueue", "-t", "Orders", "-a", master, "-i", "1", "-p", "true", "-d", "true", "-f", "true")
        yield ("consumeMessage", "-t", "Orders", "-b", master, "-i", "0", "-c", "5")
    yield ("consumeMessage", "-t", "Plain")
    yield from (("topicStatus", "-t", topic) for topic in ("Orders", "Plain", "Alone", "%RETRY%billing", "Nowhere"))
    yield ("topicList",)
    yield ("consumerProgress", "-g", "billing")
    yield ("consumerProgress",)
    yield ("getConsumerConfig", "-g", "billing")
    for more in ((), ("-d", "false"), ("-s", "Tag1 || TagN"), ("-d", "true", "-c", "ISO-8859-1")):
        yield ("printMsg", "-t", "Orders", *more)
    yield ("printMsg", "-t", "Alone")
    middle = str(facts.middle_ms)
    for window in (("-b", middle), ("-e", middle), ("-b", middle, "-e", str(facts.middle_ms + 1)), ("-e", "0")):
        yield ("printMsg", "-t", "Plain", "-d", "false", *window)
    yield from (("queryMsgTraceById", "-i", one) for one in (*facts.traced_ids, "missing"))
    yield ("queryCq", "-t", "Orders", "-q", "0", "-i", "2", "-c", "3")


def record(cluster: Cluster) -> list[AnsweredLine]:
    """Run mqadmin's lines, while nothing more is stored."""
    facts = send_messages(cluster)
    ends = _ends(cluster)
    answered = [AnsweredLine(line, _answer(cluster, line)) for line in list_lines(cluster, facts)]
    assert ends == _ends(cluster), "a broker stored a message while mqadmin ran"
    return answered


def _ends(cluster: Cluster) -> Sequence[int]:
    return [broker.log_end() for broker in cluster.brokers.values()]


def _answer(cluster: Cluster, line: Line) -> MqadminOutput:
    """
    Return the output of mqadmin.

    A client asks the brokers for a key at the same time, and prints their messages in the order in which they answer.
    The call is repeated until the first master has answered first.
    """
    answers = (cluster.mqadmin(*line) for _ in range(_CALLS))
    if line[0] != "queryMsgByKey":
        return next(answers)
    return min(islice(answers, _CALLS), key=lambda answer: _find_order(cluster, line, answer))


def _find_order(cluster: Cluster, line: Line, answer: MqadminOutput) -> list[int]:
    """Return for each line of a message the number of its master."""
    ids = [row.split()[0] for row in answer.stdout.splitlines()[1:]]
    return [_find_master(cluster, line[2], one) for one in ids]


def _find_master(cluster: Cluster, topic: str, message_id: str) -> int:
    own = {name: cluster.brokers[name].find_offsets(topic, message_id) for name in MASTERS}
    return next(number for number, name in enumerate(MASTERS) if own[name])


def store_as_golden(release: str, out: Path) -> Path:
    """Archive the stores of a cluster and mqadmin's answers, with their provenance and the hash of every file."""
    name = f"b{release.replace('.', '')}-cluster"
    with tempfile.TemporaryDirectory(prefix="oracle-cluster-") as scratch:
        place = Path(scratch) / name
        with Cluster(release, Path(scratch) / "run") as cluster:
            answered = record(cluster)
        for broker in cluster.brokers:
            shutil.copytree(cluster.store_of(broker), place / broker, ignore=shutil.ignore_patterns(*_NOT_KEPT))
        (place / "EXPECT").mkdir()
        for number, one in enumerate(answered, 1):
            (place / "EXPECT" / f"{number:02}-{one.arguments[0]}.txt").write_text(
                f"# mqadmin {shlex.join(one.arguments)}\n# ---- stdout ----\n{one.printed.stdout}"
                f"# ---- stderr ----\n{one.printed.stderr}",
                encoding="utf-8",
            )
        (place / "PROVENANCE.md").write_text("\n".join((*_provenance(release, place), "")), encoding="utf-8")
        return Path(shutil.make_archive(str(out / name), "xztar", scratch, name))


def _provenance(release: str, place: Path) -> Iterator[str]:
    yield f"# {place.name}"
    yield f"* Apache RocketMQ **{release}**: a name server, and {' and '.join(MASTERS)} with a slave each"
    yield f"* `EXPECT/`: mqadmin's answers; of queryMsgByKey, one in which {MASTERS[0]} answered first"
    yield f"* not kept, where a broker left it: {', '.join(_NOT_KEPT)}"
    yield f"* delay levels: {SHORT_DELAYS}\n\n## sha256"
    for broker in sorted(path for path in place.iterdir() if path.is_dir()):
        for name, data in read_files(broker).items():
            yield f"{hashlib.sha256(data).hexdigest()}  {broker.name}/{name}"
    yield "\n## JARs"
    yield from sorted(jar.name for jar in class_path_of(release) if jar.name.startswith("rocketmq-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=store_as_golden.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--release", action="append", required=True)
    chosen = parser.parse_args()
    for release in chosen.release:
        print(store_as_golden(release, chosen.out), flush=True)


if __name__ == "__main__":
    main()
