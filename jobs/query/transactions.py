"""The end of a half message, as the queue of op messages tells it."""

from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.mqadmin.text import HALF_TOPIC, OffsetRange
from jobs.query.source import Source
from rmq_formats.rocksdb import transactions

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

_OPS_READ = 4096  # newest op messages that are read


class OpenHalves(NamedTuple):
    """The half messages that nothing ends, the newest first, and whether older ones were left unread."""

    messages: list[Message]
    was_cut_short: bool


def open_halves(source: Source, limit: int) -> OpenHalves:
    """Find among the newest *limit* half messages of each queue those that are neither committed nor rolled back."""
    found: dict[str, Message] = {}
    was_cut_short = False
    known = source.topics()
    for topic, op_topic in ((HALF_TOPIC, OP_TOPIC), (transactions.HALF_TOPIC, transactions.OP_TOPIC)):
        if topic not in known:
            continue
        ended: dict[int, set[str]] = {}  # by queue
        for queue_id in source.queue_ids(op_topic):
            ops = source.queue_offsets(op_topic, queue_id) or OffsetRange(0, 0)
            was_cut_short |= ops.maximum - ops.minimum > _OPS_READ
            oldest = max(ops.minimum, ops.maximum - _OPS_READ)
            for op in source.run_of_queue(op_topic, queue_id, oldest, ops.maximum):
                if op is not None:
                    named = op.properties.get(transactions.TRANS_OFFSET) or (op.body or b"").decode("ascii", "replace")
                    ended.setdefault(queue_id, set()).update(named.split(","))
        for queue_id in source.queue_ids(topic):
            halves = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
            was_cut_short |= halves.maximum - halves.minimum > limit
            for half in source.run_of_queue(
                topic, queue_id, max(halves.minimum, halves.maximum - limit), halves.maximum
            ):
                if half is None:
                    continue
                # A half message that is checked again is written again: the newest one of a message counts.
                record, name = half.record, half.unique_key or half.offset_id
                number = record.physical_offset if topic == transactions.HALF_TOPIC else record.queue_offset
                found.pop(name, None)
                if str(number) not in ended.get(queue_id, ()):
                    found[name] = half
    newest = sorted(found.values(), key=lambda half: half.record.physical_offset, reverse=True)
    return OpenHalves(newest, was_cut_short)


class HalfEnd(NamedTuple):
    """The op message that ends a half message, or whether older ones were left unread."""

    message: Message | None
    was_cut_short: bool = False


def half_end(source: Source, half: Message) -> HalfEnd:
    """Find the op message that ends a half message: a commit and a rollback both write one."""
    is_in_rocksdb = half.topic == transactions.HALF_TOPIC
    topic, queue_id = (transactions.OP_TOPIC, 0) if is_in_rocksdb else (OP_TOPIC, half.record.queue_id)
    ops = source.queue_offsets(topic, queue_id)
    if ops is None:
        return HalfEnd(None)
    oldest = max(ops.minimum, ops.maximum - _OPS_READ)
    for number in range(ops.maximum - 1, oldest - 1, -1):
        op = source.in_queue(topic, queue_id, number)
        # An op message lies after its half message: the first one before it ends the search.
        if op is None or op.record.physical_offset < half.record.physical_offset:
            return HalfEnd(None)
        if is_in_rocksdb:
            if op.properties.get(transactions.TRANS_OFFSET) == str(half.record.physical_offset):
                return HalfEnd(op)
        elif str(half.record.queue_offset) in (op.body or b"").decode("ascii", "replace").split(","):
            return HalfEnd(op)
    return HalfEnd(None, was_cut_short=oldest > ops.minimum)
