"""`rebuild-index`: a store's index files from its log."""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC
from pathlib import Path
from random import Random
from socket import gethostname
from unittest.mock import patch

import pytest

from jobs.console.result import ExitCode
from jobs.products.index.explanation import ExplainedFile, Explanation, FileVerdict
from jobs.products.index.file_builder import (
    BrokerIndexFile,
    BuildTask,
    BuiltFileKind,
    BuiltIndexFile,
    build_blocks,
    build_file,
    check_built_file,
)
from jobs.products.index.key_sequence import KeySequence, RangeKeys, collect_keys
from jobs.products.index.plan import FIRST_MESSAGES_DELETED_DOUBT, RESTART_DOUBT, IndexPlan, PlannedFile
from jobs.products.index.settings import IndexSettings
from jobs.products.index.survivors import FilePlacer, Survivor, list_index_files
from jobs.rebuild.index import IndexRebuildSummary, plan_builds, rebuild_index
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.storage import AnyStorage
from jobs.storage.local import LocalStorage
from jobs.storage.scratch import Scratch, open_scratch_below_output
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.release import Determined, Writers, detect_store_eras, parse_rules
from jobs.store.request import NO_GIVEN_SETTINGS, GivenSettings
from jobs.store.running_broker import FileState
from jobs.store.store import Store, list_store
from jobs.store.workers import InProcessWorkers, SerialWorkers
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import Release
from tests.golden import GOLDEN, SCENARIO, UNDISTURBED, StoreOf, release_of
from tests.rmq_formats.builders import STORED, make_record, make_writer
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.lakes import shorten_index_file
from tests.support.stores import log_folders


def read_all(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir()) if path.name.isdigit()]


def list_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.isdigit())


def rebuilt(
    store: Path,
    out: Path,
    given_settings: GivenSettings = NO_GIVEN_SETTINGS,
    *,
    lost_only: bool = False,
    is_broker_running: bool = False,
) -> IndexRebuildSummary:
    directories = log_folders(store)
    request = RebuildIndexRequest(
        str(store),
        str(out),
        given_settings=given_settings,
        lost_only=lost_only,
        is_broker_running=is_broker_running,
        commitlog=directories,
    )
    return rebuild_index(request, SerialWorkers())


@pytest.mark.parametrize(
    "name",
    [name for name in GOLDEN if SCENARIO[name] in {"base", "dledger-upgraded", "multipath", "rockscq", "upgraded"}],
)
def test_all_files_are_rebuilt_from_the_log_with_detected_settings(golden: StoreOf, name: str, tmp_path: Path) -> None:
    result = rebuilt(golden(name), tmp_path / "out")

    assert read_all(tmp_path / "out") == read_all(golden(name) / "index")
    assert result.settings.geometry.origin == result.settings.rules.origin == "detected"
    assert result.exit_code is ExitCode.CLEAN


@pytest.mark.parametrize(("number", "is_lost"), [(errno.ETIMEDOUT, False), (errno.EMFILE, False), (errno.EIO, True)])
def test_the_release_is_not_detected_from_the_readable_segments_if_another_one_may_be_intact(
    golden: StoreOf, number: int, *, is_lost: bool
) -> None:
    """Its records may show another release; but a bad sector will never be readable."""
    store = list_store(str(golden("up470-471")))
    with (
        patch.object(Store, "open", side_effect=OSError(number, "failed", "segment")),
        nullcontext() if is_lost else pytest.raises(OSError, match="failed"),
    ):
        detect_store_eras(store)


def test_the_newest_file_is_completed_when_messages_are_missing_in_it(store: Path, tmp_path: Path) -> None:
    """After a crash the broker does not index them; while it runs, it may still do so."""
    names = list_names(store / "index")
    (store / "index" / names[-1]).unlink()
    whole = shorten_index_file(store, store / "index" / names[-2], 18)
    running = rebuilt(
        store, tmp_path / "running", GivenSettings(100, 20, "5.3.3"), lost_only=True, is_broker_running=True
    )
    stopped = rebuilt(store, tmp_path / "stopped", GivenSettings(100, 20, "5.3.3"), lost_only=True)

    assert running.files == []
    assert (tmp_path / "stopped" / names[-2]).read_bytes() == whole
    assert len(stopped.files) == 2


@pytest.mark.parametrize("name", [name for name in GOLDEN if SCENARIO[name] in {"crash-after", "crash-later"}])
def test_files_of_a_crashed_store_are_kept_and_lost_ones_before_the_crash_are_rebuilt(
    golden: StoreOf, name: str, tmp_path: Path
) -> None:
    """The first file after a restart repeats the last message of the previous file."""
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    whole = {path.name: path.read_bytes() for path in (store / "index").iterdir()}
    restarted = (store / "EXPECT" / "model-check.txt").read_text().partition("differs ")[2].split()[0]
    names = sorted(whole)
    lost = [names[3], names[names.index(restarted) - 1]]
    for lost_name in lost:
        (store / "index" / lost_name).unlink()
    result = rebuilt(store, tmp_path / "out", lost_only=True)

    assert read_all(tmp_path / "out") == [whole[lost_name] for lost_name in lost]
    assert {entry.verdict.role for entry in result.explained_files} == {"kept"}
    assert result.exit_code is ExitCode.CLEAN


