"""Layouts as numpy reads them, an element of an array for each structure of a file; and slices of arrays."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rmq_formats.layout import Layout


def dtype_of(layout: Layout) -> np.dtype[np.void]:
    """Return a layout of integers as an array's type."""
    return np.dtype([(row.name, f">i{row.size}") for row in layout.rows()])


def slices(size: int, cuts: NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the parts of *size* elements that are cut after each one that *cuts* chooses; none of no elements."""
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), size]
    return (slice(start, stop) for start, stop in pairwise(bounds) if start < stop)
