"""
Messages of a store by key: through its index files or its index in RocksDB, or the log where neither is there.

An index file covers the log from its first entry's message to its last one's. What lies between two files was never
indexed, or the file that indexed it is lost: only the log tells which messages are there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from jobs.query.message import MAX_TIME, MIN_TIME, KeyWanted, Message, entries_under, says
from jobs.query.source import EXPLAINED_BY, Occurrence
from jobs.query.store_log import Span, StoreView, few_records, holding
from jobs.store.rocksdb import Database, rows_under
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.hashing import index_key_hash, java_text
from rmq_formats.indexfile.keys import KeyKind, index_keys
from rmq_formats.indexfile.lookup import IndexReader
from rmq_formats.properties import UNIQ_KEY, property_items

_ENTRY, _ROW = "an index entry", "a row of the index in RocksDB"


class _CoveredSpan(NamedTuple):
    """An index file, and the messages that its entries are of."""

    file: IndexReader
    first: int  # physical offset of the first entry's message
    last: int  # of the last one's, of which the next file may also have entries


class _UncoveredSpan(NamedTuple):
    """Offsets between two files: messages there, and entries of the message at its start, may be in no file."""

    span: Span
    before: _CoveredSpan | None  # the file that ends where the span begins


class StoreKeys(StoreView):
    """The keys of a store's messages."""

    def by_key(
        self, kind: KeyKind, topic: str, key: str, begin: int = MIN_TIME, end: int = MAX_TIME
    ) -> Iterator[Message]:
        """Yield the messages under a key, newest first, once for every time the broker indexed them under it."""
        wanted = KeyWanted(kind, topic, key, begin, end)
        why_not = self._why_not_index(kind)
        if why_not:
            self.say(f"{why_not}: the log itself is searched")
        yield from self._find_in_index(wanted) if why_not is None else self._find_in_log(wanted)

    def _why_not_index(self, kind: KeyKind) -> str | None:
        """Say why the index cannot be asked; None when it can, nothing when the user does not want it."""
        if self.through_log:
            return ""
        if kind is KeyKind.TAG and not self.release.indexes_tags:
            return f"RocketMQ {self.release} does not index tags"
        if not self.reader.store.index_files:
            return self._why_not_in_rocksdb()
        if self.reader.index_geometry is None:
            return "the index files do not tell how many slots and entries they have (--hash-slots, --index-num)"
        return None

    def _why_not_in_rocksdb(self) -> str | None:
        try:
            has_index = self.reader.index_database is not None
        except FormatError as error:
            return str(error)
        return None if has_index else "the store has no index files"

    @property
    def _database(self) -> Database | None:
        """The index in RocksDB, where it is the one to ask and can be read."""
        return self.reader.index_database if self._why_not_in_rocksdb() is None else None

    def _find_in_index(self, wanted: KeyWanted) -> Iterator[Message]:
        """Yield the index's messages, and those of parts of the log that no index file covers."""
        if self._database is not None:
            offsets = sorted(set(self._row_offsets(self._database, wanted)), reverse=True)
            found = (self.pointed_at(offset, _ROW) for offset in offsets)
            yield from (message for message in found if message and wanted.has_key(message))
            return
        # A message comes as often as the broker has entries of it, though two files may share it and the log has it,
        # too: what files have given is not given again from the log. Files come newest first; once one begins before
        # the window, older ones are outside of it.
        given: Counter[int] = Counter()  # offset → how often its message was given
        seen: Counter[int] = Counter()  # offset → its entries under the hash; two files may share a message
        for part in self._index_parts:
            if isinstance(part, _UncoveredSpan):
                yield from self._find_uncovered(part, wanted, given)
                continue
            for message in self._find_in_file(part, wanted, seen):
                given[message.record.physical_offset] += 1
                yield message
            if self._hits(part, wanted) is None:
                last = self.by_offset(part.last)
                span = Span(part.first, last.record.end_offset if last else part.last)
                yield from self._find_uncovered(_UncoveredSpan(span, None), wanted, given)
            if part.file.header.begin_timestamp < wanted.begin:
                return

    def _find_in_file(self, part: _CoveredSpan, wanted: KeyWanted, seen: Counter[int]) -> Iterator[Message]:
        for offset in self._hits(part, wanted) or ():
            message = self.pointed_at(offset, _ENTRY)
            # Only hashes were compared: the message itself has the last word.
            if message and wanted.has_key(message):
                if self._stands_for(wanted.text, message, seen[offset]):
                    yield message
                seen[offset] += 1

    @cached_property
    def _index_parts(self) -> list[_CoveredSpan | _UncoveredSpan]:
        """The part of the log that each index file covers, and the parts that none covers, newest first."""
        files: list[_CoveredSpan] = []
        for file in self.reader.index_readers():
            try:
                files += filter(None, [_covered(file)])
            except CorruptData as damage:
                self.say(f"damaged index file: {damage}")
        store = self.reader.store
        return list(_parts(files, store.start_offset, store.end_offset))

    def _hits(self, part: _CoveredSpan, wanted: KeyWanted) -> list[int] | None:
        """Return the offsets that an index file has under a hash, newest first; None where it is damaged."""
        window = wanted.begin, wanted.end
        header = part.file.header
        if not header.matches_time(*window):
            return []
        try:
            return [hop.entry.physical_offset for hop in part.file.hits(wanted.text, *window, header)]
        except CorruptData as damage:
            self.say(f"damaged index file: {damage}")
            return None

    def _find_uncovered(self, part: _UncoveredSpan, wanted: KeyWanted, given: Counter[int]) -> Iterator[Message]:
        """Yield the messages of a part of the log that no index file covers, newest first, as often as not *given*."""
        for message in filter(wanted.takes, self._uncovered(part.span, wanted.key)):
            offset = message.record.physical_offset
            times = wanted.times_indexed(message) - given[offset] - self._entries_before(part, wanted, offset)
            if times > 0:
                self.say(
                    f"no index file covers offsets {part.span.start} to {part.span.end}: "
                    "the log itself is searched there"
                )
                given[offset] += times
                yield from [message] * times

    def _entries_before(self, part: _UncoveredSpan, wanted: KeyWanted, offset: int) -> int:
        """Return how many entries of a message where *part* begins are in the files before it: they follow later."""
        if part.before is None or offset != part.before.last:
            return 0
        files = (file for file in self._index_parts if isinstance(file, _CoveredSpan))
        sharing = [file for file in files if file.first <= offset == file.last]
        return sum((self._hits(file, wanted) or []).count(offset) for file in sharing)

    def _uncovered(self, span: Span, key: str) -> Iterator[Message]:
        """Yield the messages of a part of the log that may have a key, newest first."""
        few = few_records(self.reader, span)
        records = few if few is not None else (message.record for message in self.search(holding(key), span))
        # Places are kept, not messages of any size. The message that the next file begins with may have its first
        # entries in a file that is lost.
        places = [*(record.physical_offset for record in records), span.end]
        return filter(None, map(self.by_offset, reversed(places)))

    def _row_offsets(self, database: Database, wanted: KeyWanted) -> Iterator[int]:
        """Yield the offsets of the messages of rows in RocksDB, in the order of the rows: the oldest hour first."""
        try:
            for row in rows_under(database, wanted.topic, wanted.kind, wanted.key):
                if wanted.begin <= row.store_timestamp <= wanted.end:
                    yield row.physical_offset
        except CorruptData as damage:
            self.lack(f"damaged index in RocksDB: {damage}; --through-log searches the log itself")

    def by_entry(self, topic: str, key: str, begin: int = MIN_TIME, end: int = MAX_TIME) -> Iterator[Message]:
        """Yield the message of every index entry under a key's hash, in the broker's order, also of other keys."""
        if self._why_not_index(KeyKind.KEY) is not None:
            yield from self.by_key(KeyKind.KEY, topic, key, begin, end)
            return
        wanted = KeyWanted(KeyKind.KEY, topic, key, begin, end)
        if self._database is not None:
            offsets = self._row_offsets(self._database, wanted)
            yield from filter(None, (self.pointed_at(offset, _ROW) for offset in offsets))
            return
        given: Counter[int] = Counter()  # offset → its entries under the hash so far
        for part in self._index_parts:
            if isinstance(part, _UncoveredSpan):
                if any(True for _ in self._find_uncovered(part, wanted, given)):
                    self.lack(
                        f"mqadmin finds no message in that part of the log; query by-key -t {topic} -k {key} does"
                    )
                continue
            hits = self._hits(part, wanted)
            if hits is None:
                self.lack(f"{part.file.file} is damaged; query by-key -t {topic} -k {key} searches the log instead")
            for offset in hits or ():
                given[offset] += 1
                message = self.pointed_at(offset, _ENTRY)
                if message:
                    yield message
            if part.file.header.begin_timestamp < begin:
                return

    def _stands_for(self, text: str, message: Message, number: int) -> bool:
        """
        Return whether a message's entry of this *number* is that of *text* itself.

        Two keys of one message may also collide; and a broker that starts after a crash may index a message again.
        """
        # Entries do not show which of the colliding keys each is of, and all lead to the same message: of each round of
        # them as many count for *text* as the message has this key.
        colliding = entries_under(message, index_key_hash(text))
        return not colliding or number % colliding < index_keys(message.record, self.release).count(text)

    def _find_in_log(self, wanted: KeyWanted) -> Iterator[Message]:
        # The log is walked forwards, and answers begin with the newest: places are kept, not messages of any size.
        messages = filter(wanted.takes, self.search(holding(wanted.key)))
        places = [(message.record.physical_offset, wanted.times_indexed(message)) for message in messages]
        for offset, times in reversed(places):
            found = self.by_offset(offset)
            if found:
                yield from [found] * times

    def _indexed(self, text: str, topics: frozenset[str]) -> Iterator[Occurrence]:
        """Yield the newest message of each topic and kind of key that the index has under *text*."""
        for topic in sorted(topics):
            for kind in KeyKind:
                for message in islice(self._in_index_alone(kind, topic, text), 1):
                    yield Occurrence(message, kind, is_indexed=True)

    def _in_index_alone(self, kind: KeyKind, topic: str, text: str) -> Iterator[Message]:
        """Yield the index's messages alone: a search of the log for each topic and kind would take too long."""
        wanted = KeyWanted(kind, topic, text)
        if self._database is not None:
            yield from self._find_in_index(wanted)
        elif self.reader.index_readers():
            for part in self._index_parts:
                if isinstance(part, _CoveredSpan):
                    yield from self._find_in_file(part, wanted, Counter())

    def _logged(self, text: str) -> Iterator[Occurrence]:
        """Yield messages of the log that have *text* as a key, as many as explain enough."""
        found = (
            occurrence for message in self.search(holding(text)) for occurrence in self._occurrences_in(message, text)
        )
        yield from islice(found, EXPLAINED_BY)

    def _occurrences_in(self, message: Message, text: str) -> Iterator[Occurrence]:
        for kind in KeyKind:
            if says(message, kind, text):
                yield Occurrence(message, kind, self._is_indexed(message, kind, text))
        if has_shadowed_key(message, text):
            yield Occurrence(message, KeyKind.UNIQUE, is_indexed=False, is_shadowed=True)

    def _is_indexed(self, message: Message, kind: KeyKind, text: str) -> bool:
        found = self._in_index_alone(kind, message.topic, text)
        return any(other.record.physical_offset == message.record.physical_offset for other in found)


