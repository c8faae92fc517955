"""The public interface of the library: its names, its errors, and layouts that are declared once."""

import doctest
import pickle
import sys
from pathlib import Path
from subprocess import run

import pytest

import rmq_formats
from rmq_formats.errors import CorruptData, FormatError, NeedMoreData, NotAStore, SizeLimitExceeded, UnsupportedFormat
from rmq_formats.layout import Content, make_block_reader

ROOT = Path(rmq_formats.__file__).parents[1]


def test_the_example_of_the_package_works() -> None:
    outcome = doctest.testmod(rmq_formats)

    assert outcome.attempted > 5
    assert outcome.failed == 0


def test_scalar_names_need_only_the_standard_library() -> None:
    heavy = ("numba", "numpy", "pyarrow", "pyspark", "llvmlite")
    names = [name for name in rmq_formats.__all__ if name not in {"message_batch", "scan"}]
    program = f"import sys; sys.modules.update(dict.fromkeys({heavy})); from rmq_formats import {', '.join(names)}"

    answer = run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)

    assert answer.stderr == ""


KINDS = (NeedMoreData, CorruptData, SizeLimitExceeded, UnsupportedFormat, NotAStore)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_can_be_pickled(kind: type[FormatError]) -> None:
    error = kind("body_crc 1, computed 2", 4711, "commitlog/00000000000000000000")

    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(arrived) is kind
    assert arrived.reason == error.reason
    assert arrived.offset == error.offset
    assert arrived.file == error.file


def test_an_error_keeps_its_kind_and_offset_when_a_file_is_added() -> None:
    named = NeedMoreData("short", 7).in_file("log")

    assert type(named) is NeedMoreData
    assert str(named.in_file("outer")) == "log: short at offset 7"


def test_files_are_read_in_blocks_without_changing_the_bytes() -> None:
    data = bytes(range(100))
    reads: list[tuple[int, int]] = []

    def read(position: int, length: int) -> memoryview:
        reads.append((position, length))
        return memoryview(Content.from_bytes(data).read(position, length))

    in_parts = make_block_reader(read, 40)
    asked = [(0, 10), (10, 20), (35, 5), (36, 5), (70, 50), (95, 10), (3, 4)]

    assert [data[position : position + length] for position, length in asked] == [in_parts(*one) for one in asked]
    assert [(0, 40), (36, 40), (70, 50), (95, 40), (3, 40)] == reads
