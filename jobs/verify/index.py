"""
Compares a store's index files with its log.

A file that a restart, an expiry or a promotion explains is recomputed under that explanation and counts as equal. A
note names a file that is ahead of the log or was written to meanwhile. Unexplained, damaged and missing files are
findings.
Entries of messages that the log has lost are consequences of the log's damage.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from jobs.console.amounts import count_text, utc_time_text
from jobs.diagnosis import kinds
from jobs.diagnosis.findings import INDEX, Finding
from jobs.products.index.explanation import (
    ExplainedFile,
    Explanation,
    FileVerdict,
    explain_index_files,
    is_truncated_by_promotion,
)
from jobs.products.index.file_builder import is_all_zeros
from jobs.products.index.key_sequence import KeySequence, RangeKeys, collect_keys, new_range_key_collector
from jobs.products.index.settings import IndexSettings, determine_index_settings, determine_releases
from jobs.products.index.survivors import list_index_files
from jobs.storage.scratch import Scratch
from jobs.store.chain import NewCollector, RangeOutcome, Results, select_results
from jobs.store.ranges import Range
from jobs.store.release import UndecidedError, detect_store_eras, parse_rules
from jobs.store.request import GivenSettings
from jobs.store.running_broker import find_broker_process
from jobs.store.store import Store, read_checkpoint, read_index_header, relist_store
from jobs.store.workers import Workers
from jobs.verify.report import PartReport
from jobs.verify.rocksdb_index import verify_rocksdb_index
from rmq_formats.indexfile.build import IndexFilePart
from rmq_formats.release import RUST_PROJECT, make_rules

_KEYS_CHANGED = "the keys of the record, which no checksum covers, changed, or "
MAX_INDEX_LAG_MS = 600_000  # store time by which a running broker's index may lag behind its log
_ROCKSDB_KEY = re.compile(rb"@[^@\x00-\x20]{1,255}@[KTU]@")  # <hour>@topic@K@key@unique key@<offset>
_LOOKED_AT = 64 << 20

_CAUSES = {
    FileVerdict.OTHER_RULE: "the file was written by a release other than the given or detected one (pass --release, "
    "with offsets if several releases wrote the store), or a segment belongs to another store; lookups work, but the "
    "bytes differ",
    FileVerdict.WRONG_GEOMETRY: "the file was created with a different maxHashSlotNum or maxIndexNum; the broker "
    "misreads it",
    FileVerdict.DAMAGED: "the file was damaged on disk, in memory or while being copied, or was only partly written",
    FileVerdict.STALE: "the file is a copy of another one, or an old copy was renamed; the broker finds its "
    "messages twice",
    FileVerdict.UNEXPLAINED: "the file was overwritten, or a record's keys, which no checksum covers, were changed",
}
_OUT_OF_ORDER = "a file was renamed, or two files were swapped; the broker searches them in the wrong time order"
_FOREIGN = "either this file or the log belongs to another store"
_UNDECIDED_VERDICTS = frozenset({FileVerdict.OTHER_RULE, FileVerdict.UNEXPLAINED})
# Causes of missing keys.
_SKIPPED = (
    "messageIndexEnable was false when these messages were stored; only a full rebuild adds their keys, "
    "because --lost-only keeps this file"
)
_LOST = "index files were deleted or lost, or a restart did not reindex these messages"
_IN_LATER_FILES = "index files may have been swapped or renamed, because files with later names have these entries"


class IndexVerification:
    """Compares the index files, as they are before the log is read, with the keys that are collected meanwhile."""

    def __init__(self, store: Store, wanted: GivenSettings, scratch: Scratch) -> None:
        self.store, self._wanted, self._scratch = store, wanted, scratch
        self._files = list_index_files(store)
        self._settings: IndexSettings | None = None
        self._undecided = ""
        self.new_collectors: list[NewCollector[RangeKeys]] = []  # for the pass over the log
        try:
            self._settings = determine_index_settings(store, self._files, wanted) if self._files else None
        except UndecidedError as error:
            self._undecided = str(error)
        self.releases = self._settings.rules if self._settings is not None else determine_releases(store, wanted)
        if self._settings is not None:
            self.new_collectors = [partial(new_range_key_collector, self._settings.rules.value.rules, scratch)]

    @property
    def has_files(self) -> bool:
        """Whether the store has index files."""
        return bool(self._files)

    def build_report(
        self,
        workers: Workers,
        store: Store,
        ranges: Sequence[Range],
        outcomes: Sequence[RangeOutcome[Results]],
        doubtful_ranges: Sequence[tuple[int, int]],
    ) -> PartReport:
        """Return the findings; *outcomes* are those of the pass over the log, whose last collector is this one."""
        if not self._files:
            in_rocksdb = verify_rocksdb_index(workers, store, ranges, self._wanted.release, self._scratch)
            return in_rocksdb or self._without_files(workers, store, ranges)
        if self._settings is None and self._is_unused(workers, store, ranges):
            return PartReport(numbers={"files": 1, FileVerdict.EQUAL.kind: 1, "keys": 0})
        if self._settings is None:
            missing = self._missing_before(workers, store, ranges)
            numbers = {"files": len(self._files)}
            return PartReport([missing] if missing else [], numbers, unverified=self._undecided)
        collected = select_results(outcomes, -1)
        return _make_report(
            explain_index_files(workers, store, collected, self._scratch, doubtful_ranges, self._files, self._settings)
        )

    def _without_files(self, workers: Workers, store: Store, ranges: Sequence[Range]) -> PartReport:
        """Explain why a store has no index files, from the checkpoint, the broker's configuration and the keys."""
        conf, checkpoint = self._wanted.conf, read_checkpoint(store)
        time = 0 if checkpoint is None else checkpoint.index_timestamp
        if time > 0:
            expected = f"files up to store time {utc_time_text(time)}, according to the checkpoint"
        elif not conf.makes_index_files:
            return PartReport(numbers={"files": 0}, notes=["the broker's configuration disables index files"])
        elif conf.is_given and not self._sure_keys(workers, store, ranges):
            return PartReport(numbers={"files": 0}, notes=["the store has no index files, and no message has a key"])
        elif conf.is_given:
            expected = "index files, because the broker's configuration enables them"
        else:
            reason = "the store has no index files: messageIndexEnable or indexFileWriteEnable is off, or they are lost"
            return PartReport(numbers={"files": 0}, unverified=reason, is_absent=True)
        place, cause = ("index", None, "files"), "the index files were deleted or lost"
        return PartReport([Finding(INDEX, kinds.MISSING_INDEX_ENTRIES, *place, "none", expected, cause)], {"files": 0})

    def _is_unused(self, workers: Workers, store: Store, ranges: Sequence[Range]) -> bool:
        """Return whether the only file has no entries and the log no keys, whatever the geometry and the release."""
        if len(self._files) > 1 or any(self._files[0].header) or self._sure_keys(workers, store, ranges):
            return False
        with store.storage.open(self._files[0].location) as file:
            return is_all_zeros(file, self._files[0].size)

    def _missing_before(self, workers: Workers, store: Store, ranges: Sequence[Range]) -> Finding | None:
        """Return a finding if the log has keys before the first index file, which its header shows for any geometry."""
        first = next((file for file in self._files if file.header.entry_count), None)
        begin = 0 if first is None else first.header.begin_physical_offset
        ranges = [range_ for range_ in ranges if range_.start_offset < begin]
        if first is None or not ranges:
            return None
        keys = self._sure_keys(workers, store, ranges)
        count = keys.find_first_key(begin)
        if not count:
            return None
        place = f"index/{first.name}", None, "before this file"
        cause = "index files were deleted or lost, or the index was disabled until then"
        return _finding_of_missing_entries(keys, kinds.MISSING_INDEX_ENTRIES, place, 0, count, cause)

    def _sure_keys(self, workers: Workers, store: Store, ranges: Sequence[Range]) -> KeySequence:
        """Return the keys that the broker has certainly indexed: without a release, those of every possible one."""
        release = self._wanted.release
        rules = parse_rules(release) if release else make_rules((0, detect_store_eras(store)[0].oldest_release))
        return collect_keys(workers, store, ranges, rules, self._scratch)


