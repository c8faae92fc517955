"""
Which of a store's queue files are right, and which are lost: `rebuild-consumequeue --lost-only`, and `repair`.

All queues are rebuilt, and each file is compared with the store's own. A file is replaced only if it is proven wrong
and its replacement proven right: one fault explains all that differs, or nothing in it is of its queue. What differs
otherwise stays and is named: a record of the log may have changed that no checksum covers.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.diagnosis.file_faults import FileFault, file_fault
from jobs.diagnosis.log_check import LogCheck
from jobs.diagnosis.records import may_be_other_tags
from jobs.products.queues.differences import BAD_PLACES, NOT_OF_QUEUES, Difference, DifferenceKind
from jobs.products.queues.join import JoinResult
from jobs.products.queues.settings import QueueSettings
from jobs.rebuild.queues import EXTENSION, BuiltFile, BuiltQueue
from jobs.storage.local import read_file
from jobs.store.features import QueueStorage, features_of
from jobs.store.log_ends import has_lost_end
from jobs.store.queue_files import StoredQueue, keeps_light_in_rocksdb, queues_of_rows
from jobs.store.ranges import holes
from jobs.store.store import Store, StoredFile
from jobs.store.topics import Fate, TopicTable, newest_times
from jobs.store.units import Units, units_of
from rmq_formats.consumequeue.build import UNITS
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE
from rmq_formats.consumequeue.unit import LMQ_PREFIX, QueueKind, QueueName
from rmq_formats.layout import Content
from rmq_formats.store import name_of_offset

_FEW = 2  # units: more than one changed record explains


@dataclass(slots=True)
class LostQueues:
    """The selected files; those that are not needed are deleted from the output."""

    queues: list[BuiltQueue] = field(default_factory=list)  # with the files that are to be installed only
    kept: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)  # files that the log contradicts, and may be right
    of_unknown_topics: list[str] = field(default_factory=list)  # lost files, unless the topic was deleted
    notes: list[str] = field(default_factory=list)
    equal: int = 0
    has_lost_end: bool = False  # last units lead to records after the end of the log of a store that was closed

    @property
    def proof(self) -> str:
        """The proof that the rebuilt files are right."""
        if not self.equal:
            return "not proven: no file of the store was rebuilt and equal"
        return f"{self.equal} files of the store were rebuilt and are equal, byte for byte"


def select_lost(  # noqa: PLR0913, PLR0917 - the store, the rebuilt files, and the user's decisions
    store: Store,
    settings: QueueSettings,
    joined: JoinResult,
    check: LogCheck,
    built: Sequence[BuiltQueue],
    out: Path,
    accepted: Container[str] = (),
) -> LostQueues:
    """Return which of the *built* files the store needs, and those *accepted*; delete the others."""
    topics = joined.topics
    has_light_files = not keeps_light_in_rocksdb(store, joined.queues)
    real = {path_in_output(file.about.path): file for file in store.queue_files}
    ahead = joined.ahead_of_log()
    selected = LostQueues(has_lost_end=ahead is not None and has_lost_end(store, ahead, joined.log_end))
    judge = _Judge(store, settings, joined, out, built, {start for start, _ in check.doubtful})
    verdicts = judge.verdicts
    judge.judge_all(real)
    suspects = judge.suspects()
    newest = newest_times((queue.name.topic, queue.newest_ms) for queue in built)
    for queue in built:
        is_file = has_light_files or not queue.name.topic.startswith(LMQ_PREFIX)
        fate = topics.fate(queue.name.topic, newest[queue.name.topic])
        if fate is Fate.DELETED or not is_file:
            _delete(out, queue.files)
            continue
        if fate is Fate.UNDECIDED and joined.queues:  # without any queue a broker makes all of them again
            verdicts.update({file.path: _UNKNOWN_TOPIC for file in queue.files})
        if not judge.is_trusted(queue, suspects):
            verdicts.update({file.path: _UNDECIDED for file in queue.files if verdicts[file.path] in _NEEDED})
        if not judge.lacks_extension(queue):  # else the accepted file's units would name addresses of another one
            decided = [path for path in verdicts if path_in_store(path) in accepted and verdicts[path] in _OPEN]
            verdicts.update({file.path: _WRONG for file in queue.files if file.path in decided})
        needed = [file for file in queue.files if verdicts[file.path] in _NEEDED]
        if needed and not judge.has_own_units(queue) and judge.lacks_extension(queue):
            needed = list(queue.files)  # units name addresses in the extension: both are of one make
        paths = {file.path for file in needed}
        selected.replaced += [path for path in paths if path in real]
        of_queue = [file.path for file in queue.files if file.path not in paths]
        selected.equal += sum(verdicts[path] == _EQUAL for path in of_queue)
        selected.kept += [path for path in of_queue if verdicts[path] in {_EQUAL, _KEPT}]
        selected.undecided += [path for path in of_queue if verdicts[path] == _UNDECIDED]
        selected.of_unknown_topics += [path for path in of_queue if verdicts[path] == _UNKNOWN_TOPIC]
        _delete(out, (file for file in queue.files if file not in needed))
        if needed:
            selected.queues.append(replace(queue, files=needed))
    selected.replaced.sort()
    selected.notes += _notes_of_unknown_topics(selected.of_unknown_topics, built, topics)
    return selected


def _notes_of_unknown_topics(paths: Sequence[str], built: Sequence[BuiltQueue], topics: TopicTable) -> Iterator[str]:
    """Yield why files are not made that may be of deleted topics."""
    names = sorted({queue.name.topic for queue in built for file in queue.files if file.path in set(paths)})
    for topic in names:
        yield (
            f"undecided: the topic {topic!r} was deleted, or its queues are lost: {topics.explain(topic)}; its queue "
            "files are not made. Copy the broker's current config/topics.json into the store, or name each file with "
            "`repair --accept`"
        )


_UNKNOWN_TOPIC = "of an unknown topic"  # missing, unless the broker has deleted the topic
_EQUAL, _KEPT, _WRONG, _MISSING, _UNDECIDED = "equal", "kept", "wrong", "missing", "undecided"
_FOREIGN = "foreign"
_NEEDED = frozenset({_MISSING, _WRONG})
_OPEN = frozenset({_UNDECIDED, _UNKNOWN_TOPIC})


class _Suspects(NamedTuple):
    """Parts of the log that units contradict: records, and segments that no unit confirms."""

    records: set[int]
    segments: set[int]
    has_strays: bool  # some queue lacks records, which may have another topic or queue now


@dataclass(slots=True)
class _Judge:
    """Decides file by file, by these facts about the store."""

    store: Store
    settings: QueueSettings
    joined: JoinResult
    out: Path
    built: Sequence[BuiltQueue]
    doubtful: set[int]  # records that are not what a broker wrote
    verdicts: dict[str, str] = field(default_factory=dict)  # by path in the output
    _wrong: dict[str, list[range]] = field(init=False)  # units of files that the comparison with the log objects to
    _made: set[str] = field(init=False)  # SHA-256 of the rebuilt files
    _bases: NDArray[np.int64] = field(init=False)
    _lost: list[tuple[int, int]] = field(init=False)  # from and to of what the log has lost
    _strange: list[Units] = field(default_factory=list)  # of files that are of another queue
    _witnessed: set[int] = field(default_factory=set)  # segments whose records units in their places lead to

    def __post_init__(self) -> None:
        self._wrong = _wrong_units(self.joined, self.settings)
        self._made = {file.sha256 for queue in self.built for file in queue.files}
        self._bases = np.array([segment.base_offset for segment in self.store.segments], np.int64)
        self._lost = [*self.joined.damaged, *((start, end) for _, start, end in holes(self.store.segments))]

    def judge_all(self, real: Mapping[str, StoredFile]) -> None:
        """
        Compare each file of the store with the one that was made.

        A file that is foreign to the log is judged last, by all others: where units of theirs, in their places, lead to
        the segments that it should lead to, the file is foreign, and not the segments.
        """
        for queue in self.built:
            self.verdicts |= {file.path: self._verdict(file, queue, real.get(file.path)) for file in queue.files}
        for queue in self.built:
            for file in (file for file in queue.files if self.verdicts[file.path] == _FOREIGN):
                is_witnessed = self._segments_of(self._units(file, queue)) <= self._witnessed
                self.verdicts[file.path] = _WRONG if is_witnessed else _UNDECIDED

    def _units(self, file: BuiltFile, queue: BuiltQueue) -> Units:
        return _units(read_file(self.out / file.path), queue.name)

    def _verdict(self, file: BuiltFile, queue: BuiltQueue, real: StoredFile | None) -> str:
        """Classify the store's own file by comparing it with the file that the log gives."""
        # From certain to doubtful: equal files; one flipped bit, which a record's tags may explain as well; what the
        # log objects to nowhere, which may be right; one fault of the file; blanks of records that are back. All that
        # is left differs as a whole: the file may be another queue's, or records of the log may have changed.
        if real is None:
            return _MISSING
        content = read_file(self.out / file.path)
        is_as_long = real.size == len(content)
        own = self.store.read(real, 0, min(real.size, len(content)))  # one may be longer by a terabyte of holes
        made, stored = (_units(data, queue.name) for data in (content, own))
        has_units = not _is_extension(file)
        if has_units:
            size = min(made.size, stored.size)
            self._witnessed |= self._segments_of(made[:size][made[:size] == stored[:size]])
        if is_as_long and content == own:
            return _EQUAL
        if not is_as_long and has_units:
            content = self._with_units_of_lost_records(file, queue, content, stored)
            made = _units(content, queue.name)
        fault = file_fault(Content.of(own)._replace(size=real.size), Content.of(content))
        if fault is FileFault.BIT and has_units:
            return _UNDECIDED if self._is_of_a_record(file, queue, made, stored) else _WRONG
        if is_as_long and not (has_units and self._differs_where_wrong(file, queue, made, stored)):
            return _KEPT
        if fault is not None or (has_units and _lacks_records_that_are_back(queue, made, stored)):
            return _WRONG
        is_foreign = self._is_foreign(made, stored)
        if is_foreign and queue.name.kind is QueueKind.PLAIN:
            self._strange.append(stored)
        return _FOREIGN if is_foreign else _UNDECIDED

    def _differs_where_wrong(self, file: BuiltFile, queue: BuiltQueue, made: Units, stored: Units) -> bool:
        """
        Return whether a unit that the log objects to is another one in the made file.

        What the log objects to may be the record's fault: then both files have the same unit there, and the store's own
        may lack units all the same, of records that a killed broker had not dispatched.
        """
        first = _first_of(file, queue)
        is_other = made != stored
        places = (range(max(units.start - first, 0), units.stop - first) for units in self._wrong.get(file.path, ()))
        return any(is_other[units.start : units.stop].any() for units in places)

    def _with_units_of_lost_records(self, file: BuiltFile, queue: BuiltQueue, content: bytes, stored: Units) -> bytes:
        """Give a made file the units of the store's own that lead into lost bytes of the log: these cannot be made."""
        made = _units(content, queue.name).copy()
        size = min(made.size, stored.size)
        is_lost = self._are_lost(stored["physical_offset"][:size])
        is_lost &= (stored["size"][:size] > 0) & np.isin(made["size"][:size], (0, PRE_BLANK_SIZE))
        if not is_lost.any():
            return content
        made[:size][is_lost] = stored[:size][is_lost]
        data = made.tobytes().ljust(len(content), b"\0")
        written = (int(np.flatnonzero(made["size"])[-1]) + 1) * made.itemsize
        (self.out / file.path).write_bytes(data)
        digest = sha256(data[:written]).hexdigest()
        queue.files[queue.files.index(file)] = file._replace(written=written, sha256=digest)
        return data

    def _are_lost(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        is_lost = np.zeros(offsets.size, np.bool_)
        for start, end in self._lost:
            is_lost |= (offsets >= start) & (offsets < end)
        return is_lost

    def _segments_of(self, units: Units) -> set[int]:
        """Return the numbers of the segments that units lead to, from 1 on."""
        written = units[(units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)]
        return set(np.unique(np.searchsorted(self._bases, written["physical_offset"], "right")).tolist())

    def suspects(self) -> _Suspects:
        """Return the records that a unit contradicts which is in no file that is proven wrong."""
        wrong = {path for path, verdict in self.verdicts.items() if verdict == _WRONG}
        against = [
            one for one in self.joined.differences
            if one.kind not in NOT_OF_QUEUES and one.log_offset is not None
            and not wrong & set(_files_of(one, self.settings))
        ]  # fmt: skip
        records = {one.log_offset for one in against if one.log_offset is not None and one.may_be_of_a_record}
        records |= self.doubtful | self._of_other_tags()
        units = [one.log_offset or 0 for one in against if one.kind in BAD_PLACES]
        segments = set(np.searchsorted(self._bases, np.array(units, np.int64), "right").tolist())
        return _Suspects(records, segments - self._witnessed, any(map(self._lacks_records, self.built)))

    def _of_other_tags(self) -> set[int]:
        """Return the records whose tags may have changed, as a unit in a file of another queue tells."""
        known = {tuple(unit[:2]): unit[2] for units in self._strange for unit in units.tolist()}
        plain = [queue for queue in self.built if known and queue.name.kind is QueueKind.PLAIN]
        found = set()
        for units in (self._units(file, queue) for queue in plain for file in _unit_files(queue)):
            there = units[np.isin(units["physical_offset"], [offset for offset, _ in known])]
            for offset, size, tags_code in there.tolist():
                stored = known.get((offset, size), tags_code)
                if stored != tags_code and may_be_other_tags(self.store, offset, stored):
                    found.add(offset)
        return found

    def _lacks_records(self, queue: BuiltQueue) -> bool:
        """Return whether the log gives units a place that neither their queue offsets nor the store's own file does."""
        own = (one for one in self.joined.differences if one.queue == queue.name)
        misplaced = sum(one.times for one in own if one.kind in {DifferenceKind.MISPLACED, DifferenceKind.RESTARTED})
        return queue.misplaced > misplaced

    def is_trusted(self, queue: BuiltQueue, suspects: _Suspects) -> bool:
        """
        Return whether the queue that the log gives is the one that the broker had.

        A record whose queue offset has changed displaces all units after it; one that another queue's unit leads to, in
        its place there, may have changed its topic or its queue.
        """
        verdicts = self.verdicts
        survives = any(verdicts[file.path] in {_EQUAL, _KEPT} for file in queue.files)
        if survives and not self.has_own_units(queue) and self.lacks_extension(queue):
            return False
        if not survives and (queue.misplaced or queue.skipped or suspects.has_strays):
            return False  # with a record that one of the others lacks
        if self._lacks_records(queue) and not any(verdicts[file.path] == _EQUAL for file in queue.files[-1:]):
            return False
        for file in _unit_files(queue):
            if verdicts[file.path] in _NEEDED:
                units = self._units(file, queue)
                if suspects.records.intersection(units["physical_offset"].tolist()):
                    return False
                if suspects.segments & self._segments_of(units):
                    return False
        return True

    def _is_of_a_record(self, file: BuiltFile, queue: BuiltQueue, made: Units, stored: Units) -> bool:
        """Return whether the one bit that differs is in a tags code, and a bit of the record's tags explains it."""
        (place,) = np.flatnonzero(made != stored)[:1].tolist() or (None,)
        if place is None or made["tags_code"][place] == stored["tags_code"][place]:
            return False
        copy = self._copies().get(queue.name)
        position = _first_of(file, queue) + place
        if copy is not None and units_of(copy, position, position + 1)["tags_code"][0] == made["tags_code"][place]:
            return False
        return may_be_other_tags(self.store, int(made["physical_offset"][place]), int(stored["tags_code"][place]))

    def _copies(self) -> Mapping[QueueName, StoredQueue]:
        """Return the queues in RocksDB, where files are a second copy of them."""
        is_double = features_of(self.store).queues is QueueStorage.BOTH
        return {queue.name: queue for queue in queues_of_rows(self.store)} if is_double else {}

    def _is_foreign(self, made: Units, stored: Units) -> bool:
        """Return whether nothing in the store's own file is of its queue, while the log has units for the place."""
        offsets = made["physical_offset"]
        written = stored[stored["physical_offset"] > 0]["physical_offset"]
        is_other = bool(written.size) and not np.isin(written, offsets[offsets > 0]).any()
        end = int(np.flatnonzero(stored["size"])[-1]) + 1 if stored["size"].any() else 0
        is_swapped = sha256(stored[:end].tobytes()).hexdigest() in self._made
        # Whether the record of a unit that leads into lost bytes was there is not known.
        is_proven = is_swapped or (written.size >= _FEW and not self._are_lost(written).any())
        return is_other and is_proven and bool((offsets > 0).any())

    def has_own_units(self, queue: BuiltQueue) -> bool:
        """Return whether each unit is as the broker wrote it: then the extension that was made is at its addresses."""
        return all(self.verdicts[file.path] == _EQUAL for file in _unit_files(queue))

    def lacks_extension(self, queue: BuiltQueue) -> bool:
        return any(_is_extension(file) and self.verdicts[file.path] != _EQUAL for file in queue.files)


def _lacks_records_that_are_back(queue: BuiltQueue, made: Units, stored: Units) -> bool:
    """
    Return whether nothing differs but blanks after other units: the log had lost their records, and has them again.

    Repairs and rebuilds write such blanks. A broker writes some from the beginning of a file to the first message of a
    queue that it starts again, in front of messages that may still be in the log: those stay. A queue of which the log
    gives any unit another place than its queue offset proves no blank wrong.
    """
    if queue.name.kind is not QueueKind.PLAIN or queue.misplaced or queue.skipped or made.size != stored.size:
        return False
    is_blank = (stored["size"] == PRE_BLANK_SIZE) & (stored["tags_code"] == 0)
    is_unit = (made["size"] > 0) & (made["size"] != PRE_BLANK_SIZE)
    is_after_a_unit = ~np.logical_and.accumulate(is_blank)
    return bool((is_blank & is_unit & is_after_a_unit)[made != stored].all())


def path_in_store(path: str) -> str:
    """Return the path below the store's root of a file in the output."""
    kinds = {EXTENSION, *map(str, QueueKind)}
    return path if path.partition("/")[0] in kinds else f"{QueueKind.PLAIN}/{path}"


def path_in_output(path: str) -> str:
    """Return the path of a store's queue file in the output: plain queues lie there without their folder."""
    return path.removeprefix(f"{QueueKind.PLAIN}/")


def _wrong_units(joined: JoinResult, settings: QueueSettings) -> dict[str, list[range]]:
    """Return the units that the comparison with the log objects to, by their files' paths in the output."""
    found: dict[str, list[range]] = defaultdict(list)
    for difference in joined.differences:
        is_of_none = difference.kind is DifferenceKind.MISSING_FILE  # or of one whose length says it
        if is_of_none or difference.kind in NOT_OF_QUEUES or _leads_beyond(difference, joined):
            continue  # the log has lost what the unit leads to
        for path in _files_of(difference, settings):
            found[path].append(range(difference.position, difference.position + difference.times))
    return found


def _files_of(difference: Difference, settings: QueueSettings) -> Iterator[str]:
    """Yield the files, by their paths in the output, that a difference is in."""
    name = difference.queue
    size, unit = settings.file_sizes[name.kind].value, name.kind.layout.size
    first, last = (at * unit // size for at in (difference.position, difference.position + difference.times - 1))
    yield from (f"{path_in_output(name.path)}/{name_of_offset(n * size)}" for n in range(first, last + 1))


def _leads_beyond(difference: Difference, joined: JoinResult) -> bool:
    """Return whether the difference is at the queue's end and points after the log's end."""
    is_last = difference.position + difference.times >= joined.ends[difference.queue]
    return difference.kind is DifferenceKind.BEHIND_LOG and is_last


def _units(data: bytes, name: QueueName) -> Units:
    layout = UNITS[name.kind]
    return np.frombuffer(data, layout, len(data) // layout.itemsize)


def _first_of(file: BuiltFile, queue: BuiltQueue) -> int:
    """Return the position in its queue of a file's first unit."""
    return int(Path(file.path).name) // queue.name.kind.layout.size


def _unit_files(queue: BuiltQueue) -> Iterator[BuiltFile]:
    return (file for file in queue.files if not _is_extension(file))


def _is_extension(file: BuiltFile) -> bool:
    return file.path.startswith(f"{EXTENSION}/")


def _delete(out: Path, files: Iterable[BuiltFile]) -> None:
    for file in files:
        path = out / file.path
        path.unlink(missing_ok=True)
        for folder in _folders(path, out):
            if any(folder.iterdir()):
                break
            folder.rmdir()


def _folders(path: Path, out: Path) -> Iterator[Path]:
    yield from (folder for folder in path.parents if folder.is_relative_to(out) and folder != out)
