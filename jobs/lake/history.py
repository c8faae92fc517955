"""
Finds the first offset at which the log differs from the rows in the lake, record by record.

Fingerprints show that something differs, but neither where nor why: a bit may have flipped since it was read, a copy
may be incomplete, or the broker may have truncated its log and written other records. Only in the last case is the
history different, and only a valid record or the end of a file proves it.

All fingerprints may also match and be leftovers: recovery moves the write position back and leaves the old bytes after
it. So the end of the known log must still be reachable from an earlier boundary, record by record. A blank that ended a
file may have been overwritten by a record that fits in its place.

Segments that retention has deleted in the meantime are compared through the rows that the lake has of them.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.lake.commit import open_table
from jobs.lake.identity import compare_fingerprints, has_fingerprint
from jobs.lake.lake import Lake
from jobs.lake.lake_stores import LakeStore
from jobs.lake.manifest import SupersededRows
from jobs.lake.snapshot_files import has_rows_within, read_rows_where
from jobs.lake.tables import MESSAGES
from jobs.store.chain import LogTruncatedError, RangeOutcome
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.record_places import Fingerprint
from jobs.store.store import Store
from rmq_formats.arrow import MESSAGE_SCHEMA
from rmq_formats.commitlog.columns import message_batch
from rmq_formats.commitlog.framing import find_framing
from rmq_formats.commitlog.kernels import read_store_timestamps
from rmq_formats.commitlog.segment import Piece, PieceKind
from rmq_formats.kernels.integers import Integers
from rmq_formats.properties import MAX_LONG, PropertyParser

_LARGEST_MESSAGE = 16 << 20  # records end at most this far before their file's end; a broker accepts 4 MiB by default
_CLOCK_ERROR_MS = 1000  # leftovers are older by more than that: a broker takes longer to start
_LEFT_OUT = -1
_NO_RECORDS = pa.RecordBatch.from_pylist([], MESSAGE_SCHEMA)
_COMPARED = (
    "physical_offset", "total_size", "magic_code", "body_crc", "queue_id", "flag", "queue_offset", "sys_flag",
    "born_timestamp", "store_timestamp", "reconsume_times", "body_length", "topic_length", "properties_length",
)  # fmt: skip


class _Group(NamedTuple):
    start: int  # the start of the piece with the first record
    end: int
    records: pa.RecordBatch  # records whose bodies match their CRCs
    damaged: frozenset[int]  # physical offsets of the others
    header_size: int


def find_superseded_rows(lake: Lake, lake_store: LakeStore, store: Store) -> SupersededRows | None:
    """Return which rows of the lake were replaced by other records in the store's log; None if there are none."""
    if lake_store.newest_manifest is None:
        return None
    _, agreed, differs = compare_fingerprints(lake_store, store)
    agreed_end = agreed[-1].end if agreed else 0
    before = _find_boundary_before(agreed, store) if differs is None else None
    if differs is not None:
        why = f"bytes at {differs:,} differ from those that were read before"
    elif before is not None and not chain_leads_to(agreed[-1].offset, before, store, is_strict=True):
        agreed_end = before
        why = f"the records before offset {agreed[-1].offset:,} are no longer contiguous with the record there"
    elif agreed_end < lake_store.newest_manifest.to_offset:  # after the last record was the end of its file
        why = f"the record after offset {agreed_end:,} is no longer there"
    else:
        return None
    start = find_first_difference(lake, lake_store, store, agreed_end)
    if start is None:
        return None
    snapshot = open_table(lake, MESSAGES.name)
    from_there = {"physical_offset": (start, MAX_LONG)}
    if snapshot is not None and has_rows_within(lake, MESSAGES, snapshot, lake_store.store_id, from_there):
        why = f"the log has different records starting at this offset; {why}"
    else:  # a lost segment was restored
        why = "the log has records here that it lacked when it was read before; no message was replaced"
    return SupersededRows(lake_store.store_id, lake_store.next_run, start, lake_store.newest_manifest.to_offset, why)


def confirm_not_rewritten(
    lake: Lake,
    lake_store: LakeStore,
    store: Store,
    outcomes: Sequence[RangeOutcome[Any]],
    superseded: SupersededRows | None,
) -> None:
    """Raise `LogTruncatedError` if the broker has rewritten records that a run has read, or the ones before them."""
    known = next((outcome.facts.fingerprints for outcome in reversed(outcomes) if outcome.facts.fingerprints), ())
    changed = [one.offset for one in known if has_fingerprint(one, store) is False]
    now = find_superseded_rows(lake, lake_store, store)
    if now is not None and (superseded is None or now.from_offset != superseded.from_offset):
        changed.append(now.from_offset)
    if changed:
        reason = f"the log was rewritten after offset {min(changed):,} while it was being read"
        raise LogTruncatedError(errno.ESTALE, f"{reason}; run the command again", store.root)


