"""
The worker processes that answer the requests of pages; each answers one request at a time.

A lake query runs in compiled code that can only be interrupted by ending its process. So if a request exceeds its
deadline, or its browser disconnects, its process is killed, and the next request starts another one.
"""

import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from jobs.browse.requests import PageReply, PageRequest
from jobs.requests.query import QueryTarget

_MOST = 8  # questions that are answered at the same time; further ones wait
_KEPT = 2  # processes that wait for the next request

# A new process, not a fork of this one: a fork would copy locks that threads of libraries hold.
_PROCESSES = get_context("spawn")


class PageWorkers:
    """The processes that answer requests about one store or lake."""

    def __init__(self, target: QueryTarget, work: Callable[[Connection, QueryTarget], None] | None = None) -> None:
        """Start the first process before the first request arrives; *work* is the function that processes run."""
        self.target = target
        self._work = work or serve_page_requests
        self._idle = [_start_worker(target, self._work)]
        self._turns = asyncio.Semaphore(_MOST)
        # Each waits for one process; the event loop's own threads are fewer.
        self._threads = ThreadPoolExecutor(_MOST, thread_name_prefix="browse")
        self._snapshot = 0

    def reopen_target(self) -> None:
        """Answer all later requests from the current state of the store or lake."""
        self._snapshot += 1

    async def answer(self, request: PageRequest, seconds: float) -> PageReply:
        """
        Return the answer to a request; raise `TimeoutError` after *seconds*.

        Raises `ConnectionError` if the process ends without an answer. Canceling the call ends the process.
        """
        try:
            async with asyncio.timeout(seconds), self._turns:
                process, connection = self._idle.pop() if self._idle else _start_worker(self.target, self._work)
                try:
                    connection.send((self._snapshot, request))
                    reply = await asyncio.get_running_loop().run_in_executor(self._threads, connection.recv)
                except BaseException:
                    _stop(process)
                    raise
        except EOFError as error:
            raise ConnectionError from error
        if len(self._idle) < _KEPT:
            self._idle.append((process, connection))
        else:
            _stop(process)
        assert isinstance(reply, PageReply)
        return reply

    def close(self) -> None:
        """End all processes; busy ones have ended with their requests."""
        for process, _ in self._idle:
            _stop(process)
        self._threads.shutdown(wait=False)


def _start_worker(
    target: QueryTarget, work: Callable[[Connection, QueryTarget], None]
) -> tuple[BaseProcess, Connection]:
    connection, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=work, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    return process, connection


def _stop(process: BaseProcess) -> None:
    """Kill a process, in any state (it only reads). A thread that waits for its answer gets `EOFError`."""
    process.kill()
    process.join()


def serve_page_requests(connection: Connection, target: QueryTarget) -> None:
    """Answer requests until the server ends."""
    from jobs.browse.pages import Pages

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    pages = Pages(target)
    while True:
        try:
            snapshot, request = connection.recv()
        except EOFError:
            return
        connection.send(pages.answer(snapshot, request))
