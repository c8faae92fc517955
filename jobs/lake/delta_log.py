"""
Reads Delta's log for details that `deltalake` does not expose: deletion vectors, and how a commit removes their files.

A deletion vector marks rows of a file as deleted without rewriting the file. `deltalake` reads vectors, but does not
expose their descriptors, and its commits remove a file by its path alone. In Delta, a file is identified by its path
*and* its vector: such a commit removes nothing, and the file's rows are in the table twice. See Delta's PROTOCOL.md,
"Deletion Vectors", "Action Reconciliation" and "Checkpoints".
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from jobs.lake.lake import Lake

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_FROM_CHECKPOINT = (("add", "path"), ("add", "deletionVector"), ("sidecar", "path"))

LogAction = Mapping[str, Any]  # a line of the log: one action on a file or on the table
Descriptor = Mapping[str, Any]  # of a vector, as in an `add` action: location of its bytes, number of deleted rows
Descriptors = dict[tuple[str, str], Descriptor]  # by path of the file and identity of its vector


def read_vector_descriptors(lake: Lake, snapshot: DeltaTable) -> dict[str, Descriptor]:
    """Return the deletion vectors of a snapshot's files, as described in Delta's log, by path."""
    log = log_folder(snapshot)
    names = [info.name for info in lake.list_files(log)]
    found: Descriptors = {}
    start = 0
    for name in _find_newest_checkpoint(names, snapshot.version()):
        _replay(_read_checkpoint(lake, f"{log}/{name}"), found)
        start = int(name[:20]) + 1
    commits = {int(match[1]): name for name in names if (match := _COMMIT.fullmatch(name))}
    for version in range(start, snapshot.version() + 1):
        if version not in commits:
            raise FileNotFoundError(f"{lake.locate(log)}: the commit of version {version} is missing")
        _replay(_read_lines(lake, f"{log}/{commits[version]}"), found)
    return {path: vector for (path, _), vector in found.items()}


def find_newest_matching_version(
    lake: Lake, snapshot: DeltaTable, wanted: Callable[[LogAction, LogAction], bool]
) -> int | None:
    """Return the newest version whose protocol and metadata are *wanted*; None if the log has no such version."""
    log = log_folder(snapshot)
    names = sorted(info.name for info in lake.list_files(log) if _COMMIT.fullmatch(info.name))
    found: int | None = None
    newest: dict[str, LogAction] = {}
    is_wanted = False
    for name in names:
        changed: dict[str, LogAction] = {}
        for action in _read_lines(lake, f"{log}/{name}"):
            changed |= {kind: action[kind] for kind in ("protocol", "metaData") if action.get(kind)}
        newest |= changed
        if changed and len(newest) > 1:  # few commits change either
            is_wanted = wanted(newest["protocol"], newest["metaData"])
        found = int(name[:20]) if is_wanted else found
    return found


def log_folder(snapshot: DeltaTable) -> str:
    """Return the path of a table's log, relative to the lake."""
    return f"{snapshot.table_uri.rstrip('/').rpartition('/')[2]}/_delta_log"


def vector_id(vector: Descriptor | None) -> str:
    """Return the unique id of a deletion vector, as defined in PROTOCOL.md; empty without a vector."""
    if vector is None:
        return ""
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def _find_newest_checkpoint(names: Iterable[str], version: int) -> list[str]:
    """Return the files of the newest complete checkpoint up to *version*."""
    # A checkpoint is one file, or as many parts as each part's name says (PROTOCOL.md, "Checkpoints"); a writer that
    # died has left some of them.
    found: dict[tuple[int, str], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match and int(match[1]) <= version:
            found.setdefault((int(match[1]), match[3] or name), []).append(name)
    complete = [(which, files) for which, files in found.items() if which[1] in files or len(files) == int(which[1])]
    return sorted(max(complete)[1]) if complete else []


def _read_checkpoint(lake: Lake, path: str) -> Iterator[LogAction]:
    for action in _read_lines(lake, path) if path.endswith(".json") else _read_parquet_actions(lake, path):
        yield action
        sidecar = action.get("sidecar")
        if sidecar:
            name = sidecar["path"].rpartition("/")[2]
            yield from _read_parquet_actions(lake, f"{path.rpartition('/')[0]}/_sidecars/{name}")


def _read_parquet_actions(lake: Lake, path: str) -> Iterator[LogAction]:
    with lake.open_arrow_file(path) as source:
        file = pq.ParquetFile(source)
        schema = file.schema_arrow
        columns = [
            f"{action}.{name}"
            for action, name in _FROM_CHECKPOINT
            if action in schema.names and schema.field(action).type.get_field_index(name) >= 0
        ]
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()


def _read_lines(lake: Lake, path: str) -> Iterator[LogAction]:
    for line in lake.read(path).splitlines():
        if line.strip():
            yield json.loads(line)


def _replay(actions: Iterable[LogAction], found: Descriptors) -> None:
    """Apply a commit's add and remove actions; their order within the commit has no meaning."""
    added: Descriptors = {}
    for action in actions:
        for kind in ("add", "remove"):
            file = action.get(kind)
            vector = file.get("deletionVector") if file else None
            if file and vector and vector.get("storageType"):
                key = file["path"], vector_id(vector)
                if kind == "add":
                    added[key] = vector
                else:
                    found.pop(key, None)
    found.update(added)


class DeletionVector(NamedTuple):
    """A deletion vector: which rows of a file are not deleted."""

    kept: npt.NDArray[np.bool_]  # by the row's place in the file
    descriptor: Descriptor  # as Delta's log has it

    def kept_rows(self, rows: int) -> npt.NDArray[np.bool_]:
        """Return which of a file's first *rows* are kept; a vector may end at the last deleted row."""
        missing = max(rows - self.kept.size, 0)
        return np.pad(self.kept, (0, missing), constant_values=True)[:rows] if missing else self.kept[:rows]


def may_have_deletion_vectors(snapshot: DeltaTable) -> bool:
    """Return whether a table's files may have deletion vectors."""
    return "deletionVectors" in (snapshot.protocol().reader_features or ())


def is_deletion_vector_file(path: str) -> bool:
    """Return whether a file below a table contains deletion vectors."""
    return path.rpartition("/")[2].startswith("deletion_vector_")


def read_deletion_vectors(lake: Lake, snapshot: DeltaTable) -> dict[str, DeletionVector]:
    """Return the deletion vectors of a snapshot's files, by path."""
    if not may_have_deletion_vectors(snapshot):
        return {}
    root = _decode_uri(snapshot.table_uri).rstrip("/") + "/"
    masks = {
        _decode_uri(location.as_py()).removeprefix(root): np.asarray(mask.values, np.bool_)
        for batch in pa.RecordBatchReader.from_stream(snapshot.deletion_vectors())
        for location, mask in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True)
    }
    described = read_vector_descriptors(lake, snapshot) if masks else {}
    found = {}
    for path, kept in masks.items():
        descriptor = described.get(path)
        if descriptor is None or descriptor["cardinality"] != np.count_nonzero(~kept):
            raise OSError(f"{snapshot.table_uri}: the Delta log does not describe the deletion vector of {path}")
        found[path] = DeletionVector(kept, descriptor)
    return found


def _decode_uri(uri: str) -> str:
    return unquote(uri).removeprefix("file://")
