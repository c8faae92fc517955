"""Worker processes: the results of one process, errors, and the end of all processes with the command."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
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
from jobs.store.task_modules import list_imported_task_modules
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


def find_process_slowly(process: int) -> int:
    if process == os.getpid():
        time.sleep(0.05)
    return os.getpid()


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
    (directory / str(os.getppid())).touch()
    (directory / str(os.getpid())).touch()
    time.sleep(600)


def find_mark(_: object) -> object:
    return getattr(sys, "mark_of_the_command", None)


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def list_files(_: object) -> set[str]:
    """Return what this process and the one that forked it have open, without the pipe that all errors go to."""
    places = [Path(f"/proc/{process}/fd") for process in (os.getpid(), os.getppid())]
    open_now = [one for place in places for one in place.iterdir() if one.name != "2"]
    return {one.readlink().name for one in open_now if one.is_symlink()}


@pytest.mark.parametrize(("items", "patience_s"), [(4, 1000.0), (1, 0.0)])
def test_short_work_is_done_in_this_process(items: int, patience_s: float) -> None:
    workers = ProcessWorkers({}, threads=2, processes=2, patience_s=patience_s)
    results = workers.map(range(items), find_process, "")

    assert [(number, os.getpid()) for number in range(items)] == results
    assert not workers.has_started


def test_work_that_takes_long_continues_in_processes_when_they_are_ready() -> None:
    workers = ProcessWorkers({}, threads=2, processes=2, patience_s=0.05)
    with closing(workers):
        results = workers.map([os.getpid()] * 2000, find_process_slowly, "")

    here = results.count(os.getpid())
    assert [os.getpid()] * here == results[:here]
    assert 0 < here < 2000
    assert os.getpid() not in results[here:]
    assert 2 >= len(set(results[here:]))


def test_this_process_does_the_work_until_the_others_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.store.worker_processes._ForkingProcess.is_ready", lambda _: False)
    workers = ProcessWorkers({}, threads=1, processes=2, patience_s=1e-9)
    with closing(workers):
        results = workers.map([1, 2, 3], find_process, "")
        has_started = workers.has_started

    assert [(number, os.getpid()) for number in (1, 2, 3)] == results
    assert has_started


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
import fcntl
import os
import select
import signal
import sys
import threading
from pathlib import Path
from jobs.store.worker_processes import ProcessWorkers
from tests.jobs.store.test_worker_processes import find_mark, is_locked, list_files, write_and_wait
sys.mark_of_the_command = "mark"
place = Path(sys.argv[1])
def make_workers(large_log_size=0):
    return ProcessWorkers({}, 1, 2, 0, large_log_size)
"""


def run_command(text: str, place: Path, **variables: str) -> str:
    """Return the output of a command that runs a program, without threads of numpy."""
    command = [sys.executable, "-c", _COMMAND + text, str(place)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **variables}
    return subprocess.check_output(command, env=environment, text=True, timeout=300)


def test_a_command_forks_its_workers_itself_for_a_large_log(tmp_path: Path) -> None:
    output = run_command(
        """
print(make_workers(4).map([1, 2], find_mark, "", [2, 2]))
print(make_workers(4).map([1, 2], find_mark, "", [2, 1]))
print(make_workers(4).map([1, 2], find_mark, ""))
""",
        tmp_path,
    )

    assert "['mark', 'mark']\n[None, None]\n[None, None]\n" == output


def test_a_command_with_threads_does_not_fork_its_workers_itself(tmp_path: Path) -> None:
    """A forked process would lack them, and never get a lock that they hold."""
    output = run_command(
        """
over = threading.Event()
threading.Thread(target=over.wait).start()
print(make_workers().map([1, 2], find_mark, "", [1, 1]))
over.set()
""",
        tmp_path,
    )

    assert "[None, None]\n" == output


@pytest.mark.parametrize("function", ["os.fork", "worker_processes._list_other_threads"])  # the second needs /proc
def test_a_command_that_cannot_be_forked_begins_the_work(tmp_path: Path, function: str) -> None:
    output = run_command(
        f"""
from jobs.store import worker_processes
def fail():
    raise BlockingIOError(11, "Resource temporarily unavailable")
{function} = fail
workers = ProcessWorkers({{}}, 1, 2, 1000, 0)
print(workers.map([1, 2], find_mark, "", [1, 1]), workers.has_started)
""",
        tmp_path,
    )

    assert "['mark', 'mark'] False\n" == output


def test_forked_workers_do_not_keep_locks_and_pipes_of_their_command(tmp_path: Path) -> None:
    """A second run waits for the lock of a lake, and the reader of an output for its end."""
    output = run_command(
        """
(place / "lock").touch()
lock = (place / "lock").open("rb")
fcntl.flock(lock, fcntl.LOCK_EX)
reading, writing = os.pipe()
workers = make_workers()
print(workers.map([place / "lock"] * 2, is_locked, "", [1, 1]))
lock.close()
os.close(writing)
print(workers.map([place / "lock"] * 2, is_locked, ""))
print(select.select([reading], [], [], 20)[0] == [reading])
kinds = {name.partition(":")[0] for one in workers.map([1, 2], list_files, "") for name in one}
print(sorted(kinds - {"null", "socket", "pipe", "fd"}))
""",
        tmp_path,
    )

    assert "[True, True]\n[False, False]\nTrue\n[]\n" == output


