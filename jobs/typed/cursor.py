"""Reads numbers, texts and times of Avro and Protobuf: a value is read exactly, or refused with its position."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from struct import Struct
from typing import Any

import pyarrow as pa

from jobs.typed.formats import BodyReader, Row, read_typed_rows
from jobs.typed.values import EPOCH, RefusedBodyError, TimeDefaults, Value, place_in_zone

CUT_OFF_REASON = "truncated"
DUPLICATE_KEY_REASON = "a key occurs twice in one object"
FLOAT, DOUBLE = Struct("<f"), Struct("<d")
_SHIFT_OF_LAST = 63  # the shift of the tenth byte of a number
_EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_DAY = EPOCH.toordinal()
_EARLIEST_DAY, _LATEST_DAY = date.min.toordinal() - _DAY, date.max.toordinal() - _DAY
_NANOSECONDS = 1000  # nanoseconds in a microsecond


def refused_at_byte(reason: str, at: int) -> RefusedBodyError:
    """Return the refusal of a body at a byte; callers add the path."""
    return RefusedBodyError(reason, f" at byte {at}")


class Cursor:
    """A body, and the position of the next value in it."""

    __slots__ = ("at", "body", "unknown_fields")

    def __init__(self, body: bytes, unknown_fields: dict[str, Value]) -> None:
        self.body, self.at = body, 0
        self.unknown_fields = unknown_fields  # fields without a column, by path

    def read_varint(self) -> int:
        """Read an unsigned number that has seven bits in each byte."""
        at = begin = self.at
        found = shift = 0
        try:
            while (byte := self.body[at]) > 127 and shift < _SHIFT_OF_LAST:  # noqa: PLR2004 - another byte follows
                found |= (byte & 127) << shift
                at += 1
                shift += 7
        except IndexError:
            raise refused_at_byte(CUT_OFF_REASON, len(self.body)) from None
        found |= byte << shift
        if found >> 64:
            raise refused_at_byte("a number of more than 64 bits", begin)
        self.at = at + 1
        return found

    def read_zigzag(self) -> int:
        """Read a signed number, whose lowest bit is its sign."""
        number = self.read_varint()
        return (number >> 1) ^ -(number & 1)

    def read_bytes(self, size: int) -> bytes:
        """Read *size* bytes."""
        begin = self.at
        if size < 0:
            raise refused_at_byte("a negative length", begin)
        self.at = begin + size
        if self.at > len(self.body):
            raise refused_at_byte(CUT_OFF_REASON, begin)
        return self.body[begin : self.at]

    def read_text(self, size: int) -> str:
        """Read a UTF-8 text of *size* bytes."""
        begin = self.at
        try:
            return self.read_bytes(size).decode()
        except UnicodeDecodeError as error:
            raise refused_at_byte("invalid UTF-8", begin + error.start) from None

    def read_number(self, form: Struct) -> Any:  # noqa: ANN401 - an integer or a float, by the form
        """Read a number of a fixed size."""
        return form.unpack(self.read_bytes(form.size))[0]


ReadValue = Callable[[Cursor], object]  # reads a value, and moves the cursor past it


def columns_reader(values_of: Callable[[Cursor], Mapping[str, object]], columns: Sequence[pa.Field]) -> BodyReader:
    """Return a reader of columns; *values_of* returns the values of a body by name."""
    names, types = [column.name for column in columns], [column.type for column in columns]

    def row(body: bytes, unknown_fields: dict[str, Value]) -> Row:
        return tuple(map(values_of(Cursor(body, unknown_fields)).get, names))

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


def place_local_instant(microseconds: int, times: TimeDefaults) -> datetime:
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
