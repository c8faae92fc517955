"""Memory that tells when something beside it is touched."""

import ctypes
import mmap
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

_libc = ctypes.CDLL(None, use_errno=True)


def at_a_guarded_page(size: int) -> NDArray[np.uint8]:
    """Return memory whose last byte is the last one before a page that may not be touched: a segmentation fault."""
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = start + (pages - 1) * mmap.PAGESIZE
    if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(0)):
        raise OSError(ctypes.get_errno(), "mprotect")
    end = (pages - 1) * mmap.PAGESIZE
    return np.frombuffer(memory, np.uint8)[end - size : end]


class Guarded(np.ndarray[Any, np.dtype[Any]]):
    """An array that refuses every index and slice that Python would read as counted from the end, or cut."""

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - whatever numpy takes
        self._check(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401
        self._check(key)
        super().__setitem__(key, value)

    def _check(self, key: Any) -> None:  # noqa: ANN401
        if isinstance(key, slice):
            bounds = [bound for bound in (key.start, key.stop) if bound is not None]
        elif isinstance(key, tuple | np.ndarray | type(None)):
            bounds = []
        else:
            bounds = [int(key) + 1] if int(key) >= 0 else [int(key)]
        if any(not 0 <= int(bound) <= len(self) for bound in bounds):
            message = f"{key} of {len(self)}"
            raise IndexError(message)


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    return cast("NDArray[Any]", array.view(Guarded))
