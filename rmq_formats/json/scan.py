"""
Compiled search for documents that a fast parser of JSON may read in another way than an exact one.

Parsers take the last of two equal keys in silence. A document is marked when one object has two keys with one hash, or
a key that is spelled with an escape; when it is nested too deeply, or holds more open keys than there is room for; and
when an escape may be half of a character. A mark says nothing but "look again"; what is no JSON is marked or not.
"""

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import compiled
from rmq_formats.kernels.integers import Bytes, Integers, byte_at, integer

_QUOTE, _BACKSLASH, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = ord("{"), ord("}"), ord("["), ord("]")
_U, _D_SMALL, _D_LARGE = ord("u"), ord("d"), ord("D")
_MOST_KEYS = 512  # of all objects that are open at once
_FNV_BASIS, _FNV_PRIME = 2166136261, 16777619
_LOW_32 = (1 << 32) - 1


def marked(data: Bytes, ends: Integers, deepest: int) -> NDArray[np.bool_]:
    """Return which documents to look at again; they lie end to end in *data*, each up to one of *ends*."""
    marks = np.zeros(ends.size, np.uint8)
    _mark(data, ends, np.zeros(_MOST_KEYS, np.int64), np.zeros(deepest + 1, np.int64), marks)
    return marks.view(np.bool_)


@compiled
def _mark(data: Bytes, ends: Integers, keys: Integers, firsts: Integers, marks: Bytes) -> None:
    """
    Mark documents.

    `keys` is a stack: the hashes of the keys of each open object, outer ones first. `firsts[depth]` is the place of an
    object's first key in it; -1 of an array, which has none. The stack ends at `count`.
    """
    start = integer(0)
    for document in range(ends.size):
        end, at, depth, count = integer(ends[document]), start, integer(0), integer(0)
        is_key, is_marked = False, False
        firsts[0] = -1
        while at < end and not is_marked:
            byte = byte_at(data, at)
            at += 1
            if byte == _QUOTE:
                digest, is_escaped = integer(_FNV_BASIS), False
                while at < end:
                    byte = byte_at(data, at)
                    if byte == _QUOTE:
                        break
                    if byte == _BACKSLASH:
                        is_escaped = True
                        if at + 2 < end and byte_at(data, at + 1) == _U:
                            first = byte_at(data, at + 2)
                            is_marked = is_marked or first in (_D_SMALL, _D_LARGE)
                        at += 1
                    digest = ((digest ^ byte) * _FNV_PRIME) & _LOW_32
                    at += 1
                at += 1
                if is_key:
                    is_key = False
                    is_marked = is_marked or is_escaped or count == keys.size
                    for other in range(firsts[depth], count):
                        is_marked = is_marked or keys[other] == digest
                    if not is_marked:
                        keys[count] = digest
                        count += 1
            elif byte in (_OPEN_OBJECT, _OPEN_ARRAY):
                depth += 1
                if depth == firsts.size:
                    is_marked = True
                else:
                    is_key = byte == _OPEN_OBJECT
                    firsts[depth] = count if is_key else -1
            elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY):
                if firsts[depth] >= 0:
                    count = firsts[depth]
                is_key = False
                depth = max(depth - 1, 0)
            elif byte == _COMMA:
                is_key = firsts[depth] >= 0
            elif byte == _COLON:
                is_key = False
        marks[document] = is_marked
        start = end
