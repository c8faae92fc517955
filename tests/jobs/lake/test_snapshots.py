"""Reading a lake, including lakes that have lost files."""

import io
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import LocalFileSystem

from jobs.console.result import ExitCode
from jobs.lake.commit import ensure_table, open_table
from jobs.lake.features import refuse_unreadable_layout
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import DamagedFileError, SnapshotFile, list_snapshot_files, read_batches
from jobs.lake.snapshots import (
    UnsupportedTableError,
    cache_snapshots,
    find_newest_snapshot,
    open_delta,
    read_newest_transaction,
)
from jobs.lake.tables import CONFIG_FILES, CONSUME_QUEUE, INDEX_ENTRIES, INDEX_FILES, LOG_PIECES, MESSAGES, RUNS
from jobs.restore import NEWER_COLUMNS
from jobs.storage.s3 import ObjectStorage
from tests.golden import StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import ignore_spark_session, run_in_process
from tests.support.lakes import ingest_store, table_of

NAME = "things"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    add(tmp_path, 1)
    return Lake(str(tmp_path), {})


def add(directory: Path, *numbers: int) -> None:
    write_deltalake(directory / NAME, pa.table({"number": numbers}), mode="append")


def numbers(table: DeltaTable | None) -> list[int]:
    assert table is not None
    found: list[int] = table.to_pyarrow_table().column("number").to_pylist()
    return sorted(found)


def test_a_refusal_names_the_path_of_the_table(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "a b"))
    with pytest.raises(UnsupportedTableError, match="a b/runs"):
        refuse_unreadable_layout(lake, ensure_table(lake, RUNS), ["s3://elsewhere"])


def test_a_snapshot_is_shared_by_nested_blocks_until_its_table_changes(lake: Lake, tmp_path: Path) -> None:
    with cache_snapshots():
        with cache_snapshots():
            before = open_table(lake, NAME)

        assert open_table(lake, NAME) is before
        assert open_table(lake, NAME, is_private=True) is not before
        add(tmp_path, 2)
        after = open_table(lake, NAME)

        assert numbers(before) == [1]
        assert numbers(after) == [1, 2]
        assert numbers(open_table(lake, NAME, is_private=True)) == [1, 2]
        assert open_table(lake, NAME) is after

    assert open_table(lake, NAME) is not open_table(lake, NAME)


