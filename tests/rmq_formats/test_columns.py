"""The compiled columns equal the scalar decoder's fields, and every record can be rebuilt from them."""

import datetime as dt
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_formats.commitlog.assembly import AssembledRecords, assemble_records
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.layout import TransactionType, transaction_type
from rmq_formats.commitlog.record import Host, MessageRecord, encode_record, has_right_body_crc, record_from_row
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.errors import CorruptData, SizeLimitExceeded
from rmq_formats.message_id import encode_offset_id
from rmq_formats.properties import PropertyParser, parse_properties, split_keys
from tests.golden import GOLDEN, StoreOf
from tests.rmq_formats.builders import BROKER_V6, PRODUCER_V6, make_record, place_records
from tests.rmq_formats.reference import group_of
from tests.rmq_formats.strategies import I64, records
from tests.support.stores import read_store_records

JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
AS_STORED = (
    "total_size", "magic_code", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_length",
    "topic_length", "properties_length", "body", "topic",
)  # fmt: skip


def grouped(some: Sequence[MessageRecord]) -> RawRecords:
    return group_of(some, b"\x5a" * 7, b"\x02\x01" * 9)


def batch_of(
    some: Sequence[MessageRecord],
    parser: PropertyParser = PropertyParser.SCAN,
    **options: Any,  # noqa: ANN401
) -> pa.RecordBatch:
    batch, _ = message_batch(grouped(some), parser, **options)
    batch.validate(full=True)
    return batch


def rows_of(some: Sequence[MessageRecord], **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - arguments of batch_of
    return batch_of(some, **options).to_pylist()  # type: ignore[no-any-return]


def _time(timestamp: int) -> dt.datetime | None:
    try:
        return EPOCH + dt.timedelta(milliseconds=timestamp)
    except OverflowError:
        return None


def expected_row(record: MessageRecord, parser: PropertyParser) -> dict[str, Any]:
    """Return the expected row from the scalar modules; the raw columns are tested by encoding the row again."""
    properties = parse_properties(record.properties_raw, parser)
    stored = _time(record.store_timestamp)
    return {name: getattr(record, name) for name in AS_STORED} | {
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "born_time": _time(record.born_timestamp),
        "store_time": stored,
        "store_date": stored.date() if stored else None,
        "is_compressed": bool(record.sys_flag & 1),
        "transaction_type": {
            TransactionType.NONE: "none",
            TransactionType.PREPARED: "prepared",
            TransactionType.COMMIT: "commit",
            TransactionType.ROLLBACK: "rollback",
        }[transaction_type(record.sys_flag)],
        "offset_msg_id": encode_offset_id(record.store_host, record.physical_offset),
        "uniq_key": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": split_keys(properties["KEYS"]) if "KEYS" in properties else None,
        "properties": list(properties.items()),
    }


def _items() -> st.SearchStrategy[bytes]:
    """Return valid and invalid properties, with few names, so that names are repeated."""
    names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"", b"a", b"\xff", b"\xed\xa0\x80"])
    values = st.sampled_from([b"true", b"", b"k1 k2  k3", b" ", b"\x01", b"x\x01", b"x\x01y", b"\xc3\xa9", b"\xe2\x82"])
    item = st.tuples(names, st.sampled_from([b"\x01", b""]), values | st.binary(max_size=12)).map(b"".join)
    texts = st.lists(item, max_size=12).map(b"\x02".join)
    return st.tuples(texts, st.sampled_from([b"", b"\x02", b"\x02\x02"])).map(b"".join)


ANY_RECORDS = st.lists(
    records()
    | st.builds(make_record, properties=_items(), store_timestamp=I64, born_timestamp=I64)
    | st.builds(make_record, topic=st.sampled_from(["Orders", "%RETRY%g", "é"]), properties=_items())
    | st.builds(make_record, properties=_items(), store_host=st.just(BROKER_V6), born_host=st.just(PRODUCER_V6)),
    max_size=8,
)
PARSERS = st.sampled_from(PropertyParser)
# The limits of the years 1 and 9999, and one millisecond beyond them.
_OUTERMOST_TIMES = (-62_135_596_800_001, -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000)


