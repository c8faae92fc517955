"""Rebuilds over a log that has lost something: the gap is named, and what is left is at its own place."""

import os
import shutil
from pathlib import Path

import pytest

from jobs.console.exit_codes import ExitCode
from jobs.products.index.settings import Wanted
from jobs.rebuild import index, queue_run
from jobs.store.workers import OneByOne
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE, UNIT
from rmq_formats.consumequeue.unit import decode_unit
from tests.golden import StoreOf
from tests.support.commands import overwrite
from tests.support.scenes import segment_lost

SEGMENT = 16384
GAP = (SEGMENT, 2 * SEGMENT)


def rebuilt_queues(store: Path, out: Path, *, lost_only: bool = False) -> queue_run.Summary:
    request = queue_run.RebuildQueuesRequest(str(store), out, release="5.3.3", lost_only=lost_only)
    return queue_run.rebuild(request, OneByOne())


def rebuilt_index(store: Path, out: Path, *, lost_only: bool = False) -> index.Result:
    return index.rebuild(index.RebuildIndexRequest(str(store), str(out), Wanted(), lost_only=lost_only), OneByOne())


def units(folder: Path) -> list[tuple[int, int, int]]:
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    stored = [decode_unit(data[at : at + UNIT.size]) for at in range(0, len(data), UNIT.size)]
    while stored and not any(stored[-1]):
        stored.pop()
    return [(unit.physical_offset, unit.size, unit.tags_code) for unit in stored]


def test_units_after_a_gap_of_the_log_keep_their_queue_offsets(store: Path, tmp_path: Path) -> None:
    """They shifted by one and more, so that consumers would have read other messages than theirs."""
    segment_lost(store)
    summary = rebuilt_queues(store, tmp_path / "out")
    index_files = rebuilt_index(store, tmp_path / "index")

    for queue in sorted((store / "consumequeue").glob("*/*")):
        broker = units(queue)
        ours = tmp_path / "out" / queue.relative_to(store / "consumequeue")
        kept = [unit if not GAP[0] <= unit[0] < GAP[1] else (0, PRE_BLANK_SIZE, 0) for unit in broker]
        while kept and kept[-1] == (0, PRE_BLANK_SIZE, 0):
            kept.pop()  # nothing tells that there was a unit
        assert (units(ours) if ours.exists() else []) == kept
    assert [*summary.gaps, *index_files.gaps] == [GAP, GAP]
    assert summary.exit_code is index_files.exit_code is ExitCode.DAMAGE
    assert any("blanks" in note for note in summary.notes)
    assert not any("may not receive" in note for note in summary.notes)


def test_a_cut_queue_file_keeps_its_units_of_lost_records(store: Path, tmp_path: Path) -> None:
    """Nothing but the file itself knows them; what was cut off comes from the log."""
    file = min((store / "consumequeue" / "T1" / "0").iterdir())
    whole = file.read_bytes()
    segment = min((store / "commitlog").iterdir())
    overwrite(segment, decode_unit(whole[3 * UNIT.size : 4 * UNIT.size]).physical_offset + 4, bytes(4))
    os.truncate(file, 6 * UNIT.size)
    summary = rebuilt_queues(store, tmp_path / "out", lost_only=True)
    assert (summary.replaced, summary.contradictions) == ([f"T1/0/{file.name}"], [])
    assert (tmp_path / "out" / "T1" / "0" / file.name).read_bytes() == whole


@pytest.mark.parametrize("lost_only", [False, True])
def test_an_empty_first_segment_is_a_gap(store: Path, tmp_path: Path, *, lost_only: bool) -> None:
    os.truncate(min((store / "commitlog").iterdir()), 0)
    summary = rebuilt_queues(store, tmp_path / "queues", lost_only=lost_only)
    result = rebuilt_index(store, tmp_path / "index", lost_only=lost_only)
    assert (summary.exit_code, result.exit_code) == (ExitCode.DAMAGE, ExitCode.DAMAGE)
    assert [*summary.gaps, *result.gaps] == [(0, SEGMENT)] * 2


