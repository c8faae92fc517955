"""
A real cluster, a master and two workers, from the Spark of the pip package.

Each worker has its own address and, if the system permits it, its own host name and a directory that only it can see.
Worker processes have only the code that spark-submit sends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import pytest

from jobs.ingest.run import ingest
from jobs.launch.spark import spark_home
from jobs.requests.ingest import IngestRequest
from jobs.store.workers import SerialWorkers
from tests.golden import StoreOf
from tests.scale.servers import ADDRESS, expected_rows, rmq_lake, run_in_one_application, running, wait_for_port
from tests.support.broker import Broker, some_records
from tests.support.commands import Outcome
from tests.support.lakes import list_leftovers, raw_rows, rows_of
from tests.support.published import QUICK_JVM
from tests.support.stores import list_segments, read_files
from tests.support.waiting import free_port, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]  # for a busy machine: usually, minutes suffice

STORE = "b498-base"
SEGMENT = 16384  # the segment size of the store
RANGES = 7  # of a segment
OF_A_RUN = ("store_id", "modified", "time", "ingested_at")  # columns that differ from run to run

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "0",
}


WORKERS = {"worker-a": "127.0.0.2", "worker-b": "127.0.0.3"}
_SMALL_JVM = " ".join(QUICK_JVM)


class Cluster(NamedTuple):
    """The address of the master, and the directory of the workers."""

    url: str
    directory: Path

    @property
    def spark_options(self) -> list[str]:
        """Options before the name of the command; the workers' Python has our dependencies, but not our code."""
        return [
            *self.bare_options,
            "--conf",
            f"spark.pyspark.python={self.directory / 'environment' / 'bin' / 'python'}",
        ]

    @property
    def bare_options(self) -> list[str]:
        small = ["--executor-memory", "512m", "--conf", f"spark.executor.extraJavaOptions={_SMALL_JVM}"]
        return ["--master", self.url, *small]

    @property
    def worker_cache(self) -> Path:
        return self.directory / "worker-cache" / "rocketmq-lake"

    @property
    def compiled(self) -> dict[str, int]:
        """The compiled code in the workers' cache, with its times."""
        return {str(path): path.stat().st_mtime_ns for path in self.worker_cache.rglob("*.nb[ci]")}

    @property
    def private_directory(self) -> Path:
        return self.directory / "apart"


def _environment(directory: Path, address: str) -> dict[str, str]:
    return {
        "PATH": f"{directory / 'bare' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(directory / "home"),
        "SPARK_LOCAL_IP": address,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
        "XDG_CACHE_HOME": str(directory / "worker-cache"),
        "PYTHONPATH": "",
        "PYTHONSAFEPATH": "1",
        "RMQ_LAKE_CACHE": "",
    }


@contextmanager
def spark_cluster(directory: Path) -> Iterator[Cluster]:
    for name in ("conf", "worker-cache", "home", "apart"):
        (directory / name).mkdir()
    _make_environments(directory)
    spark_class = str(spark_home() / "bin" / "spark-class")
    port = free_port()
    log = directory / "master.log"
    master = [spark_class, "org.apache.spark.deploy.master.Master", "--host", ADDRESS, "--port", str(port)]
    with ExitStack() as stack:
        command = [*master, "--webui-port", str(free_port())]
        process = stack.enter_context(running(command, log, _environment(directory, ADDRESS)))
        wait_for_port(port, process, log)
        url = f"spark://{ADDRESS}:{port}"
        for name, address in WORKERS.items():
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", address, "--cores", "1"]
            worker += ["--memory", "600m", "--work-dir", str(directory / f"work-{name}")]
            command = [*_machine(directory / "apart", name), *worker, "--webui-port", str(free_port()), url]
            stack.enter_context(running(command, directory / f"{name}.log", _environment(directory, address)))
        wait_until(
            lambda: len(re.findall("Registering worker", log.read_text(errors="replace"))) >= len(WORKERS),
            lambda: f"the workers did not come up: {log.read_text(errors='replace')[-2000:]}",
        )
        yield Cluster(url, directory)


@cache
def has_namespaces() -> bool:
    """Return whether a process may have its own mounts and host name."""
    command = [*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


_UNSHARE = ["unshare", "--mount", "--uts", *(["--map-root-user"] if os.getuid() else [])]


def _machine(apart: Path, name: str) -> list[str]:
    """Return a prefix that runs a command as on another machine; empty if the system does not permit it."""
    if not has_namespaces():
        return []
    return [*_UNSHARE, "sh", "-c", 'mount -t tmpfs none "$0" && hostname "$1" && shift && exec "$@"', str(apart), name]


def _make_environments(directory: Path) -> None:
    """Create an empty environment, and one with the packages of this one, but without this checkout."""
    for name in ("bare", "environment"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / name)], check=True)
    (packages,) = directory.glob("environment/lib/python*/site-packages")
    (packages / "installed.pth").write_text(f"{spark_home().parent}\n")


