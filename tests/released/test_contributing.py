"""CONTRIBUTING's first change, word by word, by somebody with an empty home; and the other Spark that we promise."""

import subprocess
from pathlib import Path

import pytest

from tests.documentation import commands
from tests.support.released import ROOT, environment_of_a_stranger, pip_cache, released

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]

_OTHER_PYSPARK = "pyspark==4.2.1"


def test_the_first_change_goes_as_contributing_says(tmp_path: Path) -> None:
    shown_there = [shown for shown in commands(ROOT / "CONTRIBUTING.md") if shown.section == "Your first change"]
    clone = ["git", "clone", "--quiet", str(ROOT), str(tmp_path / "rocketmq-lake")]
    subprocess.run(clone, check=True)
    environment = environment_of_a_stranger(tmp_path / "home", PIP_CACHE_DIR=pip_cache())
    for shown in shown_there[1:]:
        done = subprocess.run(
            ["bash", "-c", shown.text],
            cwd=tmp_path / "rocketmq-lake",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.exit_code == done.returncode, f"{shown.text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_the_pipeline_runs_on_the_newest_spark_of_the_series(tmp_path: Path) -> None:
    """Ingest and rebuild on Spark 4.2.1 with Delta 4.4.0; rows and bytes are compared by the verify that follows."""
    user = released(tmp_path)
    added = user.run(
        [user.python, "-m", "pip", "install", "--quiet", "--no-deps", _OTHER_PYSPARK],
        user.home,
        PIP_CACHE_DIR=pip_cache(),
    )
    assert 0 == added.code, added.err
    demo = user.run(["./spark-submit.sh", "demo", tmp_path / "tour"], user.checkout)
    assert 0 == demo.code, demo.err
    verified = user.run(
        ["./spark-submit.sh", "verify", tmp_path / "tour" / "store", "--engine", "spark"], user.checkout
    )
    assert 0 == verified.code, verified.err
