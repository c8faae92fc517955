"""
The queue storage of 5.x brokers: each kind, with and without light queues, stopped cleanly and killed.

Rows, units and limits that this project reads from a copy of the store are compared with the broker's own answers.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.query.store_reader import StoreReader
from jobs.query.store_source import StoreSource
from jobs.requests.verify import VerifyRequest
from jobs.store.queue_storage import QueueStorage, detect_queue_storage
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.release import Release
from tests.oracle.judge import rebuild_queue_directory
from tests.oracle.releases import marks, version_of
from tests.oracle.sessions import ClientMessage, RealBroker, real_broker
from tests.oracle.verdicts import verdict
from tests.support.lakes import ingest_store, rows_of

RELEASES: Final = ("5.3.3", "5.4.0", "5.5.1")
KILLED: Final = "killed"
_ENDS: Final = ("clean stop", KILLED)
_FOR_LIGHT_SINCE: Final = (5, 5, 0)

Settings: TypeAlias = tuple[tuple[str, str], ...]

_LIGHT: Final[Settings] = (("enableLmq", "true"), ("enableMultiDispatch", "true"))
_ROCKSDB: Final[Settings] = (("storeType", "defaultRocksDB"),)
_OWN_DIRECTORY: Final[Settings] = (("useSeparateStorePathForRocksdbCQ", "true"),)
_TWICE: Final[Settings] = (("rocksdbCQDoubleWriteEnable", "true"),)
_FOR_LIGHT: Final[Settings] = (("combineCQUseRocksdbForLmq", "true"),)
_SELECTIVE: Final[Settings] = (("rocksdbCQSelectiveDoubleWriteEnable", "true"),)
_READ: Final[Settings] = (("combineCQPreferCQType", "defaultRocksDB"),)
_IN_CHARGE: Final[Settings] = (*_READ, ("combineAssignOffsetCQType", "defaultRocksDB"))
_ALONE: Final[Settings] = (*_IN_CHARGE, ("combineCQLoadingCQTypes", "defaultRocksDB"))


class Kind(NamedTuple):
    """A kind of store: its settings, and the first releases that support it, refuse it, and dispatch light queues."""

    name: str
    settings: Settings
    since: str = "5.3.3"
    refused_since: str = "9.0.0"
    takes_light_since: str = "5.3.3"

    @property
    def is_double(self) -> bool:
        return _TWICE[0] in self.settings

    @property
    def storage(self) -> QueueStorage:
        """Where the queues are stored: with `storeType=defaultRocksDB`, double write creates no files."""
        if _ROCKSDB[0] in self.settings or _ALONE[-1] in self.settings:
            return QueueStorage.ROCKSDB
        return QueueStorage.BOTH if self.is_double else QueueStorage.FILES

    def settings_on(self, release: str) -> dict[str, str]:
        """Return the settings; from 5.5.0 on, double write needs light queues in RocksDB."""
        is_needed = self.is_double and _ROCKSDB[0] not in self.settings and version_of(release) >= _FOR_LIGHT_SINCE
        return dict(self.settings + (_FOR_LIGHT if is_needed else ()))


KINDS: Final = (
    Kind("files", ()),
    Kind("files", _TWICE),
    Kind("files, RocksDB in a separate directory", _TWICE + _OWN_DIRECTORY, "5.5.0"),
    Kind("files; double write of LITE topics only", _TWICE + _SELECTIVE, "5.5.1"),
    Kind("RocksDB", _ROCKSDB),
    Kind("RocksDB", _ROCKSDB + _TWICE),
    Kind("RocksDB in a separate directory", _ROCKSDB + _OWN_DIRECTORY, "5.5.0"),
    Kind("combined; RocksDB serves reads", _TWICE + _READ, "5.4.0", takes_light_since="5.5.0"),
    Kind("combined; RocksDB serves reads and assigns queue offsets", _TWICE + _IN_CHARGE, "5.4.0", "5.5.0", "5.5.0"),
    Kind("combined; only RocksDB is loaded", _TWICE + _ALONE, "5.4.0", "5.5.0"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of store on a release, with or without light queues, stopped or killed."""

    release: str
    kind: Kind
    is_light: bool
    end: str

    @property
    def way(self) -> str:
        double, light = ("on" if on else "off" for on in (self.kind.is_double, self.is_light))
        return f"{self.kind.name} | {double} | {light} | {self.end}"

    @property
    def settings(self) -> dict[str, str]:
        return self.kind.settings_on(self.release) | dict(_LIGHT if self.is_light else ())

    @property
    def leaves_out_plain(self) -> bool:
        """Whether light queues that are not of a LITE topic have no units."""
        return _SELECTIVE[0] in self.kind.settings

    def __str__(self) -> str:
        return "-".join((self.release, *self.way.replace(",", "").replace(" | ", " ").split()))


