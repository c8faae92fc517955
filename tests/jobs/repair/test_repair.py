"""A damaged store is repaired as far as log and lake allow; the rest is reported, and everything can be undone."""

import json
import os
import shutil
import struct
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode, RequestError
from jobs.diagnosis.findings import LOG
from jobs.lake.lake import Lake
from jobs.products.index.settings import GivenSettings
from jobs.repair import JOURNAL_FILE, JournalEntry
from jobs.repair.run import RepairRequest, RepairSummary, repair, undo
from jobs.store.running_broker import NotInstalledError
from jobs.store.workers import SerialWorkers
from rmq_formats.commitlog.record import decode_record
from tests.golden import StoreOf, release_of, unpack
from tests.support.commands import overwrite
from tests.support.fault_kinds import SEGMENT, SETTINGS, STORE, Fault, Part, as_other_user, faults, find_damaged_record
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


def repair_store(
    store: Path,
    lake: Path | None = None,
    *accepted: str,
    apply: bool = True,
    **options: Any,  # noqa: ANN401 - other fields of the request
) -> RepairSummary:
    source = Lake(str(lake)) if lake is not None else None
    request = RepairRequest(
        str(store),
        store.parent / "repair",
        source,
        None,
        SETTINGS,
        apply,
        accepted_files=frozenset(accepted),
        **options,
    )
    return repair(request, SerialWorkers())


def _all_faults() -> list[Fault]:
    with TemporaryDirectory() as name:
        return list(faults(unpack(STORE, Path(name))))


_ALL = _all_faults()
DENIED = [fault for fault in _ALL if "denied" in fault.name]
FAULTS = [fault for fault in _ALL if "denied" not in fault.name]
QUICK = {
    "middle segment missing", "first segment cut short", "record: body", "record: topic", "middle file missing", "slot",
    "all folders missing", "index time",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first", "second", "with_lake"),
    [
        # Other files between the two begin in the same message, which has more keys than a file has entries.
        ("b420-direct", "20261120074709881", "20261120074711014", False),
        # The second file continues the index after a crash, with the last message of the file before it.
        ("b470-crash-after", "20261120074023950", "20261120074025850", False),
        # Both names fit both files, so only the lake shows whether they were exchanged or one was renamed.
        ("b420-direct", "20261120074710788", "20261120074710811", True),
        # The second file is not full, so the lake has no hash of it.
        ("b420-direct", "20261120074710788", "20261120074711104", True),
    ],
)
def test_index_files_that_exchanged_their_names_are_restored(  # noqa: PLR0913, PLR0917 - fixtures and cases
    golden: StoreOf, tmp_path: Path, name: str, first: str, second: str, with_lake: bool
) -> None:
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    lake = tmp_path / "lake"
    ingest_store(store, lake)
    index = read_store_files(store / "index")
    (store / "index" / first).write_bytes(index[second])
    (store / "index" / second).write_bytes(index[first])
    exchanged = read_store_files(store / "index")
    repair(RepairRequest(str(store), tmp_path / "without", apply=True), SerialWorkers())

    assert (exchanged if with_lake else index) == read_store_files(store / "index")
    repair(RepairRequest(str(store), tmp_path / "with", Lake(str(lake)), apply=True), SerialWorkers())
    assert index == read_store_files(store / "index")


# No checksum covers these fields, so intact queues contradict the log; only another copy of the record could decide.
DOUBTFUL = {"record: queue_id", "record: queue_offset", "record: topic"}


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


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_misnamed_copy_of_a_queue_file_is_set_aside(store: Path, is_renamed: bool) -> None:
    """It stayed in the queue, with the same units as the right file."""
    queue = store / "consumequeue" / "T1" / "0"
    first, *_, newest = sorted(queue.iterdir())
    healthy = read_store_files(store)
    copy = queue / f"{int(newest.name) + 400:020d}"
    shutil.copyfile(first, copy)
    if is_renamed:
        first.unlink()
    damaged = read_store_files(store)

    summary = repair_store(store)

    assert healthy == {name: data for name, data in read_store_files(store).items() if ".replaced-" not in name}
    assert ExitCode.CLEAN is summary.exit_code
    assert f"consumequeue/T1/0/{copy.name} is a copy of consumequeue/T1/0/{first.name} under a wrong name" in "".join(
        summary.notes
    )
    undo(str(store), store.parent / "repair")
    assert damaged == read_store_files(store)


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


def test_an_undo_recreates_empty_folders(store: Path) -> None:
    """One has the name of a queue file, the other is a queue without files."""
    in_place = store / "consumequeue" / "T1" / "0" / ("0" * 20)
    in_place.unlink()
    in_place.mkdir()
    (store / "consumequeue" / "T9" / "0").mkdir(parents=True)
    damaged = sorted(store.rglob("*"))

    assert 0 == repair_store(store).exit_code
    assert in_place.is_file()
    undo(str(store), store.parent / "repair")
    assert damaged == sorted(store.rglob("*"))


