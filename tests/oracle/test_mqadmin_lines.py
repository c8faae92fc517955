"""Random mqadmin lines: a live broker's answers and ours are the same text."""

from pathlib import Path

import pytest

from tests.oracle.answers import differing_answers
from tests.oracle.mqadmin_lines import stage_of

_IN_EVERY_RUN = pytest.param("5.5.0", 25, marks=[pytest.mark.oracle, pytest.mark.slow])
_MANY = [
    pytest.param(release, 80, marks=pytest.mark.campaign) for release in ("4.5.2", "4.9.8", "5.1.0", "5.3.3", "5.5.0")
]
_SEED = 20


@pytest.mark.parametrize(("version", "count"), [_IN_EVERY_RUN, *_MANY])
def test_random_lines_are_answered_as_a_live_broker_answers_them(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], version: str, count: int
) -> None:
    """With times, limits, charsets and collisions; what differs would have to have a name here, and nothing has."""
    stage = stage_of(version, tmp_path, _SEED, count)

    assert len(stage.asked) == count
    assert differing_answers(stage, capfdbinary, bodies=tmp_path / "bodies") == []
