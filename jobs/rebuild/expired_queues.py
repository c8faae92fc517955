"""
The ends of queues without a message in the log: only their own files, or rows of RocksDB, know them.

A broker gives the next message of such a queue the number after its last unit. Consumers are there already: from 0 on
again, they would pass over what comes.
"""

from collections.abc import Container

from jobs.products.queues.topics import topic_table
from jobs.store.queue_files import queues_of_files
from jobs.store.rocksdb_queues import rocksdb_ends
from jobs.store.store import Store
from jobs.store.units import units_of
from rmq_formats.consumequeue.unit import QueueKind, QueueName
from rmq_formats.errors import FormatError
from rmq_formats.rocksdb.build import Place


def stored_ends(store: Store, but: Container[QueueName]) -> dict[QueueName, Place]:
    """Return the last unit of each plain queue of a store *but* of some; a database that cannot be read has none."""
    ends = {}
    for queue in queues_of_files(store.queue_files, store):
        end = queue.written_end() if queue.name.kind is QueueKind.PLAIN and queue.name not in but else 0
        if end:
            ends[queue.name] = Place(end - 1, int(units_of(queue, end - 1, end)["physical_offset"][0]))
    try:
        rows = rocksdb_ends(store)
    except FormatError:
        rows = {}
    for prefix, bound in rows.items():
        name = QueueName(QueueKind.PLAIN, prefix.topic, prefix.queue_id)
        if name not in but and bound.queue_offset > ends.get(name, Place(-1, -1)).queue_offset:
            ends[name] = Place(bound.queue_offset, bound.physical_offset)
    topics = topic_table(store)
    return {name: last for name, last in ends.items() if not topics.is_deleted(name.topic)}
