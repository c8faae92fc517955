"""A damaged store is repaired: what log and lake can tell is right again, the rest is named, all can be undone."""

import shutil
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.console.result import ExitCode, Severity
from jobs.lake.findings import LOG
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.repair.journal import JOURNAL
from jobs.repair.run import NotRepairableError, RepairRequest, RepairSummary, repair, undo
from jobs.store.beside_broker import RefusedError
from jobs.store.workers import OneByOne
from rmq_formats.commitlog.layout import TransactionType
from rmq_formats.commitlog.record import MessageRecord, decode_record
from rmq_formats.consumequeue.dispatch import walk_units
from rmq_formats.consumequeue.layout import PRE_BLANK_SIZE, UNIT
from rmq_formats.indexfile.layout import Geometry
from rmq_formats.release import Release, rules_of
from tests.golden import StoreOf, release_of, unpack
from tests.rmq_formats.reference import IndexWriter
from tests.support.commands import Run, overwrite
from tests.support.fault_kinds import (
    QUEUE_FILE,
    SEGMENT,
    STORE,
    WANTED,
    Fault,
    Part,
    faults,
    hit_record,
    without_rights,
)
from tests.support.lakes import ingest_store, rows_of
from tests.support.stores import (
    content_of,
    flip,
    held,
    lose_first_segment_like_retention,
    records_of,
    segments_of,
    stored_records,
    tree_state,
)


@pytest.fixture(scope="module")
def healthy(golden: StoreOf) -> Path:
    return golden(STORE)


@pytest.fixture(scope="module")
def lake(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repair") / "lake"
    ingest_store(healthy, folder, release="5.3.3")
    return folder


@pytest.fixture
def store(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "store"))


def repaired(
    store: Path,
    lake: Path | None = None,
    *accepted: str,
    apply: bool = True,
    **options: Any,  # noqa: ANN401 - further fields of the request
) -> RepairSummary:
    source = Lake(str(lake)) if lake is not None else None
    request = RepairRequest(
        str(store), store.parent / "repair", source, None, WANTED, apply, accepted=frozenset(accepted), **options
    )
    return repair(request, OneByOne())


def _all_faults() -> list[Fault]:
    with TemporaryDirectory() as name:
        return list(faults(unpack(STORE, Path(name))))


DENIED = [fault for fault in _all_faults() if "denied" in fault.name]
FAULTS = [fault for fault in _all_faults() if "denied" not in fault.name]
QUICK = {
    "middle segment missing", "last segment missing", "first segment cut short", "middle segment cut short",
    "record: body", "record: topic", "middle file missing", "unit: size", "slot", "all files missing",
    "all folders missing", "cut short",
}  # fmt: skip


# No checksum covers these: the log says that right queues are wrong, and only another copy of the record could tell.
DOUBTFUL = {"record: queue_id", "record: queue_offset", "record: topic"}


def named(fault: Fault) -> str:
    return f"{fault.part.value}: {fault.name}"


@pytest.mark.sample(2, always=[named(one) for one in FAULTS if one.name in QUICK])
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_a_fault_is_repaired_from_log_and_lake_and_can_be_undone(store: Path, lake: Path, fault: Fault) -> None:
    fault.plant(store)
    damaged = content_of(store)

    summary = repaired(store, lake)

    assert summary.left is not None
    assert (0, []) == (summary.exit_code, summary.left.findings)
    assert bool(summary.plan) == (content_of(store) != damaged)
    if summary.plan:
        undo(str(store), store.parent / "repair")
        assert content_of(store) == damaged
        assert not list(store.rglob("*.replaced-*"))


@pytest.mark.sample(2, always=[named(one) for one in FAULTS if one.name in QUICK])
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_without_a_lake_only_what_the_lost_bytes_could_tell_is_left(store: Path, fault: Fault) -> None:
    fault.plant(store)
    damaged = content_of(store)

    summary = repaired(store)

    assert summary.left is not None
    left = {one.part for one in summary.left.findings if not one.follows and one.severity.is_alarm}
    if left and not summary.plan:
        assert "nothing can be repaired" in "\n".join(summary.lines(5))
    if fault.name in DOUBTFUL:
        assert (summary.plan, summary.exit_code) == ([], ExitCode.MISMATCH)
        assert all(name.startswith(("consumequeue/T1/", "index/")) for name in summary.undecided)
        assert summary.undecided
        return
    decided = {
        one.part
        for one in summary.left.findings
        if not one.follows and one.severity.is_alarm and not one.cause.startswith("undecided")
    }
    # An index file that was begun before bytes of the log were lost cannot be compared any more: it stays as it is.
    assert (decided if fault.part is Part.LOG else left) <= ({LOG} if fault.part is Part.LOG else set())
    assert (not left) == (summary.exit_code is ExitCode.CLEAN)
    if summary.plan:
        undo(str(store), store.parent / "repair")
    assert content_of(store) == damaged


