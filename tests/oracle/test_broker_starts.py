"""
Damaged and repaired stores, and the behavior of real brokers that start on them.

A start has the result that `verify` predicts, no repair makes a broker delete an intact message, and brokers serve
repaired stores.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from jobs.console.result import RequestError
from jobs.repair.run import repair
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from jobs.verify.verdict import Verdict
from rmq_formats.commitlog.record import MessageRecord, decode_record, encode_record, has_right_body_crc
from rmq_formats.errors import FormatError
from tests.oracle.judge import read_log
from tests.oracle.process import DriverProcess, run_driver
from tests.oracle.releases import SMALL_GEOMETRY, Geometry
from tests.oracle.sessions import ClientMessage, Consumption, DirectMessage, StoreRefusedError, open_broker, open_store
from tests.support.commands import overwrite
from tests.support.fault_draws import draw_case, lake_of, plant_faults
from tests.support.fault_kinds import (
    FIRST_TIME,
    KILLED,
    LOG_DAMAGE,
    MESSAGES,
    NO_DAMAGE,
    OTHER_DAMAGE,
    SEGMENT,
    STALE,
    STEP_MS,
    STORE,
    golden,
    plant_start_faults,
    read_faults,
)
from tests.support.faults import STARTED, Start, recorded_starts

_GEOMETRY = Geometry(commit_log_file_size=SEGMENT, consume_queue_units=20, hash_slots=100, index_entries=60)
_KEEP = {"fileReservedTime": "1000000"}  # hours: some stores are older than a broker's retention
_DONOR = "b514-base"  # source of foreign files
_SAMPLE = {
    "4.9.8": ("page of zeros in the third-to-last segment", "empty last segment", f"queue file cut + {STALE}"),
    "5.3.3": (
        "page of zeros in the last segment",
        "bit in a blank: size",
        "zeros at the end of properties",
        "segment longer",
        f"one queue gone + {STALE}",
    ),
    "5.5.0": (f"bit in a record: body + {STALE}",),
}


def _bytes_at(store: Path, offset: int, size: int) -> bytes:
    """Read bytes of the log; fewer or none if the file is too short or missing."""
    path = store / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}"
    return path.read_bytes()[offset % SEGMENT :][:size] if path.exists() else b""


def _list_intact_messages(store: Path, healthy: Sequence[MessageRecord]) -> set[int]:
    """Return the offsets of the healthy store's messages that are intact in this store."""
    found = set()
    for record in healthy:
        with suppress(FormatError):
            there = decode_record(_bytes_at(store, record.physical_offset, SEGMENT), 0, record.physical_offset)
            is_half = record is healthy[-1] and there.properties_raw.endswith(b"\0")
            if has_right_body_crc(there) and not is_half:
                found.add(record.physical_offset)
    return found


def _files_of(store: Path) -> frozenset[str]:
    return frozenset(
        path.relative_to(store).as_posix()
        for directory in ("commitlog", "consumequeue", "index")
        for path in (store / directory).rglob("*")
        if path.is_file() and (directory != "commitlog" or path.read_bytes().strip(b"\0") or not path.stat().st_size)
    )


class _ServedStore(NamedTuple):
    """A started store: the end of its log, and its messages by queue and queue offset."""

    log_end: int
    messages: frozenset[tuple[str, int, int, int]]  # topic, queue id, queue offset, physical offset


def _start_broker(driver: DriverProcess, store: Path, geometry: Geometry = SMALL_GEOMETRY) -> _ServedStore | None:
    """Start the broker on a store, and return the messages that it serves; None if the broker refuses the store."""
    try:
        with open_store(driver, store, geometry, _KEEP) as opened:
            queues = [
                (topic.name, int(queue.name))
                for topic in (store / "consumequeue").glob("[A-Z]*") for queue in topic.iterdir() if queue.is_dir()
            ]  # fmt: skip
            found = {(*queue, *message) for queue in queues for message in opened.read_queue(*queue)}
            return _ServedStore(opened.log_end(), frozenset(found))
    except StoreRefusedError:
        return None


def _list_lost(served: _ServedStore | None, whole: set[int]) -> int:
    return 0 if served is None else sum(offset >= served.log_end for offset in whole)


