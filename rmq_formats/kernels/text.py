"""UTF-8 as Java decodes it and the hash of a text, in compiled code; the rules are those of `rmq_formats.hashing`."""

import numpy as np

from rmq_formats.compiled import helper, inlined
from rmq_formats.kernels.emitted import multiplies
from rmq_formats.kernels.integers import Bytes, byte_at, copy_bytes, number_at

_REPLACEMENT = 0xFFFD
_SIGN_32 = 1 << 31
_LOW_32 = (1 << 32) - 1
_HASHED_AT_ONCE = 32
_POWERS = np.array([31**power & _LOW_32 for power in range(_HASHED_AT_ONCE + 1)], np.int64)


@inlined
def _is_continuation(buffer: Bytes, at: int, end: int, low: int, high: int) -> bool:
    return at < end and low <= byte_at(buffer, at) <= high


@helper
def _next_long_character(buffer: Bytes, at: int, end: int) -> tuple[int, int]:
    """Decode what begins with a byte from 0x80 on; malformed input ends where Java's decoder gives up."""
    first = byte_at(buffer, at)
    if first < 0xC2 or first > 0xF4:
        return _REPLACEMENT, at + 1
    if first < 0xE0:
        if not _is_continuation(buffer, at + 1, end, 0x80, 0xBF):
            return _REPLACEMENT, at + 1
        return ((first & 0x1F) << 6) | (byte_at(buffer, at + 1) & 0x3F), at + 2
    if first == 0xED and _is_continuation(buffer, at + 1, end, 0xA0, 0xBF):
        # A surrogate: Java replaces all of it by one character.
        return _REPLACEMENT, at + 3 if _is_continuation(buffer, at + 2, end, 0x80, 0xBF) else at + 2
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if not _is_continuation(buffer, at + 1, end, low, high):
        return _REPLACEMENT, at + 1
    if not _is_continuation(buffer, at + 2, end, 0x80, 0xBF):
        return _REPLACEMENT, at + 2
    value = ((byte_at(buffer, at + 1) & 0x3F) << 6) | (byte_at(buffer, at + 2) & 0x3F)
    if first < 0xF0:
        return ((first & 0xF) << 12) | value, at + 3
    if not _is_continuation(buffer, at + 3, end, 0x80, 0xBF):
        return _REPLACEMENT, at + 3
    return ((first & 0x7) << 18) | (value << 6) | (byte_at(buffer, at + 3) & 0x3F), at + 4


@inlined
def is_ascii(buffer: Bytes, start: int, end: int) -> bool:
    """Return whether no byte has its top bit set."""
    seen = np.uint8(0)
    for i in range(end - start):
        seen |= buffer[np.uintp(start + i)]
    return bool(seen < 0x80)


@helper
def is_clean_text(buffer: Bytes, start: int, end: int) -> bool:
    """Return whether the bytes are valid UTF-8, so that decoding and encoding returns the same bytes."""
    if is_ascii(buffer, start, end):
        return True
    at = start
    while at < end:
        if byte_at(buffer, at) < 0x80:
            at += 1
            continue
        before = at
        code, at = _next_long_character(buffer, at, end)
        if code == _REPLACEMENT and not (
            at - before == 3
            and byte_at(buffer, before) == 0xEF
            and byte_at(buffer, before + 1) == 0xBF
            and byte_at(buffer, before + 2) == 0xBD
        ):
            return False
    return True


@helper
def clean_text_size(buffer: Bytes, start: int, end: int) -> int:
    """Return how many bytes `copy_clean_text` writes."""
    if is_ascii(buffer, start, end):
        return end - start
    size = 0
    at = start
    while at < end:
        if byte_at(buffer, at) < 0x80:
            at += 1
            size += 1
            continue
        code, at = _next_long_character(buffer, at, end)
        size += 2 if code < 0x800 else 3 if code < 0x10000 else 4
    return size


@helper
def copy_clean_text(source: Bytes, start: int, end: int, target: Bytes, to: int) -> int:
    """Write the UTF-8 of the text that Java reads; *target* has room for `clean_text_size`. Return the place after."""
    if is_ascii(source, start, end):
        return copy_bytes(source, start, end, target, to)
    at = start
    while at < end:
        before = at
        if byte_at(source, at) < 0x80:
            at += 1
        else:
            code, at = _next_long_character(source, at, end)
            if code == _REPLACEMENT:
                target[np.uintp(to)] = np.uint8(0xEF)
                target[np.uintp(to + 1)] = np.uint8(0xBF)
                target[np.uintp(to + 2)] = np.uint8(0xBD)
                to += 3
                continue
        to = copy_bytes(source, before, at, target, to)
    return to


@multiplies(by=_POWERS[_HASHED_AT_ONCE - 1 :: -1].tolist())
def _hash_of_last(buffer: Bytes, at: int, count: int) -> int:
    """Return the hash of the last characters of a row, or -1 where one of them is not ASCII."""
    value = 0
    for place in range(at + _HASHED_AT_ONCE - count, at + _HASHED_AT_ONCE):
        if byte_at(buffer, place) >= 0x80:
            return -1
        value = 31 * value + byte_at(buffer, place)
    return value & _LOW_32


@helper
def hash_text(buffer: Bytes, start: int, end: int, seed: int) -> int:
    """
    Return Java's `hashCode` of a text (signed), started with the hash *seed* of the text before it.

    The hash of `topic + "#" + key` is that of three calls.
    """
    value = seed & _LOW_32
    at = start
    while at < end:
        # Many steps of 31 * value + character in parallel: each alone would wait for the one before.
        count = min(end - at, _HASHED_AT_ONCE)
        if at + count < _HASHED_AT_ONCE:
            break
        some = _hash_of_last(buffer, at + count - _HASHED_AT_ONCE, count)
        if some < 0:
            break
        value = (value * number_at(_POWERS, count) + some) & _LOW_32
        at += count
    while at < end:
        code = byte_at(buffer, at)
        if code < 0x80:
            at += 1
        else:
            code, at = _next_long_character(buffer, at, end)
            if code >= 0x10000:
                value = (31 * value + 0xD800 + ((code - 0x10000) >> 10)) & _LOW_32
                code = 0xDC00 + (code & 0x3FF)
        value = (31 * value + code) & _LOW_32
    return (value ^ _SIGN_32) - _SIGN_32


@helper
def hash_character(code: int, seed: int) -> int:
    """Return Java's `hashCode` of a text and one more ASCII character, such as the `#` between topic and key."""
    value = (31 * (seed & _LOW_32) + code) & _LOW_32
    return (value ^ _SIGN_32) - _SIGN_32
