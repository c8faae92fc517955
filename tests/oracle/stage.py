"""
The environment of a scenario: one store directory, and the releases that use it one after another.

The stage notes the messages and the answers, and the physical offset from which on each release wrote. The answers of
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

from jobs.command import cli
from jobs.console.result import ExitCode
from tests.oracle.process import DriverProcess
from tests.oracle.releases import SMALL_GEOMETRY, Geometry, version_of
from tests.oracle.sessions import DirectMessage, Printed, RealBroker, RealStore, open_broker, open_store

_OLD: Final = 100 * 3600
_ATTEMPTS: Final = 5


Line: TypeAlias = tuple[str, ...]
"""What mqadmin is given."""


class Asked(NamedTuple):
    """A command line of mqadmin, and its output."""

    arguments: Line
    printed: Printed


class Stage:
    """A store directory and the release at work on it."""

    def __init__(self, release: str, store: Path, scratch: Path, geometry: Geometry = SMALL_GEOMETRY) -> None:
        self.release = release
        self.store_directory = store
        self.geometry = geometry
        self.rules: list[tuple[int, str]] = [(0, release)]
        self.sent: list[str] = []
        self.settings: dict[str, str] = {}
        self.batch_topics: set[str] = set()
        self.asked: list[Asked] = []
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
        for path in removed_empty_files(self.store_directory):
            self.note(f"removed {path.relative_to(self.store_directory)}, which was empty")

    def upgrade(self, release: str, next_offset: int) -> None:
        """Let *release* go on with the store; its first message will are at *next_offset* or later."""
        self.end()
        self.release = release
        self.rules.append((next_offset, release))
        self.note(f"== upgraded to {release}, which writes from {next_offset}")

    @property
    def thorough_recovery(self) -> dict[str, str]:
        """
        Give settings with which recovery goes back as far as it must.

        From 5.4.0 on it looks at the ten newest files only, which is little where a file has sixteen kilobytes: units
        and index entries of older messages that were not dispatched are lost then, and later units shift.
        """
        return {"commitLogRecoverMaxNum": "1000"} if self.runs(since="5.4.0") else {}

    @property
    def snapshot(self) -> Path:
        """Name the copy of the store that was made when mqadmin was asked."""
        return self._scratch / "snapshot"

    def ask(self, broker: RealBroker, lines: Iterable[Line]) -> None:
        """Copy the store as it stands, the broker running, and give mqadmin *lines* before anything more is stored."""
        questions = list(lines)
        for _ in range(_ATTEMPTS):
            broker.drain()
            shutil.rmtree(self.snapshot, ignore_errors=True)
            try:
                shutil.copytree(self.store_directory, self.snapshot)
            except shutil.Error:  # a file of its configuration was just being replaced
                continue
            self.asked = [Asked(line, broker.mqadmin(*line)) for line in questions]
            # A broker checks open transactions from time to time, and stores the result.
            if _log_bytes(self.snapshot) == _log_bytes(self.store_directory):
                return
        raise TimeoutError("the broker stores something whenever mqadmin is asked")

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


def kill(release: str, store: Path, messages: Iterable[DirectMessage], after: int) -> None:
    """Kill a release in a store when it has answered for some of the messages, with more of them on the way."""
    stage = Stage(release, store, store.parent)
    if store.exists():
        stage.remove_empty_files()
    with stage, stage.store(stage.thorough_recovery) as opened:
        for stored in islice(opened.put_each(messages), after):
            assert stored.status == "PUT_OK"
        stage.crash()


def removed_empty_files(store: Path) -> list[Path]:
    """
    Do what an operator must do whose broker was killed between making a file and giving it its size.

    Up to 5.1.2 a broker does not load a store with such a file ("please check it manually").
    """
    paths = [path for folder in ("commitlog", "consumequeue") for path in (store / folder).rglob("0*")]
    empty = [path for path in paths if path.is_file() and not path.stat().st_size]
    for path in empty:
        path.unlink()
    return empty


def _log_bytes(store: Path) -> list[bytes]:
    return [file.read_bytes().rstrip(b"\0") for file in sorted((store / "commitlog").glob("0*"))]


# What it has found it prints, or counts, only where it is asked to.
_SILENT = {"printMsgByQueue": (ExitCode.CLEAN,)}


BODIES = "/tmp/rocketmq/msgbodys/"
"""Where mqadmin writes bodies."""

# What only a broker knows: who took a message, messages a second.
_CONSUMERS = "WARN: No Consumer"
_SPEED = re.compile(r"Topic Put TPS: [0-9.E-]+")


def on_releases(*releases: str, in_every_run: str) -> pytest.MarkDecorator:
    """Run a test on each `version`: on one in every run of brokers, on the others in the campaign."""
    often, rarely = [pytest.mark.oracle, pytest.mark.slow], [pytest.mark.campaign]
    marks = {release: often if release == in_every_run else rarely for release in releases}
    return pytest.mark.parametrize("version", [pytest.param(release, marks=marks[release]) for release in releases])


def differing_answers(
    stage: Stage,
    captured: pytest.CaptureFixture[bytes],
    *,
    lake: Path | None = None,
    bodies: Path | None = None,
) -> list[tuple[Asked, int, str]]:
    """
    Return the lines that are answered in other words than mqadmin's, or end with a code that belies the answer.

    The store is asked, or a *lake* of it; *bodies* is where we write bodies.
    """
    captured.readouterr()
    source = ("--lake", str(lake)) if lake else ("--store", str(stage.snapshot))
    place = [*source, "--release", stage.release, "--time-zone", "UTC", "--broker", "b0", "--quiet"]
    place += ["--bodies", str(bodies)] if bodies else []
    found: list[tuple[Asked, int, str]] = []
    for asked in stage.asked:
        code = cli.main(["query", "mqadmin", *place, *asked.arguments])
        sys.stdout.flush()
        ours = captured.readouterr().out.decode()
        theirs = asked.printed.stdout
        codes = {ExitCode.CLEAN} if theirs else {ExitCode.NOT_FOUND, *_SILENT.get(asked.arguments[0], ())}
        texts = {_comparable(text, asked.arguments, bodies) for text in (ours, theirs)}
        if len(texts) > 1 or code not in codes:
            found.append((asked, code, ours))
    return found


def _comparable(printed: str, line: Line, bodies: Path | None) -> str:
    text = _SPEED.sub("Topic Put TPS: 0.0", printed.replace(_CONSUMERS, "").replace(BODIES, f"{bodies}/"))
    return "\n".join(sorted(text.splitlines())) if line[0] == "topicList" else text
