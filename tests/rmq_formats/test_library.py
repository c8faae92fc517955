"""The face of the library: its names, its errors, and layouts that are declared once."""

import doctest
import importlib
import pickle
import sys
from pathlib import Path
from subprocess import run

import pytest

import rmq_formats
from rmq_formats.commitlog.layout import HEAD, RECORD
from rmq_formats.errors import CorruptData, FormatError, LimitExceeded, NeedMoreData, NotAStore, UnsupportedFormat
from rmq_formats.layout import Content, Layout, Row, in_blocks

ROOT = Path(rmq_formats.__file__).parents[1]


@pytest.mark.parametrize("name", rmq_formats.__all__)
def test_every_public_name_is_that_of_the_module_that_declares_it(name: str) -> None:
    value = getattr(rmq_formats, name)

    assert getattr(importlib.import_module(value.__module__), name) is value


def test_the_names_are_in_order_and_complete() -> None:
    own = {
        name for name, value in vars(rmq_formats).items() if getattr(value, "__module__", "").startswith("rmq_formats.")
    }

    assert sorted(rmq_formats.__all__) == rmq_formats.__all__
    assert own <= {*rmq_formats.__all__}


def test_the_example_is_true() -> None:
    outcome = doctest.testmod(rmq_formats)

    assert outcome.attempted > 5
    assert outcome.failed == 0


def test_the_scalar_names_need_the_standard_library_alone() -> None:
    heavy = ("numba", "numpy", "pyarrow", "pyspark", "llvmlite")
    names = [name for name in rmq_formats.__all__ if name not in {"message_batch", "scan"}]
    program = f"import sys; sys.modules.update(dict.fromkeys({heavy})); from rmq_formats import {', '.join(names)}"

    answer = run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)

    assert answer.stderr == ""


KINDS = (NeedMoreData, CorruptData, LimitExceeded, UnsupportedFormat, NotAStore)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_trip_from_a_worker_to_the_driver(kind: type[FormatError]) -> None:
    error = kind("body_crc 1, computed 2", 4711, "commitlog/00000000000000000000")

    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(arrived) is kind
    assert (arrived.reason, arrived.offset, arrived.file) == (error.reason, error.offset, error.file)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptData("magic 00000000 is not that of a message"), "magic 00000000 is not that of a message"),
        (CorruptData("short", 0), "short at offset 0"),
        (CorruptData("short", 7, "log"), "log: short at offset 7"),
        (CorruptData("odd", None, "log"), "log: odd"),
    ],
)
def test_an_error_says_fact_and_place_in_one_line(error: FormatError, text: str) -> None:
    assert str(error) == text


def test_naming_the_file_keeps_kind_fact_and_offset() -> None:
    named = NeedMoreData("short", 7).in_file("log")

    assert type(named) is NeedMoreData
    assert str(named.in_file("outer")) == "log: short at offset 7"


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
