"""
`./spark-submit.sh` in copies of this checkout, run as a user with an empty home.

Most copies have an empty lock file, so that creating an environment takes seconds and needs no network, and a
`jobs.main` that only prints its arguments.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.sampling import mark_campaign_except
from tests.support.released import environment_of_new_user
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PREPARED = ".venv-requirements-*"

TELL = "import json, sys\nprint(json.dumps({'arguments': sys.argv[1:], 'python': sys.executable, 'path': sys.path}))\n"

pytestmark = pytest.mark.slow


def new_checkout(directory: Path) -> Path:
    """Copy the launcher to a directory with a difficult name; its `jobs.main` only prints its arguments."""
    root = directory / "a check'out $HOME"
    (root / "jobs" / "launch").mkdir(parents=True)
    shutil.copy(ROOT / "spark-submit.sh", root)
    (root / "jobs" / "__init__.py").touch()
    (root / "jobs" / "launch" / "__init__.py").touch()
    shutil.copy(ROOT / "jobs" / "launch" / "environment.py", root / "jobs" / "launch")
    (root / "jobs" / "main.py").write_text(TELL)
    (root / "requirements.lock").write_text("# nothing\n")
    (root / "requirements-dev.lock").write_text("# nothing, for developers\n")
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return new_checkout(tmp_path)


@pytest.fixture(scope="module")
def prepared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout whose environment one of three simultaneous launchers has created; copy it before changes."""
    root = new_checkout(tmp_path_factory.mktemp("prepared"))
    with ThreadPoolExecutor() as pool:
        answers = [*pool.map(launch, [root / "spark-submit.sh"] * 3)]
    assert all(map(read_answer, answers))
    assert 1 == sum("creating .venv" in answer.stderr for answer in answers)
    return root


def launch(script: Path, *arguments: str, cwd: Path | None = None, **more: str) -> "subprocess.CompletedProcess[str]":
    environment = environment_of_new_user(script.parent / "home", **more)
    command = [str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=300)


def read_answer(answer: "subprocess.CompletedProcess[str]") -> dict[str, list[str]]:
    assert 0 == answer.returncode, answer.stderr
    printed: dict[str, list[str]] = json.loads(answer.stdout)
    return printed


def test_the_launcher_finds_its_checkout_through_links_and_passes_arguments_unchanged(
    prepared_checkout: Path, tmp_path: Path
) -> None:
    """Neither the working directory nor PYTHONPATH shadows our code, and a second start creates nothing."""
    moved = shutil.copytree(prepared_checkout, tmp_path / prepared_checkout.name, symlinks=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "inner").symlink_to(Path("..") / moved.name / "spark-submit.sh")
    (tmp_path / "bin" / "rmq").symlink_to("inner")
    hostile = tmp_path / "hostile"
    (hostile / "jobs").mkdir(parents=True)
    (hostile / "jobs" / "__init__.py").write_text("raise SystemExit('shadowed')")
    words = ["--conf", "a=b c", "", "*", "$HOME", "it's", '"x"']

    answer = launch(tmp_path / "bin" / "rmq", *words, cwd=hostile, PYTHONPATH=str(hostile), PYTHONHOME="/nowhere")

    assert "" == answer.stderr
    assert words == read_answer(answer)["arguments"]
    assert str(moved) in [os.path.normpath(path) for path in read_answer(answer)["path"]]
    assert str(hostile) not in read_answer(answer)["path"]


