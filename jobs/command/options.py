"""
The options of verbs, each declared as the default of a parameter; those that verbs share, and the types of values.

Every option also reads `RMQ_LAKE_<COMMAND>_<OPTION>` from the environment, and `--config FILE`; the command line wins
over the environment, the environment over the file. `--show-config` prints the result.

    @verb("look /data/store --deep")
    def look(*, place: StorePlace = store_options, deep: bool = flag("Read all of it.")) -> ExitCode: …
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from jobs.command.places import LOG_DIRECTORIES, STORE
from jobs.console.amounts import TIME_EXAMPLES, UNIT_SECONDS, TimeArgument, explain_implausible_milliseconds, parse_time
from jobs.store.release import parse_release, parse_rules
from jobs.store.store import format_place_options, log_directories, read_broker_conf
from rmq_formats.broker_conf import BrokerConf

if TYPE_CHECKING:
    from datetime import tzinfo

    from jobs.products.index.settings import GivenSettings

_Value = TypeVar("_Value")
_DURATION = r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?"


def _is_needed() -> bool:
    """Return whether a value may not be missing: `--show-config` prints settings instead of running the command."""
    return not click.get_current_context().params.get("show_config")


class _Option(click.Option):
    def value_is_missing(self, value: object) -> bool:
        return super().value_is_missing(value) and _is_needed()


class _Argument(click.Argument):
    def value_is_missing(self, value: object) -> bool:
        return super().value_is_missing(value) and _is_needed()


class _Declared(NamedTuple):
    """One option or argument."""

    kind: type[click.Parameter]
    names: str
    settings: Mapping[str, Any]


class _Bundle(NamedTuple):
    """Several options, which are passed to the parameter as one value."""

    make: Callable[..., Any]
    declarations: Mapping[str, Any]


def option(
    metavar: str | None,
    text: str | None = None,
    kind: click.ParamType[Any] | type | None = None,
    *,
    names: str = "",
    **more: Any,  # noqa: ANN401 - those of click
) -> Any:  # noqa: ANN401 - the default of a parameter of any type
    """Declare an option, as the default of a verb's parameter; *names* like `-t --topic` replace the parameter's."""
    return _Declared(_Option, names, {"metavar": metavar, "help": text, "type": kind, **more})


def flag(text: str, *, names: str = "", is_eager: bool = False) -> Any:  # noqa: ANN401 - as above
    """Declare a switch with its help, as `option` does."""
    return _Declared(click.Option, names, {"is_flag": True, "help": text, "is_eager": is_eager})


def argument(metavar: str | None, kind: click.ParamType[Any] | None = None, **more: Any) -> Any:  # noqa: ANN401 - as above
    """Declare an argument, as the default of a verb's parameter."""
    return _Declared(_Argument, "", {"metavar": metavar, "type": kind, **more})


def bundle(make: Callable[..., Any], **declarations: Any) -> Any:  # noqa: ANN401 - as above
    """Declare options that a command receives as one value, created by *make*; by default, of its parameters."""
    return _Bundle(make, declarations or options_of_function(make))


def examples(*lines: str, exit_codes: str = "") -> str:
    """Return the epilog of a verb: example command lines, and its own exit codes if it has any."""
    text = "\n".join(["\b", "Examples:", *(f"  rmq-lake {line}" for line in lines)])
    return f"{text}\n\nExit codes: {exit_codes}\n" if exit_codes else text


def options_of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function, by the parameters whose defaults they are."""
    defaults = {name: parameter.default for name, parameter in signature(function).parameters.items()}
    return {name: one for name, one in defaults.items() if isinstance(one, _Declared | _Bundle)}


def click_parameters(declarations: Mapping[str, Any]) -> Iterator[click.Parameter]:
    """Yield the parameters of click, in order."""
    for name, one in declarations.items():
        if isinstance(one, _Bundle):
            yield from click_parameters(one.declarations)
        else:
            own = one.names or f"--{name.replace('_', '-')}"
            names = [name] if one.kind is _Argument else [*own.split(), name]
            yield one.kind(names, **one.settings)


def verb_arguments(declarations: Mapping[str, Any], parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each parameter of a verb, from those that click has *parsed*."""
    return {
        name: one.make(**verb_arguments(one.declarations, parsed)) if isinstance(one, _Bundle) else parsed[name]
        for name, one in declarations.items()
    }


