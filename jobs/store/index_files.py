"""The index files of a store as one thing: the geometry that they share."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache

from jobs.storage.model import Reader
from jobs.store.store import Store
from rmq_formats.indexfile.geometry import StatedGeometry, stated_geometry
from rmq_formats.layout import Buffer, Content


def geometry_of_index(
    store: Store, hash_slots: int | None = None, index_num: int | None = None
) -> StatedGeometry | None:
    """Return the geometry that a store's index files state, opening no more of them than are needed for it."""
    with ExitStack() as stack:

        @cache
        def opened(location: str) -> Reader:
            return stack.enter_context(store.storage.open(location))

        files = [Content(file.size, _reading(opened, file.location)) for file in store.index_files]
        return stated_geometry(files, hash_slots, index_num)


def _reading(opened: Callable[[str], Reader], location: str) -> Callable[[int, int], Buffer]:
    return lambda position, length: opened(location).read(position, length)
