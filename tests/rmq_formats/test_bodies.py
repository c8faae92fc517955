"""The decoded column holds what producers sent."""

import zlib

import pyarrow as pa

from rmq_formats.commitlog.bodies import decoded_bodies

ZLIB = 0x301


def _batch(bodies: list[bytes | None], sys_flags: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "sys_flag": pa.array(sys_flags, pa.int32()),
            "is_compressed": pa.array([bool(flag & 1) for flag in sys_flags]),
        }
    )


def test_compressed_bodies_are_decompressed_and_others_left_as_they_are() -> None:
    """The flag of each row decides; a body that was left out stays out."""
    batch = _batch([zlib.compress(b"abc"), b"plain", None], [ZLIB, 0, ZLIB])
    assert decoded_bodies(batch).to_pylist() == [b"abc", b"plain", None]


def test_a_body_that_cannot_be_decompressed_is_null() -> None:
    """Garbage, a type without meaning, a size beyond the limit: one row's trouble stays its own."""
    batch = _batch([b"garbage", b"x", zlib.compress(bytes(100)), zlib.compress(b"ok")], [ZLIB, 0x501, ZLIB, ZLIB])
    assert decoded_bodies(batch, limit=99).to_pylist() == [None, None, None, b"ok"]


def test_a_batch_without_compressed_bodies_costs_nothing() -> None:
    """The stored column is the decoded one."""
    batch = _batch([b"a", b""], [0, 0])
    assert decoded_bodies(batch).buffers()[2].address == batch.column("body").buffers()[2].address