def _find_boundary_before(agreed: Sequence[Fingerprint], store: Store) -> int | None:
    """Return a known boundary before the last fingerprint, in its segment; None without fingerprints."""
    segment = store.segment_at(agreed[-1].offset) if agreed else None
    if segment is None:
        return None
    known = [one.end for one in agreed if segment.base_offset < one.end <= agreed[-1].offset - _LARGEST_MESSAGE]
    return known[-1] if known else segment.base_offset


def chain_leads_to(offset: int, start: int, store: Store, *, is_strict: bool = False) -> bool:
    """
    Return whether the chain of records from the boundary *start* reaches a record at *offset*.

    A strict chain contains no damage, and no record that is much older than the previous one, because leftovers may
    follow either.
    """
    last, newest, is_sound = -1, 0, True
    for range_ in plan_ranges(store, start, WHOLE_SEGMENTS)[:1]:
        reader = RangeReader(replace(range_, end=offset + 1 - range_.base_offset, final=True))
        with closing(reader.pieces()) as pieces:
            for item in pieces:
                if isinstance(item, Piece):
                    is_sound = False
                    continue
                last = item.base_offset + int(item.positions[-1])
                times = np.full(item.positions.size + 1, newest)
                read_store_timestamps(item.buffer, item.positions, times[1:])
                newest = int(times[-1])
                is_sound = is_sound and bool((np.diff(times) >= -_CLOCK_ERROR_MS).all())
    return last == offset and (is_sound or not is_strict)


def find_first_difference(lake: Lake, lake_store: LakeStore, store: Store, agreed_until: int) -> int | None:
    """
    Return the offset from which the log differs from the lake's rows; None if they agree.

    Bytes before *agreed_until* are known to agree. Bytes that are damaged, deleted or not written yet do not count.
    """
    end = lake_store.newest_manifest.to_offset if lake_store.newest_manifest else 0
    doubtful: int | None = None  # the first of the preceding records that each differ in one field
    unknown: int | None = None  # the boundary of the first preceding record that only the log has
    newest: int | None = None  # the store time of the last of these records that was not left out
    # fields   doubtful  meaning                                     then
    # None     any       only the log has a record                   remember it: rewritten log, or a deleted row
    # LEFT_OUT any       only the log has it, as it should be        remember it: a later record may be a difference
    # 0        any       equal                                       forget both: the log continues, or leftovers do
    # 1        None      one rotten field, or a rewritten log        remember it
    # 1, more  set       a second difference in a row                rewritten from the doubtful one on
    # more     None      another record at this offset               rewritten from here on
    for group in _read_groups(store, max(agreed_until, store.start_offset), end):
        for offset, fields, stored in _compare_group(lake, lake_store, group, end):
            if fields is None or fields == _LEFT_OUT:
                unknown = _find_boundary(offset, group) if unknown is None else unknown
                newest = stored if fields is None else newest
            elif fields > 1 or (fields and doubtful is not None):
                return _find_boundary(offset if doubtful is None else doubtful, group) if unknown is None else unknown
            elif not fields and newest is not None and stored < newest - _CLOCK_ERROR_MS:
                return unknown
            else:
                doubtful = offset if fields else None
                if not fields:  # the same log continues: another engine has deleted the row
                    unknown = newest = None
    return None if newest is None else unknown


def _read_groups(store: Store, start: int, end: int) -> Iterator[_Group]:
    for range_ in plan_ranges(store, start, WHOLE_SEGMENTS):
        if range_.start_offset >= end:
            return
        try:
            with range_.open() as file:
                header_size = find_framing(file.read, range_.segment_size, range_.base_offset).header_size
        except FileNotFoundError:
            continue  # retention has deleted it meanwhile
        with closing(RangeReader(range_).pieces()) as pieces:
            for item in pieces:
                if isinstance(item, Piece):
                    if item.kind is PieceKind.BLANK:  # bytes after an end have no meaning
                        yield _Group(item.offset, item.end, _NO_RECORDS, frozenset(), header_size)
                    continue
                first = item.base_offset + int(item.positions[0]) - header_size
                batch, bad = message_batch(item, PropertyParser.SCAN, with_body=False)
                damaged = frozenset(offset for offset, _ in bad)
                last = item.base_offset + int(item.positions[-1]) + int(item.sizes[-1])
                yield _Group(first, last, batch, damaged, header_size)
                if last >= end:
                    return


