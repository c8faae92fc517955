"""
Leftover bytes of the log: from a master that another replica has replaced, or from before a recovery.

A returning replica truncates its log where the new master's epoch begins: the segment remains, the write position moves
back, and later segments are deleted. Old records after the new master's records remain, complete and at the offsets
that they state, until they are overwritten. So in a segment in which an epoch begins, only the chain of records from
the beginning of the epoch is part of the log.

If, in the segment to which a broker writes, a record after damage has an earlier store time, then either it is left
from before the log was truncated, or the broker's clock was set back. Recovery may leave units of the records that it
truncates. But no queue points to the offset at which the remaining records end, because no record at this offset was
ever dispatched.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from jobs.store.queue_files import StoredQueue, queues_in_files
from jobs.store.record_places import segment_bytes
from jobs.store.store import Store, StoredFile, relist_store
from rmq_formats.broker_conf import EPOCH_FILE, Epoch, decode_epochs
from rmq_formats.commitlog.record import MessageRecord, has_right_body_crc
from rmq_formats.commitlog.segment import STALE_REASON, UNDECIDED_REASON, TailEvidence, is_fully_written
from rmq_formats.consumequeue.dispatch import BatchUnit, Unit
from rmq_formats.errors import FormatError, NotAStore, is_lost_file_error
from rmq_formats.properties import may_end_in_complete_value
from rmq_formats.store import FileKind

_LARGEST = 1 << 20
_T = TypeVar("_T")


def read_epochs(store: Store) -> tuple[Epoch, ...]:
    """Return the epochs of a store, oldest first; none without a readable list of them."""
    file = store.other_file(EPOCH_FILE)
    if file is not None and file.size <= _LARGEST:
        with suppress(FormatError):  # a broker would not load this list either
            return decode_epochs(store.read(file, 0, file.size))
    return ()


def has_damaged_epochs(store: Store) -> bool:
    """Return whether a store has a list of epochs that a broker would not load."""
    file = store.other_file(EPOCH_FILE)
    return file is not None and 0 < file.size <= _LARGEST and is_damaged_epoch_file(store, file)


def is_damaged_epoch_file(store: Store, file: StoredFile) -> bool:
    """Return whether a file is not a list of epochs."""
    try:
        decode_epochs(store.read(file, 0, file.size))
    except FormatError:
        return True
    return False


def takeover_offsets(store: Store) -> tuple[int, ...]:
    """Return the offsets at which all epochs but the first begin: a returning replica truncated its log there."""
    return tuple(epoch.start_offset for epoch in read_epochs(store)[1:])


class Promotion(NamedTuple):
    """The start of the new master's epoch, the end of the log since then, and the old records after that."""

    start: int
    log_end: int
    leftover_offsets: frozenset[int] = frozenset()  # the offsets at which leftover records begin
    leftovers_end: int = 0  # the end of the last leftover record
    segment_end: int = 0

    def has_truncated(self, offset: int | None) -> bool:
        """Return whether a record at *offset* was truncated: it is left over, or in a deleted segment."""
        if offset is None or not self.leftover_offsets:
            return False
        return offset in self.leftover_offsets or offset >= self.segment_end


def find_last_promotion(store: Store, log_end: int) -> Promotion | None:
    """Return the last promotion of the log; None outside of controller mode, or without one."""
    starts = [start for start in takeover_offsets(store) if store.start_offset <= start <= log_end]
    if not starts:
        return None
    promotion = Promotion(max(starts), log_end)
    segment = store.segment_at(log_end)
    if segment is None:
        return promotion
    with store.open(segment) as reader:
        log = segment_bytes(segment, reader)
        first = log.find_record(log_end - segment.base_offset)
        if first is None:
            return promotion
        places = list(log.walk_record_bounds(first))
    return promotion._replace(
        leftover_offsets=frozenset(start for start, _ in places),
        leftovers_end=max((end for _, end in places), default=log_end),
        segment_end=segment.base_offset + segment.size,
    )


