"""
The sources of settings: variables, and the keys of `--config FILE`, are derived from the options' names.

Variables and keys that match no option are errors, so that a typing error cannot go unnoticed.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import date
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from jobs.command_line import COMMAND_TABLE
from jobs.command_line.old_names import explain_old_name
from jobs.console.lines import line_width_limit, wrap_line
from jobs.console.log import log_message, mask_secrets, mask_settings
from jobs.console.process import end_without_reader
from jobs.console.result import ExitCode, OtherRunActiveError, RequestError
from jobs.launch.arguments import given_spark_options
from jobs.launch.engine import ENGINE_RULE
from jobs.options.declaration import (
    click_parameters,
    declarations_of,
    flag,
    make_arguments,
    option,
    options_of_function,
)
from jobs.options.places import check_places
from jobs.options.values import FILE, TIME_TYPES
from jobs.storage.local import read_small_file
from rmq_formats.properties import MAX_LONG, MIN_LONG

_CONFIG_FILE = f"{__name__}.file"  # key in click's context: the configuration file that was read
_MOST = 1 << 20  # bytes of a configuration file
_PREFIX = "RMQ_LAKE"
# Variables that belong to no command; spark-submit.sh and `jobs.launch` read some of them.
_GENERAL_VARIABLES = frozenset(
    (
        *("RMQ_LAKE_SPARK_OPTIONS", "RMQ_LAKE_CACHE", "RMQ_LAKE_PYTHON", "RMQ_LAKE_IVY_SETTINGS", "RMQ_LAKE_TRACEBACK"),
        *("RMQ_LAKE_LOG_JSON", "RMQ_LAKE_PROGRAM", "RMQ_LAKE_WORKER_MODULE"),
    )
)
# The variables that Kubernetes sets for a service: `…_SERVICE_HOST`, `…_SERVICE_PORT_HTTP`, `…_PORT_80_TCP_ADDR`.
_OF_SERVICE = r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
_OF_A_COMMAND = "lake"  # this key is not shared by all commands, because its meaning differs between them
# Keys that may be before the first table, although not every command has the option.
_SHARED = frozenset(
    (
        *("store", "commitlog", "broker-conf", "broker", "engine", "max-rate", "hash-slots", "index-num"),
        *("consume-queue-size", "release", "time-zone", "json", "quiet", "verbose"),
    )
)
ONE_SOURCE_NEEDED = "pass exactly one of --store STORE and --lake LAKE"


def _read_config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of the file the defaults of this command."""
    del parameter
    if path is None:
        return
    import tomllib

    ctx.meta[_CONFIG_FILE] = path
    try:
        values = tomllib.loads(read_small_file(path, _MOST).decode())
    except RecursionError as error:
        raise _bad_file("arrays or tables are nested too deeply", ctx) from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise _bad_file(f"not valid TOML: {error}", ctx) from error
    except OSError as error:
        raise _bad_file(str(error.strerror), ctx) from error
    ctx.default_map = {**(ctx.default_map or {}), **_defaults(values, ctx)}


