"""Stores and lakes on S3 and Azure: real servers, signed requests, no keys in any output."""

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from jobs.console.result import ExitCode, OtherRunActiveError
from jobs.ingest import Summary
from jobs.ingest.pre_run_check import PreRunCheck
from jobs.ingest.run import ingest
from jobs.lake.catalog import Registrar
from jobs.lake.lake import Lake
from jobs.lake.upkeep import optimize
from jobs.launch.cache import cache_directory
from jobs.query.lake_tables import LakeTables
from jobs.rebuild.index import rebuild_index
from jobs.requests.ingest import IngestRequest
from jobs.requests.rebuild import RebuildIndexRequest
from jobs.requests.restore import RestoreRequest
from jobs.requests.verify import VerifyRequest
from jobs.restore.run import restore
from jobs.storage.s3 import ObjectStorage
from jobs.storage.settings import file_system_settings
from jobs.store.workers import Item, Result, SerialWorkers
from jobs.verify.run import verify
from tests.golden import StoreOf
from tests.jobs.lake.test_iceberg import configure, rows
from tests.scale.servers import (
    ACCESS_KEY,
    ACCOUNT,
    CONTAINER,
    KEY,
    SECRET_KEY,
    AzureServer,
    S3Server,
    expected_rows,
    hadoop_options,
    rest_catalog,
    rmq_lake,
)
from tests.support.broker import Broker, some_records
from tests.support.commands import copy_store, runner
from tests.support.lakes import ingest_store, raw_rows, rows_of, table_of
from tests.support.stores import raw_records, read_files

pytestmark = pytest.mark.cluster
STORE = "b533-base"
_RANGE = 7000  # bytes: larger than any record, and not a divisor of a segment's size; more ranges need more requests


class UploadedStore:
    """A store on a server, and the location of its lake."""

    def __init__(self, server: S3Server | AzureServer, golden: Path, prefix: str, directory: Path) -> None:
        self.server, self.directory, self.prefix = server, directory, prefix
        self.local = copy_store(golden, directory)
        self.options = server.options
        self.store, self.lake = self.upload(self.local), self.output_location("lake")

    def upload(self, local: Path, name: str = "store") -> str:
        self.server.upload(local, f"{self.prefix}/{name}")
        return self.server.uri(self.prefix, name)

    def output_location(self, name: str) -> str:
        return self.server.uri(self.prefix, name)

    def ingest(self) -> Summary:
        request = IngestRequest(self.store, self.lake, range_size=_RANGE)
        return ingest(request, SerialWorkers(self.options))

    def download(self, name: str = "lake") -> Path:
        shutil.rmtree(self.directory / name, ignore_errors=True)
        self.server.download(f"{self.prefix}/{name}", self.directory / name)
        return self.directory / name


# The tests of each server are a group of their own: those of Azure storage take half of the time.
SERVERS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("s3", "azure")]


@pytest.fixture(scope="module", params=SERVERS)
def uploaded(
    request: pytest.FixtureRequest, golden: StoreOf, tmp_path_factory: pytest.TempPathFactory
) -> UploadedStore:
    directory = tmp_path_factory.mktemp(request.param)
    return UploadedStore(request.getfixturevalue(request.param), golden(STORE), "uploaded", directory)


@pytest.fixture(scope="module")
def ingested(uploaded: UploadedStore) -> tuple[UploadedStore, Summary]:
    return uploaded, uploaded.ingest()


