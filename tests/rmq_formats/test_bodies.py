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
_SENT_ENDS = {
    "\x01true": (None, True, None),
    "\x01OFFSET\x01false": ("OFFSET", False, None),
    "\x01OFFSET\x01true\x0110.0.0.2": ("OFFSET", True, "10.0.0.2"),
}


@pytest.mark.parametrize("end", _SENT_ENDS)
def test_send_traces_are_parsed_as_written_by_each_release(end: str) -> None:
    (trace,) = decode_traces(f"{_SENT}{end}\x02".encode())

    assert trace == Trace(
        TraceKind.SENT, "ID", 1_700_000_000_000, "Region", "producers", "Orders", "TagA", "k1 k2",
        "10.0.0.1:10911", _SENT_ENDS[end][2], 4, 7, 0, _SENT_ENDS[end][0], _SENT_ENDS[end][1],
    )  # fmt: skip


def test_consume_traces_have_time_and_group_if_the_client_wrote_them() -> None:
    """Clients up to 4.7.1, of 4.9.1, and of a cloud write neither."""
    body = "SubAfter\x01R\x01ID\x013\x01false\x01k\x014\x02SubAfter\x01R\x01ID\x013\x01true\x01k\x010\x011700\x01G\x02"
    bare, full = decode_traces(body.encode())

    assert (bare.request_id, bare.cost_ms, bare.is_success, bare.context_code) == ("R", 3, False, 4)
    assert (bare.event_timestamp, bare.client_group, bare.error) == (None, None, None)
    assert (full.event_timestamp, full.client_group, full.is_success) == (1700, "G", True)


def test_other_kinds_of_traces_have_their_own_fields() -> None:
    ended = f"EndTransaction{_SENT[3:-6]}\x012\x01TX\x01ROLLBACK_MESSAGE\x01true"
    lines = ("SubBefore\x015\x01R\x01G\x01Q\x01ID\x013\x01null", ended, "Recall\x015\x01R\x01G\x01T\x01ID\x01true")
    taken, ended_trace, recalled = decode_traces(LINE_END.join(lines).encode())

    assert (taken.kind, taken.retry_times, taken.request_id, taken.keys) == (TraceKind.RECEIVED, 3, "Q", "null")
    assert (ended_trace.transaction_id, ended_trace.transaction_state) == ("TX", "ROLLBACK_MESSAGE")
    assert (ended_trace.is_from_check, ended_trace.message_type) == (True, 2)
    assert (recalled.kind, recalled.topic, recalled.is_success) == (TraceKind.RECALLED, "T", True)
    assert [trace.error for trace in (taken, ended_trace, recalled)] == [None] * 3


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (_SENT.replace("1700000000000", "17x"), "event_timestamp is '17x'"),
        (_SENT.rpartition("\x01")[0], "message_type is missing"),
        (_SENT[:-1] + "5", "message_type is '5'"),
        (_SENT.replace("\x017\x01", "\x012147483648\x01"), "cost_ms is '2147483648'"),
        ("SubBefore\x015\x01R\x01G\x01Q\x01ID\x013\x01", "keys is missing"),
        ("Pub", "event_timestamp is missing"),
    ],
)
def test_undecodable_trace_lines_are_reported_with_the_field(line: str, error: str) -> None:
    (trace,) = decode_traces(line.encode())

    assert trace.error == error
    assert trace.client_group in {"producers", "G", None}


def test_trace_lines_after_an_undecodable_one_are_read() -> None:
    """Empty lines and lines of an unknown kind are skipped."""
    body = f"\x02\x02Other\x01x\x02Pub\x01x\x02{_SENT}\x01true\x02"

    assert [trace.error is None for trace in decode_traces(body.encode())] == [False, True]


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
