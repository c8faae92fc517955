"""
The tables of a lake, each declared once, as source for Arrow's schema, Delta's schema and the documentation.

Every table begins with `broker` (a label) and `store_id` (the log that the row is from: two logs may have had the same
label).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_formats.arrow import MESSAGE_SCHEMA, REPEATED_TEXT, column, required_column, type_without_dictionary
from rmq_formats.indexfile.columns import SCHEMA as ENTRY_SCHEMA
from rmq_formats.trace_columns import SCHEMA as TRACE_SCHEMA

if TYPE_CHECKING:
    from deltalake import Schema

TIMESTAMP = pa.timestamp("us", "UTC")
PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # a column name that needs no backquotes
SQL_TYPES = {  # Arrow types, by their names in Spark SQL
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
# In memory, the type of columns with the text of any JSON value; in tables, they are strings.
JSON_TEXT = pa.large_string()
_SQL_NAMES = {
    **{type_: name for name, type_ in SQL_TYPES.items()},
    pa.timestamp("us"): "timestamp_ntz",
    JSON_TEXT: "json",
}

_WHOSE = (
    required_column("broker", pa.string(), "label of the broker that wrote the store"),
    required_column("store_id", pa.string(), "id of the store that the row is from, derived from the log's bytes"),
)


@dataclass(frozen=True)
class Table:
    """A Delta table: the meaning of a row, the columns, and the file layout for readers."""

    name: str
    row_meaning: str
    columns: tuple[pa.Field, ...]
    statistics: tuple[str, ...] = ()  # columns whose minimum and maximum go into the Delta log
    bloom_filters: tuple[str, ...] = ()
    distinct_texts: tuple[str, ...] = ()  # columns in which nearly every row has a different text
    random_numbers: tuple[str, ...] = ()  # columns with random differences between rows, which cannot be compressed
    sorted_by: str | None = None  # inside a file; files of the others are in the order of the log
    state_key: tuple[str, ...] = ()  # a row has the state of this object in one run; old states are thinned out
    compression_level: int = 1
    page_bytes: int | None = None  # size of a page before compression; None: pyarrow's default
    has_foreign_rows: bool = False  # rows that another engine may have written: NULL in any column

    def __getstate__(self) -> dict[str, object]:
        """Pickle only the declaration for tasks: `deltalake` objects cannot be pickled."""
        return {declared.name: getattr(self, declared.name) for declared in fields(self)}

    @property
    def columns_with_limits(self) -> tuple[str, ...]:
        """Names of the columns with limits in files and in Delta's log."""
        return (*(field.name for field in _WHOSE), *self.statistics)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the table's files."""
        fields = (*_WHOSE, *self.columns)
        return pa.schema([field.with_nullable(field.nullable or self.has_foreign_rows) for field in fields])

    @cached_property
    def delta_schema(self) -> "Schema":
        """The Delta schema, including column comments."""
        from deltalake import Schema  # lazy import: not needed to read or write rows

        return Schema.from_arrow(self.schema_without_dictionaries)

    @cached_property
    def schema_without_dictionaries(self) -> pa.Schema:
        """
        The Arrow schema for readers, without the dictionary types that the writer uses.

        In Delta every column is nullable, including those that the files require, so that this can be changed later.
        """
        return pa.schema(
            [
                pa.field(field.name, type_without_dictionary(field.type), metadata=field.metadata)
                for field in self.schema
            ]
        )


STORED_MESSAGES = Table(
    "messages",
    "one CommitLog record",
    (required_column("segment", pa.int64(), "physical offset of the first byte of the record's file"), *MESSAGE_SCHEMA),
    statistics=(
        "segment", "queue_id", "queue_offset", "physical_offset", "born_timestamp", "store_timestamp",
        "store_time", "store_date", "topic", "uniq_key", "offset_msg_id",
    ),
    bloom_filters=("uniq_key",),
    distinct_texts=("offset_msg_id",),
)  # fmt: skip
BODY_INFLATED, BODY_ERROR, RECORD_CRC = "body_inflated", "body_error", "record_crc"
RUN, INGESTED_AT = "run", "ingested_at"
MESSAGES = replace(
    STORED_MESSAGES,
    columns=(
        *STORED_MESSAGES.columns[:-1],
        column(
            RECORD_CRC,
            pa.int64(),
            "CRC-32 of the record as it was read; NULL if bodies are not stored, and in rows that earlier releases of "
            "rmq-lake wrote",
        ),
        column(
            RUN,
            pa.int64(),
            "number of the run that wrote the row; NULL in rows that earlier releases of rmq-lake wrote",
        ),
        column(
            INGESTED_AT,
            TIMESTAMP,
            "time at which this run started; NULL in rows that earlier releases of rmq-lake wrote. Runs of several "
            "stores overlap, so use `store_id` and `run` to find new rows",
        ),
        column(BODY_ERROR, pa.string(), "why a compressed body is not decompressed: too large, or not a valid stream"),
        STORED_MESSAGES.columns[-1],
        column(BODY_INFLATED, pa.binary(), "the decompressed body, if the stored body is compressed"),
    ),
    random_numbers=(RECORD_CRC,),
    statistics=(*STORED_MESSAGES.statistics, RUN),
)

