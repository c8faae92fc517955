"""What executors see of a log that a broker shortens meanwhile."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.source.listing import list_store
from jobs.source.presence import segment_sizes, unseen


def test_a_segment_deleted_between_sparks_listing_and_its_look_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may come at any moment; it is the reading tasks that find out what is gone."""
    (tmp_path / "commitlog").mkdir()
    files = [tmp_path / "commitlog" / f"{start:020d}" for start in (0, 16384)]
    for file in files:
        file.write_bytes(bytes(16384))
    segments = list_store(str(tmp_path)).segments
    frames = type(spark.range(1))
    select = frames.select

    def delete_first(frame: DataFrame, *columns: str) -> DataFrame:
        files[0].unlink(missing_ok=True)
        return select(frame, *columns)

    monkeypatch.setattr(frames, "select", delete_first)
    sizes = segment_sizes(spark, segments)

    assert sizes == {str(files[1]): 16384}
    assert unseen(segments, sizes) == []
