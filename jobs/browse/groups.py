"""The consumer groups of a page, for stores and lakes."""

from jobs.browse.rendering import Cell
from jobs.query.lag import QueueLag, list_queue_lags
from jobs.query.source import Source

LAG_COLUMNS = ("consumer group", "topic", "queues", "lag", "largest lag of a queue")


def list_group_rows(source: Source) -> list[tuple[Cell, ...]]:
    """Return the lag of each group in each topic; a lag is empty if the lake has no message of a queue."""
    queues: dict[tuple[str, str], list[QueueLag]] = {}
    for queue in list_queue_lags(source):
        queues.setdefault((queue.consumer_group, queue.topic), []).append(queue)
    rows: list[tuple[Cell, ...]] = []
    for (group, topic), own in sorted(queues.items()):
        lags = [queue.lag for queue in own if queue.lag is not None]
        known = (sum(lags), max(lags, default=0)) if len(lags) == len(own) else (None, None)
        rows.append((group, topic, len(own), *known))
    return rows
