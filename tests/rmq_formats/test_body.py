"""A body is what its producer sent, whichever way it is stored."""

import zlib
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.body import decode_body
from rmq_formats.errors import CorruptData, LimitExceeded, UnsupportedFormat
from tests.golden import StoreOf, golden_stores
from tests.rmq_formats.stores import stored_records

ZLIB, LZ4, ZSTD, LEGACY = 0x301, 0x101, 0x201, 0x1


def _stream(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


@given(body=st.binary(max_size=2000))
def test_every_kind_of_stream_gives_the_body_back(body: bytes) -> None:
    """The flag's type bits say which stream it is; without them it is zlib."""
    assert body == decode_body(body, 0)
    assert body == decode_body(zlib.compress(body), LEGACY)
    assert body == decode_body(zlib.compress(body), ZLIB)
    assert body == decode_body(_stream(body, "lz4"), LZ4)
    assert body == decode_body(_stream(body, "zstd"), ZSTD)


@pytest.mark.parametrize("name", golden_stores("base", "types"))
def test_the_bodies_of_real_brokers_can_be_read(name: str, golden: StoreOf) -> None:
    sizes = [
        (len(stored.record.body), len(decode_body(stored.record.body, stored.record.sys_flag)))
        for stored in stored_records(golden(name))
        if stored.record.sys_flag & 1
    ]

    assert sizes
    assert all(size > 0 for _, size in sizes)
    assert any(stored < size for stored, size in sizes)


@pytest.mark.parametrize("sys_flag", [LEGACY, ZLIB, LZ4, ZSTD])
@given(body=st.binary(min_size=1, max_size=200))
def test_garbage_is_a_format_error_and_nothing_else(sys_flag: int, body: bytes) -> None:
    with suppress(CorruptData):
        decode_body(body, sys_flag)


@pytest.mark.parametrize(("codec", "sys_flag"), [("zlib", ZLIB), ("lz4", LZ4), ("zstd", ZSTD)])
@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(codec: str, sys_flag: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    stream = zlib.compress(body) if codec == "zlib" else _stream(body, codec)
    assert decode_body(stream, sys_flag, limit=size) == body
    with pytest.raises(LimitExceeded):
        decode_body(stream, sys_flag, limit=size - 1)


@pytest.mark.parametrize(("codec", "sys_flag"), [("zlib", LEGACY), ("lz4", LZ4), ("zstd", ZSTD)])
def test_a_stream_that_is_cut_off_is_corrupt(codec: str, sys_flag: int) -> None:
    stream = zlib.compress(b"body" * 99) if codec == "zlib" else _stream(b"body" * 99, codec)
    with pytest.raises(CorruptData):
        decode_body(stream[:-5], sys_flag)


def test_an_unknown_compression_type_is_named() -> None:
    with pytest.raises(UnsupportedFormat, match="type 5"):
        decode_body(b"x", 0x501)
