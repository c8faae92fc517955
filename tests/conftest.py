"""One Spark session for all tests that need it (`make test-fast` skips these); each golden store is unpacked once."""

import gc
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.golden import StoreOf, unpack, unpack_situation
from tests.sampling import SEED, deselect_what_is_not_sampled
from tests.support.commands import Run, runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAFE_PATH = "PYTHONSAFEPATH"
# What a statement of Spark costs where tables have some rows: 50 tasks for each look at a Delta log, and compiled code
# for each plan.
_SMALL = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# Hypothesis would draw constants from the modules that this worker has imported, so every run would have other
# examples. No setting turns that off; the list of constants is empty until Hypothesis reads the first module.
providers._get_local_constants = lambda: providers._local_constants  # noqa: SLF001 - see above
# The first call of a compiled function compiles it, so its duration says nothing about the example.
settings.register_profile("same examples in every run", deadline=None, derandomize=True)
settings.register_profile("other examples in every run", deadline=None)


_PLACE: Final = Path("/dev/shm")
_PREFIX: Final = "tests-of-"  # and the number of the process
_ROOM: Final = 8 << 30
_MEMORY: Final = 12 << 30
"""Bytes that must be free: a session writes some two GiB, and memory is for brokers and JVMs as well."""


@contextmanager
def _writing_in_memory() -> Iterator[None]:
    """Have this process and those it starts make temporary files in memory, if it has room and TMPDIR says nothing."""
    _delete_what_killed_runs_left()
    if "TMPDIR" in os.environ or not _has_room():
        yield
        return
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=_PLACE, prefix=prefix, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)  # as /tmp is: some tests act as another user
        places = {"TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": folder}
        with patch.dict(os.environ, places), patch.object(tempfile, "tempdir", folder):
            yield


def _delete_what_killed_runs_left() -> None:
    for folder in _PLACE.glob(f"{_PREFIX}*-*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX).split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def _has_room() -> bool:
    try:
        place, memory = os.statvfs(_PLACE), Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = re.search(r"^MemAvailable: *(\d+) kB$", memory, re.MULTILINE)
    return (
        not place.f_flag & os.ST_NOEXEC
        and place.f_bavail * place.f_frsize >= _ROOM
        and available is not None
        and int(available[1]) << 10 >= _MEMORY
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers write where the process says that started them
        stack = ExitStack()
        stack.enter_context(_writing_in_memory())
        config.add_cleanup(stack.close)
    settings.load_profile("other examples in every run" if config.getoption("whole") else "same examples in every run")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every case of every matrix, not a sample")
    parser.addoption("--record", action="store_true", help="write what the commands of transcripts print now")
    parser.addoption("--sample-seed", type=int, default=SEED, help="another sample of each matrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Mark tests that use the session, and leave out cases that are not in the sample.

    xdist runs the tests of a group on one worker, group by group in the order of *items*: first all tests that use the
    one JVM, which take longest, then those of each other file, the files with most tests first.
    """
    if not config.getoption("whole"):
        deselect_what_is_not_sampled(config, items)
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else str(item.path)))
        if uses_spark:
            item.add_marker("spark")
        if config.getoption("loadgroup", default=False):
            # The scheduler reads the group from the id. xdist 3.8 writes it where pytest 9.2 no longer looks for it.
            item._id = NodeId.parse(f"{item.nodeid}@{_group_of(item)}")  # noqa: SLF001 - see above
    if hasattr(config, "workerinput"):
        sizes = Counter(map(_group_of, items))
        items.sort(key=lambda item: (_group_of(item) != "spark", -sizes[_group_of(item)]))


def _group_of(item: pytest.Item) -> str:
    return "_".join(sorted(mark.args[0] for mark in item.iter_markers("xdist_group")))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that the scheduler sees the groups, and exclude what was collected from garbage collection."""
    if session.config.getoption("loadgroup", default=False):
        assert [] == [item.nodeid for item in session.items if not item.nodeid.endswith(f"@{_group_of(item)}")]
    gc.collect()
    gc.freeze()


@contextmanager
def _imports_as_before() -> Iterator[None]:
    """Remove the variable that Spark sets for its own programs: those that tests start import from their own cwd."""
    before = {name: value for name, value in os.environ.items() if name == _SAFE_PATH}
    yield
    os.environ.pop(_SAFE_PATH, None)
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _imports_as_at_the_start() -> Iterator[None]:
    with _imports_as_before():
        yield


@pytest.fixture(autouse=True)
def _engine_as_in_a_process_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test that asks for no session choose its engine as if no test before it had started one."""
    if "spark" not in request.fixturenames:
        monkeypatch.setattr("jobs.launch.engine.has_session", lambda: False)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Start the session that the launcher would start, with two cores, and settings for small tables."""
    from jobs.launch.session import close, spark_session

    options = ["--master", "local[2]"]
    for name, value in _SMALL.items():
        options += ["--conf", f"{name}={value}"]
    with _imports_as_before():
        session = spark_session("tests", spark_options=options)
    yield session
    close()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture
def own_session(spark: "SparkSession") -> "SparkSession":
    """Give a session whose temporary views no other test sees."""
    return spark.newSession()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """Give a real broker's store by name; it is shared, so copy it before you change anything."""
    return cache(partial(unpack, folder=tmp_path_factory.mktemp("golden")))


@pytest.fixture(scope="session")
def situation(tmp_path_factory: pytest.TempPathFactory) -> StoreOf:
    """Give what a real broker left in a situation by name: `store/` and more; copy it before you change anything."""
    return cache(partial(unpack_situation, folder=tmp_path_factory.mktemp("situations")))
