"""Fixtures shared by tests of several packages."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden import StoreOf
from tests.support.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "store")


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.3.3 left."""
    return Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))


@pytest.fixture
def newer_store(golden: StoreOf, tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.5.1 left."""
    return Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))


@pytest.fixture
def place(situation: StoreOf, tmp_path: Path) -> Path:
    """Give a copy of what a broker of 5.5.0 left: its store, its tier, and its answers."""
    return Path(shutil.copytree(situation("b550-tiered"), tmp_path / "place"))


@pytest.fixture
def tier(place: Path) -> Path:
    return place / "tiered"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of four MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield place
    # What an exception still holds, or a thread of a library, may have a file open there for a moment.
    subprocess.run(["umount", "--lazy", str(place)], check=True)
