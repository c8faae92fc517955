"""Faults in stores of other kinds: DLedger, several paths, extensions, batches, other releases."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.console.result import ExitCode
from jobs.diagnosis.findings import INDEX, LOG, QUEUES
from jobs.diagnosis.kinds import DELETED_OR_LOST_QUEUE
from jobs.lake.lake import Lake
from jobs.products.index.settings import GivenSettings
from jobs.products.queues import DifferenceKind
from jobs.repair.run import RepairRequest, RepairSummary, repair, undo
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.broker_conf import BrokerConf, parse_broker_conf
from tests.golden import StoreOf, release_of
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker
from tests.support.commands import overwrite
from tests.support.fault_kinds import GEOMETRY, SETTINGS
from tests.support.lakes import ingest_store
from tests.support.stores import flip, list_segments, log_folders, read_store_files

_EXTENDED = parse_broker_conf(b"enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=2000\n")
_KINDS = {
    "b420-base": BrokerConf(), "b514-base": BrokerConf(), "b551-base": BrokerConf(),
    "b498-dledger": BrokerConf(), "b533-dledger": BrokerConf(), "b498-multipath": BrokerConf(),
    "b498-cqext": _EXTENDED, "b533-types": BrokerConf(), "b551-types": BrokerConf(),
}  # fmt: skip


class Kind(NamedTuple):
    """A store to damage, the folder of its log, and a lake with all of its messages."""

    name: str
    store: Path
    lake: Path
    conf: BrokerConf

    def segments(self) -> list[Path]:
        folders = [*self.store.glob("commitlog"), *self.store.glob("commitlog-?"), *self.store.glob("dledger-*/data")]
        return sorted((path for folder in folders for path in folder.iterdir()), key=lambda path: path.name)

    def repair_store(self, *, with_lake: bool) -> RepairSummary:
        wanted = GivenSettings(GEOMETRY.hash_slots, GEOMETRY.index_num, release_of(self.name), None, self.conf)
        lake, out = Lake(str(self.lake)) if with_lake else None, self.store.parent / "repair"
        folders = log_folders(self.store)
        request = RepairRequest(str(self.store), out, lake, None, wanted, apply=True, commitlog=folders)
        return repair(request, SerialWorkers())


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
    """Return whether a topic without queues may have been deleted: these brokers do not list all topics."""
    return kind.name.endswith("-types") and fault in {"queues missing", "batches missing"}


@pytest.mark.sample(11)
@pytest.mark.parametrize("with_lake", [True, False])
@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_is_repaired_from_log_and_lake_and_can_be_undone(
    healthy: Kind, kind: Kind, fault: str, *, with_lake: bool
) -> None:
    """Without a lake, only findings that need the lost bytes remain."""
    _FAULTS[fault](kind)
    damaged = read_store_files(kind.store)
    summary = kind.repair_store(with_lake=with_lake)

    assert summary.verdict_after is not None
    left = {one.part for one in summary.verdict_after.findings if not one.follows and one.severity.is_alarm}
    if with_lake:
        kinds = {finding.kind for finding in summary.verdict_after.findings}
        undecided = (ExitCode.DAMAGE, {DELETED_OR_LOST_QUEUE})
        assert (summary.exit_code, kinds) == (undecided if is_undecided(kind, fault) else (ExitCode.CLEAN, set()))
        assert [path.read_bytes() for path in healthy.segments()] == [path.read_bytes() for path in kind.segments()]
    else:
        is_of_queues = fault == "queues missing" or is_undecided(kind, fault)
        assert left == ({LOG} if fault in _OF_THE_LOG else {QUEUES} if is_of_queues else set())
        assert summary.asks_for_sizes == (fault == "queues missing")  # their former size is unknown
    if summary.plan:
        undo(str(kind.store), kind.store.parent / "repair")
    assert read_store_files(kind.store) == damaged


# The segments are tiny: in each pass, an additional fourth of a segment is read, for example to find the log's end.
@pytest.mark.parametrize(("has_lost_files", "most"), [(False, 2.3), (True, 2.4)])
def test_a_repair_reads_segments_that_stay_once_for_each_purpose(
    store: Path, tmp_path: Path, reads: Counter[int], has_lost_files: bool, most: float
) -> None:
    lake = tmp_path / "lake"
    ingest_store(store, lake, release="5.3.3")
    overwrite(sorted((store / "commitlog").iterdir())[2], 4096, bytes(4096))
    if has_lost_files:
        min((store / "consumequeue" / "T1").glob("*/0*0")).unlink()
        min((store / "index").iterdir()).unlink()
    segment = sorted((store / "commitlog").iterdir())[1].stat()
    reads.clear()

    summary = repair(
        RepairRequest(str(store), tmp_path / "repair", Lake(str(lake)), None, SETTINGS, apply=True), SerialWorkers()
    )

    assert summary.exit_code is ExitCode.CLEAN
    assert 1 < reads[segment.st_ino] / segment.st_size <= most


def test_a_repair_from_a_lake_reads_the_newest_segment_less_than_six_times(tmp_path: Path, reads: Counter[int]) -> None:
    """Twice to verify it, because a broker may write to it, twice to compare it with the lake, and once to rebuild."""
    broker = Broker(tmp_path / "store", segment_size=4 << 20)
    broker.append(
        make_record(bytes([number % 251]) * 2000, properties={"TAGS": "TagA"}, store_timestamp=STORED + number)
        for number in range(1900)
    )
    ingest_store(broker.root, tmp_path / "lake")
    (segment,) = list_segments(broker.root)
    overwrite(segment, segment.stat().st_size // 3, bytes(4096))
    reads.clear()

    request = RepairRequest(str(broker.root), tmp_path / "repair", Lake(str(tmp_path / "lake")), None, SETTINGS)
    summary = repair(request, SerialWorkers())

    assert f"replaced: commitlog/{segment.name}" in summary.plan
    assert 1 < reads[segment.stat().st_ino] / segment.stat().st_size < 5.2


@pytest.mark.parametrize("is_damaged", [False, True])
def test_verify_reads_each_segment_once(store: Path, reads: Counter[int], is_damaged: bool) -> None:
    segments = list_segments(store)
    if is_damaged:
        overwrite(segments[2], 4096, bytes(4096))

    verdict = verify(VerifyRequest(str(store), SETTINGS), SerialWorkers())

    assert (DifferenceKind.UNIT_OF_DAMAGED_RECORD in {finding.kind for finding in verdict.findings}) is is_damaged
    assert verdict.parts[INDEX].numbers["equal"] > 1
    for segment in segments[:-1]:
        assert 1 <= reads[segment.stat().st_ino] / segment.stat().st_size < 1.5, segment
