"""A standalone Spark cluster on this machine: a master and two workers, from the Spark that pip installed."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from jobs.launch.jars import spark_home
from tests.scale.servers import ADDRESS, free_port, running, wait_for_port

_WORKERS = 2
_REGISTER_SECONDS = 240  # of a busy machine


class Cluster(NamedTuple):
    """Where its master listens, and where its workers work."""

    url: str
    folder: Path

    @property
    def spark_options(self) -> list[str]:
        """What a user writes before the verb."""
        return ["--master", self.url, "--conf", f"spark.pyspark.python={self.python}"]

    @property
    def python(self) -> Path:
        """The workers' Python: what we depend on is installed there, we are not."""
        return self.folder / "environment" / "bin" / "python"

    @property
    def shipped(self) -> list[Path]:
        """The directories into which workers unpacked what spark-submit brought them."""
        return sorted((self.folder / "worker-cache").glob("rocketmq-lake/shipped/*"))


def _environment(folder: Path) -> dict[str, str]:
    """Return what a worker's machine has: Java, a Python, and a home of its own. Not this repository."""
    return {
        "SPARK_LOCAL_IP": ADDRESS,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_MEMORY": "256m",
        "XDG_CACHE_HOME": str(folder / "worker-cache"),
        "PYTHONPATH": "",
        "PYTHONSAFEPATH": "1",
        "RMQ_LAKE_CACHE": "",
    }


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a master and two workers of one core each; their directory is empty but for what they make."""
    for name in ("conf", "worker-cache", "home"):
        (folder / name).mkdir()
    _make_environment(folder / "environment")
    spark_class = str(spark_home() / "bin" / "spark-class")
    environment = _environment(folder)
    port, log = free_port(), folder / "master.log"
    master = [spark_class, "org.apache.spark.deploy.master.Master", "--host", ADDRESS, "--port", str(port)]
    with ExitStack() as stack:
        process = stack.enter_context(running([*master, "--webui-port", str(free_port())], log, environment))
        wait_for_port(port, process, log)
        url = f"spark://{ADDRESS}:{port}"
        for number in range(_WORKERS):
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", ADDRESS, "--cores", "1"]
            worker += ["--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            command = [*worker, "--webui-port", str(free_port()), url]
            stack.enter_context(running(command, folder / f"worker-{number}.log", environment))
        _wait_for_workers(log)
        yield Cluster(url, folder)


def _make_environment(folder: Path) -> None:
    """Make an environment that sees this one's packages; a path file leads to them, but not on to this checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "installed.pth").write_text(f"{spark_home().parent}\n")


def _wait_for_workers(log: Path) -> None:
    deadline = time.monotonic() + _REGISTER_SECONDS
    while len(re.findall("Registering worker", log.read_text(errors="replace"))) < _WORKERS:
        if time.monotonic() > deadline:
            raise OSError(f"the workers did not come up: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def python_workers(cluster: Cluster) -> list[int]:
    """Return the Python processes at work for a task: children of an executor's daemon."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _works(entry, cluster)]


def _works(process: Path, cluster: Cluster) -> bool:
    try:
        if not (process / "cwd").readlink().is_relative_to(cluster.folder):
            return False
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        return all(
            b"pyspark.daemon" in path.read_bytes()
            for path in (process / "cmdline", process.parent / parent / "cmdline")
        )
    except OSError:  # it has ended
        return False
