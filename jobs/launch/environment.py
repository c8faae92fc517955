"""
Creates a checkout's `.venv` from a lock file. Runs before packages are installed: standard library only.

Each lock file gets its own environment, `.venv-<name>-<hash>`, where the hash is that of the lock (for the development
lock, of both locks), and `.venv` is a link to the current one. So the environment of a running command
never changes, an environment whose creation was killed is recognized by a missing mark, and a return to an older lock
only changes the link.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

# The script finds the checkout by its own path, so a checkout that is moved as a whole keeps working.
_CONSOLE_SCRIPT = """\
#!/bin/sh
# The same command as spark-submit.sh of this checkout, but it requires an existing environment.
script=$(readlink -f "$0")
unset PYTHONPATH PYTHONHOME
export PYTHONSAFEPATH=1 RMQ_LAKE_PROGRAM="${RMQ_LAKE_PROGRAM:-$0}"
exec "${script%/*}/python" -m jobs.main "$@"
"""

_RELEASED_LOCK = "requirements.lock"
_LARGEST = "pyspark"  # half of all bytes, and the only package that pip has to build
_COMPILER = ("llvmlite", "numba", "numpy", "pyarrow")  # what `rmq_formats` imports
_KEPT = 2  # the environment in use, and the one before it: a long run may still import from that


def main(root: Path, lock_name: str) -> int:
    """Create the environment of *lock_name* and link `.venv` to it; report slow steps on standard error."""
    if (root / ".venv").exists() and not (root / ".venv").is_symlink():
        script = root / ".venv" / "bin" / "rmq-lake"
        own = f", or call {script}" if script.exists() else ""
        return _refuse(f"{root / '.venv'} was not created by spark-submit.sh: rename or delete it{own}")
    if find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return _refuse(
            f"{sys.executable} cannot create virtual environments; run `sudo apt install python{version}-venv`"
        )
    lock = root / lock_name
    contents = [(root / name).read_bytes() for name in sorted({lock_name, _RELEASED_LOCK}, reverse=True)]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:12]
    directory = root / f".venv-{lock.stem}-{digest}-py{sys.version_info.major}{sys.version_info.minor}"
    with (root / ".venv.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # wait for other launchers of this checkout; the lock ends with the process
        if not (directory / "made-from").is_dir() and not _make(directory, lock):
            return 1
        script = directory / "bin" / "rmq-lake.unfinished"
        script.write_text(_CONSOLE_SCRIPT)
        script.chmod(0o755)
        script.replace(directory / "bin" / "rmq-lake")
        link = root / f".venv.{uuid4()}"
        link.symlink_to(directory.relative_to(root))
        link.replace(root / ".venv")
        os.utime(directory)
        others = [path for path in root.glob(".venv-requirements*") if path != directory]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[_KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
    return 0


def _refuse(reason: str) -> int:
    print(f"rmq-lake: {reason}", file=sys.stderr)  # noqa: T201  click is not installed yet
    return 1


def _install(directory: Path, lock: Path) -> bool:
    """
    Install the packages of a lock; return whether all were installed.

    Half of the time, one core would wait for the other: it compiles our code, which needs few of the packages.
    """
    python = [str(directory / "bin" / "python"), "-m"]
    pip = [*python, "pip", "--disable-pip-version-check", "install", "-qq"]
    pip += ["--no-deps", "--require-hashes", "--requirement"]
    packages: dict[str, list[str]] = {"largest": [], "compiler": [], "others": []}
    for entry in re.split(r"^(?=[A-Za-z])", lock.read_text(), flags=re.MULTILINE):
        name = entry.partition("==")[0]
        packages["largest" if name == _LARGEST else "compiler" if name in _COMPILER else "others"].append(entry)
    running: list[subprocess.Popen[bytes]] = []
    with TemporaryDirectory() as parts:
        # The wheel that pip builds is only unpacked again: compressing it would take ten seconds.
        settings = Path(parts) / "setuptools.cfg"
        settings.write_text("[bdist_wheel]\ncompression = stored\n")
        environment = {"DIST_EXTRA_CONFIG": str(settings), **os.environ}

        def start(command: list[str]) -> subprocess.Popen[bytes]:
            running.append(subprocess.Popen(command, stdout=sys.stderr, env=environment))  # noqa: S603  our own command
            return running[-1]

        def start_pip(part: str) -> list[subprocess.Popen[bytes]]:
            path = Path(parts) / f"{part}.lock"
            path.write_text("".join(packages[part]))
            return [start([*pip, str(path)])] if packages[part] else []

        try:
            installs = [*start_pip("largest"), *(compiler := start_pip("compiler"))]
            compiling = [start([*python, "rmq_formats.warm_up"]) for install in compiler if install.wait() == 0]
            installs += start_pip("others")
            has_installed = not any(install.wait() for install in installs)
            if has_installed and any(one.wait() for one in compiling):
                print("rmq-lake: compiling failed (see above); the first commands will compile", file=sys.stderr)  # noqa: T201  as above
        finally:
            for process in running:
                process.kill()  # after an interrupt; without effect on a process that has ended
                process.wait()
    return has_installed


def _make(directory: Path, lock: Path) -> bool:
    print(f"rmq-lake: creating .venv from {lock.name} (first run only) …", file=sys.stderr, flush=True)  # noqa: T201  as above
    shutil.rmtree(directory, ignore_errors=True)  # leftovers of a killed launcher
    venv.create(directory, with_pip=True, symlinks=True)
    if not _install(directory, lock):
        _refuse("the packages could not be installed; see pip's output above. The first run needs a package index")
        return False
    # The checkout itself, by a relative path: a checkout that is moved as a whole keeps working.
    (site_packages,) = directory.glob("lib/python3*/site-packages")
    (site_packages / "rocketmq-lake.pth").write_text(f"{os.path.relpath(lock.parent, site_packages)}\n")
    # Copies of the locks that the environment satisfies mark it as whole; the development lock contains the other.
    unfinished = directory / "made-from.unfinished"
    unfinished.mkdir()
    shutil.copy(lock, unfinished)
    shutil.copy(lock.parent / _RELEASED_LOCK, unfinished)
    unfinished.rename(directory / "made-from")
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
