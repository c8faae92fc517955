"""Readers of numbers, texts and times for Avro and Protobuf: a value is read exactly, or rejected with its position."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from struct import Struct
from typing import Any

import pyarrow as pa

from jobs.typed.formats import Reader, Row, read_typed_rows
from jobs.typed.values import EPOCH, RefusedBodyError, Times, Value, place_in_zone

Read = Callable[[bytes, int], tuple[object, int]]  # (body, position): the value, and the position after it
CUT_OFF_REASON = "truncated"
DUPLICATE_KEY_REASON = "a key occurs twice in one object"
_BITS = 64
_EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_DAY = EPOCH.toordinal()
_EARLIEST_DAY, _LATEST_DAY = date.min.toordinal() - _DAY, date.max.toordinal() - _DAY
_NANOSECONDS = 1000  # in a microsecond


def refused_at_byte(reason: str, at: int) -> RefusedBodyError:
    """Return the refusal of a body at a byte; callers add the path."""
    return RefusedBodyError(reason, f" at byte {at}")


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a varint, and the position after it; raise `IndexError` if the body ends within it."""
    found = shift = 0
    begin = at
    while True:
        byte = body[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:  # noqa: PLR2004 - no further byte
            break
        shift += 7
        if shift >= _BITS:
            break
    if byte >= 128 or found >> _BITS:  # noqa: PLR2004
        raise refused_at_byte("a number of more than 64 bits", begin)
    return found, at


def converted_read(read: Read, convert: Callable[[Any], object]) -> Read:
    """Return a reader that converts the values of *read*."""

    def both(body: bytes, at: int) -> tuple[object, int]:
        value, at = read(body, at)
        return convert(value), at

    return both


def decode_zigzag(unsigned: int) -> int:
    """Decode a zigzag number, whose lowest bit is its sign."""
    return (unsigned >> 1) ^ -(unsigned & 1)


def read_bytes(body: bytes, at: int, size: int) -> tuple[bytes, int]:
    """Return *size* bytes of a body, and the position after them."""
    after = at + size
    if size < 0:
        raise refused_at_byte("a negative length", at)
    if after > len(body):
        raise refused_at_byte(CUT_OFF_REASON, at)
    return body[at:after], after


def number_reader(form: Struct) -> Read:
    """Return a reader of numbers of a fixed size."""

    def read(body: bytes, at: int) -> tuple[object, int]:
        if at + form.size > len(body):
            raise refused_at_byte(CUT_OFF_REASON, at)
        return form.unpack_from(body, at)[0], at + form.size

    return read


FLOAT, DOUBLE = number_reader(Struct("<f")), number_reader(Struct("<d"))


def sized_bytes_reader(size_of: Callable[[bytes, int], tuple[int, int]]) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Return a reader of bytes that follow their length."""

    def read(body: bytes, at: int) -> tuple[bytes, int]:
        size, at = size_of(body, at)
        return read_bytes(body, at, size)

    return read


def text_reader(data_of: Callable[[bytes, int], tuple[bytes, int]]) -> Callable[[bytes, int], tuple[str, int]]:
    """Return a reader of UTF-8 texts."""

    def read(body: bytes, at: int) -> tuple[str, int]:
        data, after = data_of(body, at)
        try:
            return data.decode(), after
        except UnicodeDecodeError as error:
            raise refused_at_byte("invalid UTF-8", after - len(data) + error.start) from None

    return read


def columns_reader(
    values_of: Callable[[bytes, dict[str, Value]], Mapping[str, object]], columns: Sequence[pa.Field]
) -> Reader:
    """Return a reader of columns; *values_of* returns the values of a body by name."""
    names, types = [column.name for column in columns], [column.type for column in columns]

    def row(body: bytes, left: dict[str, Value]) -> Row:
        try:
            return tuple(map(values_of(body, left).get, names))
        except IndexError:
            raise refused_at_byte(CUT_OFF_REASON, len(body)) from None

    return lambda bodies: read_typed_rows(bodies.to_pylist(), row, types)


def check_instant(microseconds: int) -> int:
    """Return microseconds since 1970; reject a time outside of the calendar's range."""
    if not _EARLIEST <= microseconds <= _LATEST:
        raise RefusedBodyError("an invalid or out-of-range time", "")
    return microseconds


def nanoseconds_to_microseconds(nanoseconds: int) -> int:
    """Convert nanoseconds since 1970 to microseconds; reject a more precise time."""
    if nanoseconds % _NANOSECONDS:
        raise RefusedBodyError("a time more precise than a microsecond", "")
    return check_instant(nanoseconds // _NANOSECONDS)


def place_local_instant(microseconds: int, times: Times) -> datetime:
    """Interpret a time without zone in the topic's zone."""
    moment = EPOCH + timedelta(microseconds=check_instant(microseconds))
    try:
        return place_in_zone(moment.replace(tzinfo=None), times.zone).astimezone(UTC)
    except OverflowError:
        raise RefusedBodyError("an invalid or out-of-range time", "") from None


def check_day(days: int) -> int:
    """Return days since 1970; reject a day outside of the calendar's range."""
    if not _EARLIEST_DAY <= days <= _LATEST_DAY:
        raise RefusedBodyError("an invalid or out-of-range date", "")
    return days
