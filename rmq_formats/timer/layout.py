"""How the files of timer messages are laid out."""

from rmq_formats.layout import Layout

SLOT = Layout(
    ("time", "q", "time of delivery, in units of timerPrecisionMs; its remainder by the number of slots is the slot"),
    ("first", "q", "position of the slot's first unit in the timer log"),
    ("last", "q", "position of its last unit: each one leads to the unit before it"),
    ("messages", "i", "how many wait: units, without those that take a message back, and those taken back"),
    ("reserved", "i", "0"),
)
UNIT = Layout(
    ("unit_size", "i", "52"),
    ("previous", "q", "position of the unit before it in the same slot; -1: it is the first"),
    ("flags", "i", "1; with 2 the unit waits for the next roll, with 4 it takes a message back"),
    ("write_timestamp", "q", "ms, rounded to timerPrecisionMs; with the delay it is the time of the slot"),
    ("delay", "i", "ms"),
    ("physical_offset", "q", "of the record in `rmq_sys_wheel_timer`"),
    ("record_size", "i", "its total_size"),
    ("topic_hash", "i", "hash of the topic that it will be delivered to"),
    ("reserved", "q", "0"),
)
END = Layout(
    ("left", "i", "bytes from here to the end of the file"),
    ("zero", "q", "0"),
    ("magic", "i", "CBD43194"),
)
PROGRESS = Layout(
    ("read_timestamp", "q", "ms; up to here messages were delivered: slots before it are history"),
    ("log_flushed_position", "q", "up to where the timer log was flushed"),
    ("queue_offset", "q", "of the next unit of `rmq_sys_wheel_timer` that is put into the wheel"),
    ("master_queue_offset", "q", "the same, of the master"),
    ("version_state", "q", "of the data version"),
    ("version_timestamp", "q", "ms"),
    ("version_counter", "q", "how often it was changed"),
)
PROGRESS_SIZE = 4096
