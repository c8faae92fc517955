"""
The index of a store, as one question reads it: messages by key, from index files or from the index in RocksDB.

An index file covers the log from its first entry's message to its last one's. A part between two files was never
indexed, or the file that indexed it is lost: only the log shows the messages there.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

from jobs.query import MAX_TIME, MIN_TIME, KeyQuery, Message
from jobs.query.log_search import read_few_records
from jobs.query.source import FactOrigin, KeyFact, PointerCheck, Remarks, check_key
from jobs.query.store_log import StoreLog
from jobs.query.store_reader import StoreReader
from jobs.store.rocksdb import Database, read_index_rows_like_broker
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.indexfile.keys import IndexKey, KeyKind
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.release import Release
from rmq_formats.rocksdb.layout import INDEX_FAMILY, LAST_OFFSET_KEY, decode_progress

_ENTRY, _ROW = "an index entry", "a row of the index in RocksDB"


class StoreIndex:
    """The index of a store; messages that it does not cover are searched in the log."""

    def __init__(self, reader: StoreReader, log: StoreLog, releases: tuple[Release, ...], remarks: Remarks) -> None:
        """Read the index as the newest of the possible *releases* does."""
        self._reader = reader
        self._log = log
        self._releases = releases
        self._remarks = remarks

    def why_not_searchable(self, kind: KeyKind) -> str | None:
        """Return why the index cannot be used; None if it can."""
        if kind is KeyKind.TAG and not self._releases[-1].indexes_tags:
            return f"RocketMQ {self._releases[-1]} does not index tags"
        if not self._reader.store.index_files:
            return self._rocksdb if isinstance(self._rocksdb, str) else None
        if self._reader.index_geometry is None:
            return (
                "the index files do not show how many slots and entries they have (pass --hash-slots and --index-num)"
            )
        return None

    @cached_property
    def _rocksdb(self) -> Database | str:
        try:
            return self._reader.index_database or "the store has no index files"
        except FormatError as error:
            return str(error)

    @property
    def _database(self) -> Database | None:
        """The index in RocksDB, if it is the one to use and can be read."""
        return None if isinstance(self._rocksdb, str) else self._rocksdb

    def find_messages(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the messages from the index, and those from uncovered parts of the log, newest first, each once."""
        if self._database is not None:
            yield from self._find_newer(self._database, wanted)
            offsets = sorted(set(self._read_rows(self._database, wanted)), reverse=True)
            yield from filter(wanted.is_kept_by_client, self._read_messages(offsets, _ROW))
            return
        # A message has an entry for each of its keys, which may have the same hash; two files may share a message; and
        # a broker that starts after a crash may index messages again. Files are read newest first; once a file begins
        # before the window, older files are outside of it.
        found: set[int] = set()
        for span, file in self._parts:
            if file is None:
                yield from self._find_uncovered(span, wanted, found)
                continue
            try:
                for message in filter(wanted.matches, self._read_messages(self._find_hits(file, wanted), _ENTRY)):
                    if message.record.physical_offset not in found:
                        found.add(message.record.physical_offset)
                        yield message
            except CorruptData:
                last = self._log.read_message(span.stop)
                damaged = range(span.start, last.record.end_offset if last else span.stop)
                yield from self._find_uncovered(damaged, wanted, found)
            if file.header.begin_timestamp < wanted.begin:
                return

    def find_by_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the message of every entry with a key's hash, like `Source.by_key_hash`."""
        if self._database is not None:
            yield from self._read_messages(self._read_rows(self._database, wanted), _ROW)
            yield from self._find_newer(self._database, wanted)
            return
        line = f"query by-key -t {wanted.topic} -k {wanted.key}"
        found: set[int] = set()
        for span, file in self._parts:
            if file is None:
                if any(True for _ in self._find_uncovered(span, wanted, found)):
                    self._remarks.warn(f"mqadmin does not find messages in that part of the log; `{line}` finds them")
                continue
            try:
                for offset in self._find_hits(file, wanted, slack_ms=0):
                    found.add(offset)
                    yield from self._read_messages([offset], _ENTRY)
            except CorruptData:
                self._remarks.warn(f"{file.file} is damaged; `{line}` searches the log instead")
            if file.header.begin_timestamp < wanted.begin:
                return

    def find_without_log(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield only the index's messages: searching the log for each topic and kind would take too long."""
        if self._database is not None:
            yield from self.find_messages(wanted)
        elif self._reader.index_readers():
            for file in (file for _, file in self._parts if file is not None):
                hits = self._find_hits(file, wanted, slack_ms=0)
                with suppress(CorruptData):  # the damage was already reported
                    yield from filter(wanted.matches, self._read_messages(hits, _ENTRY))

    def find_fact(self, message: Message, key: IndexKey) -> KeyFact:
        """Return whether the index points to a message; None if the store has no index."""
        offset, store = message.record.physical_offset, self._reader.store
        if store.index_files and self._reader.index_geometry is not None:
            found = nearest = None
            for file in self._reader.index_readers_around(offset):
                nearest = nearest or file
                with suppress(FormatError):  # a damaged file has no hits; verify reports the damage
                    if any(
                        hop.entry.physical_offset == offset for hop in file.find_entries(key.text, MIN_TIME, MAX_TIME)
                    ):
                        found = nearest = file
                        break
            place = FactOrigin(store.path_below_root(nearest.file if nearest else None) or "index")
            check = check_key(key.kind, self._releases, is_found=found is not None)
            return KeyFact(key.kind.value, key.key, check, place)
        if self._database is None:
            check = PointerCheck.NOT_KNOWN if store.index_files else PointerCheck.MISSING
            return KeyFact(key.kind.value, key.key, check, None)
        time = message.record.store_timestamp
        leads = offset in self._read_rows(self._database, KeyQuery(key.kind, message.topic, key.key, time, time))
        check = check_key(key.kind, self._releases, is_found=leads)
        return KeyFact(key.kind.value, key.key, check, FactOrigin("RocksDB, index"))

    def _read_messages(self, offsets: Iterable[int], pointer: str) -> Iterator[Message]:
        return filter(None, (self._log.read_pointed_message(offset, pointer) for offset in offsets))

    @cached_property
    def _parts(self) -> list[tuple[range, IndexReader | None]]:
        """
        The parts of the log that index files cover, and those before, between and after them, newest first.

        The span of a file ends at the beginning of the last entry's message, of which the next file may also have
        entries.
        """
        store, parts = self._reader.store, list[tuple[range, IndexReader | None]]()
        newer_first = store.end_offset
        for file in self._reader.index_readers():
            try:
                span = _find_covered_span(file)
            except CorruptData as damage:
                self._remarks.note(f"damaged index file: {damage}")
                continue
            if span is None:
                continue
            if span.stop < newer_first:
                parts.append((range(max(span.stop, store.start_offset), newer_first), None))
            parts.append((span, file))
            newer_first = min(newer_first, span.start)  # a broker that starts after a crash may index messages again
        if store.start_offset < newer_first:
            parts.append((range(store.start_offset, newer_first), None))
        return parts

    def _find_hits(self, file: IndexReader, wanted: KeyQuery, *, slack_ms: int = 999) -> Iterator[int]:
        """
        Yield the offsets with a hash in an index file, newest first; note damage, then raise `CorruptData`.

        The times of entries are whole seconds, so they are up to *slack_ms* before those of their messages.

        The chain is followed only as far as the caller reads, because a popular key may have millions of entries. A
        broker chains each entry to an older one. An entry that does not follow this order is yielded only once the
        chain is known to end, so no entry of a loop is yielded twice.
        """
        out_of_order: list[int] = []
        before = file.geometry.index_num
        begin = max(wanted.begin - slack_ms, MIN_TIME)
        try:
            header = file.header
            if not header.matches_time(begin, wanted.end):
                return
            for hop in file.find_entries(wanted.hashed_text(self._releases[-1]), begin, wanted.end, header):
                if out_of_order or hop.number >= before:
                    out_of_order.append(hop.entry.physical_offset)
                    continue
                before = hop.number
                yield hop.entry.physical_offset
        except CorruptData as damage:
            self._remarks.note(f"damaged index file: {damage}")
            raise
        yield from out_of_order

    def _find_uncovered(self, span: range, wanted: KeyQuery, found: set[int]) -> Iterator[Message]:
        """Yield the messages of a part of the log that no index file covers, newest first, except *found* ones."""
        few = read_few_records(self._reader, span)
        offsets = (
            self._log.find_offsets_of_key(wanted.key, span) if few is None else [one.physical_offset for one in few]
        )
        # The message that the next file begins with may have its first entries in a file that is lost.
        for message in filter(None, map(self._log.read_message, reversed([*offsets, span.stop]))):
            offset = message.record.physical_offset
            if offset in found or not wanted.matches(message) or self._is_in_older_file(span, offset, wanted):
                continue
            lacks = "no index file covers" if self._database is None else "the index in RocksDB does not cover"
            self._remarks.note(f"{lacks} offsets {span.start:,} to {span.stop:,}: the log itself is searched there")
            found.add(offset)
            yield message

    def _is_in_older_file(self, span: range, offset: int, wanted: KeyQuery) -> bool:
        """Return whether the first message of a part is under the key in the file before it, which is read later."""
        if offset != span.start:
            return False
        files = [file for part, file in self._parts if file is not None and part.start <= offset == part.stop]
        with suppress(CorruptData):  # the damage was already reported
            return any(offset in self._find_hits(file, wanted) for file in files)
        return False

    def _find_newer(self, database: Database, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the messages after the last one that has rows, newest first: a broker keeps new rows in memory."""
        key, value = next(database.items(INDEX_FAMILY, LAST_OFFSET_KEY), (b"", b""))
        last = self._log.read_message(decode_progress(value)) if key == LAST_OFFSET_KEY else None
        if last is not None:
            span = range(last.record.end_offset, self._reader.store.end_offset)
            yield from self._find_uncovered(span, wanted, set())

    def _read_rows(self, database: Database, wanted: KeyQuery) -> Iterator[int]:
        """Yield the message offsets of RocksDB rows, in row order: the oldest hour first."""
        try:
            for row in read_index_rows_like_broker(database, wanted.topic, wanted.kind, wanted.key):
                if wanted.begin <= row.store_timestamp <= wanted.end:
                    yield row.physical_offset
        except CorruptData as damage:
            self._remarks.warn(f"damaged index in RocksDB: {damage}; --scan-log searches the log itself")


def _find_covered_span(file: IndexReader) -> range | None:
    """Return a file's range of offsets, None without entries; raise `CorruptData` if header and entries disagree."""
    header = file.header
    if not header.entry_count:
        return None
    if header.index_count > file.geometry.index_num:
        raise CorruptData(f"the header counts {header.index_count} entries", 0, file.file)
    first, last = (file.entry(number).physical_offset for number in (1, header.entry_count))
    # A header with a wrong end would hide the messages of a file that is lost after it.
    if (first, last) != (header.begin_physical_offset, header.end_physical_offset):
        claimed = f"{header.begin_physical_offset:,} to {header.end_physical_offset:,}"
        stored = f"{first:,} to {last:,}"
        raise CorruptData(f"the header states offsets {claimed}, but the entries have {stored}", 0, file.file)
    return range(first, last)