def _with_topic(raw: bytes) -> MessageRecord:
    record = make_record(topic="")
    return record._replace(topic_raw=raw, topic_length=len(raw), total_size=record.total_size + len(raw))


@given(some=ANY_RECORDS, parser=PARSERS)
@example(some=[make_record(store_timestamp=time) for time in _OUTERMOST_TIMES], parser=PropertyParser.SCAN)
@example(some=[_with_topic(raw) for raw in (b"\xff" * 127, b"\xed\xa0\x80", "�".encode())], parser=PropertyParser.SCAN)
@settings(max_examples=200)
def test_rows_equal_decoded_records_and_can_be_encoded_again(some: list[MessageRecord], parser: PropertyParser) -> None:
    batch = batch_of(some, parser)
    rows = batch.to_pylist()
    assembled = assemble_records(batch)

    assert [encode_record(record) for record in some] == parts(assembled)
    assert [] == list(assembled.incomplete_offsets)
    assert [{**row, "topic_raw": None, "properties_raw": None} for row in rows] == [
        {**expected_row(record, parser), "topic_raw": None, "properties_raw": None} for record in some
    ]
    for row, record in zip(rows, some, strict=True):
        assert record_from_row(row) == record == record_from_row(row | {"properties": dict(row["properties"])})
        if row["properties_raw"] is not None:
            without = record_from_row(row | {"properties_raw": None})

            assert without.properties_raw != record.properties_raw
        if row["topic_raw"] is not None:
            assert record_from_row(row | {"topic_raw": None}).topic_raw != record.topic_raw


@pytest.mark.parametrize("with_body", [True, False])
def test_records_with_a_wrong_body_crc_have_no_row(with_body: bool) -> None:
    """An empty body may have any CRC, as in a broker; a row without its body cannot be encoded."""
    some = place_records([*(make_record(bytes([i]) * 9) for i in range(5)), make_record(b"")._replace(body_crc=77)])
    some[2] = some[2]._replace(body=b"x" * 9)
    some[4] = some[4]._replace(body_crc=-1)
    batch, bad = message_batch(grouped(some), PropertyParser.SCAN, with_body=with_body)
    right = [record for record in some if has_right_body_crc(record)]

    assert [some[i] for i in (0, 1, 3, 5)] == right
    assert batch.column("body").to_pylist() == [record.body if with_body else None for record in right]
    assert batch.column("body_crc").to_pylist() == [record.body_crc for record in right]
    assert batch.column("body_length").to_pylist() == [record.body_length for record in right]
    assert bad == [(some[i].physical_offset, some[i].total_size) for i in (2, 4)]
    if not with_body:
        with pytest.raises(CorruptData, match="without its body"):
            record_from_row(batch.to_pylist()[0])


@given(some=st.lists(st.builds(make_record, topic=st.sampled_from(["a", "b", "é"])), max_size=12))
def test_each_topic_is_selected_once_and_others_are_not_decoded(some: list[MessageRecord]) -> None:
    topics_seen: list[str] = []

    def wants_topic(topic: str) -> bool:
        topics_seen.append(topic)
        return topic != "b"

    rows = rows_of(some, wants_topic=wants_topic)

    assert [row["topic"] for row in rows] == [record.topic for record in some if record.topic != "b"]
    assert sorted(topics_seen) == sorted({record.topic for record in some})


