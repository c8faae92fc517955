"""
Plans which keys each index file of a store has, and its recipe, for rows, for files and for comparisons.

An uninterrupted broker divides the sequence of keys into files with equal numbers of keys. If some of its files
survive, each gap is divided starting at the end of the file before it, and must end exactly at the beginning of the
file after it. If it does not, the broker restarted in between, and the remaining keys become a partial file.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from jobs.products.index.file_builder import BuiltFileKind, IndexRecipe
from jobs.products.index.key_sequence import KeySequence
from jobs.products.index.survivors import Survivor, header_of_file_before
from jobs.storage.model import Storage
from jobs.store.intervals import is_covered
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import Rules

RESTART_DOUBT = "a restart may have split the file at another entry"
LOST_MESSAGES_DOUBT = "the log has lost messages of this file"
FIRST_MESSAGES_DELETED_DOUBT = "the log no longer has the first messages of this file"
UNKNOWN_PREVIOUS_END_DOUBT = "the end of the previous file is unknown, so the time of the first entry is assumed"


class PlannedFile(NamedTuple):
    """A file to build, with keys number *first_key* to *end_key*."""

    first_key: int
    end_key: int
    kind: BuiltFileKind
    doubt: str = ""  # why its bytes are not proven to be those of the lost file
    previous_kept_name: str = ""  # name of the kept file that it follows; empty: it comes before all
    next_kept_name: str = ""  # name of the kept file after it

    def can_have_name(self, name: str) -> bool:
        """Return whether a file with this name is between the same kept files."""
        return self.previous_kept_name < name and (not self.next_kept_name or name < self.next_kept_name)


def _plan_files_before(end: int, capacity: int) -> Iterator[PlannedFile]:
    """Yield the files before the first surviving one, in a log that has lost its beginning."""
    start = end % capacity
    if start:
        yield PlannedFile(0, start, BuiltFileKind.SUPPLEMENT, FIRST_MESSAGES_DELETED_DOUBT)
    for begin in range(start, end, capacity):
        yield PlannedFile(begin, begin + capacity, BuiltFileKind.FULL, "" if begin else UNKNOWN_PREVIOUS_END_DOUBT)


def _plan_files_between(
    start: int, end: int, capacity: int, doubt: str = "", right: Survivor | None = None
) -> Iterator[PlannedFile]:
    """Yield the files up to the one on the *right*, or up to the end of the log."""
    left_over = (end - start) % capacity
    begins = right.first_message_keys if right is not None and left_over and not doubt and start < end else None
    if begins and begins.start == end and capacity - left_over <= len(begins):
        # After a crash the broker indexes its last message once more: the lost file holds the first keys of that one.
        end, doubt = end + capacity - left_over, RESTART_DOUBT
    while end - start >= capacity:
        yield PlannedFile(start, start + capacity, BuiltFileKind.FULL, doubt)
        start += capacity
    if start < end:
        kind, doubt = (BuiltFileKind.SUPPLEMENT, RESTART_DOUBT) if right is not None else (BuiltFileKind.OPEN, "")
        yield PlannedFile(start, end, kind, doubt)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The index files of a log according to the rules of its broker."""

    storage: Storage
    key_sequence: KeySequence
    geometry: Geometry
    rules: Rules
    empty_index_count: int = 1

    def plan_missing_files(self, survivors: Sequence[Survivor] = (), *, completes: bool = False) -> list[PlannedFile]:
        """
        Return the missing files between, before and after *survivors*, in order; all files if there are none.

        *completes*: the last survivor is filled with later keys; otherwise it remains unchanged.
        """
        keys, total, capacity = self.key_sequence, len(self.key_sequence), self.geometry.capacity
        ends = [0, *(one.end_key for one in survivors)]
        counts = [
            capacity,
            *(one.broker_file.header.entry_count for one in survivors),
        ]  # nothing is lost before the log
        if completes:
            ends[-1] = self.end_after_filling(survivors[-1])
            counts[-1] += ends[-1] - survivors[-1].end_key
        gaps: list[Iterable[PlannedFile]] = [
            _plan_files_between(start, right.first_key, capacity, "" if count >= capacity else RESTART_DOUBT, right)
            for start, count, right in zip(ends, counts, survivors, strict=False)
        ]
        if survivors and keys.start_offset:  # else the log begins where the broker began
            gaps[0] = _plan_files_before(max(survivors[0].first_key, 0), capacity)
        last = list(_plan_files_between(ends[-1], total, capacity))
        if keys.ends_without_keys and total in range(ends[-1], total + 1, capacity):
            # A broker creates a file for a message before it looks at its keys, which matters only after a full file.
            last.append(PlannedFile(total, total, BuiltFileKind.OPEN))
        gaps.append(last if counts[-1] >= capacity else ())
        names = ["", *(one.broker_file.name for one in survivors), ""]
        planned = [
            one._replace(previous_kept_name=before, next_kept_name=following)
            for gap, (before, following) in zip(gaps, pairwise(names), strict=True)
            for one in gap
        ]
        if not survivors:
            return planned
        held = [(one.first_key, end) for one, end in zip(survivors, ends[1:], strict=True)]
        # With another store's log, or after lost messages, a file may begin after the last key of the log.
        return [one for one in planned if one.end_key <= total and not is_covered(held, one.first_key, one.end_key)]

    def end_after_filling(self, survivor: Survivor) -> int:
        """Return the end of the newest file after it is filled with the following keys."""
        room = self.geometry.capacity - survivor.broker_file.header.entry_count
        return min(survivor.end_key + room, len(self.key_sequence))

    def new_file_recipe(self, start: int, end: int, previous: IndexHeader | None = None) -> IndexRecipe:
        """Return the recipe of a new file with keys number *start* to *end*; *previous* if no key precedes it."""
        parts = tuple(self.key_sequence.list_parts(start, end))
        before = header_of_file_before(self.key_sequence, start) or previous
        count, scratch = self.empty_index_count, self.key_sequence.scratch
        return IndexRecipe(self.geometry, self.rules, scratch, parts, before, count, storage=self.storage)

    def survivor_recipe(self, survivor: Survivor, end: int | None = None) -> IndexRecipe:
        """Return the recipe of a file as it should be, optionally extended by later keys up to number *end*."""
        count, parts, tail = self.empty_index_count, survivor.list_parts(self.key_sequence), 0
        if end is None:
            # The count is 0 or 1 before the first put.
            count, tail = min(survivor.broker_file.header.index_count, 1), survivor.tail_count
        else:
            parts += self.key_sequence.list_parts(survivor.end_key, end)
        return IndexRecipe(
            self.geometry, self.rules, self.key_sequence.scratch, tuple(parts), survivor.previous_header, count,
            survivor.broker_file, survivor.head_count, tail, self.storage,
        )  # fmt: skip
