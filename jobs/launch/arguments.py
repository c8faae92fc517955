"""Splits a command line: options of spark-submit are before the name of the command, all others are ours."""

import os
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from jobs.console.log import is_secret
from jobs.storage.settings import file_system_settings

# Spark 4.2, SparkSubmitOptionParser. Those that only make sense where spark-submit runs a JAR are left out.
_VALUED = """
--archives --conf -c --deploy-mode --driver-class-path --driver-cores --driver-java-options
--driver-library-path --driver-memory --exclude-packages --executor-cores --executor-memory --files --jars
--keytab --master --name --num-executors --packages --principal --properties-file --proxy-user --py-files
--queue --repositories --total-executor-cores
"""
SPARK_OPTIONS_WITH_VALUE = frozenset(_VALUED.split())
_FLAGS = frozenset(("--load-spark-defaults", "--supervise", "--verbose", "-v"))
_OURS = frozenset(("--help", "-h", "--version", "--traceback", "--log-json"))


def split_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return Spark's options, normalized to (`--name`, value), and our own arguments, from the name of the command."""
    spark: list[str] = []
    own: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            return tuple(spark), (*own, argument, *remaining)
        if argument in _OURS:
            own.append(argument)
        elif argument in _FLAGS:
            spark.append(argument)
        elif name in SPARK_OPTIONS_WITH_VALUE:
            given = value if equals else next(remaining, None)
            if given is None:
                raise click.UsageError(f"{name} needs a value")
            spark += [name, given]
        else:
            from difflib import get_close_matches

            similar = get_close_matches(name, SPARK_OPTIONS_WITH_VALUE | _FLAGS | _OURS, n=1)
            hint = f" (did you mean {similar[0]}?)" if similar else ""
            raise click.UsageError(
                f"{name} is not a Spark option{hint}. Pass options of a command after its name: rmq-lake COMMAND {name}"
            )
    return tuple(spark), tuple(own)


def find_option_value(option: str, spark_options: Sequence[str]) -> str | None:
    """Return the value of *option* in normalized Spark options."""
    values = [value for name, value in pairwise(spark_options) if name == option]
    return values[-1] if values else None


def effective_spark_settings(spark_options: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--properties-file`, overridden by those of `--conf`, of which the last one wins."""
    properties = find_option_value("--properties-file", spark_options)
    parts = (value.partition("=") for name, value in pairwise(spark_options) if name in {"--conf", "-c"})
    given = {setting: value for setting, _, value in parts}
    return {**(parse_properties_file(Path(properties)) if properties is not None else {}), **given}


def given_spark_options() -> list[str]:
    """Return the Spark options of this command, which its command line or the user has put into the environment."""
    try:
        options, others = split_arguments(shlex.split(os.environ.get("RMQ_LAKE_SPARK_OPTIONS", "")))
    except (ValueError, click.UsageError) as error:
        raise click.UsageError(f"RMQ_LAKE_SPARK_OPTIONS: {error}") from error
    if others:
        raise click.UsageError(f"RMQ_LAKE_SPARK_OPTIONS: {others[0]} is not a Spark option")
    return list(options)


def file_system_options() -> dict[str, str]:
    """Return the file system settings (`fs.s3a.…`) in the command's Spark options, for commands without Spark."""
    return file_system_settings(effective_spark_settings(given_spark_options()).items())


def parse_properties_file(path: Path) -> dict[str, str]:
    """Parse a `--properties-file`: lines of name and value, separated by blanks or `=`."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    pairs = (re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}


def split_secrets(spark_options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split Spark's options into public ones and secrets: other users of the machine can see a process's arguments."""
    public: list[str] = []
    secret: dict[str, str] = {}
    words = iter(spark_options)
    for word in words:
        if word not in {"--conf", "-c"}:
            public.append(word)
            continue
        given = next(words)
        setting, _, value = given.partition("=")
        if is_secret(setting):
            secret[setting] = value
        else:
            public += [word, given]
    return public, secret
