"""
Worker processes on this machine, for work that takes one process long: only one thread at a time runs Python code.

One process forks the workers. They end when the command ends, however it ends: each waits for the end of a pipe that
only the command's process can write to. There are two ways to start the process that forks:

1. The command's process forks it before a large log is read. It has all modules and compiled functions, so the start
   takes milliseconds. But a fork loses all threads except its own, and with them the locks that they hold. So this is
   only done while there are no others, except jemalloc's, which it restarts itself.
2. A new interpreter, which imports the modules of tasks and loads compiled functions: a second of CPU time.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, NoReturn, cast

from jobs.console.progress import Work, show_progress
from jobs.store.task_modules import import_task_modules, list_imported_task_modules
from jobs.store.workers import Item, Result, Sizes, Task, map_in_threads, prepare_compiled_code, record_count
from rmq_formats.warm_up import load_compiled_parts

# For work that this process does not finish in this time, a new interpreter is started. Until it is ready, this process
# continues, so the start costs CPU time of another core, but no time.
_PATIENCE_S = 0.5
# A log of this size is read by forked processes from its beginning: their start takes less time than they save.
_LARGE_LOG_SIZE = 256 << 20
_THREADS_AFTER_FORK = {"jemalloc_bg_thd"}  # names of threads that their library starts again in a forked process
_THREAD_CHECKS, _THREAD_CHECK_S = 10, 0.002
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_MOST_KEPT, _LARGEST_BUFFER = 64 << 20, 8 << 20  # bytes of freed memory of a worker, and of one buffer in it
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_DIED = "a worker process died: it was killed by another process, or memory ran out; see the system log"
_ROOT = Path(__file__).parents[2]  # the directory with our packages


@dataclass(slots=True)
class ProcessWorkers:
    """
    This process (with threads) for short work, and processes for the rest of work that takes longer.

    Without patience, this process only does work of one item.
    """

    options: Mapping[str, str] = field(repr=False)
    threads: int
    processes: int
    patience_s: float = _PATIENCE_S
    large_log_size: int = _LARGE_LOG_SIZE
    has_repeated: bool = False
    _pool: "_Pool | None" = field(default=None, repr=False)

    @property
    def width(self) -> int:
        """The number of tasks that run in parallel."""
        return self.processes

    @property
    def has_started(self) -> bool:
        """Whether the processes exist."""
        return self._pool is not None

    def close(self) -> None:
        """End the processes; later work starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def map(self, items: Sequence[Item], task: Task[Item, Result], label: str, sizes: Sizes = ()) -> list[Result]:
        """Run *task* on items in parallel."""
        is_compiled = not sizes or prepare_compiled_code(sum(sizes))
        if self._pool is None and len(items) > 1 and is_compiled and sum(sizes) >= self.large_log_size:
            self._pool = _fork_pool(min(self.processes, len(items)), task)
        work = Work(label, sum(sizes)) if sizes else Work(label, len(items), "parts")
        results: dict[int, Result] = {}
        done = [0, 0]  # bytes or parts, and records
        try:
            with show_progress(work, lambda: done[0], lambda: done[1]):
                for number, result in self._run(task, items, self.patience_s if is_compiled else inf):
                    results[number] = result
                    done[0] += sizes[number] if sizes else 1
                    done[1] += record_count(result)
        except BaseException:  # an interrupt as well: tasks that still run must end now
            self.close()
            raise
        return [results[number] for number in range(len(items))]

    def _run(self, task: Task[Item, Result], items: Sequence[Item], patience_s: float) -> Iterator[tuple[int, Result]]:
        """Yield the number and the result of each item, as they come; start processes after *patience_s*."""
        text = _pickle_task(task)
        if text is not None and self._pool is not None and len(items) > 1:
            yield from self._pool.run(text, [*enumerate(items)])
            return
        in_processes: list[Iterator[tuple[int, Any]]] = []  # one, which works while threads end the first items

        def take_early() -> Iterator[Item]:
            """Yield items until the processes are ready, and the last in any case: processes gain nothing from one."""
            end = monotonic() + patience_s
            for number, item in enumerate(items):
                if text is not None and monotonic() >= end and number < len(items) - 1:
                    self._pool = self._pool or _Pool(self.processes, partial(_start_interpreter, task))
                    if patience_s <= 0 or self._pool.is_ready:
                        in_processes.append(self._pool.run(text, [*enumerate(items)][number:]))
                        return
                yield item

        yield from enumerate(map_in_threads(task, take_early(), self.threads))
        for results in in_processes:
            yield from results


