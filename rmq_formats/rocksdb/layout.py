"""
Layouts of the values, and of the parts of keys that have a fixed size.

Keys hold topics, transaction ids and index keys of any length between separators, so they are no layouts: the modules
next to this one take them apart.
"""

from rmq_formats.layout import Layout

# consumequeue/, consumequeue_rocksdb/: column family `default`
UNIT_VALUE = Layout(
    ("physical_offset", "q", "where the record begins in the log"),
    ("size", "i", "the record's total_size"),
    ("tags_code", "q", "hash of the TAGS text, time of delivery on the schedule topic"),
    ("store_timestamp", "q", "ms, the record's"),
)

# the same: column family `offset`
BOUND_VALUE = Layout(
    ("physical_offset", "q", "where that unit's record begins in the log"),
    ("queue_offset", "q", "number of the unit: the first one in a row of `min`, the LAST one in a row of `max`"),
)

# the same: the row of the topic CHECKPOINT_TOPIC
DISPATCHED_VALUE = Layout(("dispatched_end", "q", "where the last dispatched record ends in the log"))

# rocksdbstore/: column family `trans`
TRANSACTION_VALUE = Layout(
    ("check_times", "i", "how often the producer was asked"),
    ("size", "i", "the half message's total_size"),
)

# the same: column family `default`, the index
INDEX_VALUE = Layout(("store_timestamp", "q", "ms, the message's"))

# the same: column family `timer`
TIMER_VALUE = Layout(
    ("size", "i", "total_size of the record in `rmq_sys_wheel_timer`"),
    ("physical_offset", "q", "where that record begins in the log"),
)

# rows of `rocksdbstore/` that say how far it was filled: `lastOffsetPy`, `lastStoreTimeStamp`, the timer's checkpoints
PROGRESS_VALUE = Layout(("value", "q", "a physical offset, a queue offset, or ms"))
