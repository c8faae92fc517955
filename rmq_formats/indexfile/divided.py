"""
One index file's chain in several threads.

A chain links the entries of one slot only, so a file divides by ranges of slots. Each block of keys is divided twice:
by place, where threads turn keys into entries, and by slot, where they chain them. Between the two, the slot of each
entry lies in `hung`, part by part, in the order of the entries; there the number of the previous entry replaces it. No
two threads write to one cache line for long.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmq_formats.compiled import compiled
from rmq_formats.indexfile.kernels import RuleTable, rule_at, seconds_since
from rmq_formats.indexfile.layout import ENTRY
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, read_i64, read_u32, write_i32

LEAST_DIVIDED = 1 << 14  # keys at once: with fewer, threads wait for each other longer than they work
_ENTRY_SIZE = ENTRY.size
_OFFSET_AT = ENTRY.offset("physical_offset")
_TIME_AT = ENTRY.offset("time_diff_s")
_PREVIOUS_AT = ENTRY.offset("prev_entry")
_AHEAD = 512  # slots that are loaded before the first of them is chained
_SCALE_BITS = 32


class Division(NamedTuple):
    """Into how many parts a file is divided, and the threads that chain them."""

    threads: Executor
    parts: int


class _Share(NamedTuple):
    """One thread's share of a block, by place."""

    first: int  # its first entry, counted in the block
    entries: Bytes
    hung: Sizes  # slots, then previous entries, part by part
    places: Sizes  # of them among the entries
    ends: Integers  # of each part


def chain_divided(
    division: Division, entries: Bytes, slots: Sizes, number: int, begin: int, rules: RuleTable,
    write: Callable[[int, memoryview], object] | None,
) -> int:  # fmt: skip
    """
    Turn packed keys into entries from *number* on, in place; return by how many slots the header's count grows.

    *write* gets the entries with their places in the block. *begin* is the time of the file's first entry.
    """
    assert number > 1  # the first entry is none of these: it decides about their seconds
    threads, parts = division
    count = entries.size // _ENTRY_SIZE
    cuts = [count * part // parts for part in range(parts + 1)]
    shares = [
        _Share(
            first,
            entries[first * _ENTRY_SIZE : end * _ENTRY_SIZE],
            np.empty(end - first, np.int32),
            np.empty(end - first, np.int32),
            np.zeros(parts + 1, np.int64),
        )
        for first, end in pairwise(cuts)
    ]

    def spread(share: _Share) -> None:
        _spread(share, begin, slots.size)

    def chain(part: int) -> int:
        return sum(_chain_part(share, part, slots, number + share.first) for share in shares)

    def gather(share: _Share) -> int:
        added = int(_gather(share, rules))
        if write is not None:
            write(share.first * _ENTRY_SIZE, share.entries.data)
        return added

    for _ in threads.map(spread, shares):
        pass
    for _ in threads.map(chain, range(parts)):
        pass
    return sum(threads.map(gather, shares))


@compiled
def _spread(share: _Share, begin: int, slot_count: int) -> None:
    """Turn times into seconds, and put slots and places where the parts have them; each part's end into `ends`."""
    entries, hung, ends = share.entries, share.hung, share.ends
    # Any function that rises with the slot divides it into ranges; this one needs no division.
    scale = ((ends.size - 1) << _SCALE_BITS) // slot_count
    for at in range(0, entries.size, _ENTRY_SIZE):
        write_i32(entries, at + _TIME_AT, seconds_since(begin, read_i64(entries, at + _TIME_AT)))
        slot = np.uint32(read_u32(entries, at)) % np.uint32(slot_count)
        write_i32(entries, at + _PREVIOUS_AT, int(slot))
        ends[np.uintp(((int(slot) * scale) >> _SCALE_BITS) + 1)] += 1
    for part in range(1, ends.size):
        ends[part] += ends[part - 1]
    for place in range(hung.size):
        slot_here = read_u32(entries, place * _ENTRY_SIZE + _PREVIOUS_AT)
        part_here = np.uintp((slot_here * scale) >> _SCALE_BITS)
        to = np.uintp(ends[part_here])  # each rises from the part's begin to its end
        hung[to] = slot_here
        share.places[to] = place
        ends[part_here] += 1


@compiled
def _chain_part(share: _Share, part: int, slots: Sizes, number: int) -> int:
    """Hang the entries of one part in its slots; return a sum of no use, without which slots are not loaded ahead."""
    hung, ends = share.hung, share.ends
    first, end = (ends[part - 1] if part else 0), ends[part]
    loaded = 0
    for start in range(first, end, _AHEAD):
        stop = min(start + _AHEAD, end)
        for at in range(start, stop):
            loaded += slots[np.uintp(hung[np.uintp(at)])]
        for at in range(start, stop):
            slot = np.uintp(hung[np.uintp(at)])
            hung[np.uintp(at)] = slots[slot]
            slots[slot] = number + share.places[np.uintp(at)]
    return loaded


@compiled
def _gather(share: _Share, rules: RuleTable) -> int:
    """Give each entry the number of its previous one; return by how many slots the header's count grows."""
    entries, hung = share.entries, share.hung
    added = rule = 0
    for at in range(hung.size):
        write_i32(entries, share.places[np.uintp(at)] * _ENTRY_SIZE + _PREVIOUS_AT, hung[np.uintp(at)])
    for at in range(0, entries.size, _ENTRY_SIZE):
        offset = read_i64(entries, at + _OFFSET_AT)
        rule = rule_at(rules, rule, offset)
        if rules.counts_every_put[rule] or read_u32(entries, at + _PREVIOUS_AT) == 0:
            added += 1
    return added
