"""A message as queries show it: a log record, interpreted as the client of its release does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rmq_formats.body import MAX_DECOMPRESSED_SIZE, decode_body
from rmq_formats.commitlog.layout import COMPRESSED, TransactionType, transaction_type
from rmq_formats.commitlog.record import MessageRecord, has_right_body_crc, record_from_row
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.message_id import encode_offset_id
from rmq_formats.properties import KEYS, TAGS, UNIQ_KEY, parse_properties, split_keys
from rmq_formats.release import Release

INFLATED_BODY_LIMIT = 4 << 20  # bytes of a decompressed body: a broker's default limit


@dataclass(eq=False, repr=False)
class Message:
    """A record and its interpretation by a client; properties are parsed lazily, by the rule of the release."""

    record: MessageRecord
    release: Release
    superseded_by_run: int | None = None  # the run of a lake that found other bytes there: the broker has truncated it
    to_printable: Callable[[str], str] = str  # returns a text of the message in printable form
    broker: str | None = None  # the broker's name, in an answer over several stores
    has_body: bool = True  # False for a row of a lake without bodies; that of the record is then empty

    def __repr__(self) -> str:
        one = self.record
        return f"<Message of {self.topic}, queue {one.queue_id} offset {one.queue_offset}, at {one.physical_offset}>"

    @cached_property
    def topic(self) -> str:
        """The stored topic: a system topic for a delayed or half message."""
        return self.to_printable(self.record.topic)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The properties as the release's parser sees them."""
        stored = parse_properties(self.record.properties_raw, self.release.property_parser)
        return {self.to_printable(name): self.to_printable(value) for name, value in stored.items()}

    @property
    def unique_key(self) -> str | None:
        """The id assigned by the producer."""
        return self.properties.get(UNIQ_KEY)

    @property
    def keys(self) -> list[str]:
        """The words of KEYS, duplicates included."""
        return split_keys(self.properties.get(KEYS, ""))

    @property
    def tags(self) -> str | None:
        """The complete TAGS text."""
        return self.properties.get(TAGS)

    @cached_property
    def offset_id(self) -> str:
        """The id made of the store host and the physical offset."""
        return encode_offset_id(self.record.store_host, self.record.physical_offset)

    @property
    def message_id(self) -> str:
        """The message's id in mqadmin: the producer's, or else the offset id."""
        return self.unique_key or self.offset_id

    @property
    def transaction(self) -> TransactionType:
        """The meaning of the transaction bits."""
        return transaction_type(self.record.sys_flag)

    @property
    def is_compressed(self) -> bool:
        """Whether the body is stored compressed."""
        return bool(self.record.sys_flag & COMPRESSED)

    @cached_property
    def body(self) -> bytes | None:
        """The body as the producer sent it; None if it cannot be decompressed, or is not in the lake."""
        return self.body_within(MAX_DECOMPRESSED_SIZE)

    @property
    def body_or_stored_bytes(self) -> bytes:
        """The body as the producer sent it; as it is stored if it cannot be decompressed."""
        return self.record.body if self.body is None else self.body

    def body_within(self, limit: int = INFLATED_BODY_LIMIT) -> bytes | None:
        """Return the body as it was sent; None if it is not in the lake, invalid, or larger than *limit*."""
        try:
            return decode_body(self.record.body, self.record.sys_flag, limit) if self.has_body else None
        except FormatError:
            return None

    @property
    def has_right_body(self) -> bool | None:
        """Whether the stored body matches its CRC in the record; None if the body is not in the lake."""
        return has_right_body_crc(self.record) if self.has_body else None

    @property
    def printed_sys_flag(self) -> int:
        """The flag as printed by the release's mqadmin: newer clients clear the bit when they decompress."""
        sys_flag = self.record.sys_flag
        return sys_flag if self.release.prints_compressed_flag else sys_flag & ~COMPRESSED


NO_BODIES_NOTE = "this lake has no message bodies (`ingest --no-body`)"


def has_body_in_lake(row: Mapping[str, Any]) -> bool:
    """Return whether a row of a lake's messages has the message's body; an empty one needs no bytes."""
    return row["body"] is not None or row["body_length"] <= 0


def record_of_row(row: Mapping[str, Any], location: str) -> MessageRecord:
    """Return the record of a row of a lake's messages; its body is empty if the lake has no bodies."""
    try:
        return record_from_row({**row, "body": row["body"] or b""})
    except CorruptData as error:
        raise CorruptData(error.reason, error.offset, location) from error
    except KeyError as error:
        raise CorruptData(removed_column_text("the lake's table messages", error.args[0])) from error


def removed_column_text(table: str, column: str) -> str:
    """Explain that a table lacks a column that every run writes."""
    return f"{table} lacks the column {column}: another engine has removed it. Restore an earlier version of the table"
