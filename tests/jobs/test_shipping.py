"""Our code on the workers of a cluster: unpacked once, compiled once, imported from where the last run's cache lies."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection, socket

import pytest

from jobs.launch import shipping
from jobs.launch.jars import spark_home
from jobs.launch.java import find_java_home

ROOT = Path(__file__).parent.parent.parent

# What a worker does with a task of ours: put the ZIP on its path and import.
WORKER = """
import json, sys
sys.path.insert(1, sys.argv[1])
import rmq_formats
import jobs.launch

print(json.dumps({"formats": rmq_formats.__file__, "jobs": jobs.launch.__file__}))
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the ZIP in a driver's cache."""
    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path / "driver"))
    return shipping.archive()


def work(archive: Path, cache: Path, temporary: Path) -> "subprocess.Popen[str]":
    """Start a worker that has nothing of ours but the ZIP."""
    environment = {"PATH": os.environ["PATH"], "RMQ_LAKE_CACHE": str(cache), "TMPDIR": str(temporary)}
    program = f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n{WORKER}"
    command = [sys.executable, "-P", "-c", program, str(archive)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=temporary
    )


def told(process: "subprocess.Popen[str]") -> tuple[Mapping[str, str], str]:
    """Return what a worker found, and what it complained about."""
    output, errors = process.communicate(timeout=120)
    assert 0 == process.returncode, errors
    found: Mapping[str, str] = json.loads(output)
    return found, errors


def test_the_same_code_is_the_same_archive(archive: Path) -> None:
    """A second application finds what the first has unpacked."""
    assert archive == shipping.archive()


def test_workers_import_from_one_directory_named_after_the_code(archive: Path, tmp_path: Path) -> None:
    """Four at once on one machine: one unpacks, all import from there."""
    cache = tmp_path / "worker"
    processes = [work(archive, cache, tmp_path) for _ in range(4)]

    found = [told(process) for process in processes]

    (directory,) = (cache / "shipped").iterdir()
    expected = {
        "formats": str(directory / "rmq_formats" / "__init__.py"),
        "jobs": str(directory / "jobs" / "launch" / "__init__.py"),
    }
    assert [(expected, "")] * 4 == found


def test_a_cache_that_cannot_be_written_only_warns(archive: Path, tmp_path: Path) -> None:
    """A worker without a home computes all the same."""
    (tmp_path / "file").touch()

    found, errors = told(work(archive, tmp_path / "file" / "cache", tmp_path))

    assert found["formats"].startswith(str(tmp_path / f"rocketmq-lake-{os.getuid()}"))
    assert "cannot be written" in errors


# On a cluster: each task says where its code lies, and how often numba compiled or found its machine code on disk.
APPLICATION = """
import json, sys
from jobs.session import close, spark_session


def report(numbers):
    import numpy
    import rmq_formats
    from rmq_formats.kernels import hash_text

    hash_text(numpy.zeros(100, numpy.uint8), 0, 100, 0)
    stats = hash_text.stats
    yield rmq_formats.__file__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values())


spark = spark_session("shipping", spark_options=json.loads(sys.argv[1]))
found = spark.sparkContext.parallelize(range(1), 1).mapPartitions(report).collect()
close(succeeded=True)
print(json.dumps(found))
"""


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Tell whether a server has come up."""
    try:
        create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a master and a worker of Spark's own on this machine, and give the master's address."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "RMQ_LAKE_CACHE": str(tmp_path / "worker"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_LOG_DIR": str(tmp_path),
    }
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(spark_home() / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    size = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work")]
    commands = (
        [spark_class, f"{deploy}.master.Master", *where, "--port", str(port)],
        [spark_class, f"{deploy}.worker.Worker", *where, *size, master],
    )
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "cluster.log").open("w"))
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(process.kill)
            deadline = time.monotonic() + 60
            while not is_listening(port) and time.monotonic() < deadline:
                time.sleep(0.2)
        yield master


def run_application(master: str, folder: Path) -> tuple[str, int, int]:
    """Run the application once; return where the worker's code lay, and numba's hits and misses."""
    options = ["--master", master, "--executor-memory", "512m", "--conf", "spark.cores.max=1"]
    environment = {
        **os.environ,
        "RMQ_LAKE_CACHE": str(folder / "driver"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    answer = subprocess.run(
        [sys.executable, "-c", APPLICATION, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder / "code",
        timeout=240,
    )
    assert 0 == answer.returncode, answer.stderr
    (found,) = json.loads(answer.stdout)
    file, hits, misses = found
    return file, hits, misses


@pytest.mark.cluster
@pytest.mark.spark
def test_a_second_application_on_a_cluster_compiles_nothing(cluster: str, tmp_path: Path) -> None:
    """Each application gets a new directory from Spark; ours stays where the compiler left its work."""
    for name in ("jobs", "rmq_formats", "conf"):
        shutil.copytree(ROOT / name, tmp_path / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))

    file, _, compiled_first = run_application(cluster, tmp_path)
    same_file, found_second, compiled_second = run_application(cluster, tmp_path)

    assert file.startswith(str(tmp_path / "worker" / "shipped"))
    assert (file, 1, 1, 0) == (same_file, compiled_first, found_second, compiled_second)