def _pickle_task(task: Task[Any, Any]) -> bytes | None:
    """Return a task for another process; None for a task that only this process can do."""
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


class _Pool:
    """Processes that wait for tasks."""

    def __init__(self, number: int, start: "_Start") -> None:
        """Start *number* workers with *start*."""
        life, end_of_life = os.pipe()
        pairs = [socket.socketpair() for _ in range(number)]
        # The command ends its workers, if it ends; its handlers of signals run only here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
        try:
            self._forking = start(life, [other.fileno() for _, other in pairs])
        except BaseException:
            os.close(end_of_life)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(life)
            for _, other in pairs:
                other.close()
        self._connections: list[Connection[Any, Any]] = [Connection(ours.detach()) for ours, _ in pairs]
        self.close = weakref.finalize(self, _end_processes, end_of_life, self._forking, self._connections)

    @property
    def is_ready(self) -> bool:
        """Whether the workers exist, or could not be started."""
        return self._forking.is_ready()

    def run(self, text: bytes, items: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Start the task *text* for the first numbered items; return the results of all, as they come."""
        waiting = iter(items)
        working = {one: self._send(one, text, *first) for one, first in zip(self._connections, waiting, strict=False)}
        return self._receive_all(text, waiting, working)

    def _receive_all(
        self, text: bytes, waiting: Iterator[tuple[int, Any]], working: "dict[Connection[Any, Any], int]"
    ) -> Iterator[tuple[int, Any]]:
        """Yield the results of the workers that are *working* on items with numbers, and of the *waiting* items."""
        errors: dict[int, BaseException] = {}
        while working:
            for one in wait([*working]):
                connection = cast("Connection[Any, Any]", one)
                number = working.pop(connection)
                is_result, answer = self._receive(connection)
                if is_result:
                    yield number, answer
                else:
                    errors[number] = answer
                following = None if errors else next(waiting, None)
                if following is not None:
                    working[connection] = self._send(connection, text, *following)
        if errors:
            raise errors[min(errors)]

    def _send(self, connection: "Connection[Any, Any]", text: bytes, number: int, item: object) -> int:
        try:
            connection.send((text, item))
        except BrokenPipeError as error:
            raise ChildProcessError(_DIED) from error
        return number

    def _receive(self, connection: "Connection[Any, Any]") -> tuple[bool, Any]:
        try:
            return cast("tuple[bool, Any]", connection.recv())
        except (EOFError, ConnectionResetError) as error:
            raise ChildProcessError(_DIED) from error


class _ForkingProcess(NamedTuple):
    """The process that forks the workers."""

    wait_for_end: Callable[[], object]
    interpreter: "subprocess.Popen[bytes] | None" = None  # if it is a new one; its output ends when it forks

    def is_ready(self) -> bool:
        """Return whether the process has begun to fork workers, or has ended."""
        if self.interpreter is None or self.interpreter.stdout is None:
            return True
        return bool(wait([self.interpreter.stdout.fileno()], 0))

    def end(self) -> None:
        """Wait until the process and all workers have ended; they do at the end of the pipe that only we write to."""
        if self.interpreter is not None and not self.is_ready():
            self.interpreter.kill()  # in its imports it does not notice the end
        self.wait_for_end()
        if self.interpreter is not None and self.interpreter.stdout is not None:
            self.interpreter.stdout.close()


# Starts the process that forks a worker for each connection; all of them inherit the blocked signals. The arguments are
# descriptors: of the pipe that ends with the command, and of the workers' ends of the connections.
_Start = Callable[[int, Sequence[int]], _ForkingProcess]


def _end_processes(life: int, forking: _ForkingProcess, connections: "Sequence[Connection[Any, Any]]") -> None:
    """End all processes, also in the middle of a task."""
    os.close(life)
    forking.end()
    for connection in connections:
        connection.close()


def _start_interpreter(task: Task[Any, Any], life: int, connections: Sequence[int]) -> _ForkingProcess:
    """Start a new interpreter that imports the modules of this task and of the command's other tasks."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    function = task.func if isinstance(task, partial) else task
    modules = ",".join([*list_imported_task_modules(), function.__module__])
    command = [sys.executable, "-m", __name__, modules, *map(str, (life, *connections))]
    interpreter = subprocess.Popen(  # noqa: S603  our own command
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[life, *connections]
    )
    return _ForkingProcess(interpreter.wait, interpreter)


def _fork_pool(number: int, task: Task[Any, Any]) -> _Pool | None:
    """Return workers that are forked from this process; None if that is not possible."""
    try:
        if _has_lost_threads() or _pickle_task(task) is None:
            return None
        load_compiled_parts()  # this process needs them as well, if the work turns out to be short
        return _Pool(number, _fork)
    except OSError:  # no memory, too many processes, or no /proc: this process begins the work
        return None


def _has_lost_threads() -> bool:
    """Return whether this process has threads that a forked process would lack."""
    for _ in range(_THREAD_CHECKS):
        if set(_list_other_threads()) <= _THREADS_AFTER_FORK:
            return False
        sleep(_THREAD_CHECK_S)  # the last thread may be ending, although Python has joined it
    return True


def _list_other_threads() -> list[str]:
    """Return the names of all threads except this one."""
    names: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                names.append((task / "comm").read_text().strip())
    return names


def _fork(life: int, connections: Sequence[int]) -> _ForkingProcess:
    """Fork the process that forks the workers from this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python counts the threads that start again as well
        process = os.fork()
    if process == 0:
        _run_forked_process(life, connections)
    return _ForkingProcess(partial(_wait_for_end, process))


def _wait_for_end(process: int) -> None:
    with suppress(ChildProcessError):  # this process ignores SIGCHLD, so nothing is left of children
        os.waitpid(process, 0)


def _run_forked_process(life: int, connections: Sequence[int]) -> NoReturn:
    """Fork the workers, in a process that was forked in the middle of a command, to which it must not return."""
    try:
        _release_files({life, *connections})
        gc.freeze()  # a collection in a worker would copy the pages that all workers share
        _fork_workers(life, connections)
    except BaseException:  # noqa: BLE001 - the command reports that its workers have ended
        traceback.print_exc()
    finally:
        os._exit(0)


def _release_files(kept: set[int]) -> None:
    """
    Replace all inherited files but *kept* and standard error by nothing, because the command's locks end with them.

    The numbers remain used: an object of the command that closes its file must not close one that was opened later.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if number not in {*kept, nothing, 2}:
            os.dup2(nothing, number, inheritable=False)


def _fork_workers(life: int, connections: Sequence[int]) -> None:
    """Fork a worker for each connection, and wait until all of them have ended."""
    _keep_freed_memory()
    for connection in connections:
        if os.fork() == 0:
            for other in connections:
                if other != connection:
                    os.close(other)
            _work(life, Connection(connection))
    for connection in connections:
        os.close(connection)
    with suppress(ChildProcessError):  # no more children
        while True:
            os.wait()


def _keep_freed_memory() -> None:
    """
    Let this process and those that it forks use freed memory again, and not return it to the system after each range.

    Otherwise each range of the log begins with new pages for the same buffers: half of the page faults of a worker.
    """
    with suppress(AttributeError):  # not glibc
        set_option = ctypes.CDLL(None).mallopt
        set_option(_TRIM_THRESHOLD, _MOST_KEPT)
        set_option(_MMAP_THRESHOLD, _LARGEST_BUFFER)


def _work(life: int, connection: "Connection[Any, Any]") -> NoReturn:
    """Run tasks until the command's process has ended or closed its connections."""
    threading.Thread(target=_exit_at_end_of, args=[life], daemon=True).start()
    tasks: dict[bytes, Task[object, object]] = {}
    while True:
        try:
            text, item = connection.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        try:
            task = tasks.get(text) or tasks.setdefault(text, pickle.loads(text))  # noqa: S301  from our own process
            answer: tuple[bool, object] = True, task(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the command's process
            error.add_note(traceback.format_exc())
            answer = False, _pickled_error(error)
        with suppress(BrokenPipeError, ConnectionResetError):  # the command has ended
            connection.send(answer)


def _pickled_error(error: BaseException) -> BaseException:
    """Return *error*, or one with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception as reason:  # noqa: BLE001 - whatever the class does in its own methods
        return RuntimeError(f"{type(error).__name__}: {error} ({reason})")
    return error


def _exit_at_end_of(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


if __name__ == "__main__":
    import_task_modules(*sys.argv[1].split(","))
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)  # the command notices that the imports are done
    _fork_workers(int(sys.argv[2]), list(map(int, sys.argv[3:])))
