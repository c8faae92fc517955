"""A broker's configuration files are JSON with bare numbers as names."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.config_json import decode_config
from rmq_formats.errors import CorruptData


def test_numbers_as_names_are_read_as_text() -> None:
    assert decode_config(b'{"offsetTable":{"T@g":{0:1,\n\t12 : 5},"U@g":{-1:3}}}') == {
        "offsetTable": {"T@g": {"0": 1, "12": 5}, "U@g": {"-1": 3}}
    }


def test_what_looks_like_such_a_name_inside_a_text_stays() -> None:
    assert decode_config(rb'{"a":"{1:2,3:\"{4:5}"}') == {"a": '{1:2,3:"{4:5}'}


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b"\xff\xfe", b'"' + b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b"[" * 100_000]
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_config(raw)


@given(st.binary(max_size=100))
def test_any_bytes_are_an_object_or_an_error_of_ours(raw: bytes) -> None:
    with suppress(CorruptData):
        assert isinstance(decode_config(raw), dict)


def test_a_long_text_takes_no_more_memory_than_some_copies_of_it() -> None:
    raw = b'{"a":"' + b"x" * (4 << 20) + b'"}'
    tracemalloc.start()
    try:
        decode_config(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 8 * len(raw)
