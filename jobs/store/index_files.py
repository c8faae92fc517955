"""The index files of a store as one thing: the geometry that they share, and the header of each."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache

from jobs.storage.model import Reader
from jobs.store.store import Store, StoredFile
from rmq_formats.errors import FormatError
from rmq_formats.indexfile.geometry import StatedGeometry, stated_geometry
from rmq_formats.indexfile.layout import HEADER, IndexHeader, decode_header
from rmq_formats.layout import Content, Read


def geometry_of_index(
    store: Store, hash_slots: int | None = None, index_num: int | None = None
) -> StatedGeometry | None:
    """Return the geometry that a store's index files state, opening no more of them than are needed for it."""
    with ExitStack() as stack:

        @cache
        def opened(location: str) -> Reader:
            return stack.enter_context(store.storage.open(location))

        files = [Content(file.size, reading(opened, file.location)) for file in store.index_files]
        return stated_geometry(files, hash_slots, index_num)


def header_of(file: StoredFile, store: Store) -> IndexHeader | None:
    """Return the header of an index file; None of one that is too short for a header."""
    try:
        return decode_header(store.read(file, 0, HEADER.size))
    except FormatError:
        return None


def reading(opened: Callable[[str], Reader], location: str) -> Read:
    """Return the function that reads a file, which is opened when it is first called."""
    return lambda position, length: opened(location).read(position, length)