class _Broker:
    """A release, and the healthy store that it wrote; compares each start with the prediction."""

    def __init__(self, driver: DriverProcess, root: Path) -> None:
        self.driver, self.root = driver, root
        self.starts: list[Start] = []
        with open_store(driver, root, _GEOMETRY) as opened:
            opened.put_all(
                DirectMessage(
                    f"T{number % 3}", number % 2, f"{number:05}".encode() * 140,
                    f"UNIQ_KEY\1u{number}\2KEYS\1k{number}\2TAGS\1Tag{number % 3}\2",
                    store_timestamp=FIRST_TIME + number * STEP_MS,
                )
                for number in range(MESSAGES)
            )  # fmt: skip
        self.log = read_log(root)

    def planted(self, case: str, store: Path) -> Path:
        return plant_start_faults(case, self.root, store, golden(_DONOR))

    def predict(self, store: Path) -> Verdict:
        return verify(VerifyRequest(str(store), given_settings=_GEOMETRY.wanted(self.driver.release)), SerialWorkers())

    def find_wrong_predictions(self, cases: Sequence[str], directory: Path) -> Iterator[str]:
        for number, case in enumerate(cases):
            store = self.planted(case, directory / str(number))
            whole = _list_intact_messages(store, self.log)
            prediction = self.predict(store)
            before = _files_of(store)
            served = _start_broker(self.driver, store, _GEOMETRY)
            left = _files_of(store)
            lost = _list_lost(served, whole)
            self.starts.append(Start(case, self.driver.release, served is not None, lost, len(before - left)))
            start = prediction.start
            assert start is not None
            # The dispatch after a kill may recreate a queue file.
            files = {file for file in start.deletes_files if not file.startswith("consumeq") or file not in left}
            end = None if served is None else served.log_end
            seen = (end is not None, lost, {*before - left})
            if (start.starts, start.deletes_messages, files) != seen or start.cuts_at not in {None, end}:
                yield f"{self.driver.release}: {case}: said {start}, seen {seen}, the log ends at {end}"
            if (lost or end is None) and not prediction.severity.is_alarm:
                yield f"{self.driver.release}: {case}: verify is green, and the start was not"

    def record(self) -> None:
        """Replace the recorded starts of the same kind and release."""
        replaced = {(start.release, start.is_drawn) for start in self.starts}
        kept = [start for start in recorded_starts() if (start.release, start.is_drawn) not in replaced]
        lines = [json.dumps(one._asdict()) for one in sorted({*kept, *self.starts})]
        STARTED.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module", params=[pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in _SAMPLE])
def driver(request: pytest.FixtureRequest) -> Iterator[DriverProcess]:
    """Run a release, which opens the stores of all tests one after another."""
    with run_driver(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def broker(driver: DriverProcess, tmp_path_factory: pytest.TempPathFactory) -> _Broker:
    return _Broker(driver, tmp_path_factory.mktemp("start") / "store")


def _every_case(_: str) -> Sequence[str]:
    """Return each kind of damage, in closed and killed stores, and combinations."""
    random = Random(int(os.environ.get("BROKER_STARTS_SEED", "20261123")))
    mixed = [
        " + ".join((*random.sample([*LOG_DAMAGE][:20], random.randrange(1, 3)), random.choice([*OTHER_DAMAGE]),
                    *random.choice(((), (KILLED,), (STALE,)))))
        for _ in range(10)
    ]  # fmt: skip
    alone = [*LOG_DAMAGE, *OTHER_DAMAGE]
    return [NO_DAMAGE, KILLED, STALE, *alone, *(f"{one} + {STALE}" for one in alone), *mixed]


def _random_cases(_: str) -> Sequence[str]:
    """Return one to four random faults of each part of a store, in closed and killed stores."""
    return [
        " + ".join((*(f"{kind}:{own}" for kind, own in draw_case(seed).faults),
                    *Random(seed).choice(((), (KILLED,), (STALE,)))))
        for seed in range(81_000_000, 81_000_060)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "are_recorded"),
    [
        pytest.param(_SAMPLE.__getitem__, False, marks=pytest.mark.oracle),
        *(pytest.param(cases, True, marks=pytest.mark.campaign) for cases in (_every_case, _random_cases)),
    ],
)
def test_a_broker_start_has_the_effects_that_verify_predicted(
    broker: _Broker, tmp_path: Path, cases: Callable[[str], Sequence[str]], *, are_recorded: bool
) -> None:
    broker.starts.clear()

    assert [] == list(broker.find_wrong_predictions(cases(broker.driver.release), tmp_path))
    if are_recorded:
        broker.record()


