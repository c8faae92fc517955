"""Commands on the host of a running broker: the lock, the page cache, the read rate, and the disk space."""

import ctypes
import errno
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.command_line import cli
from jobs.ingest import Summary
from jobs.ingest.run import ingest
from jobs.launch.spark import use_half_the_cores
from jobs.rebuild.index import list_and_determine_settings
from jobs.requests.ingest import IngestRequest
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.requests.verify import VerifyRequest
from jobs.storage import storage_for
from jobs.storage.local import ReadLimits
from jobs.store.ranges import plan_ranges
from jobs.store.request import GivenSettings
from jobs.store.store import list_store
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
from rmq_formats.broker_conf import BrokerConf
from tests.golden import StoreOf
from tests.support.commands import ROOT
from tests.support.lakes import rows_of
from tests.support.stores import hold_lock

MIB = 1 << 20
AGAIN = 4  # times
PAGE = mmap.PAGESIZE
AT_ONCE = MIB // 4

PRIORITIES = """
import ctypes, os, platform, subprocess, sys
from jobs.store.running_broker import limit_load_beside_broker
told = "import ctypes, os; print(os.nice(0), ctypes.CDLL(None).syscall({}, 1, 0) >> 13)".format(
    {"x86_64": 252, "aarch64": 31}[platform.machine()]
)
exec(told)
limit_load_beside_broker(sys.argv[1])
limit_load_beside_broker(sys.argv[1])
exec(told)
print(subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout, end="")
"""


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(golden("b498-base"), tmp_path / "store"))
    (copy / "lock").write_bytes(b"lock")
    return copy


def test_priorities_are_lowered_once_and_inherited(store: Path) -> None:
    with hold_lock(store):
        answer = subprocess.run(
            [sys.executable, "-c", PRIORITIES, str(store)], capture_output=True, text=True, check=True, cwd=ROOT
        )
    before, after, child = (tuple(map(int, line.split())) for line in answer.stdout.splitlines())

    assert (max(before[0], 10), 3) == after == child


@pytest.mark.parametrize("command", ["ingest", "verify", "rebuild-index", "rebuild-consumequeue"])
def test_commands_that_read_the_log_limit_their_load(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    seen: dict[str, Any] = {}

    class Begun(Exception):
        pass

    def session(*_: object, half: bool = False, **__: object) -> object:
        seen["half"] = half
        raise Begun

    # Otherwise, `ingest` reads such a small store itself.
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "--master local[2]")
    monkeypatch.setattr("jobs.launch.session.spark_context", session)
    monkeypatch.setattr("jobs.store.running_broker.lower_priority", lambda: seen.update(lowered=True))
    where = {"ingest": ["--lake", str(tmp_path / "lake")], "verify": []}.get(command, ["--out", str(tmp_path / "out")])
    with hold_lock(store), pytest.raises(Begun):
        cli.run_nested([command, str(store), *where])

    assert {"half": True, "lowered": True} == seen


