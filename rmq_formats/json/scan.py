"""
Compiled scan of JSON documents: finds the positions of the members of objects and the items of arrays.

A scan accepts documents that are certainly valid JSON. It refuses all others, and the caller parses them exactly. It
also refuses documents that parsers would change silently, and documents beyond its limits: an object with two keys of
the same hash, at any depth; a key with an escape; half of a surrogate pair; values that are nested too deeply or have
too many open keys.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.compiled import compile_large_work, compiled, compiled_helper, inlined_helper
from rmq_formats.kernels.integers import Bytes, Integers, Sizes, as_int64, byte_at, number_at, read_u32, same_bytes
from rmq_formats.kernels.text import is_valid_utf8

OBJECT, ARRAY, MISSING, REFUSED = ord("{"), ord("["), 0, 1
NULL = ord("n")
_QUOTE, _BACKSLASH, _COMMA, _COLON, _ZERO, _MINUS = ord('"'), ord("\\"), ord(","), ord(":"), ord("0"), ord("-")
_PLUS, _POINT, _E_SMALL, _E_LARGE, _U = ord("+"), ord("."), ord("e"), ord("E"), ord("u")
_SPACE, _TAB, _LINE_FEED, _RETURN = ord(" "), ord("\t"), ord("\n"), ord("\r")
_TRUE, _FALSE, _NULL = (int.from_bytes(word, "big") for word in (b"true", b"fals", b"null"))
_DEEPEST = 100  # nested objects and arrays
_MOST_KEYS = 512  # keys of all open objects together
_FNV_BASIS, _FNV_PRIME = 2166136261, 16777619
_LOW_32 = (1 << 32) - 1
_PLACES = 4  # positions per member: start and end of its key, start and end of its value
_NO_CHARACTER = -1
_ESCAPED = np.full(256, _NO_CHARACTER, np.int64)  # the escaped character, by the letter after the backslash
_ESCAPED[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')


class Members(NamedTuple):
    """The members of objects or arrays, one after the other."""

    kinds: Bytes  # the kind of each document: the wanted one, MISSING (also for null) or REFUSED
    ends: Sizes  # the end of the members of each document
    bounds: NDArray[np.int32]  # a row per member: start and end of its key, in quotes, and of its value


def scan_members(data: Bytes, starts: Sizes, ends: Sizes, kind: int) -> Members:
    """Return the members of objects, or arrays, at any positions in *data*; a missing document has a start below 0."""
    compile_large_work(data.size)
    kinds, found = np.empty(starts.size, np.uint8), np.empty(starts.size, np.int32)
    room = int(np.maximum(ends - starts, 0).sum(dtype=np.int64)) // 2 + 1
    tape = np.empty(room * _PLACES, np.int32)
    stacks = np.empty(_MOST_KEYS, np.int64), np.empty(_DEEPEST + 1, np.int64)
    _scan(data, starts, ends, kind, *stacks, kinds, found, tape)
    return Members(kinds, found, tape.reshape(-1, _PLACES)[: found[-1] if starts.size else 0])


@compiled
def _scan(
    data: Bytes, starts: Sizes, ends: Sizes, wanted: int, keys: Integers, firsts: Integers, kinds: Bytes, found: Sizes,
    tape: Sizes,
) -> None:  # fmt: skip
    count = as_int64(0)
    for document in range(starts.size):
        start, end = number_at(starts, document), number_at(ends, document)
        kind = as_int64(MISSING)
        if start >= 0:
            start = _after_space(data, start, end)
            kind = byte_at(data, start) if start < end else REFUSED
            if kind == NULL:
                kind = as_int64(MISSING)
            # Array elements have no names that could serve as keys.
            elif kind != wanted or not is_valid_utf8(data, start, end):
                kind = as_int64(REFUSED)
            else:
                after = _document(data, start, end, count, keys, firsts, tape)
                kind = kind if after >= 0 else as_int64(REFUSED)
                count = max(after, count)
        kinds[document] = kind
        found[document] = count


@compiled_helper
def _document(data: Bytes, at: int, end: int, member: int, keys: Integers, firsts: Integers, tape: Sizes) -> int:
    """
    Write the members of an object or array to the tape, and return the number of members on it; -1 to refuse.

    `keys` is a stack: the hashes of the keys of each open object, outer ones first. `firsts[depth]` is the place of an
    object's first key in it; -1 for an array, which has none. The stack ends at `count`.
    """
    depth, count, needs_key = 0, 0, False
    while True:
        if needs_key:
            key = at
            if at >= end or byte_at(data, at) != _QUOTE or count == keys.size:
                return -1
            at += 1
            digest = _FNV_BASIS
            while at < end and byte_at(data, at) != _QUOTE:
                if byte_at(data, at) == _BACKSLASH or byte_at(data, at) < _SPACE:
                    return -1
                digest = ((digest ^ byte_at(data, at)) * _FNV_PRIME) & _LOW_32
                at += 1
            at += 1
            for other in range(number_at(firsts, depth), count):
                if number_at(keys, other) == digest:
                    return -1
            keys[np.uintp(count)] = digest
            count += 1
            if depth == 1:
                tape[np.uintp(_PLACES * member)] = key
                tape[np.uintp(_PLACES * member + 1)] = at
            at = _after_space(data, at, end)
            if at >= end or byte_at(data, at) != _COLON:
                return -1
            at = _after_space(data, at + 1, end)
        if at >= end:
            return -1
        if depth == 1:
            tape[np.uintp(_PLACES * member + 2)] = at
        byte = byte_at(data, at)
        if byte in (OBJECT, ARRAY):
            depth += 1
            if depth == firsts.size:
                return -1
            firsts[np.uintp(depth)] = count if byte == OBJECT else -1
            at = _after_space(data, at + 1, end)
            if at >= end or byte_at(data, at) != byte + 2:  # the bracket that closes it
                needs_key = byte == OBJECT
                continue
            depth -= 1
            at += 1
        else:
            at = _scalar_end(data, at, end)
            if at < 0:
                return -1
        while True:  # a value ends at `at`
            if depth == 1:
                tape[np.uintp(_PLACES * member + 3)] = at
                member += 1
            at = _after_space(data, at, end)
            if depth == 0:
                return member if at == end else -1
            if at >= end:
                return -1
            byte = byte_at(data, at)
            first = number_at(firsts, depth)
            if byte == _COMMA:
                needs_key = first >= 0
                at = _after_space(data, at + 1, end)
                break
            if byte != (OBJECT if first >= 0 else ARRAY) + 2:
                return -1
            count = first if first >= 0 else count
            depth -= 1
            at += 1


@inlined_helper
def _after_space(data: Bytes, at: int, end: int) -> int:
    while at < end and byte_at(data, at) in (_SPACE, _LINE_FEED, _RETURN, _TAB):
        at += 1
    return at


@compiled_helper
def _scalar_end(data: Bytes, at: int, end: int) -> int:
    """Return the place after a text, a number, true, false or null; -1 for anything else."""
    byte = byte_at(data, at)
    if byte == _QUOTE:
        return _text_end(data, at + 1, end)
    if byte == _MINUS or 0 <= byte - _ZERO < 10:
        return _number_end(data, at, end)
    if at + 4 > end:
        return -1
    word = read_u32(data, at)
    if word in (_TRUE, _NULL):
        return at + 4
    return at + 5 if word == _FALSE and at + 5 <= end and byte_at(data, at + 4) == _E_SMALL else -1


@compiled_helper
def _text_end(data: Bytes, at: int, end: int) -> int:
    """Return the place after the quote that ends a text; -1 if the quote is missing or the text is invalid."""
    while at < end:
        byte = byte_at(data, at)
        if byte == _QUOTE:
            return at + 1
        if byte == _BACKSLASH:
            code, at = decode_escape(data, at, end)
            if code == _NO_CHARACTER:
                return -1
        elif byte < _SPACE:
            return -1
        else:
            at += 1
    return -1


@compiled_helper
def decode_escape(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the character of an escape, -1 if it is invalid, and the place after it."""
    at += 1
    byte = byte_at(data, at) if at < end else 0
    if byte == _U:
        code = _hexadecimal(data, at + 1, end)
        if not 0xD800 <= code < 0xE000:
            return code, at + 5
        if code < 0xDC00 and at + 7 < end and byte_at(data, at + 5) == _BACKSLASH and byte_at(data, at + 6) == _U:
            low = _hexadecimal(data, at + 7, end)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00, at + 11
        return _NO_CHARACTER, at
    return number_at(_ESCAPED, byte), at + 1