def _make_report(explanation: Explanation) -> PartReport:
    behind = list(_behind(explanation))
    findings = [
        *(_make_finding(one) for one in explanation.files if one.verdict in _CAUSES),
        *_findings_of_lost_messages(explanation),
        *_findings_of_missing_keys(explanation),
        *behind,
    ]
    if not any(finding.severity.is_alarm for finding in findings):  # the file that it names may be a wrong one
        findings += _checkpoint_findings(explanation)
    notes = list(_list_notes(explanation))
    keys = explanation.key_sequence
    is_left_out = any(finding.kind == kinds.NOT_INDEXED_ON_REPLICA for finding in behind)
    verdicts = Counter(explained.verdict.kind for explained in explanation.files)
    numbers = {
        "files": len(explanation.files), **dict(sorted(verdicts.items())),
        "keys": len(keys), "messages": keys.record_count, "behind": 0 if is_left_out else explanation.not_indexed_count,
        "damaged_bytes": keys.damaged_bytes,
    }  # fmt: skip
    return PartReport(findings, numbers, notes)


def _make_finding(explained: ExplainedFile) -> Finding:
    compared, cause = explained.comparison, _CAUSES[explained.verdict]
    if explained.is_foreign:
        cause = _FOREIGN
    elif explained.is_out_of_order or explained.right_name:
        cause = _OUT_OF_ORDER
    kind, file = explained.verdict.kind, f"index/{explained.name}"
    is_undecided = explained.verdict in _UNDECIDED_VERDICTS
    if compared is None or not compared.differences:
        found = explained.detail or str(explained.verdict)
        return Finding(INDEX, kind, file, None, "", found, "", cause, is_undecided=is_undecided)
    first = compared.differences[0]
    place = first.part if first.part is IndexFilePart.HEADER else f"{first.part} {first.number}"
    if explained.detail and explained.detail != str(first):
        cause = f"{cause} ({explained.detail})"
    values = f"{place} {first.field}", str(first.found), str(first.expected)
    times = sum(compared.counts.values())
    return Finding(INDEX, kind, file, first.position, *values, cause, times, is_undecided=is_undecided)


