"""
Predicts what a broker does to a store at its start: refuse it, or read the end of the log and truncate it.

A refusal deletes nothing. A start reads the log from the beginning of one segment. It takes the first invalid record
for the end of the log and deletes everything after it, including complete messages. A record is valid if its magic
number, its lengths and its body's CRC are right; the physical offset in the record is not checked. Releases differ in
the segment with which they begin (`find_start_segment`) and in the files that they refuse.
`tests/oracle/test_broker_starts.py` compares the predictions with real brokers.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rmq_formats.commitlog.layout import (
    BLANK,
    HOST_BITS,
    MAGIC_BLANK,
    MAGIC_V1,
    PROPERTIES_LENGTH,
    RECORD,
    TOPIC_LENGTH,
)
from rmq_formats.layout import Read
from rmq_formats.release import Release
from rmq_formats.store import Checkpoint

_MARGIN_MS = 3000  # subtracted from the checkpoint's times
# Always applies to a queue; applies to the log after a clean stop of a release that does not check queues.
LAST_FILES_READ = 3
_MOST_SEGMENTS = 10  # commitLogRecoverMaxNum, where a release has it
_FIXED = RECORD[HOST_BITS].size  # the longest fixed part
_SYS_FLAG, _BODY_CRC = RECORD[0].offset("sys_flag"), RECORD[0].offset("body_crc")
_PHYSICAL_OFFSET = RECORD[0].index("physical_offset")
_CRC_MASK = 0x7FFFFFFF
_BLOCK = 1 << 20


FirstRecord: TypeAlias = tuple[int, int]  # the physical offset and the store time that a segment's first record states
# Reads the first record of the segment with a base offset, as a release does (None: recovery never begins with it).
ReadFirst: TypeAlias = Callable[[int, Release], FirstRecord | None]


class UnloadableFile(NamedTuple):
    """A file of the log or of a queue with a length or a name that the broker's files do not have."""

    file: str
    size: int
    expected_size: int
    is_last: bool  # whether it is the last file of its log or queue


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """The effects of a start; None for an effect that cannot be known, with the reason in `unknown_reason`."""

    release: str
    starts: bool | None
    unloadable_file: UnloadableFile | None = None
    ignores_from: UnloadableFile | None = None  # releases that do not refuse this file ignore it and all later files
    cuts_at: int | None = None  # the offset, if complete messages follow or a segment is deleted
    deletes_messages: int | None = 0
    deletes_files: tuple[str, ...] = ()
    # The offsets of messages whose keys are lost: a start deletes their index files and reads the log only after them.
    loses_keys: tuple[int, int] | None = None
    unknown_reason: str = ""
    # The worst case of a start whose outcome is unknown: the offset at which the log ends then, and the number of whole
    # messages after it.
    may_cut: tuple[int, int] | None = None
    after_repair: "StartOutcome | None" = None  # the outcome after refused files are repaired, if there are any

    def to_dict(self) -> dict[str, object]:
        """Return the form that scripts read."""
        return {
            "release": self.release,
            "starts": self.starts,
            "refuses": None if self.unloadable_file is None else self.unloadable_file.file,
            "cuts_at": self.cuts_at,
            "deletes_messages": self.deletes_messages,
            "deletes_files": list(self.deletes_files),
            "loses_keys": self.loses_keys and dict(zip(("from_offset", "to_offset"), self.loses_keys, strict=True)),
            "unknown": self.unknown_reason,
        }


def read_message_size(read: Read, position: int, bytes_left: int, release: Release) -> int | None:
    """
    Return the size of the record that a broker reads at *position*; 0 at the end of a file, None without a record.

    *bytes_left* is the number of bytes up to the end of the file.
    """
    head = bytes(read(position, min(bytes_left, _FIXED)))
    if len(head) < BLANK.size:
        return None
    total, magic = map(int, BLANK.unpack(head))
    if magic == MAGIC_BLANK:
        return None if release.start_checks_bytes_left and total > bytes_left else 0
    # Before 5.3.2 a broker first allocates as many bytes as the record states, and may run out of memory.
    if not _is_message(magic, release) or total > bytes_left or len(head) < RECORD[0].size:
        return None
    fixed = RECORD[int.from_bytes(head[_SYS_FLAG : _SYS_FLAG + 4]) & HOST_BITS]
    body_length = max(int.from_bytes(head[fixed.size - 4 : fixed.size], signed=True), 0)
    is_right = _stated_end(read, position, fixed.size + body_length, total) == total and (
        not body_length
        or _crc(read, position + fixed.size, body_length) == int.from_bytes(head[_BODY_CRC : _BODY_CRC + 4])
    )
    return total if is_right else None