def test_forked_workers_do_not_print_what_their_command_has_not_printed_yet(tmp_path: Path) -> None:
    output = run_command(
        """
import atexit
atexit.register(print, "the end")
print("once")
workers = make_workers()
workers.map([1, 2], find_mark, "", [1, 1])
workers.close()
""",
        tmp_path,
    )

    assert "once\nthe end\n" == output


_START_OF_A_COMMAND = """
import os
import sys
from jobs import main
from jobs.command_line import cli
def count_threads(_):
    assert "numpy" not in sys.modules
    import numpy
    print(len(os.listdir("/proc/self/task")))
    return 0
cli.main = count_threads
main.main()
"""


def test_a_command_has_no_threads_of_numpy() -> None:
    """They would compute matrices, and keep the command from forking its workers."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", _START_OF_A_COMMAND]

    assert "1\n" == subprocess.check_output(command, env=environment, text=True)


_END_IN_TASK = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
make_workers().map([place] * 3, write_and_wait, "", [1] * 3)
"""


@pytest.mark.parametrize("threads", ["1", "2"])  # with two threads, a new interpreter forks the workers
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_all_processes_end_with_the_command_even_in_the_middle_of_a_task(
    tmp_path: Path, number: int, threads: str
) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads}
    command = subprocess.Popen(
        [sys.executable, "-c", _COMMAND + _END_IN_TASK, str(tmp_path)], stderr=subprocess.DEVNULL, env=environment
    )
    _wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
    processes = [int(path.name) for path in tmp_path.iterdir()]
    command.send_signal(number)
    command.wait(60)

    _wait_until(lambda: not any(map(_is_running, processes)))


def test_an_interrupt_of_the_terminal_ends_the_command_once(tmp_path: Path) -> None:
    """It is sent to all processes of the terminal: the workers leave the end and its message to the command."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = subprocess.Popen(
        [sys.executable, "-c", _COMMAND + _END_IN_TASK, str(tmp_path)],
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        text=True,
    )
    _wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
    os.killpg(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=60)

    assert 1 == errors.count("KeyboardInterrupt")


_SLOW_MODULE = """
import os
import sys
import time
from pathlib import Path
def return_item(item):
    return item
place = Path(__file__).parent
if sys.argv[0] != "-c":  # not in the command
    (place / str(os.getpid())).touch()
    while not (place / "signaled").exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_does_not_end_an_interpreter_in_its_imports(tmp_path: Path, number: int) -> None:
    """A terminal sends it to all processes: only the command ends, and prints a message."""
    (tmp_path / "slow_module.py").write_text(_SLOW_MODULE)
    program = """
from slow_module import return_item
print(make_workers().map([1, 2], return_item, ""))
"""
    command = subprocess.Popen(
        [sys.executable, "-c", _COMMAND + program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
    )
    _wait_until(lambda: any(path.name.isdecimal() for path in tmp_path.iterdir()))
    (process,) = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    os.kill(process, number)
    (tmp_path / "signaled").touch()
    output, _ = command.communicate(timeout=60)

    assert "[1, 2]\n" == output


def test_modules_of_tasks_are_listed_while_threads_import_others() -> None:
    names = [f"imported_by_a_thread_{number}" for number in range(3000)]
    is_over = threading.Event()

    def import_modules() -> None:
        while not is_over.is_set():
            sys.modules.update(dict.fromkeys(names, sys))
            for name in names:
                del sys.modules[name]

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=import_modules)
    thread.start()
    try:
        sys.setswitchinterval(1e-6)
        found = [list_imported_task_modules() for _ in range(300)]
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()

    assert [found[0]] * 300 == found


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


def test_forked_workers_have_the_results_of_one_process(golden: StoreOf, tmp_path: Path) -> None:
    store = golden("b551-base")
    output = run_command(
        f"""
from jobs.rebuild.index import rebuild_index
from jobs.rebuild.queue_run import rebuild_queues
from jobs.requests.rebuild import RebuildIndexRequest, RebuildQueuesRequest
from jobs.requests.verify import VerifyRequest
from jobs.store.workers import SerialWorkers
from jobs.verify.run import verify
for name in ("forked", "here"):
    three = [make_workers() if name == "forked" else SerialWorkers() for _ in range(3)]
    print(verify(VerifyRequest({str(store)!r}, range_size=4096), three[0]).to_dict())
    rebuild_index(RebuildIndexRequest({str(store)!r}, str(place / name / "index"), range_size=4096), three[1])
    rebuild_queues(RebuildQueuesRequest({str(store)!r}, place / name / "queues", range_size=4096), three[2])
    print([getattr(one, "has_started", None) for one in three], flush=True)
    [one.close() for one in three if name == "forked"]
""",
        tmp_path,
    )
    lines = output.splitlines()

    assert lines[0] == lines[2]
    assert ["[True, True, True]", "[None, None, None]"] == lines[1::2]
    assert _read_built_files(tmp_path / "here") == _read_built_files(tmp_path / "forked")


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