def test_a_person_decides_one_undecided_file_and_nothing_else(store: Path) -> None:
    files = sorted((store / "consumequeue" / "T1").glob("*/0*0"))
    healthy_unit = files[0].read_bytes()[:20]
    for path in files:
        flip(path, 19, 3)  # of a tags code: more than one bit
    before = content_of(store)
    names = [str(path.relative_to(store)) for path in files]
    with pytest.raises(NotRepairableError, match="it is not undecided"):
        repaired(store, None, "consumequeue/T1/0/00000000000000000600")
    summary = repaired(store, None, names[0])
    assert summary.undecided == names[1:]
    assert {name for name, data in content_of(store).items() if data != before[name]} == {names[0]}
    assert files[0].read_bytes()[:20] == healthy_unit
    undo(str(store), store.parent / "repair")
    assert content_of(store) == before


def test_a_person_decides_an_undecided_index_file(store: Path, healthy: Path, lake: Path) -> None:
    file = sorted((store / "index").iterdir())[2]
    overwrite(file, 500, bytes(range(100, 200)))
    name = f"index/{file.name}"
    told = "that has the original record decides"
    for given, who in ((None, f"a lake or a slave {told} (--lake)"), (lake, f"a slave {told}")):
        plan = repaired(store, given, apply=False)
        assert plan.undecided == [name]
        assert f"; {who}. If you know that the log is right, pass --accept FILE" in "\n".join(plan.notes)
    assert repaired(store, None, name).exit_code == 0
    assert content_of(store) == content_of(healthy)


