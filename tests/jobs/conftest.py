"""What tests of several packages begin with."""

import shutil
from pathlib import Path

import pytest

from tests.golden import StoreOf
from tests.support.broker import Broker
from tests.support.commands import Run, runner


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "store")


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.3.3 left."""
    return Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))


@pytest.fixture
def place(situation: StoreOf, tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.5.0 left: its store, its tier, and its answers."""
    return Path(shutil.copytree(situation("b550-tiered"), tmp_path / "place"))


@pytest.fixture
def tier(place: Path) -> Path:
    return place / "tiered"
