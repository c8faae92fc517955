"""A table that another engine has made again without a column, or with another type: no verb is short in silence."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.ingest.request import IngestRequest
from jobs.ingest.run import ingest
from jobs.lake.tables import CONFIG_FILES, CONSUME_QUEUE, INDEX_ENTRIES, LOG_PIECES, MESSAGES, RUNS
from jobs.restore.sources import LATER
from jobs.store.workers import OneByOne
from tests.support.commands import runner, without_spark
from tests.support.lakes import table_of

TABLES = (MESSAGES, CONSUME_QUEUE, INDEX_ENTRIES, LOG_PIECES, CONFIG_FILES, RUNS)
CASES = [
    pytest.param(table.name, name, is_dropped, id=f"{table.name}-{name}-{'dropped' if is_dropped else 'retyped'}")
    for table in TABLES
    for name, is_dropped in product(table.schema.names, (True, False))
]


@pytest.fixture(scope="module")
def lake(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns") / "lake"
    ingest(IngestRequest(str(golden("b533-base")), str(folder), release="5.3.3"), OneByOne())
    return folder


@pytest.mark.sample(12)
@pytest.mark.parametrize(("table", "column", "is_dropped"), CASES)
def test_a_column_that_is_not_as_we_wrote_it_is_said(  # noqa: PLR0913 - the case, and what it needs
    table: str, column: str, *, is_dropped: bool, lake: Path, golden: Callable[[str], Path], tmp_path: Path,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    without_spark(monkeypatch)
    changed = Path(shutil.copytree(lake, tmp_path / "lake"))
    rows = table_of(changed / table)
    number, is_text = rows.schema.names.index(column), pa.types.is_string(rows.schema.field(column).type)
    texts = [None if one is None else str(one) for one in rows.column(column).to_pylist()]
    other = pa.array([one and one.encode() for one in texts], pa.binary()) if is_text else pa.array(texts, pa.string())
    rows = rows.drop_columns([column]) if is_dropped else rows.set_column(number, column, other)
    write_deltalake(changed / table, rows, mode="overwrite", schema_mode="overwrite")
    run = runner(capfd)
    store = golden("b533-base")
    query = ("query", "by-key", "-t", "T1", "-k", "dup", "--json", "--lake")
    before = run(*query, lake).out
    found = {
        "restore": run("restore", changed, "--out", tmp_path / "out", "--release", "5.3.3"),
        "diff": run("diff", store, changed),
        "export": run("export", "--lake", changed, "--out", tmp_path / "out.ndjson"),
        "query": run(*query, changed),
    }

    for verb, outcome in found.items():
        assert "Traceback" not in outcome.err, verb
        assert outcome.code or verb != "query" or outcome.out == before
    if table == "messages" and column not in LATER:
        assert all(found[verb].code for verb in ("restore", "diff", "export"))