def test_a_run_opens_each_table_once(tmp_path: Path, broker: Broker) -> None:
    """A run once opened tables 41 times, which took two fifths of its time."""
    broker.append(some_records(10))
    ingest_store(broker.root, tmp_path / "lake", "b")
    broker.append(some_records(10, seed=2))
    with patch("jobs.lake.commit.open_delta", side_effect=open_delta) as opening:
        ingest_store(broker.root, tmp_path / "lake", "b")
    opened = Counter(call.args[0].rpartition("/")[2] for call in opening.call_args_list)

    assert opened["messages"] == 1
    assert max(opened.values()) == 1


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let an object store have its objects in local files; the mock counts its requests."""
    calls = Mock(wraps=ObjectStorage(LocalFileSystem()))
    monkeypatch.setattr("jobs.lake.snapshots.object_store", lambda *_: calls)
    return calls


def _find(table: Path) -> DeltaTable:
    return find_newest_snapshot(f"s3a://{table}", {}, lambda: DeltaTable(table))


def test_two_requests_show_that_a_snapshot_on_an_object_store_is_the_newest(
    lake: Lake, tmp_path: Path, objects: Mock
) -> None:
    """A run once opened tables 64 times there, each with three requests for each commit."""
    table = Path(lake.locate(NAME))
    with cache_snapshots():
        before = _find(table)
        objects.reset_mock()

        assert _find(table) is before
        assert 2 == objects.open.call_count

        add(tmp_path, 2)

        assert [1, 2] == numbers(_find(table))
        assert [1] == numbers(before)


@pytest.mark.parametrize("commits", [1, 3])
def test_a_table_that_was_recreated_on_an_object_store_is_opened_again(
    commits: int, lake: Lake, tmp_path: Path, objects: Mock
) -> None:
    del objects  # its effect is needed
    table = Path(lake.locate(NAME))
    add(tmp_path, 2)
    with cache_snapshots():
        assert [1, 2] == numbers(_find(table))
        shutil.rmtree(table)
        with pytest.raises(TableNotFoundError):
            _find(table)

        for number in range(commits):
            add(tmp_path, number + 7)

        assert [*range(7, 7 + commits)] == numbers(_find(table))


def test_one_request_shows_that_a_table_on_an_object_store_is_still_missing(tmp_path: Path, objects: Mock) -> None:
    with cache_snapshots():
        for _ in range(2):
            objects.reset_mock()
            with pytest.raises(TableNotFoundError):
                _find(tmp_path / NAME)

        assert 1 == objects.open.call_count


def test_the_transactions_of_a_snapshot_are_read_once_for_each_version(lake: Lake, tmp_path: Path) -> None:
    """`deltalake` reads the whole log for each application."""
    table = open_table(lake, NAME)
    assert table is not None
    replay = DeltaTable.transaction_version
    with patch.object(DeltaTable, "transaction_version", autospec=True, side_effect=replay) as read:
        found = [read_newest_transaction(table, "some") for _ in range(3)]

        assert [0, 0, 0] == found
        assert 1 == read.call_count

        write_deltalake(
            tmp_path / NAME, pa.table({"number": [2]}), mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("some", 5)]),
        )  # fmt: skip
        table.update_incremental()

        assert 5 == read_newest_transaction(table, "some")


def _make_lake_of_one_file(broker: Broker, directory: Path) -> tuple[Lake, SnapshotFile]:
    broker.append(some_records(10))
    ingest_store(broker.root, directory, "b")
    lake = Lake(str(directory), {})
    table = open_table(lake, MESSAGES.name)
    assert table is not None
    (file,) = list_snapshot_files(lake, table)
    return lake, file


@pytest.mark.parametrize(
    ("text", "is_damage"), [("error stat()ing file", False), ("Couldn't deserialize thrift", True)]
)
def test_a_file_that_cannot_be_examined_is_not_taken_for_a_damaged_one(
    text: str, is_damage: bool, tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow raises both without an errno: `restore --resume` then kept a segment without these records."""
    lake, file = _make_lake_of_one_file(broker, tmp_path / "lake")
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", Mock(side_effect=OSError(text)))

    with pytest.raises(OSError, match=re.escape(file.path)) as raised:
        list(read_batches(lake, MESSAGES, file))

    assert is_damage == isinstance(raised.value, DamagedFileError)


class _FileThatFailsToClose(io.FileIO):
    def close(self) -> None:
        super().close()
        raise OSError("error closing file")


