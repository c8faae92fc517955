"""A task that dies and is done again, as Spark does: what its first attempt had begun is not among the results."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.lake.lake import Lake
from jobs.rebuild import queue_run
from jobs.rebuild.index import RebuildIndexRequest, rebuild
from jobs.repair.run import RepairRequest, repair
from jobs.restore.run import RestoreRequest, restore
from jobs.store.workers import Item, OneByOne, Result, Workers
from tests.golden import StoreOf
from tests.support.lakes import ingest_store
from tests.support.stores import flip, segments_of

STORE = "b498-base"


class _Killed(BaseException):
    """Stands for a signal that ends a process at once."""


class _Dying(OneByOne):
    """Workers each of whose tasks is killed once, as it would give its work a name; nothing is cleaned up then."""

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        for item in () if sizes else items:
            with (
                patch.object(Path, "rename", side_effect=_Killed),
                patch.object(Path, "unlink"),
                patch("jobs.rebuild.queues.rmtree"),
                suppress(_Killed),
            ):
                task(item)
        return OneByOne.map(self, items, task, label, sizes)


def index(store: Path, out: Path, workers: Workers) -> None:
    rebuild(RebuildIndexRequest(str(store), str(out)), workers)


def queues(store: Path, out: Path, workers: Workers) -> None:
    queue_run.rebuild(queue_run.RebuildQueuesRequest(str(store), out), workers)


def lake_of(store: Path, out: Path) -> Lake:
    lake = out.with_name("lake")
    if not lake.exists():
        ingest_store(store, lake)
    return Lake(str(lake))


def whole_store(store: Path, out: Path, workers: Workers) -> None:
    restore(RestoreRequest(lake_of(store, out), out), workers)


def segment(store: Path, out: Path, workers: Workers) -> None:
    lake, damaged = lake_of(store, out), Path(shutil.copytree(store, out.with_name(f"{out.name}-store")))
    flip(segments_of(damaged)[0], 2000)
    assert repair(RepairRequest(str(damaged), out, lake), workers).files


@pytest.mark.parametrize("made", [index, queues, whole_store, segment])
def test_what_an_attempt_that_died_had_begun_is_not_left(
    golden: StoreOf, tmp_path: Path, made: Callable[[Path, Path, Workers], None]
) -> None:
    for name, workers in (("once", OneByOne()), ("again", _Dying())):
        made(golden(STORE), tmp_path / name, workers)

    whole, again = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("once", "again")
    )
    assert whole == again