def test_half_of_the_cores_are_used_unless_a_master_is_given() -> None:
    cores = max(len(os.sched_getaffinity(0)) // 2, 1)

    assert ["--master", f"local[{cores},4]"] == list(use_half_the_cores([]))
    assert ["--master", "yarn"] == use_half_the_cores(["--master", "yarn"])


def test_read_limits_are_shared_among_tasks(store: Path) -> None:
    careful = list_store(str(store), read_limits=ReadLimits(9000).share_among(3))

    copies = [pickle.loads(pickle.dumps(range_)) for range_ in plan_ranges(careful)]  # noqa: S301 - our own data

    assert {ReadLimits(3000)} == {copy.storage.read_limits for copy in copies}
    assert list_store(str(store)).storage.read_limits is None


def resident_pages(path: Path) -> list[bool]:
    size = path.stat().st_size
    vector = (ctypes.c_ubyte * (size // PAGE))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert 0 == ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), vector)
    return [bool(state & 1) for state in vector]


@pytest.fixture
def half_cached() -> Iterator[Path]:
    """Create a file in the checkout, because temporary files may be in memory, where pages cannot be evicted."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as directory:
        path = Path(directory) / "segment"
        path.write_bytes(os.urandom(4 * MIB))
        cache_half(path)
        if any(resident_pages(path)[: 2 * MIB // PAGE]):
            pytest.skip("this file system keeps its pages")
        yield path


def cache_half(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 2 * MIB, 2 * MIB)


@pytest.fixture
def kernel_that_drops(half_cached: Path) -> None:
    """Skip the test if the kernel or the file system does not support dropping pages."""
    with half_cached.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 2 * MIB, 0x80)
        except OSError as error:
            pytest.skip(f"RWF_DONTCACHE: {error.strerror}")


@pytest.fixture
def older_kernel(half_cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reads behave as on Linux before 5.9: no page is dropped, and RWF_NOWAIT reads only cached pages."""
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        if flags & ~os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if flags:
            (buffer,) = buffers
            wanted = resident_pages(half_cached)[position // PAGE : -(-(position + buffer.nbytes) // PAGE)]
            there = next((page for page, cached in enumerate(wanted) if not cached), len(wanted))
            if not there:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            buffers = [buffer[: there * PAGE - position % PAGE]]
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)


def pages_after_reading(path: Path, step: int) -> tuple[list[bool], list[bool]]:
    """
    Read a whole file with read_limits, and return the cached pages of each half of it.

    The kernel may evict pages for other processes at any time, but an effect of reads occurs each time. So if pages of
    the second half are missing, the read is repeated.
    """
    after = list[bool]()
    middle = path.stat().st_size // PAGE // 2
    for _ in range(1 + AGAIN):
        cache_half(path)
        with storage_for(str(path), read_limits=ReadLimits()).open(str(path)) as reader:
            data = b"".join(bytes(reader.read(at, step)) for at in range(0, reader.size, step))
        after = resident_pages(path)
        assert path.read_bytes() == data
        if all(after[middle:]):
            break
    return after[:middle], after[middle:]


@pytest.mark.parametrize("kernel", ["kernel_that_drops", "older_kernel"])
@pytest.mark.parametrize("step", [MIB, 100_001])
def test_reading_leaves_the_page_cache_unchanged(
    half_cached: Path, request: pytest.FixtureRequest, kernel: str, step: int
) -> None:
    """
    Pages that a broker had in memory stay there, others are dropped, also at unaligned positions.

    On an older kernel a read that ends in cached pages drops none of its pages, because cached ones might be dropped.
    """
    request.getfixturevalue(kernel)
    first, second = pages_after_reading(half_cached, step)

    assert sum(first) * PAGE <= AT_ONCE * (kernel == "older_kernel" and MIB % step > 0)
    assert all(second)


class Clock:
    """A clock that advances only by `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("computing", [0.0, 0.01])
def test_the_read_rate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computing: float) -> None:
    clock = Clock()
    monkeypatch.setattr("jobs.storage.local.time", clock)
    (tmp_path / "segment").write_bytes(bytes(32 * MIB))
    read_limits = ReadLimits(8 * MIB + int(computing * 1000))  # another rate
    with storage_for(str(tmp_path / "segment"), read_limits=read_limits).open(str(tmp_path / "segment")) as reader:
        for at in range(0, 32 * MIB, MIB):
            reader.read(at, MIB)
            clock.now += computing

    assert 3.4 <= clock.now - 1000 <= 4.1


def test_a_lake_that_would_fill_the_disk_of_the_broker_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 75 %, a running broker would delete files early."""
    usage = SimpleNamespace(total=10 * MIB, used=7 * MIB + MIB // 2, free=2 * MIB)
    monkeypatch.setattr("jobs.store.running_broker.shutil.disk_usage", lambda _: usage)
    lake = str(tmp_path / "lake")
    with hold_lock(store):
        with pytest.raises(OSError, match=r"75%"):
            ingest(IngestRequest(str(store), lake), SerialWorkers())
        with pytest.raises(OSError, match=r"75%"):
            verify(VerifyRequest(str(store)), SerialWorkers())

    alone: Summary = ingest(IngestRequest(str(store), lake), SerialWorkers())

    assert 0 < alone.messages


_IN_TEMPORARY_FILES: dict[str, Callable[[Path, Path], object]] = {
    "full index files": lambda store, lake: ingest(IngestRequest(str(store), str(lake)), SerialWorkers()),
    "index files before their upload": lambda store, _: list_and_determine_settings(
        RebuildIndexRequest(
            str(store), "s3a://bucket/index", given_settings=GivenSettings(release="4.9.8", conf=BrokerConf())
        ),
        {},
    ),
}


@pytest.mark.parametrize("files", _IN_TEMPORARY_FILES)
def test_temporary_files_must_fit_next_to_the_broker(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("jobs.store.running_broker.find_broker_process", lambda _: 1)
    monkeypatch.setattr("jobs.store.running_broker.FULL_DISK_SHARE", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(OSError, match=f"^{temporary} is on the store's file system"):
        _IN_TEMPORARY_FILES[files](store, tmp_path / "lake")

    assert [] == rows_of(tmp_path / "lake")
