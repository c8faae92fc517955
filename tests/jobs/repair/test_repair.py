"""A damaged store of any kind is repaired as far as log and lake allow; the rest is reported, and all can be undone."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode
from jobs.diagnosis.findings import INDEX, LOG, QUEUES
from jobs.diagnosis.kinds import DELETED_OR_LOST_QUEUE
from jobs.lake.lake import Lake
from jobs.products.queues.join_result import DifferenceKind
from jobs.repair.run import RepairSummary, repair, undo
from jobs.requests.repair import RepairRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.request import GivenSettings
from jobs.store.running_broker import NotInstalledError
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.broker_conf import BrokerConf, parse_broker_conf
from rmq_formats.commitlog.record import decode_record
from tests.golden import StoreOf, release_of
from tests.rmq_formats.builders import STORED, make_record
from tests.support.broker import Broker
from tests.support.commands import overwrite
from tests.support.fault_kinds import (
    GEOMETRY,
    SEGMENT,
    SETTINGS,
    STORE,
    Fault,
    as_other_user,
    find_damaged_record,
    read_faults,
)
from tests.support.lakes import ingest_store
from tests.support.stores import flip, hold_lock, list_segments, log_folders, read_store_files, tree_state


@pytest.fixture(scope="module")
def healthy(golden: StoreOf) -> Path:
    return golden(STORE)


@pytest.fixture(scope="module")
def lake(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repair") / "lake"
    ingest_store(healthy, directory, release="5.3.3")
    return directory


def repair_store(store: Path, lake: Path | None = None, *, apply: bool = True) -> RepairSummary:
    source = Lake(str(lake)) if lake is not None else None
    return repair(
        RepairRequest(str(store), store.parent / "repair", source, None, given_settings=SETTINGS, apply=apply),
        SerialWorkers(),
    )


_ALL = read_faults()
DENIED = [fault for fault in _ALL if "denied" in fault.name]
FAULTS = [fault for fault in _ALL if "denied" not in fault.name]
QUICK = {
    "middle segment missing", "first segment cut short", "record: body", "record: topic", "middle file missing", "slot",
    "all directories missing", "index time",
}  # fmt: skip


def fault_id(fault: Fault) -> str:
    return f"{fault.part.value}: {fault.name}"


@pytest.mark.sample(2, always=[fault_id(one) for one in FAULTS if one.name in QUICK])
@pytest.mark.parametrize("fault", FAULTS, ids=fault_id)
def test_a_fault_is_repaired_from_log_and_lake_and_can_be_undone(store: Path, lake: Path, fault: Fault) -> None:
    fault.plant(store)
    damaged = read_store_files(store)

    summary = repair_store(store, lake)

    assert summary.verdict_after is not None
    assert 0 == summary.exit_code
    assert [] == summary.verdict_after.findings
    assert bool(summary.plan) == (read_store_files(store) != damaged)
    if summary.plan:
        undo(str(store), store.parent / "repair")

        assert read_store_files(store) == damaged
        assert not list(store.rglob("*.replaced-*"))


@pytest.mark.parametrize("fault", DENIED, ids=fault_id)
def test_a_repair_without_read_permission_changes_nothing(
    healthy: Path, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair_store(Path(shutil.copytree(healthy, tmp_path / "store")))  # compiles, while it may write to the cache
    with TemporaryDirectory() as name:  # other users cannot access pytest's directories
        Path(name).chmod(0o777)
        monkeypatch.setattr("tempfile.tempdir", name)  # nor TMPDIR, perhaps
        store = Path(shutil.copytree(healthy, Path(name, "store")))
        fault.plant(store)
        with as_other_user(Path(name), denied=True), pytest.raises(PermissionError) as error:
            repair_store(store)

        assert str(error.value.filename).endswith(fault.file)
        (store / fault.file).chmod(0o644)

        assert read_store_files(store) == read_store_files(healthy)


def test_a_plan_needs_neither_a_lock_nor_space_nor_permissions(
    store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan only reads: a running broker, a full disk or files of another user prevent only `--apply`."""
    sorted((store / "commitlog").iterdir())[1].unlink()
    sorted((store / "index").iterdir())[3].unlink()
    (store / "lock").write_text("lock")
    (store / "lock").chmod(0o444)
    monkeypatch.setattr("jobs.rebuild.install._SPARE", 1 << 60)
    with hold_lock(store):
        before = tree_state(store)
        plan = repair_store(store, lake, apply=False)

        assert before == tree_state(store)
        with pytest.raises(NotInstalledError, match="a broker is running"):
            repair_store(store, lake)

    assert plan.verdict_after is None
    assert {line.partition("/")[0] for line in plan.plan} >= {"new: index", "new: commitlog"}
    assert any(note.startswith("a broker is running on this store") for note in plan.notes)
    assert any("must stay free for the broker" in note for note in plan.notes)


