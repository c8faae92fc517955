"""
Positions in a log: where a read begins, and how the next record boundaries are found from a proven one.

A micro-batch follows the records from the position where the last one ended. A position includes the record before it,
so that a query does not continue in another log, or in one that its broker has truncated.

A version of a lake's table of messages reaches up to the end of the newest run of this store that it includes. So that
version and the rows read after it neither overlap nor leave a gap, even while other runs are prepared or completed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from errno import ENOENT
from typing import Any, NamedTuple, Self

import numpy as np

from jobs.console.log import log_message
from jobs.lake.commit import open_table
from jobs.lake.history import chain_leads_to, find_superseded_rows
from jobs.lake.identity import has_fingerprint, identify_store
from jobs.lake.lake import DEFAULT_BROKER, Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.run_rows import read_prepared_row
from jobs.lake.snapshots import read_newest_transaction
from jobs.lake.tables import MESSAGES
from jobs.products.index.settings import determine_releases
from jobs.source.options import ReadOptions
from jobs.store.log_ends import LostPart
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, find_holes, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.request import GivenSettings
from jobs.store.store import Store
from rmq_formats.commitlog import kernels
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.errors import CorruptData, FormatError, UnsupportedFormat
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import MAX_LONG
from rmq_formats.release import Rules

_ENDS_OF_LOG = (PieceKind.UNWRITTEN, PieceKind.WAITING)


class DataLossError(FormatError):
    """Part of the log was deleted before it was read."""


def data_loss_error(start: int, end: int, location: str) -> DataLossError:
    """Return the error for lost offsets, with the remedy."""
    reason = (
        f"no file of the log contains offsets {start:,} to {end:,}: retention deleted them before they were read, or a "
        "segment is missing; with option failOnDataLoss=false, they are skipped"
    )
    return DataLossError(reason, start, location)


def find_missing_files(store: Store) -> Iterator[LostPart]:
    """Yield the offsets inside a log that are in none of its files."""
    for before, start, end in find_holes(store.segments):
        reason = f"no file of the log contains offsets {start:,} to {end:,}: a segment is missing or truncated"
        yield LostPart(start, end, f"{before.location}: {reason}")


def raise_or_warn_of_loss(parts: Iterable[LostPart], start: int, end: int, *, raises: bool) -> None:
    """Raise `DataLossError` for lost *parts* between two offsets, or warn about them."""
    for first, next_one, reason, _ in parts:
        if first < end and next_one >= start:
            if raises:
                hint = "with options failOnDataLoss=false and mode=PERMISSIVE, they are skipped"
                raise DataLossError(f"{reason}; {hint}", first)
            log_message(f"rmq-lake: {reason}; its messages are skipped", "warning")


class LogPosition(NamedTuple):
    """A proven record boundary, and the identity of the record before it."""

    offset: int
    store_timestamp: int | None = None
    record: Fingerprint | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form that a checkpoint stores."""
        return {**self._asdict(), "record": self.record._asdict() if self.record else None}

    @classmethod
    def from_json(cls, state: Mapping[str, object]) -> Self:
        """Read the JSON form; raise `CorruptData` if the checkpoint is damaged or of another source."""
        values: Any = state  # another source's checkpoint, or a damaged one, may have any values
        wrong = CorruptData(f"the query's checkpoint does not contain a position in a log: {str(values)[:60]!r}")
        try:
            record = values.get("record")
            position = cls(values["offset"], values.get("store_timestamp"), Fingerprint(**record) if record else None)
        except (AttributeError, KeyError, TypeError) as error:
            raise wrong from error
        numbers = [position.offset, *(position.record[:2] if position.record else ())]
        if not all(isinstance(number, int) and 0 <= number <= MAX_LONG for number in numbers):
            raise wrong
        return position

    @classmethod
    def after_record(cls, records: RawRecords, number: int) -> Self:
        """Return the position after one of the records."""
        position, size = int(records.positions[number]), int(records.sizes[number])
        record = Fingerprint.from_bytes(
            records.base_offset + position, bytes(records.buffer[position : position + size])
        )
        return cls(record.end, int(kernels.read_store_timestamp(records.buffer, position)), record)


# The writer of the log: the rules that properties follow, and in each row the broker and the id of its store.
LogOrigin = tuple[Rules, str, str | None]


def find_read_start(wanted: ReadOptions, store: Store) -> tuple[LogPosition, LogOrigin]:
    """Return the start of a read, and the log's writer."""
    rules = determine_releases(store, GivenSettings(release=wanted.release)).value.rules
    if wanted.after_lake is None:
        return LogPosition(store.start_offset), (rules, wanted.broker or DEFAULT_BROKER, None)
    lake = Lake(wanted.after_lake, wanted.file_system or {})
    lake_store = identify_store(lake, store, wanted.broker, register_new=False)
    if lake_store is None or not lake_store.store_id:
        reason = f"option after: {lake.location} has no rows of {store.root}"
        raise UnsupportedFormat(f"{reason}: run ingest first, or select the store with option broker")
    conflict = find_superseded_rows(lake, lake_store, store)
    if conflict is not None:
        raise UnsupportedFormat(f"option after: {store.root}: {conflict.why}: run ingest first", conflict.from_offset)
    left_out = lake_store.topic_choices.left_out_note(wanted.selection.topics)
    if left_out is not None:
        log_message(f"rmq-lake: {lake.location}: {left_out}", "warning")
    position = _watermark(lake, lake_store, wanted.after_version) or LogPosition(store.start_offset)
    return position, (rules, lake_store.broker, lake_store.store_id)


