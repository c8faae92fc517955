"""
Converts values of bodies to the types of columns: exactly, or not at all.

docs/reference/types.md states the rules, which are the same in every format. A value that does not fit is rejected
with its path.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from jobs.lake.tables import JSON_TEXT, sql_type

_INTEGER = re.compile(r"-?[0-9]{1,40}")
DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,6})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:(?<=:[0-9]{2}:[0-9]{2})[.,]([0-9]{1,9}))?"
    r" ?(Z|z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
TOO_LARGE = "a number is out of range for {}"
_MICROSECONDS = 6
_LONGEST_NAME = 60
DAY, BYTES = pa.date32(), pa.binary()

Value = object  # a JSON value: None, bool, Number, str, list, dict


class Refusal(NamedTuple):
    """The reason why a body is not a row, and the place in the body."""

    reason: str
    place: str | None = None


class RefusedBodyError(ValueError):
    """A body, or a value in it, does not fit the declared columns."""

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason, place)
        self.refusal = Refusal(reason, place)

    def within(self, prefix: str) -> "RefusedBodyError":
        """Return the same refusal, with *prefix* before its place."""
        return RefusedBodyError(self.refusal.reason, prefix + (self.refusal.place or ""))

    @property
    def refusal_of_body(self) -> Refusal:
        """The refusal, with its place in the whole body."""
        place = self.refusal.place or ""
        return Refusal(self.refusal.reason, f"${place}" if place[:1] in {".", "["} else place.removeprefix(" at "))


class Number(str):
    """A number as the body spells it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TimeDefaults:
    """How to interpret a topic's times that state no unit or no zone."""

    unit: str | None = None  # the unit of numbers: s, ms or us since 1970
    zone: tzinfo | None = None  # the zone of times that state none


def convert_value(value: Value, type_: pa.DataType, times: TimeDefaults, path: str) -> object:
    """Convert a JSON value to a column type; raise `RefusedBodyError` if it does not fit exactly."""
    if value is None or type_ == JSON_TEXT:  # a JSON value is kept as its text
        return value
    if pa.types.is_struct(type_):
        return convert_struct(value, list(type_), times, path)
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise RefusedBodyError("not an array", path)
        return [convert_value(one, type_.value_type, times, f"{path}[{number}]") for number, one in enumerate(value)]
    if pa.types.is_map(type_):
        if not isinstance(value, Mapping):
            raise RefusedBodyError("not an object", path)
        return {
            name: convert_value(one, type_.item_type, times, member_path(path, name)) for name, one in value.items()
        }
    try:
        return _scalar(value, type_, times)
    except RefusedBodyError as error:
        raise RefusedBodyError(error.refusal.reason, path) from None


def _scalar(value: Value, type_: pa.DataType, times: TimeDefaults) -> object:
    if pa.types.is_timestamp(type_):
        return convert_instant(value, times)
    for is_type, convert in _OF_TYPE:
        if is_type(type_):
            return convert(value, type_)
    if not (isinstance(value, bool) if pa.types.is_boolean(type_) else _is_text(value)):
        raise RefusedBodyError(f"not a valid {sql_type(type_)}")
    return value


def _is_text(value: Value) -> TypeGuard[str]:
    return isinstance(value, str) and not isinstance(value, Number)


def convert_struct(value: Value, fields: Sequence[pa.Field], times: TimeDefaults, path: str) -> dict[str, object]:
    """Convert an object to a struct; keys without a field are left out."""
    if not isinstance(value, Mapping):
        raise RefusedBodyError("not an object", path)
    found = {}
    for field in fields:
        cell = convert_value(value.get(field.name), field.type, times, member_path(path, field.name))
        if cell is None and not field.nullable:
            raise RefusedBodyError("a required value is missing", member_path(path, field.name))
        found[field.name] = cell
    return found


def member_path(path: str, name: str) -> str:
    """Return the path of a member of an object."""
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return f"{path}.{shown}" if shown.isidentifier() else f"{path}[{shown!r}]"


def convert_integer(value: Value, type_: pa.DataType) -> int:
    """Convert a number that is written as an integer, and fits."""
    if not isinstance(value, Number):
        raise RefusedBodyError(f"not a valid {sql_type(type_)}")
    if not _INTEGER.fullmatch(value):
        if value.lstrip("-").isdigit():
            raise RefusedBodyError(TOO_LARGE.format(sql_type(type_)))
        raise RefusedBodyError(f"a number with a fraction or an exponent is not a valid {sql_type(type_)}")
    number = int(value)
    limit = 1 << (type_.bit_width - 1)
    if not -limit <= number < limit:
        raise RefusedBodyError(TOO_LARGE.format(sql_type(type_)))
    return number


