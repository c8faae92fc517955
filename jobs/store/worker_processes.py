"""
Worker processes on this machine, for work that takes one process long: only one thread at a time runs Python code.

A process imports the modules of tasks once, and forks the workers. They end when the command ends, however it ends:
each waits for the end of a pipe that only the command's process can write to.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, cast

from jobs.console.progress import Work, show_progress
from jobs.store.task_modules import import_task_modules
from jobs.store.workers import Item, Result, Sizes, Task, map_in_threads, prepare_compiled_code, record_count

# Work that this process does not finish in this time continues in processes. Their start takes about as long, so that
# no work takes more than twice the time of the better choice.
_PATIENCE_S = 1.0
_DIED = "a worker process died: it was killed by another process, or memory ran out; see the system log"
_ROOT = Path(__file__).parents[2]  # the directory with our packages


@dataclass(slots=True)
class ProcessWorkers:
    """This process (with threads) for short work, and processes for the rest of work that takes longer."""

    options: Mapping[str, str] = field(repr=False)
    threads: int
    processes: int
    patience_s: float = _PATIENCE_S
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
        first = 0  # of the items for the processes
        text = _pickle_task(task)
        if text is None:
            patience_s = inf
        if self._pool is None or len(items) <= 1:
            early = _take_until(monotonic() + patience_s, items)
            for first, result in enumerate(map_in_threads(task, early, self.threads), 1):
                yield first - 1, result
        if first < len(items):
            self._pool = self._pool or _Pool(self.processes, task)
            for number, result in self._pool.run(text or b"", items[first:]):
                yield first + number, result


def _take_until(end: float, items: Sequence[Item]) -> Iterator[Item]:
    """Yield items until the time *end*, and the last one in any case, because processes gain nothing from one item."""
    for number, item in enumerate(items, 1):
        if monotonic() >= end and number < len(items):
            return
        yield item


def _pickle_task(task: Task[Any, Any]) -> bytes | None:
    """Return a task for another process; None for a task that only this process can do."""
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


class _Pool:
    """Processes that wait for tasks."""

    def __init__(self, number: int, task: Task[Any, Any]) -> None:
        """Fork *number* workers, after the import of the module of *task*."""
        life, end_of_life = os.pipe()
        pairs = [socket.socketpair() for _ in range(number)]
        theirs = [other.fileno() for _, other in pairs]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        function = task.func if isinstance(task, partial) else task
        command = [sys.executable, "-m", __name__, function.__module__, *map(str, (life, *theirs))]
        try:
            forking = subprocess.Popen(  # noqa: S603  our own command
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[life, *theirs]
            )
        finally:
            os.close(life)
            for _, other in pairs:
                other.close()
        self._connections: list[Connection[Any, Any]] = [Connection(ours.detach()) for ours, _ in pairs]
        self.close = weakref.finalize(self, _end_processes, end_of_life, forking, self._connections)

    def run(self, text: bytes, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the result of the task *text* for each item, with the item's number, as they come."""
        errors: dict[int, BaseException] = {}
        waiting = iter(enumerate(items))
        working = {one: self._send(one, text, *first) for one, first in zip(self._connections, waiting, strict=False)}
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


def _end_processes(
    life: int, forking: "subprocess.Popen[bytes]", connections: "Sequence[Connection[Any, Any]]"
) -> None:
    """End all processes, also in the middle of a task."""
    os.close(life)
    forking.wait()
    for connection in connections:
        connection.close()


def _fork_workers(module: str, life: int, connections: Sequence[int]) -> None:
    """Fork a worker for each connection, and wait until all of them have ended."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the command ends its workers, if it ends
    import_task_modules(module)
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
    _fork_workers(sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[3:])))