def cells() -> Iterator[Cell]:
    """Yield the cells that can be played: brokers start, and dispatch all messages."""
    for release, kind, is_light, end in product(RELEASES, KINDS, (False, True), _ENDS):
        first = max(kind.since, kind.takes_light_since) if is_light else kind.since
        if version_of(first) <= version_of(release) < version_of(kind.refused_since):
            yield Cell(release, kind, is_light, end)


QueueId: TypeAlias = tuple[str, int]
Row: TypeAlias = tuple[str, int, int, int, str]

_TOPICS: Final = ("Orders", "Bills")
_SCHEDULED: Final = ("SCHEDULE_TOPIC_XXXX", 17)
_LONGEST_DELAY: Final = 18  # two hours: no delivery during the test
_LIGHT_QUEUES: Final = ("%LMQ%one", "%LMQ%two")
_PARENT: Final = "Lite"
_CHILDREN: Final = ("a", "b")
_LITE_SINCE: Final = (5, 5, 0)
_COUNT: Final = 90
_UNANSWERED: Final = 12
# Not in every run: golden stores have these kinds, with the answers of their brokers.
_PLAYED: Final = [pytest.param(cell, id=str(cell), marks=marks(in_every_run=False)) for cell in cells()]


class Queue(NamedTuple):
    """The first queue offset of a queue, that of its next message, and the physical offsets of its messages."""

    first: int
    end: int
    places: list[int]


class Answers(NamedTuple):
    """The answers of a broker."""

    rows: list[Row]
    queues: dict[QueueId, Queue]


@pytest.mark.parametrize("cell", _PLAYED)
def test_a_store_has_the_messages_that_its_broker_serves(tmp_path: Path, cell: Cell) -> None:
    """After a clean stop, the stopped broker's answers count; after a kill, those of its next start."""
    store, copy, lake = (tmp_path / name for name in ("store", "copy", "lake"))
    with real_broker(cell.release, store, settings=cell.settings) as broker:
        _make_topics(broker, cell)
        _send(broker, cell, _COUNT)
        answers = _answers(broker, cell)
        if cell.end == KILLED:
            _send(broker, cell, _UNANSWERED)
            broker.driver.kill()
    shutil.copytree(store, copy)
    before = answers
    if cell.end == KILLED:
        with real_broker(cell.release, store, settings=cell.settings) as broker:
            answers = _answers(broker, cell)
    ingest_store(copy, lake, "b0")
    found = verify(VerifyRequest(str(copy)), SerialWorkers())
    units = _units_of(lake, cell)
    behind = found.parts["queues"].numbers["behind"]

    assert detect_queue_storage(list_store(str(copy))) is cell.kind.storage
    assert all(row in answers.rows for row in before.rows)
    assert [row for row in _rows_of(lake) if row[0] in _TOPICS] == answers.rows
    assert sorted(row[3] for row in _rows_of(lake)) == sorted(
        place for name, queue in answers.queues.items() if not name[0].startswith("%LMQ%") for place in queue.places
    )
    assert found.findings == []
    assert found.exit_code is ExitCode.CLEAN
    assert found.severity in {Severity.HEALTHY, *([Severity.BEHIND] if cell.end == KILLED else [])}
    for name, queue in answers.queues.items():
        expected = list(enumerate(queue.places, queue.first))

        assert units.get(name, []) == (expected[: len(units.get(name, []))] if behind else expected)

    assert units.keys() <= answers.queues.keys()
    for name, queue in _read(copy, cell).items():
        if name in units and behind:
            assert queue.places == answers.queues[name].places[: len(queue.places)]
        elif not (cell.leaves_out_plain and _is_plain(name) and behind):
            assert _reduce_to_broker(answers.queues[name], queue, name, cell) == answers.queues[name]
    rebuilt = _rebuild(copy, tmp_path / "out", cell)
    for name, queue in answers.queues.items():
        if not (cell.leaves_out_plain and _is_plain(name)):
            assert _reduce_to_broker(queue, rebuilt[name], name, cell) == queue
    verdict(cell.release, cell.way, _describe(answers, units, found))


def _make_topics(broker: RealBroker, cell: Cell) -> None:
    for topic in _TOPICS:
        broker.make_topic(topic, 2)
    if _has_lite(cell):
        broker.make_topic(_PARENT, 1, message_type="LITE")


