"""
The existing index files, and their positions in the sequence of keys.

A header states the message with which a file begins, but not which of its keys. The first entries are therefore
searched where an undisturbed broker would have continued, then at every key of that message. The result shows what
happened between two files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from itertools import pairwise, takewhile
from typing import NamedTuple

from jobs.products.index.file_builder import BrokerIndexFile, detect_zone, file_name_for_time
from jobs.products.index.key_sequence import ENTRIES_OF_FILE_ITSELF, KeyPart, KeySequence
from jobs.store.record_places import find_record
from jobs.store.store import Store
from rmq_formats.indexfile.build import time_diff_s
from rmq_formats.indexfile.layout import ENTRY, HEADER, Geometry, IndexEntry, IndexHeader, decode_header
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.layout import make_block_reader

ENTRIES_COMPARED = 64  # entries that are compared to find a file's place
ENTRIES_COMPARED_AFTER_RESTART = 8  # entries that are compared to find where a file continues after a restart
MAX_DISCONTINUITIES = 64
_KEYS_OF_A_MESSAGE = 4096  # keys of one message that are searched


class EntryRun(NamedTuple):
    """
    Consecutive entries of a file, starting with number *first_entry*, for consecutive keys, starting with *first_key*.

    For messages that the log has lost, the entries are the file's own, and *first_key* is the number of the first key
    after them, or of the *log_key_count* keys of changed records in their place.
    """

    first_entry: int
    first_key: int
    is_lost: bool = False
    log_key_count: int = 0  # the number of keys of the log; equal to *entry_count* unless the messages are lost
    entry_count: int = 0


@dataclass(frozen=True, slots=True)
class Survivor:
    """A file and its position in the sequence."""

    broker_file: BrokerIndexFile
    first_key: int
    previous_header: IndexHeader | None = None  # the end of the file before it, as its first entry shows
    head_count: int = 0  # leading entries of messages before the log
    tail_count: int = 0  # last entries of messages that the log does not hold yet
    first_message_keys: range | None = None  # the numbers of the keys of its first message
    runs: tuple[EntryRun, ...] = ()  # runs of its entries after the head; the last run includes the tail
    is_repeated: bool = False  # an earlier file has all its keys, and no start of a broker explains it

    @property
    def is_before_log(self) -> bool:
        """Whether all its messages are deleted."""
        return 0 < self.head_count == self.broker_file.header.entry_count

    @property
    def end_key(self) -> int:
        """The number of the key after its last one."""
        last = (
            self.runs[-1]
            if self.runs
            else EntryRun(1, self.first_key, log_key_count=self.broker_file.header.entry_count)
        )
        return last.first_key + last.log_key_count

    @property
    def lost_entry_count(self) -> int:
        """Number of entries of messages that the log has lost."""
        return sum(run.entry_count for run in self.runs if run.is_lost)

    @property
    def skipped_keys(self) -> list[EntryRun]:
        """Keys that the broker left out between two entries: their number, and the entry after them."""
        return [
            EntryRun(run.first_entry, reached, log_key_count=run.first_key - reached)
            for before, run in pairwise(self.runs)
            if run.first_key > (reached := before.first_key + before.log_key_count)
        ]

    @property
    def repeated_keys(self) -> list[EntryRun]:
        """The runs of entries that begin with keys which the file already has, after a restart."""
        return [
            run
            for before, run in pairwise(self.runs)
            if not before.is_lost and not run.is_lost and run.first_key < before.first_key + before.log_key_count
        ]

    @property
    def is_continuous(self) -> bool:
        """Whether its keys are in the log, or after its end, and it leaves none out."""
        return not (self.head_count or self.lost_entry_count or self.skipped_keys)

    def list_parts(self, keys: KeySequence) -> list[KeyPart]:
        """Return the file's keys in the log, in the order of its entries, and its own entries for lost messages."""
        found: list[KeyPart] = []
        for run in self.runs:
            end = min(run.first_key + run.entry_count, len(keys))
            found += (
                [KeyPart(ENTRIES_OF_FILE_ITSELF, run.first_entry, run.entry_count)]
                if run.is_lost
                else keys.list_parts(run.first_key, end)
            )
        return found


def list_index_files(store: Store) -> list[BrokerIndexFile]:
    """Return the index files of a store with their headers; a file that is too short has an empty header."""
    found = []
    for file in store.index_files:
        with suppress(FileNotFoundError):  # retention has deleted it since it was listed
            header = decode_header(store.read(file, 0, HEADER.size).ljust(HEADER.size, b"\0"))
            found.append(BrokerIndexFile(file.path_facts.path.rpartition("/")[2], file.location, file.size, header))
    return found