@pytest.mark.parametrize("target", ["itself", "nothing"])
@pytest.mark.parametrize("name", ["consumequeue/T1/0/00000000000000000000", "index", "checkpoint"])
def test_a_link_that_leads_to_no_file_is_named_as_the_obstacle(name: str, target: str, store: Path, lake: Path) -> None:
    """`repair` ended with a traceback, or reported that another process had changed the file."""
    place = min((store / "index").iterdir()) if name == "index" else store / name
    place.unlink()
    place.symlink_to(place.name if target == "itself" else "nowhere")
    before = sorted(store.rglob("*"))

    if (name, target) == ("checkpoint", "nothing"):  # like a missing checkpoint, which a broker creates
        repair_store(store, lake)
    else:
        with pytest.raises(NotInstalledError, match=f"{place}: a dangling symbolic link; move it"):
            repair_store(store, lake)
        with pytest.raises(RequestError, match="nothing to undo"):
            undo(str(store), store.parent / "repair")
    assert before == sorted(store.rglob("*"))


def test_a_link_to_itself_next_to_the_index_files_does_not_end_a_repair(store: Path, lake: Path) -> None:
    """`repair` failed: the index directory has changed since the rebuild."""
    link = store / "index" / "20260101000000000"
    link.symlink_to(link.name)

    assert repair_store(store, lake).undecided_files == [f"index/{link.name}"]


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_file_in_place_of_a_folder_is_named_as_the_obstacle(store: Path, lake: Path, folder: str) -> None:
    shutil.rmtree(store / folder)
    (store / folder).write_text("x")

    with pytest.raises(NotInstalledError, match=f"{folder} is a file, but must be a directory; move it out"):
        repair_store(store, lake)
    assert "x" == (store / folder).read_text()


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


@pytest.mark.sample(2, always=[fault_id(one) for one in FAULTS if one.name in QUICK])
@pytest.mark.parametrize("fault", FAULTS, ids=fault_id)
def test_without_a_lake_only_problems_that_need_the_lost_bytes_remain(store: Path, fault: Fault) -> None:
    fault.plant(store)
    damaged = read_store_files(store)

    summary = repair_store(store)

    assert summary.verdict_after is not None
    left = {one.part for one in summary.verdict_after.findings if not one.follows and one.severity.is_alarm}
    if left and not summary.plan:
        assert "nothing can be repaired" in "\n".join(summary.lines(5))
    if fault.name in DOUBTFUL:
        assert (summary.plan, summary.exit_code) == ([], ExitCode.MISMATCH)
        assert all(name.startswith(("consumequeue/T1/", "index/")) for name in summary.undecided_files)
        assert summary.undecided_files
        return
    decided = {
        finding.part
        for finding in summary.verdict_after.findings
        if not finding.follows and finding.severity.is_alarm and not finding.is_undecided
    }
    # An index file with entries of lost bytes of the log cannot be compared, so it is kept.
    assert (decided if fault.part is Part.LOG else left) <= ({LOG} if fault.part is Part.LOG else set())
    assert (not left) == (summary.exit_code is ExitCode.CLEAN)
    if summary.plan:
        undo(str(store), store.parent / "repair")
    assert read_store_files(store) == damaged


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


@pytest.mark.parametrize(
    ("size", "too_new", "is_killed", "expected"),
    [
        (4096, None, False, "unchanged"),
        (100, None, False, "as written"),
        (5000, None, False, "as written"),
        (20, None, False, "of the index"),
        (4096, 0, False, "as written"),
        (100, 16, False, "as written"),
        (4096, 0, True, "unchanged"),  # a killed broker may leave any checkpoint times
        (4096, 16, True, "unchanged"),
        (100, 0, True, "as written"),
        (100, 16, True, "as written"),
    ],
)
def test_a_checkpoint_of_wrong_length_or_with_a_time_after_the_log_is_replaced(
    store: Path, size: int, too_new: int | None, expected: str, *, is_killed: bool
) -> None:
    """*too_new* is the position of the wrong time: that of the log, or of the index."""
    path = store / "checkpoint"
    raw = path.read_bytes()
    indexed = max(struct.unpack_from(">8xq", file.read_bytes())[0] for file in (store / "index").iterdir())
    contents = {"as written": raw, "of the index": struct.pack(">3q", *[indexed] * 3).ljust(4096, b"\0")}
    if too_new is not None:
        overwrite(path, too_new, struct.pack(">q", indexed + 10**9))
    os.truncate(path, size)
    if is_killed:
        (store / "abort").touch()
    contents["unchanged"] = path.read_bytes()

    repair_store(store)

    assert contents[expected] == path.read_bytes()


def test_a_checkpoint_is_kept_while_another_file_is_wrong(store: Path) -> None:
    """The checkpoint's times may have to be compared with that file."""
    os.truncate(store / "checkpoint", 100)
    overwrite(max((store / "consumequeue/T1/0").iterdir()), 0, b"U" * 20)

    repair_store(store)

    assert 100 == (store / "checkpoint").stat().st_size


@pytest.mark.parametrize("name", ["b498-base", "b533-base", "b551-base"])
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


def test_lost_index_files_are_rebuilt_under_the_names_that_the_lake_recorded(newer_store: Path, tmp_path: Path) -> None:
    ingest_store(newer_store, tmp_path / "lake", "b", release="5.5.1")
    names = sorted(path.name for path in (newer_store / "index").iterdir())
    for name in (names[0], names[2]):
        (newer_store / "index" / name).unlink()
    asked = RepairRequest(str(newer_store), tmp_path / "repair", lake=Lake(str(tmp_path / "lake")), apply=True)

    summary = repair(asked, SerialWorkers())

    assert summary.exit_code is ExitCode.CLEAN
    assert names == sorted(path.name for path in (newer_store / "index").iterdir())
