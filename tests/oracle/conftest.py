"""
Real RocketMQ for tests.

Tests take a `release` and perhaps a `scenario`. For every change, each test runs on one release of the two newest
lines; on other releases it is marked `campaign`, and runs in `make test-matrix`, which writes the results into the
tables of docs/internals/compatibility.md, whose text, rows and columns are written by hand.
"""

import fcntl
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.oracle.plays import PlayedScenario
from tests.oracle.releases import MATRIX, in_every_run, marks, version_of
from tests.oracle.scenarios import SCENARIOS, Scenario

Plays: TypeAlias = Callable[[Scenario, str], PlayedScenario]
Verdict: TypeAlias = Callable[[str, str, str], None]
_QUICK = ("edges", "killed")
"""Scenarios that every run of brokers plays: a test has the first one that it names. The others take longer."""
_PAGE = Path(__file__).parents[2] / "docs" / "internals" / "compatibility.md"
_SHARED = {"broker", "plays"}  # fixtures that several tests use
_WORDS_OF_A_KIND = 4  # leading cells that identify a row of the table of store kinds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with the fixture `release` on each release, and those with `scenario` on each supported scenario."""
    if "release" not in metafunc.fixturenames:
        return
    node = metafunc.definition
    scenarios = node.get_closest_marker("scenarios")
    if scenarios is None:
        since = node.get_closest_marker("since")
        oldest = version_of(since.args[0]) if since else version_of(MATRIX[0])
        releases = [release for release in MATRIX if version_of(release) >= oldest]
        chosen = in_every_run(node.name, releases)
        metafunc.parametrize(
            "release", [pytest.param(one, id=one, marks=marks(in_every_run=one == chosen)) for one in releases]
        )
        return
    short = [name for name in scenarios.args if name in _QUICK]
    every_run = (in_every_run(short[0], MATRIX), short[0]) if short else None
    metafunc.parametrize(
        ("release", "scenario"),
        [
            pytest.param(release, name, id=f"{release}-{name}", marks=marks(in_every_run=(release, name) == every_run))
            for release in MATRIX
            for name in scenarios.args
            if SCENARIOS[name].runs_on(release)
        ],
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let whichever worker is free run a test that starts brokers of its own, and no broker or play of other tests."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not _SHARED & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.xdist_group(item.name))


@pytest.fixture(scope="session")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Plays:
    """Return a function that plays each scenario on each release at most once."""
    folder = tmp_path_factory.mktemp("plays")

    @cache
    def play_once(scenario: Scenario, release: str) -> PlayedScenario:
        place = folder / release / scenario.name
        return PlayedScenario(scenario, scenario.on(release, place / "store", place / "scratch"))

    return play_once


@pytest.fixture(scope="session")
def verdict() -> Verdict:
    """Return a function that records the result of a scenario on a release, if `make test-matrix` requests it."""

    def write(release: str, way: str, words: str) -> None:
        if "ORACLE_VERDICTS" in os.environ:
            with _PAGE.open("r+", encoding="utf-8") as page:
                fcntl.flock(page, fcntl.LOCK_EX)
                text = _with_verdict(page.read(), release, way, words)
                page.seek(0)
                page.write(text)
                page.truncate()

    return write


def _with_verdict(page: str, release: str, way: str, words: str) -> str:
    """Return the page with a new cell: the release is the row and the test the column, or the reverse."""
    lines, names, is_found = page.split("\n"), list[str](), False
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != len(names):
            names = cells
            continue
        for column, name in enumerate(names):
            if column and (release, way) in {(cells[0], name), (name, " | ".join(cells[:_WORDS_OF_A_KIND]))}:
                cells[column], is_found = words, True
                lines[number] = f"| {' | '.join(cells)} |"
    if not is_found:
        raise KeyError(f"{_PAGE.name} has no cell for {way} on {release}")
    return "\n".join(lines)
