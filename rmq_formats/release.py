"""
The differences between RocketMQ releases that change bytes, in one table.

The fields of `Release` are the behaviors, each declared with the releases that changed it; `SWITCHES` has the same by
name. `docs/internals/formats.md` prints the same table. A log that a newer release continued has `Rules`: pairs of an
offset and the release that wrote the log after it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, unique
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Self

from rmq_formats.errors import CorruptData, UnsupportedFormat
from rmq_formats.properties import PropertyParser

_VERSION = re.compile(r"[vV]?(\d{1,4})[._](\d{1,4})[._](\d{1,4})(?:[-_](\w+))?")
RUST_PROJECT, _RUST_NAME = "rocketmq-rust", "Rust 1.0.0"
_STAGES = {"PREVIEW": -3, "ALPHA": -2, "BETA": -1}  # 5.0.0 had three previews


class Version(NamedTuple):
    """A version, ordered by age; `stage` is negative for a preview of the version."""

    major: int
    minor: int
    patch: int
    stage: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `4.0.0-incubating`, `5.3.3`, `V5_3_3`, `5.0.0-ALPHA`."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise UnsupportedFormat(f"{text!r} is not a RocketMQ release such as 5.3.3")
        major, minor, patch, stage = match.groups()
        return cls(int(major), int(minor), int(patch), _STAGES.get((stage or "").upper(), 0))

    def __str__(self) -> str:
        stage = next((f"-{name}" for name, rank in _STAGES.items() if rank == self.stage), "")
        return f"{self.major}.{self.minor}.{self.patch}{stage}"


@unique
class HashSlotCount(Enum):
    """When an index file's `hash_slot_count` grows."""

    EVERY_PUT = "every put"
    EMPTY_SLOT = "empty slot"


@unique
class UnitSkip(Enum):
    """Which records a ConsumeQueue treats as already written."""

    OFFSET_NOT_BEYOND_LAST = "offset <= last offset"
    END_NOT_BEYOND_LAST_END = "end <= last end"


@dataclass(frozen=True, slots=True)
class Release:
    """One release's behavior. The metadata of a field has its values by the first release; "" is the oldest."""

    version: Version
    # the record
    property_parser: PropertyParser = field(
        metadata={
            "": PropertyParser.SPLIT,
            "4.9.1": PropertyParser.SCAN,
            "5.0.0-PREVIEW": PropertyParser.SPLIT,
            "5.0.0-ALPHA": PropertyParser.SCAN,
        }
    )
    trailing_separator: bool = field(
        metadata={"": True, "4.9.1": False, "5.0.0-PREVIEW": True, "5.0.0-ALPHA": False, "5.2.0": True}
    )
    adds_cluster: bool = field(metadata={"": False, "4.6.0": True, "4.7.0": False, "4.7.1": True})
    adds_region_and_trace: bool = field(metadata={"": False, "5.0.0": True})
    ipv6_hosts: bool = field(metadata={"": False, "4.6.0": True})
    two_byte_topic_length: bool = field(metadata={"": False, "5.1.0": True})
    property_crc: bool = field(metadata={"": False, "5.2.0": True})
    leaves_crc_field_unused: bool = field(metadata={"": False, "5.2.0": True, "5.3.1": False})
    stale_blank: bool = field(metadata={"": True, "4.9.1": False, "5.0.0-PREVIEW": True, "5.0.0-ALPHA": False})
    # transactions, delays, batches
    half_message_in_real_topic: bool = field(metadata={"": True, "4.3.0": False})
    commit_keeps_real_topic: bool = field(metadata={"": False, "4.3.0": True, "5.4.0": False})
    op_message_lists_offsets: bool = field(metadata={"": False, "5.1.0": True})
    pull_out_of_range_writes: bool = field(metadata={"": True, "5.0.0-PREVIEW": False})
    inner_batches: bool = field(metadata={"": False, "5.0.0-ALPHA": True})
    timer_messages: bool = field(metadata={"": False, "5.0.0": True})
    # the ConsumeQueue
    unit_skip: UnitSkip = field(
        metadata={"": UnitSkip.OFFSET_NOT_BEYOND_LAST, "4.5.1": UnitSkip.END_NOT_BEYOND_LAST_END}
    )
    drops_low_queue_offset: bool = field(metadata={"": False, "4.2.0": True})
    multi_dispatch: bool = field(metadata={"": False, "4.9.3": True})
    multi_dispatch_excludes_topics: bool = field(metadata={"": False, "5.1.1": True})
    # the IndexFile
    hash_slot_count: HashSlotCount = field(metadata={"": HashSlotCount.EVERY_PUT, "4.7.1": HashSlotCount.EMPTY_SLOT})
    indexes_tags: bool = field(metadata={"": False, "5.4.0": True})
    empty_index_count: int = field(metadata={"": 0, "5.0.0": 1})
    # the store
    expired_queue_begins_at_end: bool = field(metadata={"": False, "5.0.0": True})
    rocksdb_directory_always: bool = field(metadata={"": False, "5.4.0": True})
    lock_file: bool = field(metadata={"": False, "4.2.0": True})
    abort_has_process_id: bool = field(metadata={"": False, "5.0.0": True})
    checkpoint_fields: int = field(metadata={"": 3, "5.0.0": 4, "5.1.1": 5, "5.5.0": 6})
    compaction: bool = field(metadata={"": False, "5.1.0": True})
    # the start of a broker
    start_refuses_other_length: bool = field(metadata={"": False, "4.5.0": True, "4.9.2": False, "4.9.3": True})
    start_deletes_empty_last_file: bool = field(metadata={"": False, "5.1.3": True})
    start_checks_bytes_left: bool = field(metadata={"": False, "5.3.2": True})
    clean_start_asks_queues: bool = field(metadata={"": False, "5.3.2": True})
    start_checks_first_record: bool = field(metadata={"": False, "5.4.0": True})
    start_asks_dispatched_offset: bool = field(metadata={"": False, "5.5.0": True})
    # mqadmin and the client
    by_key_matches_topic: bool = field(metadata={"": False, "4.9.3": True})
    by_key_exempts_lmq: bool = field(metadata={"": False, "5.3.1": True})
    by_unique_key_keeps_all: bool = field(metadata={"": False, "5.1.3": True})
    by_id_takes_unique_key: bool = field(metadata={"": False, "5.3.0": True})
    by_id_matches_topic: bool = field(metadata={"": False, "5.5.1": True})
    prints_index_key: bool = field(metadata={"": False, "5.4.0": True})
    prints_offset_id_twice: bool = field(metadata={"": True, "4.6.0": False})
    prints_compressed_flag: bool = field(metadata={"": True, "5.3.2": False})
    property_map_buckets: int = field(metadata={"": 16, "5.1.0": 128})
    prints_queue_units: bool = field(metadata={"": False, "4.6.0": True})
    prints_message_in_braces: bool = field(metadata={"": False, "4.3.0": True})
    prints_broker_of_message: bool = field(metadata={"": False, "4.7.0": True})
    print_msg_ends_lines: bool = field(metadata={"": False, "4.9.4": True})
    prints_put_tps: bool = field(metadata={"": False, "5.3.2": True})
    half_topic_has_route: bool = field(metadata={"": False, "5.0.0": True})
    schedule_topic_has_route: bool = field(metadata={"": False, "4.7.1": True})
    unique_key_window_is_recent: bool = field(metadata={"": False, "5.4.0": True})
    time_search_takes_nearest: bool = field(metadata={"": True, "5.1.1": False})
    # Another implementation, which differs from this release of the Java broker in its index; empty for that broker.
    implementation: str = ""

    @classmethod
    def from_version(cls, version: str) -> "Release":
        """Return the release named by *version*; unpublished numbers behave like the newest one before them."""
        if version.strip() in {_RUST_NAME, RUST_PROJECT}:
            return RUST
        return _release(Version.parse(version))

    def __str__(self) -> str:
        return self.implementation or str(self.version)


