"""
Searches in a store for messages: by key, through its index files or its index in RocksDB, and in the log itself.

An index file covers the log from its first entry's message to its last one's. A part between two files was never
indexed, or the file that indexed it is lost: only the log shows the messages there.

A search in the log scans raw bytes first: a record is decoded only if it contains the text. Small logs are walked by
the scalar reader; the compiled scan, whose import takes longer than most queries, is for large ones.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from jobs.query import MAX_TIME, MIN_TIME, KeyQuery, Message, count_entries_with_hash
from jobs.query.mqadmin import OffsetRange
from jobs.query.source import FactOrigin, KeyFact, OnProgress, PointerCheck, do_nothing
from jobs.query.store_reader import StoreReader
from jobs.store.ranges import WHOLE_SEGMENTS, Range, find_holes, plan_ranges
from jobs.store.rocksdb import Database, read_index_rows_like_broker
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.commitlog.segment import Piece, PieceKind, SegmentBytes, walk_segment
from rmq_formats.consumequeue.dispatch import ExpectedUnit
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.indexfile.keys import IndexKey, KeyKind
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.properties import index_key_hash
from rmq_formats.rocksdb.layout import INDEX_FAMILY, LAST_OFFSET_KEY, decode_progress

if TYPE_CHECKING:
    from jobs.query.store_source import StoreSource

COMPILED_SCAN_MIN_BYTES = 32 << 20
MAX_LOG_SEARCHED_BY_DEFAULT = 1 << 30  # bytes: a log up to this size is searched if index or queue files leave a doubt

OnLoss = Callable[[int, int, str], None]  # offsets of the log that hold no readable message, and why
_ENTRY, _ROW = "an index entry", "a row of the index in RocksDB"
_FEW = 64  # records that are read one by one before a search becomes worthwhile


WHOLE_LOG = range(1 << 62)  # a part of the log is a range between two record boundaries; no log is as long


# Some records of the log: bytes, the physical offset of the first one, and ascending positions and sizes of records.
_Block = tuple[bytes, int, Sequence[int], Sequence[int]]


def _records_with(text: str, data: bytes, positions: Sequence[int], sizes: Sequence[int]) -> Iterator[int]:
    needle = text.encode("utf-8", "replace")
    if not needle or "\N{REPLACEMENT CHARACTER}" in text:  # malformed bytes cannot be searched for
        yield from range(len(positions))
        return
    place = data.find(needle)
    while place >= 0:
        number = bisect_right(positions, place) - 1
        if number >= 0 and place < positions[number] + sizes[number]:
            yield number
            place = positions[number] + sizes[number] - 1
        place = data.find(needle, place + 1)


def search_records(
    store: StoreReader, text: str, progress: OnProgress, span: range = WHOLE_LOG, on_loss: OnLoss = do_nothing
) -> Iterator[MessageRecord]:
    """
    Yield the records of *span* that contain *text*, in log order; call *on_loss* for unreadable parts.

    The last call of *progress* reports the search as complete, also if the caller needs no more records.
    """
    for before, start, end in find_holes(store.store.segments):
        if start < span.stop and end > span.start:
            on_loss(start, end, f"no segment contains this range; {before.location} ends before it")
    ranges: list[Range] = []
    # Whole segments: only records that chain from a segment's first byte are valid, others only look like records.
    span = range(store.entry_start(span.start), store.entry_start(span.stop))
    for range_ in plan_ranges(store.store, range_size=WHOLE_SEGMENTS):
        start, end = max(range_.start_offset, span.start), min(range_.end_offset, span.stop)
        if start < end:
            base = range_.base_offset
            is_final = range_.final or end < range_.end_offset  # a record begins where the span ends
            ranges.append(replace(range_, start=start - base, end=end - base, final=is_final))
    total = sum(range_.end - range_.start for range_ in ranges)
    done = 0
    blocks = _compiled_blocks if total >= COMPILED_SCAN_MIN_BYTES else _scalar_blocks
    try:
        for range_ in ranges:
            for block in blocks(store, range_):
                if isinstance(block, Piece):
                    on_loss(block.offset, block.end, block.reason)
                    continue
                data, base, positions, sizes = block
                for number in _records_with(text, data, positions, sizes):
                    position = positions[number]
                    yield decode_record(data[position : position + sizes[number]], 0, base + position)
                progress(done + base + positions[-1] - range_.start_offset, total)
            done += range_.end - range_.start
    finally:
        progress(total, total)


def _compiled_blocks(_store: StoreReader, range_: Range) -> Iterator[_Block | Piece]:
    from jobs.store.range_reader import RangeReader

    for item in RangeReader(range_).pieces():
        if not isinstance(item, Piece):
            yield item.buffer.tobytes(), item.base_offset, item.positions.tolist(), item.sizes.tolist()
        elif item.may_lack_messages:
            yield item


def _scalar_blocks(store: StoreReader, range_: Range) -> Iterator[_Block | Piece]:
    segment = store.store.segment_at(range_.base_offset)
    if segment is None:
        return
    framing = store.segment_bytes(segment).framing
    start = range_.start_offset
    data = bytes(store.open_cached(segment.location).read(range_.start, range_.end - range_.start))
    log = SegmentBytes.from_buffer(data, start, framing)
    pieces = list(walk_segment(log, final=range_.final, evidence=range_.evidence))
    yield from (piece for piece in pieces if piece.may_lack_messages)
    records = [piece for piece in pieces if piece.kind is PieceKind.RECORD]
    if records:
        positions = [piece.offset - start + framing.header_size for piece in records]
        yield data, start, positions, [piece.size - framing.header_size for piece in records]


class LogQueue:
    """One queue derived from the log: its ascending queue offsets, and the positions of their records."""

    def __init__(self) -> None:
        self.firsts = array("q")
        self._counts = array("q")  # 1, or the messages of a batch
        self._places = array("q")

    @property
    def offsets(self) -> OffsetRange:
        """The range of the queue's offsets."""
        return OffsetRange(self.firsts[0], self.firsts[-1] + self._counts[-1])

    def add(self, unit: ExpectedUnit) -> None:
        """Add a unit of a record; of several with the same queue offset, the first one is kept."""
        at = bisect_right(self.firsts, unit.queue_offset)
        if at == 0 or self.firsts[at - 1] != unit.queue_offset:
            self.firsts.insert(at, unit.queue_offset)
            self._counts.insert(at, unit.batch_count or 1)
            self._places.insert(at, unit.physical_offset)

    def physical_offset_of(self, queue_offset: int) -> int | None:
        """Return the physical offset of the record with a queue offset; None if the log has none."""
        at = bisect_right(self.firsts, queue_offset) - 1
        return self._places[at] if at >= 0 and queue_offset < self.firsts[at] + self._counts[at] else None


