"""Find a Java that Spark 4 runs on, or name the missing part."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

OLDEST = 17

_USUAL = (
    "/usr/lib/jvm/*",  # Debian, Ubuntu, Fedora, Alpine, Arch
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*",  # Homebrew on Apple silicon, on Intel
    "/usr/local/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
)

_ADVICE = (
    f"Java {OLDEST} or newer is needed and was not found (JAVA_HOME, PATH and the usual directories were tried): "
    "install it with `sudo apt install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`sudo dnf install java-21-openjdk-headless` (Fedora) or `brew install openjdk@21` (macOS), or set JAVA_HOME."
)


def find_java_home() -> Path:
    """Return the home of the first suitable Java: JAVA_HOME's, PATH's, else the newest in the usual directories."""
    for home in _preferred():
        if _major_version(home) >= OLDEST:
            return home
    usual = {home: _major_version(home) for home in _usual()}
    suitable = [home for home, major in usual.items() if major >= OLDEST]
    if not suitable:
        raise SetupError(_ADVICE)
    # The oldest that suits: Spark is tested most on the long-term releases it names, the newest last.
    return min(suitable, key=lambda home: (usual[home], home))


def _preferred() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _usual() -> Iterator[Path]:
    for pattern in _USUAL:
        expanded = Path(pattern).expanduser()
        yield from sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor))))


def _major_version(home: Path) -> int:
    if not os.access(home / "bin" / "java", os.X_OK):
        return 0
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:  # no file `release`, or no access: the Java itself says its version
        text = _ask(home)
    # JAVA_VERSION="17.0.15", java.version = 21, and Java 8's "1.8.0_412"
    found = re.search(r'(?:JAVA_VERSION=|java\.version = )"?(\d+)', text)
    return int(found[1]) if found else 0


def _ask(home: Path) -> str:
    command = [str(home / "bin" / "java"), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603  found above
    except (OSError, subprocess.TimeoutExpired):  # not executable here: no Java that will do
        return ""
    return answer.stderr


"""Errors of the launcher."""

NO_SPARK = (
    "pyspark is not installed here: `pip install 'rocketmq-lake[spark]'` brings it "
    "(work below a size needs none: VERB --show-config)"
)


class SetupError(Exception):
    """Something that a run needs is missing and could not be made; the message says what to do."""
