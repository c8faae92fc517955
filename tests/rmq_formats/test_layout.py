"""Layouts: declared once, read, written and described from the same declaration."""

import pytest

from rmq_formats.commitlog.layout import (
    BLANK,
    DLEDGER_END,
    DLEDGER_ENTRY,
    HEAD,
    HOST_V6_GROWTH,
    INNER_MESSAGE,
    MIN_RECORD_SIZE,
    RECORD,
)
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.flags import BORN_HOST_V6, STORE_HOST_V6
from rmq_formats.layout import Layout, Row

PAIR = Layout(("size", "i", "bytes that follow"), ("offset", "q", "where"))


def test_fields_stand_behind_each_other_without_padding() -> None:
    assert PAIR.size == 12
    assert (PAIR.offset("size"), PAIR.offset("offset")) == (0, 4)


def test_integers_are_big_endian_and_signed() -> None:
    raw = bytes.fromhex("fffffffe 0000000000000003")

    assert PAIR.unpack(raw) == (-2, 3)
    assert PAIR.pack(-2, 3) == raw


def test_a_layout_is_read_wherever_it_stands() -> None:
    assert PAIR.unpack(memoryview(b"\xff" * 5 + PAIR.pack(1, 2) + b"\xff"), 5) == (1, 2)


@pytest.mark.parametrize("position", [-1, 1, 12, 1000])
def test_a_buffer_that_ends_too_early_needs_more_data(position: int) -> None:
    with pytest.raises(NeedMoreData):
        PAIR.unpack(bytes(12), position)


def test_what_is_short_is_said_with_the_offset_that_the_caller_knows() -> None:
    with pytest.raises(NeedMoreData, match="12 bytes wanted, 4 there at offset 4711"):
        PAIR.unpack(bytes(12), 8, 4711)


def test_a_value_too_large_for_its_field_is_no_surprise_exception() -> None:
    with pytest.raises(CorruptData, match="do not fit"):
        PAIR.pack(1 << 31, 0)


def test_a_layout_describes_itself() -> None:
    described = Layout(("magic", "i", "kind"), ("address", "4s", "of the host"), ("count", "H", "of ids"))

    assert list(described.rows()) == [
        Row(0, 4, "magic", "i32", "kind"),
        Row(4, 4, "address", "4 bytes", "of the host"),
        Row(8, 2, "count", "u16", "of ids"),
    ]


RECORD_V4_OFFSETS = {
    "total_size": 0,
    "magic_code": 4,
    "body_crc": 8,
    "queue_id": 12,
    "flag": 16,
    "queue_offset": 20,
    "physical_offset": 28,
    "sys_flag": 36,
    "born_timestamp": 40,
    "born_host_address": 48,
    "born_host_port": 52,
    "store_timestamp": 56,
    "store_host_address": 64,
    "store_host_port": 68,
    "reconsume_times": 72,
    "prepared_transaction_offset": 76,
    "body_length": 84,
}


def test_the_fixed_part_of_a_record_is_where_the_broker_puts_it() -> None:
    """The offsets with two IPv4 hosts."""
    assert {row.name: row.offset for row in RECORD[0].rows()} == RECORD_V4_OFFSETS
    assert RECORD[0].size == 88


@pytest.mark.parametrize(
    ("bits", "store_timestamp", "body_length"),
    [
        (0, 56, 84),
        (BORN_HOST_V6, 56 + HOST_V6_GROWTH, 84 + HOST_V6_GROWTH),
        (STORE_HOST_V6, 56, 84 + HOST_V6_GROWTH),
        (BORN_HOST_V6 | STORE_HOST_V6, 56 + HOST_V6_GROWTH, 84 + 2 * HOST_V6_GROWTH),
    ],
)
def test_each_ipv6_host_moves_what_stands_behind_it(bits: int, store_timestamp: int, body_length: int) -> None:
    """The two host bits are independent, and only the born host moves the store timestamp."""
    assert RECORD[bits].offset("store_timestamp") == store_timestamp
    assert RECORD[bits].offset("body_length") == body_length


def test_all_record_shapes_share_their_head() -> None:
    """`sys_flag` must be found before it can say how long the hosts are."""
    for layout in RECORD.values():
        assert [(row.name, row.offset) for row in layout.rows()][: len(HEAD.fields)] == [
            (row.name, row.offset) for row in HEAD.rows()
        ]


def test_sizes_that_the_broker_counts_with() -> None:
    assert MIN_RECORD_SIZE == 91
    assert BLANK.size == 8
    assert INNER_MESSAGE.size == 20
    assert DLEDGER_ENTRY.size == 48
    assert DLEDGER_END.size == 8
