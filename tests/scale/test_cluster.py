"""A real cluster: other processes, that have nothing of ours but what spark-submit ships."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.pipeline.lakes import raw_rows
from tests.pipeline.stores import records_of, segments_of
from tests.scale.cluster import Cluster, python_workers, spark_cluster
from tests.scale.commands import rmq_lake

pytestmark = [pytest.mark.cluster, pytest.mark.campaign]

CRASHED = "Python worker exited unexpectedly"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run one cluster for all tests of this file."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@contextmanager
def killer(cluster: Cluster) -> Iterator[list[int]]:
    """Kill the first Python worker that has come to our code; give its process id."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set() and not killed:
            for process in python_workers(cluster):
                if any("shipped" in line for line in _maps(process)):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        killed.append(process)
                        return
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _maps(process: int) -> list[str]:
    """Return what a process has loaded; compiled code of ours needs NumPy's library."""
    try:
        text = Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return []
    return ["shipped" for line in text.splitlines() if "llvmlite" in line]


def test_a_cluster_ingests_what_the_scalar_layer_reads_though_a_worker_dies(
    cluster: Cluster, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Workers import the code that was shipped; a killed one's task is run again and nothing is there twice."""
    store, lake = golden("b498-base"), tmp_path / "lake"
    with killer(cluster) as killed:
        ended = rmq_lake(*cluster.spark_options, "ingest", str(store), "--lake", str(lake))

    assert 0 == ended.code, ended.err
    assert [(record.physical_offset, raw) for record, raw in records_of(segments_of(store))] == raw_rows(lake)
    assert 1 == len(killed)
    assert any(CRASHED in path.read_text(errors="replace") for path in cluster.folder.glob("work-*/*/*/stderr"))
    assert 1 == len(cluster.shipped)


def test_index_files_built_by_a_cluster_are_the_brokers_own(
    cluster: Cluster, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same SHA-256, from workers that share the output directory with the driver."""
    store, out = golden("b498-base"), tmp_path / "out"
    ended = rmq_lake(*cluster.spark_options, "rebuild-index", str(store), "--out", str(out))

    assert 0 == ended.code, ended.err
    assert _digests(store / "index") == _digests(out)


def _digests(folder: Path) -> list[str]:
    """Return the SHA-256 of each index file, in the order of their names."""
    files = sorted(path for path in folder.iterdir() if path.name.isdigit())
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
