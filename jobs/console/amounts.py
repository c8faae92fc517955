"""Sizes, durations and rates as people read them."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_MINUTE, _HOUR = 60, 3600
_FEW = 10  # seconds: fewer have two decimals


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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,200 files`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    is_ies = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if is_ies else f"{number:,} {noun}s"