@pytest.mark.parametrize("runs", [2, 6, 18])
def test_an_idle_run_lists_the_logs_of_the_tables_and_opens_none(
    runs: int, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of requests does not grow with the number of runs, also on another machine than the last run."""
    monkeypatch.setattr("jobs.ingest.pre_run_check.file_system_options", lambda: s3.options)
    broker = Broker(tmp_path / "store", dispatches=True)
    request = IngestRequest(str(broker.root), s3.uri(f"idle-{runs}", "lake"), broker="b")
    for number in range(runs):
        broker.append(some_records(3, seed=number))
        check = PreRunCheck(request)

        assert check.summary_if_nothing_new() is None
        check.remember(ingest(request, SerialWorkers(s3.options)))

    monkeypatch.setenv("RMQ_LAKE_CACHE", str(tmp_path / "another-machine"))
    with (
        patch.object(ObjectStorage, "list_files", autospec=True, side_effect=ObjectStorage.list_files) as listed,
        patch.object(ObjectStorage, "open", autospec=True, side_effect=ObjectStorage.open) as opened,
        patch("jobs.lake.snapshots.open_delta", side_effect=AssertionError("requests for a table")),
    ):
        summary = PreRunCheck(request).summary_if_nothing_new()

    assert summary is not None
    assert 14 >= listed.call_count
    assert 1 == opened.call_count  # the note
    log = s3.path(f"idle-{runs}", "lake", "messages", "_delta_log")
    checkpoints = {int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")}

    assert {*range(4, runs, 5)} <= checkpoints  # version 0 has no rows


def without_secrets(*places: Path | str) -> bool:
    contents = [place.encode() for place in places if isinstance(place, str)]
    for place in places:
        if isinstance(place, Path):
            contents += read_files(place).values() if place.is_dir() else [place.read_bytes()]
    assert contents
    return not any(key.encode() in content for content in contents for key in (ACCESS_KEY, SECRET_KEY, KEY))


def test_every_message_of_a_store_on_a_server_is_once_in_its_lake(ingested: tuple[UploadedStore, Summary]) -> None:
    """The lake is also merged, queried and restored on the server, and none of its files contains a key."""
    uploaded, first = ingested
    lake = uploaded.download()
    files = {name for name in read_files(lake) if name.endswith(".parquet")}
    second = uploaded.ingest()

    assert ExitCode.CLEAN == first.exit_code
    assert 1 == first.run
    assert 0 == second.messages
    assert second.run is None
    assert files == {name for name in read_files(uploaded.download()) if name.endswith(".parquet")}
    assert expected_rows(uploaded.local) == raw_rows(lake)
    ingest_store(uploaded.local, uploaded.directory / "here")
    for table in ("consume_queue", "index_entries"):
        local_rows, remote_rows = (
            [row["physical_offset"] for row in rows_of(one, table)] for one in (uploaded.directory / "here", lake)
        )

        assert local_rows == remote_rows != []

    optimize(uploaded.lake, SerialWorkers(uploaded.options))

    assert expected_rows(uploaded.local) == raw_rows(uploaded.download())
    found = LakeTables(uploaded.lake, uploaded.options).rows("SELECT count(*) AS n FROM messages")

    assert found[0]["n"] == first.messages
    out = uploaded.directory / "out"
    request = RestoreRequest(Lake(uploaded.lake, uploaded.options), out, with_queues=False, with_index=False)
    restore(request, SerialWorkers(uploaded.options))

    assert raw_records(out) == raw_records(uploaded.local)
    assert without_secrets(lake)


def test_commands_give_the_same_output_for_a_server_and_the_disk(
    ingested: tuple[UploadedStore, Summary], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "")
    uploaded, _ = ingested
    run = partial(runner(capfd), *hadoop_options(uploaded.options))
    client = ("query", "by-key", "-t", "T1", "-k", "k1", "--json", "--release", "5.3.3")
    for command in (
        ("inspect", "--deep", "--json", "--quiet", ""),
        ("dump", "--json", f"/commitlog/{0:020d}"),
        (*client, "--store", ""),
    ):
        remote_rows, local_rows = (
            run(*command[:-1], f"{place}{command[-1]}") for place in (uploaded.store, uploaded.local)
        )

        assert ExitCode.CLEAN is local_rows.code, command
        assert local_rows[:2] == (remote_rows.code, remote_rows.out.replace(uploaded.store, str(uploaded.local)))
    of_store = run(*client, "--store", uploaded.local)
    of_lake = run(*client, "--lake", uploaded.lake)

    assert of_store.lines[0] == of_lake.lines[0]


def test_a_store_on_a_server_is_verified_and_its_index_files_are_rebuilt(uploaded: UploadedStore) -> None:
    """The rebuilt files are those of the broker; nothing of the scratch remains."""
    request = RebuildIndexRequest(uploaded.store, uploaded.output_location("index"), range_size=_RANGE)
    result = rebuild_index(request, SerialWorkers(uploaded.options))
    made = read_files(uploaded.download("index"))
    manifest = json.loads(made.pop("MANIFEST.json"))

    assert ExitCode.CLEAN is result.exit_code
    assert list(read_files(uploaded.local / "index").values()) == [data for _, data in sorted(made.items())]
    assert {name: hashlib.sha256(data).hexdigest() for name, data in made.items()} == {
        file["name"]: file["sha256"] for file in manifest["files"]
    }

    verified = VerifyRequest(uploaded.store, range_size=_RANGE, scratch=uploaded.output_location("scratch"))

    assert [] == verify(verified, SerialWorkers(uploaded.options)).findings
    assert {} == read_files(uploaded.download("scratch"))


@dataclass(frozen=True, slots=True)
class SynchronizedWorkers(SerialWorkers):
    """Workers that wait until all runs have read their logs, so that all write at the same time."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))

    def map(self, items: Sequence[Item], task: Any, label: str = "", sizes: Sequence[int] = ()) -> list[Result]:  # noqa: ANN401
        results: list[Result] = SerialWorkers.map(self, items, task, label, sizes)
        if sizes:
            self.barrier.wait(240)
        return results


def run_simultaneously(requests: Sequence[IngestRequest], options: dict[str, str]) -> list[int | None]:
    """Run all requests simultaneously in threads; return the numbers of the runs, None for a rejected run."""
    barrier = threading.Barrier(len(requests))

    def attempt(request: IngestRequest) -> int | None:
        try:
            return ingest(request, SynchronizedWorkers(options, barrier=barrier)).run
        except OtherRunActiveError:
            return None

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(attempt, requests))