_OF_A_TIER = {
    "segment": "offset of the first byte of the record's file, in the queue's own log",
    "physical_offset": "offset of the record's first byte in the queue's own log, not the broker's log",
    "prepared_transaction_offset": "physical offset of the half message, in the broker's log",
}
# The first has the offset in the broker's log; rmq-lake 1.0 did not have the others.
_ONLY_OF_A_BROKER = frozenset({"offset_msg_id", RECORD_CRC, RUN, INGESTED_AT})

TIERED = Table(
    "tiered",
    "one record of a tier, to which a broker copies its messages; only lakes of rmq-lake 1.0 have this table, and "
    "`store_id` identifies the tier",
    (
        required_column(
            "generation",
            pa.int32(),
            "generation of the queue's log: 0 for the first log that was read, incremented when its topic is recreated",
        ),
        *(
            required_column(field.name, field.type, _OF_A_TIER[field.name]) if field.name in _OF_A_TIER else field
            for field in MESSAGES.columns
            if field.name not in _ONLY_OF_A_BROKER
        ),
    ),
    statistics=tuple(name for name in MESSAGES.statistics if name not in _ONLY_OF_A_BROKER),
    bloom_filters=MESSAGES.bloom_filters,
)

CONSUME_QUEUE = Table(
    "consume_queue",
    "one ConsumeQueue unit, joined with its message",
    (
        required_column("topic", REPEATED_TEXT, "topic of the queue, from the name of its directory"),
        required_column("queue_id", pa.int32(), "id of the queue, from the name of its directory"),
        required_column(
            "queue_offset",
            pa.int64(),
            "number of the unit in its queue, derived from its position in the file; for a batch unit, the number of "
            "its first message",
        ),
        required_column("physical_offset", pa.int64(), "physical offset of the record according to the unit"),
        required_column("size", pa.int32(), "size of the record according to the unit"),
        required_column(
            "tags_code", pa.int64(), "as stored: hash of TAGS, time of delivery, or address of an extension unit"
        ),
        required_column(
            "is_pre_blank",
            pa.bool_(),
            "whether the unit is padding before the first message of the queue's first file",
        ),
        column("batch_count", pa.int16(), "number of messages in a BatchConsumeQueue unit; NULL in a plain queue"),
        required_column(
            "status",
            REPEATED_TEXT,
            "matched; mismatched: see `mismatch`; dangling: does not point to a record; "
            "expired: its record was deleted by retention; missing: its record exists, but the unit does not; "
            "deleted: missing because the topic was deleted",
        ),
        column("mismatch", pa.list_(pa.string()), "fields of the record that the unit contradicts"),
        column("store_timestamp", pa.int64(), "store time of the record, in ms; NULL without a record"),
        column("tags", REPEATED_TEXT, "TAGS of the record"),
    ),
    statistics=("topic", "queue_id", "queue_offset", "physical_offset", "status", "store_timestamp"),
)

INDEX_ENTRIES = Table(
    "index_entries",
    "one IndexFile entry; it never changes",
    tuple(ENTRY_SCHEMA),
    statistics=("index_file", "entry", "key_hash", "physical_offset", "store_timestamp"),
    distinct_texts=("key",),
    random_numbers=("entry", "slot", "key_hash"),
    sorted_by="key_hash",
)

