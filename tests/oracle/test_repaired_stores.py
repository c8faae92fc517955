"""The matrix of faults, repaired: a broker starts on each outcome and serves every message whose bytes are there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.lake.lake import Lake
from jobs.repair.run import RepairRequest, repair
from jobs.store.workers import OneByOne
from tests.golden import StoreOf
from tests.oracle.judge import records
from tests.oracle.process import DriverProcess, running
from tests.oracle.sessions import Consumed, open_broker
from tests.support.faults import SEGMENT, STORE, WANTED, Fault, faults
from tests.support.lakes import ingest_store
from tests.support.stores import content_of

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
