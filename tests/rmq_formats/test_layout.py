"""Layouts: declared once, read, written and described from the same declaration."""

import pytest

from rmq_formats.commitlog.layout import HEAD, RECORD
from rmq_formats.errors import CorruptData, NeedMoreData
from rmq_formats.layout import Content, Layout, Row, in_blocks

PAIR = Layout(("size", "i", "bytes that follow"), ("offset", "q", "where"))


def test_integers_are_big_endian_and_signed() -> None:
    raw = bytes.fromhex("fffffffe 0000000000000003")

    assert PAIR.unpack(raw) == (-2, 3)
    assert PAIR.pack(-2, 3) == raw


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


def test_a_file_is_read_once_a_block_and_gives_the_same_bytes() -> None:
    data = bytes(range(100))
    reads: list[tuple[int, int]] = []

    def read(position: int, length: int) -> memoryview:
        reads.append((position, length))
        return memoryview(Content.of(data).read(position, length))

    in_parts = in_blocks(read, 40)
    asked = [(0, 10), (10, 20), (35, 5), (36, 5), (70, 50), (95, 10), (3, 4)]

    assert [data[position : position + length] for position, length in asked] == [in_parts(*one) for one in asked]
    assert [(0, 40), (36, 40), (70, 50), (95, 40), (3, 40)] == reads


def test_a_layout_describes_itself() -> None:
    described = Layout(("magic", "i", "kind"), ("address", "4s", "of the host"), ("count", "H", "of ids"))

    assert list(described.rows()) == [
        Row(0, 4, "magic", "i32", "kind"),
        Row(4, 4, "address", "4 bytes", "of the host"),
        Row(8, 2, "count", "u16", "of ids"),
    ]


def test_all_record_shapes_share_their_head() -> None:
    """`sys_flag` must be found before it can say how long the hosts are."""
    for layout in RECORD.values():
        assert [(row.name, row.offset) for row in layout.rows()][: len(HEAD.fields)] == [
            (row.name, row.offset) for row in HEAD.rows()
        ]