INDEX_FILES = Table(
    "index_files",
    "one version of an index file's header; the row of the newest run is current",
    (
        column("index_file", pa.int64(), "ordinal of the index file, counted from the first one in the lake"),
        column(
            "name", pa.string(), "name of the broker's own file at this ordinal, if any; the name is its creation time"
        ),
        column("begin_timestamp", pa.int64(), "header field: store time of the first entry's message"),
        column("end_timestamp", pa.int64(), "header field: store time of the last entry's message"),
        column("begin_physical_offset", pa.int64(), "header field: physical offset of the first entry's message"),
        column("end_physical_offset", pa.int64(), "header field: physical offset of the last entry's message"),
        column(
            "hash_slot_count", pa.int32(), "header field: slots in use; in releases up to 4.7.0, the number of entries"
        ),
        column("index_count", pa.int32(), "header field: number of the next free entry"),
        column("is_complete", pa.bool_(), "whether the file is full; an open file gets a new row with each run"),
        column("sha256", pa.string(), "SHA-256 of the file, once it is complete"),
        column("hash_slots", pa.int32(), "the broker's setting maxHashSlotNum"),
        column("index_num", pa.int32(), "the broker's setting maxIndexNum"),
        column("geometry_origin", pa.string(), "origin of these two settings: given, detected or assumed"),
        column("release", pa.string(), "release whose rules the entries follow; several if the store was upgraded"),
        column("run", pa.int64(), "number of the run that wrote this row"),
    ),
    statistics=("index_file", "run"),
)

SUPERSEDED_MESSAGES = Table(
    "superseded_messages",
    "one record that was in the table messages until its broker truncated its log",
    (
        *MESSAGES.columns,
        column("superseded_by_run", pa.int64(), "number of the run that found other bytes at this offset"),
    ),
    statistics=("physical_offset", "superseded_by_run"),
    distinct_texts=MESSAGES.distinct_texts,
    random_numbers=MESSAGES.random_numbers,
)


QUARANTINE = Table(
    "quarantine",
    "one range of bytes of the log that is not a valid record",
    (
        column("segment", pa.int64(), "physical offset of the first byte of the file"),
        column("file", pa.string(), "path of the file when it was read"),
        column("physical_offset", pa.int64(), "offset of the first damaged byte"),
        column("length", pa.int64(), "number of bytes up to the next verified record"),
        column("reason", pa.string(), "why the bytes are not a valid record"),
        column("sample", pa.binary(), "the first bytes of the range"),
        column("run", pa.int64(), "number of the run that found the bytes"),
    ),
    statistics=("physical_offset", "run"),
)

LOG_PIECES = Table(
    "log_pieces",
    "one range of bytes of the log that cannot be rebuilt from messages, or a part of such a range (ranges overlap); "
    "`restore` needs it",
    (
        column("segment", pa.int64(), "physical offset of the first byte of the file"),
        column("physical_offset", pa.int64(), "offset of the first byte"),
        column("length", pa.int64(), "number of bytes of the log that the row describes"),
        column(
            "kind",
            pa.string(),
            "file: size and path of a file; end: bytes after the last record of a full file; damage: bytes that are "
            "not a record; entries: a range of consecutive DLedger entries; entry header: the bytes of a DLedger "
            "entry header that differ from the expected ones; unknown: bytes that were unreadable, or not kept "
            "because topics were selected",
        ),
        column(
            "bytes",
            pa.binary(),
            "the bytes as stored, at most 1 MiB per row; NULL in a row that describes a whole range: for the kinds "
            "end, damage and entry header, other rows inside the range have its bytes, and the rest are zeros",
        ),
        column("path", pa.string(), "for kind `file`: the last components of the file's path"),
        column("entry_index", pa.int64(), "number of the first entry"),
        column("entry_term", pa.int64(), "term of the entries"),
        column("run", pa.int64(), "number of the run that read the bytes"),
    ),
    statistics=("segment", "physical_offset"),
)

TRACES = Table(
    "traces",
    "one line of a trace message: an action that a client performed on a message. Trace bodies larger than 4 MiB when "
    "decompressed are skipped",
    (
        required_column("physical_offset", pa.int64(), "offset of the message that holds the line"),
        required_column(
            "line", pa.int32(), "number of the line in that message, from 0; lines of unknown kinds are not counted"
        ),
        required_column("store_timestamp", pa.int64(), "store time of the message that holds the line, in ms"),
        required_column("born_host", pa.string(), "address:port of the client that sent the trace"),
        *TRACE_SCHEMA,
    ),
    statistics=("physical_offset", "store_timestamp", "message_id", "event_timestamp"),
    bloom_filters=("message_id",),
)

