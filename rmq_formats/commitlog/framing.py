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
    view = memoryview(buffer)
    if view.nbytes < BLANK.size:
        return Framing.PLAIN
    first, second = map(int, BLANK.unpack(view))
    plain = second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
    # An erased page is all ones, like this magic, but an end mark also states a size.
    entries = first == DLEDGER_MAGIC or (first == DLEDGER_END_MAGIC and second > 0)
    return Framing.DLEDGER if entries and not plain else Framing.PLAIN


def find_framing(read: Read, size: int, base_offset: int) -> Framing:
    """
    Return the framing of a segment: by its first bytes or, if these are damaged, by the first valid record.

    A block that cannot be read, or was never written, says nothing.
    """
    start = 0
    try:
        head = bytes(read(0, DLEDGER_ENTRY.size))
        if len(head) < BLANK.size or _is_proper(head, base_offset) or not any(read(0, 2 * DISK_BLOCK_SIZE)):
            return detect_framing(head)
    except OSError as error:
        if not is_disk_error(error):
            raise
        start = DISK_BLOCK_SIZE
    try:
        return _proven_framing(read, min(size, _PROBED), base_offset, start)
    except OSError as error:
        if not is_disk_error(error):
            raise
        return Framing.PLAIN


def _proven_framing(read: Read, size: int, base_offset: int, start: int) -> Framing:
    plain, entries = (SegmentBytes(read, size, base_offset, framing) for framing in Framing)
    if entries.find_record(start) is None:
        return Framing.PLAIN
    record = plain.find_record(start)  # inside its entry, unless a body holds an entry
    return Framing.PLAIN if record is not None and _is_followed(plain, record) else Framing.DLEDGER


def _is_followed(log: SegmentBytes, position: int) -> bool:
    """Return whether another record, or the end of the file, follows the record at *position*."""
    after = position + log.framing.header_size + log.record_at(position).total_size
    try:
        return log.stated_blank_size(after) is not None or log.record_at(after).total_size > 0
    except FormatError:
        return False


def _is_proper(head: bytes, base_offset: int) -> bool:
    """Return whether a segment begins with a record, an end, or an entry that states its own offset."""
    first, second = map(int, BLANK.unpack(head))
    if second in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or (first == DLEDGER_END_MAGIC and second > 0):
        return True
    is_whole = first == DLEDGER_MAGIC and len(head) == DLEDGER_ENTRY.size
    return is_whole and int(DLEDGER_ENTRY.unpack(head)[_POS]) == base_offset
