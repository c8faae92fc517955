"""Compare answers with the recorded output of the real mqadmin, and with the recorded answers of brokers."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.command_line import cli
from jobs.library import open_source
from jobs.query import KeyQuery, lookups
from jobs.query.lookups import KEY_QUERY_LIMIT
from jobs.query.source import ReasonKind
from rmq_formats.commitlog.layout import MAGIC_V1
from rmq_formats.indexfile.keys import KeyKind
from rmq_formats.rocksdb import layout as rocksdb_rows
from tests.golden import (
    FEATURES,
    GOLDEN,
    WRITTEN_BY_THE_STOP,
    FeatureStore,
    StoreOf,
    kill_with_database,
    release_of,
    unpack_feature,
)
from tests.support.lakes import ingest_store

BASES = tuple(name for name in GOLDEN if name.endswith("-base"))
_STDOUT, _STDERR = b"# ---- stdout ----\n", b"# ---- stderr ----\n"
_TRACKS = b"WARN: No Consumer"  # only a broker knows which groups have consumed a message
MAGIC = MAGIC_V1.to_bytes(4, "big", signed=True)
_BODY_PATH = b"/tmp/rocketmq/msgbodys/"


# After these lines were answered, the broker checked a pending transaction, stored it again and committed it.
_ANSWERED_BEFORE_THE_END = {
    ("b533-base", "05-queryMsgByKey-hit-tx"),
    ("b533-base", "06-queryMsgByKey-hit-half"),
    ("b533-base", "37-queryMsgByOffset-hit-big"),
    ("b551-base", "05-queryMsgByKey-hit-tx"),
    ("b551-base", "06-queryMsgByKey-hit-half"),
}
_CHECKED = b"TRANSACTION_CHECK_TIMES"


class RecordedCall(NamedTuple):
    """A call of the real mqadmin, and its output."""

    arguments: list[str]
    stdout: bytes
    new_bodies: list[str]


def read_recorded_calls(path: Path) -> RecordedCall:
    head, _, rest = path.read_bytes().partition(_STDOUT)
    call, outcome = head.decode().splitlines()[:2]
    bodies = re.search(r"new body files: \[(.*)\]", outcome)
    return RecordedCall(
        shlex.split(call.removeprefix("# mqadmin ")),
        rest[: rest.rindex(_STDERR)],
        [name for name in (bodies[1] if bodies else "").split(", ") if name],
    )


def copy_before_check(store: Path, directory: Path) -> Path:
    """Copy a store without the records and units that the broker wrote after it checked a transaction."""
    copy = Path(shutil.copytree(store, directory / store.name))
    segments = sorted((copy / "commitlog").iterdir())
    end = min(_find_start_of_check(segment) for segment in segments)
    for segment in segments:
        keep = max(min(end - int(segment.name), segment.stat().st_size), 0)
        segment.write_bytes(segment.read_bytes()[:keep].ljust(segment.stat().st_size, b"\0"))
    for queue in (copy / "consumequeue").rglob("0*"):
        if queue.is_file():
            units = [queue.read_bytes()[at : at + 20] for at in range(0, queue.stat().st_size, 20)]
            queue.write_bytes(b"".join(unit if int.from_bytes(unit[:8]) < end else bytes(20) for unit in units))
    return copy


def _find_start_of_check(segment: Path) -> int:
    """Return the offset of the first record that the check wrote; the end of the segment if it has none."""
    data = segment.read_bytes()
    found = data.find(_CHECKED)
    return 1 << 62 if found < 0 else int(segment.name) + data.rfind(MAGIC, 0, found) - 4


# Pulls and queryCq end at the ends of ConsumeQueue files; a lake has none, so it finds more, without empty pulls.
_END_WITH_A_QUEUE_FILE = ("printMsg-tag", "queryCq-tail")


@pytest.mark.sample(2)
@pytest.mark.parametrize("place", ["store", "lake"])
@pytest.mark.parametrize("name", BASES)
def test_each_recorded_line_is_answered_byte_for_byte(
    name: str, place: str, golden: StoreOf, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    store = golden(name)
    lake = tmp_path / "lake"
    before_check = {case for of, case in _ANSWERED_BEFORE_THE_END if of == name}
    earlier = copy_before_check(store, tmp_path) if before_check else store
    if place == "lake":
        ingest_store(store, lake, "b0", release=release_of(name))
    written: dict[str, bytes] = {}
    for path in sorted((store / "EXPECT").glob("[0-9]*.txt")):
        is_earlier = path.stem in before_check
        if place == "lake" and (is_earlier or path.stem.endswith(_END_WITH_A_QUEUE_FILE)):
            continue
        call = read_recorded_calls(path)
        asked = lake if place == "lake" else earlier if is_earlier else store
        bodies = tmp_path / path.stem
        own = ["--broker", "b0", f"--{place}", str(asked), "--release", release_of(name), "--time-zone", "UTC"]
        code = cli.main(["query", "mqadmin", *own, "--body-dir", str(bodies), *call.arguments])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()

        expected = call.stdout.replace(_TRACKS, b"").replace(_BODY_PATH, f"{bodies}/".encode())

        assert expected == captured.out, path.name
        is_hit = bool(expected)
        # The earlier log ends before messages to which the final index points.
        codes = {0, 3} if is_earlier else {0}

        assert code in (codes if is_hit else {5}), (path.name, captured.err)
        assert is_hit or captured.err.startswith(b"rmq-lake: "), path.name
        found = {body.name: body.read_bytes() for body in bodies.glob("*")}

        assert sorted(call.new_bodies) == sorted(found), path.name
        written |= found

    recorded = {path.name: path.read_bytes() for path in (store / "EXPECT" / "msgbodys").iterdir()}

    assert written == {name: body for name, body in recorded.items() if place == "store" or name in written}


_EVERY = (*FEATURES, "b551-compaction", "b551-timerwheel")
Recorded = Callable[[str], FeatureStore]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a function that unpacks each store once, for tests that only read."""
    return cache(partial(unpack_feature, directory=tmp_path_factory.mktemp("recorded")))


