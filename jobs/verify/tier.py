"""
Verifies the tier of a tiered store: each queue's log with itself, and its units and index entries with its records.

A running broker copies records and their units to the tier with a delay. So a queue whose units end before or after its
log lags behind, and is not wrong.

A broker copies an index file when it is full, so the keys of the newest messages are only on its own disk. It deletes
the oldest files independently of the logs; the first file's name shows whether any was deleted. An entry has its
topic as a number that only the broker can resolve; the hash of its key, which includes the topic's name, shows it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs.console.amounts import count_text
from jobs.console.result import RecommendedStep
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, LOG, QUEUES, Finding
from jobs.products.index.explanation import FileVerdict
from jobs.products.queues.settings import determine_unit_rules
from jobs.store.chain import ranges_deleted_meanwhile
from jobs.store.queue_files import StoredQueue, queues_in_files
from jobs.store.release import determine_writers
from jobs.store.store import Segment, Store, Tier, TierQueue
from jobs.store.units import Units, read_stored_units
from jobs.store.workers import Workers
from jobs.verify import LostRange, LostRanges, PartReport
from jobs.verify.log import (
    UNCHECKED_NOTE,
    check_log_of_queue,
    findings_on_foreign_records,
    findings_on_records,
    log_numbers,
)
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece
from rmq_formats.consumequeue.collect import PACKED_UNIT
from rmq_formats.errors import FormatError, NeedMoreData
from rmq_formats.indexfile.build import RuleTable, pack_keys
from rmq_formats.indexfile.keys import key_text
from rmq_formats.properties import index_key_hash
from rmq_formats.release import Release, make_rules
from rmq_formats.tier_index import ENTRY_TYPE, HEADER, Contradiction, TierIndex, decode_tier_index

_AT_ONCE = 1 << 16
_LOST_UNITS = "a file of units was deleted, lost or renamed"
_NO_QUEUES = "the tier has no queues: they have not been copied yet, have expired, or are lost"
_NEWER = "its newest segment was copied earlier than these units, or is lost"
_FIELDS = ("physical_offset", "size", "tags_code")
_ONLY_BROKERS_WRITE = RecommendedStep(
    "Only the broker can write to its tier. The messages are in the broker's own store until retention deletes them; "
    "a lake may also have them."
)
_DAMAGED = FileVerdict.DAMAGED.kind
_KEY = np.dtype([("key_hash", "<i4"), ("size", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
# No release puts tags into the index of a tier.
_NO_TAGS = RuleTable.from_rules(make_rules((0, Release.from_version("5.3.3"))))
_END_AT = HEADER.offset("end_timestamp")
_NOT_INDEXED = (
    "index files were deleted, lost or damaged, or messageIndexEnable was false when these messages were stored"
)
_NO_INDEX = "no index files: no index file has filled up yet, or messageIndexEnable is false"
_NEVER_PUT = 0  # the hash of a key whose hash has no absolute value: a broker fails to index it

QueueKeys = NDArray[np.void]  # rows of type `_KEY`
NO_KEYS: QueueKeys = np.zeros(0, _KEY)
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
_NAMED = np.dtype([("topic_id", "<i4"), ("queue_id", "<i4")])
_MOST_IDS = 1 << 32  # the number of possible topic ids
_OF_NO_QUEUE, _OF_NO_TOPIC = -1, -2  # the topic has no such queue; no known topic has the number


class IndexedQueue(NamedTuple):
    """A queue of a tier, and the keys of its records."""

    broker_folder: str
    topic: str
    queue_id: int
    start: int  # the start of its log
    end: int
    keys: QueueKeys
    lost_ranges: tuple[LostRange, ...]  # of its log


def tier_index_keys(records: RawRecords) -> Iterator[QueueKeys]:
    """Yield the keys of some records as in a tier's index, where a message has each key once."""
    offsets = records.base_offset + records.positions
    for packed, _ in pack_keys(records, _NO_TAGS):
        keys = np.empty(len(packed), _KEY)
        for name in ("key_hash", "physical_offset", "store_timestamp"):
            keys[name] = packed[name]
        keys["size"] = records.sizes[np.searchsorted(offsets, keys["physical_offset"])]
        columns = [keys["key_hash"], keys["physical_offset"]]
        order = np.lexsort(columns)
        yield keys[order[_is_first(columns, order)]]


