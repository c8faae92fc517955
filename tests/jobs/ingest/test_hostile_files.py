"""Files beside the log that no broker writes: each verb goes on, and names what it could not read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.console.exit_codes import ExitCode
from jobs.lake.tables import BROKER_CONFIG, CONSUMER_OFFSETS
from tests.golden import unpack
from tests.support.commands import Run, without_spark
from tests.support.lakes import rows_of

_HUGE = 10**20  # more than a Java long holds


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    without_spark(monkeypatch)
    return run


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("topics.json", r'{"topicConfigTable":{"a\ud800":{"readQueueNums":1e20,"order":"\uDFFF"}}}', ""),
        ("subscriptionGroup.json", r'{"subscriptionGroupTable":{"g\ud800":{"brokerId":1e20}}}', ""),
        ("consumerOffset.json", r'{"offsetTable":{"T1\ud800@g":{0:5}}}', ""),
        ("consumerOffset.json", '{"offsetTable":{"T1@g":{0:1e20}}}', "offset 1e+20, which no broker stores"),
        (
            "consumerOffset.json",
            f'{{"offsetTable":{{"T1@g":{{0:{_HUGE}}}}}}}',
            f"offset {_HUGE}, which no broker stores",
        ),
        (
            "consumerOffset.json",
            f'{{"offsetTable":{{"T1@g":{{{_HUGE - 1}:5}}}}}}',
            f"queue {_HUGE - 1} has the offset 5",
        ),
        ("delayOffset.json", f'{{"offsetTable":{{1:{_HUGE}}}}}', f"offset {_HUGE}, which no broker stores"),
    ],
)
def test_numbers_and_texts_that_no_broker_writes(name: str, text: str, said: str, store: Path, run: Run) -> None:
    lake = store.parent / "lake"
    (store / "config" / name).write_text(text)

    done = run("ingest", store, "--lake", lake)
    assert done.code == ExitCode.CLEAN, done.err  # a note is no severity
    assert said in done.out
    assert run("ingest", store, "--lake", lake).code == ExitCode.CLEAN  # it compares with what the first has kept

    # What cannot be read is not compared: no row of what else is there, either.
    rows = [row for table in (CONSUMER_OFFSETS, BROKER_CONFIG) for row in rows_of(lake, table.name, "to_offset")]
    assert ("?" in str(rows), bool(rows)) == ((False, False) if said else (True, True))


@pytest.mark.parametrize(
    ("hurt", "code", "said"),
    [
        (lambda store: (store / "consumequeue/loop").symlink_to("loop"), ExitCode.MISMATCH, "consumequeue/loop"),
        (lambda store: (store / "consumequeue/loop").symlink_to(".."), ExitCode.CLEAN, ""),
        (
            lambda store: os.truncate(store / "checkpoint", 1 << 40),
            ExitCode.DAMAGE,
            "size: 1099511627776, expected 4096",
        ),
    ],
    ids=["to itself", "to the root", "a terabyte"],
)
def test_loops_of_links_and_files_of_holes(
    hurt: Callable[[Path], None], code: ExitCode, said: str, store: Path, run: Run
) -> None:
    hurt(store)

    done = run("verify", store)
    assert done.code == code, done.out + done.err
    assert said in done.out
    assert done.out.count(said) == 1 or not said
    assert run("inspect", store).code in {ExitCode.CLEAN, ExitCode.DAMAGE}


def test_a_queue_file_of_a_terabyte_is_made_again_with_its_own_length(store: Path, tmp_path: Path, run: Run) -> None:
    queue = min((store / "consumequeue/T1/0").iterdir())
    healthy = queue.read_bytes()
    os.truncate(queue, 1 << 40)

    done = run("repair", store, "--out", tmp_path / "repair", "--apply")
    assert (done.code, queue.read_bytes()) == (ExitCode.CLEAN, healthy), done.out + done.err


@pytest.mark.timeout(60)
def test_a_repair_of_the_checkpoint_waits_for_no_pipe(store: Path, tmp_path: Path, run: Run) -> None:
    """What stands in the place of an index file, and nobody writes into, would be opened for ever."""
    file = sorted((store / "index").iterdir())[2]
    file.unlink()
    os.mkfifo(file)
    os.truncate(store / "checkpoint", 10)

    done = run("repair", store, "--out", tmp_path / "repair")
    assert (done.code, "replaced: store/checkpoint" in done.out) == (ExitCode.MISMATCH, True), done.out + done.err


@pytest.mark.parametrize("line", ["rebuild-index", "rebuild-consumequeue", "ingest", "export"])
def test_a_store_whose_log_is_elsewhere_is_not_taken_for_an_empty_one(
    line: str, store: Path, tmp_path: Path, run: Run
) -> None:
    shutil.rmtree(store / "commitlog")

    place = ("--store", store) if line == "export" else (store,)
    done = run(line, *place, "--lake" if line == "ingest" else "--out", tmp_path / "new")
    assert (done.code, "no log: is its disk mounted?" in done.err) == (ExitCode.FAILED, True), done.err


def test_index_files_beside_the_log_of_another_store(store: Path, tmp_path: Path, run: Run) -> None:
    shutil.rmtree(store / "commitlog")
    shutil.copytree(unpack("b498-base", tmp_path / "other") / "commitlog", store / "commitlog")

    done = run("rebuild-index", store, "--out", tmp_path / "new", "--lost-only")
    assert done.code == ExitCode.MISMATCH, done.err
    assert "CONTRADICTS 20261120074348803: foreign file" in done.out


def test_a_manifest_of_a_terabyte_is_not_read(store: Path, tmp_path: Path, run: Run) -> None:
    run("ingest", store, "--lake", tmp_path / "lake")
    (manifest,) = (tmp_path / "lake/_manifests").iterdir()
    os.truncate(manifest, 1 << 40)

    done = run("diff", store, tmp_path / "lake")
    assert (done.code, f"{manifest}: larger than any" in done.err) == (ExitCode.FAILED, True), done.err


@pytest.mark.parametrize("column", ["body", "store_timestamp"])
def test_a_query_names_the_column_that_another_engine_dropped(
    column: str, store: Path, tmp_path: Path, run: Run
) -> None:
    lake, table = tmp_path / "lake", str(tmp_path / "lake/messages")
    run("ingest", store, "--lake", lake)
    rest = DeltaTable(table).to_pyarrow_table().drop_columns([column])
    write_deltalake(table, rest, mode="overwrite", schema_mode="overwrite")

    done = run("query", "by-key", "--lake", lake, "-t", "T1", "-k", "k1")
    assert (done.code, f"table messages has no column {column}" in done.err) == (ExitCode.FAILED, True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "line",
    [
        "ingest STORE --lake LAKE",
        "ingest STORE --lake LAKE --follow",
        "diff STORE LAKE",
        "optimize LAKE",
        "query by-key --lake LAKE -t T1 -k k0",
    ],
)
def test_a_pipe_in_the_log_of_a_table_is_named_not_waited_for(line: str, store: Path, tmp_path: Path, run: Run) -> None:
    lake = tmp_path / "lake"
    run("ingest", store, "--lake", lake)
    pipe = lake / "messages/_delta_log" / f"{1:020d}.json"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)

    places = {"STORE": store, "LAKE": lake}
    done = run(*(places.get(word, word) for word in line.split()))
    assert (done.code, f"{pipe}: no regular file" in done.err) == (ExitCode.FAILED, True), done.out + done.err
