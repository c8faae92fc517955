"""
A Java process that runs one RocketMQ release and executes commands line by line.

The driver in `driver/` is compiled once against the JARs of each release. The process leads its own process group and
ends with its standard input, so that it never survives a test, even if that is killed.
"""

import fcntl
import hashlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeAlias
from urllib.parse import parse_qsl, unquote_plus, urlencode

from tests.oracle.releases import class_path_of
from tests.support.published import CACHE, QUICK_JVM

Value: TypeAlias = str | bytes | int | None
Answer: TypeAlias = dict[str, str]

_SOURCES: Final = Path(__file__).parent / "driver" / "oracle"
_MAIN_CLASS: Final = "oracle.Driver"
_ANSWER_SECONDS: Final = 180
# Answers to this many requests fit into a pipe, so that the two sides cannot block each other.
_REQUESTS_AT_ONCE: Final = 200

_SILENT_LOGGING: Final = '<configuration><root level="OFF"/></configuration>'
_LOGGING_FILES: Final = (
    *("logback.xml", "rmq.logback.xml"),
    *(f"rmq.{program}.logback.xml" for program in ("client", "broker", "namesrv", "tools")),
)
_OPENED_PACKAGES: Final = (
    "java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util", "java.util.concurrent"
)  # fmt: skip
QUICK_TO_START: Final = ("-Xmx700m", *QUICK_JVM)
"""Heap and compiler of a process that lives for seconds."""

AT_FULL_SPEED: Final = ("-Xmx4g", "-XX:+UseG1GC")
"""Heap and compiler of a process that is timed."""

_JVM_FLAGS: Final = (
    "-Dfile.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "-Dio.netty.noUnsafe=false",
    "-Drocketmq.client.logUseSlf4j=true",
    # Without encryption, the broker does not create a key pair at its start.
    "-Dtls.server.mode=disabled",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
)


class DriverError(Exception):
    """The driver failed to execute a command, or has ended."""


class DriverProcess:
    """A running release: `ask` it, `kill` it."""

    def __init__(self, release: str, scratch: Path, speed: Sequence[str] = QUICK_TO_START) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.release = release
        self._log = scratch / f"driver-{release}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                _command(release, scratch, speed),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, verb: str, values: Mapping[str, Value] | None = None, patience: float = _ANSWER_SECONDS) -> Answer:
        return next(self.ask_each(verb, [values or {}], patience))

    def ask_each(
        self, verb: str, requests: Iterable[Mapping[str, Value]], patience: float = _ANSWER_SECONDS
    ) -> Iterator[Answer]:
        """Send many requests without waiting for each answer, and yield the answers."""
        waiting = iter(requests)
        while chunk := list(islice(waiting, _REQUESTS_AT_ONCE)):
            self._send("".join(f"{verb} {_encode(values)}\n" for values in chunk))
            for values in chunk:
                yield self._receive(verb, values, patience)

    def kill(self) -> None:
        """Kill the process immediately, like a power failure."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the other end may be closed before all bytes are sent
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode("ascii"))
            self._process.stdin.flush()
        except BrokenPipeError as gone:
            raise self._failure("the driver is gone") from gone

    def _receive(self, verb: str, values: Mapping[str, Value], patience: float) -> Answer:
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            raise self._failure(f"no answer to {verb} in {patience} s") from None
        outcome, _, rest = line.decode("ascii").rstrip("\n").partition(" ")
        if outcome != "ok":
            raise self._failure(f"{verb} {dict(values)}: {unquote_plus(rest) or 'the driver is gone'}")
        return dict(parse_qsl(rest, keep_blank_values=True))

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def _failure(self, fact: str) -> DriverError:
        said = self._log.read_text(encoding="utf-8", errors="replace")[-4000:]
        return DriverError(f"RocketMQ {self.release}: {fact}\n{said}")


@contextmanager
def run_driver(release: str, speed: Sequence[str] = QUICK_TO_START) -> Iterator[DriverProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as scratch,
        DriverProcess(release, Path(scratch), speed) as driver,
    ):
        yield driver


def _encode(values: Mapping[str, Value]) -> str:
    """Encode a request; None is omitted, and texts with lone surrogates are sent as UTF-16."""
    encoded: dict[str, str | bytes | int] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            encoded[name] = str(value).lower()
        elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            encoded[f"{name}16"] = value.encode("utf-16-be", "surrogatepass")
        elif value is not None:
            encoded[name] = value
    return urlencode(encoded)


def _command(release: str, scratch: Path, speed: Sequence[str]) -> list[str]:
    jars = ":".join(map(str, [_compiled_driver(release), *class_path_of(release)]))
    places = [f"-Duser.home={scratch}", f"-Djava.io.tmpdir={scratch}", f"-XX:ErrorFile={scratch}/hs_err_pid%p.log"]
    return ["java", *speed, *_JVM_FLAGS, *places, "-cp", jars, _MAIN_CLASS]


def _compiled_driver(release: str) -> Path:
    """Compile the driver for *release*, once for each state of its sources."""
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = CACHE / release / f"driver-{digest}"
    jars = ":".join(map(str, class_path_of(release)))
    with (CACHE / "lock").open("w") as lock:  # concurrent test runs do not compile the same classes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            with tempfile.TemporaryDirectory(dir=classes.parent) as scratch:
                _compile(sources, jars, release, Path(scratch, "classes")).rename(classes)
    return classes


def _compile(sources: Sequence[Path], jars: str, release: str, classes: Path) -> Path:
    command: list[str | Path] = ["javac", "-encoding", "UTF-8", "-nowarn", "-cp", jars, "-d", classes, *sources]
    compilation = subprocess.run(command, capture_output=True, text=True, check=False)
    if compilation.returncode:
        raise DriverError(f"the driver does not compile against RocketMQ {release}:\n{compilation.stderr}")
    for name in _LOGGING_FILES:
        (classes / name).write_text(_SILENT_LOGGING, encoding="utf-8")
    return classes