CHANGED = {
    "flag": "flag + 1",
    "born_host": "'10.9.8.7:6543'",
    "reconsume_times": "reconsume_times + 1",
    "prepared_transaction_offset": "prepared_transaction_offset + 1",
    "queue_offset": "queue_offset + 1",
    "queue_id": "queue_id + 1",
    "topic": "'T9'",
    "sys_flag": "sys_flag + 1",
    "born_timestamp": "born_timestamp + 1",
    "store_timestamp": "store_timestamp + 1",
    "store_host": "'10.9.8.7:6543'",
    "body_crc": "body_crc + 1",
}


def zero_body(store: Path, at: int) -> None:
    path = store / f"commitlog/{at // SEGMENT * SEGMENT:020d}"
    data = path.read_bytes()
    record = decode_record(data, at % SEGMENT, at)
    overwrite(path, data.index(record.body, at % SEGMENT), bytes(len(record.body)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("column", CHANGED)
def test_a_row_that_another_engine_changed_replaces_neither_a_sound_record_nor_a_damaged_one(
    healthy: Path, store: Path, lake: Path, tmp_path: Path, column: str
) -> None:
    at = find_damaged_record(healthy).physical_offset
    altered = Path(shutil.copytree(lake, tmp_path / "lake"))
    DeltaTable(altered / "messages").update({column: CHANGED[column]}, predicate=f"physical_offset = {at}")
    zero_body(store, at // SEGMENT * SEGMENT)  # from another record of the segment

    assert 0 == repair_store(store, altered).exit_code
    assert read_store_files(healthy) == read_store_files(store)

    zero_body(store, at)
    damaged = read_store_files(store)
    summary = repair_store(store, altered)

    assert ExitCode.DAMAGE == summary.exit_code
    assert damaged == read_store_files(store)
    assert any("not used" in note and f"{at:,}" in note for note in summary.notes)


EXTENDED = parse_broker_conf(b"enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=2000\n")
KINDS = {
    "b420-base": BrokerConf(), "b514-base": BrokerConf(), "b551-base": BrokerConf(),
    "b498-dledger": BrokerConf(), "b533-dledger": BrokerConf(), "b498-multipath": BrokerConf(),
    "b498-cqext": EXTENDED, "b533-types": BrokerConf(), "b551-types": BrokerConf(),
}  # fmt: skip


class Kind(NamedTuple):
    """A store to damage, the directory of its log, and a lake with all of its messages."""

    name: str
    store: Path
    lake: Path
    conf: BrokerConf

    def segments(self) -> list[Path]:
        directories = [
            *self.store.glob("commitlog"),
            *self.store.glob("commitlog-?"),
            *self.store.glob("dledger-*/data"),
        ]
        return sorted((path for directory in directories for path in directory.iterdir()), key=lambda path: path.name)

    def repair_store(self, *, with_lake: bool) -> RepairSummary:
        wanted = GivenSettings(GEOMETRY.hash_slots, GEOMETRY.index_num, release_of(self.name), conf=self.conf)
        lake = Lake(str(self.lake)) if with_lake else None
        out = self.store.parent / "repair"
        directories = log_folders(self.store)
        request = RepairRequest(
            str(self.store), out, lake, None, given_settings=wanted, apply=True, commitlog=directories
        )
        return repair(request, SerialWorkers())


@pytest.fixture(scope="module", params=KINDS)
def healthy_kind(request: pytest.FixtureRequest, golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    name: str = request.param
    kind = Kind(name, golden(name), tmp_path_factory.mktemp("repair") / "lake", KINDS[name])
    ingest_store(kind.store, kind.lake, release=release_of(name), conf=kind.conf, commitlog=log_folders(kind.store))
    return kind


@pytest.fixture
def kind(healthy_kind: Kind, tmp_path: Path) -> Kind:
    return healthy_kind._replace(store=Path(shutil.copytree(healthy_kind.store, tmp_path / "store")))


def _files(kind: Kind, pattern: str) -> list[Path]:
    return sorted(path for path in kind.store.glob(pattern) if path.is_file())


FAULTS_OF_KINDS: dict[str, Callable[[Kind], object]] = {
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
OF_THE_LOG = {"middle segment missing", "a body"}


def is_undecided(kind: Kind, fault: str) -> bool:
    """Return whether a topic without queues may have been deleted: these brokers do not list all topics."""
    return kind.name.endswith("-types") and fault in {"queues missing", "batches missing"}


@pytest.mark.sample(11)
@pytest.mark.parametrize("with_lake", [True, False])
@pytest.mark.parametrize("fault", FAULTS_OF_KINDS)
def test_a_fault_in_a_store_of_another_kind_is_repaired_and_can_be_undone(
    healthy_kind: Kind, kind: Kind, fault: str, *, with_lake: bool
) -> None:
    """Without a lake, only findings that need the lost bytes remain."""
    FAULTS_OF_KINDS[fault](kind)
    damaged = read_store_files(kind.store)
    summary = kind.repair_store(with_lake=with_lake)

    assert summary.verdict_after is not None
    left = {one.part for one in summary.verdict_after.findings if not one.follows and one.severity.is_alarm}
    if with_lake:
        kinds = {finding.kind for finding in summary.verdict_after.findings}
        undecided = (ExitCode.DAMAGE, {DELETED_OR_LOST_QUEUE})

        assert (summary.exit_code, kinds) == (undecided if is_undecided(kind, fault) else (ExitCode.CLEAN, set()))
        intact, repaired = ([path.read_bytes() for path in one.segments()] for one in (healthy_kind, kind))

        assert intact == repaired
    else:
        is_of_queues = fault == "queues missing" or is_undecided(kind, fault)

        assert left == ({LOG} if fault in OF_THE_LOG else {QUEUES} if is_of_queues else set())
        assert summary.asks_for_sizes == (fault == "queues missing")  # their former size is unknown
    if summary.plan:
        undo(str(kind.store), kind.store.parent / "repair")

    assert read_store_files(kind.store) == damaged


# The segments are tiny: in each pass, an additional fourth of a segment is read, for example to find the log's end.
@pytest.mark.parametrize(("has_lost_files", "most"), [(False, 2.3), (True, 2.4)])
def test_a_repair_reads_segments_that_stay_once_for_each_purpose(
    store: Path, lake: Path, reads: Counter[int], has_lost_files: bool, most: float
) -> None:
    overwrite(sorted((store / "commitlog").iterdir())[2], 4096, bytes(4096))
    if has_lost_files:
        min((store / "consumequeue" / "T1").glob("*/0*0")).unlink()
        min((store / "index").iterdir()).unlink()
    segment = sorted((store / "commitlog").iterdir())[1].stat()
    reads.clear()

    summary = repair_store(store, lake)

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

    summary = repair_store(broker.root, tmp_path / "lake", apply=False)

    assert f"replaced: commitlog/{segment.name}" in summary.plan
    assert 1 < reads[segment.stat().st_ino] / segment.stat().st_size < 5.2


# The damaged half of a segment is read again, for the checksum in the name of the finding.
@pytest.mark.parametrize(("is_damaged", "most"), [(False, 1.5), (True, 2)])
def test_verify_reads_each_segment_once(store: Path, reads: Counter[int], is_damaged: bool, most: float) -> None:
    segments = list_segments(store)
    if is_damaged:
        overwrite(segments[2], 4096, bytes(4096))

    verdict = verify(VerifyRequest(str(store), given_settings=SETTINGS), SerialWorkers())

    assert (DifferenceKind.UNIT_OF_DAMAGED_RECORD in {finding.kind for finding in verdict.findings}) is is_damaged
    assert verdict.parts[INDEX].numbers["equal"] > 1
    for segment in segments[:-1]:
        assert 1 <= reads[segment.stat().st_ino] / segment.stat().st_size < (most if segment == segments[2] else 1.5), (
            segment
        )