def has_shadowed_key(message: Message, text: str) -> bool:
    """Return whether *text* is a message's own id which its batch's follows and hides (5.0.0 to 5.3.3)."""
    if message.unique_key == text:
        return False
    items = property_items(java_text(message.record.properties_raw), message.release.property_parser)
    return (UNIQ_KEY, text) in items


def _covered(file: IndexReader) -> _CoveredSpan | None:
    """Return the span of a file, None of one without entries; `CorruptData` where header and entries disagree."""
    header = file.header
    if not header.entry_count:
        return None
    if header.index_count > file.geometry.index_num:
        raise CorruptData(f"the header counts {header.index_count} entries", 0, file.file)
    first, last = (file.entry(number).physical_offset for number in (1, header.entry_count))
    # A header that lies about its end would hide the messages of a file that is lost after it.
    if (first, last) != (header.begin_physical_offset, header.end_physical_offset):
        claimed = f"{header.begin_physical_offset} to {header.end_physical_offset}"
        raise CorruptData(f"the header names offsets {claimed}, the entries {first} to {last}", 0, file.file)
    return _CoveredSpan(file, first, last)


def _parts(files: Sequence[_CoveredSpan], log_start: int, log_end: int) -> Iterator[_CoveredSpan | _UncoveredSpan]:
    """Yield the files, which come newest first, and the offsets before, between and after them, newest first."""
    newer_first = log_end
    for file in files:
        if file.last < newer_first:
            yield _UncoveredSpan(Span(max(file.last, log_start), newer_first), file)
        yield file
        newer_first = min(newer_first, file.first)  # a broker that starts after a crash may index messages again
    if log_start < newer_first:
        yield _UncoveredSpan(Span(log_start, newer_first), None)
