"""The same faults in stores of other kinds: DLedger, several paths, extensions, batches, other releases."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.lake.findings import LOG, QUEUES, UNDECIDED_TOPIC
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.repair.run import RepairRequest, RepairSummary, repair, undo
from jobs.store.workers import OneByOne
from rmq_formats.broker_conf import BrokerConf, parse_broker_conf
from tests.golden import StoreOf, release_of
from tests.support.fault_kinds import GEOMETRY
from tests.support.lakes import ingest_store
from tests.support.stores import content_of, flip, log_folders

_EXTENDED = parse_broker_conf(b"enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=2000\n")
_KINDS = {
    "b420-base": BrokerConf(), "b514-base": BrokerConf(), "b551-base": BrokerConf(),
    "b498-dledger": BrokerConf(), "b533-dledger": BrokerConf(), "b498-multipath": BrokerConf(),
    "b498-cqext": _EXTENDED, "b533-types": BrokerConf(), "b551-types": BrokerConf(),
}  # fmt: skip


class Kind(NamedTuple):
    """A store to be damaged, where its log is, and a lake that had all of it before."""

    name: str
    store: Path
    lake: Path
    conf: BrokerConf

    def segments(self) -> list[Path]:
        folders = [*self.store.glob("commitlog"), *self.store.glob("commitlog-?"), *self.store.glob("dledger-*/data")]
        return sorted((path for folder in folders for path in folder.iterdir()), key=lambda path: path.name)

    def repaired(self, *, with_lake: bool) -> RepairSummary:
        wanted = Wanted(GEOMETRY.hash_slots, GEOMETRY.index_num, release_of(self.name), None, self.conf)
        lake, out = Lake(str(self.lake)) if with_lake else None, self.store.parent / "repair"
        folders = log_folders(self.store)
        request = RepairRequest(str(self.store), out, lake, None, wanted, apply=True, commitlog=folders)
        return repair(request, OneByOne())


@pytest.fixture(scope="module", params=_KINDS)
def healthy(request: pytest.FixtureRequest, golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    name: str = request.param
    kind = Kind(name, golden(name), tmp_path_factory.mktemp("repair") / "lake", _KINDS[name])
    ingest_store(kind.store, kind.lake, release=release_of(name), conf=kind.conf, commitlog=log_folders(kind.store))
    return kind


@pytest.fixture
def kind(healthy: Kind, tmp_path: Path) -> Kind:
    return healthy._replace(store=Path(shutil.copytree(healthy.store, tmp_path / "store")))


def _files(kind: Kind, pattern: str) -> list[Path]:
    return sorted(path for path in kind.store.glob(pattern) if path.is_file())


_FAULTS: dict[str, Callable[[Kind], object]] = {
    "middle segment missing": lambda kind: kind.segments()[1].unlink(),
    "a body": lambda kind: flip(kind.segments()[1], kind.segments()[1].read_bytes().index(b"T1") - 2),
    "queues missing": lambda kind: shutil.rmtree(kind.store / "consumequeue"),
    "file of a queue missing": lambda kind: _files(kind, "consumequeue/T1/0/*")[-1].unlink(),
    "a unit": lambda kind: flip(_files(kind, "consumequeue/T1/0/*")[0], 11),
    "batches missing": lambda kind: shutil.rmtree(kind.store / "batchconsumequeue", ignore_errors=True),
    "extensions missing": lambda kind: shutil.rmtree(kind.store / "consumequeue_ext", ignore_errors=True),
    "index missing": lambda kind: shutil.rmtree(kind.store / "index"),
    "a slot": lambda kind: flip(_files(kind, "index/*")[0], 43),
    "checkpoint missing": lambda kind: (kind.store / "checkpoint").unlink(),
}
_OF_THE_LOG = {"middle segment missing", "a body"}


def is_undecided(kind: Kind, fault: str) -> bool:
    """
    Return whether nothing says that a topic without queues was not deleted.

    These brokers were given messages of topics that their table of topics does not list.
    """
    return kind.name.endswith("-types") and fault in {"queues missing", "batches missing"}


@pytest.mark.sample(6)
@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_repaired_from_log_and_lake_and_can_be_undone(healthy: Kind, kind: Kind, fault: str) -> None:
    _FAULTS[fault](kind)
    damaged = content_of(kind.store)
    summary = kind.repaired(with_lake=True)

    assert summary.left is not None
    left = {one.kind for one in summary.left.findings}
    if is_undecided(kind, fault):
        assert (ExitCode.DAMAGE, {UNDECIDED_TOPIC}) == (summary.exit_code, left)
    else:
        assert (ExitCode.CLEAN, set()) == (summary.exit_code, left)
    assert [path.read_bytes() for path in healthy.segments()] == [path.read_bytes() for path in kind.segments()]
    if summary.plan:
        undo(str(kind.store), kind.store.parent / "repair")
    assert content_of(kind.store) == damaged


@pytest.mark.sample(12)
@pytest.mark.parametrize("fault", _FAULTS)
def test_without_a_lake_only_what_the_lost_bytes_could_tell_is_left(kind: Kind, fault: str) -> None:
    _FAULTS[fault](kind)
    damaged = content_of(kind.store)
    summary = kind.repaired(with_lake=False)

    assert summary.left is not None
    left = {one.part for one in summary.left.findings if not one.follows and one.severity.is_alarm}
    assert left == (
        {LOG} if fault in _OF_THE_LOG else {QUEUES} if fault == "queues missing" or is_undecided(kind, fault) else set()
    )
    assert summary.asks_for_sizes == (fault == "queues missing")  # nothing shows how long they were
    if summary.plan:
        undo(str(kind.store), kind.store.parent / "repair")
    assert content_of(kind.store) == damaged
