"""`index_entries` and `index_files` in the run that brings the messages: the broker's own files, run after run."""

import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.ingest.request import IngestRequest, Summary
from jobs.ingest.run import ingest
from jobs.products.index import product as index_product
from jobs.products.registry import NAMES
from jobs.store.range_reader import RangeReader
from jobs.store.selection import Selection
from jobs.store.workers import OneByOne
from tests.golden import StoreOf
from tests.support.broker import Broker, some_records
from tests.support.commands import overwrite
from tests.support.killing import wrong_entries
from tests.support.lakes import (
    ENTRIES,
    ENTRY,
    SLOTS,
    ingest_store,
    lake_entries,
    newest_headers,
    real_entries,
    request_of,
    table_of,
)
from tests.support.meanwhile import preceded
from tests.support.stores import flip, records_of, segments_of, stored_records


def _ingest(store: Path, lake: Path, name: str) -> Summary:
    request = request_of(name, store, lake, release=None, hash_slots=SLOTS, index_num=ENTRIES)
    return ingest(request, OneByOne())


def _shown(whole: Path, store: Path, written: int, kept_from: int) -> None:
    """Show a store as it was when *written* bytes were in its log and those before *kept_from* had been deleted."""
    for segment in segments_of(whole):
        base = int(segment.name)
        content = segment.read_bytes()
        target = store / "commitlog" / segment.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if base + len(content) <= kept_from:
            target.unlink(missing_ok=True)
        elif base < written:
            target.write_bytes(content[: max(written - base, 0)].ljust(len(content), b"\0"))


