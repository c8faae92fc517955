"""Servers that tests start on an address of this machine."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

from jobs.launch.spark import spark_home
from jobs.storage.settings import AzureSettings, azure_filesystem
from tests.support.commands import ROOT, Outcome
from tests.support.published import QUICK_JVM, Module, azurite, class_path
from tests.support.stores import read_store_records
from tests.support.waiting import free_port, wait_until

ADDRESS = "127.0.0.1"
_STOP_SECONDS = 20
_SECONDS = 240  # of a busy machine
_LONGEST_S = 1000  # of a whole command on a busy machine; on an idle one, a tenth of it


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server that writes its output to *log*, and stop it after the block."""
    with log.open("wb") as output:
        own = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=own)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server listens on *port*; if it does not start, raise an error with its output."""

    def describe() -> str:
        return f"no server came up on port {port}: {log.read_text(errors='replace')[-2000:]}"

    wait_until(lambda: _is_listening(port) or process.poll() is not None, describe)
    if process.poll() is not None:
        raise OSError(describe())


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((ADDRESS, port)) == 0


def hadoop_options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"spark.hadoop.{name}={value}")]


S3PROXY = Module("org.gaul", "s3proxy", "4.1.0", "jar-with-dependencies")
ACCESS_KEY = "an-access-key-of-tests"
SECRET_KEY = "a-secret-key-that-nobody-may-read"  # noqa: S105 - of a temporary server
BUCKET = "rocketmq"


class S3Server(NamedTuple):
    """An S3 server, and the local directory of its objects."""

    port: int
    directory: Path

    @property
    def options(self) -> dict[str, str]:
        own = {"endpoint": f"http://{ADDRESS}:{self.port}", "access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
        own |= {"path.style.access": "true", "endpoint.region": "us-east-1"}
        return {f"fs.s3a.{name}": value for name, value in own.items()}

    def uri(self, *names: str) -> str:
        return "/".join((f"s3a://{BUCKET}", *names))

    def path(self, *names: str) -> Path:
        return self.directory.joinpath(BUCKET, *names)

    def upload(self, directory: Path, prefix: str) -> None:
        shutil.copytree(directory, self.path(prefix))

    def download(self, prefix: str, directory: Path) -> None:
        if self.path(prefix).is_dir():
            shutil.copytree(self.path(prefix), directory)


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    port = free_port()
    objects = directory / "objects"
    (objects / BUCKET).mkdir(parents=True)
    settings = directory / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.endpoint=http://{ADDRESS}:{port}\ns3proxy.authorization=aws-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\ns3proxy.credential={SECRET_KEY}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.identity=local\njclouds.credential=local\n"
        f"jclouds.filesystem.basedir={objects}\n",
        encoding="utf-8",
    )
    log = directory / "s3proxy.log"
    jar = str(class_path(S3PROXY.name, [S3PROXY])[0])
    command = ["java", "-Xmx512m", *QUICK_JVM, "-jar", jar, "--properties", str(settings)]
    with running(command, log) as process:
        wait_for_port(port, process, log)
        yield S3Server(port, objects)


ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, public
CONTAINER = "rocketmq"


class AzureServer(NamedTuple):
    """An Azure server, and the file system of its container."""

    port: int
    filesystem: FileSystem

    @property
    def options(self) -> dict[str, str]:
        key = f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"
        return {key: KEY, "fs.azure.endpoint": f"http://{ADDRESS}:{self.port}"}

    @staticmethod
    def uri(*names: str) -> str:
        return "/".join((f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net", *names))

    def upload(self, directory: Path, prefix: str) -> None:
        copy_files(str(directory), f"{CONTAINER}/{prefix}", LocalFileSystem(), self.filesystem)

    def download(self, prefix: str, directory: Path) -> None:
        copy_files(f"{CONTAINER}/{prefix}", str(directory), self.filesystem, LocalFileSystem())


@contextmanager
def azure_server(directory: Path) -> Iterator[AzureServer]:
    program = azurite()
    port, log = free_port(), directory / "azurite.log"
    listening = ["--blobHost", ADDRESS, "--blobPort", str(port)]
    own = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    with running([str(program), *listening, *own], log) as process:
        wait_for_port(port, process, log)
        settings = AzureSettings(ACCOUNT, KEY, None, f"http://{ADDRESS}:{port}")
        filesystem = azure_filesystem(settings)
        filesystem.create_dir(CONTAINER)
        yield AzureServer(port, filesystem)


_ICEBERG, _VERSION = "org.apache.iceberg", "1.10.1"
_NEEDED = [
    Module(_ICEBERG, "iceberg-core", _VERSION),
    Module("org.eclipse.jetty", "jetty-servlet", "11.0.26"),
    Module("org.xerial", "sqlite-jdbc", "3.50.3.0"),
]
_OF_SPARK = ("hadoop-client-*", "commons-logging-*", "slf4j-api-*")


def fetch_iceberg() -> list[Path]:
    servlet = class_path("iceberg-rest-servlet", [Module(_ICEBERG, "iceberg-core", _VERSION, "tests")])
    return [*servlet, *class_path("iceberg-rest", _NEEDED, transitive=True)]


@contextmanager
def rest_catalog(directory: Path) -> Iterator[str]:
    """Start a catalog with its database and its tables in *directory*, and yield its address."""
    jars = [*fetch_iceberg(), *(jar for name in _OF_SPARK for jar in spark_home().glob(f"jars/{name}.jar"))]
    port, log = free_port(), directory / "catalog.log"
    program = str(Path(__file__).with_name("RestCatalog.java"))
    command = ["java", "-Xmx512m", *QUICK_JVM, "-cp", ":".join(map(str, jars)), program, str(directory), str(port)]
    with running(command, log) as process:
        wait_for_port(port, process, log)
        yield f"http://{ADDRESS}:{port}"


def rmq_lake(*arguments: str, **environment: str) -> Outcome:
    return _run("jobs.main", *arguments, **environment)


def run_in_one_application(spark_options: Sequence[str], steps: Sequence[Any], **environment: str) -> list[Any]:
    """Run steps in one application (see `tests.scale.application`) and return their results."""
    options = shlex.join(spark_options)
    ended = _run("tests.scale.application", json.dumps(steps), RMQ_LAKE_SPARK_OPTIONS=options, **environment)
    if ended.code:
        raise OSError(ended.err)
    results: list[Any] = json.loads(ended.out)
    return results


def expected_rows(store: Path) -> list[tuple[int, bytes]]:
    return [(record.physical_offset, raw) for record, raw in read_store_records(store)]


def _run(module: str, *arguments: str, **environment: str) -> Outcome:
    ours = ("RMQ_LAKE_", "PYSPARK", "SPARK")
    known = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    answer = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False, timeout=_LONGEST_S,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return Outcome(answer.returncode, answer.stdout, answer.stderr)
