"""
The bits of a record's `sys_flag`, and the transaction state they hold.

The transaction bits are one value of two bits, not two flags. The host bits say how long the host fields are.
"""

from enum import IntEnum, unique

COMPRESSED = 0x1
MULTI_TAGS = 0x2  # parsed by the broker, without any effect
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10  # 4.6.0+
STORE_HOST_V6 = 0x20  # 4.6.0+
NEED_UNWRAP = 0x40  # 5.0.0+: an inner batch
INNER_BATCH = 0x80  # 5.0.0+: an inner batch
COMPRESSION_TYPE_MASK = 0x700  # 4.9.4+
COMPRESSION_TYPE_SHIFT = 8


@unique
class TransactionType(IntEnum):
    """The values of the transaction bits."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


@unique
class CompressionType(IntEnum):
    """How a compressed body was compressed; the values 4 to 7 have no meaning."""

    LEGACY = 0  # releases without type bits: always zlib
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def transaction_type(sys_flag: int) -> TransactionType:
    """Return the transaction state; every two-bit value has one."""
    return TransactionType(sys_flag & TRANSACTION_MASK)
