"""
Decides which queue files of a store are right and which are lost, for `--lost-only` and `repair`.

All queues are built, and each file is compared with the store's own; identical files are not written. A file is
replaced only if it is proven wrong and its replacement is proven right: one fault explains all differences, or none of
its content belongs to its queue. All other files with differences stay and are reported: a record of the log may have
changed in a field without a checksum.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from jobs.console.amounts import is_or_are, names_text
from jobs.diagnosis.acceptance import is_accepted
from jobs.diagnosis.file_faults import ONE_BIT_CHANGED, find_file_fault, may_record_tags_have_changed
from jobs.products.queues.join_result import (
    KINDS_WITHOUT_QUEUE_FAULT,
    WRONG_POSITION_KINDS,
    DifferenceKind,
    JoinResult,
    QueueDifference,
)
from jobs.products.queues.settings import QueueSettings
from jobs.rebuild.queues import EXTENSION_DIRECTORY, BuiltFile, BuiltQueue
from jobs.storage.local import flush_directory, make_directory, naming_file_in_errors
from jobs.storage.locations import join_location
from jobs.store.log_ends import has_lost_end
from jobs.store.queue_files import has_light_queues_only_in_rocksdb, queues_in_rocksdb
from jobs.store.queue_storage import QueueStorage, detect_queue_storage
from jobs.store.ranges import find_holes
from jobs.store.store import Store, StoredFile
from jobs.store.topics import TopicEvidence, TopicFate, find_newest_time_by_topic
from jobs.store.units import Units, read_stored_units
from rmq_formats.arrays import are_inside
from rmq_formats.consumequeue.build import UNIT_TYPES
from rmq_formats.consumequeue.dispatch import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE, UNIT
from rmq_formats.layout import Content
from rmq_formats.store import file_name_of_offset

if TYPE_CHECKING:
    from jobs.rebuild.queue_run import QueueRebuildSummary
    from jobs.requests.rebuild import RebuildQueuesRequest

RecordedUnits = Callable[[QueueName, int, int], Units]
"""Returns a part of a plain queue: the units that an ingest run matched with their records, and zeros elsewhere."""
_BLOCK = 1 << 18
_FEW = 2  # units: more than one changed record explains


def keep_needed_files(  # noqa: PLR0913, PLR0917 - the store, the rebuilt files, and the user's decisions
    store: Store,
    settings: QueueSettings,
    joined: JoinResult,
    doubtful: set[int],
    built_queues: Sequence[BuiltQueue],
    request: "RebuildQueuesRequest",
    summary: "QueueRebuildSummary",
) -> list[BuiltQueue]:
    """
    Return which files of *built_queues* the store needs or the user accepted; delete the others.

    *doubtful* are the offsets of records that differ from what a broker wrote. The *summary* gets the paths, relative
    to the output, of files that stay or are replaced.
    """
    out = request.out
    topics = joined.topic_evidence
    has_light_files = not has_light_queues_only_in_rocksdb(store, joined.queues)
    stored_files = {path_in_output(file.path_facts.path): file for file in store.queue_files}
    ahead = joined.find_newest_offset_ahead()
    summary.has_lost_end = ahead is not None and has_lost_end(store, ahead, joined.log_end)
    evidence = _Evidence(store, settings, joined, out, built_queues)
    comparison = evidence.compare_all(stored_files, doubtful)
    newest = find_newest_time_by_topic((queue.name.topic, queue.newest_ms) for queue in built_queues)
    selected: list[BuiltQueue] = []
    equal, unknown = 0, set[str]()
    for queue in built_queues:
        is_file = has_light_files or not queue.name.topic.startswith(LMQ_PREFIX)
        fate = _find_fate(queue.name, joined, newest)
        if fate is TopicFate.DELETED or not is_file:
            _delete(out, queue, queue.files)
            continue
        is_unknown = fate is TopicFate.UNDECIDED and bool(joined.queues)  # without any queue, a broker rebuilds all
        verdicts = _decide_verdicts(queue, evidence, comparison, stored_files, request, is_of_unknown_topic=is_unknown)
        needed = [file for file in queue.files if verdicts[file.path] in _NEEDED]
        if needed and not _has_own_units(queue, verdicts) and _lacks_extension(queue, verdicts):
            needed = list(queue.files)  # units contain addresses in the extension: both must be rebuilt together
        summary.replaced += {file.path for file in needed} & stored_files.keys()
        rest = [file.path for file in queue.files if file not in needed]
        equal += sum(verdicts[path] == _EQUAL for path in rest)
        summary.kept += sum(verdicts[path] in {_EQUAL, _KEPT} for path in rest)
        summary.contradictions += [path for path in rest if verdicts[path] == _UNDECIDED]
        lost = [path for path in rest if verdicts[path] == _UNKNOWN_TOPIC]
        summary.of_unknown_topics += lost
        unknown |= {queue.name.topic} if lost else set()
        right = {path for path, verdict in verdicts.items() if verdict == _EQUAL} | {file.path for file in needed}
        _note_removed_copies(evidence.find_copies_of(right), summary)
        _delete(out, queue, (file for file in queue.files if file not in needed))
        for file in (file for file in needed if file.path in queue.stored_paths):
            evidence.write_identical_file(file, queue)
        if needed:
            selected.append(replace(queue, files=needed))
    summary.replaced.sort()
    summary.proof = "not proven: no rebuilt file is identical to a file of the store"
    if equal:
        summary.proof = f"{equal:,} of the kept files {is_or_are(equal)} identical to the rebuilt files, byte for byte"
    summary.notes += _notes_on_unknown_topics(unknown, topics)
    summary.notes += [
        (
            "the lake's topic table is newer than the store's, so it was used to decide which topics were deleted; "
            "later changes are unknown"
        )
    ] * (topics.is_recorded and not newest.keys() <= topics.topics_with_queues)
    if summary.has_lost_end:
        summary.notes.append("the end of the log was lost; units that point past it were kept")
    return selected


def _decide_verdicts(  # noqa: PLR0913 - the files, and the user's decisions
    queue: BuiltQueue,
    evidence: "_Evidence",
    comparison: "_Comparison",
    stored_files: Mapping[str, StoredFile],
    request: "RebuildQueuesRequest",
    *,
    is_of_unknown_topic: bool,
) -> "_Verdicts":
    """Return the verdicts on the files of a queue: from the comparison, proofs, earlier runs and the user."""
    verdicts = {
        file.path: _UNKNOWN_TOPIC if is_of_unknown_topic else comparison.verdicts[file.path] for file in queue.files
    }
    unproven = evidence.find_unproven_files(queue, verdicts, comparison, request.recorded_units)
    verdicts |= dict.fromkeys(unproven, _UNDECIDED)
    if _lacks_extension(queue, verdicts):  # the units of an accepted file would name addresses of another extension
        return verdicts
    open_files = [path for path, verdict in verdicts.items() if verdict in _OPEN]
    decided = {path for path in open_files if is_accepted(path_in_store(path), request.accepted_files)}
    decided.update(evidence.find_recorded_files(queue, verdicts, stored_files, request.recorded_units))
    return verdicts | dict.fromkeys(decided, _WRONG)


def _find_fate(name: QueueName, joined: JoinResult, newest: Mapping[str, int]) -> TopicFate:
    if name in joined.figures.queues_without_files and joined.queues:
        return joined.find_topic_fate(name)
    return joined.topic_evidence.fate(name.topic, newest[name.topic])


def _notes_on_unknown_topics(unknown: Iterable[str], evidence: TopicEvidence) -> Iterator[str]:
    """Yield one note for all topics whose fate is unknown for the same reason."""
    by_reason: dict[str, list[str]] = {}
    for topic in sorted(unknown):
        by_reason.setdefault(evidence.explain_undecided(topic), []).append(topic)
    for reason, names in by_reason.items():
        what = f"the topic {names[0]!r}" if len(names) == 1 else f"{len(names):,} topics ({names_text(names)})"
        were = "the topic was deleted or its" if len(names) == 1 else "these topics were deleted or their"
        yield (
            f"the queue files of {what} were not rebuilt: {reason}, so it is unknown whether {were} queues were lost. "
            "Copy the broker's current config/topics.json into the store, or accept files by their names or by a "
            f"pattern: `repair --accept 'consumequeue/{names[0] if len(names) == 1 else '*'}/*'`"
        )


def _note_removed_copies(copies: Mapping[str, str], summary: "QueueRebuildSummary") -> None:
    summary.removed += copies
    summary.notes += [
        f"{path_in_store(copy)} is a copy of {path_in_store(original)} under a wrong name, so it is not part of the "
        "queue: the installation sets it aside"
        for copy, original in copies.items()
    ]


def _find_misnamed_copies(store: Store, settings: QueueSettings, built: Sequence[BuiltQueue]) -> dict[str, str]:
    """
    Return the store's queue files that only have the units of another file of their queue, with that rebuilt file.

    A unit belongs to one position of its queue, so one of the two files was renamed or copied. Paths are those in the
    output.
    """
    plain = [queue for queue in built if queue.name.kind is QueueKind.PLAIN]
    made = {
        path_in_output(queue.name.path): {file.sha256: file.path for file in _unit_files(queue) if file.written}
        for queue in plain
    }
    names = {file.path for queue in plain for file in queue.files}
    size, copies = settings.file_sizes[QueueKind.PLAIN].value, dict[str, str]()
    for file in store.queue_files:
        path = path_in_output(file.path_facts.path)
        own = made.get(path.rpartition("/")[0], {})
        if own and path not in names and file.size <= size:
            data = store.read(file, 0, size)  # a truncated file may end inside a unit
            units = np.frombuffer(data, UNIT_TYPES[QueueKind.PLAIN], len(data) // UNIT.size)
            end = int(np.flatnonzero(units["size"])[-1]) + 1 if units["size"].any() else 0
            original = own.get(sha256(units[:end].tobytes()).hexdigest())
            copies |= {} if original is None else {path: original}
    return copies


_UNKNOWN_TOPIC = "of an unknown topic"  # missing, unless the broker has deleted the topic
_EQUAL, _KEPT, _WRONG, _MISSING, _UNDECIDED = "equal", "kept", "wrong", "missing", "undecided"
_FOREIGN = "foreign"
_NEEDED = frozenset({_MISSING, _WRONG})
_OPEN = frozenset({_UNDECIDED, _UNKNOWN_TOPIC})


_Verdicts: TypeAlias = Mapping[str, str]  # by the paths of files in the output


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The verdicts on all rebuilt files, and the parts of the log that the store's units contradict."""

    verdicts: _Verdicts
    bad_records: AbstractSet[int]  # records that units contradict
    bad_segments: AbstractSet[int]  # segments that units contradict and none confirms
    has_strays: bool  # some queue lacks records