@pytest.mark.parametrize("uploaded", SERVERS[:2], indirect=True)
def test_simultaneous_runs_add_the_messages_of_each_broker_once(uploaded: UploadedStore, golden: StoreOf) -> None:
    """Only one of two runs on the same store succeeds."""
    stores = {"a": golden(STORE), "b": golden("b498-base"), "c": golden("b420-base")}
    places = [uploaded.store, *(uploaded.upload(stores[name], name) for name in "bc")]
    lake = uploaded.output_location("shared")
    requests = [IngestRequest(place, lake, name) for place, name in zip(places, stores, strict=True)]

    of_a, of_b, of_c, again = run_simultaneously([*requests, requests[0]], uploaded.options)

    assert [1] == [run for run in (of_a, again) if run is not None]
    assert None not in {of_b, of_c}
    messages = uploaded.download("shared") / "messages"
    table = table_of(messages, ["broker", "physical_offset"]).to_pylist()
    for name, local in stores.items():
        offsets = sorted(row["physical_offset"] for row in table if row["broker"] == name)

        assert offsets == [offset for offset, _ in expected_rows(local)]

    assert {path.name for path in messages.glob("*.parquet")} == {
        uri.rpartition("/")[2] for uri in DeltaTable(messages).file_uris()
    }


# --- S3 only ---


@pytest.fixture
def on_s3(s3: S3Server, golden: StoreOf, request: pytest.FixtureRequest, tmp_path: Path) -> UploadedStore:
    return UploadedStore(s3, golden(STORE), re.sub(r"\W|_", "-", request.node.name).strip("-"), tmp_path)


PLACES = ("environment", "profile", "properties file", "options")  # of keys