@compiled_helper
def _hexadecimal(data: Bytes, at: int, end: int) -> int:
    """Return the number that four hexadecimal digits spell; -1 for other characters."""
    if at + 4 > end:
        return -1
    code = 0
    for place in range(at, at + 4):
        byte = byte_at(data, place)
        letter = (byte | 0x20) - ord("a")
        if 0 <= byte - _ZERO < 10:
            code = code * 16 + byte - _ZERO
        elif 0 <= letter < 6:
            code = code * 16 + letter + 10
        else:
            return -1
    return code


@compiled_helper
def _number_end(data: Bytes, at: int, end: int) -> int:
    """Return the place after a number; -1 if it is invalid."""
    first = at + 1 if byte_at(data, at) == _MINUS else at
    at = digits_end(data, first, end)
    if at == first or (at - first > 1 and byte_at(data, first) == _ZERO):
        return -1
    if at < end and byte_at(data, at) == _POINT:
        first = at + 1
        at = digits_end(data, first, end)
        if at == first:
            return -1
    if at < end and byte_at(data, at) in (_E_SMALL, _E_LARGE):
        first = at + 1
        if first < end and byte_at(data, first) in (_PLUS, _MINUS):
            first += 1
        at = digits_end(data, first, end)
        if at == first:
            return -1
    return at