def _defaults(values: dict[str, object], ctx: click.Context) -> dict[str, object]:
    """
    Return the values of a configuration file for the command of *ctx*, by parameter name.

    Keys before the first table apply to every command that has the option, except for `lake`. A table [COMMAND]
    applies to one command, or to all commands of query that have the option; a table [query.by-key] applies to one
    command. The narrower table wins.
    """
    known = {key: parameter for parameter in configurable_parameters(ctx.command) for key in parameter_keys(parameter)}
    if _OF_A_COMMAND in values:
        raise _bad_file(
            f"{_OF_A_COMMAND} cannot be set for all commands: set it in the table of one command, such as [ingest]", ctx
        )
    found: dict[str, object] = {}
    keys, inner, table, place = {*known, *_SHARED}, set(COMMAND_TABLE), values, ""
    levels = [level for level in (ctx.parent, ctx) if level is not None and level.parent is not None]
    for level in (*levels, None):
        own: dict[str, object] = {}
        for key, value in table.items():
            name, is_table = f"{place}.{key}".lstrip("."), isinstance(value, dict)
            if key in inner and not is_table:
                raise _bad_file(f"{name} must be a table, not {_describe_value(value)}", ctx)
            if key not in inner and (is_table or key not in keys):
                renamed = None if is_table else explain_old_name(key, keys)
                hint = f": {renamed}" if renamed else _suggest_name(key, keys | inner)
                raise _bad_file(f"unknown key {f'[{name}]' if is_table else name}{hint}", ctx)
            if key not in inner and key in known:
                option = str(known[key].name)
                if option in own:
                    raise _bad_file(
                        f"{' and '.join(parameter_keys(known[key]))} are names of the same option: set only one", ctx
                    )
                own[option] = _value(key, value, known[key], ctx)
        if _EXCLUSIVE & own.keys() and _list_exclusive_sources(ctx.command):
            found = {one: value for one, value in found.items() if one not in _EXCLUSIVE}
        found |= own
        if level is not None:
            table = cast("dict[str, object]", table.get(str(level.info_name), {}))
            place = ".".join(_command_names(level))
            keys = {
                key
                for _, below in leaf_commands(level.command, ())
                for one in configurable_parameters(below)
                for key in parameter_keys(one)
            }
            inner = set(level.command.commands) if isinstance(level.command, click.Group) else set()
    return found


