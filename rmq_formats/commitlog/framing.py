"""
The header before each record of a segment: none, or an entry header of DLedger.

The first bytes of a segment show which. If they are damaged or lost, the first valid record shows it: in a DLedger log
it is followed by an entry header, in a plain log by another record.
"""

from rmq_formats.commitlog.layout import (
    BLANK,
    DLEDGER_END_MAGIC,
    DLEDGER_ENTRY,
    DLEDGER_MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from rmq_formats.commitlog.segment import Framing, SegmentBytes
from rmq_formats.errors import FormatError, is_disk_error
from rmq_formats.layout import Buffer, Read

DISK_BLOCK_SIZE = 4096  # bytes that a file system loses if a disk loses a sector

_PROBED = 16 << 20  # bytes in which a valid record must be found
_POS = DLEDGER_ENTRY.index("pos")


def detect_framing(buffer: Buffer) -> Framing:
    """Return the framing of a segment's records according to its first bytes; plain if these do not show it."""
    return _framing_of_head(bytes(buffer[: DLEDGER_ENTRY.size]), None) or Framing.PLAIN


def _framing_of_head(head: bytes, base_offset: int | None) -> Framing | None:
    """Return the framing if a segment begins with a record, an end, or an entry (that states *base_offset*)."""
    if len(head) < BLANK.size:
        return None
    first, second = map(int, BLANK.unpack(head))
    if second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return Framing.PLAIN
    # An erased page is all ones, like this magic, but an end mark also states a size.
    is_entry = first == DLEDGER_END_MAGIC and second > 0
    if first == DLEDGER_MAGIC:
        is_entry = base_offset is None or (
            len(head) == DLEDGER_ENTRY.size and int(DLEDGER_ENTRY.unpack(head)[_POS]) == base_offset
        )
    return Framing.DLEDGER if is_entry else None


def find_framing(read: Read, size: int, base_offset: int) -> Framing:
    """
    Return the framing of a segment: by its first bytes or, if these are damaged, by the first valid record.

    A block that cannot be read, or was never written, says nothing.
    """
    start = 0
    try:
        head = bytes(read(0, DLEDGER_ENTRY.size))
        known = _framing_of_head(head, base_offset)
        if known is not None or len(head) < BLANK.size or not any(read(0, 2 * DISK_BLOCK_SIZE)):
            return known or Framing.PLAIN
    except OSError as error:
        if not is_disk_error(error):
            raise
        start = DISK_BLOCK_SIZE
    try:
        return _find_proven_framing(read, min(size, _PROBED), base_offset, start)
    except OSError as error:
        if not is_disk_error(error):
            raise
        return Framing.PLAIN


def _find_proven_framing(read: Read, size: int, base_offset: int, start: int) -> Framing:
    """Return the framing of the first valid record at or after *start*; `PLAIN` if there is none."""
    plain, entries = (SegmentBytes(read, size, base_offset, framing) for framing in Framing)
    if entries.find_record(start) is None:
        return Framing.PLAIN
    record = plain.find_record(start)  # in the entry that was found, unless a body contains that entry
    return Framing.PLAIN if record is not None and _is_followed(plain, record) else Framing.DLEDGER


def _is_followed(log: SegmentBytes, position: int) -> bool:
    """Return whether another record, or the end of the file, follows the record at *position*."""
    after = position + log.framing.header_size + log.record_at(position).total_size
    try:
        return log.stated_blank_size(after) is not None or log.record_at(after).total_size > 0
    except FormatError:
        return False
