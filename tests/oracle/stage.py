"""
The environment of a scenario: one store directory, and the releases that use it one after another.

The stage records the messages, the answers, and the physical offset from which each release wrote. The answers of
mqadmin are compared with the output of `query mqadmin`.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

import pytest

from jobs.command_line import cli
from jobs.console.result import ExitCode
from tests.oracle.process import DriverProcess
from tests.oracle.releases import SMALL_GEOMETRY, Geometry, version_of
from tests.oracle.sessions import DirectMessage, MqadminOutput, RealBroker, RealStore, open_broker, open_store

_OLD: Final = 100 * 3600
_ATTEMPTS: Final = 5


Line: TypeAlias = tuple[str, ...]
"""The arguments of mqadmin."""


class AnsweredLine(NamedTuple):
    """A command line of mqadmin, and its output."""

    arguments: Line
    printed: MqadminOutput


class Stage:
    """A store directory, and the release that uses it."""

    def __init__(self, release: str, store: Path, scratch: Path, geometry: Geometry = SMALL_GEOMETRY) -> None:
        self.release = release
        self.store_directory = store
        self.geometry = geometry
        self.rules: list[tuple[int, str]] = [(0, release)]
        self.sent: list[str] = []
        self.settings: dict[str, str] = {}
        self.batch_topics: set[str] = set()
        self.answered_lines: list[AnsweredLine] = []
        self._scratch = scratch
        self._driver: DriverProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def runs(self, since: str) -> bool:
        return version_of(self.release) >= version_of(since)

    def note(self, line: str) -> None:
        self.sent.append(line)

    @contextmanager
    def store(self, settings: dict[str, str] | None = None) -> Iterator[RealStore]:
        self.settings |= settings or {}
        self.note(f"== store {self.release}")
        with open_store(self._running(), self.store_directory, self.geometry, settings) as opened:
            opened.note = self.note
            yield opened

    @contextmanager
    def broker(self, settings: dict[str, str] | None = None) -> Iterator[RealBroker]:
        self.settings |= settings or {}
        self.note(f"== broker {self.release}")
        home = self._scratch / "home"
        with open_broker(self._running(), self.store_directory, self.geometry, settings, home=home) as opened:
            opened.note, opened.batch_topics = self.note, self.batch_topics
            yield opened

    def crash(self) -> None:
        self.note("== killed")
        self.end()

    def remove_empty_files(self) -> None:
        for path in remove_empty_files(self.store_directory):
            self.note(f"removed {path.relative_to(self.store_directory)}, which was empty")

    def upgrade(self, release: str, next_offset: int) -> None:
        """Continue the store with *release*, whose first message will be at *next_offset* or later."""
        self.end()
        self.release = release
        self.rules.append((next_offset, release))
        self.note(f"== upgraded to {release}, which writes from {next_offset}")

    @property
    def thorough_recovery(self) -> dict[str, str]:
        """
        The settings with which recovery reads enough of the log.

        Since 5.4.0, it reads only the ten newest files. With files of sixteen kilobytes, units and index entries of
        older messages that were not dispatched would be lost, and later units would be displaced.
        """
        return {"commitLogRecoverMaxNum": "1000"} if self.runs(since="5.4.0") else {}

    @property
    def snapshot(self) -> Path:
        """The copy of the store at the time of the mqadmin lines."""
        return self._scratch / "snapshot"

    def ask(self, broker: RealBroker, lines: Iterable[Line]) -> None:
        """Copy the store of the running broker, and run mqadmin *lines* before anything more is stored."""
        questions = list(lines)
        for _ in range(_ATTEMPTS):
            broker.drain()
            shutil.rmtree(self.snapshot, ignore_errors=True)
            try:
                shutil.copytree(self.store_directory, self.snapshot)
            except shutil.Error:  # a configuration file was replaced during the copy
                continue
            self.answered_lines = [AnsweredLine(line, broker.mqadmin(*line)) for line in questions]
            # A broker checks pending transactions periodically, and stores the result.
            if _log_bytes(self.snapshot) == _log_bytes(self.store_directory):
                return
        raise TimeoutError("the broker always stores something while mqadmin runs")

    def age(self, files: Iterable[Path]) -> None:
        for file in files:
            modified = file.stat().st_mtime - _OLD
            os.utime(file, (modified, modified))

    def segments(self) -> list[Path]:
        return sorted(file for file in self.store_directory.glob("commitlog/*") if file.is_file())

    def end(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def _running(self) -> DriverProcess:
        if self._driver is None:
            self._driver = DriverProcess(self.release, self._scratch)
        return self._driver


def kill_store(release: str, store: Path, messages: Iterable[DirectMessage], after: int) -> None:
    """Kill a release after it has stored *after* of the messages, while it stores more of them."""
    stage = Stage(release, store, store.parent)
    if store.exists():
        stage.remove_empty_files()
    with stage, stage.store(stage.thorough_recovery) as opened:
        for stored in islice(opened.put_each(messages), after):
            assert stored.status == "PUT_OK"
        stage.crash()


def remove_empty_files(store: Path) -> list[Path]:
    """
    Delete the empty files of a broker that was killed before it set their size, as an operator must do.

    Up to 5.1.2, a broker refuses a store with such a file ("please check it manually").
    """
    paths = [path for directory in ("commitlog", "consumequeue") for path in (store / directory).rglob("0*")]
    empty = [path for path in paths if path.is_file() and not path.stat().st_size]
    for path in empty:
        path.unlink()
    return empty


def _log_bytes(store: Path) -> list[bytes]:
    return [file.read_bytes().rstrip(b"\0") for file in sorted((store / "commitlog").glob("0*"))]


# It prints or counts the messages that it finds only on request.
_SILENT = {"printMsgByQueue": (ExitCode.CLEAN,)}


BODIES = "/tmp/rocketmq/msgbodys/"
"""The directory into which mqadmin writes bodies."""

# Facts that only a broker knows: the consumers of a message, messages per second.
_CONSUMERS = "WARN: No Consumer"
_SPEED = re.compile(r"Topic Put TPS: [0-9.E-]+")


def find_different_answers(
    stage: Stage, captured: pytest.CaptureFixture[bytes], *, lake: Path | None = None, bodies: Path | None = None
) -> list[tuple[AnsweredLine, int, str]]:
    """
    Return the lines with another output than mqadmin's, or an exit code that contradicts the output.

    Answers come from the store, or from its *lake*; *bodies* is the directory into which we write bodies.
    """
    captured.readouterr()
    source = ("--lake", str(lake)) if lake else ("--store", str(stage.snapshot))
    place = [*source, "--release", stage.release, "--time-zone", "UTC", "--broker", "b0", "--quiet"]
    place += ["--body-dir", str(bodies)] if bodies else []
    found: list[tuple[AnsweredLine, int, str]] = []
    for answered in stage.answered_lines:
        code = cli.main(["query", "mqadmin", *place, *answered.arguments])
        sys.stdout.flush()
        own_output = captured.readouterr().out.decode()
        mqadmin_output = answered.printed.stdout
        codes = {ExitCode.CLEAN} if mqadmin_output else {ExitCode.NOT_FOUND, *_SILENT.get(answered.arguments[0], ())}
        texts = {_comparable(text, answered.arguments, bodies) for text in (own_output, mqadmin_output)}
        if len(texts) > 1 or code not in codes:
            found.append((answered, code, own_output))
    return found


def _comparable(printed: str, line: Line, bodies: Path | None) -> str:
    text = _SPEED.sub("Topic Put TPS: 0.0", printed.replace(_CONSUMERS, "").replace(BODIES, f"{bodies}/"))
    return "\n".join(sorted(text.splitlines())) if line[0] == "topicList" else text