def executors_at_work(cluster: Cluster) -> list[int]:
    found = []
    for process in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):  # it has ended
            if _is_working(process, cluster) and (executor := _parent(_parent(process))) != 1:
                found.append(executor)
    return found


def _is_working(process: int, cluster: Cluster) -> bool:
    """Return whether a process is a Python worker with compiled code: a child of an executor's daemon."""
    entry = Path(f"/proc/{process}")
    if not (entry / "cwd").readlink().is_relative_to(cluster.directory):
        return False
    own, parents = ((Path(f"/proc/{some}") / "cmdline").read_bytes() for some in (process, _parent(process)))
    return b"pyspark.daemon" in own and b"pyspark.daemon" in parents and "llvmlite" in (entry / "maps").read_text()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def store(golden: StoreOf) -> Path:
    return golden(STORE)


@pytest.fixture(scope="module")
def ingested(cluster: Cluster, store: Path) -> tuple[Outcome, Path]:
    lake = cluster.directory / "lake"
    options = [*cluster.spark_options, "--total-executor-cores", "1"]
    return rmq_lake(*options, "ingest", str(store), "--lake", str(lake)), lake


@pytest.fixture(scope="module")
def results(cluster: Cluster, store: Path, ingested: tuple[Outcome, Path]) -> dict[str, Any]:
    del ingested  # by now, the workers have compiled code
    directory, apart = cluster.directory, cluster.private_directory
    shutil.copytree(store, apart / "store")
    steps: dict[str, tuple[str, Any]] = {
        "late": ("ingest_with", ["late", str(store), str(directory / "late"), SEGMENT]),
        "fail": ("ingest_with", ["fail", str(store), str(directory / "fail"), SEGMENT]),
        "out": ("command", ["rebuild-index", str(store), "--out", str(apart / "out")]),
        "lake": ("command", ["ingest", str(store), "--lake", str(apart / "lake")]),
        "store": ("command", ["ingest", str(apart / "store"), "--lake", str(directory / "unseen")]),
        "index": ("rebuild_index", [str(store), str(directory / "index"), SEGMENT // RANGES + 1]),
    }
    settings = [word for setting in SPECULATION.items() for word in ("--conf", "=".join(setting))]
    found = run_in_one_application([*cluster.spark_options, *settings], list(steps.values()))
    return dict(zip(steps, found, strict=True))


def without_run(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str({name: value for name, value in row.items() if name not in OF_A_RUN}) for row in rows)


def test_a_cluster_ingests_the_same_rows_as_one_process(
    cluster: Cluster, store: Path, ingested: tuple[Outcome, Path], tmp_path: Path
) -> None:
    ended, lake = ingested
    ingest(IngestRequest(str(store), str(tmp_path)), SerialWorkers())

    assert 0 == ended.code, ended.err
    assert expected_rows(store) == raw_rows(lake)
    for table in ("messages", "consume_queue", "index_entries", "index_files"):
        expected = without_run(rows_of(tmp_path, table, "broker"))

        assert expected, table
        assert expected == without_run(rows_of(lake, table, "broker"))

    assert 1 == len([path for path in (cluster.worker_cache / "shipped").iterdir() if path.is_dir()])


def kill_executor(cluster: Cluster, run: Future[Outcome]) -> bool:
    """Kill an executor that is at work, and return True, unless the run ends before."""
    while not run.done():
        for executor in executors_at_work(cluster):
            with suppress(ProcessLookupError):
                os.kill(executor, signal.SIGKILL)
                return True
        time.sleep(0.02)
    return False


@pytest.fixture
def large_store(tmp_path: Path) -> Path:
    """Write a store that is large enough for compiled code: small ones are read without it."""
    broker = Broker(tmp_path / "large", segment_size=1 << 20)
    broker.append(some_records(9000))
    return broker.root


def test_tasks_of_a_killed_executor_are_repeated_without_compiling_again(
    cluster: Cluster, large_store: Path, tmp_path: Path
) -> None:
    store, lake = large_store, tmp_path / "lake"
    first = rmq_lake(*cluster.spark_options, "ingest", str(store), "--lake", str(tmp_path / "first"))

    assert 0 == first.code, first.err
    compiled = cluster.compiled
    wait_until(lambda: not executors_at_work(cluster), lambda: "an executor of an ended application is still at work")
    with ThreadPoolExecutor() as pool:
        run = pool.submit(rmq_lake, *cluster.spark_options, "ingest", str(store), "--lake", str(lake))

        assert kill_executor(cluster, run)
    ended = run.result()

    assert 0 == ended.code, ended.err
    assert any("exitStatus 137" in (cluster.directory / f"{name}.log").read_text() for name in WORKERS)
    assert expected_rows(store) == raw_rows(lake)
    assert compiled
    assert compiled == cluster.compiled


def test_workers_without_a_home_get_the_code(cluster: Cluster, store: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    packages = sysconfig.get_path("purelib")
    bare = cluster.directory / "bare" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages}${{PYTHONPATH:+:$PYTHONPATH}} exec {bare} "$@"\n')
    python.chmod(0o755)
    temporary = cluster.directory / "temporary"
    temporary.mkdir()
    environment = {
        "RMQ_LAKE_CACHE": "/dev/null/cache",
        "TMPDIR": str(temporary),
        "NUMBA_DISABLE_JIT": "1",  # other tests cover compiled code; this takes seconds
    }
    options = ["--conf", f"spark.pyspark.python={python}"]
    options += [word for name, value in environment.items() for word in ("--conf", f"spark.executorEnv.{name}={value}")]
    options += ["--total-executor-cores", "1"]
    ended = rmq_lake(*cluster.bare_options, *options, "ingest", str(store), "--lake", str(tmp_path / "lake"))

    assert 0 == ended.code, ended.err
    assert expected_rows(store) == raw_rows(tmp_path / "lake")
    logs = [path.read_text(errors="replace") for path in cluster.directory.glob("work-*/*/*/stderr")]

    assert "rmq-lake: /dev/null/cache cannot be written; using" in "".join(logs)
    assert [f"rocketmq-lake-{os.getuid()}"] == [path.name for path in temporary.glob("rocketmq-lake-*")]


def test_a_worker_without_numpy_fails_the_run_and_is_named(cluster: Cluster, store: Path, tmp_path: Path) -> None:
    ended = rmq_lake(*cluster.bare_options, "ingest", str(store), "--lake", str(tmp_path / "lake"))

    assert 1 == ended.code
    names = WORKERS if has_namespaces() else {gethostname()}

    assert any(f"rmq-lake: worker {name}: its Python, {cluster.directory / 'bare'}" in ended.err for name in names)
    assert "venv-pack2" in ended.err
    assert not (tmp_path / "lake").exists()


def test_index_files_built_by_a_cluster_equal_those_of_the_broker(
    cluster: Cluster, store: Path, results: dict[str, Any]
) -> None:
    assert RANGES * len(list_segments(store)) == results["index"]
    broker, ours = (read_files(directory / "index") for directory in (store, cluster.directory))

    assert [*broker.values()] == [data for name, data in ours.items() if name.isdigit()]


@pytest.mark.parametrize("kind", ["late", "fail"])
def test_a_task_and_its_copy_count_once(cluster: Cluster, store: Path, results: dict[str, Any], kind: str) -> None:
    """The copy is speculative, because the task is slow, or the task is repeated, because it failed after its work."""
    lake = cluster.directory / kind
    segments = list_segments(store)
    leftovers = {*list_leftovers(lake)}
    notes = [(cluster.directory / f"fail-failed-{int(path.name)}").read_text() for path in segments]
    failed = {f"/messages/{name}" for note in notes for name in note.split()}
    late = {name for name in leftovers if f"-{0:020d}-" in name}

    assert {"code": 0, "messages": len(expected_rows(store))} == results[kind]
    assert expected_rows(store) == raw_rows(lake)
    assert len(failed) >= len(segments)
    assert set() == (late if kind == "late" else failed & leftovers)


@pytest.mark.skipif(not has_namespaces(), reason="this system gives a process no mounts of its own")
def test_a_directory_not_shared_with_workers_fails_the_run(cluster: Cluster, results: dict[str, Any]) -> None:
    """A store that workers cannot see fails the run before they read it."""
    for kind in ("out", "lake"):
        said = results[kind]["said"].strip().splitlines()[-1]

        assert 1 == results[kind]["code"]
        assert said.startswith(f"rmq-lake: {cluster.private_directory / kind}")
        assert said.partition("not accessible on ")[2].partition(":")[0] in WORKERS

    assert 1 == results["store"]["code"]
    assert f"{cluster.private_directory}/store/commitlog/{0:020d}" in results["store"]["said"]
    assert [0] == [row["run"] for row in rows_of(cluster.directory / "unseen", "runs", "time")]