def is_without_header(broker_file: BrokerIndexFile, geometry: Geometry) -> bool:
    """
    Return whether a file of the right size has an empty header, as the first file has before the first key.

    A broker creates it for its first message, with keys or without; releases up to 4.9.8 leave it like this when they
    stop, newer ones write 1 as its count. Each later file has the end of the file before it in its header.
    """
    return broker_file.size == geometry.file_size and not any(broker_file.header)


def refusal_reason(broker_file: BrokerIndexFile, geometry: Geometry) -> str | None:
    """Return why a file is not a valid index file, judging by its size and header alone."""
    header = broker_file.header
    if broker_file.size < geometry.file_size:
        return f"truncated: {broker_file.size} bytes of {geometry.file_size}"
    if broker_file.size > geometry.file_size:
        return f"wrong geometry: {broker_file.size} bytes, expected {geometry.file_size}"
    if not any(header):
        return "the header is empty"
    if not 0 <= header.index_count <= geometry.index_num:
        return f"the header is damaged: index_count {header.index_count}"
    if header.begin_physical_offset < 0 or header.end_physical_offset < header.begin_physical_offset:
        # With the first entry, a broker first writes the begin into the header, and only then the count and the end.
        is_begun = header.entry_count <= 1 and 0 <= header.end_physical_offset < header.begin_physical_offset
        what = "the machine crashed while the first entry was written" if is_begun else "the header is damaged"
        return f"{what}: begin offset {header.begin_physical_offset}, end offset {header.end_physical_offset}"
    return None


def ranges_truncated_by_promotion(
    files: Sequence[BrokerIndexFile], takeovers: Iterable[int], keys: KeySequence, geometry: Geometry, store: Store
) -> tuple[tuple[int, int], ...]:
    """
    Return the bounds of messages in index files that a promotion truncated; *takeovers* are starts of epochs.

    A returning replica truncates its log where the new master begins, but never its index files: they keep entries of
    the truncated part, and lack the new master's messages with offsets below the last of those.
    """
    found = []
    for takeover in takeovers:
        start = max(takeover, keys.start_offset)
        if any(span.last_record_offset is not None and span.last_record_offset >= start for span in keys.ranges):
            odd = _entries_without_key(files, start, keys, geometry, store)
            if odd:
                found.append((odd[0], odd[-1] + 1))
    return tuple(found)


def _entries_without_key(
    files: Sequence[BrokerIndexFile], start: int, keys: KeySequence, geometry: Geometry, store: Store
) -> list[int]:
    odd: list[int] = []
    for broker_file in files:
        if broker_file.header.end_physical_offset < start:
            continue
        with store.storage.open(broker_file.location) as file:
            reader = IndexReader(file.read, geometry, broker_file.location)
            count = broker_file.header.entry_count
            for number in range(_first_at_or_after(reader, count, start) + 1, count + 1):
                entry = reader.entry(number)
                if any(first <= entry.physical_offset < end for first, end in keys.lost_ranges):
                    continue
                if _is_key(entry, keys, broker_file.header.begin_timestamp if number > 1 else None):
                    return odd
                odd.append(entry.physical_offset)
    return odd


def _is_key(entry: IndexEntry, keys: KeySequence, begin: int | None) -> bool:
    """Return whether the log has the key of an entry; a message that was sent twice has other seconds since *begin*."""
    first = keys.find_first_key(entry.physical_offset)
    return any(
        key.key_hash == entry.key_hash
        and (begin is None or abs(time_diff_s(begin, key.store_timestamp) - entry.time_diff_s) <= 1)
        for key in takewhile(
            lambda key: key.physical_offset == entry.physical_offset, keys.read_keys(first, first + _KEYS_OF_A_MESSAGE)
        )
    )


