"""Messages of a store by key: through its index files or its index in RocksDB, or the log where neither is there."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from jobs.query.index_coverage import CoveredSpan, UncoveredSpan, covered, index_parts
from jobs.query.log_search import Span, few_records, holding
from jobs.query.message import Message
from jobs.query.source import EXPLAINED_BY, MAX_TIME, MIN_TIME, Occurrence
from jobs.query.store_view import StoreView
from jobs.store.rocksdb import Database
from jobs.store.rocksdb_keys import rows_under
from rmq_formats.errors import CorruptData, FormatError
from rmq_formats.flags import TransactionType
from rmq_formats.hashing import index_key_hash, java_text
from rmq_formats.indexfile.keys import KeyKind, index_keys, key_text, tag_text
from rmq_formats.properties import UNIQ_KEY, property_items
from rmq_formats.rocksdb.index import IndexRow

_ENTRY, _ROW = "an index entry", "a row of the index in RocksDB"


class _Wanted(NamedTuple):
    """The messages that are asked for."""

    kind: KeyKind
    topic: str
    key: str
    begin: int  # ms, store time
    end: int

    @property
    def text(self) -> str:
        """The text that index entries have the hash of."""
        return _hashed_text(self.kind, self.topic, self.key)


class StoreKeys(StoreView):
    """The keys of a store's messages."""

    def find(self, kind: KeyKind, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the messages under a key, newest first, once for every time the broker indexed them under it."""
        why_not = self._why_not_index(kind)
        if why_not is None:
            yield from self._find_in_index(kind, topic, key, begin, end)
        else:
            if why_not:
                self.say(f"{why_not}: the log itself is searched")
            yield from self._find_in_log(kind, topic, key, begin, end)

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

    def _find_in_index(self, kind: KeyKind, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the index's messages, and those of parts of the log that no index file covers."""
        if self._database is not None:
            offsets = self._row_offsets(rows_under(self._database, topic, kind, key), begin, end)
            found = (self.pointed_at(offset, _ROW) for offset in sorted(set(offsets), reverse=True))
            yield from (message for message in found if message and has_key(message, kind, topic, key))
            return
        wanted = _Wanted(kind, topic, key, begin, end)
        given: Counter[int] = Counter()  # offset → how often its message was given
        seen: Counter[int] = Counter()  # offset → its entries under the hash; two files may share a message
        for part in self._index_parts:
            if isinstance(part, UncoveredSpan):
                yield from self._find_uncovered(part, wanted, given)
                continue
            for message in self._find_in_file(part, wanted, seen):
                given[message.record.physical_offset] += 1
                yield message
            if self._hits(part, wanted) is None:
                last = self.at(part.last)
                span = Span(part.first, last.record.end_offset if last else part.last)
                yield from self._find_uncovered(UncoveredSpan(span, None), wanted, given)
            if part.file.header.begin_timestamp < begin:
                return

    def _find_in_file(self, part: CoveredSpan, wanted: "_Wanted", seen: Counter[int]) -> Iterator[Message]:
        for offset in self._hits(part, wanted) or ():
            message = self.pointed_at(offset, _ENTRY)
            # Only hashes were compared: the message itself has the last word.
            if message and has_key(message, wanted.kind, wanted.topic, wanted.key):
                if self._stands_for(wanted.text, message, seen[offset]):
                    yield message
                seen[offset] += 1

    @cached_property
    def _index_parts(self) -> list[CoveredSpan | UncoveredSpan]:
        """The part of the log that each index file covers, and the parts that none covers, newest first."""
        files: list[CoveredSpan] = []
        for file in self.reader.index_readers():
            try:
                files += filter(None, [covered(file)])
            except CorruptData as damage:
                self.say(f"damaged index file: {damage}")
        store = self.reader.store
        return list(index_parts(files, store.start_offset, store.end_offset))

    def _hits(self, part: CoveredSpan, wanted: "_Wanted") -> list[int] | None:
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

    def _find_uncovered(self, part: UncoveredSpan, wanted: "_Wanted", given: Counter[int]) -> Iterator[Message]:
        """Yield the messages of a part of the log that no index file covers, newest first, as often as not *given*."""
        for message in self._uncovered(part.span, wanted.key):
            record = message.record
            if not (wanted.begin <= record.store_timestamp <= wanted.end):
                continue
            if not has_key(message, wanted.kind, wanted.topic, wanted.key):
                continue
            times = times_indexed(message, wanted.kind, wanted.topic, wanted.key) - given[record.physical_offset]
            times -= self._entries_before(part, wanted, record.physical_offset)
            if times > 0:
                self.say(
                    f"no index file covers offsets {part.span.start} to {part.span.end}: "
                    "the log itself is searched there"
                )
                given[record.physical_offset] += times
                yield from [message] * times

    def _entries_before(self, part: UncoveredSpan, wanted: "_Wanted", offset: int) -> int:
        """Return how many entries of a message where *part* begins are in the files before it: they follow later."""
        if part.before is None or offset != part.before.last:
            return 0
        files = (file for file in self._index_parts if isinstance(file, CoveredSpan))
        sharing = [file for file in files if file.first <= offset == file.last]
        return sum((self._hits(file, wanted) or []).count(offset) for file in sharing)

    def _uncovered(self, span: Span, key: str) -> list[Message]:
        """Return the messages of a part of the log that may have a key, newest first."""
        few = few_records(self.reader, span)
        if few is not None:
            messages = [Message(record, self.release) for record in few]
        else:
            messages = list(self.search(holding(key), span))
        # The message that the next file begins with may have its first entries in a file that is lost.
        messages += filter(None, [self.at(span.end)])
        is_left_over = self.reader.is_left_over
        return [one for one in reversed(messages) if not is_left_over(one.record.physical_offset)]

    def _row_offsets(self, rows: Iterator[IndexRow], begin: int, end: int) -> Iterator[int]:
        """Yield the offsets of the messages of *rows* in RocksDB, in the order of the rows: the oldest hour first."""
        try:
            for row in rows:
                if begin <= row.store_timestamp <= end:
                    yield row.physical_offset
        except CorruptData as damage:
            self.lack(f"damaged index in RocksDB: {damage}; --through-log searches the log itself")

    def key_hits(self, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        """Yield the message of every index entry that a broker finds for a key, in its order; others' keys, too."""
        if self._why_not_index(KeyKind.KEY) is not None:
            yield from self.find(KeyKind.KEY, topic, key, begin, end)
            return
        if self._database is not None:
            offsets = self._row_offsets(rows_under(self._database, topic, KeyKind.KEY, key), begin, end)
            yield from filter(None, (self.pointed_at(offset, _ROW) for offset in offsets))
            return
        wanted = _Wanted(KeyKind.KEY, topic, key, begin, end)
        given: Counter[int] = Counter()  # offset → its entries under the hash so far
        for part in self._index_parts:
            if isinstance(part, UncoveredSpan):
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

        Two keys of one message may collide, too; and a broker that starts after a crash may index a message again.
        """
        keys = index_keys(message.record, self.release)
        key_hash = index_key_hash(text)
        colliding = sum(index_key_hash(key) == key_hash for key in keys)
        return not colliding or number % colliding < keys.count(text)

    def _find_in_log(self, kind: KeyKind, topic: str, key: str, begin: int, end: int) -> Iterator[Message]:
        places: list[tuple[int, int]] = []
        for message in self.search(holding(key)):
            record = message.record
            if begin <= record.store_timestamp <= end and has_key(message, kind, topic, key):
                places.append((record.physical_offset, times_indexed(message, kind, topic, key)))
        for offset, times in reversed(places):
            found = self.at(offset)
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
        if self._database is not None:
            yield from self._find_in_index(kind, topic, text, MIN_TIME, MAX_TIME)
        elif self.reader.index_readers():
            wanted = _Wanted(kind, topic, text, MIN_TIME, MAX_TIME)
            for part in self._index_parts:
                if isinstance(part, CoveredSpan):
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


def has_key(message: Message, kind: KeyKind, topic: str, key: str) -> bool:
    """Return whether a message is what a client keeps of a broker's answer; a rollback is indexed by no broker."""
    is_indexed = message.transaction is not TransactionType.ROLLBACK
    return is_indexed and message.topic == topic and says(message, kind, key)


def says(message: Message, kind: KeyKind, key: str) -> bool:
    """Return whether a message has *key* as a key of that kind."""
    if kind is KeyKind.UNIQUE:
        return message.unique_key == key
    return message.tags == key if kind is KeyKind.TAG else key in message.keys


def times_indexed(message: Message, kind: KeyKind, topic: str, key: str) -> int:
    """Return how many entries a broker's index has for a message under a key; one where its release indexes no tags."""
    if kind is KeyKind.TAG and not message.release.indexes_tags:
        return 1
    return index_keys(message.record, message.release).count(_hashed_text(kind, topic, key))


def entries_under(message: Message, key_hash: int) -> int:
    """Return how many entries a broker's index has for a message under a hash, whichever keys they are of."""
    return sum(index_key_hash(key) == key_hash for key in index_keys(message.record, message.release))


def has_shadowed_key(message: Message, text: str) -> bool:
    """Return whether *text* is a message's own id which its batch's follows and hides (5.0.0 to 5.3.3)."""
    if message.unique_key == text:
        return False
    items = property_items(java_text(message.record.properties_raw), message.release.property_parser)
    return (UNIQ_KEY, text) in items


def _hashed_text(kind: KeyKind, topic: str, key: str) -> str:
    return tag_text(topic, key) if kind is KeyKind.TAG else key_text(topic, key)
