"""What tests of several packages begin with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def place(situation: Callable[[str], Path], tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.5.0 left: its store, its tier, and its answers."""
    return Path(shutil.copytree(situation("b550-tiered"), tmp_path / "place"))


@pytest.fixture
def tier(place: Path) -> Path:
    return place / "tiered"
