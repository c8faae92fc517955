"""The threads that ask the store or lake, each with files of its own: one long answer holds up no other."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from threading import Lock, local
from typing import Any, TypeVar

from jobs.browse.subject import Place, opened
from jobs.query.listing.model import Listing

_THREADS = 2
_MOST_WAITING = 16  # answers; a browser that asks for more is told to wait
SECONDS = 0.15  # that a page waits for its answer, before it says that the answer will come
_LONGEST_WAIT = 20.0  # seconds until a browser asks again though the answer is not there

Answer = TypeVar("Answer")


class BusyError(Exception):
    """The answer is not there yet; the same question finds it later."""

    def __init__(self, future: Future[Any] | None) -> None:
        self._future = future  # without one there are too many others

    async def over(self) -> None:
        """Wait until asking again is worthwhile."""
        if self._future is None:
            await asyncio.sleep(1)
        else:
            await asyncio.wait([asyncio.wrap_future(self._future)], timeout=_LONGEST_WAIT)


class Asker:
    """Answers questions to a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="browse")
        self._own = local()
        self._lock = Lock()
        self._stacks: list[ExitStack] = []
        self._snapshot = 0
        self._pending: dict[tuple[int, str], Future[Any]] = {}

    def check(self) -> None:
        """Open the place once, so that errors are raised now."""
        self._threads.submit(self._listing).result()

    def look_again(self) -> None:
        """Answer every later question from the place as it is then."""
        self._snapshot += 1
        self._forget_done()

    async def answer(self, name: str, question: Callable[[Listing], Answer], *, keeps: bool = False) -> Answer:
        """
        Return the answer to *question*; `BusyError` where it takes long: a question of the same name finds it.

        An answer that it *keeps* is given again until the place is looked at again.
        """
        key = (self._snapshot, name)
        future = self._pending.get(key)
        if future is None:
            if len(self._pending) >= _MOST_WAITING:
                self._forget_done()
            if len(self._pending) >= _MOST_WAITING:
                raise BusyError(None)
            future = self._pending[key] = self._threads.submit(lambda: question(self._listing()))
        try:
            found: Answer = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), SECONDS)
        except TimeoutError:
            if not future.done():
                raise BusyError(future) from None
            self._pending.pop(key, None)
            found = future.result()  # just in time, or an error of its own
        except Exception:
            self._pending.pop(key, None)
            raise
        if not keeps:
            self._pending.pop(key, None)
        return found

    def _forget_done(self) -> None:
        self._pending = {key: future for key, future in self._pending.items() if not future.done()}

    def _listing(self) -> Listing:
        """Return this thread's own view of the place, as new as the newest snapshot."""
        if getattr(self._own, "snapshot", None) != self._snapshot:
            stack: ExitStack = getattr(self._own, "stack", None) or ExitStack()
            stack.close()
            # No snapshot is noted before the place is open: where that fails, the next question opens it again. And it
            # is the one from before opening: what changes meanwhile is looked at again.
            self._own.stack, self._own.snapshot = stack, None
            with self._lock:
                self._stacks = [*(one for one in self._stacks if one is not stack), stack]
            snapshot = self._snapshot
            self._own.listing = stack.enter_context(opened(self.place))
            self._own.snapshot = snapshot
        listing: Listing = self._own.listing
        return listing

    def close(self, seconds: float) -> bool:
        """Close every file; return False where an answer still is on its way after so many seconds."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if wait(self._pending.values(), seconds).not_done:
            return False
        for stack in self._stacks:
            stack.close()
        return True
