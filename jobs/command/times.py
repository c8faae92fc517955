"""Options that take a moment or a duration, as people write them on a command line."""

import re
import time
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

import click

from jobs.command.options import ParsedType
from jobs.console.moments import EXAMPLES, UNIT_SECONDS, GivenTime, parse_time

_MS = 1000
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?")


def given_time(text: str) -> GivenTime:
    """Parse a time option; plain digits are milliseconds since 1970."""
    try:
        return GivenTime(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:60]!r} is no time (examples: {EXAMPLES})") from error


def refuse_reversed(since: GivenTime | None, until: GivenTime | None, zone: tzinfo | None = None) -> None:
    """Refuse a window that ends before it begins: nothing can be in it."""
    if since is not None and until is not None and since.milliseconds(zone) > until.milliseconds(zone):
        reason = f"--until {until} is before --since {since}: the window ends before it begins"
        raise click.UsageError(reason)


class LogPlace(NamedTuple):
    """A place in a log: a physical offset, or the first record stored at a time."""

    offset: int | None = None
    timestamp: int | None = None

    def __str__(self) -> str:
        if self.timestamp is None:
            return str(self.offset)
        return datetime.fromtimestamp(self.timestamp / _MS, UTC).isoformat(timespec="milliseconds")


def log_place(text: str) -> LogPlace:
    """Return an offset in the log, which plain digits are, or a time."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return LogPlace(offset=int(text))
    try:
        return LogPlace(timestamp=parse_time(text))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is neither an offset nor a time (examples: 1073741824, '2026-11-20 07:42', "
            "2026-11-20T07:42:00+08:00, 2h)"
        ) from error


def seconds_of(text: str) -> float:
    """Return the seconds of `5s`, `2h`; plain digits are seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is no duration (examples: 500ms, 5s, 2h)")
    return float(found[1]) * UNIT_SECONDS[found[2] or "s"]


def milliseconds_of(text: str) -> float:
    """Return the milliseconds of `5s`, `2h`; plain digits are milliseconds."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else round(seconds_of(text) * _MS)


def seconds_until(text: str) -> float:
    """Return the seconds from now to a moment that is given as `+2h`, or as a time."""
    text = text.strip()
    if text.startswith("+"):
        return seconds_of(text[1:])
    if _DURATION.fullmatch(text):
        raise ValueError(f"{text} means {text} ago, as in every verb; write +{text} for {text} from now")
    try:
        return parse_time(text) / _MS - time.time()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time (examples: +2h, '2026-11-20 07:42')") from error


TIME = ParsedType("time", given_time)
LOG_PLACE = ParsedType("offset or time", log_place)
DURATION = ParsedType("duration", seconds_of)
MILLISECONDS = ParsedType("duration", milliseconds_of)
UNTIL = ParsedType("duration or time", seconds_until)

since_option = click.option(
    "--since",
    type=TIME,
    metavar="TIME",
    help="Only messages stored at or after TIME: milliseconds, ISO 8601, or `2h` (ago).",
)
until_option = click.option(
    "--until", type=TIME, metavar="TIME", help="Only messages stored at or before TIME, in the same formats."
)
