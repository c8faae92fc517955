"""The installed packages are the locked ones, the container image works, and every benchmark runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from subprocess import run

import pytest

from benchmarks.__main__ import BENCHMARKS, command_line
from tests.golden import unpack
from tests.sampling import mark_campaign_except
from tests.support.commands import ROOT
from tests.support.released import copy_jars, environment_of_new_user, pip_cache, without_network

_ENTRY = re.compile(
    r"^([\w.-]+)==(\S+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def locked(name: str) -> dict[str, set[str]]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for package, version, _, _ in _ENTRY.findall(text):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locked_packages_have_one_version_and_hashes(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    named = {line.partition("==")[0] for line in lines if re.match(r"^[\w.-]+\S*==", line)}

    assert named == set(locked(name))
    assert named


def test_developers_have_the_same_versions_as_users() -> None:
    developers = locked("requirements-dev.lock")

    assert {
        name: versions for name, versions in locked("requirements.lock").items() if developers.get(name) != versions
    } == {}


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for lock, requirements in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("requirements.lock", project["project"]["optional-dependencies"]["spark"]),
        ("requirements-dev.lock", project["dependency-groups"]["dev"]),
    ):
        versions = locked(lock)
        for requirement in requirements:
            name, exact = re.fullmatch(r"([\w-]+)(?:==([\d.]+)|[<>].*)?", requirement).groups()  # type: ignore[union-attr]

            assert name in versions, requirement
            assert exact is None or versions[name] == {exact}


def test_recipes_import_only_packages_that_users_have() -> None:
    """A test module once imported a development package, so recipes failed in the released environment."""
    ours = {*locked("requirements.lock"), "rocketmq-lake"}
    installed = packages_distributions()
    known = {module for module, names in installed.items() if ours & {name.lower().replace("_", "-") for name in names}}
    foreign = sorted({*installed} - known - {"pandas"})  # pyarrow reads the version of any module of this name
    program = f"import sys; sys.modules.update(dict.fromkeys({foreign})); import tests.support.recipes"

    done = run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert {"pytest", "hypothesis", "duckdb_extension_delta"} <= {*foreign}
    assert "" == done.stderr


_HOME = "/opt/rocketmq-lake"  # in the image


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = filter(None, text.replace("\\\n", " ").splitlines())
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


@pytest.mark.released
@pytest.mark.campaign  # creating its environment takes minutes; `make test-released` also runs it
@pytest.mark.timeout(1800)
def test_the_container_image_runs_without_a_network(tmp_path: Path) -> None:
    offline = without_network()
    image = tmp_path / "image"
    store = unpack("b533-base", tmp_path)
    image.mkdir()
    environment = dict(environment_of_new_user(tmp_path / "home", PIP_CACHE_DIR=pip_cache()))
    copy_jars(image / "cache" / "jars")
    start: dict[str, list[str]] = {}
    for name, value in instructions():
        here = value.replace(_HOME, str(image))
        if name == "ENV":
            variable, _, setting = here.partition("=")
            environment[variable] = setting
        elif name == "COPY":
            *sources, _ = [word for word in value.split() if not word.startswith("--")]
            for source in sources:
                _copy(ROOT / source, image / source)
        elif name == "RUN" and value.startswith("["):
            subprocess.run(json.loads(here), cwd=image, env=environment, check=True, timeout=900)
        elif name in {"ENTRYPOINT", "CMD"}:
            start[name] = json.loads(here)

    def container(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [*offline, *start["ENTRYPOINT"], *(arguments or start["CMD"])]
        return subprocess.run(command, cwd=image, env=environment, capture_output=True, text=True, check=False)

    helped = container()
    ingested = container("ingest", store, "--lake", tmp_path / "lake")

    assert 0 == helped.returncode, helped.stderr
    assert "ingest" in helped.stdout
    assert 0 == ingested.returncode, ingested.stderr
    assert (tmp_path / "lake" / "messages" / "_delta_log").is_dir()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_campaign_except(BENCHMARKS, "ingest", "verify", "query-lake"))
def test_every_benchmark_runs_and_states_its_environment(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run(command_line(name, "tiny"), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert {"machine", "command", "commit"} < json.loads(done.stdout).keys()
