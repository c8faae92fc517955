"""
The options that verbs share, each declared once, and the types of their values.

Every option also reads `RMQ_LAKE_<VERB>_<OPTION>` from the environment, and `--config FILE`; the command line wins over
the environment, the environment over the file. `--show-config` prints the result. A verb composes the groups it needs:

    @click.command()
    @store_options
    @config_option
    def command(place: StorePlace, …) -> ExitCode: …
"""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from jobs.command.places import OUTPUT_DIRECTORY, STORE, PathListType
from jobs.console.amounts import EXAMPLES, UNIT_SECONDS, GivenTime, parse_time
from jobs.query.mqadmin.java import check_charset
from jobs.store.store import log_directories, read_broker_conf
from rmq_formats.broker_conf import BrokerConf

if TYPE_CHECKING:
    from datetime import tzinfo

    from jobs.products.index.settings import Wanted
    from rmq_formats.release import Release

_Command = TypeVar("_Command", bound=Callable[..., object])
_Value = TypeVar("_Value")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d|w)?")


def option(
    names: str,
    metavar: str | None,
    text: str | None = None,
    kind: click.ParamType[Any] | type | None = None,
    **more: Any,  # noqa: ANN401 - those of click
) -> Callable[[_Command], _Command]:
    """Return an option with its help; *names* as in `-t --topic topics`, the last without dashes for the parameter."""
    return click.option(*names.split(), metavar=metavar, help=text, type=kind, **more)


def flag(names: str, text: str) -> Callable[[_Command], _Command]:
    """Return a switch with its help."""
    return click.option(*names.split(), is_flag=True, help=text)


def examples(*lines: str, exit_codes: str = "") -> str:
    """Return the epilog of a verb: command lines, and exit codes where it has its own."""
    text = "\n".join(["\b", "Examples:", *(f"  rmq-lake {line}" for line in lines)])
    return f"{text}\n\n\b\nExit codes: {exit_codes}\n" if exit_codes else text


def composed(*decorators: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return one decorator that applies all, the first on top as if they were written below each other."""

    def decorate(command: _Command) -> _Command:
        decorated: Any = command
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return cast("_Command", decorated)

    return decorate


def bundled(name: str, kind: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options, which the command gets as one value that *kind* makes, called *name*."""
    fields = tuple(signature(kind).parameters)

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def with_bundle(*arguments: object, **values: object) -> object:
            bundle = kind(**{field: values.pop(field) for field in fields if field in values})
            return command(*arguments, **{name: bundle}, **values)

        return composed(*options)(cast("_Command", with_bundle))

    return decorate


class ParsedType(click.ParamType[_Value]):
    """A value that a function makes of text; its ValueError says in words why a text is none."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """Return the value; a converted value is parsed from its own text."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def given_time(text: str) -> GivenTime:
    """Parse a time option; plain digits are milliseconds since 1970."""
    try:
        return GivenTime(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:60]!r} is no time (examples: {EXAMPLES})") from error


def log_place(text: str) -> int | GivenTime:
    """Parse a place in the log: a physical offset, which plain digits are, or the time of the first record there."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parse_time(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is neither an offset nor a time (examples: 1073741824, '2026-11-20 07:42', "
            "2026-11-20T07:42:00+08:00, 2h)"
        ) from error
    return GivenTime(text)


def seconds_of(text: str) -> float:
    """Return the seconds of `5s`, `2h`; plain digits are seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is no duration (examples: 500ms, 5s, 2h)")
    return float(found[1]) * UNIT_SECONDS[found[2] or "s"]


