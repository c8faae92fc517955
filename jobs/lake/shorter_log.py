"""
Detects a store that is older than the lake's rows of it: its log ends before them, or has earlier records there.

A log that ends before the lake's rows is that of an older copy, a lagging replica, or a broker that lost the end of its
log. All three have the same bytes. If the directory's own queues or index files point to the missing records, or if an
earlier run read these records from the same directory, they were lost. A directory is the same if its path, its inode
and its creation time are the same: a copy differs in all three, and a snapshot of a disk is mounted at another path.
Anything else is a copy or a replica, which shows nothing about the broker.

If a broker was restored from a backup, or continues after losing the end of its log, an earlier copy has other records
where the lake has newer ones. A broker only writes newer records: the log with the newest one is the current one.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from shlex import quote
from typing import Any, NamedTuple, Self, cast

from jobs.console.amounts import utc_time_text
from jobs.console.process import tool_command
from jobs.lake.commit import open_table
from jobs.lake.directory_id import DirectoryId
from jobs.lake.identity import find_stores_with_record, has_fingerprint, read_first_record
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.manifest import SupersededRows
from jobs.lake.snapshot_files import has_rows_within
from jobs.lake.tables import MESSAGES, SUPERSEDED_MESSAGES, Table
from jobs.store.log_ends import find_end_after_crash, find_newest_known_offset, has_lost_end
from jobs.store.queue_files import queues_in_files
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, find_newest_segment, plan_ranges
from jobs.store.running_broker import find_broker_process
from jobs.store.store import Store
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.errors import is_disk_error

DIRECTORIES_KEY = "directories"  # key in a manifest's state
_CLOCKS_DIFFER_MS = 5_000  # the largest difference between the clocks of a master and its replicas
_MOST_DIRECTORIES = 16  # that are kept for each store, the most recently read ones


class ReadDirectory(NamedTuple):
    """A directory from which runs have read a store."""

    directory: DirectoryId
    to_offset: int  # the offset up to which its log was read
    accepted_end: int = -1  # the end of its log whose loss the user has acknowledged

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Self:
        """Parse the stored form."""
        *directory, to_offset, accepted_end = values
        return cls(DirectoryId(*directory), to_offset, accepted_end)

    def to_json(self) -> list[object]:
        """Return the form that a manifest's state keeps."""
        return [*self.directory, self.to_offset, self.accepted_end]


def list_read_directories(state: Mapping[str, object]) -> list[ReadDirectory]:
    """Return the directories from which runs have read a store; the last one has the newest configuration."""
    stored = cast("Sequence[Sequence[Any]]", state.get(DIRECTORIES_KEY, ()))
    return [ReadDirectory.from_json(values) for values in stored]


def find_read_directory(state: Mapping[str, object], directory: DirectoryId) -> ReadDirectory | None:
    """Return what runs have read from a directory, if any."""
    return next((one for one in list_read_directories(state) if one.directory == directory), None)


def state_after_reading(
    state: Mapping[str, object], read: ReadDirectory, *, has_newest_config: bool, superseded_from: int | None = None
) -> dict[str, object]:
    """
    Return the state after a run has read from a directory.

    If the log was rewritten starting at an offset, no directory is expected to have more of the earlier log.
    """
    others = [one for one in list_read_directories(state) if one.directory != read.directory]
    if superseded_from is not None:
        others = [one._replace(to_offset=min(one.to_offset, superseded_from)) for one in others]
    found = [*others, read] if has_newest_config else [*others[:-1], read, *others[-1:]]
    return {DIRECTORIES_KEY: [one.to_json() for one in found[-_MOST_DIRECTORIES:]]}


