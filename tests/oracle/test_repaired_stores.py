"""The matrix of faults, repaired: a broker starts on each outcome and serves every message whose bytes are there."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.repair.run import NotRepairableError, RefusedError, RepairRequest, repair, undo
from jobs.store.release import UndecidedError
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.record import MessageRecord, decode_record, encode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from tests.golden import StoreOf
from tests.oracle.broker_starts import GEOMETRY as BRIDGED_GEOMETRY
from tests.oracle.broker_starts import RELEASES
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess, running
from tests.oracle.sessions import (
    ClientMessage,
    Consumed,
    Consumption,
    DirectMessage,
    RealStore,
    StoreRefusedError,
    open_broker,
    open_store,
)
from tests.oracle.settings import SMALL_GEOMETRY
from tests.support.commands import overwrite
from tests.support.fault_draws import Draw, drawn, planted
from tests.support.faults import GEOMETRY, QUEUE_FILE, SEGMENT, STORE, WANTED, Fault, faults
from tests.support.killed_repairs import Scene, scene_of
from tests.support.lakes import ingest_store
from tests.support.stores import content_of, flip

_RELEASE = "5.3.3"  # that wrote the store
_KEEP = {"fileReservedTime": "1000000"}  # hours: the store is older than a broker keeps its files
_FEW = frozenset({"middle segment missing", "last segment cut short", "record: body", "all folders missing", "slot"})


class Judge:
    """Starts brokers on repaired stores, one for each outcome: stores with the same bytes are served alike."""

    def __init__(self, driver: DriverProcess, healthy: Path, folder: Path) -> None:
        self.driver, self.healthy, self.folder = driver, healthy, folder
        self.lake = folder / "lake"
        ingest_store(healthy, self.lake, release=_RELEASE)
        self._topics = sorted(path.name for path in (healthy / "consumequeue").glob("T*"))  # those of clients
        self._starts = 0
        self._known: list[tuple[dict[str, bytes], list[Consumed]]] = []
        self._sizes = {record.physical_offset: record.total_size for record in records(healthy)}
        self._all = self.served(healthy)

    def served(self, store: Path) -> list[Consumed]:
        content = content_of(store)
        for known, served in self._known:
            if known == content:
                return served
        self._starts += 1
        started = Path(shutil.copytree(store, self.folder / f"started-{self._starts}"))
        with open_broker(self.driver, started, settings=_KEEP, home=self.folder / "home") as broker:
            pulled = sorted(message for topic in self._topics for message in broker.pull(topic, at_once=1))
        served = [message for message in pulled if message.physical_offset in self._sizes]  # not what it adds itself
        self._known.append((content, served))
        return served

    def there(self, store: Path) -> list[Consumed]:
        return [message for message in self._all if self._bytes(store, message) == self._bytes(self.healthy, message)]

    def _bytes(self, store: Path, message: Consumed) -> bytes:
        file, position = divmod(message.physical_offset, SEGMENT)
        path = store / "commitlog" / f"{file * SEGMENT:020d}"
        size = self._sizes[message.physical_offset]
        return path.read_bytes()[position : position + size] if path.exists() else b""


@pytest.fixture(scope="module")
def judge(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Give who starts brokers, one after the other in one process, and knows what the healthy store serves."""
    with running(_RELEASE) as driver:
        yield Judge(driver, golden(STORE), tmp_path_factory.mktemp("repaired"))


def _repaired(judge: Judge, fault: Fault, store: Path, *, with_lake: bool) -> Path:
    shutil.copytree(judge.healthy, store)
    fault.plant(store)
    repair(
        RepairRequest(
            str(store), store.parent / "repair", Lake(str(judge.lake)) if with_lake else None,
            wanted=WANTED, apply=True,
        ),
        OneByOne(),
    )  # fmt: skip
    return store


def _each_is_served(judge: Judge, folder: Path, names: frozenset[str] | None = None) -> None:
    for number, fault in enumerate(faults(judge.healthy)):
        if names is not None and fault.name not in names:
            continue
        for with_lake in (True, False):
            place = folder / f"{number}-{with_lake}"
            store = _repaired(judge, fault, place / "store", with_lake=with_lake)
            lost = sorted({*judge.there(store)} - {*judge.served(store)})
            assert [] == lost, (fault.part, fault.name, with_lake)
            shutil.rmtree(place)


@pytest.mark.oracle
def test_a_broker_serves_what_was_repaired(judge: Judge, tmp_path: Path) -> None:
    """Some faults; `make test-campaign` has all."""
    _each_is_served(judge, tmp_path, _FEW)


@pytest.mark.campaign
def test_a_broker_serves_what_was_repaired_of_every_fault(judge: Judge, tmp_path: Path) -> None:
    """With a lake everything; without one everything but what only the lost bytes could tell."""
    _each_is_served(judge, tmp_path)


