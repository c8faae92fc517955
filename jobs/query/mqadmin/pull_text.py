"""
What mqadmin prints of whole queues: printMsg, queryCq and topicStatus.

printMsg pulls: a pull reads one ConsumeQueue file at most, and one that finds nothing of the wanted tags says so.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.mqadmin.java_map import set_order
from jobs.query.mqadmin.text import OffsetRange, body_text, host_text, properties_text
from jobs.query.source import Source
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.hashing import java_hash
from rmq_formats.properties import UNIQ_KEY
from rmq_formats.release import Release

_PULL_COUNT = 32
_UNITS_FILTERED = 16_000 // UNIT.size  # maxFilterMessageCount, in bytes of units
_LINE = "--------------------------------------------------------\n"
_TRANSACTION_PREPARED = "TRAN_MSG"
_ALL_TAGS = "*"


class Printing(NamedTuple):
    """The options of printMsg."""

    broker: str
    charset: str = "UTF-8"
    expression: str = _ALL_TAGS
    prints_body: bool = True
    shown: Callable[[Message], Message] = lambda message: message  # as it is to be printed


def queue_order(topic: str, broker: str, queue_ids: list[int]) -> list[int]:
    """Return queue ids in the order in which a client walks its set of message queues."""
    hashes = {str(queue_id): _queue_hash(topic, broker, queue_id) for queue_id in queue_ids}
    return [int(name) for name in set_order(hashes)]


def _queue_hash(topic: str, broker: str, queue_id: int) -> int:
    # MessageQueue#hashCode
    value = 31 + java_hash(broker)
    return 31 * (31 * value + queue_id) + java_hash(topic)


def print_queue(  # noqa: PLR0913, PLR0917 - what is printed, and how
    source: Source,
    topic: str,
    queue_id: int,
    offsets: OffsetRange,
    asked: OffsetRange,
    how: Printing,
) -> Iterator[str]:
    """Yield what printMsg prints of one queue, whose *asked* offsets are pulled."""
    queue = f"MessageQueue [topic={topic}, brokerName={how.broker}, queueId={queue_id}]"
    newline = "\n" if source.release.print_msg_ends_lines else ""
    yield f"minOffset={asked.minimum}, maxOffset={asked.maximum}, {queue}{newline}"
    tags = _wanted_tags(how.expression)
    offset = asked.minimum
    while offset < asked.maximum:
        found, offset = _pull(source, topic, queue_id, offset, offsets, tags)
        for message in found:
            yield message_line(how.shown(message), offsets, how)
        if not found:
            yield f"{queue} no matched msg. status=NO_MATCHED_MSG, offset={offset}{newline}"
    if newline:
        yield _LINE


def _wanted_tags(expression: str) -> frozenset[str] | None:
    if expression.strip() in ("", _ALL_TAGS):
        return None
    return frozenset(part.strip() for part in expression.split("||") if part.strip())


def _pull(  # noqa: PLR0913, PLR0917 - a pull request
    source: Source,
    topic: str,
    queue_id: int,
    offset: int,
    offsets: OffsetRange,
    tags: frozenset[str] | None,
) -> tuple[list[Message], int]:
    """Return what one pull brings, and where the next one begins."""
    end = min(offsets.maximum, offset + _UNITS_FILTERED, source.pull_end(topic, queue_id, offset))
    found: list[Message] = []
    for message in source.run_of_queue(topic, queue_id, offset, end):
        if len(found) == _PULL_COUNT:
            break
        if message and (tags is None or message.tags in tags):
            found.append(message)
        offset += 1
    return found, offset


def message_line(message: Message, offsets: OffsetRange, how: Printing) -> str:
    """Return printMsg's line of one message."""
    body = body_text(message, how.charset) if how.prints_body else "NOT PRINT BODY"
    return f"MSGID: {message.message_id} {_java_text(message, offsets, how.broker)} BODY: {body}\n"


def _java_text(message: Message, offsets: OffsetRange, broker: str) -> str:
    """Return `MessageExt.toString()`."""
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
    """Return `Message.toString()`."""
    record = message.record
    properties = properties_text(message, offsets)
    body = (record.body if message.body is None else message.body) or None
    if not release.prints_message_in_braces:
        size = 0 if body is None else len(body)
        return f"Message [topic={message.topic}, flag={record.flag}, properties={properties}, body={size}]"
    numbers = "null" if body is None else f"[{', '.join(str(byte - (byte >> 7 << 8)) for byte in body)}]"
    is_transactional = message.properties.get(_TRANSACTION_PREPARED, "").lower() == "true"
    transaction_id = message.properties.get(UNIQ_KEY) if is_transactional else None
    return (
        f"Message{{topic='{message.topic}', flag={record.flag}, properties={properties}, body={numbers}, "
        f"transactionId='{'null' if transaction_id is None else transaction_id}'}}"
    )
