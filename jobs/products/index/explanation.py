"""
Explains every index file of a store by recomputing it from the log.

A file is either what an undisturbed broker writes, or differs in a known way: then it is recomputed in that way, and
equality is the proof. Only a file that no known way explains is a contradiction.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from enum import StrEnum, unique
from functools import partial
from itertools import pairwise
from typing import Self

from jobs.console.amounts import count_text
from jobs.products.index.file_builder import (
    BrokerIndexFile,
    FileComparison,
    IndexRecipe,
    RecordedNames,
    compare_file,
    count_nonzero_bytes,
    count_slots_in_use,
    detect_zone,
    file_name_for_time,
    hash_file,
    is_all_zeros,
)
from jobs.products.index.key_sequence import KeySequence, RangeKeys, join_keys
from jobs.products.index.plan import IndexPlan
from jobs.products.index.settings import IndexSettings
from jobs.products.index.survivors import (
    FilePlacer,
    Survivor,
    is_without_header,
    list_index_files,
    ranges_truncated_by_promotion,
    refusal_reason,
)
from jobs.storage.model import Reader, file_exists
from jobs.storage.scratch import Scratch
from jobs.store.chain import RangeOutcome
from jobs.store.epochs import takeover_offsets
from jobs.store.intervals import is_covered
from jobs.store.store import Store, relist_store
from jobs.store.workers import Workers
from rmq_formats.indexfile.build import IndexFilePart
from rmq_formats.indexfile.layout import ENTRY, Geometry
from rmq_formats.indexfile.lookup import find_other_slot_count
from rmq_formats.layout import Content

FEW_DIFFERING_BITS = 64


@unique
class FileVerdict(StrEnum):
    """The classification of a file. The lower-case names are the kinds of findings and figures."""

    EQUAL = "equal"
    AHEAD = "newer than the log"
    GROWING = "written to while it was read"
    STALE = "copy of an earlier file"
    DAMAGED = "damaged"
    WRONG_GEOMETRY = "wrong geometry"
    OTHER_RULE = "written in the format of another release"
    UNEXPLAINED = "unexplained"

    @property
    def kind(self) -> str:
        """The name in findings and figures, which scripts rely on."""
        return self.name.lower()

    @property
    def is_explained(self) -> bool:
        """Whether recomputing has proven that a broker wrote the file."""
        return self in {FileVerdict.EQUAL, FileVerdict.AHEAD, FileVerdict.GROWING}

    @property
    def is_damage(self) -> bool:
        """Whether the file was damaged or truncated later; it counts as lost."""
        return self is FileVerdict.DAMAGED

    @property
    def role(self) -> str:
        """The role of the file in a rebuild of lost files; "stays" is a copy, which does not block other files."""
        if self is FileVerdict.STALE:
            return "stays"
        return "kept" if self.is_explained else "lost" if self.is_damage else "contradicts"


@dataclass(frozen=True, slots=True)
class ExplainedFile:
    """A file with its verdict, and the evidence."""

    broker_file: BrokerIndexFile
    verdict: FileVerdict
    survivor: Survivor | None = None  # the file's position in the key sequence; None if its size or header is invalid
    comparison: FileComparison | None = None
    detail: str = ""
    is_out_of_order: bool = False  # its contents are right, but its name does not fit them
    right_name: str = ""  # the correct name of a file that has the name of another one
    is_foreign: bool = False  # no entry matches the log: this file or the log is of another store

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.broker_file.name

    def as_misnamed(self, right_name: str) -> Self:
        """Return the file as one whose contents belong to the file with another name."""
        detail = f"it has the contents of {right_name}"
        return replace(self, verdict=FileVerdict.DAMAGED, detail=detail, right_name=right_name)

    def as_growing(self, detail: str) -> Self:
        """Return the file as one to which a broker was writing."""
        return replace(self, verdict=FileVerdict.GROWING, detail=detail)

    def as_out_of_order(self) -> Self:
        """Return the file as one whose name may belong to another file."""
        detail = "the files are not named in message order"
        return replace(self, verdict=FileVerdict.UNEXPLAINED, detail=detail, is_out_of_order=True)

    @property
    def differences(self) -> list[str]:
        """The first differences from the recomputed file, in words."""
        return [*map(str, self.comparison.differences)] if self.comparison else []


@dataclass(frozen=True)
class Explanation:
    """All index files of a store, explained."""

    store: Store
    settings: IndexSettings
    key_sequence: KeySequence
    files: tuple[ExplainedFile, ...] = ()

    def find_gaps(self) -> Iterator[tuple[str, int, int, bool]]:
        """
        Yield keys that are in no file before the one that they should precede; next to a damaged file this is unknown.

        The values are the file's name, the number of keys, the number of the first, and whether all are in later files.
        """
        end, known = 0, True
        placed = [(one.survivor.first_key, one.survivor.end_key) for one in self.files if one.survivor is not None]
        for explained in self.files:
            survivor = explained.survivor
            if explained.verdict is FileVerdict.STALE:
                continue
            if survivor is None or not explained.verdict.is_explained:
                known = False
                continue
            if survivor.first_key > end and known:
                yield explained.name, survivor.first_key - end, end, is_covered(placed, end, survivor.first_key)
            end, known = max(survivor.end_key, 0), True

    @property
    def not_indexed_count(self) -> int:
        """Number of keys at the log's end that are in no file: a running broker has not indexed them yet."""
        placed = [explained.survivor.end_key for explained in self.files if explained.survivor is not None]
        return max(len(self.key_sequence) - max(placed, default=0), 0)


