"""Worker processes: the results of one process, errors, and the end of all processes with the command."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from jobs.ingest.run import ingest
from jobs.launch.engine import count_worker_processes
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import rebuild_queues
from jobs.requests.ingest import IngestRequest
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.worker_processes import ProcessWorkers
from jobs.store.workers import SerialWorkers, Workers
from jobs.verify.run import verify
from rmq_formats.errors import CorruptData
from tests.golden import StoreOf
from tests.support.lakes import rows_of
from tests.support.stores import read_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems use threads")
GIB = 1 << 30


@pytest.fixture
def workers() -> Iterator[ProcessWorkers]:
    """Two processes that do all work."""
    workers = ProcessWorkers({}, threads=1, processes=2, patience_s=0)
    yield workers
    workers.close()


def find_process(number: int) -> tuple[int, int]:
    return number, os.getpid()


def find_process_slowly(number: int) -> tuple[int, int]:
    time.sleep(0.1)  # three times more than patience allows
    return number, os.getpid()


def fail_at_three_and_five(number: int) -> int:
    if number == 3:
        time.sleep(0.1)
        raise CorruptData("the fourth item", 7, "commitlog/0")
    if number == 5:
        raise FileNotFoundError(errno.ENOENT, "the sixth item", "file")
    return number


def kill_this_process(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL if number == 2 else 0)  # 0 does nothing


def write_and_wait(directory: Path) -> None:
    (directory / str(os.getpid())).touch()
    time.sleep(600)


@pytest.mark.parametrize(("items", "patience_s"), [(4, 1000.0), (1, 0.0)])
def test_short_work_is_done_in_this_process(items: int, patience_s: float) -> None:
    workers = ProcessWorkers({}, threads=2, processes=2, patience_s=patience_s)
    results = workers.map(range(items), find_process, "")

    assert [(number, os.getpid()) for number in range(items)] == results
    assert not workers.has_started


def test_work_that_takes_long_continues_in_processes() -> None:
    workers = ProcessWorkers({}, threads=1, processes=2, patience_s=0.2)
    with closing(workers):
        results = workers.map(range(6), find_process_slowly, "")

    assert list(range(6)) == [number for number, _ in results]
    assert results[0][1] == os.getpid()
    assert results[5][1] != os.getpid()


def test_results_of_other_processes_are_in_the_order_of_the_items(workers: ProcessWorkers) -> None:
    results = workers.map(range(40), find_process, "", [1] * 40)
    later = workers.map(range(4), find_process, "")

    assert list(range(40)) == [number for number, _ in results]
    assert os.getpid() not in {process for _, process in results}
    assert {process for _, process in later} <= {process for _, process in results}


def test_the_first_error_in_the_order_of_the_items_is_raised_as_it_was(workers: ProcessWorkers) -> None:
    with pytest.raises(CorruptData, match="the fourth item") as raised:
        workers.map(range(8), fail_at_three_and_five, "", [1] * 8)

    assert "commitlog/0" == raised.value.file
    assert 7 == raised.value.offset
    assert [0, 1, 2] == workers.map(range(3), fail_at_three_and_five, "", [1] * 3)


def test_an_error_of_the_system_names_its_file(workers: ProcessWorkers) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        workers.map([5, 6], fail_at_three_and_five, "", [1, 1])

    assert "file" == raised.value.filename
    assert errno.ENOENT == raised.value.errno


def test_a_killed_worker_is_an_error(workers: ProcessWorkers) -> None:
    with pytest.raises(ChildProcessError, match="a worker process died"):
        workers.map(range(4), kill_this_process, "", [1] * 4)


_COMMAND = """
import signal
import sys
from pathlib import Path
from jobs.store.worker_processes import ProcessWorkers
from tests.jobs.store.test_worker_processes import write_and_wait
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
ProcessWorkers({}, 1, 2, 0).map([Path(sys.argv[1])] * 3, write_and_wait, "", [1] * 3)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_all_processes_end_with_the_command_even_in_the_middle_of_a_task(tmp_path: Path, number: int) -> None:
    command = subprocess.Popen([sys.executable, "-c", _COMMAND, str(tmp_path)], stderr=subprocess.DEVNULL)
    _wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    processes = [int(path.name) for path in tmp_path.iterdir()]
    command.send_signal(number)
    command.wait(60)

    _wait_until(lambda: not any(map(_is_running, processes)))


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # the process that reaps orphans may be slow


def _wait_until(is_done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["b551-base", "b498-base"])
def test_commands_have_the_results_of_one_process(
    golden: StoreOf, tmp_path: Path, workers: ProcessWorkers, name: str
) -> None:
    store = golden(name)
    results = []
    both: list[Workers] = [SerialWorkers(), workers]
    for number, each in enumerate(both):
        directory = tmp_path / str(number)
        ingest(IngestRequest(str(store), str(directory / "lake")), each)
        rebuild_index(RebuildIndexRequest(str(store), str(directory / "index")), each)
        rebuild_queues(RebuildQueuesRequest(str(store), directory / "queues"), each)
        results.append(
            (
                verify(VerifyRequest(str(store)), each),
                _stable_rows(directory / "lake", ["messages", "consume_queue", "index_entries"]),
                _read_built_files(directory / "index"),
                _read_built_files(directory / "queues"),
            )
        )

    assert workers.has_started
    assert results[0] == results[1]


def _stable_rows(lake: Path, tables: Sequence[str]) -> list[list[str]]:
    """Return the rows without what each run draws, in an order that does not depend on the files."""
    drawn = {"store_id": None, "ingested_at": None}
    return [sorted(str({**row, **drawn}) for row in rows_of(lake, table)) for table in tables]


def _read_built_files(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_files(directory).items() if "MANIFEST" not in name}


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [(1, 64 * GIB, 0), (2, 64 * GIB, 2), (16, 64 * GIB, 16), (16, 4 * GIB, 4), (4, GIB, 0)],
)
def test_each_worker_has_a_core_and_a_gibibyte(
    cores: int, memory: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.launch.engine.count_memory", lambda: memory)

    assert expected == count_worker_processes(cores)