class _FileComparison(NamedTuple):
    """The verdict on one file, and what its units show."""

    verdict: str
    confirmed_segments: AbstractSet[int] = frozenset()  # to whose records units in the right positions point
    foreign_units: Units | None = None  # all units of a file that belongs to another queue


class _Evidence:
    """The queue files of the store, the rebuilt ones, and the differences between queues and log; it never changes."""

    def __init__(
        self,
        store: Store,
        settings: QueueSettings,
        joined: JoinResult,
        out: Path,
        built: Sequence[BuiltQueue],
    ) -> None:
        self._store, self._settings, self._joined, self._out, self._built = store, settings, joined, out, built
        self._paths = {file.path for queue in built for file in queue.files}
        self._made = {file.sha256 for queue in built for file in queue.files}
        self._bases = np.array([segment.base_offset for segment in store.segments], np.int64)
        self._lost = [*joined.damaged_ranges, *((start, end) for _, start, end in find_holes(store.segments))]
        self._wrong: dict[str, list[range]] = defaultdict(list)  # units that the comparison with the log reports
        self._displaced: dict[QueueName, list[QueueDifference]] = defaultdict(list)
        self._copies = _find_misnamed_copies(store, settings, built)  # by path, with the path of the original
        for one in joined.differences:
            if one.kind in {DifferenceKind.MISPLACED, DifferenceKind.RESTARTED}:
                self._displaced[one.queue].append(one)
            is_of_none = one.kind is DifferenceKind.MISSING_FILE  # or of a segment whose length shows it
            is_last = one.position + one.unit_count >= joined.figures.ends[one.queue]
            if (
                is_of_none
                or one.kind in KINDS_WITHOUT_QUEUE_FAULT
                or (one.kind is DifferenceKind.PAST_LOG_END and is_last)
                or self._is_before_copy(one)
            ):
                continue  # the log has lost the record of the last unit
            for path in self._paths_of(one):
                self._wrong[path].append(range(one.position, one.position + one.unit_count))

    def find_copies_of(self, paths: AbstractSet[str]) -> dict[str, str]:
        """Return the misnamed copies of files, with the paths of their originals."""
        return {copy: original for copy, original in self._copies.items() if original in paths}

    def _is_before_copy(self, difference: QueueDifference) -> bool:
        """Return whether zeros are the unwritten end of a queue, after which only a misnamed file comes."""
        if difference.kind is not DifferenceKind.HOLE or not self._copies:
            return False
        name, end = difference.queue, difference.position + difference.unit_count
        return f"{path_in_output(name.path)}/{file_name_of_offset(end * name.kind.layout.size)}" in self._copies

    def _paths_of(self, difference: QueueDifference) -> Iterator[str]:
        """Yield the files with a difference, by their paths in the output."""
        name = difference.queue
        size, unit = self._settings.file_sizes[name.kind].value, name.kind.layout.size
        first, last = (
            at * unit // size for at in (difference.position, difference.position + difference.unit_count - 1)
        )
        yield from (f"{path_in_output(name.path)}/{file_name_of_offset(n * size)}" for n in range(first, last + 1))

    def compare_all(self, stored_files: Mapping[str, StoredFile], doubtful: AbstractSet[int]) -> _Comparison:
        """
        Compare each file of the store with the rebuilt one; return the verdicts, and what contradicts the log.

        A rebuilt file gets those units of the store's file whose records are lost. Files that are foreign to the log
        are classified last: if units of other files point to the segments to which this file should point, the file is
        foreign, not the segments. *doubtful* records differ from what a broker wrote.
        """
        compared = {
            file.path: self._compare_file(file, queue, stored_files.get(file.path))
            for queue in self._built
            for file in queue.files
        }
        confirmed = set[int]().union(*(one.confirmed_segments for one in compared.values()))
        verdicts = {path: one.verdict for path, one in compared.items()}
        for queue in self._built:
            for file in (file for file in queue.files if verdicts[file.path] == _FOREIGN):
                is_confirmed = self._segments_pointed_to(self._units(file, queue)) <= confirmed
                verdicts[file.path] = _WRONG if is_confirmed else _UNDECIDED
        wrong = {path for path, verdict in verdicts.items() if verdict == _WRONG} | self._copies.keys()
        against = [
            one for one in self._joined.differences
            if one.kind not in KINDS_WITHOUT_QUEUE_FAULT
            and one.log_offset is not None and not wrong & {*self._paths_of(one)}
        ]  # fmt: skip
        records = {one.log_offset for one in against if one.log_offset is not None and one.may_be_changed_record}
        foreign_units = [one.foreign_units for one in compared.values() if one.foreign_units is not None]
        units = [one.log_offset or 0 for one in against if one.kind in WRONG_POSITION_KINDS]
        segments = set(np.searchsorted(self._bases, np.array(units, np.int64), "right").tolist())
        return _Comparison(
            verdicts,
            records | doubtful | self._find_records_with_other_tags(foreign_units),
            segments - confirmed,
            any(map(self._lacks_records, self._built)),
        )

    def _units(self, file: BuiltFile, queue: BuiltQueue) -> Units:
        return _units(self._read_built(file, queue), queue.name)

    def _read_built(self, file: BuiltFile, queue: BuiltQueue) -> bytes:
        """Return the written bytes of a rebuilt file, without the zeros after them."""
        if file.path not in queue.stored_paths:
            path = self._out / file.path
            with naming_file_in_errors(str(path)), path.open("rb") as built:
                return built.read(file.written)
        location = join_location(self._store.root, path_in_store(file.path))  # it is identical, and was not written
        data = self._store.storage.read(location, 0, file.written)
        if sha256(data).hexdigest() != file.sha256:
            raise OSError(errno.ESTALE, "the file was changed while it was compared; run the command again", location)
        return data

    def write_identical_file(self, file: BuiltFile, queue: BuiltQueue) -> None:
        """Write a file that is identical to the store's, because the other files of its queue need it."""
        path = self._out / file.path
        make_directory(path.parent)
        with naming_file_in_errors(str(path)), path.open("xb") as written:
            written.write(self._read_built(file, queue))
            written.truncate(file.size)
            written.flush()
            os.fsync(written.fileno())
        flush_directory(path.parent)

    def _read_both(self, file: BuiltFile, queue: BuiltQueue, stored_file: StoredFile) -> tuple[bytes, bytes]:
        """Return the bytes of a rebuilt file and of the store's file, without the zeros at the end of both."""
        content, own = self._read_built(file, queue), bytearray()
        with self._store.open(stored_file) as reader:
            # Brokers create queue files in their full size: those of a queue with few messages are mostly zeros. And
            # the store's file may be longer than the rebuilt one, by a terabyte of holes.
            size, position = min(stored_file.size, file.size, reader.size), reader.next_written(0)
            while position < size:
                block = bytes(reader.read(position, min(_BLOCK, size - position)))
                if block != bytes(len(block)):
                    own += bytes(position - len(own)) + block
                position = reader.next_written(position + _BLOCK)
        end = max(len(content), len(own))
        return content.ljust(min(end, file.size), b"\0"), bytes(own).ljust(min(end, stored_file.size), b"\0")

    def _compare_file(self, file: BuiltFile, queue: BuiltQueue, stored_file: StoredFile | None) -> _FileComparison:
        """Compare the store's file with the file built from the log."""
        if stored_file is None:
            return _FileComparison(_MISSING)
        content, own = self._read_both(file, queue, stored_file)
        made, stored = (_units(data, queue.name) for data in (content, own))
        confirmed: AbstractSet[int] = frozenset()
        if not _is_extension(file):
            size = min(made.size, stored.size)
            confirmed = self._segments_pointed_to(made[:size][made[:size] == stored[:size]])
        verdict = self._classify_file(file, queue, stored_file, content, own)
        is_of_other_queue = verdict == _FOREIGN and queue.name.kind is QueueKind.PLAIN
        return _FileComparison(verdict, confirmed, stored if is_of_other_queue else None)

    def _classify_file(
        self, file: BuiltFile, queue: BuiltQueue, stored_file: StoredFile, content: bytes, own: bytes
    ) -> str:
        """Return the verdict on a file of the store, from the bytes of the rebuilt file and its own."""
        # In order of certainty: equal files; one flipped bit, which a record's tags may also explain; files for which
        # the comparison with the log reports no difference, and which may be right; one fault of the file; blanks of
        # records that exist again. Any other file differs as a whole: it may belong to another queue, or records of the
        # log may have changed.
        is_as_long = stored_file.size == file.size
        made, stored = (_units(data, queue.name) for data in (content, own))
        has_units = not _is_extension(file)
        if is_as_long and content == own:
            return _EQUAL
        if not is_as_long and has_units:
            content = self._keep_units_of_lost_records(file, queue, content, stored)
            made = _units(content, queue.name)
        fault = find_file_fault(
            Content.from_bytes(own)._replace(size=stored_file.size),
            Content.from_bytes(content)._replace(size=file.size),
        )
        if fault == ONE_BIT_CHANGED and has_units:
            return _UNDECIDED if self._may_be_record_fault(file, queue, made, stored) else _WRONG
        if is_as_long:
            # If the comparison with the log reports a unit, the record may be wrong: then both files have the same unit
            # there. The store's own file may still lack units of records that a killed broker had not dispatched.
            first, is_other = _first_of(file, queue), made != stored
            places = (slice(max(one.start - first, 0), one.stop - first) for one in self._wrong.get(file.path, ()))
            if not has_units or not any(is_other[place].any() for place in places):
                return _KEPT
        if fault is not None or (is_as_long and has_units and _lacks_records_that_are_back(queue, made, stored)):
            return _WRONG
        return _FOREIGN if self._is_foreign(made, stored) else _UNDECIDED

    def _keep_units_of_lost_records(self, file: BuiltFile, queue: BuiltQueue, content: bytes, stored: Units) -> bytes:
        """Copy the store's units of lost records, which cannot be rebuilt, into a rebuilt file."""
        made = _units(content, queue.name).copy()
        size = min(made.size, stored.size)
        is_lost = are_inside(stored["physical_offset"][:size], self._lost)
        is_lost &= (stored["size"][:size] > 0) & np.isin(made["size"][:size], (0, PRE_BLANK_SIZE))
        if not is_lost.any():
            return content
        made[:size][is_lost] = stored[:size][is_lost]
        data = made.tobytes()
        written = (int(np.flatnonzero(made["size"])[-1]) + 1) * made.itemsize
        path = self._out / file.path
        with naming_file_in_errors(str(path)):
            path.write_bytes(data.ljust(file.size, b"\0"))
        digest = sha256(data[:written]).hexdigest()
        queue.files[queue.files.index(file)] = file._replace(written=written, sha256=digest)
        return data

    def _segments_pointed_to(self, units: Units) -> set[int]:
        """Return the numbers, starting at 1, of the segments to which units point."""
        written = units[(units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)]
        return set(np.unique(np.searchsorted(self._bases, written["physical_offset"], "right")).tolist())

    def _find_records_with_other_tags(self, foreign_units: Sequence[Units]) -> set[int]:
        """Return the records whose tags may have changed, according to a unit in a file of another queue."""
        known = {tuple(unit[:2]): unit[2] for units in foreign_units for unit in units.tolist()}
        plain = [queue for queue in self._built if known and queue.name.kind is QueueKind.PLAIN]
        found = set()
        for units in (self._units(file, queue) for queue in plain for file in _unit_files(queue)):
            there = units[np.isin(units["physical_offset"], [offset for offset, _ in known])]
            for offset, size, tags_code in there.tolist():
                stored = known.get((offset, size), tags_code)
                if stored != tags_code and may_record_tags_have_changed(self._store, offset, stored):
                    found.add(offset)
        return found

    def _lacks_records(self, queue: BuiltQueue) -> bool:
        """Return whether the log places units where neither their queue offsets nor the store's file place them."""
        return queue.misplaced > sum(one.unit_count for one in self._displaced_units(queue))

    def _displaced_units(self, queue: BuiltQueue) -> Iterator[QueueDifference]:
        """Yield the units of other queue offsets in the store's files, except files that the log does not have."""
        return (one for one in self._displaced[queue.name] if self._paths & {*self._paths_of(one)})

    def _is_displacement_confirmed(self, queue: BuiltQueue, verdicts: _Verdicts) -> bool:
        """Return whether the last file of a queue also has displaced units, which confirms that the queue had them."""
        last = list(_unit_files(queue))[-1]
        start = _first_of(last, queue)
        return verdicts[last.path] == _EQUAL and any(
            one.position + one.unit_count > start for one in self._displaced_units(queue)
        )

    def _is_proven(self, queue: BuiltQueue, verdicts: _Verdicts, comparison: _Comparison) -> bool:
        """
        Return whether the queue that follows from the log is the one that the broker had.

        A record with a changed queue offset displaces all later units. A record to which a unit of another queue points
        may have a changed topic or queue id.
        """
        survives = any(verdicts[file.path] in {_EQUAL, _KEPT} for file in queue.files)
        if survives and not _has_own_units(queue, verdicts) and _lacks_extension(queue, verdicts):
            return False
        if not survives and (queue.misplaced or queue.skipped or comparison.has_strays):
            return False  # this queue may have a record of another queue, whose topic or queue id was changed
        if self._lacks_records(queue) and not self._is_displacement_confirmed(queue, verdicts):
            return False
        for file in _unit_files(queue):
            if verdicts[file.path] in _NEEDED:
                units = self._units(file, queue)
                if not comparison.bad_records.isdisjoint(units["physical_offset"].tolist()):
                    return False
                if comparison.bad_segments & self._segments_pointed_to(units):
                    return False
        return True

    def find_recorded_files(
        self,
        queue: BuiltQueue,
        verdicts: _Verdicts,
        stored_files: Mapping[str, StoredFile],
        recorded: RecordedUnits | None,
    ) -> Iterator[str]:
        """Yield undecided files if a run has recorded the same units as the log, wherever the store's file differs."""
        for file in (one for one in _unit_files(queue) if verdicts[one.path] == _UNDECIDED):
            own = stored_files.get(file.path)
            is_plain = queue.name.kind is QueueKind.PLAIN
            if recorded is None or not is_plain or (own is not None and own.size > file.size):
                continue
            content, data = (self._read_built(file, queue), b"") if own is None else self._read_both(file, queue, own)
            made, stored = (_units(one.ljust(len(content), b"\0"), queue.name) for one in (content, data))
            first, places = _first_of(file, queue), np.flatnonzero(made != stored)
            units = recorded(queue.name, first, first + made.size)[places]
            if places.size and (units["size"] > 0).all() and (units == made[places]).all():
                yield file.path

    def find_unproven_files(
        self, queue: BuiltQueue, verdicts: _Verdicts, comparison: _Comparison, recorded: RecordedUnits | None
    ) -> list[str]:
        """Return the needed files that are not proven, or that are lost and of which a run has seen other units."""
        needed = [one for one in queue.files if verdicts[one.path] in _NEEDED]
        if not self._is_proven(queue, verdicts, comparison):
            return [one.path for one in needed]
        lost = (one for one in needed if verdicts[one.path] == _MISSING)
        return [one.path for one in lost if self._differs_from_recorded(one, queue, recorded)]

    def _differs_from_recorded(self, file: BuiltFile, queue: BuiltQueue, recorded: RecordedUnits | None) -> bool:
        """Return whether a run has recorded other units for this part of a queue than the log now gives."""
        if recorded is None or queue.name.kind is not QueueKind.PLAIN or _is_extension(file):
            return False
        made, first = self._units(file, queue), _first_of(file, queue)
        seen = recorded(queue.name, first, first + made.size)
        # The units of messages that the log no longer has are blank.
        is_written = (made["size"] > 0) & (made["size"] != PRE_BLANK_SIZE)
        return bool((is_written & (seen["size"] > 0) & (seen != made)).any())

    def _may_be_record_fault(self, file: BuiltFile, queue: BuiltQueue, made: Units, stored: Units) -> bool:
        """Return whether the only different bit is in a tags code, and explained by one bit of the record's tags."""
        (place,) = np.flatnonzero(made != stored)[:1].tolist() or (None,)
        if place is None or made["tags_code"][place] == stored["tags_code"][place]:
            return False
        if detect_queue_storage(self._store) is QueueStorage.BOTH:  # files and RocksDB have the same queues
            copy = next((one for one in queues_in_rocksdb(self._store) if one.name == queue.name), None)
            position = _first_of(file, queue) + place
            units = None if copy is None else read_stored_units(copy, position, position + 1)
            if units is not None and units["tags_code"][0] == made["tags_code"][place]:
                return False
        return may_record_tags_have_changed(
            self._store, int(made["physical_offset"][place]), int(stored["tags_code"][place])
        )

    def _is_foreign(self, made: Units, stored: Units) -> bool:
        """Return whether nothing in the store's file belongs to its queue, while the log has units for this part."""
        offsets = made["physical_offset"]
        written = stored[stored["physical_offset"] > 0]["physical_offset"]
        is_other = bool(written.size) and not np.isin(written, offsets[offsets > 0]).any()
        end = int(np.flatnonzero(stored["size"])[-1]) + 1 if stored["size"].any() else 0
        is_swapped = sha256(stored[:end].tobytes()).hexdigest() in self._made
        # It is unknown whether the record of a unit that points into lost bytes existed.
        is_proven = is_swapped or (written.size >= _FEW and not are_inside(written, self._lost).any())
        return is_other and is_proven and bool((offsets > 0).any())


