"""A damaged store is repaired as far as log and lake allow; the rest is reported, and everything can be undone."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode, RequestError
from jobs.lake.lake import Lake
from jobs.products.index.settings import GivenSettings
from jobs.repair import JOURNAL_FILE, JournalEntry
from jobs.repair.run import RepairRequest, RepairSummary, repair, undo
from jobs.store.running_broker import NotInstalledError
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import decode_record
from tests.golden import StoreOf, release_of
from tests.support.commands import overwrite
from tests.support.fault_kinds import SEGMENT, SETTINGS, STORE, Fault, as_other_user, find_damaged_record, read_faults
from tests.support.lakes import ingest_store
from tests.support.stores import flip, hold_lock, lose_first_segment_like_retention, read_store_files, tree_state


@pytest.fixture(scope="module")
def healthy(golden: StoreOf) -> Path:
    return golden(STORE)


@pytest.fixture(scope="module")
def lake(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repair") / "lake"
    ingest_store(healthy, folder, release="5.3.3")
    return folder


def repair_store(store: Path, lake: Path | None = None, *, apply: bool = True) -> RepairSummary:
    source = Lake(str(lake)) if lake is not None else None
    return repair(RepairRequest(str(store), store.parent / "repair", source, None, SETTINGS, apply), SerialWorkers())


_ALL = read_faults()
DENIED = [fault for fault in _ALL if "denied" in fault.name]
FAULTS = [fault for fault in _ALL if "denied" not in fault.name]
QUICK = {
    "middle segment missing", "first segment cut short", "record: body", "record: topic", "middle file missing", "slot",
    "all folders missing", "index time",
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
    assert (0, []) == (summary.exit_code, summary.verdict_after.findings)
    assert bool(summary.plan) == (read_store_files(store) != damaged)
    if summary.plan:
        undo(str(store), store.parent / "repair")
        assert read_store_files(store) == damaged
        assert not list(store.rglob("*.replaced-*"))


def test_a_lost_queue_file_is_not_rebuilt_from_a_changed_tag(store: Path, lake: Path) -> None:
    """The lake has the unit that the broker wrote; the new file had the hash of the changed tag."""
    # The findings on a lost file name only its first record, so the lake is not asked about later segments.
    lost = store / "consumequeue" / "T1" / "0" / f"{200:020d}"
    data = lost.read_bytes()
    offsets = [int.from_bytes(data[at : at + 8]) for at in range(0, len(data), 20) if any(data[at + 12 : at + 20])]
    later = [offset for offset in offsets if offset // SEGMENT > offsets[0] // SEGMENT]
    segment = store / "commitlog" / f"{later[0] // SEGMENT * SEGMENT:020d}"
    flip(segment, segment.read_bytes().index(b"TAGS\x01", later[0] % SEGMENT) + len(b"TAGS\x01"))
    lost.unlink()

    summary = repair_store(store, lake)

    assert not lost.exists() or lost.read_bytes() == data
    assert lost.exists() or str(lost.relative_to(store)) in summary.undecided_files


@pytest.mark.parametrize(
    "changed",
    [
        {"aside": "{victim}", "done": False},
        {"folder": "{victim}", "aside": "{victim}.replaced-x", "new": ["a"]},
        {"folder": "{victim}", "aside": "{victim}", "new": []},
        {"new": ["../../victim/a"]},
        {"new": ["{victim}/a"]},
        {"set_aside": None},
        {"new": ["."], "is_exchange": True},
        {"new": [""], "is_exchange": True},
        {"new": ["a\0b"]},
        {"new": "a"},
        {"digests": {"a": 1}},
        {"digests": ["a"]},
        {"done": "no"},
    ],
    ids=str,
)
def test_an_undo_changes_nothing_outside_the_store(store: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    """The journal may have been edited, or belong to another repair."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a").write_text("precious")
    out = store.parent / "repair"
    out.mkdir()
    folder = str(store / "consumequeue")
    step = JournalEntry("consumequeue", folder, f"{folder}.replaced-x", [], [], None, is_exchange=False, done=True)
    text = json.dumps({"store": str(store), "folder": str(victim), "entries": [asdict(step) | changed]})
    (out / JOURNAL_FILE).write_text(text.replace("{victim}", str(victim)))
    before = read_store_files(store)

    with pytest.raises(RequestError):
        undo(str(store), out)

    assert (before, "precious") == (read_store_files(store), (victim / "a").read_text())


@pytest.mark.parametrize("fault", DENIED, ids=fault_id)
def test_a_repair_without_read_permission_changes_nothing(
    healthy: Path, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair_store(Path(shutil.copytree(healthy, tmp_path / "store")))  # compiles, while it may write to the cache
    with TemporaryDirectory() as name:  # other users cannot access pytest's folders
        Path(name).chmod(0o777)
        monkeypatch.setattr("tempfile.tempdir", name)  # nor TMPDIR, perhaps
        store = Path(shutil.copytree(healthy, Path(name, "store")))
        fault.plant(store)
        with as_other_user(Path(name), denied=True), pytest.raises(PermissionError) as error:
            repair_store(store)

        assert str(error.value.filename).endswith(fault.file)
        (store / fault.file).chmod(0o644)
        assert read_store_files(store) == read_store_files(healthy)


def test_damaged_records_are_restored_and_queues_are_not_changed(healthy: Path, store: Path, lake: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "record: topic")
    fault.plant(store)
    segment = store / fault.file
    data = segment.read_bytes()
    flip(segment, data.index(b"TAGS") - 40)  # keys of the segment's first record; the bytes between stay unchanged
    flip(segment, data.rindex(b"TAGS") - 40)  # keys of its last record; the next segment proves that the log continues

    repair_store(store, lake)

    assert read_store_files(healthy) == read_store_files(store)


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

    assert (ExitCode.DAMAGE, damaged) == (summary.exit_code, read_store_files(store))
    assert any("not used" in note and f"{at:,}" in note for note in summary.notes)


@pytest.mark.parametrize("name", ["b498-base", "b551-base"])
def test_a_rebuilt_index_with_other_file_boundaries_survives_a_crash(
    name: str, golden: StoreOf, tmp_path: Path
) -> None:
    """After retention has deleted segments, rebuilt files end elsewhere; the checkpoint covers the newest full file."""
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    lose_first_segment_like_retention(store)
    wanted = GivenSettings(100, 20, release_of(name))

    summary = repair(
        RepairRequest(str(store), store.parent / "repair", given_settings=wanted, apply=True), SerialWorkers()
    )

    assert summary.verdict_after is not None
    assert (ExitCode.CLEAN, []) == (summary.exit_code, [finding.kind for finding in summary.verdict_after.findings])
