"""
Create the environment of users: a clone in an empty home directory, with a `.venv` from requirements.lock.

Downloads of pip and of the launcher may come from their caches; nothing else of this user, and nothing of the
development environment is used.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.launch.cache import cache_directory
from tests.support.commands import ROOT, Outcome

_TIMEOUT_S = 1500  # for a busy machine


class Released(NamedTuple):
    """A clone, and the home directory of its user."""

    checkout: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.checkout / ".venv" / "bin" / "python"

    @property
    def added(self) -> Path:
        """The directory of packages that pages ask their readers to install; only commands that name it import them."""
        return self.home / "added"

    def environment(self, **more: str) -> dict[str, str]:
        environment = environment_of_new_user(self.home)
        return {**environment, "PATH": f"{self.python.parent}:{environment['PATH']}", **more}

    def run(self, command: Sequence[str | Path], directory: Path, **more: str) -> Outcome:
        launcher = directory / "spark-submit.sh"
        if not launcher.exists():
            launcher.symlink_to(self.checkout / "spark-submit.sh")
        environment = self.environment(**more)
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            check=False,
            cwd=directory,
            env=environment,
            timeout=_TIMEOUT_S,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def add(self, *packages: str) -> None:
        """Install packages into the directory `added`, in the versions of the development lock."""
        constraints = self.home / "constraints.txt"
        lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
        pinned = [line.rstrip(" \\") for line in lines if "==" in line and not line.startswith((" ", "#"))]
        constraints.write_text("\n".join(pinned))
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--quiet", "--target", self.added]
        result = self.run([*pip, "--constraint", constraints, *packages], self.home)
        if result.code:
            raise OSError(result.err)


def environment_of_new_user(home: Path, **more: str) -> Mapping[str, str]:
    """Return the environment of a new user's login shell, with the settings for package registries."""
    home.mkdir(exist_ok=True)
    registry = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    python = str(Path(sys.executable).resolve().parent)
    return {
        "HOME": str(home),
        "PATH": f"{python}:/usr/bin:/bin:/usr/sbin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        **registry,
        **more,
    }


def without_network() -> list[str]:
    """Return a command prefix that runs a process without network, except its own loopback device."""
    prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "-"]
    try:
        works = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("this machine does not permit network namespaces")
    return prefix


def released(directory: Path) -> Released:
    """Copy the tracked files of this working tree, and create their environment with the launcher."""
    released_copy = Released(directory / "rocketmq-lake", directory / "home")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (released_copy.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, released_copy.checkout / name)
    copy_jars(released_copy.home / ".cache" / "rocketmq-lake" / "jars")
    result = released_copy.run(["./spark-submit.sh", "--version"], released_copy.checkout, PIP_CACHE_DIR=pip_cache())
    if result.code or "creating .venv" not in result.err:
        raise OSError(f"the launcher made no environment: {result.err}")
    return released_copy


def copy_jars(jars: Path) -> None:
    """Copy the JARs of this machine's cache, as docs/install.md describes for machines without a network."""
    fetched = cache_directory() / "jars"
    if fetched.is_dir():
        shutil.copytree(fetched, jars, ignore=shutil.ignore_patterns(".*"))


def pip_cache() -> str:
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.check_output(command, text=True).strip()