def convert_real(value: Value, type_: pa.DataType) -> float:
    """Convert a `Number` to the nearest float; an integer must be represented exactly."""
    if not isinstance(value, Number):
        raise RefusedBodyError(f"not a valid {sql_type(type_)}")
    number = float(value)
    with np.errstate(over="ignore"):
        stored = float(np.float32(number)) if type_.bit_width < 64 else number  # noqa: PLR2004 - bits of a double
    if math.isinf(stored):
        raise RefusedBodyError(TOO_LARGE.format(sql_type(type_)))
    if not set(value) & set(".eE") and Decimal(stored) != Decimal(value):  # int() accepts 4,300 digits, including zeros
        raise RefusedBodyError(f"an integer that {sql_type(type_)} cannot represent exactly")
    return stored


def convert_decimal(value: Value, type_: pa.DataType) -> Decimal:
    """Convert a `Number`, or a text that is a number, with all of its digits."""
    if not isinstance(value, str) or not DECIMAL.fullmatch(value):
        raise RefusedBodyError(f"not a valid {sql_type(type_)}")
    number = Decimal(value)
    try:
        return number.quantize(Decimal(1).scaleb(-type_.scale), context=exact_decimal_context(type_.precision))
    except (Inexact, InvalidOperation):
        raise RefusedBodyError(f"a number that {sql_type(type_)} cannot represent exactly") from None


@lru_cache
def exact_decimal_context(precision: int) -> Context:
    """Return a decimal context of this precision that never rounds."""
    return Context(prec=precision, traps=[Inexact, InvalidOperation])


def convert_day(value: Value, _type: pa.DataType = DAY) -> date:
    """Convert a text like 2026-11-23 to a date."""
    if _is_text(value) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise RefusedBodyError("an invalid or out-of-range date") from None
    raise RefusedBodyError("not a date like 2026-11-23")


def convert_instant(value: Value, times: TimeDefaults) -> datetime:
    """Convert an ISO 8601 text, or a number if the topic's unit is known, to a time in UTC."""
    try:
        if isinstance(value, str):
            return _instant(value, times)
    except (ValueError, OverflowError) as error:
        if isinstance(error, RefusedBodyError):
            raise
        raise RefusedBodyError("an invalid or out-of-range time") from None
    raise RefusedBodyError("not a valid time")


def _instant(value: str, times: TimeDefaults) -> datetime:
    if isinstance(value, Number):
        if times.unit is None:
            raise RefusedBodyError("a time as a number; set its unit as epoch in types.toml")
        if not _INTEGER.fullmatch(value):
            raise RefusedBodyError("a time as a number with a fraction")
        return EPOCH + timedelta(microseconds=int(value) * MICROSECONDS_PER_UNIT[times.unit])
    found = _INSTANT.fullmatch(value)
    if found is None:
        raise RefusedBodyError("not an ISO 8601 timestamp")
    of_day, clock, fraction, zone = found.groups("")
    if fraction[_MICROSECONDS:].strip("0"):
        raise RefusedBodyError("a time more precise than a microsecond")
    if clock[:2] == "24" or (zone[-2:] > "59" and len(zone) > len("+08")):  # newer versions of Python accept these
        raise RefusedBodyError("an invalid or out-of-range time")
    seconds = f"{clock}.{fraction[:_MICROSECONDS]:0<6}" if fraction else clock
    moment = datetime.fromisoformat(f"{of_day}T{seconds}{zone.upper()}")
    return moment.astimezone(UTC) if zone else place_in_zone(moment, times.zone).astimezone(UTC)


def place_in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    """Return a local time in *zone*; reject a time that occurs there twice or never."""
    if zone is None:
        raise RefusedBodyError("a time without a zone; set time_zone in types.toml")
    first, second = moment.replace(tzinfo=zone), moment.replace(tzinfo=zone, fold=1)
    if first.utcoffset() != second.utcoffset():
        raise RefusedBodyError("a local time that occurs twice or never in its zone")
    return first


def decode_base64(value: Value, _type: pa.DataType = BYTES) -> bytes:
    """Decode a base64 text."""
    if _is_text(value):
        try:
            return base64.b64decode(value.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            pass
    raise RefusedBodyError("not valid base64")


_OF_TYPE: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Value, pa.DataType], object]]] = (
    (pa.types.is_integer, convert_integer),
    (pa.types.is_floating, convert_real),
    (pa.types.is_decimal, convert_decimal),
    (pa.types.is_date, convert_day),
    (pa.types.is_binary, decode_base64),
)