# A file: its segment, its name below the root, its content unless it cannot be read, and findings on it alone.
_File = tuple[Segment, str, TierIndex | None, tuple[Finding, ...]]


def verify_tier(tier: Tier, workers: Workers, range_size: int) -> dict[str, PartReport]:
    """Return the findings on a tier."""
    tier_queues, index_files = tier
    each = workers.map(tier_queues, partial(_verify_queue, range_size=range_size), "verifying queues")
    logs, units = [log for log, _, _ in each], [queue for _, queue, _ in each]
    names = log_numbers(Store(""), (), 0)  # also of a tier without queues
    numbers = {name: sum(one.numbers[name] for one in logs) for name in names}
    sizes = [one.numbers["to_offset"] - one.numbers["from_offset"] for one in logs]
    queue_text = count_text(len(tier_queues), "queue")
    log = PartReport(
        [finding for one in logs for finding in one.findings],
        {**numbers, "from_offset": 0, "to_offset": sum(sizes)},
        [f"tiered storage: {queue_text}, each with its own log; the table shows the totals", UNCHECKED_NOTE],
        unverified="" if tier_queues else _NO_QUEUES,
        doubts=[doubt for one in logs for doubt in one.doubts],
        database_step=_ONLY_BROKERS_WRITE,
    )
    behind = sum(max(one.numbers["expected"] - one.numbers["matched"], 0) for one in units if not one.findings)
    ahead = sum(one.numbers["ahead"] for one in units)
    compared = {name: sum(one.numbers[name] for one in units) for name in ("expected", "matched")}
    queues = PartReport(
        [finding for one in units for finding in one.findings],
        {"queues": len(tier_queues), **compared, "of_deleted_topics": 0},
        [
            *[f"{count_text(behind, 'record')} had no unit in the tier yet"] * (behind > 0),
            *[f"{count_text(ahead, 'unit')} of newer records than the tier's log has: {_NEWER}"] * (ahead > 0),
        ],
        doubts=[doubt for one in units for doubt in one.doubts],
        database_step=_ONLY_BROKERS_WRITE,
    )
    index = verify_tier_index(index_files, [indexed for _, _, indexed in each], workers)
    index.database_step = _ONLY_BROKERS_WRITE
    return {LOG: log, QUEUES: queues, INDEX: index}


def _verify_queue(queue: TierQueue, *, range_size: int) -> tuple[PartReport, PartReport, IndexedQueue]:
    """Return the reports on the log and the units of a queue, and the keys with which its index is compared."""
    store = queue.store
    rules = determine_unit_rules(store, determine_writers(store, None).value.rules, BrokerConf())
    new_keys = [lambda *_: _KeyCollector()]
    checks, units, outcomes = check_log_of_queue(store, rules, (queue.topic, queue.queue_id), range_size, new_keys)
    end = outcomes[-1].facts.next_offset if outcomes else 0
    # Files may have expired since they were listed.
    start = max([store.start_offset, *(range_.end_offset for range_ in ranges_deleted_meanwhile(outcomes))])
    findings, lost = findings_on_records(store, checks)
    keys = np.concatenate([NO_KEYS, *(outcome.payload[0] for outcome in outcomes)])
    keys = keys[np.isin(keys["physical_offset"], units["physical_offset"])]
    foreign = sum(check.record_count for check in checks) - units.size
    cause = "the file belongs to another queue, or some of its bits changed"
    name = f"{queue.topic}/{queue.queue_id}"
    wrong = list(findings_on_foreign_records(store, foreign, kinds.FOREIGN_RECORD, name, cause))
    matched = ahead = 0
    for stored in queues_in_files(store):
        matched, ahead, differences = _compared(stored, units, start)
        wrong += [
            LostRanges(lost).mark_consequence(one._replace(file=store.path_below_root(one.file))) for one in differences
        ]
    indexed = IndexedQueue(queue.broker_folder, queue.topic, queue.queue_id, start, end, keys, tuple(lost))
    numbers = {"expected": int(units.size), "matched": matched, "ahead": ahead}
    place = f"{queue.broker_folder}/{name}"
    no_log = [f"{place}: no segments of the log, although there are units: they have expired, or are lost"]
    no_units = [f"{place}: no files of units, although there are records: they have not been copied yet, or are lost"]
    log = PartReport(findings, log_numbers(store, checks, end), doubts=no_log * (not store.segments))
    return log, PartReport(wrong, numbers, doubts=no_units * (not store.queue_files)), indexed