def explain_index_files(  # noqa: PLR0913, PLR0917 - the files, the log, and how to read them
    workers: Workers,
    store: Store,
    outcomes: Sequence[RangeOutcome[RangeKeys]],
    scratch: Scratch,
    doubtful_ranges: Sequence[tuple[int, int]],
    files: Sequence[BrokerIndexFile],
    settings: IndexSettings,
) -> Explanation:
    """Recompute and classify every file that retention has left; *doubtful_ranges* are those of changed records."""
    geometry, rules = settings.geometry.value, settings.rules.value.rules
    there = [file for file in files if file_exists(store.storage.open, file.location)]
    if files and not there:  # retention leaves the newest file
        raise FileNotFoundError(errno.ENOENT, "disappeared while the index files were compared", files[-1].location)
    files = there
    start = relist_store(store).start_offset  # listed last: segments are deleted before the files that point to them
    keys = replace(join_keys(store, outcomes, scratch, start), doubtful_ranges=tuple(doubtful_ranges))
    refused = {file.name: refusal_reason(file, geometry) for file in files}
    if files and not len(keys) and is_without_header(files[0], geometry):
        refused[files[0].name] = None
    sane = [file for file in files if refused[file.name] is None]
    keys = replace(
        keys, truncated_ranges=ranges_truncated_by_promotion(sane, takeover_offsets(store), keys, geometry, store)
    )
    survivors = FilePlacer(keys, geometry, store).place_all(sane)
    plan = IndexPlan(store.storage, keys, geometry, rules)
    recipes = [plan.survivor_recipe(survivor) for survivor in survivors]
    compared = workers.map(recipes, compare_file, "comparing index files")
    by_name: dict[str, ExplainedFile] = {}
    before: Survivor | None = None
    for survivor, recipe, result in zip(survivors, recipes, compared, strict=True):
        explained_file = _classify(survivor, result, before, recipe, keys)
        is_open = survivor.broker_file is files[-1] and not store.has_clean_shutdown
        if is_open and not explained_file.verdict.is_explained and _is_in_an_entry(survivor, result):
            count = count_text(survivor.broker_file.header.entry_count, "entry")
            explained_file = explained_file.as_growing(f"equal so far ({count}); the next one was being written")
        by_name[survivor.broker_file.name] = explained_file
        before = before if survivor.is_repeated else survivor
    for name, other in _find_misnamed_files([one for one in by_name.values() if one.verdict.is_explained]):
        if other is None:
            by_name[name] = by_name[name].as_out_of_order()
        else:
            by_name[name] = by_name[name].as_misnamed(other)
    explained = tuple(
        by_name.get(file.name) or classify_unreadable(file, geometry, refused[file.name] or "") for file in files
    )
    if files and not store.has_clean_shutdown and refused[files[-1].name] and _is_begun(store, files[-1], geometry):
        newest = ExplainedFile(files[-1], FileVerdict.GROWING, detail="it has no entries yet")
        explained = (*explained[:-1], newest)
    return Explanation(store, settings, keys, explained)


