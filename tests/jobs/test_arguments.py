"""How a command line is divided: Spark's options, then the verb."""

import click
import pytest

from jobs.launch.arguments import configured, divide, value_of


def test_sparks_options_stand_before_the_verb() -> None:
    """What follows the verb is the verb's, even where Spark has an option of that name."""
    line = divide(["--master", "local[2]", "--conf=a=b", "--verbose", "ingest", "--name", "x", "--conf", "y"])

    assert ("--master", "local[2]", "--conf", "a=b", "--verbose") == line.spark_options
    assert ("ingest", "--name", "x", "--conf", "y") == line.own


def test_our_own_options_may_stand_among_sparks() -> None:
    """`--traceback` belongs to the whole command line."""
    line = divide(["--traceback", "--master", "local", "dump", "file"])

    assert (("--master", "local"), ("--traceback", "dump", "file")) == line


@pytest.mark.parametrize("arguments", [["--master"], ["--mastr", "local", "ingest"], ["--json", "inspect"]])
def test_what_is_neither_is_a_usage_error(arguments: list[str]) -> None:
    """A typo must not make the verb a value."""
    with pytest.raises(click.UsageError):
        divide(arguments)


def test_the_last_of_repeated_options_counts() -> None:
    """As in spark-submit."""
    options = ("--master", "local", "--conf", "k=1", "--master", "yarn", "--conf", "k=2")

    assert ("yarn", "2", None) == (value_of("--master", options), configured("k", options), configured("x", options))
