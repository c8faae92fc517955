"""What a plan reads from a lake."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from jobs.lake.lake import Lake
from jobs.restore.plan import count_messages_in_ranges
from tests.support.lakes import rows_of, table_of
from tests.support.query_stores import Sent, stored, write_lake, write_store

ROWS = 100_000  # of one file of the table


def test_messages_are_counted_by_topic_in_ranges_of_the_log(tmp_path: Path) -> None:
    records = stored([Sent(topic) for topic in ("Gone", "Other", "Gone", "Gone", "Lost", "Gone")])
    lake = Lake(str(write_lake(write_store(tmp_path / "store", records), tmp_path / "lake")))
    store_id = rows_of(tmp_path / "lake")[0]["store_id"]
    offsets = [record.physical_offset for record in records]
    ranges = [(offsets[4], offsets[5]), (offsets[0], offsets[3])]

    found = count_messages_in_ranges(lake, store_id, {"Gone", "Lost", "Never"}, ranges)

    assert {"Gone": 2, "Lost": 1} == found
    assert {} == count_messages_in_ranges(lake, store_id, {"Gone"}, [])
    assert {} == count_messages_in_ranges(lake, "another store", {"Gone"}, ranges)


def test_counting_messages_of_a_deleted_topic_takes_the_same_memory_for_twice_as_many(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", stored([Sent("Gone")]))
    write_lake(store, tmp_path / "one")
    (row,) = table_of(tmp_path / "one" / "messages").to_batches()

    def count(files: int) -> int:
        lake = tmp_path / f"lake-{files}"
        for number in range(files):
            numbers = pa.array(np.arange(number * ROWS, (number + 1) * ROWS))
            some = pa.table(row.take(pa.array(np.zeros(ROWS, np.int64)))).set_column(
                row.schema.get_field_index("physical_offset"), row.schema.field("physical_offset"), numbers
            )
            write_deltalake(lake / "messages", some, mode="append")
        (store_id,) = row.column("store_id").to_pylist()
        ranges = [(0, files * ROWS)]
        counts, peak = peak_of(lambda: count_messages_in_ranges(Lake(str(lake)), store_id, {"Gone"}, ranges))
        assert {"Gone": files * ROWS} == counts
        return peak

    few, many = count(4), count(8)

    assert many < 1.2 * few


def peak_of(read: Callable[[], object]) -> tuple[object, int]:
    """Return a result, and the bytes that Arrow held for it at the most."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        return read(), pool.max_memory()
    finally:
        pa.set_memory_pool(usual)
