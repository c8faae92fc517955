"""`--iceberg` with servers of others: a REST catalog, and a lake on S3."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from jobs.console.exit_codes import ExitCode
from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.iceberg import Registrar, Target
from jobs.lake.lake import Lake
from jobs.store.workers import OneByOne
from tests.jobs.lake.test_iceberg import configure, rows
from tests.scale.servers import ACCESS_KEY, SECRET_KEY, S3Server, rest_catalog
from tests.support.broker import Broker, some_records
from tests.support.commands import runner
from tests.support.lakes import table_of

HERE = Target("here", "rocketmq")


@pytest.mark.slow
def test_a_rest_catalog_shows_the_rows_of_delta(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, lake, verb = Broker(tmp_path / "store"), tmp_path / "a lake", runner(capfd)
    with rest_catalog(tmp_path) as uri:
        configure(monkeypatch, uri)
        for number in range(3):
            broker.append(some_records(20, seed=number))
            assert ExitCode.CLEAN == verb("ingest", broker.root, "--lake", lake, "--iceberg", "here").code
        assert ExitCode.CLEAN == verb("optimize", lake, "--engine", "here", "--iceberg", "here").code
        catalog = load_catalog("here")
        names = [name for _, name in catalog.list_tables("rocketmq")]
        assert {"messages", "consume_queue", "index_entries", "runs"} <= set(names)
        for name in names:
            delta = table_of(lake / name)
            shown = catalog.load_table(("rocketmq", name)).scan().to_arrow()
            assert rows(delta, delta.column_names) == rows(shown, delta.column_names)
    broker.append(some_records(20, seed=9))
    assert ExitCode.FAILED == verb("ingest", broker.root, "--lake", lake, "--iceberg", "here").code
    assert 80 == table_of(lake / "messages").num_rows


@pytest.mark.cluster
def test_a_lake_on_s3_is_registered_with_its_own_settings_and_no_key_is_stored(
    s3: S3Server, golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, f"sqlite:///{tmp_path}/catalog.db")
    lake = Lake(s3.uri("iceberg", "lake"), s3.hadoop_options)
    ingest(IngestRequest(str(golden("b533-base")), lake.location), OneByOne(s3.hadoop_options))

    done = Registrar(HERE).register(lake)

    assert {"messages", "consume_queue", "index_entries"} <= {one.table for one in done if one.added}
    assert {0} == {one.added for one in Registrar(HERE).register(lake)}
    reader = {"s3.endpoint": f"http://127.0.0.1:{s3.port}", "s3.region": "us-east-1", "s3.access-key-id": ACCESS_KEY}
    registered = load_catalog("here", **reader, **{"s3.secret-access-key": SECRET_KEY}).load_table("rocketmq.messages")
    assert "s3://rocketmq/iceberg/lake/_iceberg/rocketmq/messages" == registered.location()
    delta = table_of(s3.path("iceberg", "lake", "messages"))
    assert rows(delta, delta.column_names) == rows(registered.scan().to_arrow(), delta.column_names)
    kept = [tmp_path / "catalog.db", *s3.path("iceberg", "lake", "_iceberg").rglob("*.*")]
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert not any(secret.encode() in path.read_bytes() for path in kept if path.is_file())