def _findings_of_lost_messages(explanation: Explanation) -> Iterator[Finding]:
    """Yield findings on entries of messages that the log has lost, inside it or at the end of a closed store."""
    for explained in explanation.files:
        survivor = explained.survivor
        if survivor is None or not explained.verdict.is_explained:
            continue
        header, place = explained.broker_file.header, (f"index/{explained.name}", None, "entries")
        count = survivor.lost_entry_count
        lost = f"{count_text(count, 'entry')} of messages"
        if is_truncated_by_promotion(survivor, explanation.key_sequence):
            kind, found = kinds.ENTRIES_OF_TRUNCATED_MESSAGES, f"{lost} that were truncated after a promotion"
            cause = "brokers never truncate index files; lookups skip these entries, and all others are correct"
            offset = explanation.key_sequence.truncated_ranges[0][0]
            yield Finding(INDEX, kind, *place, found, found, cause, count, offset)
        elif count:
            begin = header.begin_physical_offset
            offset = next(max(start, begin) for start, end in explanation.key_sequence.lost_ranges if end > begin)
            kind, found = kinds.ENTRIES_OF_LOST_MESSAGES, f"{lost} that are not in the log"
            cause = "the log has lost these messages; all other entries are correct"
            yield Finding(INDEX, kind, *place, found, "", cause, count, offset)
        if survivor.tail_count and explanation.store.has_clean_shutdown:
            offset = header.end_physical_offset
            found = f"{count_text(survivor.tail_count, 'entry')} of messages past the end of the log"
            cause = "the end of the log was lost after the broker had shut down cleanly, or the file was copied later"
            yield Finding(INDEX, kinds.PAST_LOG_END, *place, found, "", cause, survivor.tail_count, offset)


def _finding_of_missing_entries(  # noqa: PLR0913, PLR0917 - a finding, and the keys that it is about
    keys: KeySequence,
    kind: str,
    place: tuple[str, int | None, str],
    start: int,
    count: int,
    cause: str,
    of_messages: str = "",
    *,
    is_undecided: bool = False,
    may_be_changed: bool = False,
) -> Finding:
    """
    Return the finding that *count* keys of the log, starting with number *start*, have no entries.

    *may_be_changed*: if all are of one record, a change of this record also explains them.
    """
    (first,), (last,) = keys.read_keys(start, start + 1), keys.read_keys(start + count - 1, start + count)
    offsets = f"messages at offsets {first.physical_offset} to {last.physical_offset}"
    if keys.is_truncated_by_promotion(first.physical_offset, last.physical_offset):
        found = f"{count_text(count, 'key')} of {offsets}"
        cause = (
            "this replica did not index these records of the new master, because its index had already passed their "
            "offsets; key queries find these messages on other replicas, but not on this one until `rebuild-index` "
            "adds the entries"
        )
        here = place[0], None, "entries"
        return Finding(INDEX, kinds.NOT_INDEXED_ON_REPLICA, *here, found, found, cause, count, first.physical_offset)
    found = f"no entries for {count_text(count, 'key')}{of_messages}".format(
        offsets=offsets, first=first.physical_offset
    )
    if may_be_changed and first.physical_offset == last.physical_offset:
        cause, is_undecided = f"{_KEYS_CHANGED}{cause}", True
    return Finding(INDEX, kind, *place, found, "", cause, count, first.physical_offset, is_undecided=is_undecided)


def _findings_of_missing_keys(explanation: Explanation) -> Iterator[Finding]:
    """Yield findings on keys that are missing inside files that are otherwise right, and between files."""
    for explained in explanation.files:
        survivor = explained.survivor
        for skip in survivor.skipped_keys if survivor is not None and explained.verdict.is_explained else ():
            position = explanation.settings.geometry.value.entry_position(skip.first_entry)
            inside = f"index/{explained.name}", position, f"entry {skip.first_entry}"
            yield _finding_of_missing_entries(
                explanation.key_sequence, kinds.NOT_INDEXED, inside, skip.first_key, skip.log_key_count, _SKIPPED,
                " of {offsets}", may_be_changed=True,
            )  # fmt: skip
    for name, keys, start, is_in_later_files in explanation.find_gaps():
        place, cause = (f"index/{name}", None, "before this file"), _IN_LATER_FILES if is_in_later_files else _LOST
        yield _finding_of_missing_entries(
            explanation.key_sequence, kinds.MISSING_INDEX_ENTRIES, place, start, keys, cause,
            is_undecided=is_in_later_files, may_be_changed=not is_in_later_files,
        )  # fmt: skip


