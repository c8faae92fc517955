"""
Transactions in RocksDB: a row for each half message that is neither committed nor rolled back.

A commit, a rollback and too many checks delete the row. Offline, the log says the same: pending are the half messages
that no op message names by TRANS_OFFSET.
"""

from typing import NamedTuple

from rmq_formats.errors import CorruptData
from rmq_formats.layout import Buffer
from rmq_formats.rocksdb.layout import TRANSACTION_VALUE

FAMILY = "trans"
LAST_OFFSET_KEY = b"lastOffsetPy"
HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_OFFSET = "TRANS_OFFSET"
"""The property of an op message that holds the physical offset of its half message."""

_SEPARATOR = b"@"


class PendingTransaction(NamedTuple):
    """A half message that waits for its producer's decision."""

    physical_offset: int
    topic: str  # the real one
    transaction_id: str
    check_times: int
    size: int


def decode_transaction_row(key: bytes, value: Buffer) -> PendingTransaction:
    """Decode a row; topics may hold the separator, transaction ids do not."""
    offset, text = key[:8], key[9:]
    topic, separator, transaction_id = text.rpartition(_SEPARATOR)
    if key[8:9] != _SEPARATOR or not separator:
        raise CorruptData(f"{key.hex()} is no key of a transaction")
    check_times, size = map(int, TRANSACTION_VALUE.unpack(value))
    place = int.from_bytes(offset, "big", signed=True)
    topic_name, transaction = (part.decode("utf-8", "replace") for part in (topic, transaction_id))
    return PendingTransaction(place, topic_name, transaction, check_times, size)
