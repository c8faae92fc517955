"""Sizes, durations and rates as people read them."""

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
    """Return bytes in the largest unit that they fill: `512 bytes`, `38.5 KiB`, `1.5 GiB`."""
    if size < _STEP:
        return counted(round(size), "byte")
    power = min((int(size).bit_length() - 1) // 10, len(_UNITS))
    return f"{size / _STEP**power:,.1f} {_UNITS[power - 1]}"


def rate_text(size: float, seconds: float) -> str:
    """Return bytes a second."""
    return f"{size_text(size / seconds)}/s" if seconds > 0 else "at once"


def duration_text(seconds: float) -> str:
    """Return a duration: `0.25 s`, `12.3 s`, `2 min 5 s`, `1 h 12 min`."""
    if seconds < _MINUTE:
        return f"{seconds:.{2 if seconds < _FEW else 1}f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR:,} h {whole % _HOUR // _MINUTE} min"


def round_duration(least: float) -> int:
    """Return the shortest round number of milliseconds, seconds, minutes, … that is at least *least* milliseconds."""
    return next((duration for duration in _ROUND_MS if duration >= least), _ROUND_MS[-1])


def duration_name(milliseconds: int) -> str:
    """Return a round duration with its unit."""
    size, unit = next((size, unit) for size, unit in _NAMES_MS if milliseconds % size == 0)
    return f"{milliseconds // size:,} {unit}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,200 files`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    is_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if is_ies else f"{number:,} {noun}s"
