"""Charts of the messages that a search finds, which are read one by one."""

from array import array
from collections.abc import Sequence
from time import monotonic

from jobs.browse.rendering import Histogram
from jobs.query import MAX_TIME, ListConditions
from jobs.query.source import Source

SECONDS_OF_HISTOGRAM = 1


def count_matches(sources: Sequence[Source], wanted: ListConditions, read_together: int) -> Histogram | None:
    """Count the messages that match, newest first, within a time limit; None if there are none."""
    started, times, note = monotonic(), array("q"), ""
    for number, source in enumerate(sources, 1):
        last_moment = started + SECONDS_OF_HISTOGRAM * number / len(sources)
        for _, message in source.begin_question().read_before(wanted, MAX_TIME, read_together):
            if message is not None and wanted.matches_except_topic(message):
                times.append(message.record.store_timestamp)
            if monotonic() > last_moment:
                note = "only the newest messages are counted; counting more would take too long"
                break
    if not times:
        return None
    start, step, counts, _ = Histogram.empty(min(times), max(times))
    for time in times:
        counts[(time - start) // step] += 1
    return Histogram(start, step, counts, note)
