"""
The container image: what its Dockerfile says, checked by a linter, by what the repository has, and by doing it.

No builder is needed: the instructions are carried out here, in a new directory, by a stranger.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from jobs.launch.java import OLDEST
from tests.documentation import ROOT
from tests.golden import unpack
from tests.support.released import environment_of_a_stranger, fill_cache, pip_cache, without_network

_HOME = "/opt/rocketmq-lake"  # in the image


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, lines that go on put together."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = filter(None, text.replace("\\\n", " ").splitlines())
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def test_the_image_is_made_of_what_the_repository_has() -> None:
    found = instructions()
    allowed = {"FROM", "RUN", "USER", "WORKDIR", "ENV", "COPY", "ENTRYPOINT", "CMD"}
    wanted = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())

    assert {name for name, _ in found} <= allowed
    (base,) = [value for name, value in found if name == "FROM"]
    python = re.fullmatch(r"python:(3\.\d+)-slim-\w+", base)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert python
    assert f"Programming Language :: Python :: {python[1]}" in declared["classifiers"]
    assert ["10001"] == [value for name, value in found if name == "USER"]
    for value in (value for name, value in found if name == "COPY"):
        *sources, _ = [word for word in value.split() if not word.startswith("--")]
        assert [source for source in sources if (ROOT / source).exists()] == sources
        assert {f"!{source.rstrip('/')}" for source in sources} <= wanted
    (packages,) = [value for name, value in found if name == "RUN" and "apt-get" in value]
    assert re.findall(r"openjdk-(\d+)-jre-headless", packages) == [str(OLDEST)]
    assert "--no-install-recommends" in packages
    assert "rm -rf /var/lib/apt/lists/*" in packages


def test_what_the_image_runs_while_it_is_made_runs_here() -> None:
    commands = [json.loads(value) for name, value in instructions() if name == "RUN" and value.startswith("[")]
    (fetch,) = [command for command in commands if "-c" in command]

    compile_once = [".venv/bin/python", "-m", "rmq_formats.warm_up"]
    assert [["./spark-submit.sh", "--version"], fetch, compile_once] == commands
    program = fetch[-1].replace("'delta', 's3'", "'delta',")
    assert 0 == subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode


@pytest.mark.released
@pytest.mark.campaign  # an environment of its own, and its first compilation: minutes; `make test-released` has it
@pytest.mark.timeout(1800)
def test_what_the_instructions_make_runs_without_a_network(tmp_path: Path) -> None:
    offline = without_network()
    image, store = tmp_path / "image", unpack("b533-base", tmp_path)
    image.mkdir()
    environment = dict(environment_of_a_stranger(tmp_path / "home", PIP_CACHE_DIR=pip_cache()))
    fill_cache(image / "cache" / "jars")
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

    helped, ingested = container(), container("ingest", store, "--lake", tmp_path / "lake")

    assert 0 == helped.returncode, helped.stderr
    assert "ingest" in helped.stdout
    assert 0 == ingested.returncode, ingested.stderr
    assert (tmp_path / "lake" / "messages" / "_delta_log").is_dir()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
