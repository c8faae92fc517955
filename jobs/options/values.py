"""Types of values that options have, and options that several commands declare."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from jobs.console.amounts import TIME_EXAMPLES, UNIT_SECONDS, TimeArgument, explain_implausible_milliseconds, parse_time
from jobs.options.declaration import flag, option
from jobs.options.places import LOG_DIRECTORIES

if TYPE_CHECKING:
    from datetime import tzinfo

_Value = TypeVar("_Value")
_DURATION = r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?"


class ParsedType(click.ParamType[_Value]):
    """A value that a function parses from text; the function raises ValueError with the reason for invalid text."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """Parse the value; an already parsed value is parsed again from its text."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_time_argument(text: str) -> TimeArgument:
    """Parse a time option; plain digits are milliseconds since 1970, and must be plausible as such."""
    try:
        given = TimeArgument(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:60]!r} is not a valid time (examples: {TIME_EXAMPLES})") from error
    reason = explain_implausible_milliseconds(given.text)
    if reason is not None:
        raise ValueError(reason)
    return given


def parse_offset_or_time(text: str) -> int | TimeArgument:
    """Parse a position in the log: a physical offset (plain digits), or the time of the first record."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parse_time(text)  # refuses a number with a sign
        return TimeArgument(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is neither an offset nor a time (examples: 1073741824, '2026-11-20 07:42', "
            "2026-11-20T07:42:00+08:00, 2h)"
        ) from error


def parse_seconds(text: str) -> float:
    """Parse a duration like `5s` or `2h` into seconds; plain digits are seconds."""
    found = re.fullmatch(_DURATION, text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a valid duration (examples: 500ms, 5s, 2h)")
    return float(found[1]) * UNIT_SECONDS[found[2] or "s"]


def parse_milliseconds(text: str) -> int:
    """Parse a duration like `5s` or `2h` into milliseconds; plain digits are milliseconds."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else round(parse_seconds(text) * 1000)


def seconds_until(text: str) -> float:
    """Return the seconds from now until a moment, given as `+2h` or as a time."""
    text = text.strip()
    if text.startswith("+"):
        return parse_seconds(text[1:])
    if re.fullmatch(_DURATION, text):
        raise ValueError(f"{text} means {text} ago, as in all commands; write +{text} for {text} from now")
    try:
        return parse_time(text) / 1000 - time.time()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a valid time (examples: +2h, '2026-11-20 07:42')") from error


def refuse_reversed_window(
    since: TimeArgument | None, until: TimeArgument | None, zone: "tzinfo | None" = None
) -> None:
    """Refuse a time window that ends before it begins."""
    if since is not None and until is not None and since.milliseconds(zone) > until.milliseconds(zone):
        reason = f"--until {until} is before --since {since}"
        raise click.UsageError(reason)


def _parse_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"unknown time zone {name[:40]!r} (example: Asia/Shanghai)") from error


TIME = ParsedType("time", parse_time_argument)
OFFSET_OR_TIME = ParsedType("offset or time", parse_offset_or_time)
DURATION = ParsedType("duration", parse_seconds)
MILLISECONDS = ParsedType("duration", parse_milliseconds)
DURATION_OR_TIME = ParsedType("duration or time", seconds_until)
TIME_TYPES = (TIME, OFFSET_OR_TIME, DURATION_OR_TIME)
ZONE = ParsedType("zone", _parse_zone)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def integer_between(least: int, most: int | None = None) -> click.IntRange:
    """Return the type of an integer within limits; Click's name for it, `integer range`, is wrong in an error."""
    kind = click.IntRange(least, most)
    kind.name = "integer"
    return kind


POSITIVE_INTEGER = integer_between(1)
NOT_NEGATIVE_INTEGER = integer_between(0)

# These are functions, because each field needs a separate declaration.
json_option = partial(flag, "Print only JSON on standard output.", names="--json", is_shared=True)
quiet_option = partial(flag, "Print neither progress nor summary.", names="--quiet -q", is_shared=True)
commitlog_option = partial(
    option,
    "PATH[,PATH…]",
    "Directories of the CommitLog, if not STORE/commitlog.",
    LOG_DIRECTORIES,
    multiple=True,
    callback=lambda _ctx, _param, given: tuple(path for paths in given for path in paths),
)
broker_conf_option = partial(option, "FILE", "The broker's configuration file (paths, sizes, names).", FILE)
label_option = partial(
    option, "NAME", "Label of the broker in the lake; needed only if STORE is not recognized by its contents."
)


def since_option(names: str = "") -> Any:  # noqa: ANN401 - as above
    """Return the option for the earliest time."""
    text = "Only messages stored at or after TIME: milliseconds since 1970, ISO 8601, or an age (`2h`: two hours ago)."
    return option("TIME", text, TIME, names=names)


def until_option(names: str = "") -> Any:  # noqa: ANN401 - as above
    """Return the option for the latest time."""
    return option("TIME", "Only messages stored at or before TIME, in the same formats.", TIME, names=names)


def limit_option(plural_noun: str) -> Any:  # noqa: ANN401 - as above
    """Return the option for the maximum number of *plural_noun* to print."""
    return option(
        "N", f"Print at most N {plural_noun}; --json prints all.", NOT_NEGATIVE_INTEGER, default=20, show_default=True
    )
