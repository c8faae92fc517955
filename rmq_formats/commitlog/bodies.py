"""Bodies as their producers sent them, beside those that are stored: a column on request."""

import pyarrow as pa

from rmq_formats.body import MAX_BODY_SIZE, decode_body
from rmq_formats.errors import FormatError


def decoded_bodies(batch: pa.RecordBatch, limit: int = MAX_BODY_SIZE) -> pa.Array:
    """Return each row's body decompressed; NULL where it cannot be, or would be larger than *limit*."""
    stored = batch.column("body")
    if not batch.column("is_compressed").true_count:
        return stored
    flags = batch.column("sys_flag").to_pylist()
    return pa.array(
        [_decoded(body, flag, limit) for body, flag in zip(stored.to_pylist(), flags, strict=True)], stored.type
    )


def _decoded(body: bytes | None, sys_flag: int, limit: int) -> bytes | None:
    try:
        return None if body is None else decode_body(body, sys_flag, limit)
    except FormatError:
        return None
