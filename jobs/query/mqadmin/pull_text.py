"""The text by which mqadmin prints a message that it has pulled, or found in a file: Java's text of the object."""

from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.mqadmin.text import OffsetRange, body_text, host_text, properties_text
from rmq_formats.properties import UNIQ_KEY
from rmq_formats.release import Release

_TRANSACTION_PREPARED = "TRAN_MSG"


class Printing(NamedTuple):
    """How messages are printed."""

    broker: str
    charset: str = "UTF-8"
    prints_body: bool = True


def message_line(message: Message, offsets: OffsetRange, how: Printing) -> str:
    """Return printMsg's line of one message."""
    body = body_text(message, how.charset) if how.prints_body else "NOT PRINT BODY"
    return f"MSGID: {message.message_id} {_java_text(message, offsets, how.broker)} BODY: {body}\n"


def _java_text(message: Message, offsets: OffsetRange, broker: str) -> str:
    record = message.record
    named = f"brokerName={broker}, " if message.release.prints_broker_of_message else ""
    return (
        f"MessageExt [{named}queueId={record.queue_id}, storeSize={record.total_size}, "
        f"queueOffset={record.queue_offset}, sysFlag={message.printed_sys_flag}, "
        f"bornTimestamp={record.born_timestamp}, bornHost=/{host_text(record.born_host)}, "
        f"storeTimestamp={record.store_timestamp}, storeHost=/{host_text(record.store_host)}, "
        f"msgId={message.offset_id}, commitLogOffset={record.physical_offset}, bodyCRC={record.body_crc}, "
        f"reconsumeTimes={record.reconsume_times}, preparedTransactionOffset={record.prepared_transaction_offset}, "
        f"toString()={_message_text(message, offsets, message.release)}]"
    )


def _message_text(message: Message, offsets: OffsetRange, release: Release) -> str:
    properties = properties_text(message, offsets) or "null"
    body = (message.record.body if message.body is None else message.body) or None
    if not release.prints_message_in_braces:
        size = 0 if body is None else len(body)
        return f"Message [topic={message.topic}, flag={message.record.flag}, properties={properties}, body={size}]"
    numbers = "null" if body is None else f"[{', '.join(str(byte - (byte >> 7 << 8)) for byte in body)}]"
    is_transactional = message.properties.get(_TRANSACTION_PREPARED, "").lower() == "true"
    transaction_id = message.properties.get(UNIQ_KEY) if is_transactional else None
    return (
        f"Message{{topic='{message.topic}', flag={message.record.flag}, properties={properties}, body={numbers}, "
        f"transactionId='{'null' if transaction_id is None else transaction_id}'}}"
    )