def _is_begun(store: Store, newest: BrokerIndexFile, geometry: Geometry) -> bool:
    """Return whether the newest file, which could not be read, is empty or has received its first entries since."""
    with store.storage.open(newest.location) as file:
        if newest.size == geometry.file_size and is_all_zeros(file, newest.size):
            return True  # a broker creates a file before it writes the first entry and the header
        if newest.size == geometry.file_size and _has_part_of_first_entry(file, newest, geometry):
            return True
    listed = (file for file in list_index_files(relist_store(store)) if file.name == newest.name)
    return any(refusal_reason(file, geometry) is None for file in listed)


def _has_part_of_first_entry(file: Reader, newest: BrokerIndexFile, geometry: Geometry) -> bool:
    """Return whether a broker was writing the first entry: its row, its slot, then the header, whose end is last."""
    header, after = newest.header, geometry.entry_position(1) + ENTRY.size
    is_begun = header.entry_count <= 1 and 0 <= header.end_physical_offset < header.begin_physical_offset
    has_one_slot = count_slots_in_use(file, geometry) <= 1
    return (is_begun or not any(header)) and has_one_slot and not count_nonzero_bytes(file, after, newest.size)


def _is_in_an_entry(survivor: Survivor, compared: FileComparison) -> bool:
    """
    Return whether a file differs only in the row of the next entry and in its slot, which precede the header.

    A copy of the file of a running broker may have them. After a kill, the next start deletes the newest file.
    """
    if compared.is_equal:
        return False
    following = survivor.broker_file.header.entry_count + 1
    rows = [one for one in compared.differences if one.part is not IndexFilePart.HEADER]
    is_of_slot = not rows or [(one.part, one.found) for one in rows] == [(IndexFilePart.SLOT, following)]
    has_no_other = _count_of_rows(compared) == len(rows) == len(compared.differences)
    return is_of_slot and has_no_other and compared.has_only_next_entry


def _find_misnamed_files(explained: Sequence[ExplainedFile]) -> Iterator[tuple[str, str | None]]:
    """
    Yield files whose content belongs to another file name, with that name; None if one may have been renamed.

    A broker that indexes messages again after a start writes files that begin before existing ones, and overlap them.
    Files that were exchanged follow one another without overlap once they are sorted.
    """
    zone = detect_zone((one.name, one.broker_file.header.begin_timestamp) for one in explained)
    in_order = sorted(enumerate(explained), key=lambda numbered: _first_key_of(numbered[1]))
    # As soon as `last_named` is not greater than `number`, no file up to `number` (in the order of their messages) has
    # the name of a later one. They can only have been exchanged among themselves, and are classified as one block.
    first = 0
    last_named = 0
    for number, (named, _) in enumerate(in_order):
        last_named = max(last_named, named)
        if last_named > number:
            continue
        block = [one for _, one in in_order[first : number + 1]]
        before = [one for _, one in in_order[max(first - 1, 0) : first]]
        headers = [one.broker_file.header for one in (*before, *block)]
        are_apart = all(one.end_physical_offset <= other.begin_physical_offset for one, other in pairwise(headers))
        if len(block) > 1 and are_apart:
            pairs = list(zip(block, explained[first : number + 1], strict=True))
            are_exchanged = zone is not None and _are_exchanged(pairs, zone)
            for one, place in pairs:
                if one is not place:
                    yield one.name, place.name if are_exchanged else None
        first = number + 1


def find_exchanged_files(explanation: Explanation, names: RecordedNames) -> Explanation:
    """
    Return the explanation, with files as misnamed that are out of order and were recorded under each other's names.

    Without records, two files whose names fit both of them may have been exchanged, or one of them may be renamed.
    """
    recorded: dict[str, str | None] = {}
    for one in explanation.files if names.by_hash else ():
        if one.is_out_of_order:
            header = one.broker_file.header
            own = names.by_first_message.get((header.begin_physical_offset, header.begin_timestamp), ())
            recorded[one.name] = own[0] if len(own) == 1 else None
            if header.entry_count >= explanation.settings.geometry.value.capacity:
                with explanation.store.storage.open(one.broker_file.location) as file:
                    recorded[one.name] = names.by_hash.get(hash_file(file.read))
    if recorded.keys() != {*recorded.values()}:
        return explanation
    files = tuple(
        one.as_misnamed(right) if (right := recorded.get(one.name)) not in {None, one.name} else one
        for one in explanation.files
    )
    return replace(explanation, files=files)


