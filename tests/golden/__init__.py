"""Stores written by real brokers, how tests unpack them, and recorded answers of those brokers; see `README.md`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jobs.demo.tour import extract

StoreOf = Callable[[str], Path]  # the fixtures `golden` and `situation`: return the directory of a store by its name

DIRECTORY = Path(__file__).parent
_ALL = {path.name.removesuffix(".tar.xz"): path for path in sorted(DIRECTORY.glob("*.tar.xz"))}
CLUSTERS = {name: path for name, path in _ALL.items() if name.endswith("-cluster")}  # the stores of several brokers
ARCHIVES = {name: path for name, path in _ALL.items() if name not in CLUSTERS}
FIELD = tuple(name for name in ARCHIVES if name.startswith("field-"))  # situations in operation; other geometries
_FEATURES = frozenset(
    {
        "compaction", "configv2", "controller-failover", "cqcombine-rocksonly", "cqdouble", "cqdouble-later",
        "cqdouble-later-gap", "dledger-group", "indexrocks", "lmq-rockscq", "lmq-selective", "rockscq-clean",
        "rockscq-killed", "rockscq-separate", "tiered", "timerrocks", "timerwheel", "transrocks", "transrocks-killed",
    }
)  # fmt: skip
# Stores of operators' situations and of rarely used features: below `store/` of the unpacked directory, see README.md.
SITUATIONS = tuple(name for name in ARCHIVES if name.startswith("field-") or name.partition("-")[2] in _FEATURES)
GOLDEN = tuple(name for name in ARCHIVES if name not in SITUATIONS)
SCENARIO = {name: name.partition("-")[2] if name.startswith("b") else "upgraded" for name in GOLDEN}

# A broker was killed, deleted old files, or wrote while its store was copied. b533-crash-before was halted between
# append and dispatch: its newest record is not in the index.
DISTURBED = frozenset({"crash-after", "crash-later", "expired", "expired-logonly", "live"})
UNDISTURBED = tuple(name for name in GOLDEN if SCENARIO[name] not in DISTURBED and name != "b533-crash-before")


def golden_stores(*scenarios: str) -> tuple[str, ...]:
    return tuple(name for name in GOLDEN if SCENARIO[name] in scenarios)


def release_of(name: str) -> str:
    digits = name.partition("-")[0].removeprefix("b").removeprefix("up")
    return ".".join(digits)


def unpack(name: str, directory: Path) -> Path:
    if name in FIELD:
        extract(ARCHIVES[name], directory / name)
        return directory / name / "store"
    extract(ARCHIVES[name], directory)
    return directory / name


def unpack_situation(name: str, directory: Path) -> Path:
    """Unpack one of `SITUATIONS` into *directory*; return the directory that contains `store/`."""
    place = directory / name
    extract(ARCHIVES[name], place if name.startswith("field-") else directory)
    return place


def unpack_cluster(name: str, directory: Path) -> Path:
    """Unpack one of `CLUSTERS`; return the directory with a store for each broker, and `EXPECT/`."""
    extract(CLUSTERS[name], directory)
    return directory / name


FEATURES = (
    *("b533-cqdouble", "b540-cqcombine-rocksonly", "b551-configv2", "b551-cqdouble", "b551-cqdouble-later"),
    *("b551-cqdouble-later-gap", "b551-indexrocks", "b551-lmq-rockscq", "b551-lmq-selective", "b551-rockscq-clean"),
    *("b551-rockscq-killed", "b551-rockscq-separate", "b551-timerrocks", "b551-transrocks", "b551-transrocks-killed"),
)
# The number of the run after which the disk was copied: the last of four came later.
_RUN_ON_DISK = {"b551-cqdouble-later-gap": 2}
# A clean stop of 5.5.1 checks transactions again, so half messages are rewritten after the broker's answers.
WRITTEN_BY_THE_STOP = frozenset({"RMQ_SYS_TRANS_HALF_TOPIC"})


class FeatureStore(NamedTuple):
    """A broker's store, and the broker's own answers."""

    root: Path
    expected: dict[str, Any]

    @property
    def answers_before_stop(self) -> dict[str, Any]:
        runs = self.expected.get("runs")
        answers: dict[str, Any] = runs[-1] if runs else self.expected["beforeStop"]
        return answers

    @property
    def answers_on_disk(self) -> dict[str, Any]:
        run = _RUN_ON_DISK.get(self.root.parent.name)
        answers: dict[str, Any] = self.answers_before_stop if run is None else self.expected["runs"][run]
        return answers


def unpack_feature(name: str, directory: Path) -> FeatureStore:
    place = unpack_situation(name, directory)
    return FeatureStore(place / "store", json.loads((place / "EXPECT.json").read_text()))


def kill_with_database(root: Path, directory: Path) -> None:
    """Replace the RocksDB database of a store with that in *directory*, as if the broker had been killed then."""
    for file in (root / "consumequeue").iterdir():
        if file.is_file():
            file.unlink()
    for file in directory.iterdir():
        if file.is_file():
            shutil.copy(file, root / "consumequeue")
    (root / "abort").touch()
