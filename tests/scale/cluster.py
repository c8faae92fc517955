"""
A standalone Spark cluster on this machine: a master and two workers, from the Spark of the pip package.

Each worker has its own address and, if the system permits it, its own host name and a directory that only it can see.
No code of this repository is on its path.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jobs.launch.spark import spark_home
from tests.scale.servers import ADDRESS, running, wait_for_port
from tests.support.waiting import free_port, wait_until

WORKERS = {"worker-a": "127.0.0.2", "worker-b": "127.0.0.3"}
_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Cluster(NamedTuple):
    """The address of the master, and the folder of the workers."""

    url: str
    folder: Path

    @property
    def spark_options(self) -> list[str]:
        """Options before the name of the command; the workers' Python has our dependencies, but not our code."""
        return [*self.bare_options, "--conf", f"spark.pyspark.python={self.folder / 'environment' / 'bin' / 'python'}"]

    @property
    def bare_options(self) -> list[str]:
        small = ["--executor-memory", "512m", "--conf", f"spark.executor.extraJavaOptions={_SMALL_JVM}"]
        return ["--master", self.url, *small]

    @property
    def worker_cache(self) -> Path:
        return self.folder / "worker-cache" / "rocketmq-lake"

    @property
    def compiled(self) -> dict[str, int]:
        """The compiled code in the workers' cache, with its times."""
        return {str(path): path.stat().st_mtime_ns for path in self.worker_cache.rglob("*.nb[ci]")}

    @property
    def private_folder(self) -> Path:
        return self.folder / "apart"

    def read_worker_logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("work-*/*/*/stderr"))


def _environment(folder: Path, address: str) -> dict[str, str]:
    return {
        "PATH": f"{folder / 'bare' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "SPARK_LOCAL_IP": address,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
        "XDG_CACHE_HOME": str(folder / "worker-cache"),
        "PYTHONPATH": "",
        "PYTHONSAFEPATH": "1",
        "RMQ_LAKE_CACHE": "",
    }


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    for name in ("conf", "worker-cache", "home", "apart"):
        (folder / name).mkdir()
    _make_environments(folder)
    spark_class = str(spark_home() / "bin" / "spark-class")
    port, log = free_port(), folder / "master.log"
    master = [spark_class, "org.apache.spark.deploy.master.Master", "--host", ADDRESS, "--port", str(port)]
    with ExitStack() as stack:
        command = [*master, "--webui-port", str(free_port())]
        process = stack.enter_context(running(command, log, _environment(folder, ADDRESS)))
        wait_for_port(port, process, log)
        url = f"spark://{ADDRESS}:{port}"
        for name, address in WORKERS.items():
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", address, "--cores", "1"]
            worker += ["--memory", "600m", "--work-dir", str(folder / f"work-{name}")]
            command = [*_machine(folder / "apart", name), *worker, "--webui-port", str(free_port()), url]
            stack.enter_context(running(command, folder / f"{name}.log", _environment(folder, address)))
        wait_until(
            lambda: len(re.findall("Registering worker", log.read_text(errors="replace"))) >= len(WORKERS),
            lambda: f"the workers did not come up: {log.read_text(errors='replace')[-2000:]}",
        )
        yield Cluster(url, folder)


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


def _make_environments(folder: Path) -> None:
    """Create an empty environment, and one with the packages of this one, but without this checkout."""
    for name in ("bare", "environment"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / name)], check=True)
    (packages,) = folder.glob("environment/lib/python*/site-packages")
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
    if not (entry / "cwd").readlink().is_relative_to(cluster.folder):
        return False
    own, parents = ((Path(f"/proc/{some}") / "cmdline").read_bytes() for some in (process, _parent(process)))
    return b"pyspark.daemon" in own and b"pyspark.daemon" in parents and "llvmlite" in (entry / "maps").read_text()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
