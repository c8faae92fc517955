"""Document the command line: `python -m tests.support.reference > docs/reference.md`."""

import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc

import click

from jobs.command import VERBS, Verb
from jobs.command.cli import rmq_lake
from jobs.command.configuration import configurable_parameters
from jobs.console.amounts import size_text
from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.launch.cache import CONF_DIRECTORY
from jobs.launch.engine import VERBS_WITH_ENGINE, one_process_limit
from jobs.report import REPORT_VERSION, Bars, Facts, Grid, Remedy, Report, Timeline
from jobs.report.metrics import INGEST_PREFIX, TYPE_PREFIX, metric_values, type_metric_values

_MEANINGS = {
    ExitCode.CLEAN: "done",
    ExitCode.FAILED: "failed; one line states the cause, with file and offset",
    ExitCode.USAGE: "usage or configuration error, or the command refused to make a change; the message says why",
    ExitCode.DAMAGE: "done; damage, a gap, changed rows or too many dead letters were found",
    ExitCode.MISMATCH: "queues or index files contradict the log, or a store and a lake have different records at the "
    "same offset",
    ExitCode.NOT_FOUND: "nothing was found; the output says why",
    ExitCode.HELD: "another run is active on this store",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM, SIGHUP); one line says how to continue. Exceptions: `browse` "
    "ends with 0; `ingest --follow` with 0, or with 1 if its last step failed",
}
_ARGUMENTS = {
    "STORE": "The store",
    "LAKE": "The lake",
    "STORE|LAKE": "The store or lake",
    "[DIR]": "The directory for all files",
    "FILE…": "The files to decode",
    "ID": "The message id",
    "[ID]": "The message id",
    "[STATEMENT]": "The SQL statement",
    "COMMAND [OPTIONS]…": "The mqadmin command line",
}
VARIABLES = {
    "RMQ_LAKE_<COMMAND>_<OPTION>": "any option of a command",
    "RMQ_LAKE_SPARK_OPTIONS": "Spark options, for environments where they cannot be passed before the command name",
    "RMQ_LAKE_CACHE": "the cache directory for JARs, compiled code, and the state that lets `ingest` "
    "detect quickly that a store has no new messages (default `~/.cache/rocketmq-lake`)",
    "RMQ_LAKE_PYTHON": "the Python interpreter that creates `.venv` (default: the first of Python 3.11 to 3.14 that is "
    "found on `PATH`, then in the usual directories)",
    "RMQ_LAKE_IVY_SETTINGS": "path of an Ivy settings file, for example to download JARs from a mirror. For Python "
    "packages, configure `pip`",
    "RMQ_LAKE_TRACEBACK": "`1`: print the Python traceback of an error, as with `--traceback`",
    "RMQ_LAKE_LOG_JSON": "`1`: every line on standard error is a JSON object, as with `--log-json`",
    "RMQ_LAKE_PROGRAM": "the name of this command in messages, for wrapper scripts (default: as typed)",
    "JAVA_HOME": "the Java installation to use; it takes precedence over `PATH`",
    "SPARK_LOCAL_IP": "the address on which the Spark driver listens (default of a local run: `127.0.0.1`)",
    "SPARK_SUBMIT_OPTS": "additional JVM flags",
    "NO_COLOR": "set to any value: no colours in a terminal",
}

_HEAD = """\
# Reference

This page lists all commands, options, variables, exit codes and metrics.

`STORE` is the path or URI of a broker's store directory, `LAKE` that of a lake.

The command is `rmq-lake [SPARK OPTIONS] COMMAND …`; in a checkout `./spark-submit.sh` starts the same program. Spark's
options (`--master`, `--conf K=V`, `--driver-memory`, …) are passed to spark-submit; the default master is `local[*,4]`.
Data goes to standard output, everything else to standard error. A command continues if standard output is closed early
(`verify STORE | head -3`), so that its exit code still covers the whole store.

Every command except `demo` and `query decode-id` also accepts `--config FILE`, a TOML file with option defaults
(see [Configuration file](#configuration-file)), and `--show-config`, which prints the value and source
of each option instead of running the command. Unknown keys in a configuration file and unknown environment variables
that begin with `RMQ_LAKE_<COMMAND>_` are errors.
"""

_LOG = """\
## Log lines

With `--log-json` every line on standard error is one object: `time` (ISO 8601, UTC), `level` (`info`, `warning` or
`error`), `verb`, `message`. Progress lines also have `done`, `total`, `unit`, `messages` and `seconds`; lines from the
JVM also have `source`. The last line (message `ended`) also has `exit_code` and `seconds`.
"""

_METRICS = """\
`ingest --metrics FILE` writes the following metrics as a Prometheus text file, with the labels `broker` and `store`.
With `--follow`, the duration and the counts of messages, gaps, damage and differences are totals since the process
started; other values are those of the last step.
"""

_DOCUMENT = f"""\
## Report

`--report DIR` writes `report.html` and `report.json`, which have the same content. The version of the JSON format is
{REPORT_VERSION}. It is incremented when a field changes its meaning or is removed, but not when one is added. `parts`
contains Facts, Grid, Bars and Timeline objects; `kind` names the type of each.

The `--json` output of each command has a JSON Schema, `docs/schemas/COMMAND.json`, with a description of every key, and
a version at the end of its `$id`. In `report.json`, `made` is the time at which the report was written, and `words` is
the description of a recommended action.
"""


