"""Vectors of files as Delta's log describes them: in checkpoints of each form, and in commits."""

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs.lake.delta_log import descriptors
from jobs.lake.lake import Lake

VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
OTHER = {**VECTOR, "offset": 50, "cardinality": 2}


class _Snapshot:
    """What is asked of a table: where it is, and in which version."""

    def __init__(self, table: Path) -> None:
        self.table_uri = str(table)

    @staticmethod
    def version() -> int:
        return 3


def _parquet(path: Path, actions: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = sorted({kind for action in actions for kind in action})
    pq.write_table(pa.Table.from_pylist([{kind: action.get(kind) for kind in kinds} for action in actions]), path)


@pytest.mark.parametrize("form", ["one file", "v2 as Parquet", "v2 as JSON"])
def test_a_vector_is_found_in_each_form_of_a_checkpoint_and_in_the_commits_after_it(tmp_path: Path, form: str) -> None:
    log = tmp_path / "messages" / "_delta_log"
    adds = [
        {"add": {"path": "a.parquet", "size": 9, "deletionVector": VECTOR}},
        {"add": {"path": "b.parquet", "size": 9}},
    ]
    if form == "one file":
        _parquet(log / f"{2:020}.checkpoint.parquet", adds)
    else:
        _parquet(log / "_sidecars" / "0190a0c5.parquet", adds)
        sidecars: list[dict[str, Any]] = [
            {"checkpointMetadata": {"version": 2}},
            {"sidecar": {"path": "0190a0c5.parquet", "sizeInBytes": 9}},
        ]
        top = log / f"{2:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"
        if form == "v2 as JSON":
            top.with_suffix(".json").write_text("\n".join(map(json.dumps, sidecars)))
        else:
            _parquet(top, sidecars)
    (log / f"{3:020}.json").write_text(json.dumps({"add": {"path": "c.parquet", "deletionVector": OTHER}}))

    found = descriptors(Lake(str(tmp_path)), cast("DeltaTable", _Snapshot(tmp_path / "messages")))

    assert {path: dict(vector) for path, vector in found.items()} == {"a.parquet": VECTOR, "c.parquet": OTHER}
