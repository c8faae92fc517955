"""What a live mqadmin printed and what is printed here, of the lines that a stage has asked."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.command import cli
from jobs.console.exit_codes import ExitCode
from tests.oracle.releases import NEWEST_OF_TWO_LINES
from tests.oracle.stage import Line, Stage

# What it has found it prints, or counts, only where it is asked to.
_SILENT = {"printMsgByQueue": (ExitCode.CLEAN,)}


def on_releases(*releases: str) -> pytest.MarkDecorator:
    """Run a test on each `version`: in every run of brokers on the newest of two lines, else in the campaign."""
    often, rarely = [pytest.mark.oracle, pytest.mark.slow], [pytest.mark.campaign]
    marks = {release: often if release in NEWEST_OF_TWO_LINES else rarely for release in releases}
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
    *options: str,
    lake: Path | None = None,
    comparable: Callable[[str, Line], str] = _as_it_is,
) -> Sequence[Differing]:
    """
    Return the lines that are answered in other words than mqadmin's, or end with a code that belies the answer.

    The store is asked, or a *lake* of it.
    """
    captured.readouterr()
    source = ("--lake", str(lake)) if lake else ("--store", str(stage.snapshot))
    place = [*source, "--release", stage.release, "--time-zone", "UTC", "--broker", "b0"]
    found = []
    for asked in stage.asked:
        code = cli.main(["query", "mqadmin", *place, "--quiet", *options, *asked.arguments])
        sys.stdout.flush()
        ours = captured.readouterr().out.decode()
        theirs = asked.printed.stdout
        is_same = comparable(ours, asked.arguments) == comparable(theirs, asked.arguments)
        codes = {ExitCode.CLEAN} if theirs else {ExitCode.NOT_FOUND, *_SILENT.get(asked.arguments[0], ())}
        if not is_same or code not in codes:
            found.append(Differing(asked.arguments, code, theirs, asked.printed.stderr, ours))
    return found
