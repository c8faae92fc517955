"""
Which bytes of the log are left over from a master that another replica has replaced.

A replica that returns cuts its log where the new master's epoch begins: the segment stays, the write position moves
back, and later segments are deleted. After the new master's records old ones remain, complete and at the offset that
they state, until they are written over. So in a segment in which an epoch begins, only what the chain of records from
there leads to is part of the log.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from jobs.store.record_places import record_places
from jobs.store.store import Segment, Store, StoredFile
from rmq_formats.commitlog.segment import SegmentBytes
from rmq_formats.epochs import EPOCH_FILE, Epoch, decode_epochs
from rmq_formats.errors import FormatError

_LARGEST = 1 << 20


def read_epochs(store: Store, read: Callable[[StoredFile], bytes]) -> tuple[Epoch, ...]:
    """Return the epochs of a store, oldest first; none where there is no list of them, or none that can be read."""
    for file in store.other_files:
        if file.about.path == EPOCH_FILE and file.size <= _LARGEST:
            with suppress(FormatError):
                return decode_epochs(read(file))
    return ()


class Leftovers:
    """Answers, for a store with *epochs*, which records are part of its log; *segment_bytes* opens a segment."""

    def __init__(self, epochs: Sequence[Epoch], segment_bytes: Callable[[Segment], SegmentBytes]) -> None:
        """Read nothing yet."""
        self._takeovers = sorted(epoch.start_offset for epoch in epochs[1:])
        self._segment_bytes = segment_bytes
        self._chains: dict[int, frozenset[int]] = {}

    def takeover(self, segment: Segment, physical_offset: int) -> int | None:
        """Return where the newest epoch before *physical_offset* begins, if it begins in this segment."""
        starts = (start for start in self._takeovers if segment.base_offset <= start <= physical_offset)
        return max(starts, default=None)

    def has(self, segment: Segment, physical_offset: int) -> bool:
        """Return whether what begins at *physical_offset* is left over: the chain of records does not lead there."""
        start = self.takeover(segment, physical_offset)
        if start is None:
            return False
        if start not in self._chains:
            places = record_places(self._segment_bytes(segment), start - segment.base_offset)
            self._chains[start] = frozenset(begin for begin, _ in places)
        return physical_offset not in self._chains[start]