def _has_own_units(queue: BuiltQueue, verdicts: _Verdicts) -> bool:
    """Return whether all units are as the broker wrote them, so a rebuilt extension has the right addresses."""
    return all(verdicts[file.path] == _EQUAL for file in _unit_files(queue))


def _lacks_extension(queue: BuiltQueue, verdicts: _Verdicts) -> bool:
    return any(_is_extension(file) and verdicts[file.path] != _EQUAL for file in queue.files)


def _lacks_records_that_are_back(queue: BuiltQueue, made: Units, stored: Units) -> bool:
    """
    Return whether the only differences are blanks, after other units, whose records are in the log again.

    Repairs and rebuilds write such blanks. A broker writes blanks from the beginning of a file to the first message of
    a queue that it restarts, in front of messages that may still be in the log: those stay. If the log places any unit
    of a queue at a position other than its queue offset, no blank is proven wrong.
    """
    if queue.name.kind is not QueueKind.PLAIN or queue.misplaced or queue.skipped:
        return False
    is_blank = (stored["size"] == PRE_BLANK_SIZE) & (stored["tags_code"] == 0)
    is_unit = (made["size"] > 0) & (made["size"] != PRE_BLANK_SIZE)
    is_after_a_unit = ~np.logical_and.accumulate(is_blank)
    return bool((is_blank & is_unit & is_after_a_unit)[made != stored].all())


