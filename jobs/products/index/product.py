"""
The index in a run of `ingest`: rows of `index_entries` and `index_files`, continued from the last run's boundary.

    begin ─► KeyCollector in the task of each range ─► plan ─► write, one task a file ─► the state of the next run

The first run of a store takes its boundaries from the broker's own files, where there are any: where the log happens to
begin says nothing about where a file does. Every later run goes on in the file that the last one left open. Entries
never change, and neither does a file that is complete; only the open one gets a newer row in `index_files`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from jobs.products.index.eras import SWITCHES, rules_of_files
from jobs.products.index.file_builder import RealFile, hash_file
from jobs.products.index.key_row import Kept, KeyCollector, KeyRow, LogKeys, RowPart, Stretch
from jobs.products.index.placement import Anchor, Kind, Log, plan_all, plan_lost
from jobs.products.index.settings import ASSUMED, Known, UndecidedError, Wanted, settle_geometry
from jobs.products.index.survivors import (
    Placing,
    Relation,
    Survivor,
    asked_offsets,
    completed_end,
    header_before,
    real_files,
    refusal,
)
from jobs.storage import AnyStorage, arrow_file
from jobs.store.ranges import Range
from jobs.store.store import Store
from rmq_formats.indexfile.build import FileBuilder, RuleTable
from rmq_formats.indexfile.columns import SCHEMA, STORED_ENTRY, entry_batch
from rmq_formats.indexfile.layout import DEFAULT_GEOMETRY, ENTRY, Geometry, IndexHeader
from rmq_formats.layout import Buffer
from rmq_formats.release import Release, Rule, Rules, rules_of

ROWS_A_GROUP = 1 << 18  # of a Parquet file: they are sorted in memory
ROWS_A_FILE = 1 << 21


class Begun(NamedTuple):
    """What a run knows before it reads the log."""

    geometry: Known[Geometry]
    rules: Rules
    from_offset: int  # keys of messages before it are in the lake already
    asked: tuple[int, ...]  # messages whose places in the row must be known
    files: tuple[RealFile, ...]  # the broker's own, in the first run
    ordinal: int  # of the open file
    open: IndexHeader | None  # its header as the last run left it

    def collector(self) -> KeyCollector:
        """Return what the task of a range counts keys with."""
        return KeyCollector(self.rules, self.asked, self.from_offset)


@dataclass(frozen=True, slots=True)
class EntryWork:
    """New entries of one index file."""

    ordinal: int
    geometry: Geometry
    rules: Rules
    source: LogKeys
    parts: tuple[RowPart, ...]
    previous: IndexHeader | None  # what the file begins behind
    begun: IndexHeader | None = None  # as the last run left it
    begun_in: tuple[str, ...] = ()  # the Parquet files that hold its entries so far
    real: RealFile | None = None  # the broker's own file at this place
    head: int = 0  # its leading entries that are of messages before the log


class EntryRows(NamedTuple):
    """What one index file has become."""

    ordinal: int
    name: str | None
    header: IndexHeader
    is_complete: bool
    sha256: str | None
    actions: tuple[Any, ...]  # what `close` of the written files returned
    short: tuple[Range, ...] = ()  # ranges that had fewer keys when they were read once more


class RowFile(Protocol):
    """A Parquet file of `index_entries` being written."""

    def write(self, batch: pa.RecordBatch) -> object:
        """Append rows."""
        ...

    def close(self) -> Any:  # noqa: ANN401 - the writer's own description
        """Finish it."""
        ...


OpenFile = Callable[[str], AbstractContextManager[RowFile]]


def begin(store: Store, wanted: Wanted, rules: Rules, state: Mapping[str, Any] | None, from_offset: int) -> Begun:
    """
    Say how the run goes on; *state* is what `state_of` gave the last run.

    *rules* are what is known of the store without its index files; *from_offset* is where the log's new part begins.
    """
    if state is not None:
        header = IndexHeader(*state["header"]) if state["header"] else None
        geometry = Known(Geometry(*state["geometry"]), state["geometry_origin"], "the lake")
        known = rules_of(*((since, Release.of(name)) for since, name in state["rules"]))
        start = max(from_offset, state["to_offset"])
        return Begun(geometry, _continued(known, rules, start), start, (), (), state["file"], header)
    files = real_files(store)
    try:
        geometry = settle_geometry(store, files, wanted)
    except UndecidedError as error:
        geometry = Known(DEFAULT_GEOMETRY, ASSUMED, str(error))
    files = [file for file in files if refusal(file, geometry.value) is None]
    told = None if wanted.release else rules_of_files(store, files, geometry.value)
    asked = tuple(asked_offsets(files))
    return Begun(geometry, told.rules if told else rules, store.start_offset, asked, tuple(files), 0, None)


def _continued(known: Rules, now: Rules, from_offset: int) -> Rules:
    """Return the lake's rules, followed by the store's newest ones where those differ in an index file's bytes."""
    last, newest = known[-1][1], now[-1][1]
    if all(getattr(last, switch) == getattr(newest, switch) for switch in SWITCHES) or from_offset <= known[-1][0]:
        return known
    since = max(from_offset, now[-1][0])
    return (*known, Rule(since, newest))