def options_and_environment(
    place: str, s3: S3Server, home: Path, secret: str = SECRET_KEY
) -> tuple[list[str], dict[str, str]]:
    """Return the options before the command, and the environment, for keys from a *place*."""
    endpoint, region = f"http://127.0.0.1:{s3.port}", "us-east-1"
    home.joinpath(".aws").mkdir(exist_ok=True)
    environment = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"), "")
    environment |= {"HOME": str(home), "RMQ_LAKE_CACHE": str(cache_directory()), "AWS_EC2_METADATA_DISABLED": "true"}
    options = [word.replace(SECRET_KEY, secret) for word in hadoop_options(s3.options)]
    if place == "environment":
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret}
        return [], {**environment, **keys, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": region}
    if place == "profile":
        keys_of_profile = f"[lake]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
        (home / ".aws" / "credentials").write_text(keys_of_profile)
        (home / ".aws" / "config").write_text(f"[profile lake]\nregion = {region}\nendpoint_url = {endpoint}\n")
        return [], {**environment, "AWS_PROFILE": "lake"}
    if place == "options":
        return options, environment
    (home / "s3.conf").write_text("\n".join(word.replace("=", " ", 1) for word in options[1::2]))
    return ["--properties-file", str(home / "s3.conf")], environment


@pytest.mark.parametrize("place", PLACES)
def test_keys_from_each_source_fill_a_lake_and_are_never_printed(
    place: str, on_s3: UploadedStore, s3: S3Server, tmp_path: Path
) -> None:
    """With options or a properties file, `ingest` runs on Spark."""
    options, environment = options_and_environment(place, s3, tmp_path)
    commands = (
        ("ingest", on_s3.store, "--lake", on_s3.lake),
        ("query", "by-key", "-t", "T1", "-k", "k1", "--lake", on_s3.lake),
        ("inspect", on_s3.store, "--show-config"),
    )
    ended = [rmq_lake(*options, *command, **environment) for command in commands]
    wrong = "a-wrong-key-that-nobody-may-read"
    options, environment = options_and_environment(place, s3, tmp_path, wrong)
    denied = rmq_lake(*options, "inspect", on_s3.store, **environment)
    lake = on_s3.download()

    assert [0, 0, 0] == [one.code for one in ended], ended
    assert ended[1].out
    assert 1 == denied.code, denied.err
    assert "" == denied.out, denied.err
    assert 1 == len(denied.err.strip().splitlines()), denied.err
    assert expected_rows(on_s3.local) == raw_rows(lake)
    tables = [str(table_of(lake / table).to_pylist()) for table in ("messages", "runs")]
    printed = [text for one in (*ended, denied) for text in (one.out, one.err)]

    assert without_secrets(lake, *printed, *tables)
    assert wrong not in denied.err


HERE = "here.rocketmq"


def test_a_lake_on_s3_is_registered_without_storing_keys(
    on_s3: UploadedStore, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, f"sqlite:///{tmp_path}/catalog.db")
    on_s3.ingest()

    done = Registrar(HERE).register(Lake(on_s3.lake, s3.options))

    assert {"messages", "consume_queue", "index_entries"} <= {one.table for one in done if one.added}
    assert {0} == {one.added for one in Registrar(HERE).register(Lake(on_s3.lake, s3.options))}
    reader = {"s3.endpoint": f"http://127.0.0.1:{s3.port}", "s3.region": "us-east-1", "s3.access-key-id": ACCESS_KEY}
    registered = load_catalog("here", **reader, **{"s3.secret-access-key": SECRET_KEY}).load_table("rocketmq.messages")

    assert f"s3://rocketmq/{on_s3.prefix}/lake/_iceberg/rocketmq/messages" == registered.location()
    lake = on_s3.download()
    delta = table_of(lake / "messages")

    assert rows(delta, delta.column_names) == rows(registered.scan().to_arrow(), delta.column_names)
    assert without_secrets(tmp_path / "catalog.db", lake / "_iceberg")


@pytest.mark.slow
def test_a_rest_catalog_has_the_rows_of_delta(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path / "store")
    lake = tmp_path / "a lake"
    command = runner(capfd)
    with rest_catalog(tmp_path) as uri:
        configure(monkeypatch, uri)
        for number in range(3):
            broker.append(some_records(20, seed=number))

            assert ExitCode.CLEAN == command("ingest", broker.root, "--lake", lake, "--iceberg", "here").code

        assert ExitCode.CLEAN == command("optimize", lake, "--engine", "local", "--iceberg", "here").code
        catalog = load_catalog("here")
        names = [name for _, name in catalog.list_tables("rocketmq")]

        assert {"messages", "consume_queue", "index_entries", "runs"} <= set(names)
        for name in names:
            delta = table_of(lake / name)
            shown = catalog.load_table(("rocketmq", name)).scan().to_arrow()

            assert rows(delta, delta.column_names) == rows(shown, delta.column_names)
    broker.append(some_records(20, seed=9))

    assert ExitCode.FAILED == command("ingest", broker.root, "--lake", lake, "--iceberg", "here").code
    assert 80 == table_of(lake / "messages").num_rows


# --- Azure only ---

OTHER_KEY = KEY.replace("Eby8", "Eby9")
DENIED = r"Azure denies access \(.*AuthorizationFailure.*\); the request used a key of devstoreaccount1"
NO_TLS, NO_KEY = "has no TLS, so a token cannot be sent", "account.key .* is not base64"
NO_CONTAINER = ("No such file or directory", "the container nothere does not exist on .*ContainerNotFound")
FAILURES = {
    "a wrong key": (OTHER_KEY, CONTAINER, DENIED, DENIED),
    "no key": ("", CONTAINER, NO_TLS, NO_TLS),
    "a key that is none": ("it's none", CONTAINER, NO_KEY, NO_KEY),
    "a missing container": (KEY, "nothere", *NO_CONTAINER),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_reported_in_one_line_without_secrets(
    azure: AzureServer, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both for a store, which pyarrow reads, and for a lake, which `deltalake` opens."""
    key, container, *errors = FAILURES[name]
    monkeypatch.setenv("AZURE_STORAGE_KEY", key)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{azure.port}")
    place = azure.uri("nothing", "there").replace(f"{CONTAINER}@", f"{container}@")

    for command, text in zip(("inspect", "optimize"), errors, strict=True):
        outcome = runner(capfd)(command, place)

        assert ExitCode.FAILED == outcome.code
        assert "" == outcome.out
        assert re.fullmatch(rf"rmq-lake: .*{text}.*\n", outcome.err)
        assert not any(key in outcome.err for key in (KEY, OTHER_KEY, "it's none"))


def test_the_account_key_of_hadoop_settings_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "of-the-environment")
    name = f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"

    assert file_system_settings([])["fs.azure.account.key"] == "of-the-environment"
    assert file_system_settings([(f"spark.hadoop.{name}", "its own")])[name] == "its own"