class _KeyCollector:
    """Collects the keys of a range's records."""

    def __init__(self) -> None:
        self._keys = [NO_KEYS]

    def add(self, item: RawRecords | Piece) -> None:
        if not isinstance(item, Piece):
            self._keys += tier_index_keys(item)

    def finish(self) -> QueueKeys:
        return np.concatenate(self._keys)


def _compared(stored: StoredQueue, expected: Units, log_start: int) -> tuple[int, int, list[Finding]]:
    """Return the number of units that match their records, that of newer units, and findings on the others."""
    matched, ahead, findings = 0, 0, []
    last, newest = (int(expected[name].max(initial=-1)) for name in ("queue_offset", "physical_offset"))
    for start, stop in _parts_with_units(stored, expected):
        units = read_stored_units(stored, start, stop)
        made = np.zeros(units.size, PACKED_UNIT)
        own = expected[(expected["queue_offset"] >= start) & (expected["queue_offset"] < stop)]
        made[own["queue_offset"] - start] = own
        is_there = made["size"] > 0
        is_right = is_there & np.logical_and.reduce([units[name] == made[name] for name in _FIELDS])
        matched += int(np.count_nonzero(is_right))
        is_ahead = (np.arange(start, stop) > last) & ((units["size"] == 0) | (units["physical_offset"] > newest))
        ahead += int(np.count_nonzero(is_ahead & (units["size"] > 0)))
        may_differ = (units["physical_offset"] < log_start) | is_ahead  # expired, or ahead
        wrong = np.flatnonzero(~is_right & ~may_differ)
        if wrong.size:
            findings.append(_differs(stored, start + int(wrong[0]), units[wrong[0]], made[wrong[0]], int(wrong.size)))
    return matched, ahead, findings


