"""The lake restores the log byte for byte, and reports what it cannot restore."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.lake.commit import commit_rows
from jobs.lake.lake import Lake
from jobs.lake.tables import CONFIG_FILES
from jobs.requests.restore import RestoreRequest
from jobs.restore import count_messages_in_ranges, find_offset_at_time
from jobs.restore.check import check_restore
from jobs.restore.config import restore_config_files
from jobs.store.workers import SerialWorkers
from rmq_formats.indexfile.layout import Geometry
from tests.golden import StoreOf
from tests.support import commands
from tests.support.commands import Run, run_campaign
from tests.support.lakes import ingest_store, restore_log, rows_of, table_of
from tests.support.query_stores import Sent, stored, write_lake, write_store
from tests.support.release_stores import Message, write_release_store

RELEASE = "5.3.3"


@pytest.fixture(scope="module")
def base(golden: StoreOf) -> Path:
    return golden("b533-base")


@pytest.fixture(scope="module")
def lake(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("restore") / "lake"
    ingest_store(base, directory, release=RELEASE)
    return directory


def log_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def test_a_full_disk_names_the_segment(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("jobs.restore.segment.write_all", full)
    with pytest.raises(OSError, match="bytes are free") as error:
        restore_log(lake, tmp_path / "out")

    assert error.value.filename == str(tmp_path / "out" / "commitlog" / f"{0:020d}")


@pytest.mark.parametrize("deleted", [None, "physical_offset between 20000 and 21000", "segment >= 49152"])
def test_a_check_finds_what_a_restore_finds_and_writes_nothing(
    deleted: str | None, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(lake, tmp_path / "lake"))
    if deleted is not None:
        DeltaTable(copy / "messages").delete(deleted)
    expected = restore_log(copy, tmp_path / "out")
    files = sorted(tmp_path.rglob("*"))

    def refuse(*_: object) -> None:
        raise AssertionError("a check must not write")

    monkeypatch.setattr("jobs.restore.segment.write_all", refuse)
    monkeypatch.setattr("jobs.restore.config.create_or_accept_file", refuse)
    (check,) = check_restore(RestoreRequest(Lake(str(copy))), SerialWorkers()).stores

    assert check.restored is not None
    assert expected.messages == check.restored.messages
    assert expected.missing == check.restored.missing
    assert expected.severity == check.severity
    assert expected.config == check.restored.config
    assert sorted(tmp_path.rglob("*")) == files


def test_a_resumed_restore_writes_only_the_missing_files(base: Path, lake: Path, tmp_path: Path) -> None:
    with (
        patch("jobs.restore.run.restore_config_files", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        restore_log(lake, tmp_path / "out")
    first = min((tmp_path / "out" / "commitlog").iterdir())
    first.unlink()

    summary = restore_log(lake, tmp_path / "out", resume=True)

    assert log_of(base) == log_of(tmp_path / "out")
    assert summary.resumed == summary.segments - 1


@pytest.mark.slow
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 97])
def test_a_restore_killed_after_any_effect_is_resumed_to_the_same_bytes(stride: int, tmp_path: Path) -> None:
    result = run_campaign("tests.support.killed_commands", "restores", tmp_path, stride)

    assert result["reached"] > (100 if stride == 1 else 0)
    assert result["bad"] == []


def measure_arrow_peak(read: Callable[[], object]) -> tuple[object, int]:
    """Return a result, and the peak memory of Arrow for it."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        return read(), pool.max_memory()
    finally:
        pa.set_memory_pool(usual)


ROWS = 100_000  # rows of one file of the table


