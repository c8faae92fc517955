"""
The columns of a CommitLog record, declared once: narrow ones first, the body last.

What repeats from record to record (topics, hosts, property names) is dictionary-encoded in memory; to every reader of a
table it is text.
"""

import pyarrow as pa

_TEXT = pa.string()
_REPEATED = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", "UTC")


def _column(name: str, type_: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, type_, metadata={"comment": comment})


SCHEMA = pa.schema((
    _column("total_size", pa.int32(), "bytes of the whole record"),
    _column("magic_code", pa.int32(), "version of the record: -626843481 is V1, -626843477 is V2"),
    _column("body_crc", pa.int32(), "CRC-32 of the stored body without its top bit"),
    _column("queue_id", pa.int32(), "queue of the topic"),
    _column("flag", pa.int32(), "the producer's own; not interpreted"),
    _column("queue_offset", pa.int64(), "number of the message in its queue"),
    _column("physical_offset", pa.int64(), "of the record's first byte in the whole log"),
    _column("sys_flag", pa.int32(), "compression, transaction state, host lengths"),
    _column("born_timestamp", pa.int64(), "ms, the producer's clock, as stored"),
    _column("store_timestamp", pa.int64(), "ms, the broker's clock, as stored"),
    _column("reconsume_times", pa.int32(), "how often a consumer gave the message back"),
    _column("prepared_transaction_offset", pa.int64(), "physical offset of the half message"),
    _column("body_length", pa.int32(), "bytes of the stored body; negative counts as 0"),
    _column("topic_length", pa.int32(), "bytes of the stored topic"),
    _column("properties_length", pa.int32(), "bytes of the stored properties; negative counts as 0"),
    _column("store_date", pa.date32(), "UTC day of store_timestamp; NULL outside years 1 to 9999"),
    _column("born_time", _TIME, "born_timestamp as time; NULL outside years 1 to 9999"),
    _column("store_time", _TIME, "store_timestamp as time; NULL outside years 1 to 9999"),
    _column("is_compressed", pa.bool_(), "whether the body is stored compressed"),
    _column("transaction_type", _REPEATED, "none, prepared, commit or rollback"),
    _column("topic", _REPEATED, "the topic as Java reads it"),
    _column("born_host", _REPEATED, "the producer, address:port"),
    _column("store_host", _REPEATED, "the broker, address:port"),
    _column("offset_msg_id", _TEXT, "the broker's message id: store host and physical offset in hex"),
    _column("uniq_key", _TEXT, "property UNIQ_KEY: the client's message id"),
    _column("tags", _TEXT, "property TAGS"),
    _column("keys", pa.list_(pa.string()), "property KEYS, split at spaces"),
    _column(
        "properties",
        pa.map_(_REPEATED, pa.string()),
        "as the release's parser sees them: the last value of a name, in stored order",
    ),
    _column("topic_raw", pa.binary(), "the topic's bytes, only where they are no UTF-8"),
    _column("properties_raw", pa.binary(), "the stored properties, only where the map does not give them back"),
    _column("body", pa.binary(), "the body as stored, compressed or not"),
))  # fmt: skip