SWITCHES: Mapping[str, Mapping[str, int | Enum]] = {one.name: one.metadata for one in fields(Release) if one.metadata}


@cache
def _release(version: Version) -> Release:
    return Release(version, **{name: _value_at(steps, version) for name, steps in SWITCHES.items()})


_step = cache(Version.parse)  # every release has the same few steps


def _value_at(steps: Mapping[str, int | Enum], version: Version) -> Any:  # noqa: ANN401 - each switch has its own type
    value = steps[""]
    for since, changed in steps.items():
        if since and _step(since) <= version:
            value = changed
    return value


# Line → its last patch. A store may also come from a custom build, or from a preview.
_LINES = {
    "4.0": 0, "4.1": 0, "4.2": 0, "4.3": 2, "4.4": 0, "4.5": 2, "4.6": 1, "4.7": 1, "4.8": 0, "4.9": 8,
    "5.0": 0, "5.1": 4, "5.2": 0, "5.3": 3, "5.4": 0, "5.5": 1,
}  # fmt: skip
PUBLISHED = tuple(Release.from_version(f"{line}.{patch}") for line, last in _LINES.items() for patch in range(last + 1))
OLDEST, *_, NEWEST = PUBLISHED
# The broker of rocketmq-rust writes the log and the queues of the newest Java release. Its index has the hash of
# `topic#U#key` for a unique key (index_service.rs), so that Java's brokers do not find its messages by this key.
RUST = replace(NEWEST, implementation=_RUST_NAME)
EVERY_RELEASE = (RUST, *PUBLISHED)


Rules = tuple[tuple[int, Release], ...]  # ascending physical offsets, and the release that wrote the log after each


def make_rules(*rules: tuple[int, Release]) -> Rules:
    """Return *rules*, after checking their number and order; the first one also applies before its offset."""
    if not rules or any(later <= earlier for (earlier, _), (later, _) in pairwise(rules)):
        shown = [(since, str(release)) for since, release in rules]
        raise CorruptData(f"rules must be in ascending order of offset: {shown}")
    return rules


def release_at(rules: Sequence[tuple[int, Release]], physical_offset: int) -> Release:
    """Return the release that wrote the message at *physical_offset*."""
    return next((release for since, release in reversed(rules) if since <= physical_offset), rules[0][1])
