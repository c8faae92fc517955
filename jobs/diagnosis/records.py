"""Candidates for the original of a record in which one bit changed, or whose end became zeros: tried first."""

from collections.abc import Iterator

from jobs.store.record_places import find_record
from jobs.store.store import Store
from rmq_formats.commitlog.record import has_right_property_crc
from rmq_formats.hashing import java_hash
from rmq_formats.properties import TAGS, PropertyParser, parse_properties

_MOST_PROPERTIES = 2048  # bytes of properties of which every bit is tried


def may_be_other_tags(store: Store, physical_offset: int, tags_code: int) -> bool:
    """Return whether one changed bit, or zeros, in a record explain why a unit has *tags_code*."""
    record = find_record(store, physical_offset)
    if record is None:
        return True
    if has_right_property_crc(record):
        return False
    raw = record.properties_raw
    if b"\0" in raw or len(raw) > _MOST_PROPERTIES or not -(1 << 31) <= tags_code < 1 << 31:
        return True
    return any(_hash_of_tags(changed) == tags_code for changed in _one_bit_changed(raw))


def _hash_of_tags(raw: bytes) -> int:
    tags = parse_properties(raw, PropertyParser.SCAN).get(TAGS, "")
    return java_hash(tags)


def _one_bit_changed(raw: bytes) -> Iterator[bytes]:
    for at in range(len(raw)):
        for bit in range(8):
            yield raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