def _behind(explanation: Explanation) -> Iterator[Finding]:
    """Yield a finding if keys of the log's end are missing, unless a broker is about to add them."""
    keys, behind, last_file = explanation.key_sequence, explanation.not_indexed_count, explanation.files[-1]
    if not behind:
        return
    is_undecided = not last_file.verdict.is_explained
    doubt = "the last file could not be verified and may contain these entries, or " * is_undecided
    cause = f"{doubt}a broker that crashed deleted its newest index files and did not reindex all of their messages"
    place, start = (f"index/{last_file.name}", None, "after the last file"), len(keys) - behind
    from_first = ", from physical offset {first} on"
    finding = _finding_of_missing_entries(
        keys, kinds.MISSING_INDEX_ENTRIES, place, start, behind, cause, from_first, is_undecided=is_undecided
    )
    (first,), (last,) = keys.read_keys(start, start + 1), keys.read_keys(len(keys) - 1, len(keys))
    may_come = not explanation.store.has_clean_shutdown or find_broker_process(explanation.store.root) is not None
    if (
        finding.kind == kinds.NOT_INDEXED_ON_REPLICA
        or not may_come
        or last.store_timestamp - first.store_timestamp >= MAX_INDEX_LAG_MS
    ):
        yield finding


def _checkpoint_findings(explanation: Explanation) -> Iterator[Finding]:
    """
    Compare the checkpoint's index time with the files.

    A broker writes the end of a full file when it creates the next one; `restore` writes the end of the newest file.
    Both are right, because after a crash the broker deletes only the newest file.
    """
    store, capacity = explanation.store, explanation.settings.geometry.value.index_num
    checkpoint = read_checkpoint(store)
    if checkpoint is None:
        return
    *headers, newest = (explained.broker_file.header for explained in explanation.files)
    full = [header.end_timestamp for header in headers if header.index_count >= capacity]
    last = newest.end_timestamp
    time = checkpoint.index_timestamp
    # The broker may be killed after it has created the next file, and before it writes the time.
    crashed = not store.has_clean_shutdown
    is_of_newest = (full[-1] if full else 0) <= time <= last
    # Since 5.0.0, a broker also writes it when it stops, if the newest file is full; clocks may have gone back.
    is_of_newest |= newest.index_count >= capacity and time == last
    if time in full or is_of_newest or (time == 0 and len(full) <= crashed):
        return
    now = relist_store(store) if crashed else store
    new = (read_index_header(file, now) for file in now.index_files) if crashed else ()
    if any(header and time == header.end_timestamp for header in new):  # a broker filled another file meanwhile
        return
    cause = "after a crash, the broker would delete complete index files"
    if time > max([*full, last]):
        cause = "after a crash, the broker would keep index files that it should delete"
    right, place = full[-1] if full else 0, ("checkpoint", 16, "index_timestamp")
    yield Finding(INDEX, kinds.CHECKPOINT_INDEX_TIME, *place, str(time), str(right), cause, right_time=right)


def _list_notes(explanation: Explanation) -> Iterator[str]:
    store, settings = explanation.store, explanation.settings
    # An index in RocksDB next to the files shows in its keys: newer brokers always create the directory.
    for file in store.other_files:
        is_candidate = file.path_facts.path.startswith("rocksdbstore/") and file.size
        if is_candidate and _ROCKSDB_KEY.search(store.read(file, 0, min(file.size, _LOOKED_AT))):
            yield f"{file.path_facts.path}: an index in RocksDB (indexRocksDBEnable), which was not verified"
            break
    noted = {FileVerdict.GROWING} if store.has_clean_shutdown else {FileVerdict.GROWING, FileVerdict.AHEAD}
    for explained in explanation.files:
        if explained.verdict in noted:
            yield f"index/{explained.name}: {explained.verdict}: {explained.detail}"
    if any(release.implementation for _, release in settings.rules.value.rules):
        yield (
            f"{RUST_PROJECT} wrote the index: a Java broker would not find its messages by unique key. To use the "
            "store with a Java broker, rebuild the index with the release of that broker (`rebuild-index --release`)"
        )
    yield f"index files of {settings.geometry.value} ({settings.geometry.origin_text})"
    yield f"index format: RocketMQ {settings.rules.value} ({settings.rules.origin_text})"
