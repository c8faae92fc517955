"""Random mqadmin lines: a live broker's answers and ours are the same text."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.oracle.answers import differing_answers
from tests.oracle.mqadmin_lines import stage_of
from tests.oracle.stage import Line
from tests.oracle.test_queries import comparable

_LINES = ("4.5.2", "4.9.8", "5.1.0", "5.3.3", "5.5.0")
_IN_EVERY_RUN = frozenset({"4.9.8", "5.5.0"})
_SEED = 20
_BODIES = "/tmp/rocketmq/msgbodys/"


def _modest_and_many() -> Sequence[object]:
    few = [
        pytest.param(version, 25, id=f"{version}-25", marks=[pytest.mark.oracle, pytest.mark.slow])
        for version in _LINES
        if version in _IN_EVERY_RUN
    ]
    return [*few, *(pytest.param(version, 80, id=f"{version}-80", marks=pytest.mark.campaign) for version in _LINES)]


@pytest.mark.parametrize(("version", "count"), _modest_and_many())
def test_random_lines_are_answered_as_a_live_broker_answers_them(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], version: str, count: int
) -> None:
    """With times, limits, charsets and collisions; what differs would have to have a name here, and nothing has."""
    stage = stage_of(version, tmp_path, _SEED, count)
    bodies = tmp_path / "bodies"

    def _comparable(text: str, line: Line) -> str:
        del line
        return comparable(text.replace(_BODIES, f"{bodies}/"))

    differing = differing_answers(stage, capfdbinary, "--bodies", str(bodies), comparable=_comparable)

    assert len(stage.asked) == count
    assert differing == []