class ShorterLog(NamedTuple):
    """The end of a log, the end of the lake's rows of it, and the evidence on which of them is out of date."""

    log_end: int
    lake_end: int
    loss_evidence: str  # why the directory has lost records; empty if it may be an older copy
    copy_evidence: str = ""  # file times that show an older copy, as text

    def text(self, store: Store, lake: Lake) -> str:
        """Return the finding, the evidence, and the command that restores a lost end."""
        missing = self.lake_end - self.log_end
        command = f"{tool_command()} repair {store.command_words} --lake {quote(lake.location)} --out REPAIR"
        ends = f"the store's log ends {missing:,} bytes before what the lake has, at offset {self.log_end:,}"
        ends += f" instead of {self.lake_end:,}"
        if self.loss_evidence:
            return (
                f"{ends}: {self.loss_evidence}. If this is the broker's directory and not a copy, do not start the "
                f"broker; restore the end of the log with: {command}"
            )
        times = f" ({self.copy_evidence})" if self.copy_evidence else ""
        return (
            f"{ends}: it is an older copy, or a replica that lags{times}. Its configuration and its consumer offsets "
            "are not recorded. If this is the broker's directory, the end of its log is lost; do not start the broker, "
            f"and restore the end with: {command}"
        )


def find_shorter_log(lake_store: LakeStore, store: Store, directory: DirectoryId) -> ShorterLog | None:
    """Return where a log ends before the lake's rows of it; None if the log has everything that the lake has."""
    newest_manifest = lake_store.newest_manifest
    log_end = find_records_end(lake_store, store)
    if newest_manifest is None or log_end is None or log_end >= newest_manifest.to_offset:
        return None
    loss, copied = _explain_missing_end(store, log_end)
    read = find_read_directory(newest_manifest.state, directory)
    if not loss and read is not None and read.to_offset > log_end:
        loss = f"an earlier run read this directory up to offset {read.to_offset:,}"
    if read is not None and read.accepted_end == log_end:
        loss = ""
    copied = copied or _compare_times(store, newest_manifest.store_timestamp)
    return ShorterLog(log_end, newest_manifest.to_offset, loss, copied)


def contradicts_lake(lake: Lake, superseded: SupersededRows, shorter: ShorterLog | None) -> bool:
    """Return whether a log has records that differ from those of the lake, and not only records that the lake lacks."""
    if shorter is None:
        return True
    snapshot = open_table(lake, MESSAGES.name)
    compared = {"physical_offset": (superseded.from_offset, shorter.log_end - 1)}
    return snapshot is not None and has_rows_within(lake, MESSAGES, snapshot, superseded.store_id, compared)


class OlderHistory(NamedTuple):
    """The end of a log with other, older records than the lake, and the finding as text."""

    log_end: int
    text: str


def find_older_history(
    lake: Lake, lake_store: LakeStore, store: Store, superseded: SupersededRows | None
) -> OlderHistory | None:
    """
    Return the finding that a log that would supersede rows of the lake is older than they are; None if it is not.

    The clock of a replica that becomes the master may be slow. So a log counts as older only if it is older by five
    seconds (a broker takes longer to start), or if it has records that an earlier run has already superseded. If the
    lake has the log's last message, the log only ends earlier, and the lake's rows before it are outdated.
    """
    lake_ms = lake_store.newest_manifest.store_timestamp if lake_store.newest_manifest else None
    if superseded is None or lake_ms is None:
        return None
    newest = find_newest_segment(store)
    tail = _read_tail(store, newest[0].base_offset) if newest else None
    if tail is None or tail.stored_ms is None or tail.stored_ms >= lake_ms:
        return None
    log_end, log_ms = tail.end, tail.stored_ms
    has_last = _has_record_at(lake, MESSAGES, lake_store, store, tail.last_offset)
    is_replaced = has_last or _has_record_at(lake, SUPERSEDED_MESSAGES, lake_store, store, superseded.from_offset)
    if log_ms >= lake_ms - _CLOCKS_DIFFER_MS and not is_replaced:
        return None
    what = "a copy from before the broker was restored or truncated its log"
    if has_last:
        what = "an older copy, or a replica that lags: the lake has its newest message as well"
    text = (
        f"the store's log has other messages than the lake from offset {superseded.from_offset:,}, but its newest "
        f"message was stored at {utc_time_text(log_ms)}, before the newest one of the lake ({utc_time_text(lake_ms)}). "
        f"It is {what}. Nothing of it is recorded; to keep its messages, ingest it into a new lake"
    )
    return OlderHistory(log_end, text)