def _first_key_of(explained: ExplainedFile) -> tuple[int, int]:
    """Return the place of a file among the others: several files may begin in one message that has many keys."""
    start = 0 if explained.survivor is None else explained.survivor.first_key
    return explained.broker_file.header.begin_physical_offset, start


def _are_exchanged(pairs: Sequence[tuple[ExplainedFile, ExplainedFile]], zone: tzinfo) -> bool:
    """
    Return whether files have exchanged names: of each pair, the first has the content for the name of the second.

    A name fits if it is not before the first message, nor long after it: a file whose name fits is not given a later
    one. Of two renamed files, one may already have the right name.
    """
    moves = [
        (file_name_for_time(one.broker_file.header.begin_timestamp, zone), one.name, place.name) for one, place in pairs
    ]
    fits_now = all(begin <= now for begin, now, _ in moves)
    return not fits_now and all(begin <= then and not begin <= now < then for begin, now, then in moves)


def classify_unreadable(broker_file: BrokerIndexFile, geometry: Geometry, reason: str) -> ExplainedFile:
    """Classify a file that is unreadable because of its size or header."""
    is_larger = broker_file.size > geometry.file_size
    return ExplainedFile(broker_file, FileVerdict.WRONG_GEOMETRY if is_larger else FileVerdict.DAMAGED, detail=reason)


def _classify(
    survivor: Survivor, compared: FileComparison, before: Survivor | None, recipe: IndexRecipe, keys: KeySequence
) -> ExplainedFile:
    classified = partial(ExplainedFile, survivor.broker_file, survivor=survivor, comparison=compared)
    header = survivor.broker_file.header
    if before is not None and survivor.is_before_log:
        reached = before.broker_file.header.end_physical_offset
        if header.begin_physical_offset < reached:
            begin = f"begins at offset {header.begin_physical_offset}"
            detail = f"{begin}, before the end ({reached}) of {before.broker_file.name}"
            return classified(FileVerdict.UNEXPLAINED, detail=detail, is_foreign=True)
    if compared.is_equal:
        verdict, detail = _classify_equal(survivor, keys)
        return classified(verdict, detail=detail)
    if compared.is_changing and not compared.counts[IndexFilePart.ENTRY]:
        return classified(FileVerdict.GROWING, detail=f"equal so far ({count_text(header.entry_count, 'entry')})")
    slots: int | None = None
    file_size, location = survivor.broker_file.size, survivor.broker_file.location
    with suppress(FileNotFoundError), recipe.storage.open(location) as file:  # deleted by retention
        slots = find_other_slot_count(Content(file_size, file.read), recipe.geometry)
    if slots is not None:
        where = f"in {slots} slots, not {recipe.geometry.hash_slots}"
        detail = f"its entries are chained {where}: maxHashSlotNum was changed"
        return classified(FileVerdict.WRONG_GEOMETRY, detail=detail)
    verdict, detail = _classify_different(survivor, compared, before, recipe.geometry)
    is_foreign = verdict is FileVerdict.UNEXPLAINED and compared.counts[IndexFilePart.ENTRY] == header.entry_count
    return classified(verdict, detail=detail, is_foreign=is_foreign)


def _classify_equal(survivor: Survivor, keys: KeySequence) -> tuple[FileVerdict, str]:
    """Return the verdict on a file that equals its recipe: a broker wrote it, unless it repeats or exceeds the log."""
    if survivor.is_repeated:
        entries = count_text(survivor.broker_file.header.entry_count, "entry")
        return FileVerdict.STALE, f"all of its {entries} are also in an earlier file"
    if not survivor.tail_count or not survivor.is_continuous:
        return FileVerdict.EQUAL, ""
    tail = count_text(survivor.tail_count, "entry")
    if survivor.broker_file.header.end_physical_offset <= keys.last_record_offset:
        return FileVerdict.UNEXPLAINED, f"{tail} whose keys are not in any record"
    return FileVerdict.AHEAD, f"{tail} of messages that are not in the log"


