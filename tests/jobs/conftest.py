"""Fixtures shared by tests of several packages."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import StoreOf
from tests.support.broker import Broker
from tests.support.lakes import ingest_store


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "store")


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Copy a store of a broker of 5.3.3."""
    return Path(shutil.copytree(golden("b533-base"), tmp_path / "store"))


@pytest.fixture
def newer_store(golden: StoreOf, tmp_path: Path) -> Path:
    """Copy a store of a broker of 5.5.1."""
    return Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))


@pytest.fixture(scope="session")
def newer_lake(golden: StoreOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the lake of a store of 5.5.1; it is shared, so copy it before you change anything."""
    lake = tmp_path_factory.mktemp("newer") / "lake"
    ingest_store(golden("b551-base"), lake, "b0", hash_slots=100, index_num=20)
    return lake


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of four MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield place
    # An exception or a thread of a library may still keep a file open for a moment.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """Count the bytes that this process reads from each file, by inode."""
    counted: Counter[int] = Counter()
    preadv = os.preadv

    def count_bytes(descriptor: int, *rest: Any) -> int:  # noqa: ANN401
        count = preadv(descriptor, *rest)
        counted[os.fstat(descriptor).st_ino] += count
        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", count_bytes)
        yield counted
