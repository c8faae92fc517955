"""
Which releases wrote a store's index files, as the files themselves show.

Four eras differ in an index file's bytes. Which keys a file holds tells the property parser and whether tags are
indexed; its `hash_slot_count` next to the number of slots in use tells how slots were counted. A file that no era wrote
alone was begun by one release and continued by another: the first message of the newer one is the switch.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from jobs.products.index.file_builder import RealFile, slots_in_use
from jobs.store.range_reader import RangeReader
from jobs.store.ranges import WHOLE_SEGMENTS, plan_ranges
from jobs.store.record_places import segment_bytes
from jobs.store.release import DETECTED, Known, Writers
from jobs.store.store import Store
from rmq_formats.arrays import dtype_of
from rmq_formats.commitlog.scan import Records
from rmq_formats.indexfile.build import RuleTable, pack_keys
from rmq_formats.indexfile.layout import ENTRY, Geometry
from rmq_formats.release import PUBLISHED, HashSlotCount, Release, Rules, release_at, rules_of

# The first release of each era. What 5.0.0-PREVIEW undid, it undid to the state of an older one.
ERAS = tuple(Release.of(version) for version in ("4.0.0", "4.7.1", "4.9.1", "5.4.0"))
SWITCHES = ("property_parser", "hash_slot_count", "indexes_tags")
LOOKED_AT = 1 << 16  # entries of a file that are compared to tell its era
MIXED_LOOKED_AT = 3  # files that no era wrote alone and that are searched for a switch

_ENTRY = dtype_of(ENTRY)
_Entries = NDArray[np.void]


def rules_of_files(
    store: Store, files: Sequence[RealFile], geometry: Geometry, candidates: Sequence[Release] = PUBLISHED
) -> Known[Writers] | None:
    """
    Return the releases whose rules explain most of *files*; None when none of them says anything.

    They are *candidates*, unless others explain more: one changed record may have narrowed these down.
    """
    looks = [look for look in (_Look(store, file, geometry) for file in files) if look.tells]
    score, rules = _best(looks, candidates)
    if score < len(looks) and candidates is not PUBLISHED:
        other = _best(looks, PUBLISHED)
        if other[0] > score:
            (score, rules), candidates = other, PUBLISHED
    if not score or rules is None:
        return None
    text = ", then ".join(_name(since, release, candidates) for since, release in rules)
    return Known(Writers(rules, text), DETECTED, f"{score} of {len(looks)} index files hold what {text} puts")


def _best(looks: "Sequence[_Look]", candidates: Sequence[Release]) -> tuple[int, Rules | None]:
    """Return the rules that explain the most files, after the number of these files."""
    eras = [era for era in ERAS if any(is_alike(era, candidate) for candidate in candidates)]
    known = [rules_of((0, era)) for era in eras]
    fitting = [[look.fits(rules) for rules in known] for look in looks]
    if not all(map(any, fitting)) or not any(map(all, zip(*fitting, strict=True))):
        known += _mixed(looks, fitting, eras)
    return max(
        ((sum(look.fits(rules) for look in looks), rules) for rules in known),
        key=lambda pair: (pair[0], -len(pair[1]), [release.version for _, release in reversed(pair[1])]),
        default=(0, None),
    )


def _name(since: int, release: Release, candidates: Sequence[Release]) -> str:
    """Name an era by the releases that it spans, of those that are possible."""
    alike = [other for other in candidates if is_alike(other, release)] or [release]
    first, last = (pick(alike, key=lambda other: other.version) for pick in (min, max))
    span = str(first) if first == last else f"{first} to {last}"
    return f"{span} from offset {since}" if since else span


def _mixed(looks: "Sequence[_Look]", fitting: Sequence[Sequence[bool]], eras: Sequence[Release]) -> list[Rules]:
    """Return rules with one switch: inside a file that no era explains, or between two that different eras explain."""
    found: list[tuple[int, Release, Release]] = []
    unexplained = [look for look, fits in zip(looks, fitting, strict=True) if not any(fits)]
    for older, newer in combinations(eras, 2):
        for look in unexplained[:MIXED_LOOKED_AT]:
            switch = look.switch(older, newer)
            found += [(switch, older, newer)] if switch is not None and look.begin < switch else []
    for (_, left), (look, right) in pairwise(zip(looks, fitting, strict=True)):
        for i, j in combinations(range(len(eras)), 2):
            if left[i] and right[j] and not right[i] and look.begin:
                found.append((look.begin, eras[i], eras[j]))
    return [rules_of((0, older), (switch, newer)) for switch, older, newer in dict.fromkeys(found)]


def is_alike(one: Release, other: Release) -> bool:
    """Return whether two releases write the same index files."""
    return all(getattr(one, switch) == getattr(other, switch) for switch in SWITCHES)


class _Look:
    """One file, and the keys that the log gives at its place."""

    def __init__(self, store: Store, file: RealFile, geometry: Geometry) -> None:
        self.begin = file.header.begin_physical_offset
        self._store = store
        self._file = file
        self._geometry = geometry
        self._count = min(file.header.entry_count, geometry.capacity)
        self._first = self._entries(min(self._count, LOOKED_AT))
        self._slots_in_use = self._count_slots() if self.tells else 0
        self._fitting: dict[Rules, bool] = {}

    @property
    def tells(self) -> bool:
        """Whether the file has entries, of messages that are there."""
        return self._count > 0 and self._store.start_offset <= self.begin < self._store.end_offset

    def fits(self, rules: Rules) -> bool:
        """Return whether *rules* explain the file, as far as it is looked at."""
        own = self._own(rules)
        if own not in self._fitting:
            self._fitting[own] = self._counts(own) and self._matching(own, self._first) == len(self._first)
        return self._fitting[own]

    def _own(self, rules: Rules) -> Rules:
        """Return the part of *rules* that is about this file: most of those with a switch have it in another one."""
        # Each entry that is compared, and each key of the log that may equal one, is at or before the last offset.
        last = self._first["physical_offset"].max(initial=0) if self._count == len(self._first) else math.inf
        own = [rule for rule in rules if self.begin < rule.since <= last]
        return rules_of((0, release_at(rules, self.begin)), *own)

    def _counts(self, rules: Rules) -> bool:
        """Return whether the header counts slots by *rules*."""
        every = [release.hash_slot_count is HashSlotCount.EVERY_PUT for _, release in rules]
        if not any(every):
            return self._file.header.hash_slot_count == self._slots_in_use
        if all(every):
            return self._file.header.hash_slot_count == self._count
        entries = self._entries(self._count)
        rule = np.searchsorted([rule.since for rule in rules[1:]], entries["physical_offset"], side="right")
        counted = (entries["prev_entry"] == 0) | np.array(every)[rule]
        return int(np.count_nonzero(counted)) == self._file.header.hash_slot_count

    def switch(self, older: Release, newer: Release) -> int | None:
        """Return the first offset at which the file follows *newer*; None when no single one explains it."""
        entries = self._entries(self._count)
        offsets = entries["physical_offset"]
        if (older.property_parser, older.indexes_tags) != (newer.property_parser, newer.indexes_tags):
            matching = self._matching(rules_of((0, older)), entries)
            return int(offsets[matching]) if matching < self._count else None
        # Counted at every put before the switch, at every empty slot after it.
        empty = (entries["prev_entry"] == 0).astype(np.int64)
        rest = np.concatenate([np.cumsum(empty[::-1])[::-1], [0]])
        fitting = np.flatnonzero(np.arange(self._count + 1) + rest == self._file.header.hash_slot_count)
        return next(
            (int(offsets[at]) for at in fitting if 0 < at < self._count and offsets[at] > offsets[at - 1]), None
        )

    def _entries(self, count: int) -> _Entries:
        size = count * ENTRY.size
        data = self._store.read(self._file, self._geometry.entry_position(1), size)
        return np.frombuffer(data.ljust(size, b"\0"), _ENTRY)

    def _count_slots(self) -> int:
        with self._store.open(self._file) as file:
            return slots_in_use(file, self._geometry)

    def _matching(self, rules: Rules, entries: _Entries) -> int:
        """Return how many of *entries*, the file's first, are what the log gives under *rules*."""
        count = 0
        for block in self._keys_of_log(rules):
            keys = block if count else block[_first_match(block, entries) :]
            some = min(len(keys), len(entries) - count)
            there = entries[count : count + some]
            same = there["key_hash"] == keys["key_hash"][:some]
            same &= there["physical_offset"] == keys["physical_offset"][:some]
            if not same.all():
                return count + int(np.argmin(same))
            count += some
            if count == len(entries):
                break
        return count

    def _keys_of_log(self, rules: Rules) -> Iterator[_Entries]:
        table = RuleTable.of(rules)
        for range_ in plan_ranges(self._store, piece_start(self._store, self.begin), range_size=WHOLE_SEGMENTS):
            for item in RangeReader(range_).pieces():
                if isinstance(item, Records):
                    yield from (block.keys for block in pack_keys(item, table, self.begin) if len(block.keys))


def _first_match(keys: _Entries, entries: _Entries) -> int:
    """Return which key of the first message the file's first entry is; 0 when none."""
    own = int(np.count_nonzero(keys["physical_offset"] == keys["physical_offset"][0]))
    for at in range(own):
        some = min(own - at, len(entries))
        if (keys["key_hash"][at : at + some] == entries["key_hash"][:some]).all():
            return at
    return 0


def piece_start(store: Store, physical_offset: int) -> int:
    """Return the start of the piece of the log that holds the record at *physical_offset*."""
    segment = store.segment_at(physical_offset)
    if segment is None:
        return physical_offset
    with store.open(segment) as file:
        return physical_offset - segment_bytes(segment, file).framing.header_size