def has_keys_of_log(broker_file: BrokerIndexFile, keys: KeySequence, geometry: Geometry, store: Store) -> bool:
    """Return whether any of a file's entries (of many, a sample) is a key of the log."""
    with store.storage.open(broker_file.location) as file:
        reader = IndexReader(file.read, geometry, broker_file.location)
        count = broker_file.header.entry_count
        numbers = range(1, count + 1, max(count // ENTRIES_COMPARED, 1))
        return any(_is_key(reader.entry(number), keys, None) for number in numbers)


class FilePlacer:
    """Finds the positions of the files, one after the other."""

    def __init__(self, keys: KeySequence, geometry: Geometry, store: Store) -> None:
        self._keys = keys
        self._geometry = geometry
        self._store = store

    def place_all(self, files: Sequence[BrokerIndexFile]) -> list[Survivor]:
        """Return the files with their positions, ordered by name."""
        zone = detect_zone((file.name, file.header.begin_timestamp) for file in files)
        placed: list[Survivor] = []
        before: Survivor | None = None
        run_end, is_explained = 0, False
        for number, file in enumerate(files):
            found = self._place(file, before)
            if before is not None and self._is_repeated(found, before, placed):
                if number >= run_end:
                    run_end, is_explained = self._run_from(number, files, found, before, zone)
                # A start that found the newest file empty explains the repetition; otherwise these files are copies.
                found = replace(found, is_repeated=not is_explained)
            if not found.is_repeated:
                before = found
            placed.append(found)
        return placed

    def _is_repeated(self, found: Survivor, before: Survivor, placed: Sequence[Survivor]) -> bool:
        """
        Return whether an earlier file has all keys of this one: it is a copy, or a start found an empty file.

        Any other start does not index messages before the last one of the newest file again: a broker skips messages
        with a lower offset than that file's end. Entries of lost messages do not count as keys. If a file has only such
        entries, changed records are in the place of its messages, as in the files around it.
        """
        if found.lost_entry_count == found.broker_file.header.entry_count:
            return False
        again = self._keys.find_first_key(before.broker_file.header.end_physical_offset)
        return not found.is_before_log and found.first_key < min(found.end_key, again) and any(
            not one.is_before_log and one.first_key <= found.first_key and found.end_key <= one.end_key
            for one in placed
        )  # fmt: skip

    def _run_from(
        self, number: int, files: Sequence[BrokerIndexFile], found: Survivor, before: Survivor, zone: tzinfo | None
    ) -> tuple[int, bool]:
        """
        Return the end of the consecutive files starting with *number*, and whether a broker's start explains them.

        A broker that is killed before it writes the first entry of a new file leaves zeros. Such a file has no last
        message, so the next start skips nothing: it fills this file and the next ones with all messages that it reads,
        starting at the beginning of a log file. Copies of files never extend past the end of the originals, and may
        have names that are older than the last message in those.
        """
        ended = before.broker_file.header
        if not self._begins_log_file(found) or ended.index_count < self._geometry.index_num:
            return number + 1, False
        if zone is not None and found.broker_file.name < file_name_for_time(ended.end_timestamp, zone):
            return number + 1, False
        last = found
        for end, file in enumerate(files[number + 1 :], number + 1):
            if last.end_key > before.end_key:
                return end, True
            following = self._place(file, last)
            # Two files of one start share at most one message, all keys of which may be repeated; after another kill
            # the next file begins where a log file does. No start creates a file that continues elsewhere.
            again = self._keys.find_first_key(last.broker_file.header.end_physical_offset)
            if not again <= following.first_key <= last.end_key and not self._begins_log_file(following):
                return end, False  # no file between is the first of a run that goes farther
            last = following
        was_killed_again = last.broker_file.header.index_count < self._geometry.index_num
        return len(files), last.end_key > before.end_key or was_killed_again

    def _begins_log_file(self, survivor: Survivor) -> bool:
        segment = self._store.segment_at(survivor.broker_file.header.begin_physical_offset)
        return segment is not None and self._keys.find_first_key(segment.base_offset) == survivor.first_key

    def _place(self, broker_file: BrokerIndexFile, before: Survivor | None) -> Survivor:
        """Return a file with its position; *before* is the file before it."""
        count = broker_file.header.entry_count
        first_message_keys: range | None = None
        with self._store.storage.open(broker_file.location) as file:
            read = make_block_reader(file.read, ENTRIES_COMPARED * ENTRY.size)  # the first entries are one request
            reader = IndexReader(read, self._geometry, broker_file.location)
            head = _first_at_or_after(reader, count, self._keys.start_offset)
            if count and head == count:
                return Survivor(broker_file, -count, head_count=head)
            first_entries = [reader.entry(number) for number in range(1, min(count, ENTRIES_COMPARED) + 1)]
            lost = self._find_lost_entries(reader, head, count)
            if head:  # minus the number of older entries: so entry minus key is the same in all
                start = -head
            elif lost and lost[0].first_entry == 1:
                start = lost[0].first_key
            else:
                first_message_keys = self._find_keys_of_message(broker_file.header.begin_physical_offset)
                start = self._find_start(first_entries, first_message_keys, before)
            runs = self._find_runs(reader, EntryRun(head + 1, max(start, 0)), count, lost)
        previous: IndexHeader | None = None
        begins_with_lost = len(runs) > 1 and runs[1].first_entry == 1
        if not head and not begins_with_lost:
            previous, is_first_lost = self._find_previous_header(start, first_entries, before)
            if is_first_lost:
                runs = [EntryRun(1, start, is_lost=True), EntryRun(2, start + 1), *runs[1:]]
        counted = _count_entries(runs, count)
        last = counted[-1]
        newer = 0 if last.is_lost else last.first_key + last.log_key_count - len(self._keys)
        return Survivor(
            broker_file,
            start,
            previous,
            head_count=head,
            tail_count=min(max(newer, 0), count - head),
            first_message_keys=first_message_keys,
            runs=counted,
        )

    def _find_keys_of_message(self, physical_offset: int) -> range | None:
        """Return the numbers of a message's keys, perhaps none; None if the log does not have the message."""
        if not self._keys.start_offset <= physical_offset <= self._keys.last_record_offset:
            return None
        numbers = range(self._keys.find_first_key(physical_offset), self._keys.find_first_key(physical_offset + 1))
        return numbers if numbers or find_record(self._store, physical_offset) is not None else None

    def _find_lost_entries(self, reader: IndexReader, head: int, count: int) -> list[EntryRun]:
        """Return the entries of messages that the log has lost."""
        found = []
        header = reader.header
        for start, end in self._keys.lost_ranges:
            if end <= header.begin_physical_offset or start > header.end_physical_offset:
                continue
            first, after = (max(_first_at_or_after(reader, count, offset), head) for offset in (start, end))
            if first < after:
                changed = ((a, b) for a, b in self._keys.doubtful_ranges if start <= a < end)
                keys = sum(self._keys.find_first_key(b) - self._keys.find_first_key(a) for a, b in changed)
                key = self._keys.find_first_key(start)
                found.append(EntryRun(first + 1, key, is_lost=True, log_key_count=keys, entry_count=after - first))
        return found

    def _find_start(
        self, entries: Sequence[IndexEntry], first_message_keys: range | None, before: Survivor | None
    ) -> int:
        """Return the number of the first key of a file that begins in the log with *entries*."""
        # Among equal candidates, the first one is chosen.
        candidates = [] if before is None or before.is_before_log else [before.end_key]
        if first_message_keys is not None:
            candidates += first_message_keys or [first_message_keys.start]
        if not candidates:
            return 0 if before is None else before.end_key
        if not entries:
            return before.end_key if before else len(self._keys)
        return max(candidates, key=lambda start: self._count_matching(start, entries))

    def _count_matching(self, start: int, entries: Sequence[IndexEntry]) -> int:
        """Return how many of *entries*, up to the first mismatch, equal the keys starting with *start*."""
        pairs = zip(entries, self._keys.read_keys(start, start + len(entries)), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0][:2] == pair[1][:2], pairs))

    def _find_runs(self, reader: IndexReader, first: EntryRun, count: int, lost: Sequence[EntryRun]) -> list[EntryRun]:
        """Return the beginnings of the runs of which the file consists; only the *first* if none explain it."""
        # The log is processed gap by gap; its end counts as a gap without entries. Before a gap, entries follow the
        # keys, except for jumps. Then come entries of messages lost in the gap, which are one run. After these, the
        # first few entries show where the keys continue.
        runs = [first]
        for gap in [*lost, EntryRun(count + 1, len(self._keys))]:
            more = self._find_runs_until(reader, runs[-1], gap.first_entry - 1)
            if more is None or len(runs) + len(more) > MAX_DISCONTINUITIES + 1:
                return [first]
            runs += more
            if not gap.entry_count:
                break
            # The first lost message may begin before the gap: its end was cut off, so it has entries and no keys.
            at, key = runs[-1].first_entry, runs[-1].first_key
            runs.append(gap._replace(first_entry=max(at, min(gap.first_entry, at + gap.first_key - key))))
            number, start = gap.first_entry + gap.entry_count, gap.first_key + gap.log_key_count
            if number > count:
                break
            again = self._find_again(reader, number, count) if start < len(self._keys) else start
            if again is None:
                return [first]
            runs.append(EntryRun(number, again))
        return runs

    def _find_runs_until(self, reader: IndexReader, run: EntryRun, end: int) -> list[EntryRun] | None:
        """Return the beginnings of the runs that follow *run* up to entry number *end*; None if none explain it."""
        runs: list[EntryRun] = []
        while len(runs) < MAX_DISCONTINUITIES:
            last = min(end, run.first_entry - 1 + len(self._keys) - run.first_key)
            if last < run.first_entry:
                return runs
            if not self._is_other(reader, run.first_key - run.first_entry, last):
                # The entries after the log's last key are of newer messages, unless a restart repeats earlier keys.
                newest = self._keys.last_record_offset
                is_repeated = last < end and reader.entry(last + 1).physical_offset <= newest
                again = self._find_again(reader, last + 1, end) if is_repeated else None
                if again is None:
                    return runs
                run = EntryRun(last + 1, again)
                runs.append(run)
                continue
            # Up to the first jump every entry matches its key, and after it no entry does (entries ascend as the log
            # does): a binary search finds the first mismatch. `last` is known to be one.
            wrong = bisect_left(
                range(last), 1, run.first_entry, key=partial(self._is_other, reader, run.first_key - run.first_entry)
            )
            again = self._find_again(reader, wrong, end) if wrong > run.first_entry else None
            if again is None:
                return None
            run = EntryRun(wrong, again)
            runs.append(run)
        return None

    def _is_other(self, reader: IndexReader, shift: int, number: int) -> bool:
        """Return whether entry *number* differs from the key number *number* + *shift*."""
        keys = self._keys.read_keys(number + shift, number + shift + 1)
        return not keys or reader.entry(number)[:2] != keys[0][:2]

    def _find_again(self, reader: IndexReader, number: int, count: int) -> int | None:
        """Return the number of the key that equals entry *number*, anywhere in the sequence."""
        entries = [
            reader.entry(at) for at in range(number, min(count, number + ENTRIES_COMPARED_AFTER_RESTART - 1) + 1)
        ]
        first = self._keys.find_first_key(entries[0].physical_offset)
        own = self._keys.read_keys(first, first + ENTRIES_COMPARED)
        candidates = [first + at for at, key in enumerate(own) if key.physical_offset == entries[0].physical_offset]
        best = max(candidates, key=lambda start: self._count_matching(start, entries), default=first)
        return best if self._count_matching(best, entries) else None

    def _find_previous_header(
        self, start: int, entries: Sequence[IndexEntry], before: Survivor | None
    ) -> tuple[IndexHeader | None, bool]:
        """
        Return the end of the previous file, from whose time the first of *entries* counts seconds.

        If the log has lost the previous message, no candidate may match. The second value then says that the first
        entry is accepted without a check. If the file before has expired with its messages, only this entry shows its
        end.
        """
        own = None if before is None else before.broker_file.header
        candidates = [own, header_of_file_before(self._keys, start), own]
        if before is not None and not before.is_before_log and start > before.end_key:
            del candidates[0]
        candidates = [*filter(None, candidates), None]
        keys = self._keys.read_keys(start, start + 1)
        if not entries or not keys:
            return candidates[0], False
        time = keys[0].store_timestamp
        for header in candidates:
            if time_diff_s(max(header.end_timestamp, 0) if header else 0, time) == entries[0].time_diff_s:
                return header, False
        shown = IndexHeader(end_timestamp=time - entries[0].time_diff_s * 1000)
        has_expired = before is None and start == 0 < self._keys.start_offset
        if has_expired and time_diff_s(shown.end_timestamp, time) == entries[0].time_diff_s:
            return shown, False
        # The log has lost something between the first key and the one before it.
        reached = self._keys.read_keys(start - 1, start)[0].physical_offset if start > 0 else -1
        if any(reached < lost < keys[0].physical_offset for lost, _ in self._keys.lost_ranges):
            return None, True
        return candidates[0], False


def _count_entries(runs: Sequence[EntryRun], count: int) -> tuple[EntryRun, ...]:
    """Return the runs of a file of *count* entries with the number of their entries and keys."""
    ends = [*(run.first_entry for run in runs[1:]), count + 1]
    sizes = [end - run.first_entry for run, end in zip(runs, ends, strict=True)]
    return tuple(
        run._replace(entry_count=size, log_key_count=run.log_key_count if run.is_lost else size)
        for run, size in zip(runs, sizes, strict=True)
    )


def header_of_file_before(keys: KeySequence, start: int) -> IndexHeader | None:
    """Return end time and offset of a file that ends before key number *start*; None at the beginning."""
    found = keys.read_keys(start - 1, start) if start > 0 else []
    if not found:
        return None
    (key,) = found
    return IndexHeader(end_timestamp=key.store_timestamp, end_physical_offset=key.physical_offset)


def _first_at_or_after(reader: IndexReader, count: int, offset: int) -> int:
    """Return how many of the ascending entries have messages before *offset*."""
    return bisect_left(range(1, count + 1), offset, key=lambda number: reader.entry(number).physical_offset)
