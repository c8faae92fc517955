"""The bits of `sys_flag`."""

import pytest

from rmq_formats.flags import (
    COMPRESSION_TYPE_MASK,
    COMPRESSION_TYPE_SHIFT,
    CompressionType,
    TransactionType,
    transaction_type,
)


@pytest.mark.parametrize(
    ("sys_flag", "expected"),
    [
        (0x0, TransactionType.NONE),
        (0x4, TransactionType.PREPARED),
        (0x8, TransactionType.COMMIT),
        (0xC, TransactionType.ROLLBACK),
        (0x309, TransactionType.COMMIT),  # a compressed body of a 5.x broker
        (-1, TransactionType.ROLLBACK),
    ],
)
def test_the_transaction_bits_are_one_value(sys_flag: int, expected: TransactionType) -> None:
    assert transaction_type(sys_flag) is expected


@pytest.mark.parametrize(
    ("sys_flag", "expected"), [(0x1, "LEGACY"), (0x101, "LZ4"), (0x201, "ZSTD"), (0x301, "ZLIB"), (0x309, "ZLIB")]
)
def test_the_compression_type_stands_above_the_flags(sys_flag: int, expected: str) -> None:
    """As seen in stores of 4.9.3 and older (no type) and of 4.9.8 and 5.x."""
    assert CompressionType((sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT).name == expected
