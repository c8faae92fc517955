"""
A DLedger group of three whose leader was killed with two entries that no other member had received, and rejoined.

The new leader wrote other entries at their offsets. The second one of the old entries remained in the old leader's
file, after the last entry, where it looks like a normal message.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.query import story as timeline
from jobs.store.workers import SerialWorkers
from jobs.verify.run import VerifyRequest, verify
from rmq_formats.commitlog.record import encode_record
from rmq_formats.commitlog.segment import PieceKind
from tests.golden import StoreOf
from tests.support.lakes import ingest_store, list_leftovers, raw_rows, read_index_entries, rows_of
from tests.support.query_stores import open_lake
from tests.support.stores import list_segments, read_store_records, walk_store

_MEMBERS = ("killed-leader", "rejoined-leader", "former-leader", "store")  # the last two at the end
_SENT = "sent; no consumer group has an offset in its queue"
_LOST = "lost: its broker truncated the log"


@pytest.fixture
def group(situation: StoreOf) -> Path:
    return situation("b550-dledger-group")


@pytest.fixture
def replies(group: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((group / "EXPECT.json").read_text())
    return found


def test_a_log_has_the_messages_that_its_leader_committed(group: Path, replies: dict[str, Any]) -> None:
    agreed, lost, overwritten = replies["agreed"], replies["answers"], replies["overwritten"]
    ends = (lost, overwritten, [*overwritten, replies["newest"]], [*overwritten, replies["newest"]])
    for name, end in zip(_MEMBERS, ends, strict=True):
        records = list(read_store_records(group / name))
        assert [*agreed, *end] == [record.physical_offset for record, _ in records]
        assert all(encode_record(record) == raw for record, raw in records)
        assert PieceKind.DAMAGE not in {piece.kind for _, pieces in walk_store(group / name) for piece in pieces}
    assert 1 == len({b"".join(path.read_bytes() for path in list_segments(group / name)) for name in _MEMBERS[2:]})


@pytest.mark.parametrize("name", _MEMBERS)
def test_only_index_files_of_the_former_leader_differ_from_its_log(
    group: Path, replies: dict[str, Any], name: str
) -> None:
    """5.5.0 dispatched the truncated entries first, and kept their index entries."""
    has_rejoined = name in {"rejoined-leader", "former-leader"}
    found = verify(VerifyRequest(str(group / name)), SerialWorkers())
    indexed = {offset for _, _, _, offset, *_ in read_index_entries(group / name)}

    assert has_rejoined == any(finding.file.startswith("index/") for finding in found.findings)
    assert [] == [finding for finding in found.findings if not finding.file.startswith("index/")]
    assert indexed <= {*replies["agreed"], *replies["answers"]}


def test_a_lake_has_the_committed_messages_and_supersedes_the_truncated_ones(
    group: Path, replies: dict[str, Any], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for name in _MEMBERS:
        ingest_store(group / name, lake, "group")
        assert [(record.physical_offset, raw) for record, raw in read_store_records(group / name)] == raw_rows(lake)
    truncated = [row["uniq_key"] for row in rows_of(lake, "superseded_messages")]
    kept = [row["uniq_key"] for row in rows_of(lake)]

    assert replies["answers"] == [offset for offset, _ in raw_rows(lake, "superseded_messages")]
    assert list_leftovers(lake) == []
    source = open_lake(lake)
    for key, state in ((truncated[0], _LOST), (truncated[1], _LOST), (kept[0], _SENT), (kept[-1], _SENT)):
        (story,) = timeline.find_stories(source, timeline.find_copies_by_id(source, key, None).messages)
        assert story.state == state
