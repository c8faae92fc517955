"""
Builds index files at disk speed: keys are packed range by range, then chained file by file.

The keys of a log, in log order, are one sequence that is divided into files. `pack_keys` writes this sequence with 20
bytes per key, the size of an entry, so `FileBuilder` converts keys to entries in place and writes them; only the slots
stay in memory. Property tests compare both with a readable index file in the tests.

`BlockComparison` compares two index files without keeping the expected one: it takes the builder's blocks, and compares
each with the bytes at its position.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum, unique
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rmq_formats.commitlog.kernels import SYS_FLAG_AT, prefetch_record, read_store_timestamp, record_parts
from rmq_formats.commitlog.layout import TRANSACTION_MASK, TransactionType
from rmq_formats.commitlog.scan import RawRecords
from rmq_formats.compiled import compile_large_work, compiled, compiled_helper
from rmq_formats.indexfile.keys import TAG_MARK, TOPIC_SEPARATOR, UNIQUE_MARK, KeyKind
from rmq_formats.indexfile.layout import ENTRY, HEADER, SLOT, Geometry, IndexHeader
from rmq_formats.kernels.integers import (
    Bytes,
    Integers,
    Sizes,
    byte_at,
    number_at,
    read_i32,
    read_i64,
    read_u32,
    write_i32,
    write_i64,
)
from rmq_formats.kernels.text import (
    MAX_TEXT_GROWTH,
    PROPERTY_PARSER_CODES,
    TABLE_FULL,
    TextTable,
    copy_as_java_text,
    find_byte_below,
    find_or_add_text,
    hash_character,
    hash_text,
    is_text_at,
    new_text_table,
    next_property,
)
from rmq_formats.layout import Buffer, Read
from rmq_formats.properties import KEY_SEPARATOR, KEYS, MAX_INT, MAX_LONG, MIN_INT, TAGS, UNIQ_KEY
from rmq_formats.release import HashSlotCount, Rules

PACKED_KEY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("store_timestamp", ">i8")])

KEY_KINDS = tuple(KeyKind)  # the texts of keys have the number of a kind in this order


class KeyTexts(NamedTuple):
    """The texts of a block of keys; without room for any, none are written."""

    topics: TextTable  # distinct topics, as stored
    topic_numbers: Sizes
    kinds: Sizes
    ends: Sizes  # the end of each key's text, after a leading zero
    data: Bytes  # the keys as Java reads them, in UTF-8


class RuleTable(NamedTuple):
    """Rules as an array for compiled code: one row per rule, the newest last."""

    from_offsets: NDArray[np.int64]
    parser_codes: NDArray[np.int64]
    indexes_tags: NDArray[np.bool_]
    marks_unique_keys: NDArray[np.bool_]
    counts_every_put: NDArray[np.bool_]

    @classmethod
    def from_rules(cls, rules: Rules) -> Self:
        """Return the columns of *rules*."""
        releases = [release for _, release in rules]
        return cls(
            np.array([since for since, _ in rules], np.int64),
            np.array([PROPERTY_PARSER_CODES[release.property_parser] for release in releases], np.int64),
            np.array([release.indexes_tags for release in releases], np.bool_),
            np.array([bool(release.implementation) for release in releases], np.bool_),
            np.array([release.hash_slot_count is HashSlotCount.EVERY_PUT for release in releases], np.bool_),
        )


@compiled_helper
def time_diff_s(begin: int, time: int) -> int:
    """Return the seconds that an entry stores for a message of *time* in a file that began at *begin*."""
    if begin > 0 and time >= begin:
        return min((time - begin) // 1000, MAX_INT)
    if begin > 0 > time and time + MAX_LONG + 1 < begin:
        # Java's difference wraps and comes out positive: 2^63 - 1,000 for time -2^63 and begin 1,000. No step here may
        # leave 64 bits, so the 2^64 of the wrap is added in two halves.
        return min((time + MAX_LONG - begin + MAX_LONG + 2) // 1000, MAX_INT)
    return 0


@compiled_helper
def find_rule_number(rules: RuleTable, earlier_number: int, offset: int) -> int:
    """Return the number of the rule at an offset, not less than *earlier_number*: offsets only rise."""
    while earlier_number + 1 < rules.from_offsets.size and rules.from_offsets[earlier_number + 1] <= offset:
        earlier_number += 1
    return earlier_number


def pack_keys(
    records: RawRecords, rules: RuleTable, from_offset: int = 0, *, with_texts: bool = False
) -> Iterator[tuple[NDArray[np.void], KeyTexts]]:
    """
    Yield the keys of *records* at or after *from_offset*, some at a time; each block is valid until the next one.

    Each block comes with the texts of its keys, which stay valid; there are none without *with_texts*.
    """
    compile_large_work(records.byte_count)
    count = len(records.positions)
    keys = np.empty(count * _USUAL_KEYS + _WIDEST, PACKED_KEY)
    record = 0
    while record < len(records.positions):
        texts = _text_room(keys.size, count * _USUAL_TEXT + _LONGEST_TEXT) if with_texts else _text_room(0, 0)
        record, found = _pack(records, record, from_offset, rules, keys.view(np.uint8), texts)
        yield keys[:found], texts


def _text_room(keys: int, size: int) -> KeyTexts:
    """Allocate the texts of so many keys, with *size* bytes in total."""
    topics = new_text_table(_TOPIC_SLOTS if keys else 0, _LONGEST_TEXT)
    numbers, kinds = np.empty((2, keys), np.int32)
    return KeyTexts(topics, numbers, kinds, np.zeros(keys + 1, np.int32), np.empty(size, np.uint8))


_ROLLBACK = int(TransactionType.ROLLBACK)
_HASH = ord(TOPIC_SEPARATOR)
_TAG, _MARK = ord(TAG_MARK), ord(UNIQUE_MARK)
_SPACE = ord(KEY_SEPARATOR)
# Names of properties as integers, which are compared in one step.
_SHORT, _LONG = np.dtype(">u4"), np.dtype(">i8")
_KEYS, _TAGS = (int(np.frombuffer(name.encode(), _SHORT)[0]) for name in (KEYS, TAGS))
_UNIQ_KEY = int(np.frombuffer(UNIQ_KEY.encode(), _LONG)[0])
_UNIQUE, _KEY, _TAGGED = map(KEY_KINDS.index, (KeyKind.UNIQUE, KeyKind.KEY, KeyKind.TAG))
_ENTRY_SIZE = ENTRY.size
_AT_ONCE = 512 * ENTRY.size  # bytes of entries whose slots are loaded before the first of them is chained
_OFFSET_AT = ENTRY.offset("physical_offset")
_TIME_AT = ENTRY.offset("time_diff_s")
_PREVIOUS_AT = ENTRY.offset("prev_entry")
# The keys that one message can have: every second byte of its properties, its unique key, its tags.
_WIDEST = (1 << 15) // 2 + 2
_LONGEST_TEXT = MAX_TEXT_GROWTH << 15  # bytes of a topic, or of the keys of one message
_USUAL_KEYS, _USUAL_TEXT = 4, 128  # keys of a message, and their bytes; with more, a block has fewer messages
_TOPIC_SLOTS = 1 << 12


@compiled_helper
def _put_key(
    keys: Bytes, texts: KeyTexts, count: int, seed: int, offset: int, time: int,
    topic: int, buffer: Bytes, start: int, end: int, kind: int,
) -> int:  # fmt: skip
    """Write key number *count*: a slice of *buffer*, whose hash begins with *seed*; return the new count."""
    at = count * _ENTRY_SIZE
    key_hash = hash_text(buffer, start, end, seed)
    write_i32(keys, at, 0 if key_hash == MIN_INT else abs(key_hash))
    write_i64(keys, at + _OFFSET_AT, offset)
    write_i64(keys, at + _TIME_AT, time)
    if texts.kinds.size:
        texts.topic_numbers[np.uintp(count)] = topic
        texts.kinds[np.uintp(count)] = kind
        to = copy_as_java_text(buffer, start, end, texts.data, number_at(texts.ends, count))
        texts.ends[np.uintp(count + 1)] = to
    return count + 1


@compiled
def _pack(
    records: RawRecords, record: int, from_offset: int, rules: RuleTable, keys: Bytes, texts: KeyTexts
) -> tuple[int, int]:  # fmt: skip
    """Pack the keys of records, starting with *record*, while there is room; return the next record and the count."""
    buffer, positions = records.buffer, records.positions
    count = 0
    rule = 0
    number = -1  # of the last topic
    room = keys.size // _ENTRY_SIZE - _WIDEST
    while record < positions.size and count <= room:
        start = positions[record]
        prefetch_record(buffer, positions, record)
        offset = records.base_offset + start
        if offset < from_offset or read_i32(buffer, start + SYS_FLAG_AT) & TRANSACTION_MASK == _ROLLBACK:
            record += 1
            continue
        rule = find_rule_number(rules, rule, offset)
        parts = record_parts(buffer, start)
        topic, topic_end, at = parts.topic, parts.topic_end, parts.properties
        unique = unique_end = words = words_end = tags = tags_end = bits = 0
        seen = at
        while at < parts.properties_end:
            name, name_end, value, value_end, at, seen, bits = next_property(
                buffer, at, parts.properties_end, rules.parser_codes[rule], seen, bits
            )
            if value_end == value:
                continue
            if name_end - name == 4:
                if read_u32(buffer, name) == _KEYS:
                    words, words_end = value, value_end
                elif read_u32(buffer, name) == _TAGS and rules.indexes_tags[rule]:
                    tags, tags_end = value, value_end
            elif name_end - name == 8 and read_i64(buffer, name) == _UNIQ_KEY:
                unique, unique_end = value, value_end

        if texts.kinds.size and max(unique_end, words_end, tags_end) > 0:
            if number < 0 or not is_text_at(texts.topics, number, buffer, topic, topic_end):
                number = find_or_add_text(texts.topics, buffer, topic, topic_end)
            if number == TABLE_FULL or number_at(texts.ends, count) + _LONGEST_TEXT > texts.data.size:
                break
        record += 1
        time = read_store_timestamp(buffer, start)
        seed = hash_character(_HASH, hash_text(buffer, topic, topic_end, 0))
        if unique_end > unique:
            marked = hash_character(_HASH, hash_character(_MARK, seed)) if rules.marks_unique_keys[rule] else seed
            count = _put_key(keys, texts, count, marked, offset, time, number, buffer, unique, unique_end, _UNIQUE)
        word = words
        while word < words_end:
            word_end = find_byte_below(buffer, word, words_end, _SPACE + 1)
            while word_end < words_end and byte_at(buffer, word_end) != _SPACE:
                word_end = find_byte_below(buffer, word_end + 1, words_end, _SPACE + 1)
            if word_end > word:
                count = _put_key(keys, texts, count, seed, offset, time, number, buffer, word, word_end, _KEY)
            word = word_end + 1
        if tags_end > tags:
            seed = hash_character(_HASH, hash_character(_TAG, seed))
            count = _put_key(keys, texts, count, seed, offset, time, number, buffer, tags, tags_end, _TAGGED)
    return record, count


class FileBuilder:
    """One index file, written through `write(position, bytes)`: first the entries, in order, then slots and header."""

    def __init__(
        self,
        geometry: Geometry,
        rules: RuleTable,
        write: Callable[[int, memoryview], object] | None,
        previous: IndexHeader | None = None,
    ) -> None:
        """
        Begin after the file whose header is *previous*; values in it that are not positive are ignored.

        Without *write* nothing is written: packed keys become entries in place.
        """
        offset = max(previous.end_physical_offset, 0) if previous else 0
        time = max(previous.end_timestamp, 0) if previous else 0
        self._geometry = geometry
        self._rules = rules
        self._write = write
        self.slots: Sizes = np.zeros(geometry.hash_slots, np.int32)  # the newest entry of each so far; 0 for none
        self._state = np.array([time, time, offset, offset, 0, 1], np.int64)

    @property
    def header(self) -> IndexHeader:
        """The header so far; a file without entries counts 1."""
        return IndexHeader(*map(int, self._state))

    @property
    def free_entries(self) -> int:
        """The number of keys for which the file still has space."""
        return self._geometry.index_num - int(self._state[5])

    def add(self, keys: NDArray[np.void]) -> None:
        """Chain *keys*, which become entries in place, and write them; at most `free_entries` of them."""
        if len(keys) > self.free_entries:
            raise ValueError(f"{len(keys)} keys for {self.free_entries} entries")
        if not len(keys):
            return
        compile_large_work(keys.nbytes)
        entries, number = keys.view(np.uint8), int(self._state[5])
        _put_keys(entries, self.slots, self._state, self._rules, False)  # noqa: FBT003 - compiled code has no keywords
        if self._write is not None:
            self._write(self._geometry.entry_position(number), entries.data)

    def resume_file(self, slots: Sizes, header: IndexHeader) -> None:
        """Continue a file whose entries are already in *slots*, which this builder will change."""
        self.slots = slots
        self._state = np.array(header, np.int64)

    def add_entries(self, entries: NDArray[np.uint8], header: IndexHeader) -> None:
        """
        Chain entries of a real file whose messages are not in the log, and write them.

        Their seconds are kept, as are begin and end of the file's *header*: the first entry gets the begin offset, and
        an offset that is not between the two is moved to the nearer one.
        """
        if not entries.size:
            return
        number = int(self._state[5])
        if entries.size > self.free_entries * ENTRY.size:
            raise ValueError(f"{entries.size // ENTRY.size} entries, room for {self.free_entries}")
        packed = entries.view(PACKED_KEY)
        offsets, hashes = packed["physical_offset"], packed["key_hash"]
        hashes[hashes < 0] = 0  # no broker stores a negative one: the file is damaged, and will differ here
        right = np.clip(offsets, header.begin_physical_offset, header.end_physical_offset)
        if number <= 1:
            self._state[0], self._state[2] = header.begin_timestamp, header.begin_physical_offset
            right[0] = header.begin_physical_offset
        self._state[1] = header.end_timestamp
        if (right != offsets).any():
            entries = entries.copy()
            entries.view(PACKED_KEY)["physical_offset"] = right
        _put_keys(entries, self.slots, self._state, self._rules, True)  # noqa: FBT003
        if self._write is not None:
            self._write(self._geometry.entry_position(number), entries.data)

    def finish(self, empty_index_count: int = 1) -> IndexHeader:
        """Write slots, then the header; *empty_index_count* is the count in a file without entries."""
        header = self.header
        if header.index_count <= 1:
            header = header._replace(index_count=empty_index_count)
        if self._write is not None:
            self._write(self._geometry.slot_position(0), self.slots.astype(">i4").view(np.uint8).data)
            self._write(0, memoryview(HEADER.pack(*header)))
        return header


@compiled_helper
def _load_slots(entries: Bytes, start: int, end: int, slots: Sizes) -> int:
    """
    Write the slot of each entry where the number of its previous entry will be; return the sum of their values.

    Slots are at random places of 20 MB. Chained one by one, each entry waits for its slot; loaded some hundred at a
    time, all of them wait together. The sum is of no use, but the compiler omits loads of unused values.
    """
    loaded = 0
    for at in range(start, end, _ENTRY_SIZE):
        slot = np.uint32(read_u32(entries, at)) % np.uint32(slots.size)
        write_i32(entries, at + _PREVIOUS_AT, int(slot))
        loaded += slots[np.uintp(slot)]
    return loaded


@compiled_helper
def _link_to_slots(
    entries: Bytes, start: int, end: int, slots: Sizes, state: Integers, rules: RuleTable, rule: int
) -> int:  # fmt: skip
    """
    Make each entry the head of the chain of its slot, which `_load_slots` wrote into it.

    Return the number of the rules that apply to the last entry; *rule* is the number for the entry before.
    """
    offset, hash_slot_count, index_count = state[3], state[4], state[5]
    for at in range(start, end, _ENTRY_SIZE):
        offset = read_i64(entries, at + _OFFSET_AT)
        rule = find_rule_number(rules, rule, offset)
        slot = np.uintp(read_i32(entries, at + _PREVIOUS_AT))
        previous = slots[slot]
        write_i32(entries, at + _PREVIOUS_AT, previous)
        slots[slot] = index_count
        if rules.counts_every_put[rule] or previous == 0:
            hash_slot_count += 1
        index_count += 1
    state[3], state[4], state[5] = offset, hash_slot_count, index_count
    return rule


@compiled
def _put_keys(entries: Bytes, slots: Sizes, state: Integers, rules: RuleTable, are_ready: bool) -> int:  # noqa: FBT001
    """Put packed keys as `IndexFile#putKey` does, turning each into an entry in place; or entries that *are_ready*."""
    # state: begin and end time, begin and end offset, count of slots, number of the next entry: the header's order.
    # The first entry takes its seconds from the previous file's end, and only then moves the file's begin.
    loaded = rule = 0
    begin, time, index_count = state[0], state[1], state[5]
    for start in range(0, entries.size, _AT_ONCE):
        end = min(start + _AT_ONCE, entries.size)
        for at in range(start, start if are_ready else end, _ENTRY_SIZE):
            time = read_i64(entries, at + _TIME_AT)
            write_i32(entries, at + _TIME_AT, time_diff_s(begin, time))
            if index_count <= 1:
                begin = time
                state[2] = read_i64(entries, at + _OFFSET_AT)
            index_count += 1
        loaded += _load_slots(entries, start, end, slots)
        rule = _link_to_slots(entries, start, end, slots, state, rules, rule)
    state[0], state[1] = begin, time
    return loaded


@unique
class IndexFilePart(StrEnum):
    """The parts of an index file."""

    HEADER = "header"
    SLOT = "slot"
    ENTRY = "entry"


class FieldDifference(NamedTuple):
    """One field with another value than expected."""

    part: IndexFilePart
    number: int  # the number of the slot or entry
    field: str
    position: int
    found: int
    expected: int

    def __str__(self) -> str:
        place = self.part if self.part is IndexFilePart.HEADER else f"{self.part} {self.number}"
        return f"{place} {self.field}: {self.found}, expected {self.expected}, at position {self.position}"


class BlockComparison:
    """Takes the blocks of the expected file, and records the differences of the real one."""

    def __init__(self, geometry: Geometry, read: Read) -> None:
        """Compare with the file that `read(position, length)` gives; bytes after its end are zeros, as when mapped."""
        self.first: dict[IndexFilePart, FieldDifference] = {}
        self.header: list[FieldDifference] = []
        self.counts = dict.fromkeys(IndexFilePart, 0)  # differing header fields, slots, entries
        self.differing_bits = 0  # differing bits
        self.zeroed_rows = 0  # differing slots and entries that are zero in the real file
        self._geometry = geometry
        self._read = read

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs so far."""
        return not any(self.counts.values())

    @property
    def differences(self) -> list[FieldDifference]:
        """The first difference of each part, the header's all."""
        return [
            *self.header,
            *(self.first[part] for part in (IndexFilePart.SLOT, IndexFilePart.ENTRY) if part in self.first),
        ]

    def compare_block(self, position: int, block: Buffer) -> None:
        """Compare one block of the expected file."""
        actual = bytes(self._read(position, len(block)))
        actual += bytes(len(block) - len(actual))
        expected = np.frombuffer(block, np.uint8)
        found = np.frombuffer(actual, np.uint8)
        if np.array_equal(found, expected):  # a memory view would be compared element by element
            return
        self.differing_bits += int(np.bitwise_count(expected ^ found).sum())
        if position == 0:
            self._compare_header(actual, bytes(block))
        elif position < self._geometry.entries_position:
            self._compare_rows(IndexFilePart.SLOT, position, found, expected)
        else:
            self._compare_rows(IndexFilePart.ENTRY, position, found, expected)

    def _compare_header(self, actual: bytes, expected: bytes) -> None:
        pairs = zip(HEADER.describe_fields(), HEADER.unpack(actual), HEADER.unpack(expected), strict=True)
        self.header = [
            FieldDifference(IndexFilePart.HEADER, 0, row.name, row.offset, int(found), int(wanted))
            for row, found, wanted in pairs
            if found != wanted
        ]
        self.counts[IndexFilePart.HEADER] = len(self.header)

    def _compare_rows(
        self, part: IndexFilePart, position: int, found: NDArray[np.uint8], expected: NDArray[np.uint8]
    ) -> None:
        layout = SLOT if part is IndexFilePart.SLOT else ENTRY
        start = self._geometry.slot_position(0) if part is IndexFilePart.SLOT else self._geometry.entries_position
        shape = (-1, layout.size)
        rows = np.flatnonzero((found.reshape(shape) != expected.reshape(shape)).any(axis=1))
        self.counts[part] += len(rows)
        self.zeroed_rows += int((~found.reshape(shape)[rows].any(axis=1)).sum())
        if part in self.first:
            return
        at = int(rows[0]) * layout.size
        pairs = zip(
            layout.describe_fields(), layout.unpack(found.data, at), layout.unpack(expected.data, at), strict=True
        )
        row, actual, wanted = next(pair for pair in pairs if pair[1] != pair[2])
        place = position + at
        number = (place - start) // layout.size
        self.first[part] = FieldDifference(part, number, row.name, place + row.offset, int(actual), int(wanted))
