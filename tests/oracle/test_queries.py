"""Real mqadmin and our `query mqadmin`, asked at the same moment about the same store."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.command import cli
from tests.oracle.on_scenarios import on_scenarios
from tests.oracle.plays import Plays
from tests.oracle.scenarios import SCENARIOS

Verdict = Callable[[str, str, str], None]

_BODIES = "/tmp/rocketmq/msgbodys/"
_CONSUMERS = "WARN: No Consumer"
_SPEED = re.compile(r"Topic Put TPS: [0-9.E-]+")


@on_scenarios("everyday")
def test_our_answers_are_those_of_mqadmin(  # noqa: PLR0913, PLR0917 - fixtures
    plays: Plays,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    verdict: Verdict,
    release: str,
    scenario: str,
) -> None:
    """Same text for hits; for misses mqadmin prints nothing, and we say why."""
    stage = plays.of(SCENARIOS[scenario], release).stage
    capfdbinary.readouterr()
    place = ["--store", str(stage.snapshot), "--release", release, "--time-zone", "UTC", "--broker", "b0"]
    differing = []
    for asked in stage.asked:
        code = cli.main(["query", "mqadmin", *place, "--bodies", str(tmp_path), *asked.arguments])
        sys.stdout.flush()
        ours = capfdbinary.readouterr().out.decode()
        theirs = asked.printed.stdout.replace(_BODIES, f"{tmp_path}/")
        if comparable(ours) != comparable(theirs) or code != (0 if theirs else 5):
            differing.append((asked.arguments, code, theirs, ours))

    assert len(stage.asked) > len("queries")
    assert differing == []
    verdict(release, "mqadmin's answers", f"{len(stage.asked)} lines equal")


def comparable(printed: str) -> str:
    """Leave out what only a broker knows: who took a message, messages a second."""
    return _SPEED.sub("Topic Put TPS: 0.0", printed.replace(_CONSUMERS, ""))


@on_scenarios("everyday")
def test_body_files_hold_what_mqadmin_wrote(
    plays: Plays, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], release: str, scenario: str
) -> None:
    stage = plays.of(SCENARIOS[scenario], release).stage
    place = ["--store", str(stage.snapshot), "--release", release, "--time-zone", "UTC", "--bodies", str(tmp_path)]
    for asked in stage.asked:
        cli.main(["query", "mqadmin", *place, *asked.arguments])
    capfdbinary.readouterr()
    written = {path for asked in stage.asked for path in re.findall(rf"{_BODIES}(\S+)", asked.printed.stdout)}

    assert {path.name for path in tmp_path.iterdir()} == written
    assert {name: (tmp_path / name).read_bytes() for name in written} == {
        name: Path(_BODIES, name).read_bytes() for name in written
    }
