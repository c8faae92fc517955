"""
Distinct texts and their numbers, for dictionary-encoded columns; compiled.

An open hash table next to a heap of the texts in order of appearance. The hash begins with a number that the caller
draws, so a log whose texts all collide cannot be written.
"""

from typing import NamedTuple

import numpy as np

from rmq_formats.compiled import helper, inlined
from rmq_formats.kernels.integers import (
    Bytes,
    Integers,
    Sizes,
    byte_at,
    copy_bytes,
    integer,
    number_at,
    read_u32,
    same_bytes,
)

FULL = -1

_COUNT, _SEED = range(2)  # places in a state

_MULTIPLIER = 0x5BD1E995
_LOW_32 = (1 << 32) - 1


class Texts(NamedTuple):
    """A hash table that gives each distinct text a number. Arrays only, because compiled code fills them."""

    state: Integers  # how many there are, and what the hash begins with
    slots: Sizes  # number + 1 of the text whose hash leads here, 0 for none; a power of two
    ends: Sizes  # where each text begins in the heap, and the last one ends
    heap: Bytes

    @property
    def known(self) -> int:
        """How many texts there are."""
        return int(self.state[_COUNT])


def new_texts(slots: int, heap_size: int, seed: int) -> Texts:
    """Return room for half as many texts as *slots*, a power of two."""
    state = np.array([0, seed & _LOW_32], np.int64)
    ends = np.zeros(slots // 2 + 1, np.int32)
    return Texts(state, np.zeros(slots, np.int32), ends, np.empty(heap_size, np.uint8))


@inlined
def is_text(texts: Texts, number: int, buffer: Bytes, start: int, end: int) -> bool:
    """Return whether the text with this number is at a place."""
    ends = texts.ends
    return same_bytes(texts.heap, number_at(ends, number), number_at(ends, number + 1), buffer, start, end)


@inlined
def hash_bytes(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """Return a number of 32 bits that spreads texts over a table; *seed* also has 32 bits: no product leaves 64."""
    value = seed
    at = start
    while end - at >= 4:
        value = ((value ^ read_u32(buffer, at)) * _MULTIPLIER) & _LOW_32
        value ^= value >> 15
        at += 4
    while at < end:
        value = ((value ^ byte_at(buffer, at)) * _MULTIPLIER) & _LOW_32
        at += 1
    return value ^ (value >> 15)


@helper
def number_of(texts: Texts, buffer: Bytes, start: int, end: int) -> int:
    """Return the number of a text, a new one if it was not seen before; FULL when the table is full."""
    state, slots, ends, heap = texts
    mask = slots.size - 1
    slot = hash_bytes(buffer, start, end, number_at(state, integer(_SEED))) & mask
    while True:
        number = number_at(slots, slot) - 1
        if number < 0:
            break
        if is_text(texts, number, buffer, start, end):
            return number
        slot = (slot + 1) & mask
    number = number_at(state, integer(_COUNT))
    used = number_at(ends, number)
    if number + 1 >= ends.size or used + end - start > heap.size:
        return FULL
    copy_bytes(buffer, start, end, heap, used)
    ends[np.uintp(number + 1)] = used + end - start
    slots[np.uintp(slot)] = number + 1
    state[_COUNT] = number + 1
    return number
