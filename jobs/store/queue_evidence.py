"""Whether queues prove that the log goes on after damage, where the store time of the next record is earlier."""

from dataclasses import dataclass
from typing import Self

from jobs.storage import AnyStorage
from jobs.store.epochs import takeovers
from jobs.store.queue_files import StoredQueue, queues_of_files
from jobs.store.store import Store, list_again
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.errors import NotAStore, is_lost


@dataclass(frozen=True, slots=True)
class QueueEvidence:
    """
    The queue files of a store, which are listed only when they are needed.

    In the segment that a broker writes to, an earlier record after damage is either left over from before the log was
    cut back, or the broker's clock was set back. A recovery may leave units of the records that it cuts. But no queue
    leads to the offset at which the records end then: nothing was ever dispatched from there.
    """

    root: str
    commitlog: tuple[str, ...]
    storage: AnyStorage

    @classmethod
    def of(cls, store: Store) -> Self:
        """Return the evidence of a store."""
        return cls(store.root, store.commitlog, store.storage)

    def leads_to(self, gap: int, record: MessageRecord) -> bool:
        """Return whether a unit leads to *record*, and one to the record that must have been at the offset *gap*."""
        try:
            store = list_again(Store(self.root, storage=self.storage, commitlog=self.commitlog))
            if takeovers(store):  # a promotion leaves units of the records that it removes
                return False
            queues = queues_of_files(store.queue_files, store.storage)
            own = (queue for queue in queues if queue.name[1:] == (record.topic, record.queue_id))
            return any(_has_unit(queue, record.physical_offset) for queue in own) and any(
                _has_unit(queue, gap) for queue in queues
            )
        except NotAStore:  # it was deleted meanwhile
            return False
        except OSError as error:
            if not is_lost(error):
                raise
            return False


def _has_unit(queue: StoredQueue, physical_offset: int) -> bool:
    end = queue.written_end()
    unit = queue.unit(number) if (number := queue.first_from(physical_offset, end)) < end else None
    return unit is not None and unit.physical_offset == physical_offset
