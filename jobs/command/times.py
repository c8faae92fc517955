"""Moments as people write them on a command line: ISO 8601, a date with a time, or `2h` ago."""

import re
import time
from datetime import UTC, datetime

import click

_MS = 1000
_AGO = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return milliseconds since 1970; `ValueError` for text that is no moment. Without a zone it is local time."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now - int(ago[1]) * _UNIT_SECONDS[ago[2]] * _MS
    moment = datetime.fromisoformat(text.strip())
    zoned = moment if moment.tzinfo is not None else moment.astimezone()
    return round(zoned.timestamp() * _MS)


def time_text(timestamp: int) -> str:
    """Return a moment as it is shown to people, its zone said."""
    return datetime.fromtimestamp(timestamp / _MS, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


class LogPlace:
    """A place in a log: a physical offset, or the first record stored at a time."""

    __slots__ = ("offset", "timestamp")

    def __init__(self, *, offset: int | None = None, timestamp: int | None = None) -> None:
        """Take one of both."""
        self.offset = offset
        self.timestamp = timestamp


class LogPlaceType(click.ParamType[LogPlace]):
    """An offset in the log, or a time."""

    name = "offset or time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> LogPlace:
        """Return the place; plain digits are an offset."""
        if isinstance(value, LogPlace):
            return value
        text = str(value).strip()
        if text.isascii() and text.isdigit():
            return LogPlace(offset=int(text))
        try:
            return LogPlace(timestamp=parse_time(text))
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is neither an offset nor a time (examples: 1073741824, '2026-11-20 07:42', "
                "2026-11-20T07:42:00+08:00, 2h)",
                param,
                ctx,
            )