def is_truncated_by_promotion(survivor: Survivor, keys: KeySequence) -> bool:
    """Return whether the file has messages that are not in the log, and a promotion explains all of them."""
    header = survivor.broker_file.header
    return survivor.lost_entry_count > 0 and all(
        keys.is_truncated_by_promotion(start, end - 1)
        for start, end in keys.lost_ranges
        if end > header.begin_physical_offset and start <= header.end_physical_offset
    )


def _classify_different(
    survivor: Survivor, compared: FileComparison, before: Survivor | None, geometry: Geometry
) -> tuple[FileVerdict, str]:
    """Return the verdict on a file that differs from its recipe, with the first difference, or the reason if known."""
    first = f"{count_text(compared.nonzero_after_end, 'nonzero byte')} after the last entry"
    if compared.differences:
        first = str(compared.differences[0])
    fields = {difference.field for difference in compared.differences if difference.part is IndexFilePart.HEADER}
    if not _count_of_rows(compared) and fields == {"hash_slot_count"}:
        header = survivor.broker_file.header  # either rule may have written it, or both in turn
        if compared.slots_in_use <= header.hash_slot_count <= header.entry_count:
            return FileVerdict.OTHER_RULE, first
    unfinished = _find_entry_unfinished_by_a_kill(compared)
    if unfinished in _list_entries_after_restarts(survivor, before):
        reason = f"the broker was killed while it wrote entry {unfinished}, and continued the file after its next start"
        return FileVerdict.DAMAGED, reason
    return FileVerdict.DAMAGED if _is_damaged(compared, geometry) else FileVerdict.UNEXPLAINED, first


def _find_entry_unfinished_by_a_kill(compared: FileComparison) -> int | None:
    """
    Return the number of the entry that a broker was writing when it was killed, if the only difference shows it.

    `IndexFile#putKey` updates the slot first, the header last. The next start writes another key at that number. The
    next key of the slot is then chained to it, and its slot is not counted again.
    """
    if _count_of_rows(compared) != 1:
        return None
    *header, row = compared.differences
    if row.field not in {"newest_entry", "prev_entry"}:
        return None
    is_of_one_slot = all(one.field == "hash_slot_count" and abs(one.found - one.expected) == 1 for one in header)
    return row.found if is_of_one_slot else None


def _list_entries_after_restarts(survivor: Survivor, before: Survivor | None) -> list[int]:
    """Return the numbers of the first entries that a broker wrote after a start."""
    resumed = [run.first_entry for run in survivor.repeated_keys]
    return [1, *resumed] if before is not None and survivor.first_key < before.end_key else resumed


def _count_of_rows(compared: FileComparison) -> int:
    return compared.counts[IndexFilePart.SLOT] + compared.counts[IndexFilePart.ENTRY]


def _is_damaged(compared: FileComparison, geometry: Geometry) -> bool:
    """
    Return whether a single fault explains the differences of a file that was right once.

    The faults are: a crash before the header counted the last entries; pages that were never written; a few changed
    bits, which a broker also leaves if it is killed after it has updated a slot and before the header
    (`IndexFile#putKey`).
    """
    if compared.nonzero_after_end or compared.zeroed_rows > _count_of_rows(compared) // 2:
        return True
    return compared.differing_bits <= FEW_DIFFERING_BITS and not _is_of_a_key(compared, geometry)


def _is_of_a_key(compared: FileComparison, geometry: Geometry) -> bool:
    """Return whether a changed log record explains the difference: another hash is in the chain of its own slot."""
    first = next((one for one in compared.differences if one.part is IndexFilePart.ENTRY), None)
    if first is None:
        return False
    if _count_of_rows(compared) > 1:
        return first.field == "key_hash" or bool(compared.counts[IndexFilePart.SLOT])
    return first.field == "key_hash" and geometry.slot_of(first.found) == geometry.slot_of(first.expected)