def test_complete_files_never_change_while_the_log_loses_its_beginning(golden: StoreOf, tmp_path: Path) -> None:
    whole = golden("b498-base")
    offsets = [record.end_offset for record, _ in stored_records(whole)]
    complete: dict[int, str] = {}
    for written in sorted({offsets[len(offsets) * part // 6 - 1] for part in range(1, 7)}):
        _shown(whole, tmp_path / "store", written, kept_from=written - 20_000)
        _ingest(tmp_path / "store", tmp_path / "lake", "b498-base")
        now = {row["index_file"]: row["sha256"] for row in newest_headers(tmp_path / "lake") if row["is_complete"]}

        assert complete.items() <= now.items()
        complete = now

    assert real_entries(whole) == lake_entries(tmp_path / "lake")


def test_index_files_show_the_next_run_that_the_broker_was_upgraded(golden: StoreOf, tmp_path: Path) -> None:
    """Nothing in the log tells the two releases apart, and no option names them."""
    whole, store = golden("up533-540"), tmp_path / "store"
    (store / "index").mkdir(parents=True)
    files = sorted((whole / "index").iterdir())
    for written, there in ((11232, files[:10]), (sys.maxsize, files)):
        _shown(whole, store, written, kept_from=0)
        for path in there:
            shutil.copy(path, store / "index")
        ingest(IngestRequest(str(store), str(tmp_path / "lake")), OneByOne())

    assert real_entries(whole) == lake_entries(tmp_path / "lake")


@pytest.mark.parametrize("with_files", [True, False])
def test_entries_of_segments_that_are_deleted_after_they_were_read_are_made(
    with_files: bool, golden: StoreOf, tmp_path: Path
) -> None:
    """The keys of a message are kept as it is read."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    if not with_files:
        shutil.rmtree(store / "index")
    deleted: list[Path] = []

    def retention() -> None:
        deleted.extend(segments_of(store)[:-1])
        for path in deleted:
            path.unlink()

    with patch.object(index_product, "plan", preceded(index_product.plan, retention)):
        summary = _ingest(store, tmp_path / "lake", "b551-base")

    assert deleted
    assert summary.gaps == []
    assert real_entries(golden("b551-base")) == lake_entries(tmp_path / "lake")


def test_files_follow_the_newest_one_that_is_full_once_it_is_continued(golden: StoreOf, tmp_path: Path) -> None:
    """The broker's index is files behind its log: it had written a part of its second file."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    _, second, *later = sorted((store / "index").iterdir())
    for path in later:
        path.unlink()
    content, at = second.read_bytes(), 40 + 4 * SLOTS
    entries = [ENTRY.unpack_from(content, at + 20 * number) for number in range(1, ENTRIES)]
    some = next(n for n in range(len(entries) // 2, len(entries)) if entries[n - 1][1] != entries[n][1])
    slots = {key_hash % SLOTS: number for number, (key_hash, *_) in enumerate(entries[:some], 1)}
    end = next(record for record, _ in stored_records(store) if record.physical_offset == entries[some - 1][1])
    begin = struct.unpack_from(">q8xq", content)
    second.write_bytes(
        struct.pack(">4q2i", begin[0], end.store_timestamp, begin[1], end.physical_offset, len(slots), some + 1)
        + struct.pack(f">{SLOTS}i", *(slots.get(slot, 0) for slot in range(SLOTS)))
        + content[at : at + 20 * (some + 1)].ljust(len(content) - at, b"\0")
    )

    _ingest(store, tmp_path / "lake", "b551-base")

    assert real_entries(golden("b551-base")) == lake_entries(tmp_path / "lake")


def test_keys_of_a_deleted_record_with_a_wrong_body_are_kept(golden: StoreOf, tmp_path: Path) -> None:
    """It has no row in `messages`, but the broker has indexed it."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    shutil.rmtree(store / "index")
    first = segments_of(store)[0]
    record = next(record for record, _ in records_of([first]) if record.body and record.topic == "T1")
    flip(first, first.read_bytes().index(record.body, record.physical_offset), 0xFF)

    with patch.object(index_product, "plan", preceded(index_product.plan, first.unlink)):
        summary = _ingest(store, tmp_path / "lake", "b551-base")

    assert (summary.quarantined, summary.gaps) == (1, [])
    assert real_entries(golden("b551-base")) == lake_entries(tmp_path / "lake")


def test_the_index_takes_no_further_pass_over_the_log(golden: StoreOf, tmp_path: Path) -> None:
    """The log was decoded once more for the keys of the entries."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    shutil.rmtree(store / "index")
    passes, rows = [], []
    for tables in (frozenset({"messages"}), frozenset({"messages", "index"})):
        request = IngestRequest(str(store), str(tmp_path / f"lake{len(tables)}"), broker="b", tables=tables)
        with patch.object(RangeReader, "pieces", autospec=True, side_effect=RangeReader.pieces) as pieces:
            rows.append(ingest(request, OneByOne()).index_entries)
        passes.append(pieces.call_count)

    assert rows[0] == 0 < rows[1]
    assert passes[0] == passes[1]
    assert not [path.name for path in tmp_path.glob("lake*/*/*") if path.suffix in {".keys", ".units"}]


def test_a_choice_of_topics_has_no_index(golden: StoreOf, tmp_path: Path) -> None:
    shutil.copytree(golden("b551-base"), tmp_path / "store")
    selection = Selection(topics=("T1",))
    summary = ingest_store(tmp_path / "store", tmp_path / "lake", selection=selection)

    assert summary.index_entries == 0
    assert {"T1"} == {row["topic"] for row in table_of(tmp_path / "lake" / "messages").to_pylist()}
    assert {"T1"} == {row["topic"] for row in table_of(tmp_path / "lake" / "consume_queue").to_pylist()}


def test_a_run_makes_the_entries_of_earlier_runs_that_left_the_index_out(broker: Broker, tmp_path: Path) -> None:
    everything = IngestRequest(str(broker.root), str(tmp_path / "lake"), broker="b")
    for seed, tables in enumerate([NAMES, frozenset({"messages", "consume_queue"}), NAMES]):
        broker.append(some_records(20, seed=seed))
        ingest(replace(everything, tables=tables), OneByOne())

    offsets = table_of(tmp_path / "lake/messages", ["physical_offset"])["physical_offset"].to_pylist()
    assert wrong_entries(tmp_path / "lake", offsets) == 0


def test_entries_of_a_message_that_damage_has_taken_come_from_the_broker_s_own_file(
    golden: StoreOf, tmp_path: Path
) -> None:
    """The log has lost their keys; the broker's entries are kept, without key and topic."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    (_, _, _, offset, _, _) = real_entries(store)[30]
    segment = max(path for path in segments_of(store) if int(path.name) <= offset)
    overwrite(segment, offset - int(segment.name), b"\xff" * 64)
    summary = _ingest(store, tmp_path / "lake", "b551-base")

    assert 1 == summary.quarantined
    assert real_entries(store) == lake_entries(tmp_path / "lake")
    rows = table_of(tmp_path / "lake" / "index_entries").to_pylist()
    assert {offset} == {row["physical_offset"] for row in rows if row["key"] is None}