@pytest.mark.parametrize("fault", DENIED, ids=named)
def test_who_may_not_read_a_file_repairs_nothing(
    healthy: Path, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired(Path(shutil.copytree(healthy, tmp_path / "store")))  # compiles, into a folder that is closed to others
    with TemporaryDirectory() as name:  # pytest's own folders are closed to others
        Path(name).chmod(0o777)
        monkeypatch.setattr("tempfile.tempdir", name)  # TMPDIR may be closed to others, too
        store = Path(shutil.copytree(healthy, Path(name, "store")))
        fault.plant(store)
        with without_rights(Path(name), denied=True), pytest.raises(PermissionError) as error:
            repaired(store)

        assert str(error.value.filename).endswith(fault.file)
        (store / fault.file).chmod(0o644)
        assert content_of(store) == content_of(healthy)


def test_records_that_rotted_come_back_and_queues_stay(healthy: Path, store: Path, lake: Path) -> None:
    fault = next(one for one in FAULTS if one.name == "record: topic")
    fault.plant(store)
    segment = store / fault.file
    data = segment.read_bytes()
    flip(segment, data.index(b"TAGS") - 40)  # keys of the segment's first record; what is between stays as it is
    flip(segment, data.rindex(b"TAGS") - 40)  # keys of its last one: that the log goes on, the next segment tells

    repaired(store, lake)

    assert content_of(healthy) == content_of(store)


@pytest.mark.parametrize("number", [1, -1])
def test_a_segment_that_is_cut_short_gets_its_size_without_a_lake(store: Path, number: int) -> None:
    """A broker loads no log with such a file: what is there is served once the file has its size."""
    segment = sorted((store / "commitlog").iterdir())[number]
    segment.write_bytes(segment.read_bytes()[:5000])

    summary = repaired(store)

    data = segment.read_bytes()
    assert (SEGMENT, bytes(SEGMENT - 5000)) == (len(data), data[5000:])
    assert summary.left is not None
    assert {LOG} == {one.part for one in summary.left.findings if not one.follows}
    assert "wrong_file_size" not in {one.kind for one in summary.left.findings}


def test_a_plan_needs_no_lock_no_space_and_no_rights(store: Path, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only reads: a running broker, a full disk or files of another user are in the way of --apply alone."""
    sorted((store / "commitlog").iterdir())[1].unlink()
    sorted((store / "index").iterdir())[3].unlink()
    (store / "lock").write_text("lock")
    (store / "lock").chmod(0o444)
    monkeypatch.setattr("jobs.rebuild.install._SPARE", 1 << 60)
    with held(store):
        before = tree_state(store)
        plan = repaired(store, lake, apply=False)
        assert before == tree_state(store)
        with pytest.raises(RefusedError, match="the broker runs"):
            repaired(store, lake)

    assert plan.left is None
    assert {line.partition("/")[0] for line in plan.plan} >= {"new: index", "new: commitlog"}
    assert any(note.startswith("a broker runs on this store") for note in plan.notes)
    assert any("must stay free for the broker" in note for note in plan.notes)


def test_replaced_files_are_named_as_they_are_and_undo_leaves_no_empty_folder(store: Path) -> None:
    zeroed, lost = (store / "consumequeue/T1" / number for number in "01")
    shutil.rmtree(lost)
    first = min(zeroed.iterdir())
    first.write_bytes(bytes(QUEUE_FILE))
    folders = {path for path in store.rglob("*") if path.is_dir()}

    planned, done = repaired(store, apply=False), repaired(store)

    (aside,) = store.glob("consumequeue.replaced-*")
    name = str(first.relative_to(store / "consumequeue"))
    assert f"set aside in consumequeue.replaced-TIME: {name}" in planned.plan
    assert f"set aside in {aside.name}: {name}" in done.plan
    assert any(f"the replaced files are in {aside}: only --undo needs them" in line for line in done.lines(5))
    undo(str(store), store.parent / "repair")
    assert folders == {path for path in store.rglob("*") if path.is_dir()}


def test_a_healthy_store_needs_nothing(store: Path, lake: Path) -> None:
    before = tree_state(store)

    summary = repaired(store, lake)
    bridged = repaired(store, bridge=True)

    assert (0, [], before) == (summary.exit_code, summary.plan, tree_state(store))
    assert [JOURNAL] == [path.name for path in (store.parent / "repair").iterdir()]
    assert ["no bridge is written"] == [note.partition(":")[0] for note in bridged.notes]


def test_a_store_that_would_lose_messages_when_it_loads_is_left_alone(store: Path, lake: Path) -> None:
    """A cut queue file keeps the broker from starting; mended alone, the broker would cut the log at the bad place."""
    healthy = content_of(store)
    queue = min((store / "consumequeue/T1/0").iterdir())
    queue.write_bytes(queue.read_bytes()[:-40])
    segment = max((store / "commitlog").iterdir())
    segment.write_bytes(segment.read_bytes()[:600] + bytes(100) + segment.read_bytes()[700:])
    before = content_of(store)

    alone = repaired(store)
    assert alone.withheld is not None
    assert alone.start is not None
    assert alone.start.starts is False
    assert before == content_of(store)

    bridged = repaired(store, bridge=True)
    assert bridged.withheld is None
    assert bridged.start is not None
    assert (True, 0) == (bridged.start.starts, bridged.start.deletes_messages)
    assert Severity.DAMAGE is bridged.severity  # what was lost stays said

    assert Severity.HEALTHY is repaired(store, lake).severity  # the lake's records take the place of a bridge
    assert healthy == content_of(store)


def test_a_message_that_the_lake_gives_back_after_a_bridge_is_in_its_queue_again(store: Path, lake: Path) -> None:
    """The unit of the lost record was lost, too: the bridged store has a blank in its place."""
    healthy = content_of(store)
    queue = store / "consumequeue/T1/0/00000000000000000400"
    unit = next(unit for unit in list(walk_units(queue.read_bytes()))[1:] if unit.physical_offset)
    segment = max(path for path in (store / "commitlog").iterdir() if int(path.name) <= unit.physical_offset)
    overwrite(segment, unit.physical_offset - int(segment.name) + 60, bytes(100))
    queue.unlink()

    bridged = repaired(store, bridge=True)
    assert bridged.left is not None
    assert unit not in list(walk_units(queue.read_bytes()))
    assert (Severity.DAMAGE, 1) == (bridged.severity, len(bridged.left.groups))

    summary = repaired(store, lake)
    assert ([], Severity.HEALTHY) == (summary.undecided, summary.severity)
    assert healthy == content_of(store)


@pytest.mark.parametrize(("first", "end", "stays"), [(12, 14, False), (10, 14, True), (10, 20, True)])
def test_blanks_that_a_broker_may_have_written_stay(
    store: Path, healthy: Path, first: int, end: int, *, stays: bool
) -> None:
    """It begins a queue whose files are gone with blanks, in front of messages that are still in the log."""
    name = "consumequeue/T1/0/00000000000000000200"
    overwrite(store / name, (first - 10) * UNIT.size, UNIT.pack(0, PRE_BLANK_SIZE, 0) * (end - first))
    before = content_of(store)

    summary = repaired(store)

    assert (summary.undecided, summary.blanks) == (([name], [name]) if stays else ([], []))
    assert content_of(store) == (before if stays else content_of(healthy))
    if stays:
        assert repaired(store, None, name).exit_code == 0
        assert content_of(store) == content_of(healthy)


@pytest.mark.parametrize("folder", ["index", "consumequeue"])
def test_sizes_that_nothing_in_the_store_shows_are_asked_for_or_the_lakes(folder: str, store: Path, lake: Path) -> None:
    """
    A broker whose files are of other sizes refuses such ones, or misreads them.

    No command with RocketMQ's defaults is printed where the log's segments have another size than theirs.
    """
    healthy = content_of(store)
    shutil.rmtree(store / folder)

    alone = repair(RepairRequest(str(store), store.parent / "alone"), OneByOne())
    assert ([], True, []) == (alone.plan, alone.asks_for_sizes, alone.defaults)
    assert any(note.startswith(("no index file was rebuilt", "no queue file was rebuilt")) for note in alone.notes)

    repair(RepairRequest(str(store), store.parent / "repair", Lake(str(lake)), apply=True), OneByOne())
    assert sorted(healthy.values()) == sorted(content_of(store).values())  # an index file has the name of its moment


def test_a_repair_keeps_out_of_the_directory_that_takes_another_one_back(store: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(store, tmp_path / "other"))
    for one in (store, other):
        sorted((one / "index").iterdir())[2].unlink()
    repaired(store)
    before = content_of(store), content_of(other)

    for apply in (False, True):
        with pytest.raises(NotRepairableError, match=f"holds the journal of a repair of {store}"):
            repair(RepairRequest(str(other), tmp_path / "repair", wanted=WANTED, apply=apply), OneByOne())
    assert before == (content_of(store), content_of(other))
    assert undo(str(store), tmp_path / "repair")


def test_a_lost_index_that_the_next_start_would_delete_again_is_not_made_in_silence(store: Path) -> None:
    shutil.rmtree(store / "index")
    (store / "abort").touch()

    large = Wanted(hash_slots=1000, index_num=2000)
    (note,) = repair(RepairRequest(str(store), store.parent / "repair", wanted=large), OneByOne()).notes
    assert "--lost-only --install --advance-checkpoint" in note


def _without_index(store: Path) -> None:
    """Lose the index of a broker whose index files were never full: no checkpoint knows of them."""
    shutil.rmtree(store / "index")
    overwrite(store / "checkpoint", 16, bytes(8))


@pytest.mark.parametrize("source", ["options", "configuration"])
def test_a_lost_index_that_was_never_full_is_made_as_options_or_the_configuration_say(
    store: Path, source: str, run: Run
) -> None:
    """It was "nothing to repair", exit 0, and the broker answered no query by key."""
    _without_index(store)
    conf = store.parent / "broker conf"
    conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=2000\n")
    options = ["--hash-slots", "1000", "--index-num", "2000"] if source == "options" else ["--broker-conf", str(conf)]
    out = store.parent / "repair"
    planned = run("repair", store, "--out", out, "--engine", "here", *options)
    assert "nothing to repair" not in planned.out
    assert f"{' '.join(map(quote, options))} --apply" in planned.out

    assert run("repair", store, "--out", out, "--engine", "here", *options, "--apply").code == ExitCode.CLEAN
    writer = IndexWriter(Geometry(1000, 2000), rules_of((0, Release.of("5.3.3"))))
    writer.dispatch_all(record for record, _ in stored_records(store))
    (made,) = (store / "index").iterdir()
    assert made.read_bytes() == writer.files[0].encode()


def test_without_index_files_nothing_is_called_right_while_the_index_is_not_verified(store: Path, run: Run) -> None:
    _without_index(store)
    found = run("repair", store, "--out", store.parent / "repair", "--engine", "here")

    assert "nothing to repair" not in found.out
    assert "nothing found to repair; not verified: index" in found.out
    assert "--broker-conf BROKER.CONF" in found.out
    assert "5000000" not in found.out  # segments of 16 KiB are of a broker with a configuration of its own


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("", ExitCode.MISMATCH, "rmq-lake repair {store} --broker-conf {conf} --out"),
        ("messageIndexEnable=false", ExitCode.CLEAN, "the broker's configuration switches index files off"),
    ],
    ids=["on", "off"],
)
def test_the_configuration_says_whether_a_store_should_have_index_files(
    store: Path, run: Run, line: str, code: ExitCode, says: str
) -> None:
    _without_index(store)
    conf = store.parent / "broker.conf"
    conf.write_text(line)

    found = run("verify", store, "--broker-conf", conf, "--engine", "here")
    assert found.code == code
    assert says.format(store=store, conf=conf) in found.out


def test_undo_refuses_what_would_lose_messages_or_put_back_less(store: Path) -> None:
    queue = store / "consumequeue/T1/0" / f"{200:020d}"
    queue.write_bytes(queue.read_bytes()[:-40])
    out = store.parent / "repair"
    with pytest.raises(NotRepairableError, match="no repair from here is in place"):
        undo(str(store), out)
    repaired(store)
    after = content_of(store)

    queue.write_bytes(queue.read_bytes()[:-20] + bytes(20))  # as if a broker had written on
    with pytest.raises(NotRepairableError, match="changed after the repair"):
        undo(str(store), out)
    queue.write_bytes(after["consumequeue/T1/0/00000000000000000200"])
    (aside,) = store.glob("consumequeue.replaced-*/T1/0/*")
    kept = aside.read_bytes()
    aside.unlink()
    with pytest.raises(NotRepairableError, match="no longer there"):
        undo(str(store), out)
    assert content_of(store) == after
    aside.write_bytes(kept)
    (out / JOURNAL).write_bytes((out / JOURNAL).read_bytes()[:-9])
    with pytest.raises(NotRepairableError, match="no journal of a repair"):
        undo(str(store), out)


CHANGED = {
    "flag": "flag + 1",
    "born_host": "'10.9.8.7:6543'",
    "reconsume_times": "reconsume_times + 1",
    "prepared_transaction_offset": "prepared_transaction_offset + 1",
    "queue_offset": "queue_offset + 1",
    "queue_id": "queue_id + 1",
    "topic": "'T9'",
    "sys_flag": "sys_flag + 1",
    "born_timestamp": "born_timestamp + 1",
    "store_timestamp": "store_timestamp + 1",
    "store_host": "'10.9.8.7:6543'",
    "body_crc": "body_crc + 1",
}


def changed(lake: Path, tmp_path: Path, column: str, at: int) -> Path:
    """Return a copy of the lake in which another engine has updated a column of one row."""
    folder = Path(shutil.copytree(lake, tmp_path / "lake"))
    DeltaTable(folder / "messages").update({column: CHANGED[column]}, predicate=f"physical_offset = {at}")
    return folder


def zero_body(store: Path, at: int) -> None:
    path = store / f"commitlog/{at // SEGMENT * SEGMENT:020d}"
    data = path.read_bytes()
    record = decode_record(data, at % SEGMENT, at)
    overwrite(path, data.index(record.body, at % SEGMENT), bytes(len(record.body)))


@pytest.mark.sample(4)
@pytest.mark.parametrize("column", CHANGED)
def test_a_row_that_another_engine_changed_replaces_neither_a_sound_record_nor_a_damaged_one(
    healthy: Path, store: Path, lake: Path, tmp_path: Path, column: str
) -> None:
    at = hit_record(healthy).physical_offset
    altered = changed(lake, tmp_path, column, at)
    zero_body(store, at // SEGMENT * SEGMENT)  # of another record of the segment

    assert 0 == repaired(store, altered).exit_code
    assert content_of(healthy) == content_of(store)

    zero_body(store, at)
    damaged = content_of(store)
    summary = repaired(store, altered)

    assert (ExitCode.DAMAGE, damaged) == (summary.exit_code, content_of(store))
    assert any(f"left out, at {at:,}" in note for note in summary.notes)


def test_nothing_is_taken_from_a_lake_whose_log_goes_on_otherwise(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    ingest_store(store, lake, release="5.3.3")
    last = max((store / "commitlog").iterdir())
    data = bytearray(last.read_bytes())
    first = int.from_bytes(data[:4], "big")
    data[first - 1] ^= 1  # a property of the file's only record, or of its first one
    end = len(data.rstrip(b"\0"))
    data[first:end] = bytes(end - first)
    last.write_bytes(data)

    summary = repaired(store, lake)

    assert any("nothing is taken from the lake" in note for note in summary.notes)


def _kill(store: Path) -> None:
    """Leave what a killed broker leaves, and no checkpoint: the next start walks the log from its beginning."""
    (store / "abort").touch()
    (store / "checkpoint").unlink()


def _lose_record(store: Path, segment: int, number: int) -> tuple[MessageRecord, Path, int]:
    """Zero a record of a topic of clients; return it, and the file and position of its unit."""
    path = sorted((store / "commitlog").iterdir())[segment]
    record = [one for one, _ in records_of([path]) if one.topic.startswith("T")][number]
    overwrite(path, record.physical_offset - int(path.name) + 4, bytes(60))
    file, position = divmod(record.queue_offset * UNIT.size, QUEUE_FILE)
    return record, store / f"consumequeue/{record.topic}/{record.queue_id}/{file * QUEUE_FILE:020d}", position


def test_a_bridge_is_delivered_to_no_consumer(store: Path) -> None:
    """Its record makes no unit, and a blank takes the place of the unit that led there; a lake undoes both later."""
    _kill(store)
    record, queue, position = _lose_record(store, 1, 3)
    before = queue.read_bytes()

    summary = repaired(store, bridge=True)

    segment = sorted((store / "commitlog").iterdir())[1]
    data = segment.read_bytes()[record.physical_offset - int(segment.name) :][: record.total_size]
    sys_flag, topic = int.from_bytes(data[36:40], "big"), data[-2 - len("RMQ_LAKE_BRIDGE") : -2]
    assert (TransactionType.ROLLBACK, b"RMQ_LAKE_BRIDGE") == (sys_flag, topic)
    blank = UNIT.pack(0, PRE_BLANK_SIZE, 0)
    assert before[:position] + blank + before[position + UNIT.size :] == queue.read_bytes()
    assert any("consumers receive nothing in their place" in note for note in summary.notes)
    undo(str(store), store.parent / "repair")
    assert before == queue.read_bytes()


def test_messages_of_zeros_for_consumers_are_counted_and_need_an_option_of_their_own(store: Path) -> None:
    """After a blank a broker passes over the messages of the log's first file: there it has to deliver something."""
    _kill(store)
    record, queue, position = _lose_record(store, 0, 3)
    before = content_of(store)

    refused = repaired(store, bridge=True)
    assert (refused.delivered.partition(" of zeros")[0], before) == ("1 message", content_of(store))
    assert f"1 of {record.topic} (groups that have not passed them:" in refused.delivered

    accepted = repaired(store, bridge=True, deliver_empty=True)
    assert any(f"consumers receive 1 message of zeros: 1 of {record.topic}" in note for note in accepted.notes)
    unit = next(walk_units(queue.read_bytes()[position:]))
    assert (record.physical_offset, record.total_size) == unit[:2]


def test_what_bridges_would_save_is_said_whenever_a_start_deletes_messages(store: Path, run: Run) -> None:
    """After a kill and a zeroed page, the plan ended with nothing can be repaired, and no next step."""
    _kill(store)
    _lose_record(store, 1, 3)

    summary = repaired(store, apply=False)
    printed = run("repair", store, "--out", store.parent / "said", "--engine", "here")

    assert summary.start is not None
    assert (summary.start.deletes_messages or 0) > 0
    assert summary.at_risk == summary.start.deletes_messages
    assert f"keep {summary.at_risk} whole messages that the broker deletes when it starts" in " ".join(
        printed.out.split()
    )
    assert "--bridge" in printed.out


def test_a_plan_says_that_a_segment_under_a_wrong_name_stays(store: Path, lake: Path) -> None:
    """After the repair it was a gap and a damaged range, of which the plan had not spoken."""
    segment, newest = segments_of(store)[1], segments_of(store)[-1]
    wrong = f"{int(newest.name) + 2 * newest.stat().st_size:020d}"
    segment.rename(segment.with_name(wrong))

    plan = repaired(store, lake, apply=False)

    assert f"new: commitlog/{segment.name}" in plan.plan
    (note,) = (note for note in plan.notes if wrong in note)
    assert note.startswith(f"commitlog/{wrong} has the records of {segment.name} under a wrong name, and stays")


def test_older_messages_of_the_lake_are_counted_and_restored_when_they_were_lost(
    store: Path, lake: Path, healthy: Path
) -> None:
    """A lost first segment reads as retention does: the lake's messages from before were not mentioned."""
    start = lose_first_segment_like_retention(store)
    older = sum(row["physical_offset"] < start for row in rows_of(lake))

    plan = repaired(store, lake, apply=False)
    assert not any("commitlog" in line for line in plan.plan)
    assert any(note.startswith(f"the lake has {older} messages from before") for note in plan.notes)

    summary = repaired(store, lake, older=True)
    assert summary.exit_code is ExitCode.CLEAN
    log = {name: data for name, data in content_of(healthy).items() if name.startswith("commitlog/")}
    assert log == {name: data for name, data in content_of(store).items() if name.startswith("commitlog/")}


def test_the_release_that_a_lost_index_needs_is_asked_for_or_the_lakes(
    golden: StoreOf, tmp_path: Path, run: Run
) -> None:
    """Brokers from 5.4.0 on index tags, too, and only index files show whether this one did."""
    store = Path(shutil.copytree(golden("b533-retry"), tmp_path / "store"))
    healthy = content_of(store / "index")
    ingest_store(store, tmp_path / "lake")
    shutil.rmtree(store / "index")
    sizes = ("--hash-slots", "100", "--index-num", "20")

    asked = run("repair", store, "--out", tmp_path / "alone", *sizes)
    assert "--release X.Y.Z" in asked.out
    made = run("repair", store, "--out", tmp_path / "repair", "--lake", tmp_path / "lake", "--apply")
    assert ExitCode.CLEAN is made.code, made.out
    assert [*healthy.values()] == [*content_of(store / "index").values()]  # a file has the name of its moment


@pytest.mark.parametrize("name", ["b498-base", "b533-base", "b551-base"])
def test_an_index_that_begins_elsewhere_than_the_lost_one_survives_a_crash(
    name: str, golden: StoreOf, tmp_path: Path
) -> None:
    """Where retention has deleted segments, rebuilt files end elsewhere; the checkpoint covers the newest full one."""
    store = Path(shutil.copytree(golden(name), tmp_path / "store"))
    lose_first_segment_like_retention(store)
    wanted = Wanted(100, 20, release_of(name))

    summary = repair(RepairRequest(str(store), store.parent / "repair", wanted=wanted, apply=True), OneByOne())

    assert summary.left is not None
    assert (ExitCode.CLEAN, []) == (summary.exit_code, [one.kind for one in summary.left.findings])


UNITS = "consumequeue/T1/0/00000000000000000000"


@pytest.mark.parametrize("bits", [0b1, 0b11])
def test_a_wrong_tags_code_is_repaired_from_a_lake_that_has_seen_the_right_one(
    store: Path, healthy: Path, lake: Path, bits: int
) -> None:
    flip(store / UNITS, 19, bits)
    assert repaired(store, apply=False).undecided == [UNITS]
    summary = repaired(store, lake)

    assert (summary.undecided, summary.exit_code) == ([], 0)
    assert content_of(store) == content_of(healthy)


def test_a_lake_that_was_filled_with_a_record_of_other_tags_changes_no_unit(store: Path, tmp_path: Path) -> None:
    """Its row equals the record, and its unit was wrong by then: either may have changed."""
    flip(store / UNITS, 19, 1)
    ingest_store(store, tmp_path / "later", release="5.3.3")

    assert repaired(store, tmp_path / "later").undecided == [UNITS]
