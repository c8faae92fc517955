"""The end of a half message, as the queue of op messages tells it."""

from typing import NamedTuple

from jobs.query.message import Message
from jobs.query.source import Source
from rmq_formats.rocksdb import transactions

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

_OPS_READ = 4096  # newest op messages that are read


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