def tail_evidence(store: Store) -> TailEvidence:
    """Return functions that check a store's last records against its other files, listed again by each call."""
    again = partial(relist_store, Store(store.root, storage=store.storage, commitlog=store.commitlog))
    return TailEvidence(
        partial(_why_left_over, again),
        partial(_is_complete, again),
        partial(_is_log_end, again),
    )


def _ask_again(list_again: Callable[[], Store], ask: Callable[[Store], _T], otherwise: _T) -> _T:
    """Return the answer of a store as it is now; *otherwise* if it, or one of its files, is deleted meanwhile."""
    try:
        return ask(list_again())
    except NotAStore:
        return otherwise
    except OSError as error:
        if not is_lost_file_error(error):
            raise
        return otherwise


def _why_left_over(list_again: Callable[[], Store], gap: int, record: MessageRecord) -> str:
    """Return why *record* is not part of the log; empty if units point to it and to the record at the offset *gap*."""

    def ask(store: Store) -> str:
        if takeover_offsets(store):  # a promotion leaves units of removed records
            return STALE_REASON
        queues = queues_in_files(store)
        own = (queue for queue in queues if queue.name[1:] == (record.topic, record.queue_id))
        if any(_has_unit(one, record.physical_offset) for one in own) and any(_has_unit(one, gap) for one in queues):
            return ""
        # A half or a rollback message has no unit; queues of a closed store do not point after the end of the log.
        ends = (_unit_from(queue, record.physical_offset) for queue in queues if store.has_clean_shutdown)
        is_undecided = any(unit is not None and unit.physical_offset < store.end_offset for unit in ends)
        return UNDECIDED_REASON if is_undecided else STALE_REASON

    return _ask_again(list_again, ask, STALE_REASON)


def _is_complete(list_again: Callable[[], Store], record: MessageRecord) -> bool:
    """
    Return whether *record*, which may be the newest one of a log, is complete.

    All records of a closed store are: one with a wrong body was changed later. Without a checkpoint, only a part of the
    store may have been copied while its broker was running, so zeros at the end of a record may be missing bytes.
    """
    may_end_in_zeros = has_right_body_crc(record) and may_end_in_complete_value(record.properties_raw)

    def ask(store: Store) -> bool:
        if store.has_clean_shutdown:
            has_end = not (record.properties_raw or record.topic_raw).endswith(b"\0")
            return has_end or may_end_in_zeros or bool(store.other_files_of_kind(FileKind.CHECKPOINT))
        name = record.topic, record.queue_id
        return may_end_in_zeros and any(
            _has_unit(queue, record.physical_offset) for queue in queues_in_files(store) if queue.name[1:] == name
        )

    return is_fully_written(record) or _ask_again(list_again, ask, otherwise=False)


def _is_log_end(list_again: Callable[[], Store], offset: int) -> bool:
    """
    Return whether the record before *offset* was the last one to be dispatched: no unit points to *offset* or after it.

    After a blank, the broker writes a record into the next file. If this file does not exist, and nothing was ever
    dispatched from the bytes before the blank, then recovery has truncated the log at *offset* and deleted the file.
    """

    def ask(store: Store) -> bool:
        queues = list(queues_in_files(store))
        is_dispatched = any(_unit_from(queue, offset) is not None for queue in queues)
        return not is_dispatched and any(_ends_before(queue, offset) for queue in queues)

    return _ask_again(list_again, ask, otherwise=False)


def _ends_before(queue: StoredQueue, offset: int) -> bool:
    """Return whether the last unit of a queue is that of the record that ends at *offset*."""
    unit = queue.read_last_unit(queue.find_written_end())
    return unit is not None and unit.physical_offset + unit.size == offset


def _unit_from(queue: StoredQueue, physical_offset: int) -> Unit | BatchUnit | None:
    end = queue.find_written_end()
    return queue.read_unit(number) if (number := queue.first_unit_pointing_from(physical_offset, end)) < end else None


def _has_unit(queue: StoredQueue, physical_offset: int) -> bool:
    unit = _unit_from(queue, physical_offset)
    return unit is not None and unit.physical_offset == physical_offset