@pytest.mark.parametrize("is_cut", [False, True], ids=["missing", "cut"])
def test_lost_index_files_come_back_beside_a_lost_segment(store: Path, tmp_path: Path, *, is_cut: bool) -> None:
    names = sorted(path.name for path in (store / "index").iterdir())
    lost = [names[1], names[-2]]
    real = [(store / "index" / name).read_bytes() for name in lost]
    for name in lost:
        (store / "index" / name).unlink()
    if is_cut:
        os.truncate(sorted((store / "commitlog").iterdir())[1], 9000)
    else:
        segment_lost(store)
    result = rebuilt_index(store, tmp_path / "out", lost_only=True)

    assert result.contradictions == []
    assert result.exit_code is ExitCode.DAMAGE
    made = [path.read_bytes() for path in sorted((tmp_path / "out").iterdir()) if path.name != index.MANIFEST]
    assert made == real  # a broker names files by its clock
    assert all(file.proven for file in result.files)


def test_an_index_file_that_the_gap_has_keys_of_is_built_of_what_is_left(store: Path, tmp_path: Path) -> None:
    segment_lost(store)
    lost = [
        path
        for path in sorted((store / "index").iterdir())
        if int.from_bytes(path.read_bytes()[16:24]) < GAP[0] <= int.from_bytes(path.read_bytes()[24:32])
    ]
    lost[0].unlink()
    result = rebuilt_index(store, tmp_path / "out", lost_only=True)

    assert [(file.proven, file.proof) for file in result.files] == [(False, "the log has lost messages of this file")]


def test_keys_inside_a_kept_file_are_said_to_be_left_out(golden: StoreOf, tmp_path: Path) -> None:
    store = golden("field-indexoff-533")
    lost_only = rebuilt_index(store, tmp_path / "lost", lost_only=True)
    everything = rebuilt_index(store, tmp_path / "all")

    assert ["180 keys" in text for text in lost_only.left_out] == [True]
    assert lost_only.exit_code is ExitCode.DAMAGE
    assert (everything.row_keys, sum(file.keys for file in everything.files)) == (540, 540)


def test_a_queue_file_of_another_log_is_replaced_and_others_come_back(store: Path, tmp_path: Path) -> None:
    path = store / "consumequeue" / "T1" / "0" / f"{200:020d}"
    right = path.read_bytes()
    path.write_bytes(b"".join(UNIT.pack(30_001 + at, 300, 7) for at in range(0, len(right), UNIT.size)))
    shutil.rmtree(store / "consumequeue" / "T2")
    summary = rebuilt_queues(store, tmp_path / "out", lost_only=True)

    assert (summary.replaced, summary.contradictions) == (["T1/0/00000000000000000200"], [])
    assert summary.exit_code is ExitCode.DAMAGE
    assert (tmp_path / "out" / summary.replaced[0]).read_bytes() == right
    assert (tmp_path / "out" / "T2").is_dir()


def test_a_log_that_lost_its_end_is_named_by_both_rebuilds(store: Path, tmp_path: Path) -> None:
    max((store / "commitlog").iterdir()).unlink()
    queues = rebuilt_queues(store, tmp_path / "queues", lost_only=True)
    files = rebuilt_index(store, tmp_path / "index", lost_only=True)

    assert queues.has_lost_end
    assert queues.exit_code is files.exit_code is ExitCode.DAMAGE
    assert any("after the log's end" in text for text in files.left_out)


def test_messages_that_a_blank_hides_are_counted(store: Path, tmp_path: Path) -> None:
    """A broker (4.9.8, 5.3.3, 5.5.0) skips all messages of the log's file 0 after a blank: 45 of 60 were delivered."""
    in_file_0 = [unit for unit in units(store / "consumequeue" / "T1" / "0") if unit[0] < SEGMENT]
    overwrite(min((store / "commitlog").iterdir()), in_file_0[2][0] + 4, bytes(4))
    summary = rebuilt_queues(store, tmp_path / "out")

    named = [note for note in summary.notes if "may not receive" in note]
    assert [note.split(": ")[1].split()[0] for note in named] == [str(len(in_file_0) - 3)]
    assert summary.exit_code is ExitCode.DAMAGE
