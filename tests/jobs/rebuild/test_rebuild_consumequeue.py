"""
`rebuild-consumequeue`: the queues of real brokers, written again from their logs.

Over a log that has lost something, rebuilds of queues and of index files name the gap, and what is left is at its own
place. A task that dies and is done again, as Spark does, leaves nothing of its first attempt among the results.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from jobs.console.result import ExitCode
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.rebuild import index
from jobs.rebuild.queue_run import MANIFEST, RebuildQueuesRequest, Summary, rebuild
from jobs.repair.run import RepairRequest, repair
from jobs.restore.run import RestoreRequest, restore
from jobs.store.spark_workers import SparkWorkers
from jobs.store.workers import Item, OneByOne, Result, Workers
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.consumequeue.dispatch import decode_unit
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE, UNIT
from tests.golden import GOLDEN, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.commands import overwrite
from tests.support.lakes import ingest_store
from tests.support.scenes import segment_lost
from tests.support.stores import files_in, flip, log_folders, segments_of

# Halted between append and dispatch, copied while being written, deleted in part, without queue files.
DIFFERENT = {"b533-crash-before", "b498-live", "b551-rockscq", *golden_stores("expired")}
FOLDERS = ("batchconsumequeue", "consumequeue_ext")


def request_for(store: Path, out: Path, name: str) -> RebuildQueuesRequest:
    return RebuildQueuesRequest(str(store), out, commitlog=log_folders(store), release=release_of(name))


def made_files(out: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_in(out).items() if path != MANIFEST}


def real_files(store: Path) -> dict[str, bytes]:
    found = files_in(store / "consumequeue")
    for folder in FOLDERS:
        found |= {f"{folder}/{path}": data for path, data in files_in(store / folder).items()}
    return found


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in DIFFERENT])
def test_the_files_are_the_brokers_own(golden: StoreOf, tmp_path: Path, name: str) -> None:
    store = golden(name)
    rebuild(request_for(store, tmp_path / "out", name), OneByOne())

    assert real_files(store) == made_files(tmp_path / "out")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b514-types", "b498-dledger-upgraded"])
def test_the_cut_of_ranges_and_groups_changes_nothing(
    spark: SparkSession, golden: StoreOf, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    request = replace(request_for(store, tmp_path / "out", name), range_size=1024, groups=3)
    rebuild(request, SparkWorkers(spark))

    assert real_files(store) == made_files(tmp_path / "out")


def test_the_manifest_names_every_file_and_its_hash(golden: StoreOf, tmp_path: Path) -> None:
    rebuild(request_for(golden("b551-types"), tmp_path, "b551-types"), OneByOne())
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    made = made_files(tmp_path)

    files = [file for queue in manifest["queues"] for file in queue["files"]]
    assert sorted(file["path"] for file in files) == sorted(made)
    for file in files:
        data = made[file["path"]]
        assert len(data) == file["size"]
        assert sha256(data[: file["written"]]).hexdigest() == file["sha256"]
        assert not any(data[file["written"] :])


def test_what_the_log_does_not_tell_is_named(golden: StoreOf, tmp_path: Path) -> None:
    """The units of deleted messages are blanks in a rebuild; which queues have such is said."""
    summary = rebuild(request_for(golden("b533-expired"), tmp_path, "b533-expired"), OneByOne())

    (note,) = summary.notes
    assert note.startswith("queues that begin after queue offset 0: 3 (")
    assert all(topic in note for topic in ("'E1' 0", "'E1' 1", "'E2' 1"))


def test_the_delay_levels_of_the_broker_decide_times_of_delivery(golden: StoreOf, tmp_path: Path) -> None:
    """`messageDelayLevel` is no part of the store; a broker's configuration file gives it."""
    name = "b551-base"
    conf = BrokerConf(delay_level="1s 5s")
    rebuild(replace(request_for(golden(name), tmp_path, name), conf=conf), OneByOne())
    changed = {path for path, data in real_files(golden(name)).items() if made_files(tmp_path)[path] != data}

    assert changed == {"SCHEDULE_TOPIC_XXXX/15/00000000000000000000"}


def test_a_topic_that_is_no_folder_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    log = a_segment([a_record(topic="../../evil"), a_record(topic="good")])
    (tmp_path / "store" / "commitlog" / "00000000000000000000").write_bytes(log)
    conf = BrokerConf(consume_queue_size=200)
    summary = rebuild(RebuildQueuesRequest(str(tmp_path / "store"), tmp_path / "out", conf), OneByOne())

    assert list(made_files(tmp_path / "out")) == ["good/0/00000000000000000000"]
    assert summary.notes == ["queues that are not written: 1 ('../../evil' 0); no folder can have their topic's name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


SEGMENT = 16384
GAP = (SEGMENT, 2 * SEGMENT)


def rebuilt_queues(store: Path, out: Path, *, lost_only: bool = False) -> Summary:
    request = RebuildQueuesRequest(str(store), out, release="5.3.3", lost_only=lost_only)
    return rebuild(request, OneByOne())


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


DIED = "b498-base"


class _Killed(BaseException):
    """Stands for a signal that ends a process at once."""


class _Dying(OneByOne):
    """Workers each of whose tasks is killed once, as it would give its work a name; nothing is cleaned up then."""

    def map(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        label: str = "working",
        sizes: Sequence[int] = (),
    ) -> list[Result]:
        for item in () if sizes else items:
            with (
                patch.object(Path, "rename", side_effect=_Killed),
                patch.object(Path, "unlink"),
                patch("jobs.rebuild.queues.rmtree"),
                suppress(_Killed),
            ):
                task(item)
        return OneByOne.map(self, items, task, label, sizes)


def index_files(store: Path, out: Path, workers: Workers) -> None:
    index.rebuild(index.RebuildIndexRequest(str(store), str(out)), workers)


def queue_files(store: Path, out: Path, workers: Workers) -> None:
    rebuild(RebuildQueuesRequest(str(store), out), workers)


def lake_of(store: Path, out: Path) -> Lake:
    lake = out.with_name("lake")
    if not lake.exists():
        ingest_store(store, lake)
    return Lake(str(lake))


def whole_store(store: Path, out: Path, workers: Workers) -> None:
    restore(RestoreRequest(lake_of(store, out), out), workers)


def segment(store: Path, out: Path, workers: Workers) -> None:
    lake, damaged = lake_of(store, out), Path(shutil.copytree(store, out.with_name(f"{out.name}-store")))
    flip(segments_of(damaged)[0], 2000)
    assert repair(RepairRequest(str(damaged), out, lake), workers).files


@pytest.mark.parametrize("made", [index_files, queue_files, whole_store, segment])
def test_what_an_attempt_that_died_had_begun_is_not_left(
    golden: StoreOf, tmp_path: Path, made: Callable[[Path, Path, Workers], None]
) -> None:
    for name, workers in (("once", OneByOne()), ("again", _Dying())):
        made(golden(DIED), tmp_path / name, workers)

    whole, again = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("once", "again")
    )
    assert whole == again
