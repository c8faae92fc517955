"""Moments as people write them: milliseconds, ISO 8601, a date with a time, or `2h` ago; and how they are shown."""

import re
import time
from datetime import UTC, datetime, tzinfo

_MS = 1000
_DIGITS = re.compile(r"[+-]?\d+", re.ASCII)
_AGO = re.compile(r"(\d+)\s*(s|m|h|d|w)", re.ASCII)
UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
EXAMPLES = "1763624520000, '2026-11-20 07:42', 2026-11-20T07:42:00+08:00, 2h"


def parse_time(text: str, now_ms: int | None = None, zone: tzinfo | None = None) -> int:
    """
    Return milliseconds since 1970; `ValueError` or `OverflowError` for text that is not a moment.

    What says no zone is in *zone*, by default in this machine's.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return now - round(int(ago[1]) * UNIT_SECONDS[ago[2]] * _MS)
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
    return round(moment.timestamp() * _MS)


def time_text(timestamp: int) -> str:
    """Return a moment as it is shown to people, with its zone; milliseconds if the calendar does not have it."""
    try:
        return datetime.fromtimestamp(timestamp / _MS, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (OverflowError, ValueError, OSError):  # out of the calendar's range; no I/O happens here
        return f"{timestamp} ms"


class GivenTime:
    """A moment as a user has written it. Plain digits are milliseconds, any 64-bit number of them."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """Take the text; `ValueError` or `OverflowError` where it is not a moment."""
        self.text = text.strip()
        self.milliseconds()

    def __str__(self) -> str:
        return self.text

    @property
    def says_zone(self) -> bool:
        """Whether the text alone says which moment it is."""
        if _DIGITS.fullmatch(self.text) or _AGO.fullmatch(self.text):
            return True
        return datetime.fromisoformat(self.text).tzinfo is not None

    def milliseconds(self, zone: tzinfo | None = None) -> int:
        """Return milliseconds since 1970; *zone* is that of a text that says none, by default this machine's."""
        return int(self.text) if _DIGITS.fullmatch(self.text) else parse_time(self.text, zone=zone)

    def explained(self, zone: tzinfo | None = None) -> str | None:
        """Return a sentence on the zone that was taken; None where the text says it."""
        if self.says_zone:
            return None
        name = str(zone) if zone is not None else f"this machine's zone ({datetime.now(UTC).astimezone().tzname()})"
        return f"{self.text!r} is taken in {name}: {time_text(self.milliseconds(zone))}"
