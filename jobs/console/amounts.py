"""Formats and parses sizes, durations, rates and times: `1.5 GiB`, `2026-11-20 07:42`, `2h` ago."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from rmq_formats.properties import MAX_LONG, MIN_LONG

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_MINUTE, _HOUR = 60, 3600
_FEW = 10  # seconds: fewer have two decimals
_DAY_MS = 86_400_000
_NAMES_MS = ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_ROUND_MS = (
    *(factor * power for power in (1, 10, 100) for factor in (1, 2, 5)),
    *(seconds * 1000 for seconds in (1, 2, 5, 10, 15, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 5, 10, 30, 90)),
    *(years * 365 * _DAY_MS for years in (1, 2, 5, 10, 100, 1000, 10_000, 1_000_000)),
)


def size_text(size: float) -> str:
    """Format bytes in the largest suitable unit: `512 bytes`, `38.5 KiB`, `1.5 GiB`."""
    if size < _STEP:
        return count_text(round(size), "byte")
    power = min((int(size).bit_length() - 1) // 10, len(_UNITS))
    return f"{size / _STEP**power:,.1f} {_UNITS[power - 1]}"


def rate_text(size: float, seconds: float) -> str:
    """Format a rate in bytes per second."""
    return f"{size_text(size / seconds)}/s" if seconds > 0 else "instantly"


def duration_text(seconds: float) -> str:
    """Format a duration: `0.25 s`, `12.3 s`, `2 min 5 s`, `1 h 12 min`."""
    if seconds < _MINUTE:
        return f"{seconds:.{2 if seconds < _FEW else 1}f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR:,} h {whole % _HOUR // _MINUTE} min"


def round_up_duration(least_ms: float) -> int:
    """Return the shortest round number of milliseconds, seconds, minutes, … that is not less than *least_ms*."""
    return next((duration for duration in _ROUND_MS if duration >= least_ms), _ROUND_MS[-1])


def round_duration_text(milliseconds: int) -> str:
    """Format a round duration with its unit."""
    size, unit = next((size, unit) for size, unit in _NAMES_MS if milliseconds % size == 0)
    return f"{milliseconds // size:,} {unit}"


def count_text(number: int, noun: str) -> str:
    """Format a number with its noun: `1 file`, `1,200 files`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    is_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if is_ies else f"{number:,} {noun}s"


def names_text(names: Sequence[str], most: int = 4) -> str:
    """Return the first names as text, at most *most*."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def is_or_are(number: int) -> str:
    """Return the verb for a number of things."""
    return "is" if number == 1 else "are"


_MS = 1000
_DIGITS = r"(?a)[+-]?\d+"
_AGO = r"(?a)(\d+)\s*(s|m|h|d|w)"
UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
TIME_EXAMPLES = "1763624520000, '2026-11-20 07:42', 2026-11-20T07:42:00+08:00, 2h"


def parse_time(text: str, zone: tzinfo | None = None) -> int:
    """Parse a time into ms since 1970; *zone* (default: this machine's) is that of a text without one."""
    ago = re.fullmatch(_AGO, text.strip())
    if ago is not None:
        return time.time_ns() // 1_000_000 - round(int(ago[1]) * UNIT_SECONDS[ago[2]] * _MS)
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return round(moment.timestamp() * _MS)


def utc_time_text(timestamp: int, suffix: str = " UTC") -> str:
    """Format milliseconds as a UTC time with a *suffix*, or as a number if it is outside the calendar's range."""
    try:
        moment = datetime.fromtimestamp(timestamp // _MS, UTC)
    except (OverflowError, ValueError, OSError):  # out of the calendar's range; no I/O happens here
        return f"{timestamp} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp % _MS:03d}{suffix}"


# Milliseconds from 2000 to 2286. Other numbers are a date, or seconds, microseconds or nanoseconds since 1970.
_PLAUSIBLE_MS = range(946_684_800_000, 10_000_000_000_000)
_DATE_DIGITS = r"(?a)((?:19|20)\d\d)([01]\d)([0-3]\d)(?:([0-2]\d)([0-5]\d)([0-5]\d)?)?"


def explain_implausible_milliseconds(text: str) -> str | None:
    """
    Return why digits are hardly milliseconds since 1970, and what to write instead; None for other texts.

    Zero, negative numbers and the largest number, which stand for no limit, are plausible.
    """
    number = int(text) if re.fullmatch(_DIGITS, text) else 0
    if number <= 0 or number == MAX_LONG or number in _PLAUSIBLE_MS:
        return None
    found = re.fullmatch(_DATE_DIGITS, text)
    in_ms = next((ms for ms in (number * _MS, number // _MS, number // _MS**2) if ms in _PLAUSIBLE_MS), None)
    if found is not None:
        date, clock = "-".join(found.groups()[:3]), ":".join(filter(None, found.groups()[3:]))
        instead = f"Write '{date} {clock}'" if clock else f"Write {date}"
    elif in_ms is not None:
        instead = f"For {utc_time_text(in_ms)}, write {in_ms}"
    else:
        instead = f"Write the time in another way (examples: {TIME_EXAMPLES})"
    time = utc_time_text(number)
    would_be = f"would be {time}" if time.endswith("UTC") else "would be after the year 9999"
    return f"{text} milliseconds since 1970 {would_be}, which is not plausible. {instead}"


class TimeArgument:
    """A time as the user wrote it. Plain digits are milliseconds, and may be any 64-bit number."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """Parse the text; raise `ValueError` or `OverflowError` if it is not a valid time."""
        self.text = text.strip()
        if not MIN_LONG <= self.milliseconds() <= MAX_LONG:
            raise OverflowError(self.text)

    def __str__(self) -> str:
        return self.text

    def milliseconds(self, zone: tzinfo | None = None) -> int:
        """Return milliseconds since 1970; *zone* applies to a text without one (default: this machine's)."""
        return int(self.text) if re.fullmatch(_DIGITS, self.text) else parse_time(self.text, zone=zone)

    def interpretation(self, zone: tzinfo | None = None) -> str | None:
        """Return a sentence on the time zone that was assumed; None if the text states it."""
        needs_no_zone = re.fullmatch(_DIGITS, self.text) or re.fullmatch(_AGO, self.text)
        if needs_no_zone or datetime.fromisoformat(self.text).tzinfo is not None:
            return None
        name = str(zone) if zone is not None else f"this machine's zone ({datetime.now(UTC).astimezone().tzname()})"
        return f"{self.text!r} is interpreted in {name}: {utc_time_text(self.milliseconds(zone))}"
