"""
The environment that users get: a clone in an empty home, its `.venv` made by the launcher from requirements.lock.

What pip and the launcher download may come from their own caches; nothing else of this machine's user is used, and
nothing of the development environment.
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

_SECONDS = 1500  # of a busy machine


class Released(NamedTuple):
    """A clone, and its user's home."""

    checkout: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.checkout / ".venv" / "bin" / "python"

    @property
    def added(self) -> Path:
        """Packages that pages ask their readers to install beside ours; no other part of the environment sees them."""
        return self.home / "added"

    def environment(self, **more: str) -> dict[str, str]:
        known = environment_of_a_stranger(self.home)
        return {**known, "PATH": f"{self.python.parent}:{known['PATH']}", **more}

    def run(self, command: Sequence[str | Path], folder: Path, **more: str) -> Outcome:
        launcher = folder / "spark-submit.sh"
        if not launcher.exists():
            launcher.symlink_to(self.checkout / "spark-submit.sh")
        environment = self.environment(**more)
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=_SECONDS,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def add(self, *packages: str) -> None:
        """Install packages, in the versions of the development lock, where only those who ask for them find them."""
        constraints = self.home / "constraints.txt"
        lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
        pinned = [line.rstrip(" \\") for line in lines if "==" in line and not line.startswith((" ", "#"))]
        constraints.write_text("\n".join(pinned))
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--quiet", "--target", self.added]
        ended = self.run([*pip, "--constraint", constraints, *packages], self.home)
        if ended.code:
            raise OSError(ended.err)


def environment_of_a_stranger(home: Path, **more: str) -> Mapping[str, str]:
    """Return what a login shell of a new user has set, and how this machine reaches a package registry."""
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
    """Return the command prefix that cuts a process off from every network but its own loopback."""
    prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "-"]
    try:
        works = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("this machine does not permit network namespaces")
    return prefix


def released(folder: Path) -> Released:
    """Copy the tracked files of this working tree, and let the launcher create the environment."""
    made = Released(folder / "rocketmq-lake", folder / "home")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (made.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, made.checkout / name)
    fill_cache(made.home / ".cache" / "rocketmq-lake" / "jars")
    ended = made.run(["./spark-submit.sh", "--version"], made.checkout, PIP_CACHE_DIR=pip_cache())
    if ended.code or "creating .venv" not in ended.err:
        raise OSError(f"the launcher made no environment: {ended.err}")
    return made


def fill_cache(jars: Path) -> None:
    """Bring the JARs that this machine has already, as docs/install.md says for one without a network."""
    fetched = cache_directory() / "jars"
    if fetched.is_dir():
        shutil.copytree(fetched, jars, ignore=shutil.ignore_patterns(".*"))


def pip_cache() -> str:
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.check_output(command, text=True).strip()
