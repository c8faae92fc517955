"""RocksDB rows of real 5.x brokers, and rows that we build."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.errors import CorruptData, FormatError, NeedMoreData
from rmq_formats.indexfile.keys import IndexKey, KeyKind, typed_index_keys
from rmq_formats.properties import UNIQ_KEY, index_key_hash, parse_properties
from rmq_formats.release import Release
from rmq_formats.rocksdb.build import QueueRowBuilder, hash_index_rows, newest_by_queue_offset, unit_keys, unit_values
from rmq_formats.rocksdb.layout import (
    CHECKPOINT_TOPIC,
    LAST_OFFSET_KEY,
    LAST_TIME_KEY,
    ROCKSDB_OP_TOPIC,
    TIMER_DELIVERY_PROGRESS_KEY,
    TIMER_SCAN_PROGRESS_KEY,
    TRANS_OFFSET,
    UNIT_VALUE,
    IndexRow,
    PendingTransaction,
    decode_bound_row,
    decode_index_row,
    decode_prefix,
    decode_progress,
    decode_timer_row,
    decode_transaction_row,
    encode_bound_key,
    encode_prefix,
    encode_unit_key,
    hour_of_key,
    key_after_hour,
)
from tests.golden import FeatureStore, unpack_feature
from tests.rmq_formats.reference import decode_unit_row
from tests.support.stores import read_store_records

_RELEASE = Release.from_version("5.5.1")

# Of a queue `Tx` of 5.5.1: its second unit, and the row of its last one.
_UNIT = (
    "00000002015478010000000001" + "0000000000000001",
    "000000000000819300000164" + "0000000000000058000001a1fe972bb2",
)
_MAX = ("00000002015478016d61780100000000", "0000000000008193" + "0000000000000001")


def rows_of(store: FeatureStore, family: str) -> dict[bytes, bytes]:
    rows = store.answers_before_stop["rocksdbstore"][family]
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in rows}


def messages_of(store: FeatureStore) -> dict[int, tuple[MessageRecord, dict[str, str]]]:
    return {
        record.physical_offset: (record, parse_properties(record.properties_raw, _RELEASE.property_parser))
        for record, _ in read_store_records(store.root)
    }


def test_a_unit_row_has_the_fields_of_a_unit_and_the_store_time() -> None:
    key, value = map(bytes.fromhex, _UNIT)
    queue = QueueName(QueueKind.PLAIN, "Tx", 0)

    assert decode_unit_row(key, value) == (queue, 1, 0x8193, 356, 88, 0x1A1FE972BB2)
    assert encode_unit_key(queue, 1) == key
    assert decode_prefix(encode_prefix(queue)) == queue


@pytest.mark.parametrize("topic", ["", "T\x01x", "Тема", "%LMQ%$Lite$a"])
def test_a_topic_may_contain_separators(topic: str) -> None:
    queue = QueueName(QueueKind.PLAIN, topic, 1 << 20)

    assert decode_prefix(encode_prefix(queue)) == queue
    assert decode_bound_row(encode_bound_key(queue, is_max=False), bytes(16)) == (queue, False, (0, 0))


def test_the_max_row_of_a_queue_points_to_its_last_unit() -> None:
    key, value = map(bytes.fromhex, _MAX)

    assert decode_bound_row(key, value) == (QueueName(QueueKind.PLAIN, "Tx", 0), True, (1, 0x8193))
    assert encode_bound_key(QueueName(QueueKind.PLAIN, "Tx", 0), is_max=True) == key
    with pytest.raises(NeedMoreData):
        decode_bound_row(key, value[:-1])


def test_the_checkpoint_row_has_the_dispatched_offset() -> None:
    key = encode_bound_key(QueueName(QueueKind.PLAIN, CHECKPOINT_TOPIC, 0), is_max=True)

    assert decode_bound_row(key, (52145).to_bytes(8, "big")) == 52145
    assert decode_bound_row(key, bytes(16)) == (QueueName(QueueKind.PLAIN, CHECKPOINT_TOPIC, 0), True, (0, 0))


def test_every_index_row_is_a_key_of_its_message(tmp_path: Path) -> None:
    """Every key, tag and unique key of each message has one row; a repeated key also has one row."""
    store = unpack_feature("b551-indexrocks", tmp_path)
    rows = rows_of(store, "default")
    messages = messages_of(store)
    progress = {name: decode_progress(rows.pop(name)) for name in (LAST_OFFSET_KEY, LAST_TIME_KEY)}
    found = [decode_index_row(*row) for row in rows.items()]
    expected = {
        (key.kind, key.topic, key.key, record.physical_offset)
        for record, _ in messages.values()
        for key in typed_index_keys(record, _RELEASE)
    }

    assert {(row.kind, row.topic, row.key, row.physical_offset) for row in found} == expected
    assert len(found) == len(expected)
    for row in found:
        record, properties = messages[row.physical_offset]
        assert row.store_timestamp == record.store_timestamp
        assert row.hour_ms == record.store_timestamp // 3_600_000 * 3_600_000
        assert row.unique_key == properties[UNIQ_KEY]
    newest = max(messages)
    assert progress == {LAST_OFFSET_KEY: newest, LAST_TIME_KEY: messages[newest][0].store_timestamp}


def test_a_key_and_the_topic_of_a_transaction_may_contain_the_separator() -> None:
    key = bytes(8) + b"@T@K@a@b@U1@" + (7).to_bytes(8, "big")

    assert decode_index_row(key, (5).to_bytes(8, "big")) == IndexRow(0, "T", KeyKind.KEY, "a@b", "U1", 7, 5)
    assert decode_transaction_row(bytes(8) + b"@a@b@id", bytes(8)) == PendingTransaction(0, "a@b", "id", 0, 0)


def test_the_next_hour_of_the_index_is_computed_up_to_the_last() -> None:
    """Rows of progress do not belong to an hour; the key of a row may continue after its hour."""
    hour = bytes.fromhex("0000019aa4f02700")

    assert [None] * 2 == [hour_of_key(LAST_OFFSET_KEY), hour_of_key(LAST_TIME_KEY)]
    assert [hour] * 2 == [hour_of_key(hour + b"@Orders@K@"), hour_of_key(hour)]
    assert bytes.fromhex("0000019aa4f02701") == key_after_hour(hour)
    assert bytes.fromhex("0100000000000001") == key_after_hour(b"\x01")
    assert bytes.fromhex("ffffffffffffffff") == key_after_hour(bytes.fromhex("fffffffffffffffe"))
    assert key_after_hour(b"\xff" * 8) is None


def test_pending_transactions_are_half_messages_without_op_message(tmp_path: Path) -> None:
    store = unpack_feature("b551-transrocks", tmp_path)
    rows = rows_of(store, "trans")
    messages = messages_of(store)
    last = decode_progress(rows.pop(LAST_OFFSET_KEY))
    ended = {
        int(properties[TRANS_OFFSET]) for record, properties in messages.values() if record.topic == ROCKSDB_OP_TOPIC
    }
    halves = {offset: properties for offset, (record, properties) in messages.items() if "TRANS_HALF" in record.topic}
    pending = [decode_transaction_row(*row) for row in rows.items()]

    assert {message.physical_offset for message in pending} == halves.keys() - ended - {
        offset for offset, (record, _) in messages.items() if record.topic == ROCKSDB_OP_TOPIC
    }
    assert last == max(message.physical_offset for message in pending)
    for message in pending:
        assert message.topic == halves[message.physical_offset]["REAL_TOPIC"]
        assert message.transaction_id == halves[message.physical_offset][UNIQ_KEY]
        assert message.size == messages[message.physical_offset][0].total_size
        assert message.check_times == 0


def test_a_timer_row_points_to_its_waiting_record(tmp_path: Path) -> None:
    """It has the unique key, and the requested time rounded down to seconds."""
    store = unpack_feature("b551-timerrocks", tmp_path)
    rows = rows_of(store, "timer")
    messages = messages_of(store)
    delivered, scanned = (
        decode_progress(rows.pop(name)) for name in (TIMER_DELIVERY_PROGRESS_KEY, TIMER_SCAN_PROGRESS_KEY)
    )
    waiting = [decode_timer_row(*row) for row in rows.items()]

    assert len(waiting) == 26
    assert sum(row.delivery_ms >= delivered for row in waiting) == 21
    assert scanned == sum(record.topic == "rmq_sys_wheel_timer" for record, _ in messages.values())
    for row in waiting:
        record, properties = messages[row.physical_offset]
        assert (record.topic, record.total_size) == ("rmq_sys_wheel_timer", row.size)
        assert properties[UNIQ_KEY] == row.unique_key
        assert int(properties["TIMER_OUT_MS"]) // 1000 * 1000 == row.delivery_ms


_BOUND = bytes.fromhex("0000000201547801")


@pytest.mark.parametrize(
    ("decode", "value", "keys"),
    [
        (
            lambda key, _: decode_prefix(key),
            0,
            [
                b"",
                b"\xff\xff\xff\xff\x01",
                bytes.fromhex("00000002025478010000000001"),
                bytes.fromhex("00000002015478020000000001"),
                bytes.fromhex("00000003015478010000000001"),
                bytes.fromhex("000000020154ff010000000001"),
                bytes.fromhex("00000002015478010000000002"),
                bytes.fromhex("000000020154780100000000"),
                bytes.fromhex("000000020154780100000000000001"),
            ],
        ),
        (decode_timer_row, 12, [bytes(8)]),
        (decode_transaction_row, 8, [b"", bytes(8) + b"@only", bytes(8) + b"xa@id"]),
        (
            decode_index_row,
            8,
            [
                bytes(8) + text + bytes(8)
                for text in (b"", b"@", b"T@K@a@U1@", b"@T@K@a@U1", b"@T@X@a@U1@", b"@T@K@a@", b"@T@U@@")
            ],
        ),
        (
            decode_bound_row,
            16,
            [
                _BOUND + bytes.fromhex(end)
                for end in ("6d69640100000000", "6d61780200000000", "6d617801000000", "6d6178010000000000")
            ],
        ),
    ],
)
def test_malformed_keys_are_rejected(decode: Callable[[bytes, bytes], object], value: int, keys: list[bytes]) -> None:
    for key in keys:
        with pytest.raises(CorruptData):
            decode(key, bytes(value))


_TEXTS = st.text(st.sampled_from("aKTU@#é漢😀 "), max_size=6)
_BUILT = st.builds(
    lambda topic, letter, key, unique: "@".join(["", topic, letter, key, *unique, ""]).encode(),
    _TEXTS, st.sampled_from(["K", "T", "U", "X", ""]), _TEXTS, st.lists(_TEXTS, max_size=2),
)  # fmt: skip
_KEYS = st.one_of(
    st.builds(lambda hour, text, offset: hour + text + offset, st.binary(min_size=8, max_size=8), _BUILT,
              st.integers(0, 1 << 40).map(lambda offset: offset.to_bytes(8))),
    st.binary(max_size=30).map(lambda raw: bytes(byte & 0x7F for byte in raw)),
)  # fmt: skip


@given(st.lists(st.tuples(_KEYS, st.sampled_from([bytes(8), bytes(3)])), max_size=8))
@example([(b"", bytes(8)), (bytes(17), bytes(8)), (bytes(8) + b"@@@@" + bytes(8), bytes(8))])
def test_hashed_keys_equal_those_of_the_scalar_module(rows: list[tuple[bytes, bytes]]) -> None:
    expected = []
    for key, value in rows:
        with suppress(FormatError):  # not a row of an index
            row = decode_index_row(key, value)
            expected.append((row.physical_offset, index_key_hash(IndexKey(row.topic, row.key, row.kind).text)))

    assert expected == hash_index_rows([key for key, _ in rows], [value for _, value in rows]).tolist()


_I64 = st.integers(-(1 << 63), (1 << 63) - 1)
_TOPICS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SIZE = 1000  # the size of a record
_QUEUE = QueueName(QueueKind.PLAIN, "T", 0)


def packed(units: list[tuple[int, int]]) -> NDArray[np.void]:
    made = np.zeros(len(units), PACKED_UNIT)
    made["queue_offset"], made["physical_offset"] = np.array(units, np.int64).reshape(-1, 2).T
    made["size"] = _SIZE
    return made


def numbers(parts: list[NDArray[np.void]]) -> list[int]:
    return [int(number) for part in parts for number in part["queue_offset"]]


@given(_TOPICS, st.integers(-(1 << 31), (1 << 31) - 1), st.lists(st.tuples(_I64, _I64, _I64, _I64), max_size=5))
def test_keys_and_values_equal_those_of_the_scalar_module(
    topic: str, queue_id: int, rows: list[tuple[int, int, int, int]]
) -> None:
    queue = QueueName(QueueKind.PLAIN, topic, queue_id)
    units = packed([(number, place) for number, place, _, _ in rows])
    units["tags_code"], units["store_timestamp"] = np.array([row[2:] for row in rows], np.int64).reshape(-1, 2).T

    assert unit_keys(queue, units) == [encode_unit_key(queue, row[0]) for row in rows]
    assert unit_values(units) == [UNIT_VALUE.pack(place, _SIZE, code, time) for _, place, code, time in rows]


@given(st.lists(_I64 | st.integers(0, 5), max_size=12))
def test_the_last_of_equal_queue_offsets_wins_and_keys_are_sorted(found: list[int]) -> None:
    units = packed([(number, place) for place, number in enumerate(found)])
    kept = newest_by_queue_offset(units)
    queue = QueueName(QueueKind.PLAIN, "T", 0)

    assert unit_keys(queue, kept) == sorted({encode_unit_key(queue, number) for number in found})
    newest = {number: place for place, number in enumerate(found)}
    assert all(newest[int(unit["queue_offset"])] == unit["physical_offset"] for unit in kept)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.data())
def test_first_last_and_highest_unit_do_not_depend_on_batches(found: list[int], data: st.DataObject) -> None:
    units = packed([(number, place * _SIZE) for place, number in enumerate(found)])
    cut = data.draw(st.integers(0, len(found)))
    builder = QueueRowBuilder(_QUEUE)
    parts = [*builder.append(units[:cut]), *builder.append(units[cut:])]

    assert numbers(parts) == found
    assert builder.last == (found[-1], (len(found) - 1) * _SIZE)
    lowest = min(found)
    assert builder.first == (lowest, (len(found) - 1 - found[::-1].index(lowest)) * _SIZE)
    assert builder.highest == max(found)
    assert builder.overwritten == sum(number <= max(found[:at]) for at, number in enumerate(found) if at)


def test_at_most_as_many_rows_are_added_as_the_log_can_have_lost() -> None:
    lost = [(1000, 1000 + 3 * MIN_RECORD_SIZE)]
    few, many, no_loss = (QueueRowBuilder(_QUEUE, some) for some in (lost, lost, ()))

    assert numbers(list(few.append(packed([(0, 0), (4, 2000)])))) == [0, 1, 2, 3, 4]
    assert numbers(list(many.append(packed([(0, 0), (5, 2000)])))) == [0, 5]
    assert numbers(list(no_loss.append(packed([(0, 0), (4, 2000)])))) == [0, 4]
    assert (few.blanks, many.blanks, no_loss.blanks) == (3, 0, 0)


def test_rows_of_lost_records_point_to_the_previous_segment() -> None:
    for segments, expected in (((0, 4000), 0), ((0, 1000), 0), ((0, 1000, 2000), 1000), ((400, 2000), 400)):
        builder = QueueRowBuilder(_QUEUE, [(500, 1900)], segments)
        _, blanks, _ = builder.append(packed([(0, 0), (2, 2500)]))

        assert blanks.tolist()[0][:2] == (1, expected)
        assert int(blanks["size"][0]) == PRE_BLANK_SIZE