def _has_record_at(lake: Lake, table: Table, lake_store: LakeStore, store: Store, offset: int | None) -> bool:
    """Return whether a table has the record that a store's log has at an offset."""
    ranges = plan_ranges(store, offset, WHOLE_SEGMENTS) if offset is not None else ()
    first = next(map(read_first_record, ranges), None)
    return first is not None and lake_store.store_id in find_stores_with_record(lake, table, [first])


class _Tail(NamedTuple):
    """The end of a log, and its last record."""

    end: int
    stored_ms: int | None
    last_offset: int | None


def _read_tail(store: Store, start: int) -> _Tail | None:
    """Return the end of a log and its last record after *start*; None if it is unreadable."""
    end, stored_ms, last_offset = start, None, None
    for range_ in plan_ranges(store, start, WHOLE_SEGMENTS):
        reader = RangeReader(range_)
        try:
            with closing(reader.pieces()) as pieces:
                for item in pieces:
                    if isinstance(item, RawRecords) and item.positions.size:
                        last_offset = item.base_offset + int(item.positions[-1])
        except OSError as error:
            if not is_disk_error(error):
                raise
            return None  # reported when it is read for the tables
        facts = reader.facts
        if facts.was_deleted:
            return None
        stored_ms = stored_ms if facts.store_timestamp is None else facts.store_timestamp
        if facts.unfinished_from is not None:
            return _Tail(facts.unfinished_from, stored_ms, last_offset)
        end = facts.next_offset
    return _Tail(end, stored_ms, last_offset)


def _explain_missing_end(store: Store, log_end: int) -> tuple[str, str]:
    """
    Return why the store's own files show that the end of its log is lost, and why they show that it was copied.

    Both texts are empty if no queue or index file points to a record after the end.
    """
    if not store.has_clean_shutdown:
        crashed = find_end_after_crash(store, log_end)
        if crashed is None:
            return "", ""
        text = f"{crashed.text}: {crashed.evidence_text}"
        return (text, "") if crashed.loss_evidence else ("", text)
    if not store.segments or find_broker_process(store.root) is not None:
        return "", ""
    newest = find_newest_known_offset(store, queues_in_files(store))
    text = f"queues or index files of this closed store point to a record at offset {newest:,}"
    return (text if has_lost_end(store, newest, log_end) else ""), ""


def find_records_end(lake_store: LakeStore, store: Store) -> int | None:
    """Return the end of the log's last record; None if the log reaches the end of the lake's rows, or is unreadable."""
    newest = find_newest_segment(store)
    if newest is None or lake_store.newest_manifest is None:
        return store.start_offset
    segment, _ = newest
    fingerprints = lake_store.newest_fingerprints  # the newest one covers the last records in the lake
    if segment.base_offset >= lake_store.newest_manifest.to_offset or (
        fingerprints and has_fingerprint(fingerprints[0], store)
    ):
        return None
    inside = (one for one in fingerprints if segment.base_offset < one.end <= segment.base_offset + segment.size)
    start = next((one.end for one in inside if has_fingerprint(one, store)), segment.base_offset)
    tail = _read_tail(store, start)
    return tail.end if tail is not None else None


def _compare_times(store: Store, newest_ms: int | None) -> str:
    """Return that no file was modified since the lake's newest message was stored, as text; empty if one was."""
    files = (*store.queue_files, *store.index_files, *store.other_files)
    times = [file.modified_ms for file in files]
    for directory in {segment.location.rpartition("/")[0] for segment in store.segments}:
        times += [info.modified_ms for info in store.storage.list_files(directory)]
    newest_file_ms = max(times, default=0)
    if newest_ms is None or newest_file_ms >= newest_ms:
        return ""
    return (
        f"its files were last modified at {utc_time_text(newest_file_ms)}, before the newest message of the lake was "
        f"stored at {utc_time_text(newest_ms)}"
    )