_ENGINES = """\
The limits refer to the size of the log, or of the lake files that the command reads. Up to its limit, the command runs
in its own process, which is faster than starting Spark and needs no Java. Above it, the command runs on Spark if
Spark is installed. With a Spark option, the command runs on Spark unless the table says "never". `--engine here` and
`--engine spark` override these rules. `--show-config` prints the limit for this machine.
A store or a lake on another machine is assumed to be read at 64 MiB per second or less, so its limit may be lower;
`ingest` uses Spark, if installed, whenever either of them is remote.
"""


def _jvm(verb: Verb, cores: int) -> str:
    """Return above which size a command starts a JVM, on a machine with a number of cores."""
    if verb.name in VERBS_WITH_ENGINE:
        return f"above {size_text(one_process_limit(verb.name, cores=cores))}"
    return "always" if verb.uses_spark else "never"


def _table(*rows: tuple[str, ...]) -> str:
    head, *others = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others]) + "\n"


def _command(command: click.Command, names: tuple[str, ...], parent: click.Context) -> Iterator[str]:
    ctx = click.Context(command, info_name=names[-1], parent=parent)
    yield f"## {' '.join(names)}\n"
    yield f"`{command.get_usage(ctx).removeprefix('Usage: ')}`\n"
    intro = f"{cleandoc(command.help or '')}\n\n{command.epilog or ''}".replace("\b\n", "")
    text, _, more = intro.partition("Examples:\n")
    yield f"{text.strip()}\n"
    if more:
        examples, _, below = more.partition("\n\n")
        yield "\n".join(["```sh", *map(str.strip, examples.strip().splitlines()), "```\n"])
        if below.strip():
            yield f"{below.strip()}\n"
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            yield from _command(verb, (*names, name), ctx)
    else:
        rows = [_row(parameter, ctx) for parameter in configurable_parameters(command)]
        yield _table(("option", "meaning", "default"), *rows)


def _row(parameter: click.Parameter, ctx: click.Context) -> tuple[str, ...]:
    if not isinstance(parameter, click.Option):
        metavar = parameter.make_metavar(ctx)
        return (f"`{metavar}`", _ARGUMENTS[metavar], "required" if parameter.required else "optional")
    metavar = "" if parameter.is_flag else f" {parameter.make_metavar(ctx)}"
    given = parameter.get_default(ctx, call=False)
    default = str(given) if isinstance(given, str | int) and not parameter.is_flag else ""
    form = f"`{', '.join(parameter.opts)}{metavar}`"
    return (form, (parameter.help or "").rstrip("."), "required" if parameter.required else default)


_NAMES = """\
Each option can be set in a configuration file or an environment variable. The key is the option's long name without
`--`, or the argument's name in lower case. The variable is `RMQ_LAKE_`, the command and the key in upper case with
underscores: `--max-rate` of `ingest` is `max-rate` and `RMQ_LAKE_INGEST_MAX_RATE`. The command line takes precedence
over the environment, and the environment over the file.
"""


def page() -> str:
    return "\n".join([_HEAD, *_sections()]).rstrip() + "\n"


def _sections() -> Iterator[str]:
    yield "## Commands\n"
    rows = [(f"`{verb.name}`", verb.help, _jvm(verb, 2), _jvm(verb, 8)) for verb in VERBS.values()]
    yield _table(("command", "purpose", "on Spark (2 cores)", "on Spark (8 cores)"), *rows)
    yield _ENGINES
    yield "Options before the command name:\n"
    ours = [option for option in rmq_lake.params if isinstance(option, click.Option)]
    yield _table(("option", "meaning"), *((f"`{option.opts[0]}`", option.help or "") for option in ours))
    root = click.Context(rmq_lake, info_name="rmq-lake")
    for name, verb in VERBS.items():
        yield from _command(verb.load(), (name,), root)
    yield "## Exit codes\n"
    yield _table(("code", "meaning"), *((str(int(code)), meaning) for code, meaning in _MEANINGS.items()))
    yield "If several apply, 1 takes precedence over 4, 4 over 3, and 3 over 0.\n"
    yield "## Environment\n"
    yield _table(("variable", "sets"), *((f"`{name}`", meaning) for name, meaning in VARIABLES.items()))
    text = (CONF_DIRECTORY / "job.toml").read_text(encoding="utf-8")
    yield f"## Configuration file\n\n{_NAMES}\n`conf/job.toml` is a template:\n\n```toml\n{text}```\n"
    yield _LOG
    yield "## Metrics\n"
    yield _METRICS
    metrics = metric_values(Summary("", "", "")).items()
    yield _table(
        ("gauge", "meaning"), *((f"`{INGEST_PREFIX}_{name}`", text.rstrip(".")) for name, (_, text) in metrics)
    )
    yield "`type --metrics FILE` writes the following metrics; those counted per topic have the label `topic`.\n"
    of_type = type_metric_values([], ExitCode.CLEAN).items()
    yield _table(("gauge", "meaning"), *((f"`{TYPE_PREFIX}_{name}`", text.rstrip(".")) for name, (text, _) in of_type))
    yield _DOCUMENT
    yield from map(_describe_class, (Report, Remedy, Facts, Grid, Bars, Timeline))


def _describe_class(kind: type[Report | Remedy | Facts | Grid | Bars | Timeline]) -> str:
    described = re.sub(r"\s+", " ", kind.__doc__ or "")
    rows = [(f"`{field.name}`", f"`{_type(field.type)}`") for field in fields(kind)]
    return f"**{kind.__name__}**: {described}\n\n" + _table(("name", "type"), *rows)


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if not isinstance(annotation, type):
        text = str(annotation)
    return re.sub(r"\b(?:[a-z]+\.)+", "", text)


if __name__ == "__main__":
    click.echo(page(), nl=False)
