"""Bodies of messages in every stored form, and the lines of traces."""

import zlib
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.body import decode_body
from rmq_formats.errors import CorruptData, SizeLimitExceeded, UnsupportedFormat
from rmq_formats.trace import FIELD_END, LINE_END, Trace, TraceKind, decode_traces
from rmq_formats.trace_columns import decode_trace_bodies
from tests.golden import StoreOf, golden_stores
from tests.support.stores import read_store_records

ZLIB, LZ4, ZSTD, LEGACY = 0x301, 0x101, 0x201, 0x1


def _stream(body: bytes, codec: str) -> bytes:
    if codec == "zlib":
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


@given(body=st.binary(max_size=2000))
def test_every_compression_type_is_decompressed(body: bytes) -> None:
    """The type bits of the flag contain the type; without them, it is zlib."""
    assert body == decode_body(body, 0)
    for codec, sys_flag in (("zlib", LEGACY), ("zlib", ZLIB), ("lz4", LZ4), ("zstd", ZSTD)):
        assert body == decode_body(_stream(body, codec), sys_flag)


@pytest.mark.parametrize("name", golden_stores("base", "types"))
def test_the_bodies_of_real_brokers_can_be_read(name: str, golden: StoreOf) -> None:
    sizes = [
        (len(stored.record.body), len(decode_body(stored.record.body, stored.record.sys_flag)))
        for stored in read_store_records(golden(name))
        if stored.record.sys_flag & 1
    ]

    assert sizes
    assert all(size > 0 for _, size in sizes)
    assert any(stored < size for stored, size in sizes)


@pytest.mark.parametrize("sys_flag", [LEGACY, ZLIB, LZ4, ZSTD])
@given(body=st.binary(min_size=1, max_size=200))
def test_garbage_raises_only_format_errors(sys_flag: int, body: bytes) -> None:
    with suppress(CorruptData):
        decode_body(body, sys_flag)


@pytest.mark.parametrize(("codec", "sys_flag"), [("zlib", ZLIB), ("lz4", LZ4), ("zstd", ZSTD)])
@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_the_size_limit_of_bodies_is_inclusive(codec: str, sys_flag: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    stream = _stream(body, codec)

    assert decode_body(stream, sys_flag, limit=size) == body
    with pytest.raises(SizeLimitExceeded):
        decode_body(stream, sys_flag, limit=size - 1)


@pytest.mark.parametrize(("codec", "sys_flag"), [("zlib", LEGACY), ("lz4", LZ4), ("zstd", ZSTD)])
def test_a_stream_that_is_cut_off_is_corrupt(codec: str, sys_flag: int) -> None:
    with pytest.raises(CorruptData):
        decode_body(_stream(b"body" * 99, codec)[:-5], sys_flag)


def test_an_unknown_compression_type_is_reported() -> None:
    with pytest.raises(UnsupportedFormat, match="type 5"):
        decode_body(b"x", 0x501)


# A send trace, up to the fields in which clients differ.
_SENT = "Pub\x011700000000000\x01Region\x01producers\x01Orders\x01ID\x01TagA\x01k1 k2\x0110.0.0.1:10911\x014\x017\x010"


def test_trace_lines_are_parsed_lazily() -> None:
    body = f"{_SENT}\x02".encode() + b"\x01\x02" * 1_000_000

    assert next(decode_traces(body)).message_id == "ID"


_SEVEN = "\N{ARABIC-INDIC DIGIT SEVEN}"
_NUMBERS = ("7", "-7", "+7", "007", "-0", "5", "1700000000000", "9" * 19, _SEVEN)
_VALUES = ("", "x", "true", "TRUE", "COMMIT_MESSAGE", "\u00e9", *_NUMBERS)
_PARTS = st.sampled_from([*TraceKind, *_VALUES, FIELD_END, FIELD_END, FIELD_END, LINE_END]) | st.text(max_size=3)
_FIELDS = st.lists(st.sampled_from(_VALUES), min_size=9, max_size=16)
_SENT_PARTS = _FIELDS.map(lambda parts: FIELD_END.join(["Pub", *parts]))
_BODIES = st.lists(
    st.binary(max_size=30)
    | st.lists(_PARTS, max_size=30).map(lambda parts: "".join(parts).encode())
    | st.lists(_SENT_PARTS | st.just(_SENT + "\x01true"), max_size=4).map(lambda lines: LINE_END.join(lines).encode()),
    max_size=5,
)


@given(bodies=_BODIES)
def test_trace_columns_equal_the_parsed_lines(bodies: list[bytes]) -> None:
    expected = [
        (body, number, trace)
        for body, stored in enumerate(bodies)
        for number, trace in enumerate(decode_traces(stored))
    ]

    found: list[tuple[int, int, Trace]] = []
    for bodies_of, numbers, rows in decode_trace_bodies(pa.array(bodies, pa.binary())):
        traces = [Trace(**{**row, "kind": TraceKind(row["kind"])}) for row in rows.to_pylist()]
        found += zip(bodies_of.tolist(), numbers.tolist(), traces, strict=True)

    assert found == expected


def test_many_trace_lines_are_returned_in_parts() -> None:
    parts = list(decode_trace_bodies(pa.array([b"Pub\x02" * 150_000], pa.binary())))

    assert len(parts) == 3
    assert [numbers[0] for _, numbers, _ in parts] == [0, 1 << 16, 1 << 17]
    assert {error for *_, rows in parts for error in rows.column("error").to_pylist()} == {"event_timestamp is missing"}
