"""
Which keys of the row each index file holds: arithmetic, and nothing else.

An uninterrupted broker cuts the row into files of the same number of keys. Where some of its files survive, each gap is
cut from the end of the file before it, and must come out at the beginning of the file after it; if it does not, a
restart lies in between, and the keys left over become a partial file.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum, unique
from itertools import pairwise
from typing import NamedTuple

from jobs.products.index.key_row import KeyPlace


@unique
class Kind(StrEnum):
    """The kind of a file to be built."""

    FULL = "full"
    OPEN = "open"  # the newest file: a broker goes on in it
    SUPPLEMENT = "supplement"  # keys that no uninterrupted broker would have in a file of their own


class Planned(NamedTuple):
    """One file to be built, from keys number *start* to *end*."""

    start: int
    end: int
    kind: Kind
    after: int = -1  # number of the survivor that it follows; -1: it comes before all
    doubt: str = ""  # why its bytes are not proven to be those of the lost file


class Anchor(NamedTuple):
    """A survivor's place in the row; `start` is below 0 where the log begins inside of it."""

    start: int
    end: int
    is_full: bool
    begins: KeyPlace | None = None  # the keys of the message that it begins with


def is_covered(start: int, end: int, files: Iterable[tuple[int, int]]) -> bool:
    """Return whether each key from number *start* to *end* is in a file; *files* are from and to of each."""
    for first, last in sorted(files):
        start = max(start, last) if first <= start else start
    return start >= end


class RowShape(NamedTuple):
    """The row as a whole."""

    keys: int
    ends_without_keys: bool  # the newest message has none
    is_whole: bool  # it begins where the broker began


RESTART = "a restart may have cut the file elsewhere"
LOST = "the log has lost messages of this file"
HISTORY = "the log begins inside this file's history"
NOT_KNOWN_BEFORE = "the end of the file before it is not known, so its first entry's seconds are assumed"


def plan_files(log: RowShape, capacity: int, survivors: Sequence[Anchor] = ()) -> list[Planned]:
    """Return the files that are missing between, before and after *survivors*, in order; without any, all files."""
    if not survivors:
        return list(_cut(0, log, capacity, -1))
    planned = list(_before(survivors[0], log, capacity))
    for number, (left, right) in enumerate(pairwise(survivors)):
        planned += _between(left.end, right, capacity, number, "" if left.is_full else RESTART)
    last = survivors[-1]
    if last.is_full:
        planned += _cut(last.end, log, capacity, len(survivors) - 1)
    held = [(one.start, one.end) for one in survivors]
    # With another store's log, or after lost messages, a survivor may begin after the last key of the row.
    return [one for one in planned if one.end <= log.keys and not is_covered(one.start, one.end, held)]


def _cut(start: int, log: RowShape, capacity: int, after: int) -> Iterator[Planned]:
    while log.keys - start >= capacity:
        yield Planned(start, start + capacity, Kind.FULL, after)
        start += capacity
    # A message asks for a file before anyone looks at its keys; it matters only where the last file is full.
    if start < log.keys or (start == log.keys and log.ends_without_keys):
        yield Planned(start, log.keys, Kind.OPEN, after)


def _before(first: Anchor, log: RowShape, capacity: int) -> Iterator[Planned]:
    """Return the files before the first survivor."""
    if first.start <= 0:
        return
    if log.is_whole:
        yield from _between(0, first, capacity, -1, "")
        return
    start = first.start % capacity
    if start:
        yield Planned(0, start, Kind.SUPPLEMENT, -1, HISTORY)
    for begin in range(start, first.start, capacity):
        yield Planned(begin, begin + capacity, Kind.FULL, -1, "" if begin else NOT_KNOWN_BEFORE)


def _between(start: int, right: Anchor, capacity: int, after: int, doubt: str) -> Iterator[Planned]:
    end = right.start
    left_over = (end - start) % capacity
    if left_over and not doubt and right.begins and right.begins.first == end:
        # After a crash the broker indexes its last message once more: the lost file holds the first keys of that one.
        repeated = capacity - left_over
        if repeated <= right.begins.keys and start < end:
            end, left_over, doubt = end + repeated, 0, RESTART
    while end - start >= capacity:
        yield Planned(start, start + capacity, Kind.FULL, after, doubt)
        start += capacity
    if start < end:
        yield Planned(start, end, Kind.SUPPLEMENT, after, RESTART)
