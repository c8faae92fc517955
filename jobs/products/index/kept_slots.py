"""
The slots of the open index file, which a process that follows a store keeps from step to step.

New entries are chained to those before them in their slots. Without these slots, each step reads all entries of
the file from the lake for that, and takes longer with every message until the file is full.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.indexfile.layout import IndexHeader


class OpenFile(NamedTuple):
    """An index file as a run left it."""

    lake: str
    store_id: str
    ordinal: int
    header: IndexHeader


_kept: ContextVar[dict[OpenFile, NDArray[np.int32]] | None] = ContextVar("kept", default=None)  # of this thread


@contextmanager
def kept_slots() -> Iterator[None]:
    """Keep the slots of the index file that this thread made last, until the block ends."""
    before = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(before)


def keep(file: OpenFile, slots: NDArray[np.int32]) -> None:
    """Keep the slots of a file in place of the last one's of that store."""
    kept = _kept.get()
    if kept is not None:
        for other in [one for one in kept if (one.lake, one.store_id) == (file.lake, file.store_id)]:
            del kept[other]
        kept[file] = slots


def take(file: OpenFile) -> NDArray[np.int32] | None:
    """Return the slots of a file that is as it was when they were kept; the caller may change them."""
    kept = _kept.get()
    return None if kept is None else kept.pop(file, None)
