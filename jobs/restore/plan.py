"""The plan of a restore: its segments and their rows, the file size, and why the lake lacks bytes."""

import errno
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.console.amounts import count_text
from jobs.console.result import RequestError
from jobs.lake.commit import open_table, read_snapshot
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore, read_gaps_and_filled
from jobs.lake.snapshot_files import Limits, SnapshotFile, is_readable_parquet, list_snapshot_files, read_batches
from jobs.lake.tables import (
    BODY_ERROR,
    BODY_INFLATED,
    INGESTED_AT,
    LOG_PIECES,
    MESSAGES,
    QUARANTINE,
    RECORD_CRC,
    RUN,
    Table,
)
from jobs.products.log_pieces import ENTRY_HEADER_SIZE, FILE_ROW, UNKNOWN_ROW
from jobs.store.intervals import Interval, subtract_intervals, uncovered_parts
from jobs.store.release import ASSUMED, DETECTED, GIVEN, Determined
from rmq_formats.commitlog.layout import DEFAULT_SEGMENT_SIZE
from rmq_formats.commitlog.scan import IO_ERROR
from rmq_formats.properties import MAX_LONG

T = TypeVar("T")
ROWS_DELETED = "rows were deleted from the lake"
EXPIRED = "expired: removed from the lake by `optimize --keep`"
_COLUMN_DROPPED = "another engine has dropped it"
NEWER_COLUMNS = frozenset(
    {RECORD_CRC, RUN, INGESTED_AT, BODY_ERROR, BODY_INFLATED}
)  # columns that tables of earlier versions lack
_LOST, _UNREADABLE = "is missing", "is no longer a valid Parquet file"
_OLDEST_TIME, _NEWEST_TIME = 1_300_000_000_000, 4_000_000_000_000  # ms: 2011, before any broker, to 2096


