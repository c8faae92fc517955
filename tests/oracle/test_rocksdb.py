"""Queues that are converted to RocksDB and back, also across gaps: real brokers open them and continue."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from jobs.repair.run import repair
from jobs.requests.rebuild import FILES, ROCKSDB
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.storage import AnyStorage
from jobs.store.rocksdb import open_database
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import recommend_steps
from rmq_formats.consumequeue.dispatch import PRE_BLANK
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.rocksdb.layout import UNIT_FAMILY
from tests.oracle.judge import rebuild_queue_directory
from tests.oracle.releases import MATRIX, SMALL_GEOMETRY, marks, on_releases, version_of
from tests.oracle.sessions import ClientMessage, RealBroker, real_broker
from tests.oracle.verdicts import verdict

_ROCKSDB_SINCE = (5, 2, 0)
_LIGHT_SINCE = (5, 3, 3)  # 5.2.0 does not write rows of light queues
_TAKES_TOPICS_SINCE = (5, 3, 3)  # from JSON files to RocksDB; 5.2.0 does not do this, and no release converts back
_LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
_ROCKSDB = {"storeType": "defaultRocksDB"}
_TOPICS = ("Orders", "Bills")
_LIGHT_QUEUES = ("%LMQ%one", "%LMQ%two")
_QUIET = "Quiet"  # a topic of one queue, whose messages are the first ones of the log
_COUNT = 120


Rows = dict[tuple[str, int], list[tuple[int, int]]]


@on_releases(since="5.2.0", in_every_run="5.5.0")  # earlier releases move only the topics
@pytest.mark.parametrize("target", ["files", "rocksdb"])
def test_brokers_serve_converted_queues_and_continue_them(tmp_path: Path, release: str, target: str) -> None:
    """Each message of each queue has its queue offset, and the next messages get the predicted ones."""
    store = tmp_path / "store"
    light = _LIGHT if version_of(release) >= _LIGHT_SINCE else {}
    before, after = (light, light | _ROCKSDB) if target == ROCKSDB else (light | _ROCKSDB, light)
    with real_broker(release, store, settings=before) as broker:
        _make_topics(broker)
        _send(broker, "first", light)
        expected = _read_messages(broker)
    _convert(store, tmp_path / "out", release, target)
    with real_broker(release, store, settings=after) as broker:
        broker.drain()
        served = _read_messages(broker)
        if target == FILES or version_of(release) < _TAKES_TOPICS_SINCE:
            _make_topics(broker)
        pulled = sum(len(broker.pull(topic)) for topic in _TOPICS)
        _send(broker, "more", light)
        more = _read_messages(broker)

    assert served == expected
    for queue, rows in expected.items():
        assert more[queue][: len(rows)] == rows
        assert queue[0] in _LIGHT_QUEUES or [number for number, _ in more[queue]] == list(range(len(more[queue])))
        assert len(more[queue]) == 2 * len(rows)

    assert pulled == _COUNT
    again = rebuild_queue_directory(store, tmp_path / "again", release, to=target)

    assert _content(store / "consumequeue", target) == _content(again, target)
    verdict(release, f"queues converted to {target}", f"{pulled} messages served, the same number written")


@on_releases("5.3.3", "5.4.0", "5.5.0", "5.5.1", in_every_run="5.5.1")
@pytest.mark.parametrize("before", ["files", "rocksdb"])
def test_a_broker_rebuilds_queues_in_rocksdb_after_the_old_ones_were_moved_aside(
    tmp_path: Path, release: str, before: str
) -> None:
    """
    All messages are served, except the one at offset 0 of the log: no broker writes its row again.

    So `rebuild-consumequeue --to rocksdb` remains, which also writes rows for lost messages, and the ends of queues
    whose messages have expired. The table of topics is in `topics.json` if the queues were in files, and in RocksDB
    otherwise.
    """
    store, settings = tmp_path / "store", _LIGHT | _ROCKSDB
    with real_broker(release, store, settings=settings if before == "rocksdb" else _LIGHT) as broker:
        _make_topics(broker)
        broker.send_each([ClientMessage(_QUIET, bytes(300))] * 7)
        _send(broker, "first", _LIGHT)
        expected = _read_messages(broker)
    has_table = (store / "config/topics.json").exists()
    (store / "consumequeue").rename(tmp_path / "aside")
    if version_of(release) >= _LIMITED_SINCE:
        settings[_LIMIT] = str(len(list((store / "commitlog").iterdir())))
    with real_broker(release, store, settings=settings) as broker:
        broker.drain()
        served = _read_messages(broker)
        pulled = sum(len(broker.pull(topic)) for topic in _TOPICS)
        _send(broker, "more", _LIGHT)
        more = _read_messages(broker)
    left = {queue: [row for row in rows if row[1]] for queue, rows in expected.items()}
    found = verify(VerifyRequest(str(store)), SerialWorkers())

    assert (before == "files") is has_table
    assert left != expected
    assert left == served
    assert _COUNT == pulled
    assert left == {queue: rows[: len(left[queue])] for queue, rows in more.items()}
    assert [("missing_unit", 0)] == [(one.kind, one.log_offset) for one in found.findings]
    assert ["--to rocksdb" in command for step, _ in recommend_steps(found) for command in step.commands] == [True]


_LOSSES = [(ROCKSDB, one) for one in MATRIX if version_of(one) >= _ROCKSDB_SINCE] + [(FILES, "4.9.8"), (FILES, "5.5.0")]


@pytest.mark.parametrize(
    ("target", "writer"),
    [pytest.param(target, one, marks=marks(in_every_run=one == "5.5.0")) for target, one in _LOSSES],
)
def test_consumers_skip_the_queue_offsets_of_lost_messages(tmp_path: Path, target: str, writer: str) -> None:
    """
    The next message of each queue gets the offset after the last one, even if all messages of the queue have expired.

    In RocksDB, a broker returns nothing after a queue offset without a row, so lost messages have rows; in files they
    have blank units, which the broker leaves as they are.
    """
    store, count = tmp_path / "store", 7
    quiet = [ClientMessage(_QUIET, bytes(300))] * count
    with real_broker(writer, store) as broker:
        _make_topics(broker)
        broker.send_each(quiet)
        _send(broker, "first")
        healthy = _read_messages(broker)
    segments = sorted((store / "commitlog").iterdir())
    lost = segments[2:3] if target == FILES else [segments[0], segments[2]]
    for path in lost:
        path.unlink()
    _convert(store, tmp_path / "out", writer, target)
    with real_broker(writer, store, settings=_ROCKSDB if target == ROCKSDB else {}) as broker:
        broker.drain()
        served = _read_messages(broker)
        edges = {queue: broker.queue_edges(*queue) for queue in healthy}
        _make_topics(broker)
        broker.send_each(quiet)
        _send(broker, "more")
        more = _read_messages(broker)
        pulled = [message.queue_offset for message in broker.pull(_QUIET)]

    size = SMALL_GEOMETRY.commit_log_file_size
    gone = {int(path.name) for path in lost}
    left = {queue: [row for row in rows if row[1] // size * size not in gone] for queue, rows in healthy.items()}
    begins = {queue: rows[0][0] if rows else len(healthy[queue]) for queue, rows in left.items()}

    assert served == left
    assert edges == {queue: (begins[queue], len(rows)) for queue, rows in healthy.items()}
    for queue, rows in left.items():
        ends = range(len(healthy[queue]), 2 * len(healthy[queue]))

        assert [number for number, _ in more[queue]] == [*(number for number, _ in rows), *ends]
    first = 0 if target == FILES else count  # all messages of the queue have expired

    assert begins[_QUIET, 0] == first
    assert pulled == [*range(first, 2 * count)]
    passed = sum(len(healthy[queue]) - begins[queue] - len(rows) for queue, rows in left.items())

    assert passed > 0
    if target == FILES:
        files = (store / "consumequeue").glob("*/*/*")

        assert sum(path.read_bytes().count(UNIT.pack(*PRE_BLANK)) for path in files) == passed
    else:
        verdict(writer, "lost messages converted to rocksdb", "lost offsets skipped, all others served")
        verdict(writer, "expired queues converted to rocksdb", f"the queue continues at queue offset {count}")


def _make_topics(broker: RealBroker) -> None:
    for topic in _TOPICS:
        broker.make_topic(topic, 2)
    broker.make_topic(_QUIET, 1)


def _send(broker: RealBroker, name: str, light: Mapping[str, str] = MappingProxyType({})) -> None:
    for number in range(_COUNT):
        is_light = light and number % 3 == 0
        further = {"INNER_MULTI_DISPATCH": ",".join(_LIGHT_QUEUES[: 1 + number % 2])} if is_light else {}
        topic = _TOPICS[number // 3 % 2]
        broker.send(ClientMessage(topic, bytes(300), "TagA", f"{name}-{number}", properties=further))
    broker.drain()


def _read_messages(broker: RealBroker) -> Rows:
    queues = [(topic, queue) for topic in _TOPICS for queue in range(2)]
    queues += [(name, 0) for name in (*_LIGHT_QUEUES, _QUIET)]
    return {queue: broker.read_queue(*queue) for queue in queues}


def _convert(store: Path, out: Path, release: str, target: str) -> None:
    made = rebuild_queue_directory(store, out, release, to=target)
    shutil.rmtree(store / "consumequeue")
    made.rename(store / "consumequeue")


def _content(directory: Path, target: str) -> dict[str, bytes]:
    if target == FILES:
        return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("*/*/*")}
    with open_database(str(directory), AnyStorage()) as database:
        return {key.hex(): value for key, value in database.items(UNIT_FAMILY)}


_MANY = 300
_LIMITED_SINCE = (5, 4, 0)
_MADE_AGAIN_SINCE = (5, 3, 3)
_LIMIT = "commitLogRecoverMaxNum"


@on_releases(since="5.2.0", in_every_run="5.5.0")
def test_a_broker_rebuilds_queues_in_rocksdb_as_printed_by_a_repair(tmp_path: Path, release: str) -> None:
    """The database is damaged and an index file lost: the repair restores the file and prints the command to run."""
    store = tmp_path / "store"
    settings = dict(_ROCKSDB)
    with real_broker(release, store, settings=settings) as broker:
        broker.make_topic(_TOPICS[0], 2)
        keys = [f"k-{number}" for number in range(_MANY)]
        broker.send_each(ClientMessage(_TOPICS[0], bytes(300 + at), "TagA", key) for at, key in enumerate(keys))
        broker.drain()
        pulled = sorted(broker.pull(_TOPICS[0]))
    min((store / "consumequeue").glob("MANIFEST-*")).unlink()
    sorted((store / "index").iterdir())[2].unlink()
    wanted = SMALL_GEOMETRY.wanted(release)
    summary = repair(RepairRequest(str(store), tmp_path / "repair", given_settings=wanted, apply=True), SerialWorkers())
    (note,) = summary.notes
    subprocess.run(["bash", "-c", note.rpartition(":")[2]], check=True)
    segments = len(list((store / "commitlog").iterdir()))
    if version_of(release) >= _LIMITED_SINCE:
        settings[_LIMIT] = str(segments)
    with real_broker(release, store, settings=settings) as broker:
        broker.drain()
        served = sorted(broker.pull(_TOPICS[0]))

    if version_of(release) < _MADE_AGAIN_SINCE:
        assert not [message for message in served if message.physical_offset]
        return

    assert summary.verdict_after is not None
    assert ["unreadable_database"] == [finding.kind for finding in summary.verdict_after.findings]
    assert f"{_LIMIT}={segments}" in note
    # Such a broker may report that the first message of the log, at offset 0, has expired.
    assert [one for one in pulled if one.physical_offset] == [one for one in served if one.physical_offset]