def test_a_time_is_found_in_memory_that_does_not_grow_with_the_messages(lake: Path, tmp_path: Path) -> None:
    """All later offsets were once read into one table: 146 MB for two million messages."""
    copy = Path(shutil.copytree(lake, tmp_path / "lake"))
    store_id = rows_of(copy)[0]["store_id"]
    count = 1 << 21
    later = 10**13
    numbers = pa.array(np.arange(count) + later)
    ids = pa.repeat(pa.scalar(store_id), count)
    rows = pa.table({"store_id": ids, "physical_offset": numbers, "store_timestamp": numbers})
    write_deltalake(copy / "messages", rows, mode="append", schema_mode="merge")
    found, peak = measure_arrow_peak(lambda: find_offset_at_time(Lake(str(copy)), store_id, later + 7))

    assert found == later + 7
    assert peak < 64 << 20


def test_counting_messages_of_a_deleted_topic_takes_the_same_memory_for_twice_as_many(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", stored([Sent("Gone")]))
    write_lake(store, tmp_path / "one")
    (row,) = table_of(tmp_path / "one" / "messages").to_batches()

    def count(files: int) -> int:
        lake = tmp_path / f"lake-{files}"
        for number in range(files):
            numbers = pa.array(np.arange(number * ROWS, (number + 1) * ROWS))
            some = pa.table(row.take(pa.array(np.zeros(ROWS, np.int64)))).set_column(
                row.schema.get_field_index("physical_offset"), row.schema.field("physical_offset"), numbers
            )
            write_deltalake(lake / "messages", some, mode="append")
        (store_id,) = row.column("store_id").to_pylist()
        ranges = [(0, files * ROWS)]
        counts, peak = measure_arrow_peak(lambda: count_messages_in_ranges(Lake(str(lake)), store_id, {"Gone"}, ranges))

        assert {"Gone": files * ROWS} == counts
        return peak

    few = count(4)
    many = count(8)

    assert many < 1.2 * few


def test_restoring_the_configuration_reads_only_the_chosen_versions_into_memory(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    size = 100_000
    for run in range(1, 41):
        rows = [
            {"name": name, "sha256": None if is_deleted else "-", "bytes": None if is_deleted else bytes([run]) * size}
            for name, is_deleted in (("topics.json", False), ("consumerOffset.json", False), ("old.json", run == 40))
        ]
        constants = {"store_id": "s", "broker": "b", "to_offset": run * 10, "run": run}
        commit_rows(lake, CONFIG_FILES, f"{run}.parquet", constants, rows, ("s", run))

    newest, peak = commands.measure_peak(lambda: restore_config_files(lake, "s", tmp_path / "newest", None, {}))
    restore_config_files(lake, "s", tmp_path / "earlier", 205, {})
    _, notes, _ = restore_config_files(lake, "s", tmp_path / "first", 5, {})

    def written(directory: str) -> dict[str, int]:
        return {path.name: path.read_bytes()[0] for path in (tmp_path / directory / "config").iterdir()}

    assert written("newest") == {"topics.json": 40, "consumerOffset.json": 40}
    assert written("earlier") == {"topics.json": 20, "consumerOffset.json": 20, "old.json": 20}
    assert written("first") == {"topics.json": 1, "old.json": 1}
    assert len(newest[0]) == 2
    assert "consumerOffset.json" in notes[0]
    assert peak < 20 * size


@pytest.mark.parametrize(("given", "origin"), [((), "assumed"), (("--release", "5.3.3"), "given")])
def test_a_release_that_ingest_assumed_is_not_called_detected(
    given: tuple[str, ...], origin: str, tmp_path: Path, run: Run
) -> None:
    """All releases may have written this message."""
    store = write_store(tmp_path / "store", stored([Sent(keys=("k",))]), with_queues=False)
    run("ingest", store, "--lake", tmp_path / "lake", *given)

    code, out, _ = run(
        *("restore", tmp_path / "lake", "--out", tmp_path / "out"),
        *("--hash-slots", 100, "--index-num", 400, "--consume-queue-size", 6000),
    )

    (line,) = (line for line in out.splitlines() if "format: RocketMQ" in line)

    assert 0 == code
    assert f"({origin}" in line


def test_an_unknown_release_that_changes_restored_files_is_asked_for_together_with_the_sizes(
    tmp_path: Path, run: Run
) -> None:
    """It was assumed without a question, although older releases count slots in another way and index no tags."""
    sent = [Sent(keys=(f"k{number}",), tags="TagA") for number in range(3)]
    store = write_store(tmp_path / "store", stored(sent), with_queues=False)
    shutil.rmtree(store / "index", ignore_errors=True)
    run("ingest", store, "--lake", tmp_path / "lake")
    sizes = ("--hash-slots", 100, "--index-num", 400, "--consume-queue-size", 6000)

    nothing = run("restore", tmp_path / "lake", "--out", tmp_path / "out")
    only_sizes = run("restore", tmp_path / "lake", "--out", tmp_path / "out", *sizes)
    both = run("restore", tmp_path / "lake", "--out", tmp_path / "out", *sizes, "--release", "5.3.3")

    assert [2, 2, 0] == [nothing.code, only_sizes.code, both.code], both
    assert "--hash-slots, --index-num and --consume-queue-size" in nothing.err
    assert "--release" in nothing.err
    assert "whether tags are indexed" in only_sizes.err


class TestAnIndexOfUnknownSizes:
    """A broker with other sizes than those of its files finds no key, and reports nothing."""

    @pytest.fixture
    def lake(self, tmp_path: Path) -> Path:
        """Return the lake of a store whose only index file is not full, so that it does not show its sizes."""
        messages = [Message("5.3.3", properties={"KEYS": f"k{number}"}) for number in range(5)]
        store = write_release_store(tmp_path / "store", messages, geometry=Geometry(1000, 400))
        ingest_store(store.root, tmp_path / "lake", "b")
        return tmp_path / "lake"

    def test_the_sizes_are_asked_for_before_anything_is_written(self, lake: Path, run: Run) -> None:
        code, _, err = run("restore", lake, "--out", lake.parent / "out")

        assert 2 == code
        assert "--broker-conf" in err
        assert "--hash-slots and --index-num" in err
        assert "--no-index" in err
        assert not list((lake.parent / "out").glob("*"))

    @pytest.mark.parametrize("way", ["options", "configuration"])
    def test_with_the_sizes_the_files_are_the_same(self, lake: Path, run: Run, way: str) -> None:
        conf = lake.parent / "broker.conf"
        conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=400\n")
        given = ["--broker-conf", conf] if way == "configuration" else ["--hash-slots", 1000, "--index-num", 400]

        code, _, err = run("restore", lake, "--out", lake.parent / "out", *given)

        (restored,), (original,) = ((lake.parent / name / "index").iterdir() for name in ("out", "store"))

        assert 0 == code, err
        assert original.read_bytes() == restored.read_bytes()

    def test_one_of_two_sizes_is_not_enough(self, lake: Path, run: Run) -> None:
        code, _, err = run("restore", lake, "--out", lake.parent / "out", "--index-num", 400)

        assert 2 == code
        assert "--hash-slots" in err

    def test_without_index_files_nothing_is_asked(self, lake: Path, run: Run) -> None:
        code, _, err = run("restore", lake, "--out", lake.parent / "out", "--no-index")

        assert 0 == code, err
        assert not (lake.parent / "out" / "index").exists()

    def test_a_full_file_that_a_later_run_sees_shows_the_sizes(self, lake: Path, run: Run) -> None:
        """The rows keep the sizes with which they began."""
        store = lake.parent / "store"
        shutil.rmtree(store)
        messages = [Message("5.3.3", properties={"KEYS": f"k{number}"}) for number in range(420)]
        write_release_store(store, messages, geometry=Geometry(1000, 400))
        ingest_store(store, lake, "b")

        code, _, err = run("restore", lake, "--out", lake.parent / "out")

        restored, original = (sorted((lake.parent / name / "index").iterdir()) for name in ("out", "store"))

        assert 0 == code, err
        assert [file.read_bytes() for file in original] == [file.read_bytes() for file in restored]
