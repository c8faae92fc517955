"""
Rows of `index_entries`: one task writes the new entries of one index file.

The keys, with their texts, are in scratch files that the pass over the log has written. New entries are chained to
earlier entries in the same slots, so a file that is continued starts with the slots of its existing entries.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jobs.lake.commit import open_table
from jobs.lake.snapshot_files import SnapshotFile, read_batches, read_rows_where
from jobs.lake.table_file import AddedFile, TableFile
from jobs.lake.tables import INDEX_ENTRIES, INDEX_FILES, MESSAGES
from jobs.products.committed_records import read_committed_records
from jobs.products.index.file_builder import CACHE_SIZED_BLOCK, IndexRecipe, add_entries, hash_file
from jobs.products.product import RunOutput
from jobs.storage.local import write_all
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import Range
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.indexfile.build import FileBuilder, RuleTable, pack_keys
from rmq_formats.indexfile.columns import STORED_ENTRY, entry_batch, key_texts
from rmq_formats.indexfile.layout import IndexHeader

ROWS_PER_ROW_GROUP = 1 << 18  # rows in a row group, which are sorted in memory
ROWS_PER_FILE = 1 << 21
_LEAST_ROWS_PER_FILE = 1 << 20  # fewer are not worth another file
LOG_BYTES_PER_LOOKUP = 256 << 20  # bytes of the log whose rows of `messages` are looked up in one batch


# Ordinal, header and slots of the open index file of each lake and store, in this thread.
_Kept = dict[tuple[str, str], tuple[int, IndexHeader, NDArray[np.int32]]]
_kept: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def cache_open_slots() -> Iterator[None]:
    """
    Cache the slots of the index files that this thread leaves open, until the block ends.

    Otherwise each step of a process that follows a store would read all entries of the file from the lake, and take
    longer with every message until the file is full.
    """
    before = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(before)


@dataclass(frozen=True, slots=True)
class EntryWork:
    """The new entries of one index file."""

    file_ordinal: int
    recipe: IndexRecipe
    open_header: IndexHeader | None = None  # the header of the open file after the last run
    open_row_files: tuple[SnapshotFile, ...] = ()  # the files of `index_entries` that hold its entries so far
    # The ranges of the log with the messages of its entries; empty if a part of these is deleted.
    open_ranges: tuple[Range, ...] = ()
    entries_without_row: int = 0  # number of its entries without a row, whose messages are not in the lake
    earlier_runs_end: int = 0  # messages before it get rows only if the lake has them
    threads: int = 1  # maximum number of threads that sort and write rows, each into separate files


class EntryRows(NamedTuple):
    """One index file after a run."""

    file_ordinal: int
    name: str | None
    header: IndexHeader
    is_complete: bool
    sha256: str | None
    added_files: tuple[AddedFile, ...]  # the files that were written
    entries_without_row: int = 0  # entries without a row


def write_entries(work: EntryWork, *, output: RunOutput) -> EntryRows:
    """Write the new rows of one index file."""
    return _FileWriter(work, output).run()


class _RowWriter:
    """Writes rows of an index file into Parquet files, one group of rows at a time, in a thread of *pool*."""

    def __init__(self, file_ordinal: int, output: RunOutput, pool: ThreadPoolExecutor, files: ExitStack) -> None:
        self._file_ordinal, self._output, self._pool, self._files = file_ordinal, output, pool, files
        self._writing: Future[None] | None = None
        self._rows: TableFile | None = None  # the Parquet file that is being written
        self._rows_written = 0  # into it
        self._actions: list[AddedFile] = []

    def start(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Wait for the previous group, then write rows in the background."""
        self._await_written()
        self._writing = self._pool.submit(self._write_group, batches)

    def finish(self) -> list[AddedFile]:
        """Return the files that were written."""
        self._await_written()
        self._close_rows()
        return self._actions

    def _await_written(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write_group(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows as one row group, sorted by hash, so that a lookup reads few pages."""
        group = pa.concat_batches(batches)
        if self._rows is None:
            first = group["entry"][0].as_py()
            name = f"index-{self._file_ordinal:08d}-{first:010d}"
            opened = self._output.new_file(INDEX_ENTRIES, name, index_file=self._file_ordinal)
            self._rows = self._files.enter_context(opened)
        # Sorting numbers is faster than computing a permutation; rows with equal hashes keep their order.
        order = group["key_hash"].to_numpy().astype(np.int64) << 32 | np.arange(group.num_rows)
        order.sort()
        self._rows.write(pc.take(group, (order & 0xFFFFFFFF).astype(np.uint32), boundscheck=False))
        self._rows_written += group.num_rows
        if self._rows_written >= ROWS_PER_FILE:
            self._close_rows()

    def _close_rows(self) -> None:
        if self._rows is not None:
            action = self._rows.close()
            self._actions += [action] if action else []
            self._rows, self._rows_written = None, 0


class _FileWriter:
    """Writes the new entries of one index file as rows, and the complete file if its hash is needed."""

    def __init__(self, work: EntryWork, output: RunOutput) -> None:
        self._work, self._output = work, output
        self._store = output.lake.location, output.naming.store_id
        self._pending: list[pa.RecordBatch] = []
        self._files = ExitStack()
        # Sorting and writing rows takes longer than building them, so threads do it while the next ones are built. Each
        # writes its own files, so there are as many as the rows can fill.
        threads = max(min(work.threads, work.recipe.entry_count // _LEAST_ROWS_PER_FILE), 1)
        self._pool = ThreadPoolExecutor(threads)
        self._writers = [_RowWriter(work.file_ordinal, output, self._pool, self._files) for _ in range(threads)]
        self._left_out = 0
        self._needs_lake_until = work.earlier_runs_end
        self._looked_up = 0, 0, np.empty(0, np.int64)  # a part of the log, and its messages in the lake
        self._is_whole = True  # every entry of the file is known
        self._found: NDArray[np.bool_] | None = None  # while lost rows are rebuilt: which rows exist

    def run(self) -> EntryRows:
        work, recipe, geometry = self._work, self._work.recipe, self._work.recipe.geometry
        # Only a full file is hashed, and it is too large to be kept in memory.
        is_hashed = recipe.entry_count + (work.open_header.entry_count if work.open_header else 0) >= geometry.capacity
        with TemporaryFile() if is_hashed else nullcontext() as file, self._files, self._pool:
            write = partial(write_all, file.fileno()) if file is not None else None
            builder = FileBuilder(geometry, RuleTable.from_rules(recipe.rules), write, recipe.previous_header)
            if work.open_header is not None and work.open_header.entry_count:
                self._continue(builder, work.open_header, is_hashed=is_hashed)
            add_entries(builder, recipe, self._note)
            if self._pending:
                self._write_pending()
            header = builder.finish()
            is_complete = header.index_count >= geometry.index_num
            digest: str | None = None
            if is_complete and self._is_whole and file is not None:
                descriptor = file.fileno()
                os.ftruncate(descriptor, geometry.file_size)
                digest = hash_file(lambda position, length: os.pread(descriptor, length, position), CACHE_SIZED_BLOCK)
            added = [file for writer in self._writers for file in writer.finish()]
        kept = _kept.get()
        if not is_complete and kept is not None:
            kept[self._store] = work.file_ordinal, header, builder.slots
        name = recipe.broker_file.name if recipe.broker_file else None
        return EntryRows(work.file_ordinal, name, header, is_complete, digest, tuple(added), self._left_out)

    def _continue(self, builder: FileBuilder, opened: IndexHeader, *, is_hashed: bool) -> None:
        """
        Continue with the slots of the last run, cached or from the lake; a hashed file needs all entries.

        Rows that another engine has deleted are rebuilt. If that is impossible, the next entries are chained to the
        remaining ones, and the file gets no hash.
        """
        work, output = self._work, self._output
        self._left_out = work.entries_without_row
        file_ordinal, header, kept = ((_kept.get() or {}) if not is_hashed else {}).pop(self._store, (None, None, None))
        if kept is not None and (file_ordinal, header) == (work.file_ordinal, opened):
            builder.resume_file(kept, opened)
            return
        names = STORED_ENTRY.names or () if is_hashed else ("key_hash",)
        entries, found = read_index_file_entries(
            output, work.open_row_files, work.file_ordinal, opened.entry_count, names
        )
        lost = opened.entry_count - int(np.count_nonzero(found))
        if lost > work.entries_without_row and self._make_again(builder, opened, found):
            return
        self._left_out = lost
        if is_hashed and not lost:
            builder.add_entries(entries.view(np.uint8), opened)
            return
        self._is_whole = not lost
        numbers = np.flatnonzero(found)
        slots = np.zeros(work.recipe.geometry.hash_slots, np.int32)
        hashes = np.maximum(entries["key_hash"][numbers].astype(np.int64), 0)
        np.maximum.at(slots, hashes % len(slots), (numbers + 1).astype(np.int32))
        builder.resume_file(slots, opened)

    def _make_again(self, builder: FileBuilder, opened: IndexHeader, found: NDArray[np.bool_]) -> bool:
        """
        Add the entries of the open file again, and write rows for those that were not *found*.

        The keys come from the log, or from rows of `messages`; return False, without any effect, if these have fewer
        keys than the file has entries.
        """
        table = RuleTable.from_rules(self._work.recipe.rules)
        begin, end = opened.begin_physical_offset, opened.end_physical_offset + 1
        more = -opened.entry_count  # keys of the first message that are in the file before this one
        for records in self._records_of(begin, end):
            for keys, _ in pack_keys(records, table, begin):
                more += int(np.count_nonzero(keys["physical_offset"] < end))
        if more < 0:
            return False
        self._left_out, self._found, earlier_runs_end = 0, found, self._needs_lake_until
        self._needs_lake_until = end
        builder.resume_file(builder.slots, start_header_after_previous_file(self._output, self._work.file_ordinal))
        for records in self._records_of(begin, end):
            for keys, texts in pack_keys(records, table, begin, with_texts=True):
                last = int(np.searchsorted(keys["physical_offset"].astype(np.int64), end))
                first, more = min(more, last), max(more - last, 0)
                entries, number = keys[first:last].copy(), builder.header.index_count
                builder.add(entries)
                times = keys["store_timestamp"][first:last].astype(np.int64)
                self._note(number, entries, times, key_texts(texts, last).slice(first))
        self._found, self._needs_lake_until = None, earlier_runs_end
        builder.resume_file(builder.slots, opened)
        return True

    def _records_of(self, begin: int, end: int) -> Iterator[RawRecords]:
        """Yield the records of the open file's messages, from the log or from the lake."""
        output, ranges = self._output, self._work.open_ranges
        if not ranges:
            return read_committed_records(output.lake, output.naming.store_id, begin, end)
        pieces = (item for range_ in ranges for item in RangeReader(range_).pieces())
        return (item for item in pieces if isinstance(item, RawRecords) and item.base_offset < end)

    def _note(
        self, first: int, entries: NDArray[np.void], times: NDArray[np.int64] | None, texts: pa.RecordBatch | None
    ) -> None:
        """Collect entries as rows; entries of messages that the log does not have are stored without keys."""
        stored = entries.view(STORED_ENTRY)
        batch = entry_batch(first, self._work.recipe.geometry, stored, times, texts)
        offsets = stored["physical_offset"].astype(np.int64)
        wanted = offsets >= self._needs_lake_until
        if not wanted.all():
            wanted |= self._are_in_lake(offsets)
            self._left_out += int(np.count_nonzero(~wanted))
        if self._found is not None:
            wanted &= ~self._found[first - 1 : first - 1 + len(stored)]
        if wanted.any():
            self._pending.append(batch if wanted.all() else batch.filter(pa.array(wanted)))
        if sum(pending.num_rows for pending in self._pending) >= ROWS_PER_ROW_GROUP:
            self._write_pending()

    def _are_in_lake(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each of the ascending offsets, whether `messages` has a row of this store."""
        found = np.zeros(len(offsets), np.bool_)
        at = 0
        lake, (start, end, there) = self._output.lake, self._looked_up
        while at < len(offsets):
            if not start <= offsets[at] < end:
                start, end = int(offsets[at]), int(offsets[at]) + LOG_BYTES_PER_LOOKUP
                snapshot, offset = open_table(lake, MESSAGES.name), pc.field("physical_offset")
                within = (pc.field("store_id") == self._store[1]) & (offset >= start) & (offset < end)
                if snapshot is not None:
                    rows = read_rows_where(lake, snapshot, ["physical_offset"], within)
                    there = rows["physical_offset"].to_numpy()
                self._looked_up = start, end, there
            some = slice(at, at + max(int(np.searchsorted(offsets[at:], end)), 1))
            found[some] = np.isin(offsets[some], there)
            at = some.stop
        return found

    def _write_pending(self) -> None:
        """Let the writer whose turn it is write the pending rows."""
        pending, self._pending = self._pending, []
        writer = self._writers.pop(0)
        self._writers.append(writer)
        writer.start(pending)


def read_index_file_entries(
    output: RunOutput, files: Sequence[SnapshotFile], file_ordinal: int, entry_count: int, names: Sequence[str]
) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """
    Return columns of an index file's entries in the lake, in file order, and which entries are present.

    Absent entries are zeros. The lake's files may contain rows of several stores. Entries that another engine has
    deleted through a vector are read as well: later entries are chained to them, and only those are written.
    """
    wanted = (pc.field("index_file") == file_ordinal) & (pc.field("store_id") == output.naming.store_id)
    entries = np.zeros(entry_count, [(name, STORED_ENTRY[name]) for name in names])
    found = np.zeros(entry_count, np.bool_)
    columns = ("index_file", "entry", "store_id", *names)
    for file in files:
        whole, limits = file._replace(kept_row_mask=None), {"index_file": (file_ordinal, file_ordinal)}
        for batch in read_batches(output.lake, INDEX_ENTRIES, whole, columns, limits):
            own = batch.filter(wanted)
            at = own["entry"].to_numpy().astype(np.int64) - 1
            inside = at < entry_count
            found[at[inside]] = True
            for name in names:
                entries[name][at[inside]] = own[name].to_numpy()[inside]
    return entries, found


def start_header_after_previous_file(output: RunOutput, file_ordinal: int) -> IndexHeader:
    """Return the end of the previous index file in the lake, with which a file without entries begins."""
    snapshot = open_table(output.lake, INDEX_FILES.name)
    own = (pc.field("store_id") == output.naming.store_id) & (pc.field("index_file") == file_ordinal - 1)
    names = ["run", "end_timestamp", "end_physical_offset"]
    rows = [] if snapshot is None else read_rows_where(output.lake, snapshot, names, own).to_pylist()
    newest = max(rows, key=lambda row: row["run"], default=None)
    time, offset = (max(newest[name], 0) if newest else 0 for name in names[1:])
    return IndexHeader(time, time, offset, offset, 0, 1)
