"""Scenarios played once for all tests that look at what they leave."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from rmq_formats.commitlog.record import MessageRecord
from tests.oracle.judge import Derived, Writer, by_scalar, list_index_files, on_disk, records
from tests.oracle.scenarios import Scenario
from tests.oracle.stage import Stage


@dataclass(frozen=True)
class Played:
    """A store that a scenario left, and what is known about it."""

    scenario: Scenario
    stage: Stage

    @property
    def store(self) -> Path:
        return self.stage.store_directory

    @cached_property
    def log(self) -> list[MessageRecord]:
        return records(self.store)

    @cached_property
    def writer(self) -> Writer:
        stage = self.stage
        return Writer(tuple(stage.rules), stage.geometry, stage.settings, frozenset(stage.batch_topics))

    @cached_property
    def disk(self) -> Derived:
        return on_disk(self.store)

    def copy(self, directory: Path) -> Path:
        return shutil.copytree(self.store, directory / f"copy-{uuid4()}")


class Plays:
    """Plays each scenario on each release at most once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._played: dict[tuple[str, str], Played] = {}

    def of(self, scenario: Scenario, release: str) -> Played:
        key = (scenario.name, release)
        if key not in self._played:
            place = self._directory / release / scenario.name
            place.mkdir(parents=True)
            self._played[key] = Played(scenario, scenario.on(release, place / "store", place / "scratch"))
        return self._played[key]


def fill_store(release: str, scenario: Scenario, store: Path, scratch: Path) -> Played:
    scratch.mkdir(parents=True, exist_ok=True)
    return Played(scenario, scenario.on(release, store, scratch))


def install_ours(store: Path, log: list[MessageRecord], writer: Writer) -> None:
    """Put what we make of *log* in place of a store's own queues and index files, under the names that those had."""
    names = [path.name for path in list_index_files(store)]
    made = by_scalar(log, writer)
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(store / folder, ignore_errors=True)
    for path, data in made.queues.items():
        target = store / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (store / "index").mkdir()
    for name, data in zip(names, made.index_files, strict=True):
        (store / "index" / name).write_bytes(data)
