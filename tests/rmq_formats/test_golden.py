"""The golden stores themselves: whole, unchanged, and each with a note on where it comes from."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from rmq_formats.release import Release
from tests.golden import ARCHIVES, FOLDER, GOLDEN, SITUATIONS, StoreOf, release_of


def _hashes_by_path(lines: Iterable[str]) -> dict[str, str]:
    return {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_HASHED = re.compile(r"[0-9a-f]{64}  \S.*")


def test_every_archive_has_the_hash_it_came_with() -> None:
    expected = _hashes_by_path((FOLDER / "SHA256SUMS").read_text().splitlines())

    answers = FOLDER.glob("*.json")

    assert expected == {path.name: _digest(path) for path in (*ARCHIVES.values(), *answers)}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_a_store(situation: StoreOf, name: str) -> None:
    place = situation(name)
    note = place / "PROVENANCE.md"
    lines = note.read_text().splitlines() if note.exists() else []
    hashes = _hashes_by_path(line for line in lines if _HASHED.fullmatch(line))

    assert any((place / "store").rglob("0*"))
    assert hashes == {path: _digest(place / path) for path in hashes}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_store_names_its_writer_and_the_hashes_of_its_files(golden: StoreOf, name: str) -> None:
    store = golden(name)
    note = (store / "PROVENANCE.md").read_text()
    hashes = _hashes_by_path(line for line in note.partition("## sha256")[2].splitlines() if len(line) > 64)
    wanted = release_of(name) if name.startswith("b") else ".".join(name.partition("-")[2])

    assert f"**{Release.of(wanted)}**" in note.splitlines()[1]
    assert hashes
    assert hashes == {path: hashlib.sha256((store / path).read_bytes()).hexdigest() for path in hashes}
