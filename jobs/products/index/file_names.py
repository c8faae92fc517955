"""
Names of index files: the broker's local time when it made the file, which no data tells.

A rebuilt file is named after the store time of its first message, and then moved until it sorts where it belongs: the
order of the names is all that a broker reads from them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from rmq_formats.store import OFFSET_DIGITS, TIME_DIGITS

_STEP = timedelta(minutes=15)  # every zone in use is a multiple of it away from UTC
_SLACK = timedelta(minutes=5)  # between a file's making and its first message
_FURTHEST = timedelta(hours=14)
WESTERNMOST = timezone(timedelta(hours=-12))  # where a clock shows the earliest local time
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def name_of_time(timestamp: int, zone: tzinfo) -> str:
    """Return the name of a file made at *timestamp* (ms); times that no calendar has become its first or last."""
    try:
        local = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(zone)
    except OverflowError:
        local = datetime.min.replace(tzinfo=zone) if timestamp < 0 else datetime.max.replace(tzinfo=zone)
    return f"{local.year:04d}{local:%m%d%H%M%S}{local.microsecond // 1000:03d}"


def names_between(timestamps: Sequence[int], zone: tzinfo, before: str = "", following: str = "") -> list[str]:
    """
    Return names for files with these first store times, that sort after *before* and before *following*, in order.

    Where milliseconds do not suffice, digits are added: the broker sorts names as text and reads any number.
    """
    names: list[str] = []
    low = before
    for number, timestamp in enumerate(timestamps):
        name = name_of_time(timestamp, zone)
        left = len(timestamps) - number
        if name <= low:
            name = _next(low)
        if following and not _leaves_room(name, following, left):
            name = _next(low)
            if not _leaves_room(name, following, left):
                return names + _squeezed(low, following, left)
        names.append(name)
        low = name
    return names


def _next(name: str) -> str:
    """Return the next millisecond's name; a time, not just a number."""
    try:
        time = datetime.strptime(name[:TIME_DIGITS] + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) + _MILLISECOND
    except (ValueError, OverflowError):
        return f"{int(name or 0) + 1:0{TIME_DIGITS}d}"
    return name_of_time((time - _EPOCH) // _MILLISECOND, UTC)


def _leaves_room(name: str, following: str, files: int) -> bool:
    """Return whether *files* names, of which *name* is the first, fit before *following*."""
    for _ in range(files):
        if name >= following:
            return False
        name = _next(name)
    return True


def _squeezed(low: str, following: str, files: int) -> list[str]:
    """Return names that continue *low* with more digits, which sort after it and before any other number."""
    digits = len(str(files))
    stem = low or "0" * TIME_DIGITS
    names = [f"{stem}{number:0{digits}d}" for number in range(1, files + 1)]
    if names[-1] >= following or len(names[-1]) >= OFFSET_DIGITS:
        raise OSError(f"no {files} names sort between {low} and {following}")
    return names


def detect_zone(files: Iterable[tuple[str, int]]) -> tzinfo | None:
    """Return the zone in which most of the files (name, store time of the first message) were named."""
    votes: Counter[timedelta] = Counter()
    for name, timestamp in files:
        try:
            local = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
            difference = local - (_EPOCH + timedelta(milliseconds=timestamp))
        except (ValueError, OverflowError):
            continue
        offset = _STEP * round(difference / _STEP)
        if abs(difference - offset) <= _SLACK and abs(offset) <= _FURTHEST:
            votes[offset] += 1
    if not votes:
        return None
    (offset, _), *_ = votes.most_common(1)
    return UTC if not offset else timezone(offset)
