"""Moments as people write them on a command line: ISO 8601, a date with a time, or `2h` ago."""

import re
import time
from datetime import UTC, datetime

import click

_MS = 1000
_AGO = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return milliseconds since 1970; `ValueError` for text that is no moment. Without a zone it is local time."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now - round(int(ago[1]) * _UNIT_SECONDS[ago[2]] * _MS)
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


class DurationType(click.ParamType[float]):
    """How long: `5s`, `2h`; plain digits are seconds. The value is in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        text = str(value).strip()
        found = _DURATION.fullmatch(text)
        if found is None:
            self.fail(f"{text!r} is no duration (examples: 500ms, 5s, 2h)", param, ctx)
        return float(found[1]) * _UNIT_SECONDS[found[2] or "s"]


class UntilType(DurationType):
    """A moment to come: `2h` from now, or a time. The value is in seconds from now."""

    name = "duration or time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds from now."""
        text = str(value).strip()
        if _DURATION.fullmatch(text):
            return super().convert(value, param, ctx)
        try:
            return parse_time(text) / _MS - time.time()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time (examples: 2h, '2026-11-20 07:42')", param, ctx)