def test_rows_are_read_although_closing_their_file_fails(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was called damaged, or a traceback was printed, although all of its rows had been read."""
    lake, file = _make_lake_of_one_file(broker, tmp_path / "lake")
    monkeypatch.setattr("jobs.lake.lake.open_arrow_file", lambda path, _: _FileThatFailsToClose(path))

    rows = sum(batch.num_rows for batch in read_batches(lake, MESSAGES, file))

    assert 10 == rows


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_recreated_table_is_recognized_as_a_different_one(lake: Lake, tmp_path: Path, commits: int) -> None:
    add(tmp_path, 2)
    with cache_snapshots():
        assert numbers(open_table(lake, NAME)) == [1, 2]
        shutil.rmtree(tmp_path / NAME)

        assert open_table(lake, NAME) is None
        assert open_table(lake, NAME, is_private=True) is None

        for number in range(commits):
            add(tmp_path, number + 7)
        expected = list(range(7, 7 + commits))

        assert numbers(open_table(lake, NAME)) == expected


@pytest.mark.parametrize("loss", ["rows", "values", "column"])
def test_a_checkpoint_that_lacks_files_is_reported(loss: str, lake: Lake, tmp_path: Path) -> None:
    """Without its commits, such a table looked empty."""
    table = DeltaTable(tmp_path / NAME)
    table.create_checkpoint()
    log = tmp_path / NAME / "_delta_log"
    (log / f"{0:020d}.json").unlink()

    assert numbers(open_table(lake, NAME)) == [1]
    checkpoint = log / f"{0:020d}.checkpoint.parquet"
    rows = pq.read_table(checkpoint)
    add = rows.column("add").combine_chunks()
    fields = [field.with_nullable(nullable=True) for field in add.type]
    hidden = pa.StructArray.from_arrays(
        [add.field(number) for number in range(len(fields))], fields=fields, mask=pa.array([True] * len(add))
    )
    number = rows.schema.names.index("add")
    pq.write_table(
        {
            "rows": rows.filter(pc.is_null(rows["add"])),
            "values": rows.set_column(number, "add", hidden),
            "column": rows.drop_columns(["add"]),
        }[loss],
        checkpoint,
    )

    with pytest.raises(OSError, match=f"^{checkpoint}: this checkpoint"):
        open_table(lake, NAME)


@pytest.mark.parametrize("content", ["", "{", '{"commitInfo": {}}\n{"add"', '{"add"' + "\0" * 512])
def test_a_commit_that_a_power_failure_left_empty_or_torn_is_named_with_advice(
    lake: Lake, tmp_path: Path, content: str
) -> None:
    """`deltalake` took an empty commit for one without actions, so its rows were missing without a word."""
    add(tmp_path, 2)
    newest = tmp_path / NAME / "_delta_log" / f"{1:020d}.json"
    whole = newest.read_bytes()
    newest.write_text(content)

    with pytest.raises(OSError, match=rf"^{newest}: this newest commit .* To delete it: rm {newest}$"):
        open_table(lake, NAME)

    newest.unlink()

    assert numbers(open_table(lake, NAME)) == [1]
    newest.write_bytes(whole)

    assert numbers(open_table(lake, NAME)) == [1, 2]


@pytest.mark.parametrize("command", ["list", "sql", "export", "type"])
def test_a_table_that_is_older_than_its_last_run_is_not_read_as_complete(
    tmp_path: Path, broker: Broker, run: Callable[..., tuple[int, str, str]], command: str
) -> None:
    """Messages of the run were missing from answers, with exit code 0."""
    lake = tmp_path / "lake"
    for seed in (1, 2):
        broker.append(some_records(10, seed=seed))
        ingest_store(broker.root, lake, "b")
    (lake / "messages" / "_delta_log" / f"{2:020d}.json").unlink()
    types = tmp_path / "types.toml"
    types.write_text('topic.T1 = {format = "json", schema = "id bigint"}')
    words = {
        "list": ("query", "list", "--lake", lake),
        "sql": ("query", "sql", "--lake", lake, "SELECT count(*) FROM messages"),
        "export": ("export", "--lake", lake, "--out", tmp_path / "out.ndjson"),
        "type": ("type", lake, "--types", types),
    }[command]

    code, out, err = run(*words)

    assert ExitCode.FAILED == code, out
    assert f"{lake}/messages: version 1 of this table was opened" in err


TABLES = (MESSAGES, CONSUME_QUEUE, INDEX_ENTRIES, INDEX_FILES, LOG_PIECES, CONFIG_FILES, RUNS)
CASES = [
    pytest.param((table.name, name, is_dropped), id=f"{table.name}-{name}-{'dropped' if is_dropped else 'retyped'}")
    for table in TABLES
    for name, is_dropped in product(table.schema.names, (True, False))
]


@pytest.fixture(scope="module")
def ingested(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("columns") / "lake"
    ingest_store(golden("b533-base"), directory, release="5.3.3")
    return directory


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES)
def test_a_column_with_another_type_is_reported(
    case: tuple[str, str, bool], ingested: Path, query_lake: "AnswersOf", tmp_path: Path
) -> None:
    table, column, is_dropped = case
    changed = Path(shutil.copytree(ingested, tmp_path / "lake"))
    rows = table_of(changed / table)
    number = rows.schema.names.index(column)
    is_text = pa.types.is_string(rows.schema.field(column).type)
    texts = [None if one is None else str(one) for one in rows.column(column).to_pylist()]
    other = pa.array([one and one.encode() for one in texts], pa.binary()) if is_text else pa.array(texts, pa.string())
    rows = rows.drop_columns([column]) if is_dropped else rows.set_column(number, column, other)
    write_deltalake(changed / table, rows, mode="overwrite", schema_mode="overwrite")
    answers = query_lake(changed)

    _check(answers, query_lake(ingested))
    if table == "messages" and column not in NEWER_COLUMNS:
        assert all(answers[command].code for command in ("restore", "diff", "export"))


@pytest.mark.sample(8)
@pytest.mark.parametrize("loss", ["table", "file", "row"])
@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_an_answer_from_a_damaged_lake_is_complete_or_names_the_missing_part(
    table: str, loss: str, ingested: Path, query_lake: "AnswersOf", tmp_path: Path
) -> None:
    left = Path(shutil.copytree(ingested, tmp_path / "lake"))
    if loss == "table":
        shutil.rmtree(left / table)
    elif loss == "file":
        min((left / table).glob("*.parquet")).unlink()
    else:
        rows = table_of(left / table)
        middle = rows.num_rows // 2
        kept = pa.concat_tables([rows.slice(0, middle), rows.slice(middle + 1)])
        write_deltalake(left / table, kept, mode="overwrite")

    # A deleted message must be missing from an export; stale bytes after the end of the log are in no other table.
    unseen = {("messages", "row"): "export", ("log_pieces", "row"): "restore"}.get((table, loss))
    answers = {command: reply for command, reply in query_lake(left).items() if command != unseen}
    _check(answers, query_lake(ingested))


class Reply(NamedTuple):
    """The exit code and messages of a command, and the part of its output that must be complete."""

    code: int
    err: str
    answer: object


Answers = Mapping[str, Reply]
AnswersOf = Callable[[Path], Answers]


@pytest.fixture(scope="module")
def query_lake(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> AnswersOf:
    """Return a function that runs all queries on a lake, once for each lake."""
    store = golden("b533-base")
    directory = tmp_path_factory.mktemp("answers")
    return cache(lambda lake: _query_lake(store, lake, directory / sha256(bytes(lake)).hexdigest()))


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_spark_session(monkeypatch)  # the workers of a session write to the captured stream


def _query_lake(store: Path, lake: Path, directory: Path) -> Answers:
    exported, restored = directory / "out.ndjson", directory / "out"
    commands = {
        "restore": ("restore", lake, "--out", restored, "--release", "5.3.3"),
        "diff": ("diff", store, lake),
        "export": ("export", "--lake", lake, "--out", exported),
        "by-key": ("query", "by-key", "-t", "T1", "-k", "dup", "--json", "--lake", lake),
        "by-offset": ("query", "by-offset", "-t", "T1", "-i", "1", "-o", "3", "--json", "--lake", lake),
    }
    outcomes = {command: run_in_process(*arguments) for command, arguments in commands.items()}
    files = {
        str(path.relative_to(restored)): path.read_bytes()
        for path in restored.rglob("*") if path.is_file() and path.parent.name in {"commitlog", "config"}
    }  # fmt: skip
    answers = {
        **{command: one.out for command, one in outcomes.items()},
        "restore": files, "export": exported.read_text() if exported.exists() else "", "diff": outcomes["diff"].code,
    }  # fmt: skip
    return {command: Reply(one.code, one.err, answers[command]) for command, one in outcomes.items()}


def _check(answers: Answers, whole: Answers) -> None:
    for command, reply in answers.items():
        assert "Traceback" not in reply.err, command
        assert reply.code or reply.answer == whole[command].answer, command
