"""Options and shared fixtures: one Spark session (`make test-fast` skips its tests), golden stores unpacked once."""

import fcntl
import gc
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings
from hypothesis.internal import entropy
from hypothesis.internal.conjecture import providers

from tests.golden import StoreOf, unpack, unpack_situation
from tests.sampling import SEED, deselect_expensive, deselect_unsampled
from tests.support.commands import Run, runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAFE_PATH = "PYTHONSAFEPATH"
# Without these, each statement on a small table runs 50 tasks for its Delta log and compiles code for its plan.
_SETTINGS_FOR_SMALL_TABLES = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Hypothesis would draw constants from the modules that this worker has imported, so every run would have different
# examples. No setting turns that off; the list of constants is empty until Hypothesis reads the first module.
providers._get_local_constants = lambda: providers._local_constants  # noqa: SLF001 - see above
# Hypothesis would seed and restore numpy's global generator for each example, which takes 0.1 ms. No test uses it.
entropy.NP_RANDOM = Random(0)
# The first call of a compiled function compiles it, so its duration says nothing about the example.
settings.register_profile("same examples in every run", deadline=None, derandomize=True)
settings.register_profile("other examples in every run", deadline=None)


_MEMORY_DIRECTORY: Final = Path("/dev/shm")
_PREFIX: Final = "tests-of-"  # and the number of the process
_MIN_FREE_DISK: Final = 8 << 30
_MIN_FREE_MEMORY: Final = 12 << 30
"""Bytes that must be free: a session writes about two GiB, and brokers and JVMs need memory as well."""


@contextmanager
def _writing_in_memory() -> Iterator[None]:
    """Write temporary files of this process and its children to memory, if there is enough and TMPDIR is not set."""
    _delete_directories_of_killed_runs()
    if "TMPDIR" in os.environ or not _has_room():
        yield
        return
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=_MEMORY_DIRECTORY, prefix=prefix, ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o1777)  # like /tmp, because some tests act as another user
        places = {"TMPDIR": directory, "PYTEST_DEBUG_TEMPROOT": directory}
        with patch.dict(os.environ, places), patch.object(tempfile, "tempdir", directory):
            yield


def _delete_directories_of_killed_runs() -> None:
    for directory in _MEMORY_DIRECTORY.glob(f"{_PREFIX}*-*"):
        if not Path("/proc", directory.name.removeprefix(_PREFIX).split("-")[0]).exists():
            shutil.rmtree(directory, ignore_errors=True)  # directories of other users remain


def _has_room() -> bool:
    try:
        disk, memory = os.statvfs(_MEMORY_DIRECTORY), Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = re.search(r"^MemAvailable: *(\d+) kB$", memory, re.MULTILINE)
    return (
        not disk.f_flag & os.ST_NOEXEC
        and disk.f_bavail * disk.f_frsize >= _MIN_FREE_DISK
        and available is not None
        and int(available[1]) << 10 >= _MIN_FREE_MEMORY
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers use the directory of the process that started them
        stack = ExitStack()
        stack.enter_context(_writing_in_memory())
        config.add_cleanup(stack.close)
    settings.load_profile("other examples in every run" if config.getoption("whole") else "same examples in every run")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every case of every matrix, not a sample")
    parser.addoption("--campaigns", action="store_true", help="also run tests that take hours")
    parser.addoption("--record", action="store_true", help="write what the commands of transcripts print now")
    parser.addoption("--sample-seed", type=int, default=SEED, help="another sample of each matrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Mark tests that use the session, and leave out slow tests and cases that are not in the sample.

    xdist runs the tests of a group on one worker, group by group in the order of *items*: first all tests that use the
    one JVM, which take longest, then those of each other file, the files with most tests first, and last the draws of
    faults: each takes a second, so that all workers end at the same time.
    """
    if not config.getoption("record"):
        deselect_expensive(config, items)
    if not config.getoption("whole"):
        deselect_unsampled(config, items)
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        if uses_spark:
            item.add_marker("spark")
        item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else str(item.path)))
        if config.getoption("loadgroup", default=False):
            # The scheduler reads the group from the id. xdist 3.8 writes it where pytest 9.2 no longer looks for it.
            item._id = NodeId.parse(f"{item.nodeid}@{_group_of(item)}")  # noqa: SLF001 - see above
    if hasattr(config, "workerinput"):
        sizes = Counter(map(_group_of, items))

        groups = {item: _group_of(item) for item in items}
        items.sort(key=lambda one: (groups[one] != "spark", -sizes[groups[one]], one.path.name == "test_faults.py"))


def _groups_of(item: pytest.Item) -> list[str]:
    return sorted(mark.args[0] for mark in item.iter_markers("xdist_group"))


def _group_of(item: pytest.Item) -> str:
    return "_".join(_groups_of(item))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that the scheduler sees the groups, and exclude collected tests from garbage collection."""
    if session.config.getoption("loadgroup", default=False):
        assert [] == [item.nodeid for item in session.items if not item.nodeid.endswith(f"@{_group_of(item)}")]
    gc.collect()
    gc.freeze()


@contextmanager
def _restore_import_path() -> Iterator[None]:
    """Remove a variable that Spark sets, so that programs of tests can import modules from their working directory."""
    before = {name: value for name, value in os.environ.items() if name == _SAFE_PATH}
    yield
    os.environ.pop(_SAFE_PATH, None)
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _restored_import_path() -> Iterator[None]:
    with _restore_import_path():
        yield


@pytest.fixture(autouse=True)
def _engine_of_new_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test without a session choose its engine as if no earlier test had started a session."""
    if "spark" not in request.fixturenames:
        monkeypatch.setattr("jobs.launch.engine.has_session", lambda: False)


@pytest.fixture(autouse=True)
def _no_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of tests work in this process, on a slow machine as well: other processes see no patches."""
    monkeypatch.setattr("jobs.command_line.engine.count_worker_processes", lambda _: 0)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Start a session like the launcher, with two cores and settings for small tables."""
    from jobs.launch.session import close_cluster_session, spark_session

    options = ["--master", "local[2]"]
    for name, value in _SETTINGS_FOR_SMALL_TABLES.items():
        options += ["--conf", f"{name}={value}"]
    with _restore_import_path():
        session = spark_session("tests", spark_options=options)
    yield session
    close_cluster_session()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture
def own_session(spark: "SparkSession") -> "SparkSession":
    return spark.newSession()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """Return the store of a real broker by name; it is shared, so change only a copy."""
    return _unpacked_once(unpack, tmp_path_factory, "golden")


@pytest.fixture(scope="session")
def situation(tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """Return the directory of a situation by name, with `store/`; it is shared, so change only a copy."""
    return _unpacked_once(unpack_situation, tmp_path_factory, "situations")


def _unpacked_once(
    unpack_store: Callable[[str, Path], Path], factory: pytest.TempPathFactory, directory_name: str
) -> StoreOf:
    """Return a function that unpacks each store once, into a directory that all workers share."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / directory_name
    directory.mkdir(exist_ok=True)

    @cache
    def store_of(name: str) -> Path:
        with (directory / f"{name}.place").open("a+") as place:  # empty until a worker has unpacked the store
            fcntl.flock(place, fcntl.LOCK_EX)
            if place.seek(0, os.SEEK_END) == 0:  # another worker may have written while this one waited
                place.write(str(unpack_store(name, directory)))
            place.seek(0)
            return Path(place.read())

    return store_of
