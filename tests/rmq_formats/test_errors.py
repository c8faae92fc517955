"""Errors: facts with a place, one tree, at home on both sides of a process boundary."""

import pickle

import pytest

from rmq_formats.errors import CorruptData, FormatError, LimitExceeded, NeedMoreData, NotAStore, UnsupportedFormat

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