STORES = {
    "4.9.8": ("b498-crash-before",),
    "5.3.3": ("b533-base", "b533-crash-before"),
    "5.5.0": ("b551-base", "b551-crash-before"),
}
_FIRST = {"4.9.8": 810_000, "5.3.3": 820_000, "5.5.0": 830_000}  # draws
_DRAWS = 30  # of each release in the campaign


class _Served(NamedTuple):
    """A started store: where its log ends, and its messages by queue and number."""

    log_end: int
    messages: frozenset[tuple[str, int, int, int]]  # topic, queue id, queue offset, physical offset


def _started(driver: DriverProcess, store: Path) -> _Served | None:
    try:
        with open_store(driver, store, settings=_KEEP) as opened:
            queues = [
                (topic.name, int(queue.name))
                for topic in (store / "consumequeue").glob("[A-Z]*") for queue in topic.iterdir()
            ]  # fmt: skip
            found = {(*queue, *message) for queue in queues for message in opened.read_queue(*queue)}
            return _Served(opened.log_end(), frozenset(found))
    except StoreRefusedError:
        return None


class _Left(NamedTuple):
    """The offsets of a healthy store's records that a damaged one has."""

    equal: set[int]  # byte by byte
    whole: set[int]  # as a broker sees it: framed, with the CRC of its body


def _left(store: Path, healthy: Path) -> _Left:
    left = _Left(set(), set())
    for record in records(healthy):
        path = store / "commitlog" / f"{record.physical_offset // SEGMENT * SEGMENT:020d}"
        data, at = path.read_bytes() if path.exists() else b"", record.physical_offset % SEGMENT
        if data[at : at + record.total_size] == encode_record(record):
            left.equal.add(record.physical_offset)
        with suppress(FormatError):
            if has_right_body_crc(decode_record(data, at, record.physical_offset)):
                left.whole.add(record.physical_offset)
    return left


def _surprises(driver: DriverProcess, draw: Draw, healthy: Path, folder: Path) -> Iterator[str]:
    """Yield each difference between a start and what `verify` said after the repair."""
    (folder / "healthy").mkdir(parents=True)
    whole_store = planted(Draw(draw.store, ()), folder / "healthy").root
    served = _started(driver, whole_store)
    assert served is not None
    store = planted(draw, folder).root
    conf = BrokerConf(consume_queue_size=SMALL_GEOMETRY.consume_queue_file_size)
    wanted = Wanted(GEOMETRY.hash_slots, GEOMETRY.index_num, driver.release, conf=conf)
    request = RepairRequest(str(store), folder / "repair", wanted=wanted, apply=True)
    with suppress(NotRepairableError, RefusedError, UndecidedError):
        repair(request, OneByOne())
    said = verify(VerifyRequest(str(store), wanted), OneByOne())
    left = _left(store, healthy)
    seen = _started(driver, store)
    assert said.start is not None
    if said.start.starts not in {None, seen is not None}:
        yield f"said {said.start}, started: {seen is not None}"
    if seen is None or said.start.deletes_messages is None:
        return
    lost = sum(offset >= seen.log_end for offset in left.whole)
    others = any(kind == "foreign-segment" for kind, _ in draw.faults)  # whose whole messages are counted, too
    if lost > said.start.deletes_messages or (lost < said.start.deletes_messages and not others):
        yield f"said {said.start}, lost {lost}, log ends at {seen.log_end}"
    if not said.severity.is_alarm:
        missing = {one for one in served.messages if one[3] in left.equal} - seen.messages
        if missing:
            yield f"not served: {sorted(missing)[:3]} of {len(missing)}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("writer", "count"),
    [
        pytest.param(writer, count, marks=pytest.mark.oracle if count == 1 else pytest.mark.campaign)
        for writer in STORES for count in (1, _DRAWS)
    ],
)  # fmt: skip
def test_a_broker_starts_on_a_repaired_draw_as_verify_says(writer: str, count: int, tmp_path: Path) -> None:
    surprises = []
    with running(writer) as driver:
        for seed in range(_FIRST[writer], _FIRST[writer] + count):
            draw = drawn(seed)._replace(store=Random(seed).choice(STORES[writer]))
            healthy = planted(Draw(draw.store, ()), _new(tmp_path / f"{seed}-was")).root
            found = _surprises(driver, draw, healthy, _new(tmp_path / f"{seed}"))
            surprises += [f"{draw}: {text}" for text in found]
    assert surprises == []


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


_TOPIC, _MORE = "T1", 3


def _plant(store: Path) -> None:
    """Damage files of each part that a broker starts with, and writes on."""
    sorted((store / "commitlog").iterdir())[1].unlink()
    queue, index = store / f"consumequeue/{_TOPIC}/0", sorted((store / "index").iterdir())
    (queue / f"{QUEUE_FILE:020d}").unlink()
    flip(min(queue.iterdir()), 5)
    index[3].unlink()
    flip(index[7], 50)


