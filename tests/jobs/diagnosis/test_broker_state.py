"""
The state of a store outside log, queues and index: a fault is reported, and a store as a broker left it is not.

The stores are those of real brokers. A fault changes one file: it is lost (with or without its backup), empty, or
overwritten with zeros. Expected numbers of messages are those that the brokers recorded in `EXPECT/`, counted by hand.
"""

import json
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs.console.result import ExitCode
from jobs.diagnosis import kinds
from jobs.diagnosis.broker_state import BrokerState, check_broker_state, span_reader
from jobs.diagnosis.findings import Finding
from jobs.store.broker_config import read_broker_config
from jobs.store.queue_files import list_queues
from jobs.store.store import list_store
from rmq_formats.consumequeue.dispatch import is_system_topic
from rmq_formats.errors import FormatError
from rmq_formats.store import FileKind, classify
from rmq_formats.timer_files import UNIT, decode_timer_progress, encode_timer_progress
from tests.golden import ARCHIVES, SITUATIONS, StoreOf
from tests.support.commands import Run, copy_store

_CHANGES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "lost with its backup": lambda path: unlink_all(path, backup_of(path)),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}
_OTHER_STATE = frozenset(
    {FileKind.CHECKPOINT, FileKind.CONFIG, FileKind.CONFIG_BACKUP, FileKind.CONTROLLER}
    | {FileKind.TIMER_LOG, FileKind.TIMER_METRICS, FileKind.TIMER_PROGRESS, FileKind.TIMER_WHEEL}
)
# Faults that only a lake shows: nothing else in a store depends on these files, and no message is lost or repeated.
_WITHOUT_TRACE = frozenset(
    {
        *("consumerOrderInfo.json", "messageRequestMode.json", "topicQueueMapping.json", "transactionMetrics"),
        *("timermetrics", "epochFileCheckpoint", "brokerIdentity", "tieredStoreMetadata.json"),
    }
)


# The files of timers are not used if the messages are in RocksDB.
_TIMERS_IN_ROCKSDB = frozenset({"b551-timerrocks", "field-rocksonly-550"})


class Case(NamedTuple):
    """A store, one of its files, and a fault."""

    store: str
    file: str
    fault: str

    def has_trace(self, paths: frozenset[str]) -> bool:
        """Return whether a store of these files shows the fault, and the broker needs the file."""
        name, is_lost = Path(self.file).name, self.fault.startswith("lost")
        is_last_version = self.fault == "lost with its backup" or f"{self.file}.bak" not in paths
        of_clean_stops = {"consumerFilter.json", "subscriptionGroup.json"} if "abort" in paths else set()
        without_trace = [
            # A broker writes a backup only with its second version of a file, and does not need it.
            name.endswith(".bak") and is_lost,
            "timer" in self.file and self.store in _TIMERS_IN_ROCKSDB,
            name == "tieredStoreMetadata.json",  # of a tier, which is not read
            is_lost and is_last_version and name in _WITHOUT_TRACE | of_clean_stops,
            # Without delayed messages the file says nothing.
            is_lost and is_last_version and name == "delayOffset.json" and not has_delays(paths),
            # The store library alone writes no other file that shows the loss; one log is in other directories.
            is_lost and name == "checkpoint" and (not is_of_broker(paths) or self.store == "b498-multipath"),
            # A killed broker may not have written the times yet.
            self.fault == "zeros" and name == "checkpoint" and "abort" in paths,
        ]
        return not any(without_trace)


def has_delays(paths: frozenset[str]) -> bool:
    return is_of_broker(paths) and any("/SCHEDULE_TOPIC_XXXX/" in path for path in paths)


def is_of_broker(paths: frozenset[str]) -> bool:
    """Return whether a whole broker wrote the store, not a test with the store library."""
    return not paths.isdisjoint({"config/topics.json", "config/consumerFilter.json", "config/topics/CURRENT"})