def plan(
    begun: Begun,
    store: Store,
    counted: Sequence[tuple[Range, Stretch]],
    begun_in: Callable[[int], Sequence[str]],
    kept: Sequence[Kept] = (),
) -> list[EntryWork]:
    """
    Return what is to be written, file by file.

    *counted* are the accepted ranges, each with what its collector counted; *begun_in* names the Parquet files that
    hold entries of an index file; *kept* gives the records of each range whose file is gone by then.
    """
    source = LogKeys(tuple(range_ for range_, _ in counted), begun.rules, begun.from_offset, tuple(kept))
    stretches = tuple(stretch._replace(file=str(number)) for number, (_, stretch) in enumerate(counted))
    row = KeyRow(source, stretches, begun.from_offset)
    maker = _Maker(begun, row, source)
    if begun.files:
        return list(maker.anchored(_anchors(begun, store, row)))
    return list(maker.continued(begun_in))


def _anchors(begun: Begun, store: Store, row: KeyRow) -> list[Survivor]:
    """Return the broker's files that hold what the log says, as far as their ends show."""
    found = Placing(row, begun.geometry.value, store).place_all(begun.files)
    return [survivor for survivor in found if _ends_right(survivor, row)]


def _ends_right(survivor: Survivor, row: KeyRow) -> bool:
    if survivor.relation is Relation.BEFORE_LOG:
        return True  # nothing contradicts it; its entries come without their keys
    count = survivor.real.header.entry_count
    last = row.keys(survivor.end - 1, survivor.end) if survivor.end > 0 else []
    return bool(count > survivor.head and not survivor.tail and last) and (
        last[0].physical_offset == survivor.real.header.end_physical_offset
    )


