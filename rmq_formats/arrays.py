"""Layouts as numpy reads them: an element of an array is one structure of a file."""

import numpy as np

from rmq_formats.layout import Layout


def dtype_of(layout: Layout) -> np.dtype[np.void]:
    """Return a layout of integers as an array's type."""
    return np.dtype([(row.name, f">i{row.size}") for row in layout.rows()])
