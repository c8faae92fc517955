"""
Decompresses the body of a message, according to the record's flags.

Every release writes zlib by default. LZ4 (in its frame format) and zstd (streams without a stated size) were introduced
with the type bits. pyarrow reads both, and is imported only when a body needs it.
"""

import zlib
from typing import Any

from rmq_formats.commitlog.layout import COMPRESSED, COMPRESSION_TYPE_MASK, COMPRESSION_TYPE_SHIFT
from rmq_formats.errors import CorruptData, SizeLimitExceeded, UnsupportedFormat

MAX_DECOMPRESSED_SIZE = 1 << 28  # far above a broker's limit (4 MiB by default): a small body may state a huge size

_PART = 1 << 16  # Arrow allocates the size of each read: large parts cost more than they save

_CODECS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}  # by the type bits; releases without them always use zlib


def decode_body(body: bytes, sys_flag: int, limit: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Return the body as sent; `CorruptData` if its stream is invalid, `SizeLimitExceeded` if it exceeds *limit*."""
    if not sys_flag & COMPRESSED or not body:
        return body
    number = (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT
    if number not in _CODECS:
        raise UnsupportedFormat(f"unknown compression type {number}")
    codec = _CODECS[number]
    data = _inflate(body, limit) if codec == "zlib" else _read_stream(body, codec, limit)
    if len(data) > limit:
        raise SizeLimitExceeded(f"body is larger than {limit} bytes when decompressed")
    return data


def _inflate(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise CorruptData(f"body is not a zlib stream: {error}") from error
    if len(data) <= limit and not stream.eof:
        raise CorruptData("body is a truncated zlib stream")
    return data


def _read_stream(body: bytes, codec: str, limit: int) -> bytes:
    import pyarrow as pa

    try:
        stream: Any = pa.CompressedInputStream(pa.BufferReader(body), codec)
        data = bytearray()
        while part := stream.read(min(_PART, limit + 1 - len(data))):
            data += part
    except (OSError, pa.ArrowException) as error:
        raise CorruptData(f"body is not a valid {codec} stream: {error}") from error
    return bytes(data)
