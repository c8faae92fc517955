"""
The wheel and the source archive: built, installed into empty environments of every Python, and run there.

Slow: an environment takes a minute, and packages come from a registry (or pip's cache).
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from jobs.demo.tour import extract
from jobs.launch.spark import spark_home
from tests.golden import unpack

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def pythons() -> Iterator[Path]:
    """Find an interpreter of each supported version: this one, others on PATH, and those of pyenv."""
    yield Path(sys.executable).resolve()
    for minor in (11, 12, 13):
        name = f"python3.{minor}"
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/{name}"))
        found = shutil.which(name, path="/usr/local/bin:/usr/bin") or (installed[-1] if installed else None)
        if found and sys.version_info[1] != minor:
            yield Path(found)


PYTHONS = [*pythons()]


def run_checked(
    command: Sequence[str | Path], directory: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, env=environment, timeout=900
    )


PIP: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--python"]


def create_environment(python: str | Path, directory: Path, *packages: str | Path) -> None:
    """Create an environment without a pip of its own: installing that takes three seconds of CPU time."""
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    subprocess.run([*PIP, directory / "bin" / "python", "install", *packages], check=True)


def add_packages_of_this_environment(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{spark_home().parent}\n")


def list_compiled_code(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*.nb[ci]")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives from a copy of the tracked files."""
    directory = tmp_path_factory.mktemp("built")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (directory / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / "source" / name)
    builder = directory / "builder"
    create_environment(sys.executable, builder, "hatchling>=1.27")
    add_packages_of_this_environment(builder)
    build: list[str | Path] = [builder / "bin" / "python", "-m", "hatchling", "build", "-d", directory / "dist"]
    subprocess.run(build, cwd=directory / "source", check=True, capture_output=True)
    return directory / "dist"


def test_the_archives_contain_all_files_that_a_run_needs_and_no_tests(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        kept = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        f"rocketmq_lake/{name}"
        for name in (
            "demo/orders.tar.xz",
            "demo/store.tar.xz",
            "browse/templates/page.css",
            "browse/templates/base.html",
            "py.typed",
        )
    } <= packed
    assert {f"rocketmq_lake/_conf/{path.name}" for path in (ROOT / "conf").iterdir()} <= packed
    assert {"spark-submit.sh", "requirements.lock", "conf/jars.lock", "pyproject.toml", "LICENSE"} <= kept
    assert [name for name in packed if name.startswith("rmq_formats/__pycache__/") and name.endswith(".nbi")]
    assert {"rmq_formats", "rocketmq_lake"} == {name.partition("/")[0] for name in packed if ".dist-info" not in name}
    assert not [name for name in packed | kept if name.startswith(("tests/", "benchmarks/"))]


def test_modules_of_the_wheel_do_not_import_the_package_of_a_checkout(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}

    assert [] == [name for name, text in texts.items() if re.search(r"(from|import) jobs\b|[\"']jobs\.[a-z]", text)]


def test_builds_from_the_same_source_or_its_archive_give_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    extract(source, tmp_path)
    (root,) = tmp_path.glob("rocketmq_lake-*")
    command: list[str | Path] = [built.parent / "builder" / "bin" / "python", "-m", "hatchling", "build", "-t", "wheel"]

    subprocess.run([*command, "-d", tmp_path / "again"], cwd=root, check=True, capture_output=True)

    (again,) = (tmp_path / "again").glob("*.whl")

    assert wheel.read_bytes() == again.read_bytes()


def test_both_archives_pass_the_checks_of_the_registry(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_small_work_needs_neither_spark_nor_java_on_the_newest_python(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "environment"
    create_environment(PYTHONS[-1], environment, wheel)
    # Without compilation, which other tests cover, this takes seconds.
    nothing = {"HOME": str(tmp_path), "PATH": "/nowhere", "LANG": "C.UTF-8", "NUMBA_DISABLE_JIT": "1"}
    store = unpack("b533-base", tmp_path)

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        return run_checked([environment / "bin" / "rmq-lake", *arguments], tmp_path, nothing)

    looked = [run("inspect", store), run("verify", store)]
    asked = run("verify", "--engine", "spark", store)

    assert [0, 0] == [process.returncode for process in looked], looked
    assert 1 == asked.returncode
    assert asked.stderr.startswith("rmq-lake: pyspark is not installed: run `pip install 'rocketmq-lake[spark]'`")
    assert 1 == len(asked.stderr.splitlines())


@pytest.mark.spark
@pytest.mark.parametrize("python", [None, *(pytest.param(one, marks=pytest.mark.campaign) for one in PYTHONS)], ids=str)
def test_the_wheel_runs_the_tour(built: Path, python: Path | None, tmp_path: Path) -> None:
    """
    With the packages of this environment; in the campaign, in an empty environment of each Python version.

    On the Python that built the wheel, it runs the code that the wheel contains, and compiles nothing.
    """
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "environment"
    if python is None:
        create_environment(sys.executable, environment, "--no-deps", wheel)
        add_packages_of_this_environment(environment)
    else:
        create_environment(python, environment, "--no-deps", "--require-hashes", "-r", ROOT / "requirements.lock")
        subprocess.run([*PIP, environment / "bin" / "python", "install", "--no-deps", wheel], check=True)
    here = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "JAVA_"))}
    (tmp_path / "home").mkdir()

    home = {**here, "HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    shipped = list_compiled_code(tmp_path)
    done = run_checked([environment / "bin" / "rmq-lake", "demo", tmp_path / "tour"], tmp_path, home)

    assert 0 == done.returncode, done.stderr
    assert "byte for byte" in done.stdout
    assert "This is the end of the tour." in done.stdout
    assert shipped
    if python is None:
        assert shipped == list_compiled_code(tmp_path)


def test_a_source_archive_is_a_checkout(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    extract(source, tmp_path)
    (root,) = tmp_path.glob("rocketmq_lake-*")
    (root / ".venv").symlink_to((ROOT / ".venv").resolve())

    python = root / ".venv" / "bin" / "python"
    store = unpack("b533-base", tmp_path)
    done = run_checked([python, "-m", "jobs.main", "inspect", store], root, {**os.environ, "PYTHONPATH": str(root)})

    assert 0 == done.returncode, done.stderr
    assert "segments" in done.stdout