def _compare_group(lake: Lake, lake_store: LakeStore, group: _Group, end: int) -> Iterator[tuple[int, int | None, int]]:
    """
    Yield each position at which the log or the lake has a record, the number of different fields, and the store time.

    A record that only the lake has differs in all fields. For one that only the log has, the number is None: the row
    may have been deleted; if it has expired or its topic may not have been selected, the number is `_LEFT_OUT`. A
    single different field may be damage: checksums cover only the body.
    """
    offset = ds.field("physical_offset")
    here = (ds.field("store_id") == lake_store.store_id) & (offset >= group.start) & (offset < min(group.end, end))
    snapshot = open_table(lake, MESSAGES.name)
    kept = _NO_RECORDS if snapshot is None else _read_original_rows(lake, snapshot, here)
    of_lake = _column_values(kept, "physical_offset")
    of_log = _column_values(group.records, "physical_offset")
    of_log = of_log[of_log < end]
    both, in_log, in_lake = np.intersect1d(of_log, of_lake, assume_unique=True, return_indices=True)
    unequal = np.zeros(both.size, np.int64)
    for name in _COMPARED:
        unequal += _column_values(group.records, name)[in_log] != _column_values(kept, name)[in_lake]
    compared: dict[int, int | None] = dict(zip(both.tolist(), unequal.tolist(), strict=True))
    of_lake_alone = set(np.delete(of_lake, in_lake).tolist()) - group.damaged
    choices, alone = lake_store.topic_choices, np.delete(np.arange(of_log.size), in_log)
    topics = group.records.column("topic").take(alone).to_pylist()
    has_rows = {topic: choices.includes_all_of(topic) for topic in set(topics)}
    has_expired = _have_expired(lake_store, group.records.take(pa.array(alone)))
    for at, topic, is_expired in zip(of_log[alone].tolist(), topics, has_expired, strict=True):
        is_expected = not is_expired and (at >= choices.end_offset or has_rows[topic])
        compared[at] = None if is_expected else _LEFT_OUT
    if not group.records.num_rows and group.start < end < group.end:  # no run reads the rest of a file after its end
        compared[group.start + group.header_size] = len(_COMPARED)
    compared |= dict.fromkeys(of_lake_alone, len(_COMPARED))
    times = dict(zip(of_log.tolist(), _column_values(group.records, "store_timestamp").tolist(), strict=False))
    yield from ((at, fields, times.get(at, 0)) for at, fields in sorted(compared.items()))


def _have_expired(lake_store: LakeStore, records: pa.RecordBatch) -> list[bool]:
    """Return which records `optimize --keep` has removed from the lake."""
    if lake_store.expiry is None:
        return [False] * records.num_rows
    rows = lake_store.expiry.rows_of(lake_store.store_id)
    old = rows.mask_messages(records.column("store_timestamp"), records.column("topic"))
    is_before = pc.less(records.column("physical_offset"), lake_store.expiry.to_offset)
    found: list[bool] = pc.or_(old, is_before).to_pylist()
    return found


def _read_original_rows(lake: Lake, snapshot: DeltaTable, where: pc.Expression) -> pa.Table:
    """
    Return rows as they were read from the log, including rows deleted by another engine whose files still exist.

    Each offset has one row, even if another engine has inserted it twice.
    """
    found = (read_rows_where(lake, snapshot, list(_COMPARED), where, only_deleted=which) for which in (False, True))
    rows = pa.concat_tables(found, promote_options="default")
    return rows.take(np.unique(_column_values(rows, "physical_offset"), return_index=True)[1])


def _find_boundary(found: int, group: _Group) -> int:
    """Return the log record that covers *found*: a row may begin in the middle of it."""
    of_log = _column_values(group.records, "physical_offset")
    before = of_log[of_log <= found]
    if not before.size:
        return min(found - group.header_size, group.start)
    return int(before[-1]) - group.header_size


def _column_values(table: pa.Table | pa.RecordBatch, name: str) -> Integers:
    column = table.column(name)
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(whole.to_numpy(zero_copy_only=False), np.int64)