def _watermark(lake: Lake, lake_store: LakeStore, version: int | None) -> LogPosition | None:
    """Return the position up to which a version of the table reaches; None if it has no rows of this store."""
    snapshot = open_table(lake, MESSAGES.name, is_private=True)
    if snapshot is None:
        return None
    if version is not None:
        snapshot.load_as_version(version)
    run = read_newest_transaction(snapshot, lake_store.store_id)
    newest_manifest = lake_store.newest_manifest
    if newest_manifest is not None and newest_manifest.run == run:
        record = next((one for one in newest_manifest.fingerprints if one.end <= newest_manifest.to_offset), None)
        return LogPosition(newest_manifest.to_offset, newest_manifest.store_timestamp, record)
    return LogPosition(read_prepared_row(lake, lake_store.store_id, run)["to_offset"]) if run else None


def check_position_in_log(position: LogPosition, store: Store, *, with_chain: bool) -> None:
    """
    Raise `CorruptData` if the log is not the one in which *position* was found.

    *with_chain*: also if the records of the segment no longer lead to the one before *position*.
    """
    reason, record, at = "", position.record, position.offset
    if position.offset > store.end_offset:
        reason = f"the log ends at {store.end_offset:,}, before the offset up to which it was read"
    elif record is not None:
        at, is_there, segment = record.offset, has_fingerprint(record, store), store.segment_at(record.offset)
        if is_there is False:
            reason = "the record that was read before was replaced: this is another log, or its broker has truncated it"
        elif with_chain and segment and is_there and not chain_leads_to(record.offset, segment.base_offset, store):
            reason = "the record that was read before no longer exists: the log was truncated"
    if reason:
        raise CorruptData(f"{reason}; to read the log from its start, use a new checkpoint", at, store.root)


def walk_from(  # noqa: PLR0913 - how far the log is followed
    start: LogPosition,
    store: Store,
    *,
    limit: int = MAX_LONG,
    stop: int = MAX_LONG,
    part_size: int = MAX_LONG,
    fails_on_data_loss: bool,
) -> tuple[LogPosition, Sequence[Range]]:
    """
    Follow the log from *start* to its last boundary within *limit* bytes, but at least to the first one after *start*.

    Returns that boundary, and the ranges up to it, of about *part_size* bytes. Nothing after the offset *stop* is
    taken. `DataLossError` if files are missing, unless they may be; `FileNotFoundError` if one is deleted meanwhile.
    """
    end, taken = start, list[Range]()
    ranges = plan_ranges(store, start.offset, WHOLE_SEGMENTS, start.store_timestamp)
    aim = min(stop, ranges[0].start_offset + limit) if ranges else stop
    for range_ in ranges:
        is_first = end.offset <= start.offset
        if range_.start_offset >= (stop if is_first else aim):
            break
        if range_.start_offset > end.offset:
            if fails_on_data_loss:
                raise data_loss_error(end.offset, range_.start_offset, store.root)
            lost = f"offsets {end.offset:,} to {range_.start_offset:,} were deleted before they were read"
            log_message(f"rmq-lake: {store.root}: {lost}", "warning")
        end, parts, is_last = _step(end, range_, aim, stop if is_first else aim, part_size)
        taken += parts
        if is_last or end.offset < range_.end_offset:
            break
    return end, taken


def _step(
    before: LogPosition, range_: Range, aim: int, stop: int, part_size: int
) -> tuple[LogPosition, Iterator[Range], bool]:
    """
    Follow the records of one segment; return the new position, the ranges up to it, and whether the log ends there.

    A position must be a boundary that the log itself proves: the end of a record, of damage or of a file. So the range
    ends at the last boundary up to *aim*. If the first piece is longer, it is included if it ends before *stop*:
    otherwise Spark would request an empty batch forever.
    """
    position = first = LogPosition(range_.start_offset, range_.store_timestamp, before.record)
    cuts, is_last = [position], False
    reader = RangeReader(replace(range_, end=min(range_.end, max(aim - range_.base_offset, range_.start + 1))))
    for item in reader.pieces():
        if isinstance(item, Piece):
            is_last = item.kind in _ENDS_OF_LOG
            reached = position._replace(offset=item.end)
            if not is_last and first is cuts[0]:
                first = reached
            if not is_last and position.offset < item.end <= aim:
                position = reached
            continue
        ends = item.base_offset + item.positions + item.sizes
        if first is cuts[0]:
            first = LogPosition.after_record(item, 0)
        taken = int(np.searchsorted(ends, aim, side="right"))
        if taken:
            _add_cuts(cuts, item, ends[:taken], part_size)
            position = LogPosition.after_record(item, taken - 1)
    if reader.facts.was_deleted:
        raise FileNotFoundError(ENOENT, "deleted while it was being read", range_.location)
    if position.offset == range_.start_offset and first.offset <= min(stop, range_.end_offset):
        position = first
    base, stops = range_.base_offset, [*(cut.offset for cut in cuts[1:]), position.offset]
    parts = (
        replace(range_, start=cut.offset - base, end=end - base, store_timestamp=cut.store_timestamp)
        for cut, end in zip(cuts, stops, strict=True)
        if end > cut.offset
    )
    return position, parts, is_last


def _add_cuts(cuts: list[LogPosition], records: RawRecords, ends: Integers, part_size: int) -> None:
    while (number := int(np.searchsorted(ends, cuts[-1].offset + part_size))) < ends.size:
        time = int(kernels.read_store_timestamp(records.buffer, int(records.positions[number])))
        cuts.append(LogPosition(int(ends[number]), time))
