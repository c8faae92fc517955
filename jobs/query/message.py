"""One message as a query shows it: a record of the log, read as the client of its release reads it."""

from collections.abc import Mapping
from functools import cached_property

from jobs.console.lines import printable
from rmq_formats.body import MAX_BODY_SIZE, decode_body
from rmq_formats.commitlog.record import MessageRecord, has_right_body_crc
from rmq_formats.errors import FormatError
from rmq_formats.flags import COMPRESSED, TransactionType, transaction_type
from rmq_formats.message_id import encode_offset_id
from rmq_formats.properties import KEYS, TAGS, UNIQ_KEY, parse_properties, split_keys
from rmq_formats.release import Release

LARGEST_BODY = 4 << 20  # bytes of a body when inflated: what a broker takes by default


class Message:
    """A record and what a client makes of it."""

    def __init__(self, record: MessageRecord, release: Release, superseded_by_run: int | None = None) -> None:
        """
        Keep *record*; properties are parsed when they are first needed, by the rule of *release*.

        *superseded_by_run*: the run of a lake that found other bytes in its place, as its broker took it back.
        """
        self.record = record
        self.release = release
        self.superseded_by_run = superseded_by_run

    def __repr__(self) -> str:
        """Name its topic and its places, as an interactive session shows it."""
        one = self.record
        return f"<Message of {self.topic}, queue {one.queue_id} offset {one.queue_offset}, at {one.physical_offset}>"

    @cached_property
    def topic(self) -> str:
        """The stored topic: a delayed or half message waits under a system topic."""
        return self.record.topic

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The properties as the release's parser sees them."""
        return parse_properties(self.record.properties_raw, self.release.property_parser)

    @property
    def unique_key(self) -> str | None:
        """The id that the producer gave the message."""
        return self.properties.get(UNIQ_KEY)

    @property
    def keys(self) -> list[str]:
        """The words of KEYS, duplicates included."""
        return split_keys(self.properties.get(KEYS, ""))

    @property
    def tags(self) -> str | None:
        """The whole TAGS text."""
        return self.properties.get(TAGS)

    @cached_property
    def offset_id(self) -> str:
        """The id made of the store host and the physical offset."""
        return encode_offset_id(self.record.store_host, self.record.physical_offset)

    @property
    def message_id(self) -> str:
        """The message's id as mqadmin has it: the producer's, else the one made of the offset."""
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
        """The body as the producer sent it; None when it cannot be decompressed."""
        return self.body_within(MAX_BODY_SIZE)

    def body_within(self, limit: int = LARGEST_BODY) -> bytes | None:
        """Return the body as it was sent; None where it cannot be decompressed, or is larger than *limit*."""
        try:
            return decode_body(self.record.body, self.record.sys_flag, limit)
        except FormatError:
            return None

    @property
    def has_right_body(self) -> bool:
        """Whether the CRC of the stored body is the one that the record states."""
        return has_right_body_crc(self.record)

    def shown(self, text: str) -> str:
        """Return *text*, which comes from the message, as it is printed: here as it is stored."""
        return text

    @property
    def printed_sys_flag(self) -> int:
        """The flag as the release's mqadmin prints it: newer clients clear the bit when they decompress."""
        sys_flag = self.record.sys_flag
        return sys_flag if self.release.prints_compressed_flag else sys_flag & ~COMPRESSED


class TerminalMessage(Message):
    """A message whose texts can do nothing to the terminal that they are printed on."""

    @cached_property
    def topic(self) -> str:
        """The stored topic, escaped."""
        return printable(self.record.topic)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The properties, escaped."""
        stored = parse_properties(self.record.properties_raw, self.release.property_parser)
        return {printable(name): printable(value) for name, value in stored.items()}

    def shown(self, text: str) -> str:
        """Return *text* escaped."""
        return printable(text)
