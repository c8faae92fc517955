"""How a command line is divided: Spark's options, then the verb."""

from pathlib import Path

import click
import pytest

from jobs.launch.arguments import configured, divide, names_s3, value_of


@pytest.mark.parametrize(
    ("line", "spark", "own"),
    [
        (
            "--master local[2] --conf=a=b --verbose ingest --name x --conf y",
            "--master local[2] --conf a=b --verbose",
            "ingest --name x --conf y",
        ),
        ("--traceback --master local dump file", "--master local", "--traceback dump file"),
        ("--pack-environment file --master=local", "--master local", "--pack-environment file"),
    ],
)
def test_sparks_options_stand_before_the_verb_and_ours_among_them(line: str, spark: str, own: str) -> None:
    assert (tuple(spark.split()), tuple(own.split())) == divide(line.split())


@pytest.mark.parametrize(
    "arguments", [["--pack-environment"], ["--master"], ["--mastr", "local", "ingest"], ["--json", "inspect"]]
)
def test_what_is_neither_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        divide(arguments)


def test_the_last_of_repeated_options_counts() -> None:
    options = ("--master", "local", "--conf", "k=1", "--master", "yarn", "--conf", "k=2")

    assert ("yarn", "2", None) == (value_of("--master", options), configured("k", options), configured("x", options))


def test_a_location_on_s3_is_seen_wherever_it_is_named(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text('lake = "s3a://bucket/lake"')

    assert names_s3(divide(["ingest", "store", "--lake", "s3a://bucket/lake"]), {})
    assert names_s3(divide(["ingest", "store"]), {"RMQ_LAKE_INGEST_LAKE": "s3a://bucket/lake"})
    assert names_s3(divide(["ingest", "--config", str(config)]), {})
    assert names_s3(divide(["ingest", f"--config={config}"]), {})
    assert not names_s3(divide(["ingest", "store", "--lake", "/lake", "--config", "gone.toml"]), {"HOME": "s3a://x"})
