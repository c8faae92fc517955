"""Rows give their records back, byte for byte, whoever read them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.commitlog.assembly import COLUMNS, Assembled, assemble
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.record import MessageRecord, encode_record, has_right_body_crc
from rmq_formats.errors import CorruptData
from rmq_formats.properties import PropertyParser
from tests.golden import GOLDEN, StoreOf
from tests.rmq_formats.builders import a_record
from tests.rmq_formats.reference import side_by_side
from tests.rmq_formats.stores import stored_records
from tests.rmq_formats.strategies import records

ENGINES: dict[str, Callable[[Path], pa.Table]] = {
    "pyarrow": pq.read_table,
    "duckdb": lambda path: duckdb.read_parquet(str(path)).to_arrow_table(),
    "polars": lambda path: pl.read_parquet(path).to_arrow(),
}


def batch_of(some: Sequence[MessageRecord], parser: PropertyParser = PropertyParser.SCAN) -> pa.RecordBatch:
    batch, bad = message_batch(side_by_side(some), parser)
    assert bad == []
    return batch


def parts(assembled: Assembled) -> list[bytes]:
    starts, sizes = assembled.positions.tolist(), assembled.sizes.tolist()
    return [assembled.buffer[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]


def changed(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), pa.field(name, values.type), values)


@given(st.lists(records(), max_size=5), st.sampled_from(PropertyParser))
def test_any_record_comes_back_from_its_row(some: list[MessageRecord], parser: PropertyParser) -> None:
    good = [record for record in some if has_right_body_crc(record)]

    assembled = assemble(batch_of(good, parser))

    assert [encode_record(record) for record in good] == parts(assembled)
    assert [] == list(assembled.incomplete)


@pytest.mark.sample(18)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GOLDEN)
def test_a_brokers_records_come_back_from_parquet_whoever_reads_it(
    name: str, engine: str, golden: StoreOf, tmp_path: Path
) -> None:
    """The table is the log: engines that are not ours read it, and every byte follows from what they give."""
    some = [stored.record for stored in stored_records(golden(name)) if has_right_body_crc(stored.record)]
    pq.write_table(pa.Table.from_batches([batch_of(some)]), tmp_path / "rows.parquet")

    table = ENGINES[engine](tmp_path / "rows.parquet")
    found = [part for batch in table.to_batches() for part in parts(assemble(batch))]

    assert [encode_record(record) for record in some] == found


def test_a_slice_of_a_batch_has_its_own_records() -> None:
    some = [
        a_record(body=bytes([number]) * number, topic=f"T{number}", properties=b"a\x01b\x02") for number in range(9)
    ]

    assembled = assemble(batch_of(some).slice(3, 4))

    assert [encode_record(record) for record in some[3:7]] == parts(assembled)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", pa.array([None], pa.binary())),
        ("body", pa.array([b"longer than it was"], pa.binary())),
        ("topic", pa.array(["another"])),
        ("born_host", pa.array(["nobody"])),
        ("born_host", pa.array(["[::1]:1"])),
        ("store_host", pa.array([None], pa.string())),
        ("magic_code", pa.array([7], pa.int32())),
        ("total_size", pa.array([None], pa.int32())),
        ("total_size", pa.array([1 << 30], pa.int32())),
        ("properties_raw", pa.array([b"x"], pa.binary())),
    ],
)
def test_a_row_that_contradicts_itself_is_no_record(column: str, value: pa.Array) -> None:
    """Somebody changed the table, or left bodies out: such a row is named, and no byte is made of it."""
    batch = batch_of([a_record(body=b"body", topic="topic", properties=b"a\x01b\x02")])

    assembled = assemble(changed(batch, column, value))

    assert ([], [0]) == (parts(assembled), list(assembled.incomplete))


def test_a_table_without_a_needed_column_is_refused_by_name() -> None:
    """An export that left a column out cannot become a log again."""
    batch = batch_of([a_record()])

    with pytest.raises(CorruptData, match="without the column store_host"):
        assemble(batch.drop_columns(["store_host"]))


def test_a_reader_without_maps_gives_a_list_of_pairs() -> None:
    batch = batch_of([a_record(properties=b"a\x01b\x02c\x01d\x02")])
    pairs: Any = pa.array(
        [[{"key": "a", "value": "b"}, {"key": "c", "value": "d"}]],
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.string())])),
    )

    assembled = assemble(changed(batch, "properties", pairs))

    assert set(COLUMNS) <= set(batch.schema.names)
    assert 1 == len(parts(assembled))