@pytest.mark.campaign
def test_a_broker_goes_on_after_a_killed_repair_and_no_message_is_lost(golden: StoreOf, tmp_path: Path) -> None:
    scene = scene_of(golden(STORE), _plant, tmp_path)
    healthy = {record.physical_offset for record in records(golden(STORE)) if record.topic == _TOPIC}
    known: list[dict[str, bytes]] = []
    with running(_RELEASE) as driver:
        for number in scene.steps:
            scene.killed_at(number)
            if content_of(scene.store) not in known:  # stores with the same bytes are started alike
                known.append(content_of(scene.store))
                expected = healthy | _written(driver, scene, number)
                with suppress(NotRepairableError):  # the broker wrote into a new file
                    undo(str(scene.store), scene.request.out)
                repair(scene.request, OneByOne())
                with open_store(driver, scene.store, settings=_KEEP) as opened:
                    served = _served(opened, scene.store)
                assert sorted(expected) == sorted(served), number
    assert len(known) > 3  # each part


def _written(driver: DriverProcess, scene: Scene, number: int) -> set[int]:
    """Let the broker start and take messages; return their offsets."""
    with open_store(driver, scene.store, settings=_KEEP) as opened:
        messages = [DirectMessage(_TOPIC, 0, b"more", f"KEYS\1more-{number}-{n}\2") for n in range(_MORE)]
        opened.put_all(messages)
        opened.drain()
    return {record.physical_offset for record in records(scene.store) if record.body == b"more"}


def _served(opened: RealStore, store: Path) -> list[int]:
    queues = sorted(int(queue.name) for queue in (store / "consumequeue" / _TOPIC).iterdir())
    return [offset for queue in queues for _, offset in opened.read_queue(_TOPIC, queue)]


_BRIDGED_TOPIC = "T"
_BRIDGED_MESSAGES = 60


def _plant_zeros(store: Path, lost: MessageRecord) -> None:
    """Zero a record, and let the next start walk the log from its beginning."""
    base = lost.physical_offset // BRIDGED_GEOMETRY.commit_log_file_size * BRIDGED_GEOMETRY.commit_log_file_size
    overwrite(store / "commitlog" / f"{base:020d}", lost.physical_offset - base + 4, bytes(100))
    (store / "abort").touch()
    (store / "checkpoint").unlink()


def _received(driver: DriverProcess, store: Path) -> dict[str, list[int]]:
    """Return the offsets that each kind of consumer receives."""
    with open_broker(driver, store, BRIDGED_GEOMETRY, _KEEP, home=store.parent / "home") as broker:
        received = {f"pull {at_once}": broker.pull(_BRIDGED_TOPIC, at_once=at_once) for at_once in (1, 32)}
        kinds = (False, True) if driver.release >= "5" else (False,)
        for pops in kinds:
            asked = Consumption(
                _BRIDGED_TOPIC, f"group-{pops}", at_least=_BRIDGED_MESSAGES - 1, milliseconds=2000, pops=pops
            )
            received["pop" if pops else "push"] = broker.consume(asked)
    return {kind: sorted({one.physical_offset for one in messages}) for kind, messages in received.items()}


@pytest.mark.oracle
@pytest.mark.parametrize("writer", RELEASES)
def test_no_consumer_receives_anything_for_a_bridge(writer: str, tmp_path: Path) -> None:
    with running(writer) as driver:
        (tmp_path / "home").mkdir()
        healthy = tmp_path / "healthy"
        with open_broker(driver, healthy, BRIDGED_GEOMETRY, _KEEP, home=tmp_path / "home") as broker:
            broker.make_topic(_BRIDGED_TOPIC, 1)
            broker.send_each(
                ClientMessage(_BRIDGED_TOPIC, b"%05d" % number * 80) for number in range(_BRIDGED_MESSAGES)
            )
        log = [record for record in records(healthy) if record.topic == _BRIDGED_TOPIC]
        lost = next(one for one in log if one.physical_offset > BRIDGED_GEOMETRY.commit_log_file_size * 3 // 2)
        store = Path(shutil.copytree(healthy, tmp_path / "store"))
        _plant_zeros(store, lost)
        wanted = BRIDGED_GEOMETRY.wanted(writer)._replace(
            conf=BrokerConf(consume_queue_size=BRIDGED_GEOMETRY.consume_queue_file_size)
        )
        repair(RepairRequest(str(store), tmp_path / "repair", wanted=wanted, apply=True, bridge=True), OneByOne())
        received = _received(driver, store)

    whole = [one.physical_offset for one in log if one is not lost]
    assert dict.fromkeys(received, whole) == received
