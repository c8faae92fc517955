"""What workers' Python lacks, in one archive."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from jobs.demo import extract
from jobs.launch import environment_archive as packing

ROOT = Path(__file__).parents[3]
OF_THE_CLUSTER = {"delta-spark", "pyspark"}


@pytest.fixture
def _one_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack as little as possible; tests/scale packs everything."""
    monkeypatch.setattr(packing, "NEEDED", ("click",))


def test_everything_is_packed_that_the_project_needs_but_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.replace("=", ">").partition(">")[0] for line in project["dependencies"]}

    assert names - OF_THE_CLUSTER == set(packing.NEEDED)


@pytest.mark.usefixtures("_one_package")
def test_a_bare_python_of_the_same_version_finds_the_packages(tmp_path: Path) -> None:
    packing.pack(tmp_path / "environment.tar")
    extract(tmp_path / "environment.tar", tmp_path / "else where")
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / f"python3.{sys.version_info.minor}").symlink_to(sys._base_executable)  # type: ignore[attr-defined]  # noqa: SLF001 - no other name for it
    found = subprocess.run(
        [tmp_path / "else where" / "bin" / "python", "-c", "import click; print(click.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{bare}:{os.environ['PATH']}"},
    ).stdout

    assert str(tmp_path / "else where" / "lib" / "click" / "__init__.py") == found.strip()