@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("range_size", [1 << 30, 2048, 1024])
def test_one_process_builds_the_same_index_files_on_any_number_of_cores(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_size: int, cores: int
) -> None:
    monkeypatch.setattr("jobs.store.chain._NARROW", 512)
    monkeypatch.setattr("jobs.products.index.key_sequence.KEYS_PER_BLOCK", 3)
    request = RebuildIndexRequest(str(golden("b533-base")), str(tmp_path / "out"), range_size=range_size)
    rebuild_index(request, InProcessWorkers(width=cores))

    assert read_all(tmp_path / "out") == read_all(golden("b533-base") / "index")
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("files", [1, 2, 6])
def test_a_full_last_file_is_followed_by_an_empty_one(tmp_path: Path, files: int) -> None:
    """A broker opens a file for a message before it checks its keys; here, the last message has no keys."""
    without_keys = make_record(properties={}, store_timestamp=STORED + 60)
    Broker(tmp_path / "store").append([*some_records(60), without_keys])
    given_settings = GivenSettings(10, 120 // files + 1, "5.3.3")
    result = rebuilt(tmp_path / "store", tmp_path / "out", given_settings)
    rebuilt(tmp_path / "store", tmp_path / "by scratch files", given_settings, lost_only=True)

    assert [file.keys for file in result.files] == [120 // files] * files + [0]
    assert list_names(tmp_path / "out") == list_names(tmp_path / "by scratch files")
    assert read_all(tmp_path / "out") == read_all(tmp_path / "by scratch files")


def test_a_rebuild_that_fails_leaves_no_file(golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        rebuilt(golden("b533-base"), tmp_path / "out")

    assert not list((tmp_path / "out").iterdir())


def test_a_rebuild_whose_manifest_could_not_be_written_can_be_repeated(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index files that were complete stayed, so that the same command refused the directory."""
    create, out = LocalStorage.create, tmp_path / "out"

    def fail_for_manifest(storage: LocalStorage, location: str, data: bytes) -> None:
        if location.endswith("MANIFEST.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), location)
        create(storage, location, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "create", fail_for_manifest)
        failed = run("rebuild-index", golden("b533-base"), "--out", out)
    left = list(out.iterdir())
    repeated = run("rebuild-index", golden("b533-base"), "--out", out)

    assert ExitCode.FAILED == failed.code
    assert [] == left
    assert ExitCode.CLEAN == repeated.code


class _Uploads:
    """An object store that keeps what is created in it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, location: str, data: memoryview) -> None:
        self.objects[location.rpartition("/")[2]] = bytes(data)


def test_files_for_an_object_store_are_built_in_a_temporary_directory(
    golden: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path was used as that of a local directory."""
    uploads, out = _Uploads(), tmp_path / "out"
    monkeypatch.setattr("jobs.products.index.file_builder.storage_for", lambda *_: uploads)

    def build_at_both(work: BuildTask, *, directory: str, scratch: Scratch) -> BuiltIndexFile:
        build_file(work, directory="s3a://bucket/index", scratch=scratch)
        return build_file(work, directory=directory, scratch=scratch)

    monkeypatch.setattr("jobs.rebuild.index.build_file", build_at_both)
    result = rebuilt(golden("b533-base"), out)

    assert {file.name: (out / file.name).read_bytes() for file in result.files} == uploads.objects


def test_a_rebuilt_file_is_reread_unless_this_process_wrote_it(tmp_path: Path) -> None:
    """Otherwise, the error names the host that wrote it."""
    path = tmp_path / "20251120010000000"
    built = BuiltIndexFile(
        path.name, BuiltFileKind.FULL, 840, "00", IndexHeader(), 0, 0, 1, "worker-7", FileState(1, 2, 840, 3)
    )
    with pytest.raises(OSError, match="written on worker-7, but not accessible here"):
        check_built_file(built, str(tmp_path), {})
    path.write_bytes(bytes(840))
    with pytest.raises(OSError, match=r"has SHA-256 .* here, but had 00 on worker-7"):
        check_built_file(built, str(tmp_path), {})
    check_built_file(built._replace(sha256=hashlib.sha256(bytes(840)).hexdigest()), str(tmp_path), {})

    own = built._replace(host=gethostname(), state=FileState.read(path))
    check_built_file(own, str(tmp_path), {})
    path.write_bytes(bytes(839))
    with pytest.raises(OSError, match="has SHA-256"):
        check_built_file(own, str(tmp_path), {})


TINY = Geometry(100, 20)
RULES = {"up470-471": "4.7.0,4.7.1@11232", "up533-540": "5.3.3,5.4.0@11232"}
SUBSETS = 24


def built(build: BuildTask) -> bytes:
    data = bytearray(TINY.file_size)

    build_blocks(build.recipe, make_writer(data))
    return bytes(data)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", UNDISTURBED)
def test_any_lost_files_of_an_undisturbed_store_are_rebuilt(golden: StoreOf, name: str, tmp_path: Path) -> None:
    root = golden(name)
    store = list_store(str(root), commitlog=log_folders(root))
    rules = RULES.get(name, release_of(name))
    settings = IndexSettings(
        Determined(TINY, "given", ""),
        Determined(Writers(parse_rules(rules), rules), "given", ""),
        Determined(UTC, "given", ""),
        Release.from_version(release_of(name)).empty_index_count,
    )
    files = list_index_files(store)
    real = {file.name: Path(file.location).read_bytes() for file in files}
    ranges = plan_ranges(store, range_size=WHOLE_SEGMENTS)
    asked = RebuildIndexRequest(str(root), "", is_broker_running=True)
    random = Random(name)
    with open_scratch_below_output(str(tmp_path), {}) as scratch:
        keys = collect_keys(SerialWorkers(), store, ranges, parse_rules(rules), scratch)
        for lost in (random.sample([*real], random.randint(1, len(real))) for _ in range(SUBSETS)):
            kept = FilePlacer(keys, TINY, store).place_all([file for file in files if file.name not in lost])
            explained = tuple(ExplainedFile(one.broker_file, FileVerdict.EQUAL, one) for one in kept)
            builds = plan_builds(asked, Explanation(store, settings, keys, explained))
            left = [(one, data) for one, data in real.items() if one not in lost]
            order = sorted([(build.name, built(build)) for build in builds] + left)

            assert [data for _, data in order] == [*real.values()], sorted(lost)
            assert all(not build.doubt for build in builds) or keys.start_offset


def make_survivor(start: int, end: int, begins: range | None = None) -> Survivor:
    real = BrokerIndexFile(f"{start}", "", 0, IndexHeader(index_count=end - start + 1))
    return Survivor(real, start, first_message_keys=begins)


def plan_files(
    count: int, capacity: int, kept: Sequence[Survivor] = (), *, ends_without_keys: bool = False, is_whole: bool = True
) -> list[PlannedFile]:
    span = RangeKeys("", count, int(ends_without_keys), 0)
    keys = KeySequence(Scratch(""), (span,), 0 if is_whole else 1)
    return IndexPlan(AnyStorage(), keys, Geometry(1, capacity + 1), parse_rules("5.3.3")).plan_missing_files(kept)


@pytest.mark.parametrize(
    ("count", "kept", "options", "planned"),
    [
        pytest.param(
            30,
            [make_survivor(0, 10), make_survivor(25, 30)],
            {},
            [
                PlannedFile(10, 20, BuiltFileKind.FULL, "", "0", "25"),
                PlannedFile(20, 25, BuiltFileKind.SUPPLEMENT, RESTART_DOUBT, "0", "25"),
            ],
            id="a gap that no uninterrupted broker left gets a supplement: keys for one and a half files are missing",
        ),
        pytest.param(
            28,
            [make_survivor(0, 10), make_survivor(18, 28, range(18, 21))],
            {},
            [PlannedFile(10, 20, BuiltFileKind.FULL, RESTART_DOUBT, "0", "18")],
            id="a lost file before a restart ends with a part of the keys of the message that was indexed again",
        ),
        pytest.param(
            40,
            [make_survivor(23, 33)],
            {"is_whole": False},
            [
                PlannedFile(0, 3, BuiltFileKind.SUPPLEMENT, FIRST_MESSAGES_DELETED_DOUBT, next_kept_name="23"),
                PlannedFile(3, 13, BuiltFileKind.FULL, next_kept_name="23"),
                PlannedFile(13, 23, BuiltFileKind.FULL, next_kept_name="23"),
                PlannedFile(33, 40, BuiltFileKind.OPEN, previous_kept_name="23"),
            ],
            id="files are counted backwards if the log begins within a file, whose first keys have expired",
        ),
        pytest.param(
            17,
            [make_survivor(0, 10), make_survivor(10, 17)],
            {"ends_without_keys": True},
            [],
            id="no file is missing after an open file",
        ),
    ],
)
def test_files_are_planned_between_the_survivors(
    count: int, kept: list[Survivor], options: dict[str, bool], planned: list[PlannedFile]
) -> None:
    assert planned == plan_files(count, 10, kept, **options)
