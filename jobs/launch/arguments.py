"""Divide a command line: spark-submit's options stand before the verb, everything else is ours."""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import NamedTuple

import click

# Spark 4.2, SparkSubmitOptionParser. Those that only make sense where spark-submit runs a JAR are left out.
_WITH_VALUE = frozenset(
    (
        "--archives",
        "--conf",
        "-c",
        "--deploy-mode",
        "--driver-class-path",
        "--driver-cores",
        "--driver-java-options",
        "--driver-library-path",
        "--driver-memory",
        "--exclude-packages",
        "--executor-cores",
        "--executor-memory",
        "--files",
        "--jars",
        "--keytab",
        "--master",
        "--name",
        "--num-executors",
        "--packages",
        "--principal",
        "--properties-file",
        "--proxy-user",
        "--py-files",
        "--queue",
        "--repositories",
        "--total-executor-cores",
    )
)
_FLAGS = frozenset(("--load-spark-defaults", "--supervise", "--verbose", "-v"))
_OURS = frozenset(("--help", "-h", "--version", "--traceback"))


class CommandLine(NamedTuple):
    """A command line in its two parts."""

    spark_options: tuple[str, ...]
    own: tuple[str, ...]  # the verb and what follows it


def divide(arguments: Sequence[str]) -> CommandLine:
    """Return Spark's options, made uniform (`--name`, value), and the rest from the verb on."""
    spark: list[str] = []
    own: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            return CommandLine(tuple(spark), (*own, argument, *remaining))
        if argument in _OURS:
            own.append(argument)
        elif argument in _FLAGS:
            spark.append(argument)
        elif name in _WITH_VALUE:
            spark += [name, value if equals else _value(name, next(remaining, None))]
        else:
            raise click.UsageError(_unknown(name))
    return CommandLine(tuple(spark), tuple(own))


def value_of(option: str, spark_options: Sequence[str]) -> str | None:
    """Return the value that *option* has in uniform Spark options."""
    values = [value for name, value in pairwise(spark_options) if name == option]
    return values[-1] if values else None


def configured(key: str, spark_options: Sequence[str]) -> str | None:
    """Return the value that `--conf key=value` gives to *key*."""
    prefix = f"{key}="
    values = [
        v.removeprefix(prefix) for n, v in pairwise(spark_options) if n in {"--conf", "-c"} and v.startswith(prefix)
    ]
    return values[-1] if values else None


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise click.UsageError(f"{name} needs a value")
    return value


def _unknown(name: str) -> str:
    similar = get_close_matches(name, _WITH_VALUE | _FLAGS | _OURS, n=1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    return f"{name} is no option of Spark{hint}; a verb's own options stand after the verb"
