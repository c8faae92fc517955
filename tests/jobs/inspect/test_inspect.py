"""`inspect`: what a store holds, whether it is well, who wrote it, what to run next."""

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.console.result import ExitCode
from jobs.storage.local import LocalReader, LocalStorage
from jobs.store.store import Store, list_store
from rmq_formats.release import Release
from rmq_formats.store import FileKind, classify
from tests.golden import GOLDEN, SITUATIONS, StoreOf, golden_stores, release_of
from tests.rmq_formats.builders import a_record, a_segment
from tests.support.commands import Outcome, Run, copy_of, overwrite, state_of
from tests.support.stores import held, log_folders, names, newest_segment, read_segment, segments_of, stored_records


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return copy_of(golden("b551-base"), tmp_path)


def inspected(run: Run, store: Path, *options: str) -> Outcome:
    folders = log_folders(store)
    return run("inspect", "--json", *options, *(["--commitlog", ",".join(folders)] if folders else []), store)


def refuse_to_open(part: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LocalStorage.open

    def refusing(self: LocalStorage, location: str) -> AbstractContextManager[LocalReader]:
        if part in location:
            raise OSError(code, os.strerror(code), location)
        return opened(self, location)

    monkeypatch.setattr(LocalStorage, "open", refusing)


def problems(outcome: Outcome) -> list[tuple[str, str, int | None]]:
    found = outcome.document["problems"]
    return [(problem["severity"], Path(problem["file"]).name, problem["offset"]) for problem in found]


def test_the_list_of_restored_files_is_known(store: Path, run: Run) -> None:
    """It was an unknown file of a store that this tool had written."""
    before = inspected(run, store).document["state"]["unknown_files"]
    (store / "MANIFEST.json").write_text("{}")

    after = inspected(run, store).document

    assert before == after["state"]["unknown_files"]
    assert "list of the files that restore wrote" in {folder["kind"] for folder in after["state"]["folders"]}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", GOLDEN)
def test_a_real_store_is_told_as_it_is(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    before = state_of(store)
    records = [record for record, _ in stored_records(store)]

    outcome = inspected(run, store)
    log = outcome.document["log"]

    assert outcome.code is ExitCode.CLEAN
    assert outcome.document["health"] == "not verified"
    assert log["start_offset"] == int(segments_of(store)[0].name)
    assert log["end_offset"] == records[-1].end_offset
    assert log["first_store_timestamp"] == records[0].store_timestamp
    assert log["last_store_timestamp"] == records[-1].store_timestamp
    newest = newest_segment(store).name
    for segment, path in zip(log["segments"], segments_of(store), strict=True):
        offset = f"{segment['base_offset']:020d}"
        assert segment["end"] == ("sealed" if offset < newest else "open" if offset == newest else "made ahead of need")
        assert segment["framing"] == read_segment(path).framing.value
    assert state_of(store) == before


@pytest.mark.parametrize("deep", [[], ["--deep"]])
@pytest.mark.parametrize("step", [1, 40, 90, 150, 400, 1000])
def test_what_a_broker_writes_while_it_is_read_is_not_damage(
    store: Path, step: int, deep: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest record is written between one read of the file and the next."""
    (store / "abort").touch()
    segment = newest_segment(store)
    records = [record for record, _ in stored_records(store) if record.physical_offset >= int(segment.name)]
    read, written = LocalReader.read, records[len(records) // 2].physical_offset - int(segment.name)
    inode = segment.stat().st_ino

    def growing(self: LocalReader, position: int, length: int) -> bytes:
        nonlocal written
        data = read(self, position, length)
        if os.fstat(self._descriptor).st_ino != inode:
            return data
        seen = data[: max(written - position, 0)].ljust(len(data), b"\0")
        written += step * (position >= written)  # a broker writes on once somebody has seen the end
        return seen

    monkeypatch.setattr(LocalReader, "read", growing)

    outcome = inspected(run, store, *deep)

    assert [one for one in problems(outcome) if one[0] != "not verified"] == []
    assert outcome.document["log"]["left_over_bytes"] == 0


@pytest.mark.parametrize("is_at_work", [False, True])
def test_a_queue_file_that_a_broker_makes_meanwhile_is_not_missing(
    store: Path, is_at_work: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is listed before the log is read."""
    (store / "abort").touch() if is_at_work else None
    newest = str(max((store / "consumequeue" / "T1" / "0").iterdir()))

    def listed_before(*arguments: Any, **options: Any) -> Store:  # noqa: ANN401 - those of list_store
        listed = list_store(*arguments, **options)
        return replace(listed, queue_files=tuple(file for file in listed.queue_files if file.location != newest))

    monkeypatch.setattr("jobs.inspect.inspection.list_store", listed_before)
    found = [one for one in problems(inspected(run, store)) if one[0] == "gap"]

    assert bool(found) is not is_at_work


def test_an_index_file_that_a_broker_has_just_made_is_not_cut_short(store: Path, run: Run) -> None:
    """A file has its name a moment before its length."""
    (store / "index" / "29990101000000000").touch()
    assert inspected(run, store).code is ExitCode.DAMAGE
    (store / "abort").touch()
    assert inspected(run, store).code is ExitCode.CLEAN


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", golden_stores("base", "types", "dledger", "multipath", "rockscq", "retry"))
def test_a_deep_look_counts_every_record(golden: StoreOf, name: str, run: Run) -> None:
    """By topic, too; the marks of all records leave the true release possible."""
    store = golden(name)
    records = [record for record, _ in stored_records(store)]

    document = inspected(run, store, "--deep").document

    assert document["log"]["records"] == len(records)
    assert document["log"]["topics"] == {
        topic: sum(record.topic == topic for record in records) for topic in {record.topic for record in records}
    }
    assert str(Release.of(release_of(name))) in document["releases"][0]["candidates"]
    assert len(document["releases"]) == 1


@pytest.mark.parametrize("name", golden_stores("base", "types"))
def test_queues_and_index_files_are_counted(golden: StoreOf, name: str, run: Run) -> None:
    store = golden(name)
    files = [classify(path) for path in names(store)]
    queues = {
        (file.topic, file.queue_id)
        for file in files
        if file.kind in (FileKind.CONSUME_QUEUE, FileKind.BATCH_CONSUME_QUEUE)
    }

    document = inspected(run, store).document

    assert {(queue["topic"], queue["queue_id"]) for queue in document["queues"]["queues"]} == queues
    assert (document["index"]["hash_slots"], document["index"]["index_num"]) == (100, 20)
    assert len(document["index"]["files"]) == sum(file.kind is FileKind.INDEX for file in files)
    for queue in document["queues"]["queues"]:
        if queue["kind"] == "consumequeue" and not queue["topic"].startswith("%LMQ%"):
            messages = [
                record.queue_offset
                for record, _ in stored_records(store)
                if (record.topic, record.queue_id) == (queue["topic"], queue["queue_id"])
            ]
            assert (queue["first_unit"], queue["next_unit"]) == (min(messages), max(messages) + 1)


@pytest.mark.parametrize(
    ("name", "eras"),
    [
        ("up470-471", [("4.0.0", "4.7.0"), ("4.7.1", "5.5.1")]),
        ("up533-540", [("4.7.1", "5.3.3"), ("5.4.0", "5.5.1")]),
    ],
)
def test_two_releases_in_one_store_are_told_apart(
    golden: StoreOf, name: str, eras: list[tuple[str, str]], run: Run
) -> None:
    """By what the index files count and hold; the second began at offset 11232, as PROVENANCE says."""
    store = golden(name)
    assert "from physical offset 11232 on" in (store / "PROVENANCE.md").read_text()

    releases = inspected(run, store).document["releases"]

    assert [(era["lowest"], era["highest"]) for era in releases] == eras
    assert 11232 <= releases[1]["from_offset"] < 13000


def test_the_verdict_and_the_warning_of_a_start_are_the_last_lines(store: Path, run: Run) -> None:
    """A long report scrolls its beginning off the screen."""
    with newest_segment(store).open("ab") as file:
        file.write(bytes(4096))

    *_, warning, verdict = run("inspect", store).out.splitlines()

    assert "does not start" in warning
    assert verdict == "inspect: damage"


def test_the_dashboard_fits_on_a_screen(store: Path, run: Run) -> None:
    outcome = run("inspect", store)
    lines = outcome.out.splitlines()

    assert lines[0] == f"● nothing wrong seen; not verified  {store}"
    assert len(lines) < 40
    titles = [line.split()[0] for line in lines[1:] if line.startswith("  ") and not line.startswith("   ")]
    assert titles == ["BROKER", "LOG", "QUEUES", "INDEX", "CHECKPOINT", "RELEASE", "ALSO", "NEXT"]
    assert f"rmq-lake inspect --deep {store}" in outcome.out


def test_the_release_is_not_guessed_where_nothing_tells(tmp_path: Path, run: Run) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(a_segment([a_record()]))

    assert "RELEASE    4.0.0 to 5.5.1 (nothing in the store shows which)" in run("inspect", tmp_path).out


# --- what is wrong


def test_a_damaged_head_of_a_segment_is_found_without_a_walk(store: Path, run: Run) -> None:
    overwrite(store / "commitlog" / "00000000000000016384", 4, b"\xff")

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert outcome.document["health"] == "damage"
    assert problems(outcome) == [("damage", "00000000000000016384", 16384)]
    assert [step["run"].split()[:2] for step in outcome.document["next"][:2]] == [
        ["dump", "--from"],
        ["inspect", "--deep"],  # damage after the first is found by a walk alone
    ]
    assert outcome.document["next"][0]["run"].startswith("dump --from 16384 --limit 3 ")


@pytest.mark.parametrize(
    ("harm", "number", "severity", "offset", "text"),
    [
        (Path.unlink, 1, "gap", 16384, "no segment 00000000000000016384"),
        # A broker refuses to start with one; its records are readable all the same.
        (lambda path: os.truncate(path, 10_001), 3, "damage", None, "10001 bytes long, the others 16384"),
    ],
    ids=["missing", "of odd length"],
)
def test_a_harmed_segment_is_named(  # noqa: PLR0913, PLR0917 - a row of the table
    store: Path, run: Run, harm: Callable[[Path], None], number: int, severity: str, offset: int | None, text: str
) -> None:
    name = f"{number * 16384:020d}"
    harm(store / "commitlog" / name)

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert (severity, name, offset) in problems(outcome)
    assert text in outcome.out


def test_a_segment_that_nothing_seals_is_named(store: Path, run: Run) -> None:
    path = store / "commitlog" / "00000000000000016384"
    raw = path.read_bytes()
    path.write_bytes(raw[:8192] + bytes(8192))

    assert problems(inspected(run, store)) == [("not verified", path.name, None)]
    assert inspected(run, store, "--deep").code is ExitCode.DAMAGE


def test_an_unfinished_record_waits(store: Path, run: Run) -> None:
    (store / "abort").touch()
    record = [record for record, _ in stored_records(store)][-1]
    position = record.physical_offset - 49152
    overwrite(store / "commitlog" / "00000000000000049152", position + 50, bytes(16384 - 50 - position))

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.CLEAN
    assert outcome.document["log"]["waiting_bytes"] == 16384 - position
    assert "are not a complete record yet" in run("inspect", store).out


@pytest.mark.parametrize(
    ("path", "raw", "severity"),
    [
        ("consumequeue/T1/0/00000000000000000400", bytes(199), "damage"),
        ("consumequeue/T1/0/00000000000000000407", bytes(200), "not verified"),
        ("consumequeue/T1/0/00000000000000001000", bytes(200), "gap"),
        ("index/20301120074236725", bytes(7), "damage"),
        ("index/20301120074236725", bytes(100), "damage"),
        ("index/20301120074236725", bytes(36) + b"\0\0\1\0" + bytes(800), "damage"),
        ("index/notes.txt", b"", "not verified"),
        ("commitlog/old", b"", "not verified"),
        ("commitlog/00000000000000065536", b"", "not verified"),
        ("checkpoint", bytes(7), "damage"),
        ("checkpoint", bytes(100), "not verified"),
    ],
)
def test_odd_files_are_named(store: Path, run: Run, path: str, raw: bytes, severity: str) -> None:
    (store / path).write_bytes(raw)

    assert (severity, Path(path).name) in [problem[:2] for problem in problems(inspected(run, store))]


def test_an_empty_queue_file_has_no_units(store: Path, run: Run) -> None:
    path = store / "consumequeue" / "New" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    queue = store / "consumequeue" / "Zeros" / "0" / ("0" * 20)
    queue.parent.mkdir(parents=True)
    queue.write_bytes(bytes(200))

    queues = {queue["topic"]: queue for queue in inspected(run, store).document["queues"]["queues"]}

    assert (queues["New"]["next_unit"], queues["New"]["last_physical_offset"]) == (0, None)
    assert (queues["Zeros"]["next_unit"], queues["Zeros"]["first_physical_offset"]) == (0, None)


def test_log_folders_that_nobody_named_are_pointed_out(golden: StoreOf, tmp_path: Path, run: Run) -> None:
    store = golden("b498-multipath")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={store}/commitlog-a,{store}/commitlog-b\n")

    outcome = run("inspect", "--json", store)

    assert outcome.document["log"]["segments"] == []
    assert outcome.document["next"][0]["run"] == f"inspect --commitlog {store}/commitlog-a,{store}/commitlog-b {store}"
    assert "LOG        none" in run("inspect", store).out
    assert len(run("inspect", "--json", "--broker-conf", conf, store).document["log"]["segments"]) == 4


def test_what_a_repair_set_aside_is_no_log_that_nobody_named(store: Path, run: Run) -> None:
    for name in ("commitlog.replaced-20261125T155058-530ac1cf", "consumequeue.replaced-20261125T155058-b8379e2d/T1/0"):
        (store / name).mkdir(parents=True)
        (store / name / ("0" * 20)).write_bytes(bytes(200))

    outcome = run("inspect", "--json", store)

    assert [] == outcome.document["problems"]
    assert not any("--commitlog" in step["run"] for step in outcome.document["next"])
    kinds = {folder["folder"]: folder["kind"] for folder in outcome.document["state"]["folders"]}
    assert {"set aside by repair or --install"} == {kind for name, kind in kinds.items() if ".replaced-" in name}


def test_an_index_that_the_checkpoint_knows_of_is_lost_and_repair_makes_it(store: Path, run: Run) -> None:
    shutil.rmtree(store / "index")

    outcome = run("inspect", "--json", store)

    assert [("gap", "index", None)] == problems(outcome)
    verbs = [step["run"].split()[0] for step in outcome.document["next"]]
    assert "repair" in verbs
    assert "rebuild-index" not in verbs


@pytest.mark.parametrize(("setting", "code"), [("true", ExitCode.DAMAGE), ("false", ExitCode.CLEAN)])
def test_an_index_that_was_never_full_is_missing_if_the_configuration_switches_it_on(
    store: Path, run: Run, setting: str, code: ExitCode
) -> None:
    """The checkpoint notes down full index files alone."""
    shutil.rmtree(store / "index")
    overwrite(store / "checkpoint", 16, bytes(8))
    assert inspected(run, store).code is ExitCode.CLEAN
    conf = store.parent / "broker.conf"
    conf.write_text(f"messageIndexEnable={setting}\n")

    outcome = inspected(run, store, "--broker-conf", str(conf))

    assert outcome.code is code
    assert [one for one in problems(outcome) if one[0] == "gap"] == [("gap", "index", 0)] * (code is ExitCode.DAMAGE)


def test_a_queue_that_nobody_may_read_is_not_called_lost(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_open("/consumequeue/T1/0/", errno.EACCES, monkeypatch)

    outcome = run("inspect", store)

    assert "NOT ACCESSIBLE /" in outcome.out
    assert "is missing" not in outcome.out
    assert "Errno" not in outcome.out


def test_a_single_index_file_that_is_not_full_tells_no_numbers(store: Path, run: Run) -> None:
    """One sum with two unknowns; a full file's count of entries is the other sum."""
    files = sorted((store / "index").iterdir())
    for path in files[:-2]:
        path.unlink()
    assert "made for 100 slots and 20 entries, as 1 full file shows" in run("inspect", store).out

    files[-2].unlink()

    assert "give --hash-slots and --index-num" in run("inspect", store).out


# --- the broker


@pytest.mark.parametrize(
    ("name", "broker"),
    [
        ("b533-crash-before", "not closed: it crashed"),  # `abort` is there, and nobody holds the lock
        ("b551-base", "closed cleanly"),  # 5.x leaves abort.bak after a clean stop
    ],
)
def test_a_broker_was_closed_or_not(golden: StoreOf, run: Run, name: str, broker: str) -> None:
    document = inspected(run, golden(name)).document

    assert document["state"]["broker"].startswith(broker)
    assert document["health"] == "not verified"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who holds a lock is asked as Linux answers it")
def test_a_running_broker_is_known_by_its_lock(store: Path, run: Run) -> None:
    """Another process holds a lock on the file `lock`, as a broker does; the file alone says nothing."""
    (store / "lock").write_text("lock")
    assert inspected(run, store).document["state"]["process"] is None
    with (store / "lock").open("r+") as file:  # asking for the lock has not taken it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with held(store) as broker:
        state = inspected(run, store).document["state"]

    assert state["process"] == broker
    assert state["broker"] == f"running: process {broker} holds the lock"


# --- what is no store


def test_a_file_that_cannot_be_read_is_a_problem_of_its_own(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "00000000000000016384"

    refuse_to_open(f"commitlog/{bad}", errno.EIO, monkeypatch)
    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert ("damage", bad, None) in problems(outcome)
    assert "cannot be read: Input/output error" in outcome.out
    assert outcome.document["log"]["segments"][3]["end"] == "open"


def test_a_sector_that_cannot_be_read_is_damage_and_the_rest_is_walked(
    store: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "00000000000000016384"
    whole = len(list(stored_records(store)))
    original = LocalReader.read

    def read(self: LocalReader, position: int, length: int) -> bytes:
        is_bad_file = original(self, 28, 8) == int(bad).to_bytes(8, "big")  # the first record's physical offset
        if is_bad_file and position <= 8200 < position + length:
            raise OSError(5, "Input/output error")
        return original(self, position, length)

    monkeypatch.setattr(LocalReader, "read", read)
    outcome = inspected(run, store, "--deep")

    assert outcome.code is ExitCode.DAMAGE
    assert problems(outcome)[-1] == ("damage", bad, 16384 + 8192)
    assert "4096 bytes cannot be read: Input/output error" in outcome.out
    assert 0 < outcome.document["log"]["records"] < whole
    assert outcome.document["log"]["segments"][1]["end"] == "sealed"


# --- what names, heads and ends tell of queues and index


@pytest.mark.parametrize("lost", [(0,), (0, 1), (3,), (5, 6), (-2, -1)], ids=str)
def test_missing_index_files_are_a_gap(store: Path, run: Run, lost: tuple[int, ...]) -> None:
    files = sorted((store / "index").iterdir())
    missing = {files[number] for number in lost}
    for path in missing:
        path.unlink()

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert outcome.document["health"] == "gap"
    assert [problem[0] for problem in problems(outcome)] == ["gap"]
    assert "no index file has the keys of messages from offset" in outcome.document["problems"][0]["text"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", golden_stores("base"))
@pytest.mark.parametrize("queue", ["T1/0", "T1/1", "T3/0"])
def test_a_deleted_folder_of_a_queue_is_a_gap(golden: StoreOf, tmp_path: Path, run: Run, name: str, queue: str) -> None:
    store = copy_of(golden(name), tmp_path)
    if not (store / "consumequeue" / queue).exists():
        pytest.skip("this broker stored nothing there")
    shutil.rmtree(store / "consumequeue" / queue)

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert [(problem["severity"], problem["file"]) for problem in outcome.document["problems"]] == [
        ("gap", f"consumequeue/{queue}")
    ]


def test_every_queue_is_named_when_all_of_them_are_deleted(store: Path, run: Run) -> None:
    queues = {f"consumequeue/{path.parent.name}/{path.name}" for path in store.glob("consumequeue/*/*")}
    shutil.rmtree(store / "consumequeue")

    named = {one["file"] for one in inspected(run, store, "--deep").document["problems"] if one["severity"] == "gap"}

    assert queues <= named


@pytest.mark.parametrize("name", ["b420-expired", "b551-expired", "b551-types"])
def test_the_range_of_a_queue_is_that_of_topic_status(golden: StoreOf, run: Run, name: str) -> None:
    """Units of deleted segments are left out, as mqadmin leaves them out."""
    store = golden(name)
    queues = inspected(run, store).document["queues"]["queues"]
    topics = sorted({queue["topic"] for queue in queues})
    rows = [
        row
        for topic in topics
        for row in run("query", "mqadmin", "--store", store, "--json", "topicStatus", "-t", topic).lines
    ]

    names = ("topic", "queue_id", "min_offset", "max_offset")
    of_inspect, of_query = ({tuple(one[name] for name in names) for one in found} for found in (queues, rows))
    assert of_inspect <= of_query  # which has queues without units, too
    assert ("expired" in name) == any(queue["first_unit"] < queue["min_offset"] for queue in queues)


@pytest.mark.parametrize("lost", [0, -1])
def test_a_missing_file_at_an_end_of_a_queue_is_a_gap(store: Path, run: Run, lost: int) -> None:
    """The files that are left are contiguous: only the messages tell that there were more."""
    sorted((store / "consumequeue" / "T1" / "0").iterdir())[lost].unlink()

    outcome = inspected(run, store)

    assert outcome.code is ExitCode.DAMAGE
    assert ("gap", "consumequeue/T1/0") in [(one["severity"], one["file"]) for one in outcome.document["problems"]]


def test_a_deleted_topic_is_no_gap(situation: StoreOf, run: Run) -> None:
    outcome = inspected(run, situation("field-deleted-498") / "store")

    assert outcome.code is ExitCode.CLEAN
    assert outcome.document["problems"] == []
    assert outcome.document["queues"]["deleted_topics"] == ["Gone"]


@pytest.mark.parametrize("options", [(), ("--deep",)])
def test_the_end_of_a_log_that_was_cut_back_is_that_of_its_broker(
    situation: StoreOf, run: Run, options: tuple[str, ...]
) -> None:
    place = situation("b551-controller-failover")
    broker = json.loads((place / "EXPECT.json").read_text())["oldMasterAfterReturn"]

    outcome = inspected(run, place / "store", *options)
    queues = {f"{queue['topic']}/{queue['queue_id']}": queue for queue in outcome.document["queues"]["queues"]}

    assert outcome.code is ExitCode.CLEAN
    assert outcome.document["log"]["end_offset"] == broker["maxPhyOffset"]
    assert outcome.document["log"]["left_over_bytes"] == 2114
    assert outcome.document["log"]["waiting_bytes"] == 0
    assert {name: queue["next_unit"] for name, queue in queues.items()} == {
        name: queue["max"] for name, queue in broker["queues"].items()
    }
    assert queues["Orders/1"]["left_over"] == 2
    assert outcome.document["state"]["replica"] == "DefaultCluster#b0#1"
    assert "2,114 bytes after the end are left over" in run("inspect", place / "store").out


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_file_of_a_store_is_named(situation: StoreOf, run: Run, name: str) -> None:
    store = situation(name) / "store"

    document = inspected(run, store).document
    folders = document["state"]["folders"]

    assert [folder for folder in folders if folder["kind"] == str(FileKind.UNKNOWN)] == []
    assert sum(folder["files"] for folder in folders) == sum(path.is_file() for path in store.rglob("*"))
    assert document["health"] == "not verified"


def test_a_tier_is_named_and_not_called_something_else(situation: StoreOf, run: Run) -> None:
    outcome = run("inspect", situation("b550-tiered") / "tiered")

    assert outcome.code is ExitCode.FAILED
    assert "the tier of a tiered store" in outcome.err


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("b551-indexrocks", "165 rows in RocksDB, no files"),
        ("b551-transrocks", "4 transactions in RocksDB, the oldest at offset 2,715"),
        ("b551-timerrocks", "21 messages in RocksDB, due 2026-11-21"),
        ("b551-timerwheel", "21 messages in timerwheel, due 2026-11-21 14:40:35.000Z to 2026-11-21 14:40:50.000Z"),
    ],
)
def test_what_waits_beside_queues_is_counted(situation: StoreOf, run: Run, name: str, shown: str) -> None:
    outcome = run("inspect", situation(name) / "store")

    assert shown in outcome.out
    assert "there is no index" not in outcome.out


def test_a_table_of_topics_that_is_being_written_is_read_again(
    golden: StoreOf, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(golden("b498-base"), tmp_path)
    topics = store / "config" / "topics.json"
    whole = topics.read_bytes()
    topics.write_bytes(whole[: len(whole) // 2])
    assert "topics.json: no JSON" in run("inspect", store).out

    monkeypatch.setattr("jobs.store.broker_config.time.sleep", lambda _: topics.write_bytes(whole))
    assert "no JSON" not in run("inspect", store).out
