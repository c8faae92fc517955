"""A lake that lacks a table, a file, a row or a column, or has one of another type: no verb is short in silence."""

import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.lake.tables import CONFIG_FILES, CONSUME_QUEUE, INDEX_ENTRIES, LOG_PIECES, MESSAGES, RUNS
from jobs.restore.plan import LATER
from tests.golden import StoreOf
from tests.support.commands import Run, without_spark
from tests.support.lakes import ingest_store, table_of

TABLES = (MESSAGES, CONSUME_QUEUE, INDEX_ENTRIES, LOG_PIECES, CONFIG_FILES, RUNS)
CASES = [
    pytest.param(table.name, name, is_dropped, id=f"{table.name}-{name}-{'dropped' if is_dropped else 'retyped'}")
    for table in TABLES
    for name, is_dropped in product(table.schema.names, (True, False))
]


@pytest.fixture(scope="module")
def lake(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns") / "lake"
    ingest_store(golden("b533-base"), folder, release="5.3.3")
    return folder


@pytest.mark.sample(5)
@pytest.mark.parametrize(("table", "column", "is_dropped"), CASES)
def test_a_column_that_is_not_as_we_wrote_it_is_said(  # noqa: PLR0913 - the case, and what it needs
    table: str, column: str, *, is_dropped: bool, lake: Path, whole: "Answers", golden: StoreOf,
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    without_spark(monkeypatch)
    changed = Path(shutil.copytree(lake, tmp_path / "lake"))
    rows = table_of(changed / table)
    number, is_text = rows.schema.names.index(column), pa.types.is_string(rows.schema.field(column).type)
    texts = [None if one is None else str(one) for one in rows.column(column).to_pylist()]
    other = pa.array([one and one.encode() for one in texts], pa.binary()) if is_text else pa.array(texts, pa.string())
    rows = rows.drop_columns([column]) if is_dropped else rows.set_column(number, column, other)
    write_deltalake(changed / table, rows, mode="overwrite", schema_mode="overwrite")
    answers = _asked(run, golden("b533-base"), changed, tmp_path)

    _check(answers, whole)
    if table == "messages" and column not in LATER:
        assert all(answers[verb].code for verb in ("restore", "diff", "export"))


@pytest.mark.sample(8)
@pytest.mark.parametrize("loss", ["table", "file", "row"])
@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_an_answer_from_what_is_left_is_whole_or_says_what_it_lacks(  # noqa: PLR0913 - the case, and what it needs
    table: str, loss: str, *, lake: Path, whole: "Answers", golden: StoreOf, tmp_path: Path,
    run: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    without_spark(monkeypatch)
    left = Path(shutil.copytree(lake, tmp_path / "lake"))
    if loss == "table":
        shutil.rmtree(left / table)
    elif loss == "file":
        min((left / table).glob("*.parquet")).unlink()
    else:
        rows = table_of(left / table)
        middle = rows.num_rows // 2
        kept = pa.concat_tables([rows.slice(0, middle), rows.slice(middle + 1)])
        write_deltalake(left / table, kept, mode="overwrite")

    answers = _asked(run, golden("b533-base"), left, tmp_path)
    # Whoever deletes a message wants it gone from an export; of stale bytes after a log's end nothing else tells.
    unseen = {("messages", "row"): "export", ("log_pieces", "row"): "restore"}.get((table, loss))
    answers = {verb: given for verb, given in answers.items() if verb != unseen}
    _check(answers, whole)


class Given(NamedTuple):
    """What a verb gave: its code, its messages, and the part of its answer that must not be short."""

    code: int
    err: str
    answer: object


Answers = Mapping[str, Given]


@pytest.fixture(scope="module")
def answered() -> dict[str, Given]:
    return {}


@pytest.fixture
def whole(  # noqa: PLR0913, PLR0917 - the lake is asked once, and what a test captures is its own
    answered: dict[str, Given], lake: Path, golden: StoreOf, tmp_path: Path, run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> Answers:  # fmt: skip
    without_spark(monkeypatch)  # its workers write to the captured stream, too
    if not answered:
        answered.update(_asked(run, golden("b533-base"), lake, tmp_path / "whole"))
    return answered


def _asked(run: Run, store: Path, lake: Path, folder: Path) -> Answers:
    exported, restored = folder / "out.ndjson", folder / "out"
    asked = {
        "restore": ("restore", lake, "--out", restored, "--release", "5.3.3"),
        "diff": ("diff", store, lake),
        "export": ("export", "--lake", lake, "--out", exported),
        "by-key": ("query", "by-key", "-t", "T1", "-k", "dup", "--json", "--lake", lake),
        "by-offset": ("query", "by-offset", "-t", "T1", "-i", "1", "-o", "3", "--json", "--lake", lake),
    }
    given = {verb: run(*arguments) for verb, arguments in asked.items()}
    files = {
        str(path.relative_to(restored)): path.read_bytes()
        for path in restored.rglob("*") if path.is_file() and path.parent.name in {"commitlog", "config"}
    }  # fmt: skip
    answers = {
        **{verb: one.out for verb, one in given.items()},
        "restore": files, "export": exported.read_text() if exported.exists() else "", "diff": given["diff"].code,
    }  # fmt: skip
    return {verb: Given(one.code, one.err, answers[verb]) for verb, one in given.items()}


def _check(answers: Answers, whole: Answers) -> None:
    for verb, given in answers.items():
        assert "Traceback" not in given.err, verb
        assert given.code or given.answer == whole[verb].answer, verb
