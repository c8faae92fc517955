"""How a command line is divided: Spark's options, then the verb."""

import click
import pytest

from jobs.launch.arguments import configured, divide, value_of


@pytest.mark.parametrize(
    ("line", "spark", "own"),
    [
        (
            "--master local[2] --conf=a=b --verbose ingest --name x --conf y",
            "--master local[2] --conf a=b --verbose",
            "ingest --name x --conf y",
        ),
        ("--traceback --master local dump file", "--master local", "--traceback dump file"),
        ("--log-json --master=local", "--master local", "--log-json"),
    ],
)
def test_sparks_options_stand_before_the_verb_and_ours_among_them(line: str, spark: str, own: str) -> None:
    assert (tuple(spark.split()), tuple(own.split())) == divide(line.split())


@pytest.mark.parametrize("arguments", [["--master"], ["--mastr", "local", "ingest"], ["--json", "inspect"]])
def test_what_is_neither_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        divide(arguments)


def test_the_last_of_repeated_options_counts() -> None:
    options = ("--master", "local", "--conf", "k=1", "--master", "yarn", "--conf", "k=2")

    assert ("yarn", "2", None) == (value_of("--master", options), configured("k", options), configured("x", options))
