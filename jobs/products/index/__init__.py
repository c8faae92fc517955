"""Index files derived from a log, as files and as rows."""

from jobs.products.index.key_sequence import (
    ENTRIES_OF_FILE_ITSELF,
    KEYS_PER_BLOCK,
    KeyPart,
    KeySequence,
    RangeKeyCollector,
    RangeKeys,
    collect_keys,
    join_keys,
    new_range_key_collector,
    read_key_blocks,
)

__all__ = [
    "ENTRIES_OF_FILE_ITSELF",
    "KEYS_PER_BLOCK",
    "KeyPart",
    "KeySequence",
    "RangeKeyCollector",
    "RangeKeys",
    "collect_keys",
    "join_keys",
    "new_range_key_collector",
    "read_key_blocks",
]
