"""The newest record that queues of a closed store lead to after the end of its log: by all units and all records."""

from jobs.products.queues.differences import DifferenceKind
from jobs.products.queues.join import JoinResult
from jobs.store.log_ends import FARTHEST

_OF_NO_RECORD = frozenset({DifferenceKind.DANGLING, DifferenceKind.FOREIGN, DifferenceKind.CORRUPT})


def ahead_of_log(joined: JoinResult) -> int | None:
    """Return the newest offset that last units of queues lead to after the log's end; None without any."""
    starts = {queue.name: queue.start for queue in joined.queues}
    behind = [
        difference
        for difference in joined.differences
        if difference.kind is DifferenceKind.BEHIND_LOG
        and difference.log_offset is not None
        and difference.position + difference.times >= joined.ends[difference.queue]
        and difference.log_offset < joined.log_end + FARTHEST
    ]
    # A queue of which nothing is in this log, or whose last unit in it leads to no record, may be another log's. Where
    # no queue has anything in it, the log is gone; a unit that leads to the log's very end is of this log.
    whole = {one.queue for one in behind if one.position <= starts[one.queue]}
    written = {name for name, start in starts.items() if joined.ends[name] > start}
    bad = {(one.queue, one.position + one.times) for one in joined.differences if one.kind in _OF_NO_RECORD}
    if not whole >= written:
        behind = [
            one
            for one in behind
            if one.log_offset == joined.log_end or (one.queue not in whole and (one.queue, one.position) not in bad)
        ]
    return max((one.log_offset for one in behind if one.log_offset is not None), default=None)
