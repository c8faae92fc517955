"""
Deletion vectors: the rows that another engine has marked as deleted in files that it left as they are.

Who reads a file of a table reads it through its vector. Who takes such a file away takes it away with its vector: see
`jobs.lake.delta_log`.
"""

from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from jobs.lake.delta_log import Descriptor, descriptors, identity_of
from jobs.lake.lake import Lake

FEATURE = "deletionVectors"


class Vector(NamedTuple):
    """Which rows of a file are still rows of the table."""

    kept: npt.NDArray[np.bool_]  # by the row's place in the file
    descriptor: Descriptor  # as Delta's log has it

    @property
    def identity(self) -> str:
        """Return the identity of this vector among those of the same file."""
        return identity_of(self.descriptor)

    def of_batch(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Return the rows of *batch* that are not deleted; its first one has the place *start* in the file."""
        return batch.filter(pa.array(self.padded(start + batch.num_rows)[start:]))

    def padded(self, rows: int) -> npt.NDArray[np.bool_]:
        """Return which of a file's first *rows* are kept: a vector may end with the last deleted one."""
        missing = max(rows - self.kept.size, 0)
        return np.pad(self.kept, (0, missing), constant_values=True)[:rows] if missing else self.kept[:rows]


def has_vectors(snapshot: DeltaTable) -> bool:
    """Return whether files of a table may have vectors."""
    return FEATURE in (snapshot.protocol().reader_features or ())


def is_vector_file(path: str) -> bool:
    """Return whether a file below a table holds vectors."""
    return path.rpartition("/")[2].startswith("deletion_vector_")


def vectors(lake: Lake, snapshot: DeltaTable) -> dict[str, Vector]:
    """Return the vector of each file of a snapshot that has one, by the file's path."""
    if not has_vectors(snapshot):
        return {}
    masks = _masks(snapshot)
    described = descriptors(lake, snapshot) if masks else {}
    found = {}
    for path, kept in masks.items():
        descriptor = described.get(path)
        if descriptor is None or descriptor["cardinality"] != np.count_nonzero(~kept):
            raise OSError(f"{snapshot.table_uri}: Delta's log does not describe the deletion vector of {path}")
        found[path] = Vector(kept, descriptor)
    return found


def _masks(snapshot: DeltaTable) -> dict[str, npt.NDArray[np.bool_]]:
    root = _plain(snapshot.table_uri).rstrip("/") + "/"
    return {
        _plain(location.as_py()).removeprefix(root): np.asarray(mask.values, np.bool_)
        for batch in pa.RecordBatchReader.from_stream(snapshot.deletion_vectors())
        for location, mask in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True)
    }


def _plain(uri: str) -> str:
    return unquote(uri).removeprefix("file://")
