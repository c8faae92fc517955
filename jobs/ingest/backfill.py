"""
Topics that earlier runs left out, and of which a store still has messages.

A run reads what an exclusion of the topics would leave out, from the start of the store's log to the end of the last
run that left out a topic, and adds the messages that the lake lacks. It also records the topics: repeating the command
reads nothing again.
"""

from collections.abc import Iterable
from dataclasses import replace

from jobs.store.ranges import Range, plan_ranges
from jobs.store.selection import TopicChoices
from jobs.store.store import Store


def list_topics_to_backfill(choices: TopicChoices, topics: Iterable[str], start: int) -> list[str]:
    """Return the topics of which earlier runs left out messages at or after *start* that no run has read since."""

    def is_whole(topic: str) -> bool:
        begin = choices.find_backfill_start(topic)
        return choices.find_whole_start(topic) == 0 or (begin is not None and begin <= start)

    return [topic for topic in dict.fromkeys(topics) if not is_whole(topic)]


def plan_earlier_ranges(store: Store, start: int, end: int, range_size: int) -> list[Range]:
    """
    Return the ranges of the log from *start* to *end*.

    A run has ended at *end*, so every record before it is complete.
    """
    ranges = (one for one in plan_ranges(store, start, range_size) if one.start_offset < end)
    return [replace(one, end=min(one.end, end - one.base_offset), final=True) for one in ranges]
