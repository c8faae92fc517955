"""A broker whose host lost power: the end of its log is zero, and queues and index still point to accepted messages."""

import os
import shutil
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from tests.golden import StoreOf
from tests.support.commands import Run
from tests.support.lakes import ingest_store
from tests.support.stores import list_segments, read_store_records

_SIZES = ("--hash-slots", "100", "--index-num", "20")
_LOST = 10  # messages


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store whose newest messages are zeros, and next to it the lake of the whole store."""
    root = Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))
    ingest_store(root, tmp_path / "lake", "b0", hash_slots=100, index_num=20)
    first = list(read_store_records(root))[-_LOST].record.physical_offset
    segment = list_segments(root)[-1]
    data = segment.read_bytes()
    at = first - int(segment.name)
    segment.write_bytes(data[:at] + bytes(len(data) - at))
    (root / "abort").write_bytes(b"4711")
    return root


def _copy_log_before_queues(store: Path, seconds: float) -> None:
    """Set the file times that a copy of a running broker's store has, whose log was copied first."""
    at = list_segments(store)[-1].stat().st_mtime + seconds
    for path in store.glob("consumequeue/*/*/*"):
        os.utime(path, (at, at))


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "ingest"])
def test_the_end_of_a_log_that_a_power_failure_zeroed_is_a_gap(
    command: str, store: Path, run: Run, tmp_path: Path
) -> None:
    """It was healthy, exit code 0, without a command, and starting the broker deleted the messages."""
    options = {
        "repair": ("--out", tmp_path / "repair", *_SIZES),
        "ingest": ("--lake", tmp_path / "new", *_SIZES),
        "verify": _SIZES,
    }

    code, out, _ = run(command, store, *options.get(command, ()))

    assert ExitCode.DAMAGE == code
    assert "before its queues" in out
    assert "do not start the broker" in out
    assert command == "ingest" or "--lake LAKE" in out
    assert "may still be writing" not in out


@pytest.mark.parametrize("command", ["inspect", "verify", "ingest"])
def test_a_newest_segment_that_a_power_failure_zeroed_from_its_start_is_a_gap(
    command: str, golden: StoreOf, run: Run, tmp_path: Path
) -> None:
    """`inspect` looked at the end of the segment before, and called the loss undecided, with exit code 0."""
    root = Path(shutil.copytree(golden("b498-base"), tmp_path / "whole"))
    newest = list_segments(root)[-1]
    newest.write_bytes(bytes(newest.stat().st_size))
    (root / "abort").write_bytes(b"4711")

    code, out, _ = run(command, root, *(("--lake", tmp_path / "new") if command == "ingest" else ()))

    assert ExitCode.DAMAGE == code
    assert "the log ends 2,122 bytes before its queues and index" in out
    assert "do not start the broker" in out


def test_the_printed_repair_names_a_log_that_is_not_in_the_store(store: Path, run: Run, tmp_path: Path) -> None:
    """Pasted without `--commitlog`, it found no log."""
    _copy_log_before_queues(store, 3600)
    log = (store / "commitlog").rename(tmp_path / "log")

    out = run("verify", store, "--commitlog", log, *_SIZES).out

    assert f"run: rmq-lake repair {store} --commitlog {log} --lake LAKE --out REPAIR" in out.replace(" \\\n   ", "")


def test_repair_restores_the_zeroed_end_of_a_log_from_a_lake(store: Path, run: Run, tmp_path: Path) -> None:
    code, out, _ = run(
        "repair",
        store,
        "--out",
        tmp_path / "repair",
        "--lake",
        tmp_path / "lake",
        "--apply",
        "--release",
        "5.3.3",
        *_SIZES,
    )
    again, verified, _ = run("verify", store, *_SIZES)

    assert "no problems" not in out.partition("DONE")[0]
    assert ExitCode.CLEAN == again, (code, verified)


@pytest.mark.parametrize("seconds", [1, 600])
def test_a_log_that_may_have_been_copied_before_its_queues_is_no_alarm(seconds: int, store: Path, run: Run) -> None:
    _copy_log_before_queues(store, seconds)

    verify_code, verified, _ = run("verify", store, *_SIZES)
    inspect_code, inspected, _ = run("inspect", store)

    assert ExitCode.CLEAN == verify_code
    assert ExitCode.CLEAN == inspect_code
    for text in (verified, inspected):
        assert "If this is the broker's directory and not a copy" in text
        assert "--lake LAKE" in text


def test_repair_of_such_a_log_does_not_say_that_it_found_no_problems(store: Path, run: Run, tmp_path: Path) -> None:
    """It planned to replace a segment, and said "no problems"."""
    _copy_log_before_queues(store, 1)

    code, out, _ = run("repair", store, "--out", tmp_path / "repair", "--lake", tmp_path / "lake", *_SIZES)

    assert ExitCode.DAMAGE == code
    assert "replaced: commitlog/" in out
    assert "no problems" not in out


@pytest.mark.parametrize("name", ["b420-live", "b498-live", "b533-live", "b551-live"])
def test_a_real_copy_of_a_running_broker_has_not_lost_its_end(golden: StoreOf, name: str, run: Run) -> None:
    code, out, _ = run("inspect", golden(name))

    assert ExitCode.CLEAN == code, out