class _Maker:
    """Turns places in the row into work."""

    def __init__(self, begun: Begun, row: KeyRow, source: LogKeys) -> None:
        self._begun = begun
        self._row = row
        self._source = source
        self._capacity = begun.geometry.value.capacity

    def continued(self, begun_in: Callable[[int], Sequence[str]]) -> Iterator[EntryWork]:
        """Go on in the open file, then in new ones."""
        opened, ordinal = self._begun.open, self._begun.ordinal
        room = self._capacity - opened.entry_count if opened else 0
        end = min(room, len(self._row))
        if opened and end:
            work = self._work(ordinal, 0, end, None)
            yield replace(work, begun=opened, begun_in=tuple(begun_in(ordinal)))
        ordinal += opened is not None
        for number, start in enumerate(range(end, len(self._row), self._capacity)):
            previous = header_before(self._row, start) or opened
            yield self._work(ordinal + number, start, min(start + self._capacity, len(self._row)), previous)

    def anchored(self, survivors: Sequence[Survivor]) -> Iterator[EntryWork]:
        """Follow the broker's own files; the newest one is continued to the log's end."""
        row, capacity = self._row, self._capacity
        log = Log(len(row), row.records, ends_without_keys=False, is_whole=row.start_offset == 0)
        anchors = [survivor.anchor(self._begun.geometry.value) for survivor in survivors]
        if anchors and not anchors[-1].is_full:
            end = completed_end(survivors[-1], self._begun.geometry.value, row)
            is_full = end - survivors[-1].end + survivors[-1].real.header.entry_count == capacity
            anchors[-1] = anchors[-1]._replace(end=end, is_full=is_full)
        planned = plan_lost(log, capacity, anchors) if anchors else plan_all(log, capacity)
        places = sorted(
            [(plan.after, 1, plan.start, plan.end, None) for plan in planned if plan.kind is not Kind.OPEN or plan.end]
            + [(number, 0, *_span(anchor), survivors[number]) for number, anchor in enumerate(anchors)],
            key=lambda place: (place[0], place[1], place[2]),
        )
        for ordinal, (_, _, start, end, survivor) in enumerate(places):
            previous = survivor.previous if survivor else header_before(row, start)
            work = self._work(ordinal, max(start, 0), max(end, 0), previous)
            if survivor:
                parts = (*survivor.parts(row), *row.parts(survivor.end, end))
                work = replace(work, parts=parts, real=survivor.real, head=survivor.head)
            yield work

    def _work(self, ordinal: int, start: int, end: int, previous: IndexHeader | None) -> EntryWork:
        parts = tuple(self._row.parts(start, end))
        return EntryWork(ordinal, self._begun.geometry.value, self._begun.rules, self._source, parts, previous)


def _span(anchor: Anchor) -> tuple[int, int]:
    return anchor.start, anchor.end


def write(work: EntryWork, *, open_file: OpenFile, storage: AnyStorage, store_id: str | None = None) -> EntryRows:
    """
    Write the new rows of one index file.

    *open_file* gives a Parquet file of a name that is unique in the run. Files of the lake may hold rows of several
    stores: with *store_id* only its own are read back.
    """
    return _FileWriter(work, open_file, storage, store_id).run()


class _FileWriter:
    """Builds one index file and writes its new entries as rows."""

    def __init__(self, work: EntryWork, open_file: OpenFile, storage: AnyStorage, store_id: str | None) -> None:
        self._work = work
        self._store_id = store_id
        self._open_file = open_file
        self._storage = storage
        count = (work.begun.entry_count if work.begun else work.head) + sum(part.keys for part in work.parts)
        self._builder = FileBuilder(work.geometry, RuleTable.of(work.rules), self._store, work.previous)
        self._pending: list[pa.RecordBatch] = []
        self._opened = ExitStack()
        # Only a full file is hashed, and a full one is too large to be kept in memory for that.
        self._is_hashed = count >= work.geometry.capacity
        self._file: IO[bytes] | None = None
        self._rows: RowFile | None = None  # the Parquet file that is being written
        self._rows_written = 0  # into it
        self._actions: list[Any] = []

    def run(self) -> EntryRows:
        with TemporaryFile() if self._is_hashed else nullcontext() as self._file, self._opened:
            return self._run()

    def _run(self) -> EntryRows:
        work = self._work
        if work.begun is not None:
            count = work.begun.entry_count
            so_far = entries_in(work.begun_in, work.ordinal, count, self._storage.options, self._store_id)
            self._builder.adopt(so_far, work.begun)
        elif work.real is not None and work.head:
            self._add_history(work.real)
        short = []
        for part in work.parts:
            left = part.keys
            for keys, places, buffer in work.source.decoded(part):
                left -= len(keys)
                times = keys["store_timestamp"].astype(np.int64)
                first = self._builder.header.index_count
                packed = keys.copy()
                self._builder.add(packed)
                self._add(entry_batch(
                    work.ordinal, first, work.geometry, packed.view(STORED_ENTRY), times, places, buffer
                ))  # fmt: skip
            if left:
                short.append(work.source.ranges[int(part.file)])
        self._flush()
        self._close_rows()
        header = self._builder.finish()
        is_complete = header.index_count >= work.geometry.index_num
        digest = self._digest() if is_complete else None
        name = work.real.name if work.real else None
        return EntryRows(work.ordinal, name, header, is_complete, digest, tuple(self._actions), tuple(short))

    def _add_history(self, real: RealFile) -> None:
        """Take the entries of messages that are gone from the broker's own file."""
        with self._storage.open(real.location) as file:
            data = bytearray(file.read(self._work.geometry.entry_position(1), self._work.head * ENTRY.size))
        entries = np.frombuffer(data, np.uint8)
        self._builder.adopt(entries, real.header)
        self._add(entry_batch(self._work.ordinal, 1, self._work.geometry, entries.view(STORED_ENTRY)))

    def _store(self, position: int, block: Buffer) -> None:
        """Keep the file's parts for its hash."""
        if self._file is not None:
            self._file.seek(position)
            self._file.write(block)

    def _digest(self) -> str | None:
        if self._file is None:
            return None
        self._file.truncate(self._work.geometry.file_size)
        self._file.flush()
        descriptor = self._file.fileno()
        return hash_file(lambda position, length: os.pread(descriptor, length, position))

    def _add(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        if sum(pending.num_rows for pending in self._pending) >= ROWS_A_GROUP:
            self._flush()

    def _flush(self) -> None:
        """Write what is pending as one row group, sorted by hash: a lookup reads few of its pages."""
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, SCHEMA).sort_by(
            [("key_hash", "ascending"), ("entry", "ascending")]
        )
        self._pending = []
        if self._rows is None:
            first = int(pc.min(table["entry"]).as_py())
            opened = self._open_file(f"index-{self._work.ordinal:08d}-{first:010d}")
            self._rows = self._opened.enter_context(opened)
        for batch in table.combine_chunks().to_batches():
            self._rows.write(batch)
        self._rows_written += table.num_rows
        if self._rows_written >= ROWS_A_FILE:
            self._close_rows()

    def _close_rows(self) -> None:
        if self._rows is not None:
            self._actions.append(self._rows.close())
            self._rows, self._rows_written = None, 0


