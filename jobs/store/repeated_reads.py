"""
Reads that a running broker disturbs: it deletes, replaces or writes over files while they are read.

This module loads no compiled code, because `inspect` and `query` use it.
"""

from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import TypeVar

from jobs.store.store import Store, StoredFile, relist_store

T = TypeVar("T")

_ATTEMPTS = 3
_WRITTEN_S = 0.1  # beyond the time in which a broker writes a file of its configuration


def is_deleted_file(error: Exception) -> bool:
    """Return whether an error says that a file does not exist."""
    return isinstance(error, FileNotFoundError)


def repeat_read(
    read: Callable[[], T],
    may_repeat: Callable[[Exception], bool] = is_deleted_file,
    is_disturbed: Callable[[T], bool] = lambda _: False,
) -> T:
    """
    Return the result of *read*, which is called again, up to two times, if a broker has disturbed it.

    *may_repeat* says this of an error, *is_disturbed* of a result. The last attempt counts in any case.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            result = read()
        except Exception as error:  # `may_repeat` knows which are expected
            if not may_repeat(error):
                raise
        else:
            if not is_disturbed(result):
                return result
    return read()


def repeat_after_expiry(store: Store, read: Callable[[Store], T], relist: Callable[[Store], Store] = relist_store) -> T:
    """Return the result of *read*; list the store and repeat it if its oldest files were deleted meanwhile."""
    listed = [store]

    def is_expired(error: Exception) -> bool:
        before = listed[-1]
        if is_deleted_file(error):
            listed.append(relist(before))
        return listed[-1] != before and listed[-1].end_offset >= before.end_offset

    return repeat_read(lambda: read(listed[-1]), is_expired)


def read_settled_file(store: Store, file: StoredFile, limit: int, is_complete: Callable[[bytes], bool]) -> bytes:
    """Return at most *limit* bytes of a file; if a broker is replacing or writing it, read it once more."""
    with suppress(FileNotFoundError):  # it is being replaced; the second read raises other errors and this one
        data = store.read(file, 0, limit)
        if is_complete(data):
            return data
    sleep(_WRITTEN_S)
    return store.read(file, 0, limit)