def test_light_queues_that_a_killed_broker_had_in_memory_are_answered_from_the_log(tmp_path: Path) -> None:
    """With double write, only RocksDB contains these queues; the answer was 'no such queue'."""
    unpacked = unpack_feature("b551-lmq-selective", tmp_path / "selective")
    kill_with_database(unpacked.root, unpack_feature("b551-rockscq-killed", tmp_path / "killed").root / "consumequeue")
    with open_source(store=str(unpacked.root)) as source:
        for queue, expected in unpacked.answers_before_stop["queues"].items():
            topic, _, queue_id = queue.rpartition("/")
            if topic.startswith("%LMQ%$"):  # of a LITE topic, whose units the broker has written to RocksDB
                limits = source.queue_offsets(topic, int(queue_id))
                units = [source.read_unit(topic, int(queue_id), number) for number, *_ in expected["units"]]

                assert limits == (expected["min"], expected["max"]) > (0, 0)
                assert [unit.physical_offset for unit in units if unit] == [place for _, place, *_ in expected["units"]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("place", ["store", "lake"])
@pytest.mark.parametrize("name", [*_EVERY, "b550-tiered"])
def test_every_queue_has_the_limits_and_messages_that_the_broker_answered(
    recorded: Recorded, tmp_path: Path, name: str, place: str
) -> None:
    """Light queues are not in a lake."""
    unpacked = recorded(name)
    answered = unpacked.answers_on_disk["queues"]
    if place == "lake":
        ingest_store(unpacked.root, tmp_path, "b0")
        answered = {queue: answer for queue, answer in answered.items() if not queue.startswith("%LMQ%")}
    compared = 0
    with open_source(store=unpacked.root) if place == "store" else open_source(lake=tmp_path) as source:
        for queue, expected in answered.items():
            topic, _, queue_id = queue.rpartition("/")
            limits = source.queue_offsets(topic, int(queue_id))

            assert limits is not None or place == "lake", queue
            assert (limits or (0, 0)) == (expected["min"], expected["max"]) or topic in WRITTEN_BY_THE_STOP, queue
            for number, *unit in expected["units"]:
                message = source.by_queue_offset(topic, int(queue_id), number)

                assert message is not None, (queue, number)
                assert message.record.physical_offset == unit[0], (queue, number)
                if place == "store":
                    assert list(source.read_unit(topic, int(queue_id), number) or ()) == unit, (queue, number)
                compared += 1

    assert compared == sum(len(answer["units"]) for answer in answered.values()) > 0


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", _EVERY)
def test_a_key_has_the_messages_that_the_broker_answered(recorded: Recorded, name: str) -> None:
    unpacked = recorded(name)
    with open_source(store=str(unpacked.root)) as source:
        for question, expected in unpacked.answers_on_disk["keys"].items():
            topic, _, key = question.partition("#")
            if topic in WRITTEN_BY_THE_STOP:
                continue
            hits = islice(source.by_key_hash(KeyQuery(KeyKind.KEY, topic, key)), KEY_QUERY_LIMIT)

            assert sorted(hit.record.physical_offset for hit in hits) == expected, question


def test_without_the_package_keys_come_from_the_log(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with open_source(store=str(recorded("b551-indexrocks").root)) as source:
        answer = lookups.by_key(source, "Orders", "k3")

        assert len(answer.messages) == 1
        assert any("pip install" in note and "so the log is searched" in note for note in answer.notes)


@pytest.mark.parametrize("name", ["b551-transrocks", "b551-transrocks-killed"])
def test_a_transaction_in_rocksdb_is_open_rolled_back_or_committed(recorded: Recorded, name: str) -> None:
    halves: dict[ReasonKind | None, set[int]] = {}
    with open_source(store=str(recorded(name).root)) as source:
        limits = source.queue_offsets(rocksdb_rows.ROCKSDB_HALF_TOPIC, 0)

        assert limits is not None
        for number in range(limits.maximum):
            half = source.by_queue_offset(rocksdb_rows.ROCKSDB_HALF_TOPIC, 0, number)

            assert half is not None
            answer = lookups.by_unique_key(source, "Tx", half.message_id)
            kind = answer.reason.kind if answer.reason else None
            halves.setdefault(kind, set()).add(half.record.physical_offset)

    assert halves.keys() == {None, ReasonKind.HALF, ReasonKind.ROLLED_BACK}
    assert len(halves[ReasonKind.HALF]) == 4  # also for the killed broker: the next one found the same number
    rows = recorded("b551-transrocks").answers_on_disk["rocksdbstore"]["trans"]
    keys = [bytes.fromhex(key) for key, _ in rows]
    pending = {int.from_bytes(key[:8], "big") for key in keys if key != rocksdb_rows.LAST_OFFSET_KEY}

    assert name.endswith("killed") or halves[ReasonKind.HALF] == pending