def _send(broker: RealBroker, cell: Cell, count: int) -> None:
    broker.send_each(_message(number, cell) for number in range(count))


def _message(number: int, cell: Cell) -> ClientMessage:
    topic = _TOPICS[number // 3 % 2]
    body = bytes(200)
    tags = f"Tag{number % 3}"
    keys = f"k-{number}"
    if cell.is_light and number % 3 == 0:
        names = ",".join(_LIGHT_QUEUES[: 1 + number % 2])
        return ClientMessage(topic, body, tags, keys, properties={"INNER_MULTI_DISPATCH": names})
    if _has_lite(cell) and number % 3 == 1:
        return ClientMessage(_PARENT, body, tags, keys, properties={"__LITE_TOPIC": _CHILDREN[number % 2]})
    return ClientMessage(topic, body, tags, keys, delay_level=None if number % 10 else _LONGEST_DELAY)


def _has_lite(cell: Cell) -> bool:
    return cell.is_light and version_of(cell.release) >= _LITE_SINCE


def _queues(cell: Cell) -> list[QueueId]:
    light = [(name, 0) for name in _LIGHT_QUEUES] if cell.is_light else []
    lite = [(_PARENT, 0), *((f"%LMQ%${_PARENT}${child}", 0) for child in _CHILDREN)] if _has_lite(cell) else []
    return [*((topic, queue) for topic in _TOPICS for queue in range(2)), _SCHEDULED, *light, *lite]


def _is_plain(name: QueueId) -> bool:
    return name[0] in _LIGHT_QUEUES


def _answers(broker: RealBroker, cell: Cell) -> Answers:
    broker.drain()
    rows = [(topic, *message) for topic in _TOPICS for message in broker.pull(topic)]
    read = {name: [place for _, place in broker.read_queue(*name)] for name in _queues(cell)}
    return Answers(sorted(rows), {name: Queue(*broker.queue_edges(*name), places) for name, places in read.items()})


def _rows_of(lake: Path) -> list[Row]:
    names = ("topic", "queue_id", "queue_offset", "physical_offset")
    return sorted((*(row[name] for name in names), " ".join(row["keys"])) for row in rows_of(lake))


def _units_of(lake: Path, cell: Cell) -> dict[QueueId, list[tuple[int, int]]]:
    units: dict[QueueId, list[tuple[int, int]]] = {}
    for row in rows_of(lake, "consume_queue", "queue_offset"):
        name = (row["topic"], row["queue_id"])
        if row["status"] == "missing" and cell.leaves_out_plain and _is_plain(name):
            continue
        assert row["status"] == "matched"
        units.setdefault(name, []).append((row["queue_offset"], row["physical_offset"]))
    return units


def _read(store: Path, cell: Cell) -> dict[QueueId, Queue]:
    with StoreReader(list_store(str(store))) as reader:
        source = StoreSource(reader, Release.from_version(cell.release))
        queues = {}
        for name in _queues(cell):
            first, end = source.queue_offsets(*name) or (0, 0)
            units = [source.read_unit(*name, number) for number in range(first, end)]
            queues[name] = Queue(first, end, [unit.physical_offset for unit in units if unit])
    return queues


def _reduce_to_broker(theirs: Queue, ours: Queue, name: QueueId, cell: Cell) -> Queue:
    """
    Return the messages of a queue in the log, from the broker's first queue offset on.

    A killed broker rebuilds the light queues that it had only in memory from the offset where its dispatch continues.
    Earlier messages are in the log, but no longer in a queue.
    """
    missing = theirs.first - ours.first
    if cell.end == KILLED and name[0].startswith("%LMQ%") and missing > 0:
        return Queue(theirs.first, ours.end, ours.places[missing:])
    return ours


def _rebuild(store: Path, out: Path, cell: Cell) -> dict[QueueId, Queue]:
    for directory in store.glob("consumequeue*"):
        shutil.rmtree(directory)
    rebuild_queue_directory(store, out, cell.release).rename(store / "consumequeue")
    return _read(store, cell)


def _describe(answers: Answers, units: dict[QueueId, list[tuple[int, int]]], found: Verdict) -> str:
    kept = sum(map(len, units.values()))
    all_units = sum(len(queue.places) for queue in answers.queues.values())
    if kept == all_units:
        return f"equal; {found.severity}"
    return f"{'equal as far as dispatched' if kept else 'no unit on disk'}; {found.severity}"
