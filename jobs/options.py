"""
The options that verbs share, each declared once.

Every option also reads `RMQ_LAKE_<VERB>_<OPTION>` from the environment, and `--config FILE`; the command line wins over
the environment, the environment over the file. A verb composes what it needs:

    @click.command()
    @store_options
    @config_option
    def command(store: str, …) -> ExitCode: …
"""

import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from jobs.storage import refusal
from jobs.verbs import VERBS

_Command = TypeVar("_Command", bound=Callable[..., object])
_Decorator = Callable[[_Command], _Command]


def _composed(*decorators: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return one decorator that applies all, the first on top as if they were written below each other."""

    def decorate(command: _Command) -> _Command:
        decorated: Any = command
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        result: _Command = decorated
        return result

    return decorate


class ZoneType(click.ParamType[ZoneInfo]):
    """A time zone by its name in the zone database."""

    name = "zone"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        """Return the zone, or say that there is none of that name."""
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(str(value))
        except (ZoneInfoNotFoundError, ValueError):
            self.fail(f"no time zone is named {value!r} (example: Asia/Shanghai)", param, ctx)


class PathListType(click.ParamType[tuple[str, ...]]):
    """Paths or URIs, separated by commas as in a broker's own configuration."""

    name = "path[,path]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the paths in the order given."""
        if isinstance(value, tuple | list):
            return tuple(str(path) for path in value)
        paths = tuple(path.strip() for path in str(value).split(","))
        if not all(paths):
            self.fail(f"{value!r} holds an empty path", param, ctx)
        return paths


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, nothing else there.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress and no summary on standard error.")
report_option = click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write report.json and report.html into DIR.",
)


def known_location(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a URI that no part of the program can reach, before anything is started."""
    reason = refusal(value) if value else None
    if reason is not None:
        raise click.BadParameter(reason, ctx, parameter)
    return value


store_options = _composed(
    click.argument("store", metavar="STORE", callback=known_location),
    click.option(
        "--commitlog",
        type=PathListType(),
        metavar="PATH[,PATH…]",
        help="Where the CommitLog lies when it is not STORE/commitlog; several paths as in storePathCommitLog.",
    ),
    click.option(
        "--broker-conf",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The broker's own configuration: paths, file sizes and names are read from it.",
    ),
)

max_rate_option = click.option(
    "--max-rate",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Read at most so many bytes of STORE a second, all tasks together; nothing read is left in the page cache.",
)

geometry_options = _composed(
    click.option("--hash-slots", type=click.IntRange(min=1), metavar="N", help="maxHashSlotNum of the index files."),
    click.option("--index-num", type=click.IntRange(min=2), metavar="N", help="maxIndexNum of the index files."),
    click.option(
        "--consume-queue-size",
        type=click.IntRange(min=20),
        metavar="BYTES",
        help="mappedFileSizeConsumeQueue: the size of one ConsumeQueue file.",
    ),
    click.option("--release", metavar="X.Y.Z", help="The broker's release, where the store cannot tell it."),
    click.option(
        "--time-zone",
        type=ZoneType(),
        metavar="ZONE",
        help="The broker's zone: index files are named in its local time.",
    ),
)


def _read_config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the file's values the defaults of this command."""
    del parameter
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", ctx=ctx, param_hint="--config") from error
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", ctx=ctx, param_hint="--config") from error
    ctx.default_map = {**(ctx.default_map or {}), **_defaults(values, path, ctx)}


def _defaults(values: dict[str, Any], path: Path, ctx: click.Context) -> dict[str, Any]:
    """
    Return what a configuration file says about the command of *ctx*, by parameter name.

    Keys before the first table hold for every verb that has the option; a table [VERB] (or [query.by-key]) for one.
    """
    command = ctx.command_path.split()[1:]
    own: Any = values
    for name in command:
        own = own.get(name, {})
    known = {_key(parameter): parameter.name for parameter in ctx.command.params}
    for key in own:
        if key not in known and not isinstance(own[key], dict):
            raise _unknown_key(f"{'.'.join(command)}.{key}", known, path, ctx)
    shared = {key: value for key, value in values.items() if not isinstance(value, dict)}
    for key in shared:
        if key not in known and key not in _SHARED_KEYS:
            raise _unknown_key(key, {*known, *_SHARED_KEYS}, path, ctx)
    for key in values.keys() - shared.keys() - VERBS.keys():
        raise _unknown_key(f"[{key}]", VERBS, path, ctx)
    return {known[key]: value for key, value in {**shared, **own}.items() if key in known}


def _key(parameter: click.Parameter) -> str:
    """Return the name a user knows: `--hash-slots` is the key hash-slots, the argument STORE is store."""
    return max(parameter.opts, key=len).lstrip("-")


def _unknown_key(key: str, known: Any, path: Path, ctx: click.Context) -> click.BadParameter:  # noqa: ANN401  any names
    similar = get_close_matches(key.rpartition(".")[2].strip("[]"), known, n=1)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    return click.BadParameter(f"{path}: unknown key {key}{hint}", ctx=ctx, param_hint="--config")


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML with defaults: keys are option names, a table [VERB] holds for one verb.",
)


def _shared_keys() -> frozenset[str]:
    """Collect the keys that may stand before the first table, whichever verb reads the file."""

    @_composed(json_option, quiet_option, report_option, max_rate_option, store_options, geometry_options)
    def probe() -> None: ...

    parameters: list[click.Parameter] = probe.__click_params__  # type: ignore[attr-defined]  # set by click's decorators
    return frozenset(_key(parameter) for parameter in parameters) | {"lake", "broker"}


_SHARED_KEYS = _shared_keys()