def entries_in(
    locations: Sequence[str], ordinal: int, count: int, options: Mapping[str, str], store_id: str | None = None
) -> NDArray[np.uint8]:
    """Return the first *count* entries of an index file, from the Parquet files that hold them."""
    names = ["index_file", "entry", *(STORED_ENTRY.names or ()), *(["store_id"] if store_id else [])]
    wanted = pc.field("index_file") == ordinal
    if store_id:
        wanted &= pc.field("store_id") == store_id
    entries = np.zeros(count, STORED_ENTRY)
    found = np.zeros(count, np.bool_)
    for location in locations:
        with arrow_file(location, options) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=names):
                own = batch.filter(wanted)
                at = own["entry"].to_numpy() - 1
                inside = at < count
                for name in STORED_ENTRY.names or ():
                    entries[name][at[inside]] = own[name].to_numpy()[inside]
                found[at[inside]] = True
    if not found.all():
        missing = int(np.argmin(found)) + 1
        raise OSError(f"index_entries: entry {missing} of index file {ordinal} is not in the lake")
    return entries.view(np.uint8)


def file_rows(begun: Begun, written: Sequence[EntryRows], run: int) -> list[dict[str, Any]]:
    """Return the rows of `index_files` for the files of this run."""
    releases = ", ".join(str(release) for _, release in begun.rules)
    geometry = begun.geometry
    return [
        {
            "index_file": rows.ordinal,
            "name": rows.name,
            **rows.header._asdict(),
            "is_complete": rows.is_complete,
            "sha256": rows.sha256,
            "hash_slots": geometry.value.hash_slots,
            "index_num": geometry.value.index_num,
            "geometry_origin": geometry.origin,
            "release": releases,
            "run": run,
        }
        for rows in written
    ]


def state_of(begun: Begun, written: Sequence[EntryRows], to_offset: int) -> dict[str, Any]:
    """Return what the next run must know."""
    last = max(written, key=lambda rows: rows.ordinal, default=None)
    header = last.header if last else begun.open
    return {
        "to_offset": max(to_offset, begun.from_offset),
        "file": last.ordinal if last else begun.ordinal,
        "header": list(header) if header else None,
        "geometry": list(begun.geometry.value),
        "geometry_origin": begun.geometry.origin,
        "rules": [[since, str(release)] for since, release in begun.rules],
    }