@inlined_helper
def digits_end(data: Bytes, at: int, end: int) -> int:
    """Return the place after the digits that begin at a place."""
    while at < end and 0 <= byte_at(data, at) - _ZERO < 10:
        at += 1
    return at


def find_named_values(data: Bytes, found: Members, names: list[bytes]) -> tuple[Sizes, Sizes]:
    """Return the starts and ends of values by their names: of the first name in each document, then of the second."""
    starts, ends = np.full((2, len(names) * found.ends.size), -1, np.int32)  # -1 for a missing one
    text = np.frombuffer(bytearray(b"".join(names)), np.uint8)
    _find_members(data, found.ends, found.bounds.ravel(), text, np.cumsum([0, *map(len, names)]), starts, ends)
    return starts, ends


@compiled
def _find_members(
    data: Bytes, ends: Sizes, tape: Sizes, texts: Bytes, text_ends: Integers, starts: Sizes, stops: Sizes
) -> None:
    """
    Write into *starts* and *stops* where each name's value is, by name and document.

    *ends* and *tape* are those of `Members`; the names are *texts*, divided at *text_ends*.
    """
    width, member = text_ends.size - 1, as_int64(0)
    for document in range(ends.size):
        guess = as_int64(0)  # most documents have their keys in the same order
        while member < number_at(ends, document):
            at = _PLACES * member
            start, end = number_at(tape, at) + 1, number_at(tape, at + 1) - 1
            for step in range(width):
                name = guess + step if guess + step < width else guess + step - width
                if same_bytes(data, start, end, texts, number_at(text_ends, name), number_at(text_ends, name + 1)):
                    starts[np.uintp(name * ends.size + document)] = number_at(tape, at + 2)
                    stops[np.uintp(name * ends.size + document)] = number_at(tape, at + 3)
                    guess = name + 1
                    break
            member += 1
