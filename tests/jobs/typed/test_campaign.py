"""Bodies of each format by the thousand, and by the million: see `tests.support.typing_campaign`."""

import os
from pathlib import Path

import pytest

from tests.support.commands import result_of
from tests.support.typing_campaign import FORMATS, campaign


@pytest.mark.parametrize("name", FORMATS)
def test_each_of_many_bodies_is_a_row_or_a_dead_letter_with_the_planted_reason(name: str, tmp_path: Path) -> None:
    found = campaign(name, tmp_path, 3000)

    assert 2970 == found["planted"]["rows"]
    assert found["fuzzed"]["rows"] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", FORMATS)
def test_each_of_a_million_bodies_is_a_row_or_a_dead_letter(name: str, tmp_path: Path) -> None:
    count = int(os.environ.get("BODIES", "1000000"))

    found = result_of("tests.support.typing_campaign", name, tmp_path, count)

    assert count - count // 100 == found["planted"]["rows"]
