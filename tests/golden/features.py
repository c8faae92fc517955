"""Stores of brokers of 5.x with switches that 4.x has not, each beside what the broker itself answered."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden import unpack_situation

FEATURES = (
    *("b533-cqdouble", "b540-cqcombine-rocksonly", "b551-configv2", "b551-cqdouble", "b551-cqdouble-later"),
    *("b551-cqdouble-later-gap", "b551-indexrocks", "b551-lmq-rockscq", "b551-lmq-selective", "b551-rockscq-clean"),
    *("b551-rockscq-killed", "b551-rockscq-separate", "b551-timerrocks", "b551-transrocks", "b551-transrocks-killed"),
)
# Which run the disk is of: the last of four came after the copy.
_RUN_ON_DISK = {"b551-cqdouble-later-gap": 2}
# A clean stop of 5.5.1 checks transactions once more: half messages come again after the broker was asked.
WRITTEN_BY_THE_STOP = frozenset({"RMQ_SYS_TRANS_HALF_TOPIC"})


class FeatureStore(NamedTuple):
    """One store as the broker left it, and the broker's own answers."""

    root: Path
    expected: dict[str, Any]

    @property
    def before_stop(self) -> dict[str, Any]:
        runs = self.expected.get("runs")
        answers: dict[str, Any] = runs[-1] if runs else self.expected["beforeStop"]
        return answers

    @property
    def of_disk(self) -> dict[str, Any]:
        run = _RUN_ON_DISK.get(self.root.parent.name)
        answers: dict[str, Any] = self.before_stop if run is None else self.expected["runs"][run]
        return answers


def unpack_feature(name: str, folder: Path) -> FeatureStore:
    place = unpack_situation(name, folder)
    return FeatureStore(place / "store", json.loads((place / "EXPECT.json").read_text()))


def kill_with_database(root: Path, folder: Path) -> None:
    """Leave a store as a killed broker would that had put no more into RocksDB than the database in *folder*."""
    for file in (root / "consumequeue").iterdir():
        if file.is_file():
            file.unlink()
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, root / "consumequeue")
    (root / "abort").touch()