_HISTORIES = (
    f"queue file cut + page of zeros in the early segment + {STALE}",
    "queue file cut + page of zeros in the third-to-last segment",
    f"segment cut + bit in a body, third-to-last segment + {STALE}",
    f"queue file longer + bit in a record: magic + bit in a blank: magic + {KILLED}",
    f"bit in a record: body + {STALE}",
    f"queue files swapped + zeros to the end of the second-to-last segment + {STALE}",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.campaign if at else pytest.mark.oracle) for at, one in enumerate(_HISTORIES)],
)
def test_no_repair_makes_the_broker_delete_messages(broker: _Broker, tmp_path: Path, name: str) -> None:
    """Without bridges, a refused store stays refused; with bridges, every intact message is kept."""
    wanted = _GEOMETRY.wanted_with_conf(broker.driver.release)
    for bridges in (False, True):
        directory = tmp_path / str(bridges)
        store = broker.planted(name, directory / "store")
        whole = _list_intact_messages(store, broker.log)
        before = broker.predict(store).start
        request = RepairRequest(
            str(store), directory / "repair", given_settings=wanted, apply=True, bridge=bridges, deliver_empty=bridges
        )
        summary = repair(request, SerialWorkers())
        served = _start_broker(broker.driver, store, _GEOMETRY)

        assert before is not None
        assert _list_lost(served, whole) <= (0 if bridges else before.deletes_messages or 0)
        if bridges:
            # An undecided queue file may prevent a start, which loses nothing.
            assert served is not None or any(name.startswith("consumequeue/") for name in summary.undecided_files)
            assert summary.withheld_reason is None


# --- repaired stores are served ---


_RELEASE = "5.3.3"  # the release that wrote the store
_FEW = frozenset(
    {"middle segment missing", "last segment cut short", "record: body", "all directories missing", "slot"}
)


@cache
def _served_when_healthy(driver: DriverProcess, store: str) -> _ServedStore:
    with TemporaryDirectory() as directory:
        served = _start_broker(driver, Path(shutil.copytree(golden(store), Path(directory, "store"))))
    assert served is not None
    return served


def _find_wrong_predictions(
    driver: DriverProcess, name: str, store: Path, *, with_lake: bool, kinds: Collection[str] = ()
) -> Iterator[str]:
    """
    Repair a copy of a golden store, and yield each difference between a start and the prediction after the repair.

    Without *kinds* of random faults, every message whose bytes exist is served, even if damage remains.
    """
    wanted = SMALL_GEOMETRY.wanted_with_conf(driver.release)
    lake = lake_of(name) if with_lake else None
    with suppress(RequestError):
        repair(
            RepairRequest(str(store), store.parent / "repair", lake, given_settings=wanted, apply=True), SerialWorkers()
        )
    prediction = verify(VerifyRequest(str(store), given_settings=wanted), SerialWorkers())
    log = read_log(golden(name))
    whole = _list_intact_messages(store, log)
    places = ((one.physical_offset, _bytes_at(store, one.physical_offset, one.total_size), one) for one in log)
    equal = {offset for offset, there, one in places if there == encode_record(one)}
    healthy = _served_when_healthy(driver, name).messages
    seen = _start_broker(driver, store)
    assert prediction.start is not None
    if prediction.start.starts not in {None, seen is not None}:
        yield f"said {prediction.start}, started: {seen is not None}"
    if seen is None or prediction.start.deletes_messages is None:
        return
    lost = _list_lost(seen, whole)
    others = "foreign-segment" in kinds  # the intact messages of these are also counted
    if lost > prediction.start.deletes_messages or (lost < prediction.start.deletes_messages and not others):
        yield f"said {prediction.start}, lost {lost}, log ends at {seen.log_end}"
    if not kinds or not prediction.severity.is_alarm:
        missing = {message for message in healthy if message[3] in equal} - seen.messages
        if missing:
            yield f"not served: {sorted(missing)[:3]} of {len(missing)}"