def _value(key: str, value: object, parameter: click.Parameter, ctx: click.Context) -> object:
    """Return a value as the command line would pass it: a text for the option's type, or a boolean for a switch."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise _bad_file(f"{key} must be true or false, not {_describe_value(value)}", ctx)
        return value
    takes_many = parameter.multiple or parameter.nargs != 1
    if isinstance(value, list) and takes_many and all(isinstance(element, str | int | float) for element in value):
        return [str(element) for element in value]
    if isinstance(value, date) and parameter.type in TIME_TYPES:  # also a `datetime`
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _bad_file(
            f"{key} must be a single {parameter.type.name.removesuffix(' range')}, not {_describe_value(value)}", ctx
        )
    return [str(value)] if takes_many else str(value)


def _describe_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    names: dict[type, str] = {dict: "a table", list: "a list"}
    return names.get(type(value)) or f"{str(value)[:40]!r}"


def _bad_file(text: str, ctx: click.Context) -> click.BadParameter:
    return click.BadParameter(f"{ctx.meta[_CONFIG_FILE]}: {text}", ctx=ctx, param_hint="--config")


def _command_names(ctx: click.Context) -> list[str]:
    return ctx.command_path.removeprefix(ctx.find_root().command_path).split()


def parameter_key(parameter: click.Parameter) -> str:
    """Return the name of a parameter for users: hash-slots for `--hash-slots`, store for the argument STORE."""
    return max(parameter.opts, key=len).lstrip("-")


def parameter_keys(parameter: click.Parameter) -> list[str]:
    """Return every key that a file may use for a parameter, one for each of its long names: `--since`, `--begin`."""
    return [name.removeprefix("--") for name in parameter.opts if not name.startswith("-") or name.startswith("--")]


def _suggest_name(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    similar = get_close_matches(name, list(known), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def examples(*lines: str, exit_codes: str = "") -> str:
    """Return the epilog of a command: example command lines, and its own exit codes if it has any."""
    text = "\n".join(["\b", "Examples:", *(f"  rmq-lake {line}" for line in lines)])
    return f"{text}\n\nExit codes: {exit_codes}\n" if exit_codes else text


def declare_command(
    *lines: str,
    name: str | None = None,
    group: click.Group | None = None,
    exit_codes: str = "",
    is_configured: bool = True,
    ends_without_reader: bool = False,
    **more: Any,  # noqa: ANN401 - those of click
) -> Callable[[Callable[..., ExitCode]], click.Command]:
    """
    Return a decorator that turns a function into a command of *group*.

    Its options are the declarations among the defaults of its parameters (`jobs.options.declaration`).

    The help of the command ends with examples (*lines*), and with *exit_codes* if the command has its own. Each command
    also accepts `--config FILE` and `--show-config`, which prints all settings instead of running the command.
    `RequestError` becomes a usage error; if another run is active, the command ends with the exit code for this.
    With *ends_without_reader*, standard output is the command's only result.
    """

    def decorate(function: Callable[..., ExitCode]) -> click.Command:
        parts = options_of_function(function)

        @wraps(function)
        def run_command(*, show_config: bool = False, **parsed: object) -> ExitCode:
            """Check the *parsed* options and run the command; with *show_config*, print the settings instead."""
            ctx = click.get_current_context()
            if show_config:
                click.echo(mask_secrets(_effective(ctx, as_json=bool(ctx.params.get("as_json")))))
                return ExitCode.CLEAN
            for parameter in ctx.command.params:
                value = parsed.get(str(parameter.name))
                if isinstance(value, float) and not isfinite(value):
                    raise click.BadParameter(f"{value} is not a finite number", ctx, parameter)
                if isinstance(value, int | float) and not MIN_LONG <= value <= MAX_LONG:
                    raise click.BadParameter(f"{value} is outside the 64-bit range", ctx, parameter)
            _choose_source(ctx, parsed)
            check_places(ctx)
            try:
                with end_without_reader() if ends_without_reader else nullcontext():
                    return function(**make_arguments(parts, parsed))
            except RequestError as error:
                raise click.UsageError(str(error)) from error
            except OtherRunActiveError as error:
                log_message(f"rmq-lake: {ctx.params.get('store') or ctx.params['lake']}: {error}")
                return ExitCode.HELD

        params = click_parameters({**parts, **_CONFIG} if is_configured else parts)
        epilog = examples(*lines, exit_codes=exit_codes) if lines else None
        command: click.Command = click.command(name, click.Command, epilog=epilog, params=params, **more)(run_command)
        if group is not None:
            group.add_command(command)
        return command

    return decorate


_CONFIG = declarations_of(
    {
        "config": option(
            "FILE",
            "A TOML file with default values by option name; a table [COMMAND] applies only to that command.",
            FILE,
            is_shared=True,
            is_eager=True,
            expose_value=False,
            callback=_read_config,
        ),
        "show_config": flag(
            "Print the value and source of every option, as TOML for --config, and exit.", is_shared=True, is_eager=True
        ),
    }
)
# Of two settings that exclude each other, the one whose source is listed first here takes precedence.
_EXCLUSIVE = frozenset({"store", "lake"})
_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def _choose_source(ctx: click.Context, parsed: dict[str, object]) -> None:
    """Keep one of store and lake if both are set, as options or arguments: the one whose source takes precedence."""
    exclusive = _list_exclusive_sources(ctx.command)
    if not exclusive or any(parsed[str(one.name)] is None for one in exclusive):
        return
    sources = {str(one.name): ctx.get_parameter_source(str(one.name)) for one in exclusive}
    if sources["store"] is sources["lake"]:
        named = ", ".join(f"{one.name} {parsed[str(one.name)]} ({_describe_origin(one, ctx)})" for one in exclusive)
        store = "--store STORE" if isinstance(exclusive[0], click.Option) else "STORE"
        raise click.UsageError(f"pass exactly one of {store} and --lake LAKE; both are set: {named}")
    other = max(sources, key=lambda name: _SOURCES.index(sources[name]))
    parsed[other] = ctx.params[other] = None


def _list_exclusive_sources(command: click.Command) -> list[click.Parameter]:
    """Return the parameters for store and lake if a command reads either of them; empty if one is required."""
    sources = [one for name in ("store", "lake") for one in command.params if one.name == name]
    return sources if len(sources) == len(_EXCLUSIVE) and not any(one.required for one in sources) else []


def configurable_parameters(command: click.Command) -> list[click.Parameter]:
    """Return the parameters that a configuration file may set: all except hidden ones and those about the file."""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    return [parameter for parameter in shown if parameter.name not in {"config", "show_config", "help"}]


def bind_environment_variables(command: click.Command, *names: str) -> None:
    """
    Bind the parameters of a command to their variables; refuse unknown variables, except those of other commands.

    Variables that Kubernetes injects for a service are ignored, also where an option has the same name
    (`…_PORT=tcp://10.0.0.1:80`).
    """
    known: set[str] = set()
    for group, one in leaf_commands(command, names):
        for parameter in one.params:
            if parameter.name != "show_config":
                variables = (environment_variable_name(*group, key) for key in parameter_keys(parameter))
                parameter.envvar = [name for name in variables if not _is_of_service(name)]
                known.update(parameter.envvar)
    own, others = environment_variable_name(*names, ""), [environment_variable_name(name, "") for name in COMMAND_TABLE]
    given = {name for name in os.environ if name.startswith(f"{_PREFIX}_") and not _is_of_service(name)}
    for unknown in sorted(given - known - _GENERAL_VARIABLES):
        if unknown.startswith(own):
            renamed = explain_old_name(unknown, known)
            raise click.UsageError(renamed or f"{unknown}: no such option{_suggest_name(unknown, known)}")
        if not unknown.startswith(tuple(others)):
            option_name = unknown.split("_", 3)[-1]
            similar = {*known, *_GENERAL_VARIABLES, *(f"{prefix}{option_name}" for prefix in others)}
            raise click.UsageError(f"{unknown}: no such command or setting{_suggest_name(unknown, similar)}")


def _is_of_service(variable: str) -> bool:
    """Return whether Kubernetes, not the user, set a variable."""
    return re.search(_OF_SERVICE, variable) is not None or (
        variable.endswith("_PORT") and os.environ.get(variable, "").startswith(("tcp://", "udp://", "sctp://"))
    )


def environment_variable_name(*words: str) -> str:
    """Return the name of the environment variable for a key of a command: *words* are the names of both."""
    return "_".join((_PREFIX, *words)).upper().replace("-", "_")


def leaf_commands(
    click_command: click.Command, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command below *click_command* that can be run, with its names."""
    if isinstance(click_command, click.Group):
        for name, command in click_command.commands.items():
            yield from leaf_commands(command, (*names, name))
    else:
        yield names, click_command


