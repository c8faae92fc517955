"""The ends of half messages, by the queue of op messages."""

from jobs.query.message import Message
from jobs.query.mqadmin.text import HALF_TOPIC, OffsetRange
from jobs.query.source import Source
from rmq_formats.rocksdb import layout as rocksdb_rows

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

_OPS_READ = 4096  # newest op messages that are read


def open_halves(source: Source, limit: int) -> tuple[list[Message], bool]:
    """
    Find among the newest *limit* half messages of each queue those that are neither committed nor rolled back.

    They come newest first, with whether older ones were left unread.
    """
    found: dict[str, Message] = {}
    was_cut_short = False
    known = source.topics()
    for topic, op_topic in ((HALF_TOPIC, OP_TOPIC), (rocksdb_rows.HALF_TOPIC, rocksdb_rows.OP_TOPIC)):
        if topic not in known:
            continue
        ended: dict[int, set[str]] = {}  # by queue
        for queue_id in source.queue_ids(op_topic):
            ops, is_part = _newest(source, op_topic, queue_id, _OPS_READ)
            was_cut_short |= is_part
            for op in source.by_queue(op_topic, queue_id, *ops):
                if op is not None:
                    ended.setdefault(queue_id, set()).update(_ended_numbers(op))
        for queue_id in source.queue_ids(topic):
            halves, is_part = _newest(source, topic, queue_id, limit)
            was_cut_short |= is_part
            for half in source.by_queue(topic, queue_id, *halves):
                if half is None:
                    continue
                # Each check of a half message writes it once more: the newest one of a message counts.
                name = half.unique_key or half.offset_id
                found.pop(name, None)
                if _number(half) not in ended.get(queue_id, ()):
                    found[name] = half
    newest = sorted(found.values(), key=lambda half: half.record.physical_offset, reverse=True)
    return newest, was_cut_short


def half_end(source: Source, half: Message) -> tuple[Message | None, bool]:
    """
    Find the op message that ends a half message: a commit and a rollback both write one.

    It comes with whether older op messages were left unread.
    """
    is_in_rocksdb = half.topic == rocksdb_rows.HALF_TOPIC
    topic, queue_id = (rocksdb_rows.OP_TOPIC, 0) if is_in_rocksdb else (OP_TOPIC, half.record.queue_id)
    ops, is_part = _newest(source, topic, queue_id, _OPS_READ)
    for number in reversed(range(*ops)):
        op = source.in_queue(topic, queue_id, number)
        # An op message lies after its half message: the first one before it ends the search.
        if op is None or op.record.physical_offset < half.record.physical_offset:
            return None, False
        if _number(half) in _ended_numbers(op):
            return op, False
    return None, is_part


def _newest(source: Source, topic: str, queue_id: int, limit: int) -> tuple[OffsetRange, bool]:
    """Return the offsets of the newest *limit* messages of a queue, and whether it has older ones."""
    held = source.queue_offsets(topic, queue_id) or OffsetRange(0, 0)
    oldest = max(held.minimum, held.maximum - limit)
    return OffsetRange(oldest, held.maximum), oldest > held.minimum


def _number(half: Message) -> str:
    """Return the number by which op messages name a half message: in files by its queue, in RocksDB by the log."""
    record = half.record
    return str(record.physical_offset if half.topic == rocksdb_rows.HALF_TOPIC else record.queue_offset)


def _ended_numbers(op: Message) -> list[str]:
    """Return the numbers of the half messages that an op message ends: from 5.1.0 on it may end several."""
    named = op.properties.get(rocksdb_rows.TRANS_OFFSET) or (op.body or b"").decode("ascii", "replace")
    return named.split(",")
