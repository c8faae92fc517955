"""The CRC of compiled code is held to zlib's."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.crc import crc32
from rmq_formats.kernels import as_bytes


@given(st.binary(max_size=300), st.integers(0, 20))
def test_the_crc_is_that_of_java_and_zlib(data: bytes, start: int) -> None:
    """One polynomial, wherever the bytes begin."""
    start = min(start, len(data))
    assert int(crc32(as_bytes(data), start, len(data))) == zlib.crc32(data[start:])


@pytest.mark.parametrize("lengths", [range(600), (4 << 10, (64 << 10) - 1, (64 << 10) + 17)], ids=["short", "long"])
def test_every_length_has_the_same_crc_as_in_zlib(lengths: range | tuple[int, ...]) -> None:
    """Lanes, steps, and what they leave behind meet at each length."""
    data = random.Random(7).randbytes(max(lengths) + 3)
    buffer = as_bytes(data)
    for length in lengths:
        assert int(crc32(buffer, 3, 3 + length)) == zlib.crc32(data[3 : 3 + length]), length
