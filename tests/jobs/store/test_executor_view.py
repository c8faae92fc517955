"""What executors see of a log, whatever its files are called, and that a broker shortens meanwhile."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.store.spark_workers import seen_by_executors, unseen
from jobs.store.store import list_store


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
