"""
The engine of a command (this machine or Spark), its cores and memory, and Java for Spark.

Both engines give the same results. On one machine, processes of our own read as fast as Spark, which takes seconds to
start: Spark is for several machines, so it runs only if a Spark option asks for it.
"""

import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobs.storage.locations import expand_home

if TYPE_CHECKING:
    from subprocess import Popen

NO_SPARK_MESSAGE = "pyspark is not installed: run `pip install 'rocketmq-lake[spark]'`"


class SetupError(Exception):
    """Something that a run needs is missing and could not be created; the message says what to do."""


# The JVM that this process has started, and whether its master is local. At most one, because pyspark has one gateway.
JVMS: "list[tuple[Popen[bytes], bool]]" = []
_DEATH_SECONDS = 5  # in which a JVM without connections ends, even on a busy machine
# The values of the option `--engine`: this process, Spark, or the one that the rule selects.
LOCAL, SPARK, AUTO_ENGINE = "local", "spark", "auto"

_OWN_GROUPS, _CONTROL_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_MEMORY_OF_A_WORKER = 1 << 30
_MOST_THREADS = 4  # 16 wait for the interpreter: `verify` of 6 GiB takes 13 s instead of 6.5 s

COMMANDS_WITH_THREADS = frozenset({"ingest", "verify", "rebuild-index", "rebuild-consumequeue"})  # mostly compiled code
ENGINE_RULE = "local (all cores of this machine); spark if a Spark option is given"


class EngineChoice(NamedTuple):
    """The engine of a command, and the cores that it uses on this machine."""

    engine: str
    cores: int

    def to_dict(self) -> dict[str, str | int]:
        """Return the JSON form."""
        return {"name": self.engine, "cores": self.cores}


def count_cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the CPU quota of a container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _group_limits("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), "cpu.max")
    return min([cores, *(-(-quota // period) for quota, period in quotas if quota > 0)])  # rounded up as in Java


def count_memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = _group_limits("memory", ("memory.limit_in_bytes",), "memory.max")
    return min([machine, *(limit for (limit,) in limits)])


def _group_limits(controller: str, old_names: Sequence[str], name: str) -> Iterator[list[int]]:
    """Yield the limits of each control group of this process; *old_names*: the files of version 1 of control groups."""
    try:
        groups = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, path in groups:
        if controllers and controller not in controllers.split(","):
            continue
        root = _CONTROL_GROUPS / controller if controllers else _CONTROL_GROUPS
        own = root / path.removeprefix("/")
        # A group's limit covers the groups in it. In a container the own group may be mounted as the root.
        for directory in (one for one in (own, *own.parents) if one.is_relative_to(root)):
            with suppress(OSError, ValueError):  # no such file, or `max`: no limit
                names = old_names if controllers else (name,)
                yield [int(part) for one in names for part in (directory / one).read_text().split()]


def usable_cores(*, half: bool) -> int:
    """Return the number of cores for a run; with *half*, the other half is left to a broker."""
    return max(count_cores() // 2, 1) if half else count_cores()


def usable_threads(*, half: bool) -> int:
    """Return the number of threads for a command; with *half*, the other half of the cores is left to a broker."""
    return min(usable_cores(half=half), _MOST_THREADS)


def choose_engine(asked: str = AUTO_ENGINE, *, half: bool = False) -> EngineChoice:
    """
    Return the *asked* engine; for `auto`, Spark if it is requested, otherwise this machine.

    *half*: a broker runs on this machine and keeps half of the cores.
    """
    automatic = SPARK if is_spark_requested() else LOCAL
    return EngineChoice(automatic if asked == AUTO_ENGINE else asked, usable_cores(half=half))


def count_worker_processes(cores: int) -> int:
    """Return the number of worker processes for *cores*; 0 if this process must do the work."""
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if not sys.platform.startswith("linux") or is_limited:  # elsewhere, a fork may lose threads of a library
        return 0
    number = min(cores, count_memory() // _MEMORY_OF_A_WORKER)
    return number if number > 1 else 0


def has_session() -> bool:
    """Return whether this process has started a Spark session."""
    return bool(JVMS)


def jvm_death_text() -> str | None:
    """Return how this process's JVM has died, if it has; a failed call is noticed slightly before its end."""
    if not JVMS:
        return None
    import subprocess

    try:
        code = JVMS[-1][0].wait(_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"killed by signal {-code}"


def is_spark_requested() -> bool:
    """Return whether there is a session, or the command line has Spark options; Spark is used then."""
    return has_session() or "PYSPARK_GATEWAY_PORT" in os.environ or bool(os.environ.get("RMQ_LAKE_SPARK_OPTIONS"))


def why_spark_cannot_start() -> str:
    """Return why Spark cannot start here, and how to install the missing part; empty if it can."""
    try:
        find_java_home()
    except SetupError as error:
        return str(error)
    return NO_SPARK_MESSAGE if find_spec("pyspark") is None else ""


_OLDEST_JAVA = 17

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

_NO_JAVA = (
    f"Java {_OLDEST_JAVA} or newer is needed and was not found (JAVA_HOME, PATH and the usual directories were tried): "
    "install it with `sudo apt install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`sudo dnf install java-21-openjdk-headless` (Fedora) or `brew install openjdk@21` (macOS), or set JAVA_HOME."
)


def find_java_home() -> Path:
    """Return the home of the first suitable Java: in JAVA_HOME, on PATH, or the oldest in the usual directories."""
    on_path = shutil.which("java")
    preferred = [os.environ.get("JAVA_HOME"), str(Path(on_path).resolve().parent.parent) if on_path else None]
    for home in map(Path, filter(None, preferred)):
        if _major_version(home) >= _OLDEST_JAVA:
            return home
    homes = (
        home for one in map(expand_home, _USUAL) for home in Path(one.anchor).glob(str(one.relative_to(one.anchor)))
    )
    usual = {home: _major_version(home) for home in homes}
    suitable = [home for home, major in usual.items() if major >= _OLDEST_JAVA]
    if not suitable:
        raise SetupError(_NO_JAVA)
    # The oldest suitable one: Spark is tested most on old long-term releases, and least on the newest release.
    return min(suitable, key=lambda home: (usual[home], home))


def _major_version(home: Path) -> int:
    if not os.access(home / "bin" / "java", os.X_OK):
        return 0
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:  # no file `release`, or no access: run Java to get its version
        import subprocess

        command = [str(home / "bin" / "java"), "-XshowSettings:properties", "-version"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603  found above
        except (OSError, subprocess.TimeoutExpired):  # cannot be executed: not a usable Java
            return 0
        text = answer.stderr
    # JAVA_VERSION="17.0.15", java.version = 21, and Java 8's "1.8.0_412"
    found = re.search(r'(?:JAVA_VERSION=|java\.version = )"?(\d+)', text)
    return int(found[1]) if found else 0
