"""
Run every command, recipe and notebook cell of the documentation in the environment of users.

The development environment of other tests has additional packages: `export` once needed one of them and failed for all
users.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebook import recorded_outputs
from tests.support.commands import ROOT, Outcome
from tests.support.recipes import RECIPES, make_recipe_data
from tests.support.released import Released, environment_of_new_user, pip_cache, released, without_network
from tests.support.scenes import (
    OWN_PROGRAMS,
    ShownCommand,
    check_scene,
    commands,
    make_scene_directory,
    scene_name,
    scenes,
)

pytestmark = [pytest.mark.released, pytest.mark.timeout(3600)]  # for a busy machine: usually, minutes suffice

_IN_EVERY_RUN = ("README.md", "docs/install.md", "docs/quick-start.md", "docs/guides/engines.md")
_OF_READERS = ("duckdb", "polars", "pytz", "ipykernel")  # packages that docs/guides/engines.md and the notebook need


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return released(tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="session")
def reader(user: Released) -> Released:
    user.add(*_OF_READERS)
    return user


# The scenes of pages that together use every command; `make test-released` runs all, as do other tests in-process.
_SCENES = [
    pytest.param(one, id=scene_name(one), marks=[] if one[0].page in _IN_EVERY_RUN else [pytest.mark.campaign])
    for one in scenes()
]


@pytest.mark.parametrize("scene", _SCENES)
def test_every_command_of_a_page_runs_as_typed_by_a_user(
    scene: list[ShownCommand], user: Released, tmp_path: Path
) -> None:
    """Each runs in its own process, in the order of the page, with the exit code and output that the page shows."""

    def run_shown(command: ShownCommand, words: list[str]) -> Outcome:
        if words[0] in OWN_PROGRAMS:
            return user.run(words, tmp_path)
        if words[0] == "make":
            # `-n` checks only that the target exists; this test is one of them.
            return user.run(["make", "-n", *words[1:]], user.checkout)._replace(out="", err="")
        if words[:2] == ["python", "-m"]:
            # Benchmarks need the development environment and hours; here, the module must exist.
            program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({words[2]!r}) is None)"
            return user.run([user.python, "-c", program], user.checkout)
        return user.run(["bash", "-c", command.text], tmp_path)

    check_scene(scene, make_scene_directory(scene, tmp_path), run_shown)


def test_a_plain_spark_submit_runs_a_command_and_the_next_one_works_offline(user: Released, tmp_path: Path) -> None:
    """As called by Livy, EMR and schedulers. `inspect` is a module of Python and of the script's directory."""
    scene_directory = make_scene_directory(scenes()[0], tmp_path)

    def ingest(lake: str, *launcher: str | Path) -> Outcome:
        # With a JVM, which needs JARs that are not part of Spark.
        command: list[str | Path] = ["ingest", scene_directory.store, "--lake", tmp_path / lake]
        return user.run([*launcher, *command], tmp_path)

    own = ingest("first", "spark-submit", "--master", "local[2]", user.checkout / "jobs" / "main.py")

    assert 0 == own.code, own.err
    assert "65 messages" in own.out
    offline = ingest("second", *without_network(), user.checkout / "spark-submit.sh", "--master", "local[2]")

    assert 0 == offline.code, offline.err
    assert "(first run only)" not in offline.err
    for lake in ("first", "second"):
        assert (tmp_path / lake / "messages" / "_delta_log").is_dir()


@pytest.mark.campaign
def test_every_recipe_runs(reader: Released, tmp_path: Path) -> None:
    data = make_recipe_data(tmp_path)
    command: list[str | Path] = [reader.python, "-m", "tests.support.recipes", data]

    ended = reader.run(command, tmp_path, PYTHONPATH=str(reader.added))

    assert 0 == ended.code, ended.err
    found = json.loads(ended.out.splitlines()[-1])

    assert [] == [RECIPES[number].text for number, rows in enumerate(found) if not rows]


@pytest.mark.campaign
def test_the_notebook_runs_in_a_kernel(reader: Released, tmp_path: Path) -> None:
    """The kernel runs in the released environment, and only its client in the development environment."""
    command = [sys.executable, "-m", "tests.notebook", "--python", str(reader.python), "--work", str(tmp_path)]
    command += ["--path", str(reader.added)]
    client = reader.environment(PYTHONPATH=str(ROOT))

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=client, timeout=3000)

    assert 0 == done.returncode, done.stderr[-4000:]
    assert recorded_outputs() == json.loads(done.stdout.splitlines()[-1])


_OTHER_PYSPARK = "pyspark==4.2.1"


@pytest.mark.campaign
def test_the_first_change_of_contributing_works(tmp_path: Path) -> None:
    shown_there = [command for command in commands(ROOT / "CONTRIBUTING.md") if command.section == "Your first change"]
    clone = ["git", "clone", "--quiet", str(ROOT), str(tmp_path / "rocketmq-lake")]
    subprocess.run(clone, check=True)
    environment = environment_of_new_user(tmp_path / "home", PIP_CACHE_DIR=pip_cache())
    for command in shown_there[1:]:
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=tmp_path / "rocketmq-lake",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

        assert command.exit_code == done.returncode, f"{command.text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.campaign
def test_the_pipeline_runs_on_the_newest_spark_of_the_series(tmp_path: Path) -> None:
    """Ingest and rebuild on Spark 4.2.1 with Delta 4.4.0; `verify` then compares rows and bytes."""
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
