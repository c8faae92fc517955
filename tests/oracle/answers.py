"""What a live mqadmin printed and what is printed here, of the lines that a stage has asked."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from tests.oracle.stage import Line, Stage

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


class Differing(NamedTuple):
    """A line that is answered in two ways."""

    arguments: Line
    code: int
    theirs: str
    their_errors: str
    ours: str


def _as_it_is(text: str, line: Line) -> str:
    del line
    return text


def differing_answers(
    stage: Stage,
    captured: pytest.CaptureFixture[bytes],
    *,
    lake: Path | None = None,
    bodies: Path | None = None,
    comparable: Callable[[str, Line], str] = _as_it_is,
) -> Sequence[Differing]:
    """
    Return the lines that are answered in other words than mqadmin's, or end with a code that belies the answer.

    The store is asked, or a *lake* of it; *bodies* is where we write bodies.
    """
    captured.readouterr()
    source = ("--lake", str(lake)) if lake else ("--store", str(stage.snapshot))
    place = [*source, "--release", stage.release, "--time-zone", "UTC", "--broker", "b0", "--quiet"]
    place += ["--bodies", str(bodies)] if bodies else []
    found = []
    for asked in stage.asked:
        code = cli.main(["query", "mqadmin", *place, *asked.arguments])
        sys.stdout.flush()
        ours = captured.readouterr().out.decode()
        theirs = asked.printed.stdout
        codes = {ExitCode.CLEAN} if theirs else {ExitCode.NOT_FOUND, *_SILENT.get(asked.arguments[0], ())}
        texts = {comparable(_known_to_stores(text, bodies), asked.arguments) for text in (ours, theirs)}
        if len(texts) > 1 or code not in codes:
            found.append(Differing(asked.arguments, code, theirs, asked.printed.stderr, ours))
    return found


def _known_to_stores(printed: str, bodies: Path | None) -> str:
    return _SPEED.sub("Topic Put TPS: 0.0", printed.replace(_CONSUMERS, "").replace(BODIES, f"{bodies}/"))