def _parts_with_units(stored: StoredQueue, expected: Units) -> Iterator[tuple[int, int]]:
    """Yield the parts of a queue with units, stored or expected: a damaged file name may leave a gap of any size."""
    first, end = stored.first_unit_number, stored.capacity_end
    there = [(file.base_offset // stored.unit_size, file.end // stored.unit_size) for file in stored.files]
    parts = [np.arange(start // _AT_ONCE, -(-stop // _AT_ONCE)) for start, stop in there]
    for part in np.unique(np.concatenate([*parts, expected["queue_offset"] // _AT_ONCE])).tolist():
        start, stop = max(part * _AT_ONCE, first), min((part + 1) * _AT_ONCE, end)
        if start < stop:  # not of a record with a damaged queue offset
            yield start, stop


def _differs(stored: StoredQueue, number: int, unit: np.void, made: np.void, times: int) -> Finding:
    file = stored.file_at(number)
    found, wanted = (", ".join(f"{name} {one[name]}" for name in _FIELDS) for one in (unit, made))
    cause = "the unit or its record changed after the broker wrote it"
    location = file.location if file else stored.files[0].location.rpartition("/")[0]
    position = number * stored.unit_size - file.base_offset if file else None
    found, cause = (found, cause) if file else ("no file", _LOST_UNITS)
    if not made["size"]:
        wanted, cause = "a record", "the record is missing from the tier's log, or the unit belongs to another log"
    log_offset = int((unit if unit["size"] else made)["physical_offset"])
    values = f"unit {number}", found, wanted, cause, times, log_offset
    return Finding(QUEUES, kinds.TIER_UNIT_DIFFERS, location, position, *values)


def verify_tier_index(index_files: Mapping[str, Store], queues: Sequence[IndexedQueue], workers: Workers) -> PartReport:
    """Return the findings on the index files of a tier's brokers."""
    findings: list[Finding] = []
    notes: list[str] = []
    if not index_files:
        keys = sum(len(queue.keys) for queue in queues)
        return PartReport(numbers={"files": 0, "keys": keys}, unverified=f"the tier has {_NO_INDEX}")
    count = sum(len(files.segments) for files in index_files.values())
    keys = sum(len(queue.keys) for queue in queues if queue.broker_folder in index_files)
    lacking = sorted({queue.broker_folder for queue in queues} - index_files.keys())
    doubts = [f"{place}: {_NO_INDEX}" for place in lacking]
    for place, files in index_files.items():
        read = workers.map(
            files.segments, partial(_read, store=Store(files.root, storage=files.storage)), "reading the index"
        )
        compared = _Comparison(read, [queue for queue in queues if queue.broker_folder == place])
        findings += (finding for *_, own in read for finding in own)
        # Each file begins where the one before it ends.
        for (before, _, _, wrong), (after, name, _, _) in pairwise(read):
            end = before.base_offset + before.size
            if end < after.base_offset and not wrong:
                found = f"no file contains bytes {end} to {after.base_offset} of the index"
                here, cause = (name, None, "before this file"), "index files were deleted or lost"
                findings.append(Finding(INDEX, kinds.MISSING_INDEX_ENTRIES, *here, found, "", cause))
        findings += compared.findings()
        if compared.waiting:
            keys_text = count_text(compared.waiting, "key")
            notes.append(f"{keys_text} had no entry yet: brokers copy an index file to the tier when it is full")
    return PartReport(findings, {"files": count, "keys": keys}, notes, doubts=doubts)


def _read(segment: Segment, *, store: Store) -> _File:
    name = store.path_below_root(segment.location)
    try:
        index = decode_tier_index(store.read(segment, 0, segment.size))
    except FileNotFoundError:  # expired meanwhile
        return segment, name, None, ()
    except FormatError as error:
        one = Contradiction(error.offset or 0, "", error.reason, "")
        return segment, name, None, (_damaged(name, one, is_short=isinstance(error, NeedMoreData)),)
    return segment, name, index, tuple(_damaged(name, one) for one in index.find_contradictions())


def _damaged(name: str, one: Contradiction, *, is_short: bool = False) -> Finding:
    is_short |= one.field == "size" and int(one.found) < int(one.expected)
    cause = "the copy of the file is incomplete" if is_short else "bits changed after the broker wrote the file"
    place, cause = (name, one.position, one.field), f"{cause}; lookups miss entries"
    return Finding(INDEX, _DAMAGED, *place, one.found, one.expected, cause, one.times)


class _Comparison:
    """The entries of one broker's index files, matched with the keys of its records."""

    def __init__(self, files: Sequence[_File], queues: Sequence[IndexedQueue]) -> None:
        # `_entries` has the entries of all files, `_keys` the keys of all queues; `_file` and `_queue` have the file of
        # each entry and the queue of each key. `_key` has the key of each entry (-1: of no known message), and
        # `_is_indexed` whether a key has an entry. They match if queue id, hash (with the topic) and offset are equal.
        # `_files` has the name and content of each readable file, and whether the file contradicts itself.
        self._files = [(name, index, bool(own)) for _, name, index, own in files if index is not None]
        self._has_expired = bool(files) and files[0][0].base_offset > 0
        self._queues = queues
        counts = np.array([len(index.entries) for _, index, _ in self._files], np.int64)
        self._entries = np.concatenate([np.zeros(0, ENTRY_TYPE), *(index.entries for _, index, _ in self._files)])
        self._file = np.repeat(np.arange(len(counts)), counts)
        self._first = np.cumsum([0, *counts])  # the number of each file's first entry
        self._keys = np.concatenate([NO_KEYS, *(queue.keys for queue in queues)])
        self._queue = np.repeat(np.arange(len(queues)), np.array([len(queue.keys) for queue in queues], np.int64))
        queue_ids = np.array([queue.queue_id for queue in queues], np.int64)[self._queue]
        of_keys, of_entries, count = _numbered(self._keys, queue_ids, self._entries)
        owner = np.full(count, -1)
        owner[of_keys] = np.arange(len(self._keys))
        self._key = owner[of_entries]  # the key of each entry; -1: it belongs to no existing message
        is_there = np.zeros(count, np.bool_)
        is_there[of_entries] = True
        self._is_indexed = is_there[of_keys]
        self._topic_ids = self._known_topic_ids()
        self.waiting = 0  # keys that have no entry yet

    def _known_topic_ids(self) -> Mapping[str, int]:
        """Return the number of each topic, which most of its entries have."""
        matched = np.flatnonzero(self._key >= 0)
        queues, ids = self._queue[self._key[matched]], self._entries["topic_id"][matched].astype(np.int64)
        # A queue and an id of 32 bits, which may be negative, as one number: pairs would be sorted much more slowly.
        pairs, times = np.unique(queues * _MOST_IDS + ids % _MOST_IDS, return_counts=True)
        topics: dict[str, Counter[int]] = {}
        for pair, count in zip(pairs.tolist(), times.tolist(), strict=True):
            queue, number = divmod(pair, _MOST_IDS)
            number -= _MOST_IDS if number >= _MOST_IDS // 2 else 0
            topics.setdefault(self._queues[queue].topic, Counter())[number] += count
        return {topic: numbers.most_common(1)[0][0] for topic, numbers in topics.items()}

    def findings(self) -> Iterator[Finding]:
        """Yield entries that differ from their messages, keys without an entry, and entries of no message."""
        yield from self._wrong()
        missing = ~self._is_indexed & (self._keys["key_hash"] != _NEVER_PUT)  # now, or not copied to the tier yet
        if self._has_expired:
            oldest = self._limit(np.minimum, np.flatnonzero(self._key >= 0))
            missing &= self._keys["physical_offset"] >= oldest[self._queue]
        waits = missing & self._may_wait()
        self.waiting = int(np.count_nonzero(waits))
        lost = np.flatnonzero(missing & ~waits)
        for number in np.unique(self._queue[lost]).tolist():
            queue, offsets = self._queues[number], self._keys["physical_offset"][lost[self._queue[lost] == number]]
            first, last = int(offsets.min()), int(offsets.max())
            where = f"offset {first}" if first == last else f"offsets {first} to {last}"
            found = f"no entries for {count_text(len(offsets), 'key')} of messages at {where}"
            place = f"{queue.broker_folder}/{queue.topic}/{queue.queue_id}", None, "keys"
            yield Finding(INDEX, kinds.MISSING_INDEX_ENTRIES, *place, found, "", _NOT_INDEXED, len(offsets))
        yield from self._of_no_message(np.bincount(self._queue[missing], minlength=len(self._queues)) > 0)

    def _wrong(self) -> Iterator[Finding]:
        """Yield a finding on the first entry of each file that contradicts its message."""
        ids = np.array([self._topic_ids.get(queue.topic, 0) for queue in self._queues], np.int64)
        for index, found in self._by_sound_files(np.flatnonzero(self._key >= 0)):
            entries, keys = self._entries[found], self._keys[self._key[found]]
            queues = self._queue[self._key[found]]
            wanted = {
                "topic_id": ids[queues],
                "size": keys["size"].astype(np.int64),
                "time_diff_s": index.time_diffs_s(keys["store_timestamp"]),
            }
            times = keys["store_timestamp"]
            # A header may have its end from one of its messages, or after a restart from the file's own beginning.
            may_end = index.end_timestamp == index.begin_timestamp or (times == index.end_timestamp).any()
            if len(found) == len(index.entries) and not may_end:
                name, _, _ = self._files[self._file[found[0]]]
                end = Contradiction(_END_AT, "end_timestamp", str(index.end_timestamp), str(times.max()))
                yield _damaged(name, end)
            for field, values in wanted.items():
                odd = np.flatnonzero(entries[field] != values)
                if odd.size:
                    queue, offset = self._queues[queues[odd[0]]], int(keys["physical_offset"][odd[0]])
                    cause = f"the entry or its record (offset {offset:,} of {queue.topic}/{queue.queue_id}) changed"
                    yield self._finding(found[odd], field, str(int(values[odd[0]])), cause)

    def _by_sound_files(self, entries: Integers) -> Iterator[tuple[TierIndex, Integers]]:
        """Yield some entries by files; files that contradict themselves are left out, as their findings name them."""
        for number, (_, index, is_wrong) in enumerate(self._files):
            found = entries[self._file[entries] == number]
            if found.size and not is_wrong:
                yield index, found

    def _finding(self, entries: Integers, field: str, expected: str, cause: str) -> Finding:
        name, index, _ = self._files[self._file[entries[0]]]
        number = int(entries[0] - self._first[self._file[entries[0]]])
        found = str(int(self._entries[entries[0]][field]))
        place = name, index.entry_position(number), f"entry {number} {field}"
        return Finding(INDEX, kinds.TIER_ENTRY_DIFFERS, *place, found, expected, cause, len(entries))

    def _may_wait(self) -> Mask:
        """Return which keys may be in the next file: several threads index the messages of one queue, out of order."""
        matched = self._key >= 0
        newest = self._limit(np.minimum, np.flatnonzero(matched & (self._file == len(self._files) - 1)))
        last = self._limit(np.maximum, np.flatnonzero(matched))
        since = np.where(newest >= 0, newest, last + 1)
        may: Mask = self._keys["physical_offset"] >= since[self._queue]
        return may

    def _limit(self, limit: np.ufunc, entries: Integers) -> Integers:
        """Return the lowest or the highest offset of the entries of each queue; -1 for none."""
        keys = self._key[entries]
        none = np.iinfo(np.int64).max if limit is np.minimum else -1
        found = np.full(len(self._queues), none, np.int64)
        limit.at(found, self._queue[keys], self._keys["physical_offset"][keys])
        return np.where(found == none, -1, found)

    def _of_no_message(self, lacks: Mask) -> Iterator[Finding]:
        """
        Yield findings on entries without a record, unless it may have expired, or is not copied yet.

        If a queue *lacks* entries, an entry after the end of its log is probably one of those, with a changed offset.
        """
        unmatched = np.flatnonzero(self._key < 0)
        queues = self._queues_of(unmatched)
        for _, found in self._by_sound_files(unmatched[queues == _OF_NO_QUEUE]):
            yield self._finding(found, "queue_id", "a queue of the topic", "the entry changed")
        unmatched, queues = unmatched[queues >= 0], queues[queues >= 0]
        offsets, hashes = (self._entries[name][unmatched] for name in ("physical_offset", "key_hash"))
        starts, ends, of_nothing = (
            np.array(values, np.int64)[queues]
            for values in (
                [queue.start for queue in self._queues],
                [queue.end for queue in self._queues],
                # The empty key, which two spaces in KEYS produce.
                [index_key_hash(key_text(queue.topic, "")) for queue in self._queues],
            )
        )
        is_odd = (offsets >= starts) & ((offsets < ends) | lacks[queues]) & (hashes != of_nothing)
        unmatched, queues = unmatched[is_odd], queues[is_odd]
        for number in np.unique(queues).tolist():
            yield from self._of_no_record(self._queues[number], unmatched[queues == number])

    def _queues_of(self, entries: Integers) -> Integers:
        topics = set(self._topic_ids.values())
        numbers = {
            (self._topic_ids.get(queue.topic), queue.queue_id): number for number, queue in enumerate(self._queues)
        }
        named = np.empty(len(entries), _NAMED)
        for name in ("topic_id", "queue_id"):
            named[name] = self._entries[name][entries]
        pairs, inverse = np.unique(named, return_inverse=True)
        found = [
            numbers.get(pair, _OF_NO_QUEUE if pair[0] in topics else _OF_NO_TOPIC)
            for pair in map(tuple, pairs.tolist())
        ]
        return np.array(found, np.int64)[inverse.reshape(-1)]

    def _of_no_record(self, queue: IndexedQueue, entries: Integers) -> Iterator[Finding]:
        """Yield findings on entries of a queue, by the cause of their missing records."""
        lost = LostRanges(queue.lost_ranges)
        wanted = f"a record of {queue.topic}/{queue.queue_id} with this key"
        for _, found in self._by_sound_files(entries):
            by_cause: dict[Finding | None, list[int]] = {}
            for at, offset in zip(found.tolist(), self._entries["physical_offset"][found].tolist(), strict=True):
                by_cause.setdefault(lost.find_cause(offset), []).append(at)
            for known_cause, some in by_cause.items():
                cause = "the entry changed, or it belongs to another log"
                finding = self._finding(np.array(some), "physical_offset", wanted, cause)
                if known_cause is not None:
                    finding = finding._replace(kind=kinds.ENTRIES_OF_LOST_MESSAGES, log_offset=int(finding.found))
                yield lost.mark_consequence(finding)


def _numbered(keys: QueueKeys, queue_ids: Integers, entries: NDArray[np.void]) -> tuple[Integers, Integers, int]:
    """Return a number for each key and entry, which those of one queue id, hash and offset share, and a bound."""
    columns = [
        np.concatenate([keys["physical_offset"], entries["physical_offset"]]).astype(np.int64),
        np.concatenate([keys["key_hash"], entries["key_hash"]]).astype(np.int64),
        np.concatenate([queue_ids, entries["queue_id"]]).astype(np.int64),
    ]
    order = np.lexsort(columns)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(_is_first(columns, order)) - 1
    return numbers[: len(keys)], numbers[len(keys) :], len(order)


def _is_first(columns: Sequence[NDArray[Any]], order: Integers) -> Mask:
    """Return which rows of a sorted order differ from the row before."""
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.logical_or.reduce([column[order][1:] != column[order][:-1] for column in columns])
    return is_first