def test_the_environment_has_a_console_script_that_moves_with_its_checkout(
    prepared_checkout: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(prepared_checkout, tmp_path / "moved", symlinks=True)
    (moved.parent / "rmq-lake").symlink_to(moved / ".venv" / "bin" / "rmq-lake")

    for script in (moved / ".venv" / "bin" / "rmq-lake", moved.parent / "rmq-lake"):
        answer_ = read_answer(launch(script, "a b", PYTHONPATH="/nowhere"))

        assert ["a b"] == answer_["arguments"]
        assert str(moved) in [os.path.normpath(path) for path in answer_["path"]]


@pytest.mark.parametrize("seconds", mark_campaign_except((0.1, 0.5, 1.0, 1.5), 0.5))
def test_a_killed_launcher_leaves_no_environment_that_looks_complete(checkout: Path, seconds: float) -> None:
    environment = environment_of_new_user(checkout / "home")
    first = subprocess.Popen([checkout / "spark-submit.sh"], env=environment, stderr=subprocess.PIPE, process_group=0)
    with first:
        time.sleep(seconds)
        os.killpg(first.pid, signal.SIGKILL)

    answer = launch(checkout / "spark-submit.sh", "again")

    assert ["again"] == read_answer(answer)["arguments"]
    assert 1 == len(list(checkout.glob(PREPARED)))


def test_another_lock_file_gets_its_own_environment_and_the_previous_one_is_kept(
    prepared_checkout: Path, tmp_path: Path
) -> None:
    checkout = shutil.copytree(prepared_checkout, tmp_path / "checkout", symlinks=True)
    locks = ["# nothing\n", "# nothing, newer\n", "# nothing, newest\n"]
    made = []
    for lock in locks:
        (checkout / "requirements.lock").write_text(lock)
        read_answer(launch(checkout / "spark-submit.sh"))
        made.append((checkout / ".venv").resolve())

    assert 3 == len(set(made))
    assert [False, True, True] == [path.is_dir() for path in made]


def test_the_launcher_uses_the_development_environment(checkout: Path) -> None:
    prepared_checkout = launch(checkout / "spark-submit.sh", "--prepare-dev")

    answer = launch(checkout / "spark-submit.sh", "inspect")

    assert "requirements-dev.lock" in prepared_checkout.stderr
    assert "" == answer.stderr
    assert ["inspect"] == read_answer(answer)["arguments"]


@pytest.mark.parametrize("changed", [("requirements.lock",), ("requirements.lock", "requirements-dev.lock")])
def test_a_development_environment_is_not_replaced_by_the_released_one(
    checkout: Path, changed: tuple[str, ...]
) -> None:
    """A developer who updates the checkout and runs a command keeps the development tools."""
    launch(checkout / "spark-submit.sh", "--prepare-dev")
    for name in changed:
        with (checkout / name).open("a") as lock:
            lock.write("# newer\n")

    first = launch(checkout / "spark-submit.sh", "inspect")
    second = launch(checkout / "spark-submit.sh", "inspect")
    prepared = launch(checkout / "spark-submit.sh", "--prepare-dev")

    assert ["inspect"] == read_answer(first)["arguments"]
    assert "creating .venv from requirements-dev.lock" in first.stderr
    assert "" == second.stderr
    assert ["inspect"] == read_answer(second)["arguments"]
    assert 0 == prepared.returncode
    assert "" == prepared.stdout
    assert "" == prepared.stderr


def test_a_development_environment_without_the_newest_tools_runs_commands(checkout: Path) -> None:
    launch(checkout / "spark-submit.sh", "--prepare-dev")
    (checkout / "requirements-dev.lock").write_text("# other tools\n")

    answer = launch(checkout / "spark-submit.sh", "inspect")

    assert "" == answer.stderr
    assert ["inspect"] == read_answer(answer)["arguments"]


def test_an_environment_of_another_tool_is_not_changed(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()

    answer = launch(checkout / "spark-submit.sh")

    assert 1 == answer.returncode
    assert "was not created by spark-submit.sh" in answer.stderr
    assert ["precious"] == [path.name for path in (checkout / ".venv").iterdir()]


def test_a_python_that_is_too_old_is_refused_in_one_sentence(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    answer = launch(checkout / "spark-submit.sh", RMQ_LAKE_PYTHON=str(old))

    assert 1 == answer.returncode
    assert "" == answer.stdout
    assert [] == [word for word in ("3.11", "Debian", "Fedora", "macOS") if word not in answer.stderr]
    assert 1 == len(answer.stderr.splitlines())


def make_wheel(folder: Path, name: str, module: str) -> str:
    """Write a wheel with one empty module; return its line in a lock file."""
    path = folder / f"{name}-1-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}==1 ; sys_platform != 'none' \\\n    --hash=sha256:{digest}\n    # via nothing\n"


@pytest.mark.parametrize("is_intact", [True, False], ids=["intact", "changed"])
def test_the_largest_package_and_the_others_are_installed_or_none_is(checkout: Path, *, is_intact: bool) -> None:
    others = [make_wheel(checkout, name, name) for name in ("aaa", "zzz")]
    largest = make_wheel(checkout, "pyspark", "pyspark")
    if not is_intact:
        largest = re.sub("sha256:[0-9a-f]+", f"sha256:{'0' * 64}", largest)
    (checkout / "requirements.lock").write_text(f"{others[0]}{largest}{others[1]}")

    answer = launch(checkout / "spark-submit.sh", PIP_NO_INDEX="1", PIP_FIND_LINKS=checkout.as_uri())

    installed = {path.name for path in checkout.glob(".venv/lib/python3*/site-packages/*.py")}
    assert (0 if is_intact else 1) == answer.returncode, answer.stderr
    assert is_intact == ({"aaa.py", "pyspark.py", "zzz.py"} <= installed)
    assert is_intact == (checkout / ".venv").exists()


def let_it_compile(checkout: Path, warm_up: str) -> None:
    """Write a lock of two packages, one of which the compiler needs, and a module in place of ours that compiles."""
    (checkout / "rmq_formats").mkdir()
    (checkout / "rmq_formats" / "warm_up.py").write_text(warm_up)
    (checkout / "requirements.lock").write_text("".join(make_wheel(checkout, name, name) for name in ("aaa", "numba")))


@pytest.mark.parametrize("exit_code", [0, 3], ids=["works", "fails"])
def test_the_code_is_compiled_while_packages_are_installed(checkout: Path, exit_code: int) -> None:
    """The first `ingest` of a checkout compiled for 20 s of CPU time."""
    let_it_compile(checkout, f"import numba, sys; print('compiling'); sys.exit({exit_code})")

    answer = launch(checkout / "spark-submit.sh", "a", PIP_NO_INDEX="1", PIP_FIND_LINKS=checkout.as_uri())

    assert ["a"] == read_answer(answer)["arguments"]
    assert "compiling\n" in answer.stderr
    assert bool(exit_code) == ("compiling failed" in answer.stderr)
    assert (checkout / ".venv" / "made-from").is_dir()


def test_an_interrupt_stops_the_compiler(checkout: Path) -> None:
    let_it_compile(
        checkout,
        "import numba, os, pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "pathlib.Path('pid.unfinished').write_text(str(os.getpid()))\n"
        "pathlib.Path('pid.unfinished').rename('pid')\n"
        "time.sleep(600)\n",
    )
    more = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": checkout.as_uri()}
    environment = environment_of_new_user(checkout / "home", **more)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    with subprocess.Popen([checkout / "spark-submit.sh"], env=environment, cwd=checkout, process_group=0) as launcher:
        signal.signal(signal.SIGINT, before)
        wait_until((checkout / "pid").exists, lambda: [*checkout.iterdir()])
        os.killpg(launcher.pid, signal.SIGINT)

    with pytest.raises(ProcessLookupError):
        os.kill(int((checkout / "pid").read_text()), 0)
    assert not (checkout / ".venv").exists()


def test_a_failed_installation_leaves_no_environment(checkout: Path) -> None:
    (checkout / "requirements.lock").write_text(f"no-such-package==1 --hash=sha256:{'0' * 64}\n")

    answer = launch(checkout / "spark-submit.sh", PIP_NO_INDEX="1")

    assert 1 == answer.returncode
    assert "could not be installed" in answer.stderr
    assert not (checkout / ".venv").exists()