@pytest.mark.parametrize(
    "names", [pytest.param(_FEW, marks=pytest.mark.oracle), pytest.param(None, marks=pytest.mark.campaign)]
)
def test_a_broker_serves_a_repaired_store(tmp_path: Path, names: frozenset[str] | None) -> None:
    """With a lake, all messages; without one, all except those whose bytes are lost."""
    cases = [fault for fault in read_faults() if names is None or fault.name in names]
    with run_driver(_RELEASE) as driver:
        for number, (fault, with_lake) in enumerate(product(cases, (True, False))):
            store = Path(shutil.copytree(golden(STORE), tmp_path / str(number) / "store"))
            fault.plant(store)
            found = list(_find_wrong_predictions(driver, STORE, store, with_lake=with_lake))

            assert [] == found, (fault.part, fault.name, with_lake)
            shutil.rmtree(store.parent)


_DRAWN = {  # for each release the first draw, and the stores of the draws
    "4.9.8": (810_000, ("b498-crash-before",)),
    "5.3.3": (820_000, ("b533-base", "b533-crash-before")),
    "5.5.0": (830_000, ("b551-base", "b551-crash-before")),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.oracle), pytest.param(30, marks=pytest.mark.campaign)]
)
def test_a_broker_start_on_a_repaired_random_case_has_the_predicted_effects(
    driver: DriverProcess, count: int, tmp_path: Path
) -> None:
    surprises = []
    first, stores = _DRAWN[driver.release]
    for seed in range(first, first + count):
        draw = draw_case(seed)._replace(store=Random(seed).choice(stores))
        store = plant_faults(draw, tmp_path / f"{seed}").root
        kinds = [kind for kind, _ in draw.faults]
        found = _find_wrong_predictions(driver, draw.store, store, with_lake="lake" in draw.options, kinds=kinds)
        surprises += [f"{draw}: {text}" for text in found]

    assert surprises == []


_BRIDGED_TOPIC = "T"
_BRIDGED_MESSAGES = 60


def _receive(driver: DriverProcess, store: Path) -> dict[str, list[int]]:
    with open_broker(driver, store, _GEOMETRY, _KEEP, home=store.parent / "home") as broker:
        received = {f"pull {at_once}": broker.pull(_BRIDGED_TOPIC, at_once=at_once) for at_once in (1, 32)}
        kinds = (False, True) if driver.release >= "5" else (False,)
        for pops in kinds:
            asked = Consumption(
                _BRIDGED_TOPIC, f"group-{pops}", at_least=_BRIDGED_MESSAGES - 1, milliseconds=2000, pops=pops
            )
            received["pop" if pops else "push"] = broker.consume(asked)
    return {kind: sorted({message.physical_offset for message in messages}) for kind, messages in received.items()}


@pytest.mark.oracle
def test_consumers_receive_nothing_for_a_bridge(driver: DriverProcess, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    healthy = tmp_path / "healthy"
    with open_broker(driver, healthy, _GEOMETRY, _KEEP, home=tmp_path / "home") as broker:
        broker.make_topic(_BRIDGED_TOPIC, 1)
        broker.send_each(ClientMessage(_BRIDGED_TOPIC, b"%05d" % number * 80) for number in range(_BRIDGED_MESSAGES))
    log = [record for record in read_log(healthy) if record.topic == _BRIDGED_TOPIC]
    lost = next(one for one in log if one.physical_offset > _GEOMETRY.commit_log_file_size * 3 // 2)
    store = Path(shutil.copytree(healthy, tmp_path / "store"))
    base = lost.physical_offset // _GEOMETRY.commit_log_file_size * _GEOMETRY.commit_log_file_size
    overwrite(store / "commitlog" / f"{base:020d}", lost.physical_offset - base + 4, bytes(100))
    (store / "abort").touch()  # the next start reads the log from its beginning
    (store / "checkpoint").unlink()
    wanted = _GEOMETRY.wanted_with_conf(driver.release)
    request = RepairRequest(str(store), tmp_path / "repair", given_settings=wanted, apply=True, bridge=True)
    repair(request, SerialWorkers())
    received = _receive(driver, store)

    whole = [one.physical_offset for one in log if one is not lost]

    assert dict.fromkeys(received, whole) == received
