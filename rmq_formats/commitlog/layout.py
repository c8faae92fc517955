"""
CommitLog layouts: the record's fixed part in its four shapes, the blank that ends a file, DLedger's entry header.

A record is its fixed part, the body, the topic after its length, the properties after theirs. Two bits of `sys_flag`
give the lengths of the two host fields; the fields before the born host never move. Other bits give the body's
compression and the state of the transaction, which is one value of two bits, not two flags.
"""

from enum import IntEnum, unique

from rmq_formats.layout import Layout

COMPRESSED = 0x1
MULTI_TAGS = 0x2  # parsed by the broker, without any effect
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10  # 4.6.0+
STORE_HOST_V6 = 0x20  # 4.6.0+
NEED_UNWRAP = 0x40  # 5.0.0+: a consumer must split the body into its messages
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


def transaction_type(sys_flag: int) -> TransactionType:
    """Return the transaction state; every two-bit value has one."""
    return TransactionType(sys_flag & TRANSACTION_MASK)


MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB, 5.1.0+: the topic length has two bytes
MAGIC_BLANK = -875286124  # 0xCBD43194

DEFAULT_SEGMENT_SIZE = 1 << 30
BRIDGE_FLAG = int.from_bytes(b"LOST")  # the flag of records that a repair writes over lost bytes: see `bridge`

_HEAD = (
    ("total_size", "i", "size of the full record, including these four bytes"),
    ("magic_code", "i", "version of the record: V1 or V2"),
    ("body_crc", "i", "CRC-32 of the stored body, with the top bit of the CRC cleared; 0 if there is no body"),
    ("queue_id", "i", "id of the queue in its topic"),
    ("flag", "i", "set by the producer; not interpreted"),
    ("queue_offset", "q", "number of the message in its queue"),
    ("physical_offset", "q", "offset of this record's first byte in the log"),
    ("sys_flag", "i", "bits for compression, transaction state and host lengths"),
    ("born_timestamp", "q", "ms, the producer's clock"),
)
_MIDDLE = (("store_timestamp", "q", "ms, the broker's clock"),)
_TAIL = (
    ("reconsume_times", "i", "number of times that a consumer returned the message for retry"),
    ("prepared_transaction_offset", "q", "physical offset of the half message"),
    ("body_length", "i", "bytes of the body that follows; negative counts as 0"),
)
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6


def _host(name: str, is_v6: int) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    address = "16s" if is_v6 else "4s"
    return (f"{name}_address", address, "network address"), (f"{name}_port", "i", "port")


# The fixed part, by the two host bits of sys_flag.
RECORD = {
    bits: Layout(
        *_HEAD, *_host("born_host", bits & BORN_HOST_V6), *_MIDDLE, *_host("store_host", bits & STORE_HOST_V6), *_TAIL
    )
    for bits in (0, BORN_HOST_V6, STORE_HOST_V6, HOST_BITS)
}
HOST_V6_GROWTH = RECORD[BORN_HOST_V6].size - RECORD[0].size

# The fields that can be read before the host bits are known.
HEAD = Layout(*_HEAD)

TOPIC_LENGTH = {
    MAGIC_V1: Layout(("topic_length", "b", "bytes of the topic that follows")),
    MAGIC_V2: Layout(("topic_length", "h", "bytes of the topic that follows")),
}
PROPERTIES_LENGTH = Layout(("properties_length", "h", "bytes of the properties that follow; negative counts as 0"))

MIN_RECORD_SIZE = RECORD[0].size + TOPIC_LENGTH[MAGIC_V1].size + PROPERTIES_LENGTH.size

BLANK = Layout(
    ("total_size", "i", "bytes to the end of the file, including these eight; not checked by the broker"),
    ("magic_code", "i", "blank"),
)

# One message of an inner batch (5.0.0+): the body of the batch's record is a sequence of these.
INNER_MESSAGE = Layout(
    ("total_size", "i", "size of the full inner message, including these four bytes"),
    ("magic_code", "i", "always 0"),
    ("body_crc", "i", "always 0"),
    ("flag", "i", "set by the producer"),
    ("body_length", "i", "bytes of the body that follows"),
)

DLEDGER_MAGIC = 1
DLEDGER_END_MAGIC = -1
DLEDGER_ENTRY = Layout(
    ("magic", "i", "always 1"),
    ("size", "i", "size of the entry, including this header"),
    ("index", "q", "number of the entry, without gaps"),
    ("term", "q", "the leader's term"),
    ("pos", "q", "offset of this header's first byte in the log"),
    ("channel", "i", "always 0"),
    ("chain_crc", "i", "always 0; not checked"),
    ("body_crc", "i", "always 0; not checked"),
    ("body_length", "i", "bytes of the record that follows"),
)
DLEDGER_END = Layout(("magic", "i", "always -1"), ("size", "i", "bytes to the end of the file, including these eight"))
