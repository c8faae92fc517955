"""An S3 server on this machine: objects are files below a directory, requests are signed, a wrong key is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.scale.servers import ADDRESS, running, wait_for_port
from tests.support.ports import free_port
from tests.support.published import Module, class_path

S3PROXY = Module("org.gaul", "s3proxy", "4.1.0", "jar-with-dependencies")
ACCESS_KEY = "an-access-key-of-tests"
SECRET_KEY = "a-secret-key-that-nobody-may-read"  # noqa: S105 - of a server that lives as long as a test
BUCKET = "rocketmq"


class S3Server(NamedTuple):
    """Where it listens, and where its objects lie."""

    port: int
    folder: Path

    @property
    def spark_options(self) -> list[str]:
        settings = {
            "endpoint": f"http://{ADDRESS}:{self.port}",
            "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY,
            "path.style.access": "true",
            "endpoint.region": "us-east-1",
        }
        return [word for name, value in settings.items() for word in ("--conf", f"spark.hadoop.fs.s3a.{name}={value}")]

    @property
    def hadoop_options(self) -> dict[str, str]:
        settings = (word.removeprefix("spark.hadoop.").partition("=") for word in self.spark_options[1::2])
        return {name: value for name, _, value in settings}

    def uri(self, *names: str) -> str:
        return "/".join((f"s3a://{BUCKET}", *names))

    def path(self, *names: str) -> Path:
        return self.folder.joinpath(BUCKET, *names)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    objects = folder / "objects"
    (objects / BUCKET).mkdir(parents=True)
    settings = folder / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.endpoint=http://{ADDRESS}:{port}\ns3proxy.authorization=aws-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\ns3proxy.credential={SECRET_KEY}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.identity=local\njclouds.credential=local\n"
        f"jclouds.filesystem.basedir={objects}\n",
        encoding="utf-8",
    )
    log = folder / "s3proxy.log"
    command = [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-jar",
        str(class_path(S3PROXY.name, [S3PROXY])[0]),
        "--properties",
        str(settings),
    ]
    with running(command, log) as process:
        wait_for_port(port, process, log)
        yield S3Server(port, objects)
