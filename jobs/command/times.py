"""Options that take a moment or a duration, as people write them on a command line."""

import re
import time
from datetime import UTC, datetime, tzinfo

import click

from jobs.console.moments import EXAMPLES, UNIT_SECONDS, GivenTime, parse_time

_MS = 1000
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?")


class TimeType(click.ParamType[GivenTime]):
    """A moment; plain digits are milliseconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> GivenTime:
        """Return the moment, or say that it is none."""
        if isinstance(value, GivenTime):
            return value
        try:
            return GivenTime(str(value))
        except (ValueError, OverflowError):
            self.fail(f"{str(value)[:60]!r} is no time (examples: {EXAMPLES})", param, ctx)


def refuse_reversed(since: GivenTime | None, until: GivenTime | None, zone: tzinfo | None = None) -> None:
    """Refuse a window that ends before it begins: nothing can be in it."""
    if since is not None and until is not None and since.milliseconds(zone) > until.milliseconds(zone):
        reason = f"--until {until} is before --since {since}: the window ends before it begins"
        raise click.UsageError(reason)


class LogPlace:
    """A place in a log: a physical offset, or the first record stored at a time."""

    __slots__ = ("offset", "timestamp")

    def __init__(self, *, offset: int | None = None, timestamp: int | None = None) -> None:
        self.offset = offset
        self.timestamp = timestamp

    def __str__(self) -> str:
        if self.timestamp is None:
            return str(self.offset)
        return datetime.fromtimestamp(self.timestamp / _MS, UTC).isoformat(timespec="milliseconds")


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
        return float(found[1]) * UNIT_SECONDS[found[2] or "s"]


class MillisecondsType(DurationType):
    """How long: `5s`, `2h`; plain digits are milliseconds, and so is the value."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return milliseconds."""
        text = str(value).strip()
        if text.isascii() and text.isdigit():
            return int(text)
        return round(super().convert(text, param, ctx) * _MS)


class UntilType(DurationType):
    """A moment to come: `+2h` from now, or a time. The value is in seconds from now."""

    name = "duration or time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds from now."""
        text = str(value).strip()
        if text.startswith("+"):
            return super().convert(text[1:], param, ctx)
        if _DURATION.fullmatch(text):
            self.fail(f"{text} means {text} ago, as in every verb; write +{text} for {text} from now", param, ctx)
        try:
            return parse_time(text) / _MS - time.time()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time (examples: +2h, '2026-11-20 07:42')", param, ctx)
