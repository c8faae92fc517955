"""Segments that the driver sees and workers do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.store.workers import Item, OneByOne, Result, unseen


@dataclass(frozen=True)
class _Elsewhere(OneByOne):
    """Workers of a machine that has not all files of the driver's."""

    width: int = 2
    lacking: Path = Path("/")
    deleted: bool = False  # by retention, on both machines

    def map(self, items: Sequence[Item], task: Callable[[Item], Result], label: str = "working") -> list[Result]:
        away = self.lacking.rename(self.lacking.with_suffix(".away"))
        results = super().map(items, task, label)
        if not self.deleted:
            away.rename(self.lacking)
        return results


@pytest.mark.parametrize("deleted", [False, True])
def test_files_that_workers_lack_are_found_but_for_those_deleted_meanwhile(tmp_path: Path, *, deleted: bool) -> None:
    files = [tmp_path / f"{start:020d}" for start in (0, 16384, 32768)]
    for file in files:
        file.touch()
    locations = [*map(str, files), "s3a://bucket/commitlog/0"]

    assert [] == unseen(OneByOne(), locations)
    assert ([] if deleted else [str(files[1])]) == unseen(_Elsewhere(lacking=files[1], deleted=deleted), locations)
