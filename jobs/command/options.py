"""
The options that verbs share, each declared once.

Every option also reads `RMQ_LAKE_<VERB>_<OPTION>` from the environment, and `--config FILE`; the command line wins over
the environment, the environment over the file. `--show-config` prints the result. A verb composes the groups it needs:

    @click.command()
    @store_options
    @config_option
    def command(place: StorePlace, …) -> ExitCode: …
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from jobs.command.places import OUTPUT_DIRECTORY, STORE, PathListType
from jobs.query.mqadmin.java import check_charset
from jobs.store.store import log_directories, read_broker_conf
from rmq_formats.broker_conf import BrokerConf

if TYPE_CHECKING:
    from jobs.products.index.settings import Wanted

_Command = TypeVar("_Command", bound=Callable[..., object])
_Value = TypeVar("_Value")
_SHOWN = 20


def composed(*decorators: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return one decorator that applies all, the first on top as if they were written below each other."""

    def decorate(command: _Command) -> _Command:
        decorated: Any = command
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return cast("_Command", decorated)

    return decorate


def bundled(name: str, kind: type[Any], *options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options, which the command gets as one value of *kind*, called *name*."""
    fields = tuple(kind.__annotations__)

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


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"no time zone is named {name[:40]!r} (example: Asia/Shanghai)") from error


def _charset(name: str) -> str:
    check_charset(name)
    return name


def _release(text: str) -> str:
    from jobs.store.release import given_release

    given_release(text)
    return text


def _releases(text: str) -> str:
    """Return a release, or several that wrote a store one after another; one that never was is refused."""
    from jobs.store.release import given_rules

    given_rules(text)
    return text


ZONE = ParsedType("zone", _zone)
CHARSET = ParsedType("charset", _charset)
_RELEASE_HELP = "The broker's release, if it cannot be detected."

json_option = click.option("--json", "as_json", is_flag=True, help="Print only JSON on standard output.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print no progress and no summary.")
verbose_option = click.option("--verbose", is_flag=True, help="Also list the evidence for the broker's release.")
releases_option = click.option("--release", type=ParsedType("release", _releases), metavar="X.Y.Z", help=_RELEASE_HELP)
one_release_option = click.option(
    "--release", type=ParsedType("release", _release), metavar="X.Y.Z", help=_RELEASE_HELP
)
commitlog_option = click.option(
    "--commitlog",
    type=PathListType(),
    metavar="PATH[,PATH…]",
    help="Directories of the CommitLog, if not STORE/commitlog.",
)
broker_conf_option = click.option(
    "--broker-conf",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The broker's configuration file, for paths, file sizes and names.",
)

report_option = click.option(
    "--report",
    type=OUTPUT_DIRECTORY,
    metavar="DIR",
    help="Write report.json and report.html into DIR.",
)


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


store_options = bundled(
    "place",
    StorePlace,
    click.argument("store", metavar="STORE", type=STORE),
    commitlog_option,
    broker_conf_option,
)


def limit_option(what: str) -> Callable[[_Command], _Command]:
    """Return the option that says how many lines of *what* are printed."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=_SHOWN,
        show_default=True,
        metavar="N",
        help=f"How many {what}; --json prints all.",
    )


label_option = click.option(
    "--broker", metavar="NAME", help="The broker's label in the lake, if STORE has no bytes in common with the lake."
)
max_rate_option = click.option(
    "--max-rate",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Limit for reading STORE, in bytes per second over all tasks; the bytes read are not kept in the page cache.",
)


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
    values = {
        "commitlog": None if place.commitlog is None else ",".join(place.commitlog),
        "broker-conf": place.broker_conf,
        "hash-slots": form.hash_slots,
        "index-num": form.index_num,
        "consume-queue-size": form.consume_queue_size,
        "release": form.release,
        "time-zone": form.time_zone,
    }
    return tuple(word for name, value in values.items() if value is not None for word in (f"--{name}", str(value)))


hash_slots_option = click.option(
    "--hash-slots", type=click.IntRange(min=1), metavar="N", help="maxHashSlotNum of the index files."
)
index_num_option = click.option(
    "--index-num", type=click.IntRange(min=2), metavar="N", help="maxIndexNum of the index files."
)
_FORM = (
    hash_slots_option,
    index_num_option,
    click.option(
        "--consume-queue-size",
        type=click.IntRange(min=20),
        metavar="BYTES",
        help="mappedFileSizeConsumeQueue: the size of one ConsumeQueue file.",
    ),
    releases_option,
    click.option(
        "--time-zone",
        type=ZONE,
        metavar="ZONE",
        help="The broker's time zone, because names of index files are local times.",
    ),
)
form_options = bundled("form", StoreForm, *_FORM)
read_options = bundled("form", StoreForm, max_rate_option, *_FORM)
