"""
Declarations of a table's columns: name, type, meaning, and whether NULL is allowed.

The columns of a CommitLog record are declared here: narrow ones first, the body last. Values that repeat (topics,
hosts, property names) are dictionary-encoded in memory; readers of a table see text.
"""

import pyarrow as pa


def column(name: str, type_: pa.DataType, comment: str) -> pa.Field:
    """Return a column that may be NULL, and its meaning."""
    return pa.field(name, type_, metadata={"comment": comment})


def required_column(name: str, type_: pa.DataType, comment: str) -> pa.Field:
    """
    Return a column without NULL, which the table had in its first version, so that files need not store its validity.

    A column that was added later is never required, because merged files contain earlier rows.
    """
    return pa.field(name, type_, nullable=False, metadata={"comment": comment})


def type_without_dictionary(type_: pa.DataType) -> pa.DataType:
    """Return the type that readers see: dictionaries are only how a column is held in memory."""
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_map(type_):
        return pa.map_(type_without_dictionary(type_.key_type), type_without_dictionary(type_.item_type))
    return type_


_TEXT = pa.string()
REPEATED_TEXT = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", "UTC")


MESSAGE_SCHEMA = pa.schema((
    required_column("total_size", pa.int32(), "size of the full record in bytes"),
    required_column("magic_code", pa.int32(), "version of the record: -626843481 is V1, -626843477 is V2"),
    required_column("body_crc", pa.int32(), "CRC-32 of the stored body, with the top bit cleared"),
    required_column("queue_id", pa.int32(), "id of the queue in its topic"),
    required_column("flag", pa.int32(), "set by the producer; not interpreted"),
    required_column("queue_offset", pa.int64(), "number of the message in its queue"),
    required_column("physical_offset", pa.int64(), "physical offset of the record's first byte"),
    required_column("sys_flag", pa.int32(), "bits for compression, transaction state and host lengths"),
    required_column("born_timestamp", pa.int64(), "ms, the producer's clock, as stored"),
    required_column("store_timestamp", pa.int64(), "ms, the broker's clock, as stored"),
    required_column("reconsume_times", pa.int32(), "number of times that consumers returned the message for retry"),
    required_column("prepared_transaction_offset", pa.int64(), "physical offset of the half message"),
    required_column("body_length", pa.int32(), "length of the stored body in bytes; a negative value counts as 0"),
    required_column("topic_length", pa.int32(), "length of the stored topic in bytes"),
    required_column(
        "properties_length", pa.int32(), "length of the stored properties in bytes; a negative value counts as 0"
    ),
    column("store_date", pa.date32(), "UTC day of store_timestamp; NULL outside years 1 to 9999"),
    column("born_time", _TIME, "born_timestamp as time; NULL outside years 1 to 9999"),
    column("store_time", _TIME, "store_timestamp as time; NULL outside years 1 to 9999"),
    required_column("is_compressed", pa.bool_(), "whether the body is stored compressed"),
    required_column("transaction_type", REPEATED_TEXT, "none, prepared, commit or rollback"),
    required_column("topic", REPEATED_TEXT, "the topic, decoded as Java decodes it"),
    required_column("born_host", REPEATED_TEXT, "address:port of the producer"),
    required_column("store_host", REPEATED_TEXT, "address:port of the broker"),
    required_column("offset_msg_id", _TEXT, "the broker's message id: store host and physical offset in hex"),
    column("uniq_key", _TEXT, "property UNIQ_KEY: the unique key, assigned by the producer"),
    column("tags", _TEXT, "property TAGS"),
    column("keys", pa.list_(pa.string()), "property KEYS, split at spaces"),
    required_column(
        "properties",
        pa.map_(REPEATED_TEXT, pa.string()),
        "the properties as the broker's release parses them; if a name occurs twice, the last value is used",
    ),
    column("topic_raw", pa.binary(), "the topic's bytes, if they are not valid UTF-8"),
    column("properties_raw", pa.binary(), "the stored properties, if they cannot be rebuilt from the map"),
    column("body", pa.binary(), "the body as stored, compressed or not"),
))  # fmt: skip
