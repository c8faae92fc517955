"""RocksDB rows of real 5.x brokers, and rows that we build."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.consumequeue.dispatch import QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.errors import CorruptData, FormatError, NeedMoreData
from rmq_formats.indexfile.keys import IndexKey, KeyKind
from rmq_formats.properties import index_key_hash
from rmq_formats.release import Release
from rmq_formats.rocksdb.build import QueueRowBuilder, hash_index_rows, newest_by_queue_offset, unit_keys, unit_values
from rmq_formats.rocksdb.layout import (
    CHECKPOINT_TOPIC,
    LAST_OFFSET_KEY,
    LAST_TIME_KEY,
    UNIT_VALUE,
    IndexRow,
    PendingTransaction,
    TimerRow,
    decode_bound_row,
    decode_index_row,
    decode_prefix,
    decode_timer_row,
    decode_transaction_row,
    encode_bound_key,
    encode_prefix,
    encode_unit_key,
    hour_of_key,
    key_after_hour,
)
from tests.rmq_formats.reference import decode_unit_row

_RELEASE = Release.from_version("5.5.1")

# Of a queue `Tx` of 5.5.1: its second unit, and the row of its last one.
_UNIT = (
    "00000002015478010000000001" + "0000000000000001",
    "000000000000819300000164" + "0000000000000058000001a1fe972bb2",
)
_MAX = ("00000002015478016d61780100000000", "0000000000008193" + "0000000000000001")


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


# Keys and values that brokers of 5.5.1 wrote, except the last row of each kind.
_ID = "FD00000000000000000000000000000265EE4E0E2F2A6A2BEB020029"


@pytest.mark.parametrize(
    ("decode", "head", "texts", "tail", "value", "expected"),
    [
        (decode_index_row, "1a1fe682300", "@Orders@K@a@b@{}@", "35a3", "1a1fe93d303",
         IndexRow(1795269600000, "Orders", KeyKind.KEY, "a@b", _ID, 13731, 1795272463107)),
        (decode_index_row, "1a1fe682300", "@Orders@U@{}@", "35a3", "1a1fe93d303",
         IndexRow(1795269600000, "Orders", KeyKind.UNIQUE, _ID, _ID, 13731, 1795272463107)),
        (decode_index_row, "0", "@T@T@t@{}@", "7", "5", IndexRow(0, "T", KeyKind.TAG, "t", _ID, 7, 5)),
        (decode_transaction_row, "2680", "@Tx@{}", "", "1c1", PendingTransaction(9856, "Tx", _ID, 0, 449)),
        (decode_transaction_row, "2680", "@a@b@{}", "", "3000001c1", PendingTransaction(9856, "a@b", _ID, 3, 449)),
        (decode_timer_row, "1a1fe8e7b68", "{}", "", "1530000000000000789", TimerRow(1795272113000, _ID, 339, 1929)),
    ],
)  # fmt: skip
def test_rows_of_messages_have_the_values_of_their_key_and_value(  # noqa: PLR0913, PLR0917 - parts of a row
    decode: Callable[[bytes, bytes], object], head: str, texts: str, tail: str, value: str, expected: object
) -> None:
    """A key and the topic of a transaction may contain the separator."""
    key = int(head, 16).to_bytes(8) + texts.format(_ID).encode() + (int(tail, 16).to_bytes(8) if tail else b"")

    assert decode(key, int(value, 16).to_bytes(12 if decode is decode_timer_row else 8)) == expected


def test_the_next_hour_of_the_index_is_computed_up_to_the_last() -> None:
    """Rows of progress do not belong to an hour; the key of a row may continue after its hour."""
    hour = bytes.fromhex("0000019aa4f02700")

    assert [None] * 2 == [hour_of_key(LAST_OFFSET_KEY), hour_of_key(LAST_TIME_KEY)]
    assert [hour] * 2 == [hour_of_key(hour + b"@Orders@K@"), hour_of_key(hour)]
    assert bytes.fromhex("0000019aa4f02701") == key_after_hour(hour)
    assert bytes.fromhex("0100000000000001") == key_after_hour(b"\x01")
    assert bytes.fromhex("ffffffffffffffff") == key_after_hour(bytes.fromhex("fffffffffffffffe"))
    assert key_after_hour(b"\xff" * 8) is None


_PREFIXES = """
    ffffffff01
    00000002025478010000000001  00000002015478020000000001  00000003015478010000000001  000000020154ff010000000001
    00000002015478010000000002  000000020154780100000000    000000020154780100000000000001
"""
_BOUNDS = """
    00000002015478016d69640100000000  00000002015478016d61780200000000
    00000002015478016d617801000000    00000002015478016d6178010000000000
"""


@pytest.mark.parametrize(
    ("decode", "value", "keys"),
    [
        (lambda key, _: decode_prefix(key), 0, [b"", *map(bytes.fromhex, _PREFIXES.split())]),
        (decode_bound_row, 16, [*map(bytes.fromhex, _BOUNDS.split())]),
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
    ],
    ids=["prefix", "bound", "timer", "transaction", "index"],
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
    assert few.blanks == 3
    assert many.blanks == 0
    assert no_loss.blanks == 0


def test_rows_of_lost_records_point_to_the_previous_segment() -> None:
    for segments, expected in (((0, 4000), 0), ((0, 1000), 0), ((0, 1000, 2000), 1000), ((400, 2000), 400)):
        builder = QueueRowBuilder(_QUEUE, [(500, 1900)], segments)
        _, blanks, _ = builder.append(packed([(0, 0), (2, 2500)]))

        assert blanks.tolist()[0][:2] == (1, expected)
        assert int(blanks["size"][0]) == PRE_BLANK_SIZE
