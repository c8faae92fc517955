"""Stores and lakes on Azure: a real server, and no credential where somebody might read it."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.lake.lake import Lake
from jobs.lake.runs import HeldByOtherError
from jobs.lake.upkeep import optimize
from jobs.query.lake_tables import LakeTables
from jobs.restore.run import RestoreRequest, restore
from jobs.storage.settings import file_system_settings
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.commitlog.record import encode_record, record_of_row
from tests.scale.commands import expected_rows
from tests.scale.servers import ACCOUNT, CONTAINER, KEY, AzureServer
from tests.support.commands import runner
from tests.support.lakes import table_of
from tests.support.stores import records_of, segments_of

pytestmark = pytest.mark.cluster

STORE = "b533-base"


class Uploaded:
    """A store on the server, and a place for its lake."""

    def __init__(self, server: AzureServer, local: Path, prefix: str, folder: Path) -> None:
        self.server, self.local, self.prefix, self.folder = server, local, prefix, folder
        server.upload(local, f"{prefix}/store")
        self.store, self.lake = server.uri(prefix, "store"), server.uri(prefix, "lake")

    def ingest(self) -> Summary:
        return ingest(IngestRequest(self.store, self.lake), OneByOne(self.server.options))

    def rows(self) -> list[tuple[int, bytes]]:
        """Return offset and bytes of each message, as `deltalake` reads a copy of the lake on this machine."""
        self.server.download(f"{self.prefix}/lake", self.folder / "lake")
        rows = table_of(self.folder / "lake" / "messages").sort_by("physical_offset").to_pylist()
        return [(row["physical_offset"], encode_record(record_of_row(row))) for row in rows]


@pytest.fixture
def uploaded(
    azure: AzureServer, golden: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Uploaded:
    return Uploaded(azure, golden(STORE), request.node.name.replace("_", "-"), tmp_path)


def test_every_message_of_a_store_on_azure_is_in_the_lake_on_azure_once(uploaded: Uploaded) -> None:
    """A second run finds nothing new; the lake is merged, queried and restored there, and no file of it has the key."""
    options = uploaded.server.options
    first, second = uploaded.ingest(), uploaded.ingest()
    assert (first.run, second.run, second.messages) == (1, None, 0)
    assert verify(VerifyRequest(uploaded.store), OneByOne(options)).exit_code is ExitCode.CLEAN

    optimize(uploaded.lake, OneByOne(options))

    assert expected_rows(uploaded.local) == uploaded.rows()
    found = LakeTables(uploaded.lake, options).rows("SELECT count(*) AS n FROM messages")
    assert found[0]["n"] == first.messages
    out = uploaded.folder / "out"
    restore(RestoreRequest(Lake(uploaded.lake, options), out, with_queues=False, with_index=False), OneByOne(options))
    restored, original = records_of(segments_of(out)), records_of(segments_of(uploaded.local))
    assert [raw for _, raw in restored] == [raw for _, raw in original]
    files = [path for path in (uploaded.folder / "lake").rglob("*") if path.is_file()]
    assert files
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []


def test_of_runs_at_the_same_moment_one_brings_the_messages(uploaded: Uploaded) -> None:
    """The server's conditional put decides; the others end as runs do that were too late, or find nothing new."""

    def attempt(_: int) -> int | None:
        try:
            return uploaded.ingest().run
        except HeldByOtherError:
            return None

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(attempt, range(4)))

    assert [run for run in runs if run is not None] == [1]
    assert expected_rows(uploaded.local) == uploaded.rows()


OTHER_KEY = KEY.replace("Eby8", "Eby9")
DENIED = r"Azure denies access \(.*AuthorizationFailure.*\); asked with a key of devstoreaccount1"
NO_TLS, NO_KEY = "has no TLS, and no token goes over that", "account.key .* is not base64"
FAILURES: dict[str, tuple[dict[str, str], str, str, str]] = {
    "a wrong key": ({"AZURE_STORAGE_KEY": OTHER_KEY}, CONTAINER, DENIED, DENIED),
    "no key": ({"AZURE_STORAGE_KEY": ""}, CONTAINER, NO_TLS, NO_TLS),
    "a key that is none": ({"AZURE_STORAGE_KEY": "it's none"}, CONTAINER, NO_KEY, NO_KEY),
    "a missing container": ({}, "nothere", "No such file or directory", "Azure refuses .ContainerNotFound"),
    "a missing server": (
        {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1"},
        CONTAINER,
        "Could not connect to server",
        "Connection refused",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_one_line_without_a_secret(
    uploaded: Uploaded, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a store, which pyarrow reads, and of a lake, which `deltalake` opens."""
    variables, container, of_store, of_lake = FAILURES[name]
    good = {"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{uploaded.server.port}"}
    for variable, value in {**good, **variables}.items():
        monkeypatch.setenv(variable, value)
    at = f"{container}@"
    store, lake = (place.replace(f"{CONTAINER}@", at) for place in (uploaded.store, uploaded.lake))

    run = runner(capfd)
    for words, expected in ((["inspect", store], of_store), (["optimize", lake], of_lake)):
        outcome = run(*words)
        assert (ExitCode.FAILED, "") == (outcome.code, outcome.out)
        assert re.fullmatch(rf"rmq-lake: .*{expected}.*\n", outcome.err)
        assert not any(key in outcome.err for key in (KEY, OTHER_KEY, "it's none"))


def test_the_environment_says_in_whose_name_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of the account's own name in Hadoop's settings wins."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "of-the-environment")
    name = f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"

    assert file_system_settings([])["fs.azure.account.key"] == "of-the-environment"
    assert file_system_settings([(f"spark.hadoop.{name}", "its own")])[name] == "its own"