CONFIG_FILES = Table(
    "config_files",
    "one version of a file in the broker's directory `config`: topics, groups, consumer offsets. Of the files of "
    "consumer offsets, every version is kept for three days, then the newest one of each hour, and after thirty days "
    "of each day",
    (
        column("name", pa.string(), "name of the file"),
        column("modified", TIMESTAMP, "when the broker wrote it"),
        column("sha256", pa.string(), "SHA-256 of the file's bytes"),
        column("bytes", pa.binary(), "contents of the file; NULL if it was deleted"),
        column("to_offset", pa.int64(), "end offset of the log in this run"),
        column("run", pa.int64(), "number of the run that read the file; the row of the newest run is current"),
    ),
    statistics=("name", "to_offset", "run"),
    state_key=("name",),
)

BROKER_CONFIG = Table(
    "broker_config",
    "one change to the settings of a topic or a consumer group; the row of the newest run is current",
    (
        column("kind", pa.string(), "topic or group"),
        column("name", pa.string(), "name of the topic or the group"),
        column("settings", pa.string(), "the broker's JSON, with sorted keys; NULL if the topic or group was deleted"),
        column("to_offset", pa.int64(), "end offset of the log in this run"),
        column("run", pa.int64(), "number of the run that read it"),
    ),
    statistics=("kind", "name", "to_offset", "run"),
)

CONSUMER_OFFSETS = Table(
    "consumer_offsets",
    "one change to the offset up to which a group has read a queue; the row of the newest run is current. Some runs "
    "also write unchanged offsets. Every row is kept for three days, then the newest one of each hour, and after "
    "thirty days of each day",
    (
        column(
            "kind",
            pa.string(),
            "meaning of the offset. `consumer`: the group has consumed up to it; `pull`: it has pulled up to it; "
            "`delay`: the broker has delivered the messages of a delay level up to it",
        ),
        column("consumer_group", pa.string(), "the consumer group; NULL for a delay level"),
        column("topic", pa.string(), "topic of the queue"),
        column("queue_id", pa.int32(), "id of the queue; for a delay level, the level minus 1"),
        column("next_offset", pa.int64(), "queue offset to be read next; NULL if the position was deleted"),
        column("to_offset", pa.int64(), "end offset of the log in this run"),
        column("run", pa.int64(), "number of the run that read it"),
    ),
    statistics=("consumer_group", "topic", "queue_id", "to_offset", "run"),
    state_key=("kind", "consumer_group", "topic", "queue_id"),
)

FINDINGS = Table(
    "findings",
    "one finding of `verify`",
    (
        column("verification", pa.int64(), "number of the verification, counted per store"),
        column("time", TIMESTAMP, "when the verification ended"),
        column("part", pa.string(), "log, queues, index or configuration"),
        column("kind", pa.string(), "kind of the finding"),
        column("file", pa.string(), "path of the file, relative to the store's root"),
        column("offset", pa.int64(), "position in the file of the first wrong byte"),
        column("field", pa.string(), "name of the wrong field"),
        column("found", pa.string(), "value that was found"),
        column("expected", pa.string(), "value that was expected"),
        column("cause", pa.string(), "the likely cause, as text"),
        column("times", pa.int64(), "number of occurrences at and after this offset"),
    ),
    statistics=("verification", "kind"),
)

ACCEPTED_FINDINGS = Table(
    "accepted_findings",
    "one finding of `verify` that a user has accepted: later verifications note it, and do not count it as a problem",
    (
        column("time", TIMESTAMP, "when it was accepted"),
        column("accept_as", pa.string(), "name of the finding, with a checksum of the bytes at its place"),
        column("kind", pa.string(), "kind of the finding"),
        column("file", pa.string(), "path of the file, relative to the store's root"),
        column("offset", pa.int64(), "position in the file of the first wrong byte"),
    ),
    statistics=("kind",),
)

# Columns of typed rows and dead letters that identify the source message.
PROVENANCE_COLUMNS = tuple(
    field.with_nullable(nullable=True)
    for field in MESSAGES.columns
    if field.name
    in {"physical_offset", "queue_id", "queue_offset", "store_timestamp", "store_time", "uniq_key", "tags", "keys"}
)

