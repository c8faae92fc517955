"""`inspect` and `dump` of stores that a broker is writing, or that are partly unreadable."""

import errno
import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.storage.local import LocalReader
from jobs.store.store import list_store
from rmq_formats.store import FileKind
from tests.golden import SITUATIONS, StoreOf
from tests.support.commands import Outcome, Run, copy_store, overwrite
from tests.support.meanwhile import call_after, fail_reads_of_first_segment, refuse_to_open
from tests.support.stores import hold_lock, list_segments, log_folders, read_store_records


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return copy_store(golden("b551-base"), tmp_path)


def inspect_json(run: Run, store: Path, *options: str) -> Outcome:
    directories = log_folders(store)
    return run("inspect", "--json", *options, *(["--commitlog", ",".join(directories)] if directories else []), store)


def problems(outcome: Outcome) -> list[tuple[str, str, int | None]]:
    found = outcome.document["problems"]
    return [(problem["severity"], Path(problem["file"]).name, problem["offset"]) for problem in found]


@pytest.mark.parametrize("deep", [[], ["--deep"]])
@pytest.mark.parametrize("step", [1, 90, 1000])
def test_bytes_being_written_by_a_broker_are_not_damage(
    store: Path, step: int, deep: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest record is written between two reads of the file."""
    (store / "abort").touch()
    segment = [path for path in list_segments(store) if any(path.read_bytes()[:8])][-1]  # not a preallocated one
    records = [record for record, _ in read_store_records(store) if record.physical_offset >= int(segment.name)]
    read = LocalReader.read
    written = records[len(records) // 2].physical_offset - int(segment.name)
    inode = segment.stat().st_ino

    def read_growing(self: LocalReader, position: int, length: int) -> bytes:
        nonlocal written
        data = read(self, position, length)
        if os.fstat(self._descriptor).st_ino != inode:
            return data
        seen = data[: max(written - position, 0)].ljust(len(data), b"\0")
        written += step * (position >= written)  # the broker continues after the first read of the end
        return seen

    monkeypatch.setattr(LocalReader, "read", read_growing)
    outcome = inspect_json(run, store, *deep)

    assert [problem for problem in problems(outcome) if problem[0] != "not verified"] == []
    assert outcome.document["log"]["left_over_bytes"] == 0


@pytest.mark.parametrize("is_at_work", [False, True])
def test_a_queue_file_created_during_an_inspection_is_not_missing(
    store: Path, is_at_work: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is listed before the log is read."""
    (store / "abort").touch() if is_at_work else None
    newest = str(max((store / "consumequeue" / "T1" / "0").iterdir()))
    listed = list_store(str(store))
    before = replace(listed, queue_files=tuple(file for file in listed.queue_files if file.location != newest))
    monkeypatch.setattr("jobs.inspect.inspection.list_store", lambda *_, **__: before)
    found = [problem for problem in problems(inspect_json(run, store)) if problem[0] == "gap"]

    assert bool(found) is not is_at_work


def test_a_queue_without_read_permission_is_not_reported_as_lost(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_open("/consumequeue/T1/0/", errno.EACCES, monkeypatch)

    outcome = run("inspect", store)

    assert "NOT ACCESSIBLE consumequeue/T1/0/" in outcome.out
    assert "is missing" not in outcome.out
    assert "Errno" not in outcome.out


def test_a_running_broker_is_recognized_by_its_lock(store: Path, run: Run) -> None:
    """Another process locks the file `lock`, like a broker; the existence of the file proves nothing."""
    (store / "lock").write_text("lock")

    assert inspect_json(run, store).document["state"]["process"] is None
    with (store / "lock").open("r+") as file:  # the check has not taken the lock
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with hold_lock(store) as broker:
        state = inspect_json(run, store).document["state"]

    assert state["process"] == broker
    assert state["broker"] == f"running: process {broker} holds the lock"


@pytest.mark.parametrize("has_flushed_units", [False, True])
def test_queues_may_be_missing_until_a_new_broker_has_flushed_units(
    store: Path, run: Run, *, has_flushed_units: bool
) -> None:
    (store / "lock").write_text("lock")
    shutil.rmtree(store / "consumequeue")
    if not has_flushed_units:
        overwrite(store / "checkpoint", 8, bytes(8))

    with hold_lock(store):
        problems = inspect_json(run, store).document["problems"]

    assert any("directory is missing" in problem["text"] for problem in problems) == has_flushed_units


def test_an_unreadable_file_is_reported_as_a_separate_problem(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "00000000000000016384"
    refuse_to_open(f"commitlog/{bad}", errno.EIO, monkeypatch)
    outcome = inspect_json(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert [("not verified", bad, None), ("damage", bad, int(bad))] == problems(outcome)
    assert "16,384 bytes cannot be read: Input/output error" in outcome.out
    assert outcome.document["log"]["segments"][3]["end"] == "open"


@pytest.mark.parametrize("name", ["checkpoint", "abort"])
def test_missing_evidence_of_the_release_is_reported_once(
    name: str, store: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of possible releases was wider without a note."""
    (store / name).touch()
    refuse_to_open(f"/{name}", errno.EIO, monkeypatch)
    ingested = run("ingest", store, "--lake", tmp_path / "lake", "--engine", "local")
    line = f"{store / name}: Input/output error; the release of the broker was detected without this file"

    assert 1 == ingested.err.count(line)
    assert ingested.code is ExitCode.CLEAN
    assert line not in run("verify", store, "--engine", "local").err


def test_an_unreadable_sector_is_damage_and_the_rest_is_read(store: Path, run: Run) -> None:
    whole = len(list(read_store_records(store)))

    with fail_reads_of_first_segment(errno.EIO, lambda position, size: position < 12288 and position + size > 8192):
        outcome = inspect_json(run, store, "--deep")
        dumped = run("dump", store / "commitlog" / f"{0:020}")

    assert ExitCode.DAMAGE is outcome.code is dumped.code
    assert "# UNREADABLE 4096 bytes cannot be read at position 8192: Input/output error" in dumped.out
    assert "sealed segment" in dumped.out
    assert 20 < dumped.out.count("  record  ")
    assert problems(outcome)[-1] == ("damage", "0" * 20, 8192)
    assert "4,096 bytes cannot be read: Input/output error" in outcome.out
    assert 0 < outcome.document["log"]["records"] < whole
    assert outcome.document["log"]["segments"][0]["end"] == "sealed"


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SITUATIONS)
def test_inspect_recognizes_every_file_of_a_store(situation: StoreOf, run: Run, name: str) -> None:
    store = situation(name) / "store"
    document = inspect_json(run, store).document
    directories = document["state"]["folders"]

    assert [directory for directory in directories if directory["kind"] == str(FileKind.UNKNOWN)] == []
    assert sum(directory["files"] for directory in directories) == sum(path.is_file() for path in store.rglob("*"))
    assert document["health"] == "not verified"


@pytest.mark.parametrize(("command", "module"), [("inspect", "inspect.inspection"), ("verify", "store.store")])
def test_files_that_a_broker_deletes_or_writes_meanwhile_are_not_damage(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    """Retention deletes old segments and index files; a broker may delete topics.json before it renames the new one."""
    (store / "abort").touch()
    (store / "lock").touch()
    topics = store / "config" / "topics.json"
    old = [min((store / "index").iterdir()), *list_segments(store)[:2]]
    whole = topics.read_bytes()
    gone = iter(old if command == "inspect" else [topics])
    topics.write_bytes(whole[: len(whole) // 2])

    assert "topics.json: not valid JSON" in run("inspect", store).out

    deleted = call_after(list_store, lambda: next(gone).unlink())  # one at a time
    monkeypatch.setattr(f"jobs.{module}.list_store", deleted)
    monkeypatch.setattr("jobs.store.repeated_reads.sleep", lambda _: topics.write_bytes(whole))
    with hold_lock(store):
        document = run(command, "--json", *(["--engine", "local"] if command == "verify" else []), store).document

    assert document["problems" if command == "inspect" else "findings"] == []


def test_a_file_name_cannot_begin_a_line(store: Path, run: Run) -> None:
    (store / "commitlog" / "x\nno problems found").write_bytes(b"x")

    done = run("inspect", store)

    assert "/x\\nno problems found has a name that brokers do not use" in done.out
    assert "no problems found" not in {line[:17] for line in done.out.splitlines()}