@pytest.mark.parametrize("count", [8191, 10_000])
@pytest.mark.parametrize("parser", PropertyParser)
def test_a_record_may_have_thousands_of_properties(count: int, parser: PropertyParser) -> None:
    """
    Distinct or repeated names; the last value of a repeated name replaces the first one.

    Each malformed byte of a text becomes three bytes; the text is not truncated.
    """
    distinct = "".join(f"{i:x}\x01{i % 7}\x02" for i in range(count))[:32767].encode()
    repeated = b"\x02".join([b"n\x01v"] * (count * 3 // 5) + [b"last\x01w", b"n\x01end"])[-32767:]
    empty_names = b"\x02".join([b"\x01v"] * 9000)
    malformed = b"KEYS\x01" + b"\xff" * 32_000
    some = [make_record(properties=raw) for raw in (distinct, repeated, empty_names, malformed)]
    for row, record in zip(rows_of(some, parser=parser), some, strict=True):
        assert row["keys"] == expected_row(record, parser)["keys"]
        assert row["properties"] == list(parse_properties(record.properties_raw, parser).items())
        assert record_from_row(row) == record


@pytest.mark.parametrize("size", [2500, pytest.param(9000, marks=pytest.mark.skipif(JIT_IS_OFF, reason="minutes"))])
def test_every_record_may_have_different_texts(size: int) -> None:
    some = [
        make_record(topic=f"topic-{i}", born_host=Host(i.to_bytes(4), i), store_host=Host(i.to_bytes(16), -i),
                 properties={f"name-{i}": f"value-{i}"})
        for i in range(size)
    ]  # fmt: skip
    batch, _ = message_batch(grouped(some), PropertyParser.SCAN)

    assert batch.column("topic").to_pylist() == [record.topic for record in some]
    assert batch.column("born_host").to_pylist() == [str(record.born_host) for record in some]
    assert batch.column("store_host").to_pylist() == [str(record.store_host) for record in some]
    assert batch.column("properties").to_pylist() == [[(f"name-{i}", f"value-{i}")] for i in range(size)]
    chosen = rows_of(some, wants_topic=lambda topic: topic.endswith("99"))

    assert [row["topic"] for row in chosen] == [f"topic-{i}" for i in range(99, size, 100)]


def test_more_bytes_than_arrow_offsets_allow_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_formats.commitlog.columns._LARGEST", 99)
    with pytest.raises(SizeLimitExceeded, match="100 bytes of bodies"):
        message_batch(grouped([make_record(b"x" * 100)]), PropertyParser.SCAN)


def test_a_batch_owns_its_bytes() -> None:
    group = grouped([make_record(b"abc")])
    batch, _ = message_batch(group, PropertyParser.SCAN)
    before = batch.to_pylist()
    group.buffer[:] = 0

    assert batch.to_pylist() == before


def read_with_polars(path: Path) -> pa.Table:
    import polars as pl  # lazy import: slow to load

    return pl.read_parquet(path).to_arrow()


ENGINES: dict[str, Callable[[Path], pa.Table]] = {
    "pyarrow": pq.read_table,
    "duckdb": lambda path: duckdb.read_parquet(str(path)).to_arrow_table(),
    "polars": read_with_polars,
}


def parts(assembled: AssembledRecords) -> list[bytes]:
    starts = assembled.positions.tolist()
    sizes = assembled.sizes.tolist()
    return [assembled.buffer[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]


@pytest.mark.sample(5)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GOLDEN)
def test_broker_records_are_restored_from_parquet_by_every_engine(
    name: str, engine: str, golden: StoreOf, tmp_path: Path
) -> None:
    some = [stored.record for stored in read_store_records(golden(name)) if has_right_body_crc(stored.record)]
    pq.write_table(pa.Table.from_batches([batch_of(some)]), tmp_path / "rows.parquet")

    table = ENGINES[engine](tmp_path / "rows.parquet")
    found = [part for batch in table.to_batches() for part in parts(assemble_records(batch))]

    assert [encode_record(record) for record in some] == found


def test_a_slice_of_a_batch_has_its_own_records() -> None:
    some = [
        make_record(body=bytes([number]) * number, topic=f"T{number}", properties=b"a\x01b\x02") for number in range(9)
    ]

    assembled = assemble_records(batch_of(some).slice(3, 4))

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
def test_inconsistent_rows_are_reported_and_not_encoded(column: str, value: pa.Array) -> None:
    batch = batch_of([make_record(body=b"body", topic="topic", properties=b"a\x01b\x02")])

    changed = batch.set_column(batch.schema.get_field_index(column), pa.field(column, value.type), value)
    assembled = assemble_records(changed)

    assert [] == parts(assembled)
    assert [0] == list(assembled.incomplete_offsets)


def test_a_missing_column_is_reported_by_name() -> None:
    batch = batch_of([make_record()])

    with pytest.raises(CorruptData, match="without the column store_host"):
        assemble_records(batch.drop_columns(["store_host"]))