class StoreIndex:
    """The index of a store; messages in no index file are searched in the log."""

    def __init__(self, store: "StoreSource") -> None:
        self._store = store
        self._reader = store.reader

    def why_not_searchable(self, kind: KeyKind) -> str | None:
        """Return why the index cannot be used; None if it can, empty if the user does not want it."""
        if self._store.through_log:
            return ""
        if kind is KeyKind.TAG and not self._store.release.indexes_tags:
            return f"RocketMQ {self._store.release} does not index tags"
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
    def database(self) -> Database | None:
        """The index in RocksDB, if it is the one to use and can be read."""
        return None if isinstance(self._rocksdb, str) else self._rocksdb

    def find_messages(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the messages from the index, and those from uncovered parts of the log, newest first."""
        if self.database is not None:
            yield from self._find_newer(self.database, wanted)
            offsets = sorted(set(self._rows(self.database, wanted)), reverse=True)
            yield from filter(wanted.is_kept_by_client, self._messages_at(offsets, _ROW))
            return
        # A message is returned once for each of the broker's entries. Two files may share a message, and the log also
        # has it, so a message that index files have returned is not returned again from the log. Files are read newest
        # first; once a file begins before the window, older files are outside of it.
        given: Counter[int] = Counter()  # offset → how often its message was given
        seen: Counter[int] = Counter()  # offset → its entries under the hash; two files may share a message
        for span, file in self._parts:
            if file is None:
                yield from self._find_uncovered(span, wanted, given)
                continue
            try:
                for message in self._with_key(self._hits(file, _in_seconds(wanted)), wanted, seen):
                    given[message.record.physical_offset] += 1
                    yield message
            except CorruptData:
                last = self._store.by_offset(span.stop)
                damaged = range(span.start, last.record.end_offset if last else span.stop)
                yield from self._find_uncovered(damaged, wanted, given)
            if file.header.begin_timestamp < wanted.begin:
                return

    def find_by_hash(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the message of every entry with a key's hash, as `Source.by_key_hash` does."""
        if self.database is not None:
            yield from self._messages_at(self._rows(self.database, wanted), _ROW)
            yield from self._find_newer(self.database, wanted)
            return
        line = f"query by-key -t {wanted.topic} -k {wanted.key}"
        given: Counter[int] = Counter()  # offset → its entries under the hash so far
        for span, file in self._parts:
            if file is None:
                if any(True for _ in self._find_uncovered(span, wanted, given)):
                    self._store.note_incomplete(
                        f"mqadmin does not find messages in that part of the log; `{line}` finds them"
                    )
                continue
            try:
                for offset in self._hits(file, wanted):
                    given[offset] += 1
                    yield from self._messages_at([offset], _ENTRY)
            except CorruptData:
                self._store.note_incomplete(f"{file.file} is damaged; `{line}` searches the log instead")
            if file.header.begin_timestamp < wanted.begin:
                return

    def find_without_log(self, wanted: KeyQuery) -> Iterator[Message]:
        """Yield only the index's messages: searching the log for each topic and kind would take too long."""
        if self.database is not None:
            yield from self.find_messages(wanted)
        elif self._reader.index_readers():
            for file in (file for _, file in self._parts if file is not None):
                with suppress(CorruptData):  # the damage was already reported
                    yield from self._with_key(self._hits(file, wanted), wanted, Counter())

    def key_fact(self, message: Message, key: IndexKey) -> KeyFact:
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
            check = self._store.check_of_key(key.kind, is_found=found is not None)
            return KeyFact(key.kind.value, key.key, check, place)
        if self.database is None:
            check = PointerCheck.NOT_KNOWN if store.index_files else PointerCheck.MISSING
            return KeyFact(key.kind.value, key.key, check, None)
        time = message.record.store_timestamp
        leads = offset in self._rows(self.database, KeyQuery(key.kind, message.topic, key.key, time, time))
        check = self._store.check_of_key(key.kind, is_found=leads)
        return KeyFact(key.kind.value, key.key, check, FactOrigin("RocksDB, index"))

    def _messages_at(self, offsets: Iterable[int], pointer: str) -> Iterator[Message]:
        return filter(None, (self._store.read_pointed_message(offset, pointer) for offset in offsets))

    def _with_key(self, hits: Iterable[int], wanted: KeyQuery, seen: Counter[int]) -> Iterator[Message]:
        # Two keys of one message may have the same hash, and a broker that starts after a crash may index a message
        # again. Entries do not show which of the colliding keys they are for, and all point to the same message. So of
        # each round of entries, as many count as the message has this key.
        for message in filter(wanted.matches, self._messages_at(hits, _ENTRY)):
            offset = message.record.physical_offset
            colliding = count_entries_with_hash(message, index_key_hash(wanted.hashed_text))
            if not colliding or seen[offset] % colliding < wanted.count_index_entries(message):
                yield message
            seen[offset] += 1

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
                span = _covered(file)
            except CorruptData as damage:
                self._store.note_once(f"damaged index file: {damage}")
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

    def _hits(self, file: IndexReader, wanted: KeyQuery) -> Iterator[int]:
        """
        Yield the offsets with a hash in an index file, newest first; note damage, then raise `CorruptData`.

        The chain is followed only as far as the caller reads, because a popular key may have millions of entries. A
        broker chains each entry to an older one. An entry that does not follow this order is yielded only once the
        chain is known to end, so no entry of a loop is yielded twice.
        """
        out_of_order: list[int] = []
        before = file.geometry.index_num
        try:
            header = file.header
            if not header.matches_time(wanted.begin, wanted.end):
                return
            for hop in file.find_entries(wanted.hashed_text, wanted.begin, wanted.end, header):
                if out_of_order or hop.number >= before:
                    out_of_order.append(hop.entry.physical_offset)
                    continue
                before = hop.number
                yield hop.entry.physical_offset
        except CorruptData as damage:
            self._store.note_once(f"damaged index file: {damage}")
            raise
        yield from out_of_order

    def _find_uncovered(self, span: range, wanted: KeyQuery, given: Counter[int]) -> Iterator[Message]:
        """Yield the messages of a part of the log that no index file covers, newest first, as often as not *given*."""
        few = read_few_records(self._reader, span)
        found = (
            self._store.find_offsets_of_key(wanted.key, span) if few is None else [one.physical_offset for one in few]
        )
        # The message that the next file begins with may have its first entries in a file that is lost.
        places = [*found, span.stop]
        for message in filter(None, map(self._store.by_offset, reversed(places))):
            offset = message.record.physical_offset
            if wanted.matches(message):
                times = wanted.count_index_entries(message) - given[offset]
                times -= self._entries_later(wanted, span, offset, max(times, 0))
                if times > 0:
                    lacks = "no index file covers" if self.database is None else "the index in RocksDB does not cover"
                    offsets = f"offsets {span.start:,} to {span.stop:,}"
                    self._store.note_once(f"{lacks} {offsets}: the log itself is searched there")
                    given[offset] += times
                    yield from [message] * times

    def _entries_later(self, wanted: KeyQuery, span: range, offset: int, most: int) -> int:
        """Return how many entries, up to *most*, the first message of *span* has in the previous file, read later."""
        files = [file for part, file in self._parts if file and part.start <= offset == part.stop == span.start]
        count = 0
        for file in files:
            # The damage was already reported; entries before it are read later as well.
            with suppress(CorruptData):
                for _ in islice((hit for hit in self._hits(file, _in_seconds(wanted)) if hit == offset), most - count):
                    count += 1
        return count

    def _find_newer(self, database: Database, wanted: KeyQuery) -> Iterator[Message]:
        """Yield the messages after the last one that has rows, newest first: a broker keeps new rows in memory."""
        key, value = next(database.items(INDEX_FAMILY, LAST_OFFSET_KEY), (b"", b""))
        last = self._store.by_offset(decode_progress(value)) if key == LAST_OFFSET_KEY else None
        if last is not None:
            span = range(last.record.end_offset, self._reader.store.end_offset)
            found = self._find_uncovered(span, wanted, Counter())
            yield from {message.record.physical_offset: message for message in found}.values()

    def _rows(self, database: Database, wanted: KeyQuery) -> Iterator[int]:
        """Yield the message offsets of RocksDB rows, in row order: the oldest hour first."""
        try:
            for row in read_index_rows_like_broker(database, wanted.topic, wanted.kind, wanted.key):
                if wanted.begin <= row.store_timestamp <= wanted.end:
                    yield row.physical_offset
        except CorruptData as damage:
            self._store.note_incomplete(f"damaged index in RocksDB: {damage}; --through-log searches the log itself")


def _in_seconds(wanted: KeyQuery) -> KeyQuery:
    """Return the query for index entries, whose times are up to a second before those of their messages."""
    return wanted._replace(begin=max(wanted.begin - 999, MIN_TIME))


def _covered(file: IndexReader) -> range | None:
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


def read_few_records(store: StoreReader, span: range) -> Sequence[MessageRecord] | None:
    """Return the records of a short span; None if it is long, or if its records do not lead to its end."""
    records: list[MessageRecord] = []
    offset = span.start
    while offset < span.stop and len(records) < _FEW:
        segment = store.store.segment_at(offset)
        if segment is None:
            return records if offset >= store.store.end_offset else None
        log, position = store.segment_bytes(segment), offset - segment.base_offset
        record = store.read_record(offset + log.framing.header_size)
        if record is not None:
            records.append(record)
            offset = record.end_offset
            continue
        if segment is store.store.segments[-1] and not any(log.read(position, HEAD.size)):
            return records
        if log.stated_blank_size(position) != log.size - position:
            return None
        offset = segment.base_offset + segment.size
    return records if offset >= span.stop else None
