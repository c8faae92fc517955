"""Features of HDFS, with real name and data nodes: file names, permissions, truncated files, settings."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from jobs.console.result import ExitCode
from jobs.storage import storage_for
from tests.golden import StoreOf
from tests.scale.servers import Hdfs, expected_rows, hadoop_options, run_in_one_application
from tests.support.commands import Run, runner
from tests.support.lakes import raw_rows

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("hdfs")]

SEGMENT = "commitlog/00000000000000000000"

ODD = [f"{number}/%RETRY%group/0/{name}" for number, name in enumerate(("a b", "c[d]", "e?f", "g#h", "i%2Fj"))]


@pytest.fixture(scope="module")
def local(golden: StoreOf) -> Path:
    return golden("b533-base")


@pytest.fixture(scope="module")
def server(hdfs: Hdfs, local: Path, tmp_path_factory: pytest.TempPathFactory) -> Hdfs:
    root = tmp_path_factory.mktemp("tree")
    for name in ("stores/plain", "secret/store"):
        shutil.copytree(local, root / name, ignore=shutil.ignore_patterns("EXPECT"))
    shutil.copy(local / SEGMENT, root / "stores" / "cut")
    for name in ODD:
        path = root / "stores" / "odd" / name
        path.parent.mkdir(parents=True)
        path.write_text(name)
    (root / "secret").chmod(0o700)
    hdfs.shell("-put", "-p", f"file://{root}/stores", f"file://{root}/secret", "/")
    return hdfs


@pytest.fixture
def run(server: Hdfs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("RMQ_LAKE_SPARK_OPTIONS", "")
    return partial(runner(capfd), *hadoop_options(server.options))


def test_the_launcher_uses_the_configuration_of_hadoop(server: Hdfs, local: Path, tmp_path: Path) -> None:
    store, lake, out = "hdfs:///stores/plain", tmp_path / "lake", tmp_path / "messages"
    steps = [
        ("command", ("ingest", store, "--lake", str(lake))),
        ("command", ("export", "--store", store, "--format", "ndjson", "--out", str(out))),
    ]
    results = run_in_one_application(["--master", "local[2]"], steps, HADOOP_CONF_DIR=str(server.conf))

    assert [0, 0] == [result["code"] for result in results], results
    assert expected_rows(local) == raw_rows(lake)
    assert len(expected_rows(local)) == len(out.read_text(encoding="utf-8").splitlines())


def test_file_names_are_not_decoded(server: Hdfs) -> None:
    location = server.uri("stores", "odd")
    storage = storage_for(location, server.options)

    assert ODD == [info.name for info in storage.list_files(location)]
    for name in ODD:
        with storage.open(f"{location}/{name}") as file:
            assert name == bytes(file.read(0, 100)).decode()


def test_a_file_truncated_or_deleted_while_reading_is_reported_with_its_path(server: Hdfs, local: Path) -> None:
    location = server.uri("stores", "cut")
    with storage_for(location, server.options).open(location) as file:
        assert (local / SEGMENT).read_bytes() == bytes(file.read(0, 1 << 20))
        server.shell("-truncate", "-w", "5000", "/stores/cut")
        with pytest.raises(OSError, match=f"{location}: now ends at 5000"):
            file.read(4000, 2000)
        with pytest.raises(OSError, match=location):
            file.read(6000, 2000)
        server.shell("-rm", "/stores/cut")
        with pytest.raises(FileNotFoundError) as raised:
            file.read(0, 100)

    assert location == raised.value.filename


def test_denied_access_is_reported_in_one_line_with_path_and_user(
    server: Hdfs, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    store = server.uri("secret", "store")
    code, _, err = run("inspect", store)

    assert (ExitCode.FAILED, 1) == (code, len(err.strip().splitlines())), err
    assert err.startswith(f"rmq-lake: {store}: HDFS denies access to user stranger: Permission denied")
