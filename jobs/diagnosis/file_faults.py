"""
Finds the single fault that explains the difference between the expected content of a file and the stored one.

The content of a queue file or an index file is known from two sources: the file itself and the log. If they differ,
either may be wrong. After a flipped bit, zeros, a truncation or an extension, all other bytes are as expected, which
confirms the expected content. A changed log record looks different: units move, and an entry is in another slot's
chain.
"""

import numpy as np

from jobs.store.record_places import find_record
from jobs.store.store import Store
from rmq_formats.commitlog.record import has_right_property_crc
from rmq_formats.layout import Content
from rmq_formats.properties import TAGS, PropertyParser, java_hash, parse_properties

_AT_ONCE = 8 << 20


ONE_BIT_CHANGED = "one bit changed"


def find_file_fault(stored: Content, right: Content, header_size: int = 0) -> str | None:
    """
    Return the one fault that turned *right* into *stored*; None if no single fault explains all differences.

    With each fault, the remaining bytes agree with the expected content. A truncated or extended file may also have one
    flipped bit. Differences within the first *header_size* bytes alone also count as one fault.
    """
    bits = beyond_header = 0
    all_zero = True
    size = min(stored.size, right.size)
    for position in range(0, size, _AT_ONCE):
        length = min(_AT_ONCE, size - position)
        found, wanted = (np.frombuffer(one.read(position, length), np.uint8) for one in (stored, right))
        if found.size != wanted.size:  # truncated while it was read: not a fault of the file
            bits, all_zero, beyond_header = 2, False, 1
            break
        places = np.flatnonzero(found != wanted)
        bits += int(np.bitwise_count(found[places] ^ wanted[places]).sum())
        all_zero &= not found[places].any()
        beyond_header += int((places + position >= header_size).sum())
    if bits <= 1 and stored.size != right.size:
        return "cut short" if stored.size < right.size else "extra bytes at the end"
    if stored.size != right.size or not bits:
        return None
    if bits == 1:
        return ONE_BIT_CHANGED
    if all_zero:
        return "bytes overwritten with zeros"
    return None if beyond_header else "the header was overwritten"


_MOST_PROPERTIES = 2048  # bytes of properties of which every bit is tried


def may_record_tags_have_changed(store: Store, physical_offset: int, tags_code: int) -> bool:
    """Return whether one flipped bit, or zeros, in a record explain why a unit has *tags_code*."""
    record = find_record(store, physical_offset)
    if record is None:
        return True
    if has_right_property_crc(record):
        return False
    raw = record.properties_raw
    if b"\0" in raw or len(raw) > _MOST_PROPERTIES or not -(1 << 31) <= tags_code < 1 << 31:
        return True
    changed = (raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in range(8))
    tags = (parse_properties(one, PropertyParser.SCAN).get(TAGS, "") for one in changed)
    return any(java_hash(one) == tags_code for one in tags)