def _is_message(magic: int, release: Release) -> bool:
    return magic == MAGIC_V1 or (magic in TOPIC_LENGTH and release.two_byte_topic_length)


def _stated_end(read: Read, position: int, body_end: int, limit: int) -> int | None:
    """Return the size of a record up to the end of its topic and properties; None if it exceeds *limit*."""
    (_, magic), at = map(int, BLANK.unpack(read(position, BLANK.size))), body_end
    for layout in (TOPIC_LENGTH[magic], PROPERTIES_LENGTH):  # a length each, and its unit
        if at + layout.size > limit:
            return None
        (length,) = map(int, layout.unpack(read(position + at, layout.size)))
        if length < 0 and layout is not PROPERTIES_LENGTH:
            return None
        at += layout.size + max(length, 0)
    return at


def _crc(read: Read, position: int, length: int) -> int:
    crc = 0
    for at in range(position, position + length, _BLOCK):
        crc = zlib.crc32(read(at, min(_BLOCK, position + length - at)), crc)
    return crc & _CRC_MASK


def find_walk_end(
    read: Read, position: int, size: int, release: Release, limit: int | None = None
) -> tuple[int | None, int]:
    """
    Return why and where a broker stops reading a segment of *size* bytes from *position* on, at most *limit*.

    The reason is what `read_message_size` returned last; it is the size of a message if the limit was reached.
    """
    advance: int | None = 1
    while advance and (limit is None or position < limit):
        advance = read_message_size(read, position, size - position, release)
        position += advance or 0
    return advance, position


def read_recovery_record(read: Read, size: int, release: Release) -> FirstRecord | None:
    """Return the first record of a segment of *size* bytes; None if startup recovery skips the segment."""
    head = bytes(read(0, min(size, _FIXED)))
    if len(head) < _FIXED:
        return None
    _, magic = map(int, BLANK.unpack(head))
    is_right = not release.start_checks_first_record or read_message_size(read, 0, size, release)
    if not _is_message(magic, release) or not is_right:
        return None
    layout = RECORD[int.from_bytes(head[_SYS_FLAG : _SYS_FLAG + 4]) & HOST_BITS]
    values = layout.unpack(head)
    store_timestamp = int(values[layout.index("store_timestamp")])
    return (int(values[_PHYSICAL_OFFSET]), store_timestamp) if store_timestamp else None


def find_start_segment(  # noqa: PLR0913 - the log, and the inputs of a start
    base_offsets: Sequence[int],
    read_first: ReadFirst,
    release: Release,
    checkpoint: Checkpoint,
    last_unit_record_end: int,
    *,
    has_abort: bool,
) -> int | None:
    """
    Return the base offset of the segment that a start reads first; None for a log without segments.

    Like the broker, this reads the first records of segments from the newest one back, as few as possible. *checkpoint*
    is all zeros if the store has none. *last_unit_record_end* is the greatest end of a record that the last unit of a
    queue names, -1 without units.
    """
    if not base_offsets:
        return None
    if not has_abort and not release.clean_start_asks_queues:
        return base_offsets[-LAST_FILES_READ:][0]
    newest_first = list(reversed(base_offsets))
    if release.start_checks_first_record:
        newest_first = newest_first[:_MOST_SEGMENTS]  # recovery begins with the last segment that it examines
    for base_offset in newest_first:
        if not has_abort and not release.start_checks_first_record:
            may_begin = base_offset <= last_unit_record_end
        else:
            first = read_first(base_offset, release)
            reach = checkpoint if has_abort else last_unit_record_end
            may_begin = first is not None and _may_begin(first, release, reach)
        if may_begin:
            return base_offset
    return newest_first[-1]


def _may_begin(first_record: FirstRecord, release: Release, reach: Checkpoint | int) -> bool:
    """Return whether a start may begin with a segment: one within the *reach* of the checkpoint, or of the queues."""
    physical_offset, store_timestamp = first_record
    if isinstance(reach, int):
        return physical_offset <= reach
    if not release.start_asks_dispatched_offset:
        time = min(reach.physical_timestamp, reach.logic_timestamp) - _MARGIN_MS
        return store_timestamp <= max(time, 0)
    if reach.dispatched_offset > 0:
        return physical_offset <= reach.dispatched_offset
    return store_timestamp <= reach.logic_timestamp


def find_refused_file(unloadable_files: Sequence[UnloadableFile], release: Release) -> UnloadableFile | None:
    """Return the first file for whose length the broker does not start."""
    if not release.start_refuses_other_length:
        return None
    deletes_empty = release.start_deletes_empty_last_file
    return next((one for one in unloadable_files if not (deletes_empty and one.is_last and one.size == 0)), None)
