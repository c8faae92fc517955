"""Workers of this process, and what executors of Spark see of a log."""

import time
from pathlib import Path
from threading import Barrier

import click
import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.command.engine import workers_of
from jobs.launch.engine import Engine
from jobs.store.spark_workers import seen_by_executors, unseen
from jobs.store.store import list_store
from jobs.store.workers import InProcessWorkers


def test_results_come_in_the_order_of_the_items_whichever_is_done_first() -> None:
    def work(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number

    assert InProcessWorkers(width=3).map(range(20), work) == list(range(20))


def test_as_many_threads_work_as_the_workers_are_wide() -> None:
    together = Barrier(3, timeout=10)

    assert sorted(InProcessWorkers(width=3).map(range(3), lambda _: together.wait())) == [0, 1, 2]


@pytest.mark.parametrize(("verb", "half", "width"), [("verify", False, 8), ("verify", True, 4), ("export", False, 1)])
def test_verbs_that_are_mostly_machine_code_use_all_cores_that_are_no_brokers(
    monkeypatch: pytest.MonkeyPatch, verb: str, half: bool, width: int
) -> None:
    monkeypatch.setattr("jobs.launch.engine.cores", lambda: 8)
    with click.Context(click.Command(verb), info_name=verb):
        assert workers_of(Engine.HERE, half=half).width == width


@pytest.mark.parametrize("name", ["store", "a b", "50%20", "[x]{y}*?", "größe#1", "back\\slash"])
def test_segments_are_found_again_whatever_their_folder_is_called(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name / "commitlog"
    folder.mkdir(parents=True)
    for start in (0, 16384):
        (folder / f"{start:020d}").write_bytes(bytes(16384))
    locations = [segment.location for segment in list_store(str(tmp_path / name)).segments]

    seen = seen_by_executors(spark, locations[:1])

    assert seen == {str(folder / f"{0:020d}")}
    assert unseen(locations, seen) == [locations[1]]


def test_a_segment_deleted_between_sparks_listing_and_its_look_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "commitlog").mkdir()
    files = [tmp_path / "commitlog" / f"{start:020d}" for start in (0, 16384)]
    for file in files:
        file.write_bytes(bytes(16384))
    locations = [segment.location for segment in list_store(str(tmp_path)).segments]
    frames = type(spark.range(1))
    select = frames.select

    def delete_first(frame: DataFrame, *columns: str) -> DataFrame:
        files[0].unlink(missing_ok=True)
        return select(frame, *columns)

    monkeypatch.setattr(frames, "select", delete_first)
    seen = seen_by_executors(spark, locations)

    assert seen == {str(files[1])}
    assert unseen(locations, seen) == []