class NothingToRestoreError(RequestError):
    """The lake has no rows of the wanted part."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table that may have rows of a store."""

    lake: Lake
    table: Table
    files: tuple[SnapshotFile, ...] = ()  # existing ones, in the order of the log
    faults: Mapping[str, str] = field(default_factory=dict)  # path below the lake → its fault
    lost_files: tuple[SnapshotFile, ...] = ()

    def read_rows(
        self, store_id: str, required_columns: Sequence[str], other_columns: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield a store's rows of a small table, except those in which a required column is NULL."""
        for file in self.files:
            for batch in read_batches(self.lake, self.table, file, [*required_columns, *other_columns, "store_id"]):
                for row in batch.to_pylist():
                    if row["store_id"] == store_id and all(row[name] is not None for name in required_columns):
                        yield row


def find_table_files(lake: Lake, table: Table, store_id: str) -> TableFiles:
    """Return the files of a table, readable and lost ones."""
    snapshot = open_table(lake, table.name)
    if snapshot is None:
        return TableFiles(lake, table)
    wanted = [file for file in list_snapshot_files(lake, snapshot) if file.may_have("store_id", store_id)]
    wanted.sort(key=lambda file: int(file.minimum("physical_offset", 0)))
    sizes = {info.name: info.size for info in lake.list_files(table.name)}
    wrong = {file.path: _LOST for file in wanted if file.path not in sizes}
    # Only the footer of a file whose size differs from Delta's log is read.
    others = (file for file in wanted if file.path in sizes and sizes[file.path] != file.size)
    wrong |= {file.path: _UNREADABLE for file in others if not is_readable_parquet(lake, table, file)}
    readable, lost_files = (tuple(file for file in wanted if (file.path in wrong) is lost) for lost in (False, True))
    dropped = {*table.schema.names} - {field.name for field in snapshot.schema().fields} - NEWER_COLUMNS
    lost = {f"{table.name}/{file.path}": wrong[file.path] for file in lost_files}
    lost |= {f"{table.name}, column {name}:": _COLUMN_DROPPED for name in sorted(dropped)}
    return TableFiles(lake, table, readable, lost, lost_files)


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """One file of the log, and its sources in the lake."""

    lake: Lake
    store_id: str
    base_offset: int
    size: int  # the size of the file
    path: str  # in a plan, the path below the store's root; for a task, the path of the file to write
    log_end: int  # the log ends here, or after this segment
    is_last: bool
    message_files: tuple[SnapshotFile, ...]  # files of the table `messages` that may have its rows
    piece_files: tuple[SnapshotFile, ...]  # files of the table `log_pieces`
    unread_ranges: tuple[Interval, ...]  # offsets for which the disk returned an error, ascending
    lacking: tuple[Interval, ...]  # offsets that the lake lacks, for known causes
    proven_only: bool = False  # leave out rows whose records do not have the CRC that they state


class MissingCause(NamedTuple):
    """The reason why the lake lacks some offsets."""

    start: int
    end: int
    why: str
    is_gap: bool = False  # a run did not find them in the store
    is_choice: bool = False  # a run did not select their topics
    is_expired: bool = False  # `optimize --keep` has removed them


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The segments of a log, and what the lake lacks of it."""

    segments: tuple[PlannedSegment, ...]
    size: Determined[int]  # the size of each file
    start: int  # the start of the requested part
    previous_end: int | None  # the end of the lake's last segment before the planned ones, if there is any
    end: int  # the end of the log
    lost_files: Mapping[str, str]  # missing and unreadable files of the lake, and their faults
    causes: tuple[MissingCause, ...]  # the most certain first

    @property
    def absent_ranges(self) -> list[Interval]:
        """The offsets between segments, and up to the log's end, for which the lake has no row."""
        there = [(segment.base_offset, segment.base_offset + self.size.value) for segment in self.segments]
        first = self.segments[0].base_offset
        gaps = (cause for cause in self.causes if cause.is_gap and self.start < cause.end <= first)
        lost = {(max(cause.start, self.start), cause.end) for cause in gaps}
        if self.previous_end is not None and self.start < first:
            lost = {(self.start, first)}
        return [*sorted(lost), *uncovered_parts(there, first, self.end)]

    def split_expired(self, missing: Iterable[Interval]) -> tuple[list[Interval], list[Interval]]:
        """Return which parts of the *missing* intervals are lost, and which have expired and have no other cause."""
        lost, expired = list[Interval](), list[Interval]()
        bounds = [(cause.start, cause.end) for cause in self.causes if cause.is_expired]
        others = [cause for cause in self.causes if not (cause.is_expired or cause.is_choice)]
        for interval in missing:
            lost += uncovered_parts(bounds, *interval)
            for start, end in bounds:
                part = max(interval[0], start), min(interval[1], end)
                has_cause = any(one.start < part[1] and part[0] < one.end for one in others)
                # At the beginning of the log everything has expired, including damage and gaps.
                if part[0] < part[1]:
                    (lost if has_cause and start else expired).append(part)
        return sorted(lost), sorted(expired)

    def begin_at_time(self) -> Self:
        """
        Return the plan if its start is the first message at or after a time.

        If a segment begins with this message, messages of that time may be in missing segments before it.
        """
        may_lack = self.start <= self.segments[0].base_offset + ENTRY_HEADER_SIZE
        return replace(self, start=self.previous_end) if may_lack and self.previous_end is not None else self

    def cause_of(self, start: int, end: int, *, may_be_unchosen: bool = True) -> str:
        """Return why [start, end) is missing; *may_be_unchosen* if it may be of topics that a run did not select."""
        causes = (cause for cause in self.causes if may_be_unchosen or not cause.is_choice)
        found = dict.fromkeys(cause.why for cause in causes if cause.start < end and start < cause.end)
        return "; ".join(found) or ROWS_DELETED


def plan_log(
    lake: Lake, lake_store: LakeStore, *, start: int = 0, until: int | None = None, size: int | None = None
) -> RestorePlan:
    """Plan the segments of [start, until); *start* is rounded down, because a log begins with a complete file."""
    messages, pieces, quarantine = (
        find_table_files(lake, table, lake_store.store_id) for table in (MESSAGES, LOG_PIECES, QUARANTINE)
    )
    end = lake_store.newest_manifest.to_offset if lake_store.newest_manifest else 0
    if until is not None and until > end:
        raise NothingToRestoreError(f"--until {until}: {_explain_past_end(until, end)}")
    if until is not None and start >= until:
        raise NothingToRestoreError(
            f"the range is empty: --from begins it at offset {start:,}, and --until ends it at offset {until:,}"
        )
    end = end if until is None else until
    place = ("physical_offset", "length")
    special = [
        row
        for row in pieces.read_rows(lake_store.store_id, place, ("kind", "path"))
        if row["kind"] in {FILE_ROW, UNKNOWN_ROW}
    ]
    noted = {row["physical_offset"]: row for row in special if row["kind"] == FILE_ROW}
    damaged = list(quarantine.read_rows(lake_store.store_id, place, ("reason",)))
    of_files = [(file, frozenset(_list_segments_in(lake, file, lake_store.store_id))) for file in messages.files]
    known_bases = sorted(noted.keys() | {base for _, some in of_files for base in some})
    bases = [base for base in known_bases if base < end]
    if not bases:
        begin = f"; its log begins at offset {known_bases[0]:,}" if known_bases else ""
        raise NothingToRestoreError(
            f"the lake has no messages of broker {lake_store.broker} before offset {end:,}{begin}"
        )
    length = _determine_file_size(sorted(noted) or bases, size, [row["length"] for row in noted.values()])
    # Another engine may have changed the segment of a row: only offsets at which a file can begin count.
    bases = [base for base in bases if base >= 0 and not (base - min(noted, default=base)) % length.value]
    kept = [base for base in bases if base + length.value > start]
    if not kept:
        raise NothingToRestoreError(f"the lake's messages of broker {lake_store.broker} end before offset {start:,}")
    earlier = [base + length.value for base in bases if base < kept[0]]

    message_files = _group_message_files(kept, length.value, of_files)
    piece_files = _group_piece_files(kept, pieces.files)
    unread = tuple(sorted(_interval_of(row) for row in damaged if row["reason"] == IO_ERROR))
    unknown = [row for row in special if row["kind"] == UNKNOWN_ROW]
    causes = tuple(_find_causes(messages, lake_store, damaged, unknown))
    unread_of = _group_by_segment(kept, length.value, ((*interval, interval) for interval in unread))
    intervals = ((one.start, one.end) for one in causes)
    lacking_of = _group_by_segment(kept, length.value, ((*interval, interval) for interval in intervals))
    segments = (
        PlannedSegment(
            lake, lake_store.store_id, base, length.value, _path(base, noted.get(base, {}).get("path")), end,
            is_last=base == kept[-1], message_files=tuple(message_files[base]), piece_files=tuple(piece_files[base]),
            unread_ranges=tuple(unread_of[base]), lacking=tuple(lacking_of[base]),
        )
        for base in kept
    )  # fmt: skip
    return RestorePlan(
        tuple(segments),
        length,
        start,
        max(earlier, default=None),
        end,
        {**messages.faults, **pieces.faults, **quarantine.faults},
        causes,
    )


def _group_by_segment(bases: Sequence[int], size: int, items: Iterable[tuple[int, int, T]]) -> Mapping[int, list[T]]:
    """Return for each segment the items whose interval, without its end, overlaps it; in the order of the items."""
    found: dict[int, list[T]] = defaultdict(list)
    for start, end, item in items:
        for base in bases[bisect_right(bases, start - size) : bisect_left(bases, end)]:
            found[base].append(item)
    return found


def _group_message_files(
    bases: Sequence[int], size: int, files: Iterable[tuple[SnapshotFile, Collection[int]]]
) -> Mapping[int, list[SnapshotFile]]:
    """Return for each segment the files with its rows, or with offsets in it according to Delta's log."""
    wanted = {*bases}
    found: dict[int, list[SnapshotFile]] = defaultdict(list)
    for file, some in files:
        # Without limits, none of the segments is within them.
        low, high = file.minimum("physical_offset", bases[-1] + size), file.maximum("physical_offset", -1)
        within = bases[bisect_right(bases, low - size) : bisect_right(bases, high)]
        for base in {*within, *some} & wanted:
            found[base].append(file)
    return found


def _group_piece_files(bases: Sequence[int], files: Iterable[SnapshotFile]) -> Mapping[int, list[SnapshotFile]]:
    """Return for each segment the files of `log_pieces` that may have its rows."""
    found: dict[int, list[SnapshotFile]] = defaultdict(list)
    for file in files:
        low, high = file.minimum("segment", bases[0]), file.maximum("segment", bases[-1])
        for base in bases[bisect_left(bases, low) : bisect_right(bases, high)]:
            found[base].append(file)
    return found


def _explain_past_end(offset: int, end: int) -> str:
    """Explain that the lake's log ends before *offset*, which may have been meant as milliseconds."""
    reason = f"a plain number is an offset, but the lake's log ends at offset {end:,}"
    if _OLDEST_TIME <= offset < _NEWEST_TIME:
        time = datetime.fromtimestamp(offset / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        reason += f". To pass this time, write {time}"
    return reason


def _find_causes(
    messages: TableFiles,
    lake_store: LakeStore,
    damaged: Sequence[Mapping[str, Any]],
    unknown: Sequence[Mapping[str, Any]],
) -> Iterator[MissingCause]:
    """Yield the reasons why the lake lacks bytes, the most certain first."""
    if lake_store.expiry is not None:
        yield MissingCause(0, lake_store.expiry.to_offset, EXPIRED, is_expired=True)
    gaps, filled = read_gaps_and_filled(messages.lake, lake_store)
    for gap in gaps:
        for start, end in uncovered_parts(filled, gap["from"], gap["to"]):
            yield MissingCause(start, end, gap["why"], is_gap=True)
    for row in damaged:
        yield MissingCause(*_interval_of(row), f"damaged when it was read ({row['reason']})")
    for row in unknown:
        yield MissingCause(*_interval_of(row), "no run could read these bytes")
    for file in messages.lost_files:
        path = f"{messages.table.name}/{file.path}"
        start, end = file.minimum("physical_offset", 0), file.maximum("physical_offset", 1 << 62)
        yield MissingCause(int(start), int(end) + 1, f"{path} {messages.faults[path]}")
    for start, end in _list_ranges_with_expired(lake_store, filled):
        yield MissingCause(start, end, f"{EXPIRED}, for topics with a shorter time", is_expired=True)
    if lake_store.topic_choices.left_out_note() is not None:
        why = "messages of topics that were not ingested (`ingest --topics`, `--exclude-topics`)"
        yield MissingCause(0, lake_store.topic_choices.end_offset, why, is_choice=True)


def _list_ranges_with_expired(lake_store: LakeStore, filled: Sequence[Interval]) -> list[Interval]:
    """Return ranges in which messages of some topics have expired; runs that *filled* gaps have left them out."""
    if lake_store.expiry is None:
        return []
    read_later = [*filled, *((one.start, one.end) for one in lake_store.topic_choices.backfilled)]
    first, until = lake_store.expiry.to_offset, lake_store.expiry.until
    return subtract_intervals([(min(first, until), until), *read_later], [(0, first)])


def _interval_of(row: Mapping[str, Any]) -> Interval:
    return row["physical_offset"], row["physical_offset"] + row["length"]


def _path(base_offset: int, noted: str | None) -> str:
    """Return the path of a file below a store: its original one, if that is known and valid."""
    name = f"{base_offset:020d}"
    parts = (noted or "").split("/")
    is_harmless = parts[-1] == name and all(part not in {"", ".", ".."} for part in parts)
    return "/".join(parts) if is_harmless else f"commitlog/{name}"


def _list_segments_in(lake: Lake, file: SnapshotFile, store_id: str) -> Iterator[int]:
    """Yield the segments of a file's rows; usually Delta's log has them, and the file is not read."""
    lowest, highest = file.lowest.get("segment"), file.highest.get("segment")
    is_ours = file.lowest.get("store_id") == file.highest.get("store_id") == store_id
    if isinstance(lowest, int) and lowest == highest and is_ours:
        yield lowest
        return
    seen: set[int] = set()
    for batch in read_batches(lake, MESSAGES, file, ("store_id", "segment")):
        seen.update(pc.unique(batch.column("segment").filter(pc.equal(batch.column("store_id"), store_id))).to_pylist())
    yield from sorted(seen - {None})  # a row of another engine may have none


def _determine_file_size(bases: Sequence[int], given: int | None, noted: Collection[int]) -> Determined[int]:
    """Return the size of the log's files: as the lake notes it, or else from their names, which are multiples of it."""
    usual = next((size for size, _ in Counter(noted).most_common(1)), 0)  # a damaged file may have another size
    if given is None and {usual} == {*noted}:
        return Determined(usual, DETECTED, "recorded in the lake")
    if given is not None:
        if given < usual:
            reason = f"--segment-size {given}: smaller than the segments of this log, which have {usual:,} bytes"
            raise NothingToRestoreError(f"{reason}. Omit --segment-size to use the size recorded in the lake")
        odd = next((base for base in bases if (base - bases[0]) % given), None)
        if odd is not None:
            raise NothingToRestoreError(
                f"--segment-size {given}: a segment began at offset {odd:,}, which is not a multiple of this size. "
                "Omit --segment-size to use the size recorded in the lake"
            )
        return Determined(given, GIVEN, "--segment-size")
    distances = Counter(after - before for before, after in pairwise(bases))
    if not distances:
        return Determined(DEFAULT_SEGMENT_SIZE, ASSUMED, "the default, because the lake has rows of only one file")
    size = min(distances)
    odd = next((distance for distance in distances if distance % size), None)
    if odd is not None:
        raise NothingToRestoreError(
            f"the distances between the segments differ ({size:,} and {odd:,} bytes): pass --segment-size"
        )
    return Determined(size, DETECTED, f"the distance between segments is {size:,} bytes")


def find_offset_at_time(lake: Lake, store_id: str, timestamp: int) -> int | None:
    """Return the offset of the first message stored at *timestamp* or later, if there is one."""
    within = {"store_timestamp": (timestamp, MAX_LONG)}
    offset = min(_read_extremes(lake, store_id, "physical_offset", within, pc.min), default=None)
    for file in find_table_files(lake, MESSAGES, store_id).lost_files:
        is_before = offset is not None and file.minimum("physical_offset", 0) >= offset
        if file.maximum("store_timestamp", MAX_LONG) >= timestamp and not is_before:
            reason = (
                "is missing or unreadable, and may contain the first message of this time range: pass an offset instead"
            )
            raise OSError(errno.EIO, reason, lake.locate(MESSAGES.name, file.path))
    return offset


def read_last_store_timestamp(lake: Lake, lake_store: LakeStore, end: int) -> int:
    """Return the store time of the last message before *end*; 0 if there is none."""
    if (
        lake_store.newest_manifest
        and lake_store.newest_manifest.store_timestamp
        and end >= lake_store.newest_manifest.to_offset
    ):
        return lake_store.newest_manifest.store_timestamp
    within = {"physical_offset": (0, end - 1)}
    return max(_read_extremes(lake, lake_store.store_id, "store_timestamp", within, pc.max), default=0)


def read_first_store_timestamp(lake: Lake, lake_store: LakeStore, segment: PlannedSegment) -> int:
    """Return the store time of the first message of a segment; 0 if it has none."""
    within = {"physical_offset": (segment.base_offset, segment.base_offset + segment.size - 1)}
    return min(_read_extremes(lake, lake_store.store_id, "store_timestamp", within, pc.min), default=0)


def _read_extremes(
    lake: Lake, store_id: str, column: str, within: Limits, extreme: Callable[[pa.Array], pa.Scalar]
) -> Iterator[int]:
    """Yield the *extreme* of a column in each batch of a store's messages, so memory does not grow with them."""
    ((limited, (first, last)),) = within.items()
    for file in find_table_files(lake, MESSAGES, store_id).files:
        if file.maximum(limited, last) < first or file.minimum(limited, first) > last:
            continue
        for batch in read_batches(lake, MESSAGES, file, ("store_id", limited, column), within):
            values = batch.column(limited)
            chosen = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
            chosen = pc.and_(chosen, pc.equal(batch.column("store_id"), store_id))
            if (found := extreme(batch.column(column).filter(chosen)).as_py()) is not None:
                yield found


def count_messages_in_ranges(
    lake: Lake, store_id: str, topics: Collection[str], ranges: Sequence[tuple[int, int]]
) -> Counter[str]:
    """Return the number of a store's messages in *ranges*, by topic; memory does not grow with their number."""
    if not ranges:
        return Counter()
    starts, ends = np.array(sorted(ranges), np.int64).T
    wanted = pa.array(sorted(topics), pa.string())
    within = {"physical_offset": (int(starts[0]), int(ends.max()) - 1)}

    def count(snapshot: DeltaTable) -> Counter[str]:
        counts = Counter[str]()
        for file in list_snapshot_files(lake, snapshot):
            if not file.may_have("store_id", store_id):
                continue
            for batch in read_batches(lake, MESSAGES, file, ("store_id", "topic", "physical_offset"), within):
                is_wanted = pc.and_(
                    pc.equal(batch.column("store_id"), store_id), pc.is_in(batch.column("topic"), wanted)
                )
                chosen = batch.filter(pc.and_(is_wanted, batch.column("physical_offset").is_valid()))
                offsets = chosen.column("physical_offset").to_numpy()
                numbers = np.searchsorted(starts, offsets, "right") - 1
                inside = chosen.column("topic").filter(pa.array((numbers >= 0) & (offsets < ends[numbers])))
                counts.update({one["values"]: one["counts"] for one in inside.value_counts().to_pylist()})
        return counts

    return read_snapshot(lake, MESSAGES.name, count) or Counter()


def unchecked_note(places: Sequence[Interval]) -> list[str]:
    """Return a note on the rows that cannot be checked, if there are any."""
    more = f" and in {count_text(len(places) - 1, 'more part')} of the log" if len(places) > 1 else ""
    return [
        f"rows from {start:,} to {end:,}{more} could not be checked: an earlier release of rmq-lake wrote them "
        "without record_crc, so changes by another engine may go unnoticed"
        for start, end in places[:1]
    ]
