"""A disk that is full at any stage: the file is named, nothing is lost, and the same command ends well later."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.export.export import Asked, Output, export, plan
from jobs.export.parts import Format
from jobs.launch.failures import one_line
from jobs.products.index.settings import Wanted
from jobs.query.place import Place
from jobs.rebuild import index
from jobs.store.workers import OneByOne
from rmq_formats.release import NEWEST
from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store, raw_rows

BLOCK = 4096
FREE = (1, 4, 6, 24)  # blocks: from the first directory to the last commit


def _ingest(store: Path, disk: Path) -> object:
    ingest_store(store, disk / "lake", "b", range_size=4096)
    return raw_rows(disk / "lake")


def _export_as(kind: Format) -> Callable[[Path, Path], object]:
    def run(store: Path, disk: Path) -> object:
        export(plan(Asked(Place(store=str(store))), {}), NEWEST, Output(disk / "out", kind), OneByOne())
        if kind is Format.PARQUET:
            return pq.read_table(disk / "out").column("physical_offset").to_pylist()
        return [int(json.loads(line)["physical_offset"]) for line in (disk / "out").read_text().splitlines()]

    return run


def _rebuild(store: Path, disk: Path) -> object:
    request = index.RebuildIndexRequest(str(store), str(disk / "index"), Wanted(100, 20, "5.3.3"))
    return [(file.name, file.sha256) for file in index.rebuild(request, OneByOne()).files]


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "ingest": _ingest,
    "export to NDJSON": _export_as(Format.NDJSON),
    "export to Parquet": _export_as(Format.PARQUET),
    "rebuild-index": _rebuild,
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full_at_any_stage_is_named_and_the_same_command_ends_well_later(
    verb: str, free: int, small_disk: Path, broker: Broker, tmp_path: Path
) -> None:
    broker.append(some_records(200))
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - free * BLOCK))
    try:
        VERBS[verb](broker.root, small_disk)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be said well
        line = one_line(error)
        assert "o space left" in line
        assert str(small_disk) in line
    (small_disk / "filler").unlink()
    (tmp_path / "elsewhere").mkdir()

    assert VERBS[verb](broker.root, tmp_path / "elsewhere") == VERBS[verb](broker.root, small_disk)
