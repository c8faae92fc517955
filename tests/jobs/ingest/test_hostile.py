"""Damage and attacks: any byte of a store may be wrong, and writes to the lake may fail."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import SerialWorkers, Workers
from tests.golden import StoreOf
from tests.rmq_formats.builders import make_record
from tests.support.broker import Broker, some_records
from tests.support.commands import Run
from tests.support.fuzzing import (
    RANGE_SIZES,
    find_lost_records,
    make_mutated_store,
    read_with_pipeline,
    read_with_reference,
)
from tests.support.lakes import encode_rows, ingest_into_own_lake, ingest_store, list_leftovers, raw_rows, rows_of
from tests.support.meanwhile import fail_reads_of_first_segment
from tests.support.stores import tree_state

HOSTILE = (
    "../../../etc/x",
    "/etc/passwd",
    "'; DROP TABLE messages; --",
    "<script>alert(1)</script>",
    "a\nb\x1b[2J",
    "${x}",
)
BLOCK = 4096
# Of fifty mutated stores, those that together have every kind of damage.
_OF_EACH_KIND = (1000, 1002, 1006, 1008, 1009, 1010, 1014, 1018, 1024, 1030, 1033, 1048)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.sampled_from(RANGE_SIZES))
def test_rows_of_mutated_stores_are_correct_or_quarantined(random: Random, range_size: int) -> None:
    store = make_mutated_store(random)
    with TemporaryDirectory() as directory:
        store.write(Path(directory))

        result = read_with_pipeline(Path(directory), range_size)
        expected = read_with_reference(Path(directory))

    assert expected == result
    assert find_lost_records(store, result) == []


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(12))
def test_ingests_of_mutated_stores_write_correct_rows_or_quarantine(seed: int, tmp_path: Path) -> None:
    _through_the_pipeline(seed, tmp_path, SerialWorkers())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # for a busy machine
@pytest.mark.parametrize("seeds", [_OF_EACH_KIND, pytest.param(range(1000, 1200), marks=pytest.mark.campaign)], ids=len)
def test_spark_ingests_of_mutated_stores_write_correct_rows_or_quarantine(
    spark: SparkSession, tmp_path: Path, seeds: Sequence[int]
) -> None:
    for seed in seeds:
        _through_the_pipeline(seed, tmp_path / str(seed), SparkWorkers(spark))


def _through_the_pipeline(seed: int, directory: Path, workers: Workers) -> None:
    store = make_mutated_store(Random(seed))
    store.write(directory / "store")
    expected = read_with_reference(directory / "store")

    summary = ingest_into_own_lake(directory / "store", workers=workers, range_size=700)

    quarantined = sorted((row["physical_offset"], row["length"]) for row in rows_of(directory / "lake", "quarantine"))
    if summary.store_id is None:
        assert not expected.rows
        return
    assert expected.rows == raw_rows(directory / "lake")
    assert expected.damage == quarantined
    assert expected.end == summary.to_offset


def test_names_are_treated_as_text(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a" / "store")
    records = [make_record(topic=name, properties={"KEYS": name, "UNIQ_KEY": name, "TAGS": name}) for name in HOSTILE]
    written = broker.append(records)
    queue = broker.root / "consumequeue" / "..%2F..%2Fx" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(bytes(200))
    (tmp_path / "outside").mkdir()
    before = tree_state(tmp_path / "outside"), tree_state(broker.root)

    ingest_into_own_lake(broker.root)

    assert raw_rows(tmp_path / "a" / "lake") == encode_rows(written)
    assert [row["topic"] for row in rows_of(tmp_path / "a" / "lake")] == list(HOSTILE)
    assert before == (tree_state(tmp_path / "outside"), tree_state(broker.root))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "outside"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["lake", "store"]


@pytest.mark.parametrize("engine", ["serial", pytest.param("spark", marks=pytest.mark.slow)])
def test_names_of_files_that_are_not_utf8_are_escaped_and_wrong_queue_ids_left_out(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A broker with another locale, or an attacker, may write such names; the messages must still be ingested."""
    workers = SparkWorkers(request.getfixturevalue("spark")) if engine == "spark" else SerialWorkers()
    broker = Broker(tmp_path / "store")
    written = broker.append(some_records(20))
    for name in (b"\xb6\xa9/0", b"Orders/99999999999"):
        queue = Path(os.fsdecode(os.fsencode(broker.root) + b"/consumequeue/" + name))
        queue.mkdir(parents=True)
        (queue / f"{0:020}").write_bytes(bytes(7) + b"\x01" + bytes(3) + b"\x64" + bytes(188))
    (broker.root / "config").mkdir(exist_ok=True)
    (broker.root / "config" / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    os.utime(broker.root / "config" / os.fsdecode(b"\xff.json"), (1e12, 1e12))

    ingest_into_own_lake(broker.root, workers=workers)

    assert raw_rows(tmp_path / "lake") == encode_rows(written)
    assert r"\udcb6\udca9" in {row["topic"] for row in rows_of(tmp_path / "lake", "consume_queue")}
    assert r"\udcff.json" in {row["name"] for row in rows_of(tmp_path / "lake", "config_files", "name")}


@pytest.mark.parametrize(("start", "last"), [(0, 0), (BLOCK, BLOCK), (0, 2 * BLOCK)])
def test_unreadable_sectors_around_a_hole_are_damage_and_reading_continues_after_them(
    broker: Broker, tmp_path: Path, start: int, last: int
) -> None:
    written = broker.append(some_records(100))
    segment = broker.root / "commitlog" / f"{0:020}"
    data = segment.read_bytes()
    with segment.open("wb") as file:
        file.write(data[: start + BLOCK])
        file.seek(last)
        file.write(data[last:])

    with fail_reads_of_first_segment(
        errno.EIO, lambda offset, size: any(offset < at + BLOCK and offset + size > at for at in (start, last))
    ):
        summary = ingest_into_own_lake(broker.root)

    hit = [one for one in written if start < one.end_offset and one.physical_offset < last + BLOCK]
    pieces = rows_of(tmp_path / "lake", "log_pieces")

    assert {row["physical_offset"] for row in pieces if row["kind"] == "unknown"} == {start, last}
    assert summary.exit_code is ExitCode.DAMAGE
    assert {row["reason"] for row in rows_of(tmp_path / "lake", "quarantine")} == {"io_error"}
    assert [item for item in encode_rows(written) if item not in encode_rows(hit)] == raw_rows(tmp_path / "lake")
    assert 0 < len(hit) < len(written)


def test_a_full_disk_is_reported_and_loses_nothing(small_disk: Path, broker: Broker) -> None:
    written = broker.append(some_records(500))
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - 5 * BLOCK))

    with pytest.raises((OSError, DeltaError), match=r"[Nn]o space left"):
        ingest_store(broker.root, small_disk / "lake", "b", range_size=4096)
    (small_disk / "filler").unlink()
    ingest_store(broker.root, small_disk / "lake", "b", range_size=4096)

    assert raw_rows(small_disk / "lake") == encode_rows(written)
    assert list_leftovers(small_disk / "lake") == []


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[31m", "back\\slash"])
def test_a_lake_path_that_cannot_be_used_is_refused_with_the_reason(
    golden: StoreOf, tmp_path: Path, run: Run, name: str
) -> None:
    """After a line break in the path, the reason was cut off."""
    outcome = run("ingest", golden("b533-base"), "--lake", tmp_path / name)

    assert outcome.code is ExitCode.FAILED
    assert "the path of a lake must not contain a backslash or a control character" in outcome.err