DEAD_LETTERS = Table(
    "dead_letters",
    "one message of a typed topic whose body does not fit its typed table",
    (
        *PROVENANCE_COLUMNS,
        required_column("topic", pa.string(), "topic of the message"),
        column(
            "type",
            pa.string(),
            "the declared type of the message; NULL if the topic has only one, or the message has none",
        ),
        required_column("reason", pa.string(), "why the body does not fit"),
        column("place", pa.string(), "location in the body: a path like $.items[0].price, or a byte position"),
        column("properties", pa.map_(pa.string(), pa.string()), "properties of the message"),
        column("body", pa.binary(), "the body as sent, or as stored if it cannot be decompressed"),
    ),
    statistics=("physical_offset", "store_timestamp", "topic"),
)

TYPINGS = Table(
    "typings",
    "one prepared run of `type`, which will be committed even after an interruption; broker and store_id are empty",
    (
        column("typing", pa.int64(), "number of the run of `type`"),
        column("time", TIMESTAMP, "when this row was written"),
        column("host", pa.string(), "host on which the driver ran"),
        column("manifest", pa.string(), "file in the lake with everything that is needed to complete the commit"),
        column("detail", pa.string(), "JSON: number of added rows and dead letters by topic"),
    ),
    statistics=("typing",),
)

RUNS = Table(
    "runs",
    "one state that a run reached: registered, prepared or done; or expired rows",
    (
        column("run", pa.int64(), "number of the run, counted per store; 0 registers the store"),
        column(
            "state",
            pa.string(),
            "registered: the store is known; prepared: the run will be committed, even after an interruption; "
            "done: committed; expired: `optimize --keep` removes old rows (of run 0: all of them so far)",
        ),
        column("time", TIMESTAMP, "when this row was written"),
        column("host", pa.string(), "host on which the run's driver ran"),
        column(
            "from_offset",
            pa.int64(),
            "first physical offset of the run; for a tier, number of bytes read by earlier runs",
        ),
        column(
            "to_offset",
            pa.int64(),
            "offset from which the next run continues; for a tier, number of bytes read by all runs so far",
        ),
        column("messages", pa.int64(), "rows that the run adds to the table messages"),
        column("manifest", pa.string(), "file in the lake with everything that is needed to complete the commit"),
        column(
            "detail",
            pa.string(),
            "JSON: fingerprints of a registered store; counts, gaps, filled gaps, topics, backfilled topics, "
            "undone runs and versions of a run",
        ),
    ),
    statistics=("run",),
)

# In the order of commits.
PRODUCT_TABLES = (
    *(MESSAGES, QUARANTINE, CONSUME_QUEUE, INDEX_ENTRIES, INDEX_FILES, LOG_PIECES),
    *(CONFIG_FILES, BROKER_CONFIG, CONSUMER_OFFSETS, TRACES, TIERED),
)
WRITTEN_BY_RUNS = (*PRODUCT_TABLES, SUPERSEDED_MESSAGES, RUNS)
TYPING_APPLICATION = "typing"  # the application of Delta transactions; in file names it replaces the store id
TYPING_TABLES = (DEAD_LETTERS, TYPINGS)  # written by `type`, in addition to one table for each type of a topic
TABLES = (*PRODUCT_TABLES, FINDINGS, ACCEPTED_FINDINGS, RUNS, SUPERSEDED_MESSAGES, *TYPING_TABLES)
TABLES_BY_NAME = {table.name: table for table in TABLES}


def storable_text(value: object) -> object:
    """Return a text with the bytes that are not UTF-8 (in the name of a file) as escapes; other values unchanged."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def sql_columns(columns: Iterable[pa.Field], separator: str = " ") -> str:
    """Return columns, or the fields of a struct, as Spark's SQL declares them."""
    return ", ".join(
        (field.name if PLAIN_NAME.fullmatch(field.name) else f"`{field.name.replace('`', '``')}`")
        + f"{separator}{sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
        for field in columns
    )


def sql_type(type_: pa.DataType) -> str:
    """Return a type as Spark's SQL spells it."""
    if pa.types.is_list(type_):
        return f"array<{sql_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{sql_type(type_.key_type)},{sql_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{sql_columns(type_, ': ')}>"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _SQL_NAMES.get(type_, str(type_))
