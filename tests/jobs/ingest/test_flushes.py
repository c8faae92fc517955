"""What a run writes is on the disk before what names it: a power loss takes away an end, never a beginning."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.broker import Broker, some_records
from tests.support.lakes import ingest_store


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="which file is flushed is read from Linux's /proc")
def test_files_are_flushed_before_the_commit_that_names_them_and_the_commit_before_the_run_goes_on(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "store", dispatches=True)
    broker.append(some_records(30))
    lake = tmp_path / "lake"
    flushed: list[tuple[Path, set[Path]]] = []  # and the commits that there were

    def noted(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path, {*lake.glob("*/_delta_log/*.json")}))
        fsync(descriptor)

    def after(start: int, path: Path) -> int:
        return next(number for number, (one, _) in enumerate(flushed) if number >= start and one == path)

    with patch.object(os, "fsync", noted):
        ingest_store(broker.root, lake)

    named = 0
    for commit in lake.glob("*/_delta_log/*.json"):
        table = commit.parent.parent
        adds = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
        for path in (table / add["path"] for add in adds if add):
            directory = after(after(0, path), table)
            assert commit not in flushed[directory][1]
            after(after(directory, commit), commit.parent)
            named += 1
    assert named > 5
    [manifest] = (lake / "_manifests").iterdir()
    written = next(number for number, (path, _) in enumerate(flushed) if manifest.name in path.name)
    held = flushed[after(written, manifest.parent)][1]
    prepared = next(one for one in (lake / "runs" / "_delta_log").glob("*.json") if "-prepared-" in one.read_text())
    assert prepared not in held
