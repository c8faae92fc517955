"""An Azure storage on this machine: Microsoft's own Azurite, whose account and key everybody knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyarrow.fs import FileSelector, FileSystem

from jobs.storage.azure import AzureSettings, azure_filesystem
from tests.scale.servers import ADDRESS, running, wait_for_port
from tests.support.ports import free_port
from tests.support.published import azurite

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's, public
CONTAINER = "rocketmq"


class AzureServer(NamedTuple):
    """Where it listens, and what it holds."""

    port: int
    filesystem: FileSystem

    @property
    def options(self) -> dict[str, str]:
        key = f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"
        return {key: KEY, "fs.azure.endpoint": f"http://{ADDRESS}:{self.port}"}

    @staticmethod
    def uri(*names: str) -> str:
        return "/".join((f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net", *names))

    def upload(self, folder: Path, prefix: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                with self.filesystem.open_output_stream(f"{CONTAINER}/{prefix}/{path.relative_to(folder)}") as out:
                    out.write(path.read_bytes())

    def download(self, prefix: str, folder: Path) -> None:
        root = f"{CONTAINER}/{prefix}/"
        for info in self.filesystem.get_file_info(FileSelector(root, recursive=True)):
            if info.is_file:
                path = folder / info.path.removeprefix(root)
                path.parent.mkdir(parents=True, exist_ok=True)
                with self.filesystem.open_input_stream(info.path) as file:
                    path.write_bytes(file.read())


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    program = azurite()
    port, log = free_port(), folder / "azurite.log"
    listening = ["--blobHost", ADDRESS, "--blobPort", str(port)]
    own = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    with running([str(program), *listening, *own], log) as process:
        wait_for_port(port, process, log)
        settings = AzureSettings(ACCOUNT, KEY, None, f"http://{ADDRESS}:{port}")
        filesystem = azure_filesystem(settings)
        filesystem.create_dir(CONTAINER)
        yield AzureServer(port, filesystem)
