"""An HDFS on this machine: a name node and a data node as their project publishes them, with Spark's own JARs."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from jobs.launch.jars import spark_home
from tests.scale.servers import ADDRESS, running, wait_for_port
from tests.support.ports import free_port
from tests.support.published import Module, class_path
from tests.support.waiting import wait_until

_SECONDS = 240  # of a busy machine
HADOOP = Module("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0")  # Spark 4.2 has the rest of it
_JVM = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


class Hdfs(NamedTuple):
    """Where its name node listens, and its configuration as users have it."""

    port: int
    http_port: int
    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def options(self) -> dict[str, str]:
        return {"dfs.namenode.http-address": f"{ADDRESS}:{self.http_port}"}

    @property
    def spark_options(self) -> list[str]:
        return [word for name, value in self.options.items() for word in ("--conf", f"spark.hadoop.{name}={value}")]

    def uri(self, path: str) -> str:
        return f"hdfs://{ADDRESS}:{self.port}{path}"

    def shell(self, *arguments: str) -> None:
        """Run `hdfs dfs …`, as the user who may do everything."""
        command = [*_JVM, "-cp", _class_path(self.conf), "org.apache.hadoop.fs.FsShell", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if answer.returncode:
            raise OSError(f"{arguments}: {answer.stderr[-2000:]}")


def _class_path(conf: Path) -> str:
    return f"{conf}:{class_path(HADOOP.name, [HADOOP])[0]}:{spark_home() / 'jars'}/*"


@contextmanager
def hdfs(folder: Path) -> Iterator[Hdfs]:
    started = Hdfs(free_port(), free_port(), folder)
    started.conf.mkdir()
    _write(started.conf / "core-site.xml", {"fs.defaultFS": started.uri(""), "hadoop.tmp.dir": str(folder / "tmp")})
    nodes = {f"dfs.datanode.{name}": f"{ADDRESS}:{free_port()}" for name in ("address", "http.address", "ipc.address")}
    settings = {"dfs.replication": "1", "dfs.datanode.hostname": ADDRESS, "dfs.blocksize": "1048576"}
    _write(started.conf / "hdfs-site.xml", {**settings, **started.options, **nodes})
    command = [*_JVM, "-cp", _class_path(started.conf)]
    format_log = subprocess.run([*command, _NAME_NODE, "-format"], capture_output=True, text=True, check=False)
    if format_log.returncode:
        raise OSError(format_log.stderr[-2000:])
    with ExitStack() as stack:
        name_node = stack.enter_context(running([*command, _NAME_NODE], folder / "name-node.log"))
        wait_for_port(started.http_port, name_node, folder / "name-node.log")
        stack.enter_context(running([*command, _DATA_NODE], folder / "data-node.log"))
        _wait_for_data_node(started.http_port, folder / "data-node.log")
        yield started


def _write(path: Path, settings: Mapping[str, str]) -> None:
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    path.write_text(f"<configuration>{''.join(properties)}</configuration>")


def _wait_for_data_node(http_port: int, log: Path) -> None:
    """Ask the name node until it knows one; its log holds errors alone."""
    state = f"http://{ADDRESS}:{http_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"

    def is_there() -> bool:
        with urlopen(state) as answer:
            beans = json.load(answer)["beans"]  # none while it starts
        return bool(beans) and bool(beans[0]["NumLiveDataNodes"])

    wait_until(is_there, lambda: f"the data node did not come up: {log.read_text(errors='replace')[-2000:]}")