def path_in_store(path: str) -> str:
    """Return the path, below the store's root, of a file in the output."""
    kinds = {EXTENSION_DIRECTORY, *map(str, QueueKind)}
    return path if path.partition("/")[0] in kinds else f"{QueueKind.PLAIN}/{path}"


def path_in_output(path: str) -> str:
    """Return the path of a store's queue file in the output, where plain queues are not in a subdirectory."""
    return path.removeprefix(f"{QueueKind.PLAIN}/")


def _units(data: bytes, name: QueueName) -> Units:
    layout = UNIT_TYPES[name.kind]
    return np.frombuffer(data, layout, len(data) // layout.itemsize)


def _first_of(file: BuiltFile, queue: BuiltQueue) -> int:
    return int(Path(file.path).name) // queue.name.kind.layout.size


def _unit_files(queue: BuiltQueue) -> Iterator[BuiltFile]:
    return (file for file in queue.files if not _is_extension(file))


def _is_extension(file: BuiltFile) -> bool:
    return file.path.startswith(f"{EXTENSION_DIRECTORY}/")


def _delete(out: Path, queue: BuiltQueue, files: Iterable[BuiltFile]) -> None:
    for file in (file for file in files if file.path not in queue.stored_paths):
        path = out / file.path
        path.unlink(missing_ok=True)
        for directory in path.parents:
            if directory == out or any(directory.iterdir()):
                break
            directory.rmdir()