class ParsedType(click.ParamType[_Value]):
    """A value that a function parses from text; the function raises ValueError with the reason for invalid text."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """Parse the value; an already parsed value is parsed again from its own text."""
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


def _parse_charset(name: str) -> str:
    from jobs.query.mqadmin.java import check_charset  # lazy import: only queries need it

    check_charset(name)
    return name


def _check_release(text: str) -> str:
    parse_rules(text)
    return text


TIME = ParsedType("time", parse_time_argument)
OFFSET_OR_TIME = ParsedType("offset or time", parse_offset_or_time)
DURATION = ParsedType("duration", parse_seconds)
MILLISECONDS = ParsedType("duration", parse_milliseconds)
DURATION_OR_TIME = ParsedType("duration or time", seconds_until)
TIME_TYPES = (TIME, OFFSET_OR_TIME, DURATION_OR_TIME)
ZONE = ParsedType("zone", _parse_zone)
CHARSET = ParsedType("charset", _parse_charset)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _integer(least: int, most: int | None = None) -> click.IntRange:
    """Return the type of an integer within limits; Click's name for it, `integer range`, is wrong in an error."""
    kind = click.IntRange(least, most)
    kind.name = "integer"
    return kind


POSITIVE_INTEGER = _integer(1)
NOT_NEGATIVE_INTEGER = _integer(0)
_MOST = (1 << 31) - 1  # the largest value of a broker's setting, a Java int
_RELEASE_HELP = "The broker's release; overrides detection."

json_option = flag("Print only JSON on standard output.", names="--json")
quiet_option = flag("Print neither progress nor summary.", names="--quiet -q")
verbose_option = flag("Also list the evidence for the broker's release.")
releases_option = option("X.Y.Z[,X.Y.Z@OFFSET…]", _RELEASE_HELP, ParsedType("release", _check_release))
one_release_option = option("X.Y.Z", _RELEASE_HELP, ParsedType("release", parse_release))
commitlog_option = option("PATH[,PATH…]", "Directories of the CommitLog, if not STORE/commitlog.", LOG_DIRECTORIES)
broker_conf_option = option("FILE", "The broker's configuration file (paths, sizes, names).", FILE)
label_option = option(
    "NAME", "Label of the broker in the lake; needed only if STORE is not recognized by its contents."
)
max_rate_option = option(
    "BYTES", "Read at most BYTES per second across all tasks, without filling the page cache.", POSITIVE_INTEGER
)
hash_slots_option = option("N", "Slots per index file (maxHashSlotNum).", _integer(1, _MOST))
index_num_option = option("N", "Entries per index file (maxIndexNum).", _integer(2, _MOST))


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


class StorePlace(NamedTuple):
    """The location of a store and of its log, as given on the command line."""

    store: str = argument("STORE", STORE)
    commitlog: tuple[str, ...] | None = commitlog_option
    broker_conf: Path | None = broker_conf_option

    def read_conf(self) -> BrokerConf:
        """Read the broker's own configuration."""
        return read_broker_conf(self.broker_conf)

    def log_directories(self, conf: BrokerConf) -> tuple[str, ...]:
        """Return the log's directories; empty if the log is below the store's root."""
        return tuple(log_directories(self.commitlog, conf))


store_options = bundle(StorePlace)


class StoreSettings(NamedTuple):
    """User settings on the sizes and the release of a store's files, and on how fast to read them."""

    hash_slots: int | None = hash_slots_option
    index_num: int | None = index_num_option
    consume_queue_size: int | None = option(
        "BYTES", "Size of one ConsumeQueue file (mappedFileSizeConsumeQueue).", _integer(20, _MOST)
    )
    release: str | None = releases_option
    time_zone: ZoneInfo | None = option(
        "ZONE", "The broker's time zone; index files are named after their local creation time.", ZONE
    )
    max_rate: int | None = None

    def given_settings(self, conf: BrokerConf) -> "GivenSettings":
        """Return the settings that the user gave; options override the broker's configuration."""
        from jobs.products.index.settings import GivenSettings

        size = self.consume_queue_size or conf.consume_queue_size
        conf = replace(conf, consume_queue_size=size)
        return GivenSettings(self.hash_slots, self.index_num, self.release, self.time_zone, conf)


def format_store_options(place: StorePlace, settings: StoreSettings) -> tuple[str, ...]:
    """Return the options about the store's log and files as words, to be repeated in another command."""
    given = ((f"--{name.replace('_', '-')}", value) for name, value in settings._asdict().items() if name != "max_rate")
    words = (word for name, value in given if value is not None for word in (name, str(value)))
    return *format_place_options(place.commitlog, place.broker_conf), *words


settings_options = bundle(StoreSettings)
settings_and_rate_options = bundle(StoreSettings, max_rate=max_rate_option, **options_of_function(StoreSettings))