def _effective(ctx: click.Context, *, as_json: bool) -> str:
    """Return every setting of a command with its source, in the format of a `--config` file or as JSON."""
    settings = {
        parameter_key(parameter): (
            _to_plain_value(ctx.params.get(str(parameter.name))),
            _describe_origin(parameter, ctx),
        )
        for parameter in configurable_parameters(ctx.command)
    }
    command = ".".join(_command_names(ctx))
    if as_json:
        shown = {key: {"value": value, "from": origin} for key, (value, origin) in settings.items()}
        rule = {"engine_rule": ENGINE_RULE} if "engine" in settings else {}
        return json.dumps({"command": command, **rule, "settings": shown}, indent=1, ensure_ascii=False)
    lines = [
        (f"{key} = {json.dumps(value, ensure_ascii=False)}", origin)
        if value not in (None, [])
        else (f"# {key}", "not set")
        for key, (value, origin) in settings.items()
    ]
    limit = line_width_limit(sys.stdout)
    origins = max(len(f"  # {origin}") for _, origin in lines)
    width = max((len(text) for text, _ in lines if limit is None or len(text) + origins <= limit), default=0)
    spark = shlex.join(mask_settings(given_spark_options()))
    head = [f"[{command}]", *([f"# Spark's options: {spark}"] if spark else [])]
    head += [f"# engine auto: {ENGINE_RULE}"] if "engine" in settings else []
    rows = (f"{text:{width}}  # {origin}" if len(text) <= width else f"# {origin}:\n{text}" for text, origin in lines)
    return "\n".join([*(piece for line in head for piece in wrap_line(line, limit)), *rows])


def _to_plain_value(value: object) -> object:
    if type(value) in (tuple, list):  # except named tuples, which have their own text
        return [_to_plain_value(element) for element in cast("Iterable[object]", value)]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _describe_origin(parameter: click.Parameter, ctx: click.Context) -> str:
    source = ctx.get_parameter_source(str(parameter.name))
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    if source is ParameterSource.ENVIRONMENT:
        return next(name for name in parameter.envvar or () if os.environ.get(name))
    return str(ctx.meta[_CONFIG_FILE]) if source is ParameterSource.DEFAULT_MAP else "default"
