"""Rows of units made as arrays, compared with those that are encoded one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmq_formats.commitlog.layout import MIN_RECORD_SIZE
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.rocksdb.build import RowBuilder, newest_of_each, unit_keys, unit_values
from rmq_formats.rocksdb.layout import UNIT_VALUE
from rmq_formats.rocksdb.queues import QueuePrefix, encode_unit_key

_I64 = st.integers(-(1 << 63), (1 << 63) - 1)
_TOPICS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SIZE = 1000  # of a record


def packed(units: list[tuple[int, int]]) -> NDArray[np.void]:
    made = np.zeros(len(units), PACKED_UNIT)
    made["queue_offset"], made["physical_offset"] = np.array(units, np.int64).reshape(-1, 2).T
    made["size"] = _SIZE
    return made


def numbers(parts: list[NDArray[np.void]]) -> list[int]:
    return [int(number) for part in parts for number in part["queue_offset"]]


@given(_TOPICS, st.integers(-(1 << 31), (1 << 31) - 1), st.lists(st.tuples(_I64, _I64, _I64, _I64), max_size=5))
def test_keys_and_values_are_those_of_the_scalar_module(
    topic: str, queue_id: int, rows: list[tuple[int, int, int, int]]
) -> None:
    queue = QueuePrefix(topic, queue_id)
    units = packed([(number, place) for number, place, _, _ in rows])
    units["tags_code"], units["store_timestamp"] = np.array([row[2:] for row in rows], np.int64).reshape(-1, 2).T

    assert unit_keys(queue, units) == [encode_unit_key(queue, row[0]) for row in rows]
    assert unit_values(units) == [UNIT_VALUE.pack(place, _SIZE, code, time) for _, place, code, time in rows]


@given(st.lists(_I64 | st.integers(0, 5), max_size=12))
def test_of_equal_numbers_the_last_counts_and_keys_are_in_order(found: list[int]) -> None:
    units = packed([(number, place) for place, number in enumerate(found)])
    kept = newest_of_each(units)
    queue = QueuePrefix("T", 0)

    assert unit_keys(queue, kept) == sorted({encode_unit_key(queue, number) for number in found})
    newest = {number: place for place, number in enumerate(found)}
    assert all(newest[int(unit["queue_offset"])] == unit["physical_offset"] for unit in kept)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.data())
def test_first_last_and_highest_do_not_depend_on_how_units_are_cut(found: list[int], data: st.DataObject) -> None:
    units = packed([(number, place * _SIZE) for place, number in enumerate(found)])
    cut = data.draw(st.integers(0, len(found)))
    builder = RowBuilder()
    parts = [*builder.append(units[:cut]), *builder.append(units[cut:])]

    assert numbers(parts) == found
    assert builder.last == (found[-1], (len(found) - 1) * _SIZE)
    lowest = min(found)
    assert builder.first == (lowest, (len(found) - 1 - found[::-1].index(lowest)) * _SIZE)
    assert builder.highest == max(found)
    assert builder.overwritten == sum(number <= max(found[:at]) for at, number in enumerate(found) if at)


def test_only_as_many_numbers_as_the_log_can_have_lost_get_rows() -> None:
    lost = [(1000, 1000 + 3 * MIN_RECORD_SIZE)]
    few, many, no_loss = (RowBuilder(lost), RowBuilder(lost), RowBuilder())

    assert numbers(list(few.append(packed([(0, 0), (4, 2000)])))) == [0, 1, 2, 3, 4]
    assert numbers(list(many.append(packed([(0, 0), (5, 2000)])))) == [0, 5]
    assert numbers(list(no_loss.append(packed([(0, 0), (4, 2000)])))) == [0, 4]
    assert (few.blanks, many.blanks, no_loss.blanks) == (3, 0, 0)


def test_rows_of_lost_records_lead_to_the_start_of_the_segment_before() -> None:
    for segments, expected in (((0, 4000), 0), ((0, 1000), 0), ((0, 1000, 2000), 1000), ((400, 2000), 400)):
        builder = RowBuilder([(500, 1900)], segments)
        _, blanks, _ = builder.append(packed([(0, 0), (2, 2500)]))

        assert blanks.tolist()[0][:2] == (1, expected)
        assert int(blanks["size"][0]) == PRE_BLANK_SIZE