def milliseconds_of(text: str) -> int:
    """Return the milliseconds of `5s`, `2h`; plain digits are milliseconds."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else round(seconds_of(text) * 1000)


def seconds_until(text: str) -> float:
    """Return the seconds from now to a moment that is given as `+2h`, or as a time."""
    text = text.strip()
    if text.startswith("+"):
        return seconds_of(text[1:])
    if _DURATION.fullmatch(text):
        raise ValueError(f"{text} means {text} ago, as in every verb; write +{text} for {text} from now")
    try:
        return parse_time(text) / 1000 - time.time()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time (examples: +2h, '2026-11-20 07:42')") from error


def refuse_reversed(since: GivenTime | None, until: GivenTime | None, zone: "tzinfo | None" = None) -> None:
    """Refuse a window that ends before it begins: nothing can be in it."""
    if since is not None and until is not None and since.milliseconds(zone) > until.milliseconds(zone):
        reason = f"--until {until} is before --since {since}: the window ends before it begins"
        raise click.UsageError(reason)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"no time zone is named {name[:40]!r} (example: Asia/Shanghai)") from error


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        check(text)
        return text

    return checked


def _release(text: str) -> "Release":
    from jobs.store.release import given_release

    return given_release(text)


def _releases(text: str) -> object:
    """Judge a release, or several that wrote a store one after another; one that never was is refused."""
    from jobs.store.release import given_rules

    return given_rules(text)


TIME = ParsedType("time", given_time)
LOG_PLACE = ParsedType("offset or time", log_place)
DURATION = ParsedType("duration", seconds_of)
MILLISECONDS = ParsedType("duration", milliseconds_of)
UNTIL = ParsedType("duration or time", seconds_until)
ZONE = ParsedType("zone", _zone)
CHARSET = ParsedType("charset", _checked(check_charset))
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
POSITIVE = click.IntRange(min=1)
NOT_NEGATIVE = click.IntRange(min=0)
_RELEASE_HELP = "The broker's release, if it cannot be detected."

json_option = flag("--json as_json", "Print only JSON on standard output.")
quiet_option = flag("--quiet -q", "Print no progress and no summary.")
verbose_option = flag("--verbose", "Also list the evidence for the broker's release.")
releases_option = option("--release", "X.Y.Z", _RELEASE_HELP, ParsedType("release", _checked(_releases)))
one_release_option = option("--release", "X.Y.Z", _RELEASE_HELP, ParsedType("release", _release))
commitlog_option = option(
    "--commitlog", "PATH[,PATH…]", "Directories of the CommitLog, if not STORE/commitlog.", PathListType()
)
broker_conf_option = option(
    "--broker-conf", "FILE", "The broker's configuration file, for paths, file sizes and names.", FILE
)
report_option = option("--report", "DIR", "Write report.json and report.html into DIR.", OUTPUT_DIRECTORY)
label_option = option(
    "--broker", "NAME", "The broker's label in the lake, if STORE has no bytes in common with the lake."
)
max_rate_option = option(
    "--max-rate",
    "BYTES",
    "Limit for reading STORE, in bytes per second over all tasks; the bytes read are not kept in the page cache.",
    POSITIVE,
)
hash_slots_option = option("--hash-slots", "N", "maxHashSlotNum of the index files.", POSITIVE)
index_num_option = option("--index-num", "N", "maxIndexNum of the index files.", click.IntRange(min=2))


def since_option(names: str = "--since") -> Callable[[_Command], _Command]:
    """Return the option of the earliest time."""
    text = "Only messages stored at or after TIME: milliseconds, ISO 8601, or `2h` (ago)."
    return option(names, "TIME", text, TIME)


def until_option(names: str = "--until") -> Callable[[_Command], _Command]:
    """Return the option of the latest time."""
    return option(names, "TIME", "Only messages stored at or before TIME, in the same formats.", TIME)


def limit_option(what: str) -> Callable[[_Command], _Command]:
    """Return the option that says how many lines of *what* are printed."""
    return option("--limit", "N", f"How many {what}; --json prints all.", NOT_NEGATIVE, default=20, show_default=True)


store_argument = click.argument("store", metavar="STORE", type=STORE)


class StorePlace(NamedTuple):
    """The places of a store and of its log, as given on the command line."""

    store: str
    commitlog: tuple[str, ...] | None
    broker_conf: Path | None

    def conf(self) -> BrokerConf:
        """Read the broker's own configuration."""
        return read_broker_conf(self.broker_conf)

    def log_directories(self, conf: BrokerConf) -> tuple[str, ...]:
        """Return the log's directories; none where it lies below the store's root."""
        return tuple(log_directories(self.commitlog, conf))


store_options = bundled("place", StorePlace, store_argument, commitlog_option, broker_conf_option)


class StoreForm(NamedTuple):
    """Which sizes and which release's rules a store's files follow, and how fast to read them, as a user says."""

    hash_slots: int | None
    index_num: int | None
    consume_queue_size: int | None
    release: str | None
    time_zone: ZoneInfo | None
    max_rate: int | None = None

    def wanted(self, conf: BrokerConf) -> "Wanted":
        """Return the settings that the user gave; an option counts more than the broker's configuration."""
        from jobs.products.index.settings import Wanted

        size = self.consume_queue_size or conf.consume_queue_size
        conf = replace(conf, consume_queue_size=size)
        return Wanted(self.hash_slots, self.index_num, self.release, self.time_zone, conf)


def given_words(place: StorePlace, form: StoreForm) -> tuple[str, ...]:
    """Return the options that say where the store's log is and what its files are like, to be typed again."""
    commitlog = None if place.commitlog is None else ",".join(place.commitlog)
    values = {**place._asdict(), **form._asdict(), "commitlog": commitlog, "store": None, "max_rate": None}
    given = ((name.replace("_", "-"), value) for name, value in values.items() if value is not None)
    return tuple(word for name, value in given for word in (f"--{name}", str(value)))


_FORM = (
    hash_slots_option,
    index_num_option,
    option(
        "--consume-queue-size",
        "BYTES",
        "mappedFileSizeConsumeQueue: the size of one ConsumeQueue file.",
        click.IntRange(min=20),
    ),
    releases_option,
    option(
        "--time-zone", "ZONE", "The broker's time zone; index files are named after their local creation time.", ZONE
    ),
)
form_options = bundled("form", StoreForm, *_FORM)
read_options = bundled("form", StoreForm, max_rate_option, *_FORM)