def unlink_all(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def open_golden(name: str, golden: StoreOf, situation: StoreOf) -> Path:
    return situation(name) / "store" if name in SITUATIONS else golden(name)


def state_of(root: Path) -> BrokerState:
    store = list_store(str(root))
    try:
        queues = list_queues(store)
    except FormatError:
        queues = []
    return check_broker_state(store, read_broker_config(store), span_reader(queues, store.start_offset))


def find(state: BrokerState, kind: str) -> dict[str, Finding]:
    return {finding.file: finding for finding in state.findings if finding.kind == kind}


@cache
def draw_faults(name: str) -> tuple[Case, ...]:
    """Return every fault of every file of a store that is not log, queue or index."""
    with tarfile.open(ARCHIVES[name]) as archive:
        members = {one.name: one.size for one in archive.getmembers() if one.isfile()}
    top = "store/" if name in SITUATIONS and not name.startswith("field-") else ""
    prefix = f"{name}/{top}" if not name.startswith("field-") else "store/"
    sizes = {name.removeprefix(prefix): size for name, size in members.items() if name.startswith(prefix)}
    paths = sorted(sizes)
    files = [path for path in paths if classify(path).kind in _OTHER_STATE and sizes[path]]
    cases = (Case(name, path, fault) for path in files for fault in _CHANGES)
    return tuple(case for case in cases if case.has_trace(frozenset(paths)))


CASES = tuple(case for name in sorted(ARCHIVES) for case in draw_faults(name))


@pytest.mark.sample(16, always=["b498-types", "b551-configv2", "b551-lmq-rockscq", "b550-dledger-group", "b420-live"])
@pytest.mark.parametrize("name", sorted(ARCHIVES))
def test_a_store_as_its_broker_left_it_has_no_findings(name: str, golden: StoreOf, situation: StoreOf) -> None:
    """Also those that a test wrote with the store library alone, which writes no configuration."""
    state = state_of(open_golden(name, golden, situation))

    assert state.findings == []
    assert state.notes == []


@pytest.mark.sample(40)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.store}-{case.file}-{case.fault}")
def test_no_fault_outside_log_queues_and_index_is_left_unsaid(
    case: Case, golden: StoreOf, situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    intact = open_golden(case.store, golden, situation)
    before = run("inspect", "--json", intact).document["problems"]
    damaged = Path(shutil.copytree(intact, tmp_path / "store"))
    _CHANGES[case.fault](damaged / case.file)

    after = run("inspect", "--json", damaged)
    texts = {problem["text"] for problem in after.document["problems"]} - {problem["text"] for problem in before}
    is_named = any(Path(case.file).name.removesuffix(".bak") in str(problem) for problem in after.document["problems"])
    assert texts
    assert is_named


def _with_lower_offset(table: dict[str, Any], store: Path) -> bool:
    """Lower one offset of a table as in an older version of the file; return whether there is one above 0."""
    for name, value in table.items():
        if isinstance(value, dict):
            if _with_lower_offset(value, store):
                return True
        elif value > 0:
            table[name] = value - 1
            return True
    return False


def _without_topic(table: dict[str, Any], store: Path) -> bool:
    """Remove a topic with queues that clients created: the broker itself creates the others at its start."""
    names = [name for name in table if (store / "consumequeue" / name).is_dir() and not is_system_topic(name)]
    return bool(names) and bool(table.pop(names[-1]))


def _without_group(table: dict[str, Any], _store: Path) -> bool:
    """Remove a group that clients created; return whether there is one."""
    names = [name for name in table if not name.startswith(("CID_", "TOOLS_", "FILTERSRV_", "SELF_TEST_"))]
    return bool(names) and bool(table.pop(names[-1]))


# A killed broker need not have written the newest version of a file.
_TO_OLDER_VERSION: dict[str, tuple[str, Callable[[dict[str, Any], Path], bool]]] = {
    "consumerOffset.json": ("offsetTable", _with_lower_offset),
    "lmqConsumerOffset.json": ("offsetTable", _with_lower_offset),
    "delayOffset.json": ("offsetTable", _with_lower_offset),
    "topics.json": ("topicConfigTable", _without_topic),
    "subscriptionGroup.json": ("subscriptionGroupTable", _without_group),
}
_OLDER_CASES = sorted({(case.store, case.file) for case in CASES if Path(case.file).name in _TO_OLDER_VERSION})
# The log of one store is in other directories; a test wrote the newest messages of the other with the store library.
_OLDER_CASES = [case for case in _OLDER_CASES if case[0] not in {"b498-multipath", "b551-controller-failover"}]


@pytest.mark.sample(5, always=["b533-retry-config/subscriptionGroup.json"])
@pytest.mark.parametrize(("name", "file"), _OLDER_CASES)
def test_an_older_version_of_a_file_is_found_by_a_comparison_with_a_lake(  # noqa: PLR0913, PLR0917 - fixtures
    name: str, file: str, golden: StoreOf, situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    intact = open_golden(name, golden, situation)
    run("ingest", intact, "--lake", tmp_path / "lake")
    before = run("diff", "--json", intact, tmp_path / "lake").document
    older = Path(shutil.copytree(intact, tmp_path / "store"))
    text = re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', (older / file).read_text())  # brokers do not quote numbers
    document = json.loads(text)
    table, change = _TO_OLDER_VERSION[Path(file).name]
    if (older / "abort").exists() or not change(document[table], older):
        pytest.skip("the broker was killed, or the table has nothing that clients created")
    (older / file).write_text(json.dumps(document))

    found = run("diff", "--json", older, tmp_path / "lake")

    assert ExitCode.DAMAGE == found.code or found.document["broker_state"] != before["broker_state"]


# Older versions of `checkpoint` are not drawn: they look like the file of a broker that was killed, which writes it
# now and then. After a clean stop, a broker does not use its times; after a crash, an earlier time makes it read more
# of the log again (CommitLog#recoverAbnormally), and it skips units that exist. `verify` predicts that start.

# The stores of brokers that were stopped and have pending timer messages in files.
_WITH_TIMERS = sorted({case.store for case in CASES if case.file == "config/timercheck"} - _TIMERS_IN_ROCKSDB)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", _WITH_TIMERS)
def test_an_older_progress_of_timer_messages_is_found(
    name: str, golden: StoreOf, situation: StoreOf, tmp_path: Path, run: Run
) -> None:
    """From before the last message was put into the wheel, which the broker would then do a second time."""
    store = Path(shutil.copytree(open_golden(name, golden, situation), tmp_path / "store"))
    path = store / "config/timercheck"
    progress = decode_timer_progress(path.read_bytes())
    if not any((store / "timerlog").glob("*")):
        pytest.skip("the archive was packed without the files of timers")
    older = progress._replace(
        log_flushed_position=progress.log_flushed_position - UNIT.size,
        queue_offset=progress.queue_offset - 1,
        master_queue_offset=progress.queue_offset - 1,
    )
    path.write_bytes(encode_timer_progress(older))

    outcome = run("verify", store)

    assert ExitCode.DAMAGE == outcome.code
    assert "would put 1 timer message into the wheel again" in outcome.out


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store with a group `cg` that failed some of the 16 messages of `T1`, and 3 delayed messages."""
    return copy_store(golden("b533-retry"), tmp_path)


@pytest.mark.parametrize("lost", ["", "topics.json", "consumerOffset.json", "subscriptionGroup.json"])
def test_a_store_without_its_configuration_is_not_healthy(store: Path, lost: str, run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert run("ingest", store, "--lake", lake).code == ExitCode.CLEAN
    assert run("verify", store).code == ExitCode.CLEAN
    for path in (store / "config").glob(f"{lost}*"):
        path.unlink()

    verified = run("verify", "--json", store)
    kinds_found = {(finding["kind"], finding["severity"]) for finding in verified.document["findings"]}
    assert verified.code == ExitCode.DAMAGE
    assert kinds_found == {("missing_configuration", "gap")}
    assert run("inspect", store).code == ExitCode.DAMAGE
    assert run("diff", store, lake).code == ExitCode.DAMAGE
    assert run("repair", store, "--out", tmp_path / "repair").code == ExitCode.DAMAGE


def test_a_lost_file_of_positions_names_its_groups_and_what_they_receive(store: Path) -> None:
    for path in (store / "config").glob("consumerOffset.json*"):
        path.unlink()

    cause = find(state_of(store), kinds.MISSING_CONFIGURATION)["config/consumerOffset.json"].cause
    assert "the consumer group cg will receive up to 16 messages again, or will skip some" in cause


def test_a_lost_delay_file_names_the_number_of_messages(store: Path) -> None:
    for path in (store / "config").glob("delayOffset.json*"):
        path.unlink()

    cause = find(state_of(store), kinds.MISSING_CONFIGURATION)["config/delayOffset.json"].cause
    assert cause == "the broker would deliver every delayed message that is still in the log again: up to 3 messages"


def test_a_table_of_topics_without_a_topic_that_has_queues_is_an_earlier_version(store: Path) -> None:
    path = store / "config/topics.json"
    table = json.loads(path.read_bytes())
    del table["topicConfigTable"]["T1"]
    path.write_text(json.dumps(table))

    assert find(state_of(store), kinds.MISSING_TOPICS)["config/topics.json"].found == "lacks T1"


def test_a_damaged_file_with_a_damaged_backup_says_that_the_broker_does_not_start(store: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_bytes(b"\0" * 40)

    cause = find(state_of(store), kinds.DAMAGED_CONFIGURATION)["config/consumerOffset.json"].cause
    assert cause == "the broker would not start, because config/consumerOffset.json.bak cannot be loaded either"


def test_a_damaged_file_with_a_right_backup_is_restored_by_the_printed_command(store: Path, run: Run) -> None:
    path = store / "config/consumerOffset.json"
    path.write_bytes(b"")

    lines = run("verify", store).out.splitlines()
    (command,) = [line.strip() for line in lines if line.strip().startswith("cp ")]
    subprocess.run(shlex.split(command), check=True)
    assert run("verify", store).code == ExitCode.CLEAN


def write_positions(store: Path, **positions: int) -> None:
    """Write the positions of the group `cg` in queue 0 of topics."""
    table = {f"{topic}@cg": {"0": offset} for topic, offset in positions.items()}
    (store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def test_a_position_past_the_end_says_how_many_messages_are_skipped(store: Path) -> None:
    write_positions(store, T1=108)  # queue 0 of T1 has 8 messages

    (finding,) = find(state_of(store), kinds.CONSUMER_PAST_QUEUE_END).values()
    assert finding.cause.endswith("so the group will skip up to 100 messages")


def test_a_queue_is_read_once_for_the_positions_of_all_groups(store: Path) -> None:
    table = {f"T1@group{number}": {"0": 1} for number in range(5)}
    (store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    listed = list_store(str(store))
    read_span = span_reader(list_queues(listed), listed.start_offset)
    read: list[tuple[str, int]] = []

    def count_reads(topic: str, queue_id: int) -> tuple[int, int] | None:
        read.append((topic, queue_id))
        return read_span(topic, queue_id)

    check_broker_state(listed, read_broker_config(listed), count_reads)

    assert len(read) == len(set(read))
    assert read


def test_a_position_before_the_start_is_a_note_with_the_number_of_messages(golden: StoreOf, tmp_path: Path) -> None:
    """Retention deletes messages of groups that are gone: legal, and no reason for an alarm."""
    store = copy_store(golden("b551-expired"), tmp_path)
    (store / "config").mkdir()
    table = {topic: {"topicName": topic} for topic in ("E1", "E2", "E3")}
    (store / "config/topics.json").write_text(json.dumps({"topicConfigTable": table}))
    write_positions(store, E1=0)  # its first message in the log, at offset 49,152 or later, has queue offset 18
    state = state_of(store)

    expected = "the group cg did not receive 18 messages of E1, which retention deleted"
    assert state.findings == []
    assert expected in {note.partition(":")[0] for note in state.notes}


def test_positions_that_were_set_back_are_compared_with_the_lake(store: Path, run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run("ingest", store, "--lake", lake)
    assert run("diff", store, lake).code == ExitCode.CLEAN
    write_positions(store, T1=0)  # before, it was 8 in both queues

    found = run("diff", "--json", store, lake)
    (finding,) = [one for one in found.document["broker_state"] if one["field"] == "T1@cg"]
    assert found.code == ExitCode.DAMAGE
    assert (finding["kind"], finding["times"]) == ("positions_behind_lake", 16)
    assert "the group cg will receive 16 messages again; either" in finding["cause"]


def test_a_killed_broker_need_not_have_written_its_positions(store: Path) -> None:
    """It writes them every few seconds, and before the filters of consumers."""
    (store / "abort").touch()
    for path in (store / "config").glob("consumer*"):
        path.unlink()

    assert state_of(store).findings == []


TIMERS = "b551-timerwheel"  # 21 messages are pending, as EXPECT.json says; 29 are in the queue


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        ("timerwheel", "the broker would never deliver 21 pending timer messages"),
        ("timerlog", "the broker would never deliver 21 pending timer messages"),
        ("config/timercheck", "deliver up to 29 timer messages again"),
    ],
)
def test_a_lost_timer_file_is_found(situation: StoreOf, tmp_path: Path, run: Run, lost: str, cause: str) -> None:
    store = copy_store(situation(TIMERS) / "store", tmp_path)
    path = store / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    for command in ("inspect", "verify"):
        outcome = run(command, store)
        assert outcome.code == ExitCode.DAMAGE
        assert cause in outcome.out


def test_a_copy_without_any_timer_file_is_not_verified(golden: StoreOf, run: Run) -> None:
    """The archive was packed without them, and one message was due an hour later."""
    outcome = run("verify", golden("b533-timer"))

    assert outcome.code == ExitCode.CLEAN
    assert "will never deliver 1 pending timer message" in outcome.out
    assert "not verified" in outcome.out


@pytest.mark.parametrize("fault", ["", "consumerOffset.json", "zeros"])
def test_a_repair_restores_the_configuration_from_a_lake_byte_for_byte(
    store: Path, run: Run, tmp_path: Path, fault: str
) -> None:
    """Without a lake, nothing has the bytes; `--undo` restores the store as it was."""
    lake, out = tmp_path / "lake", tmp_path / "repair"
    run("ingest", store, "--lake", lake)
    directory = store / "config"
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".bak"}
    if fault == "zeros":
        for path in directory.iterdir():
            path.write_bytes(bytes(path.stat().st_size))
    elif fault:
        for path in directory.glob(f"{fault}*"):
            path.unlink()
    else:
        shutil.rmtree(directory)
    damaged = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert run("repair", store, "--lake", lake, "--out", out).code == ExitCode.DAMAGE
    assert run("repair", store, "--lake", lake, "--out", out, "--apply").code == ExitCode.CLEAN

    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".bak"} == before
    assert run("verify", store).code == ExitCode.CLEAN
    assert run("diff", store, lake).code == ExitCode.CLEAN

    run("repair", store, "--out", out, "--undo")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == damaged


def test_a_repair_leaves_readable_positions_unchanged(store: Path, run: Run, tmp_path: Path) -> None:
    """They may have been set back on purpose."""
    lake, out = tmp_path / "lake", tmp_path / "repair"
    run("ingest", store, "--lake", lake)
    write_positions(store, T1=0)
    positions = (store / "config/consumerOffset.json").read_bytes()
    run("repair", store, "--lake", lake, "--out", out, "--apply")

    assert (store / "config/consumerOffset.json").read_bytes() == positions


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ((2, 7), "would put 22 timer messages into the wheel again"),
        ((2, 35), "the broker would skip 6 timer messages"),
        ((1, 1 << 40), "the end of the timer log was lost"),
    ],
)
def test_a_timer_progress_file_that_contradicts_the_other_files_is_found(
    situation: StoreOf, tmp_path: Path, run: Run, change: tuple[int, int], cause: str
) -> None:
    store = copy_store(situation(TIMERS) / "store", tmp_path)
    path = store / "config/timercheck"
    data, (field, value) = bytearray(path.read_bytes()), change
    data[8 * field : 8 * field + 8] = value.to_bytes(8, "big")
    path.write_bytes(data)

    for command in ("inspect", "verify"):
        outcome = run(command, store)

        assert outcome.code == ExitCode.DAMAGE
        assert cause in outcome.out
