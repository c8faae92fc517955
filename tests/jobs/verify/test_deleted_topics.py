"""Messages without a queue: of a topic that was deleted, of a queue that is lost, or undecided between the two."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.console.result import ExitCode, Severity
from jobs.inspect.inspection import inspect_store
from jobs.lake.lake import Lake
from jobs.products.index.settings import Wanted
from jobs.query.source import silent
from jobs.repair.run import RepairRequest, RepairSummary, repair
from jobs.store.store import list_store
from jobs.store.topics import Fate, topic_evidence, topics_in
from jobs.store.workers import OneByOne
from jobs.verify.run import VerifyRequest, verify
from jobs.verify.verdict import Verdict
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.commitlog.layout import HEAD
from rmq_formats.consumequeue.dispatch import decode_unit
from rmq_formats.consumequeue.layout import UNIT
from rmq_formats.store import name_of_offset
from tests.golden import StoreOf
from tests.rmq_formats.builders import STORED, a_record
from tests.support.broker import Broker
from tests.support.commands import overwrite
from tests.support.lakes import ingest_store
from tests.support.stores import stored_records

GONE = ["consumequeue/Gone/0", "consumequeue/Gone/1"]
FILE = 200  # bytes of a queue file
T1 = "consumequeue/T1/0"  # 26 units in three files
Change = Callable[[Path], object]


def verified(store: Path) -> Verdict:
    return verify(VerifyRequest(str(store)), OneByOne())


def repaired(store: Path, *accepted: str, lake: Lake | None = None) -> RepairSummary:
    conf = BrokerConf(consume_queue_size=1000)  # of field-deleted-498
    request = RepairRequest(
        str(store), store.parent / "repair", lake, wanted=Wanted(conf=conf), apply=True, accepted=frozenset(accepted)
    )
    return repair(request, OneByOne())


def table_of(store: Path, backup: str = "") -> Path:
    return store / "config" / f"topics.json{backup}"


def change_table(store: Path, changed_ms: int, *, backup: str = "", without: str = "") -> None:
    """Give a table of topics another time of its last change."""
    table = json.loads(table_of(store).read_text())
    table["dataVersion"]["timestamp"] = changed_ms
    table["topicConfigTable"].pop(without, None)
    table_of(store, backup).write_text(json.dumps(table))


def newest_ms(store: Path, topic: str) -> int:
    return max(record.store_timestamp for record, _ in stored_records(store) if record.topic == topic)


@pytest.fixture
def deleted(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a copy of a store whose topic `Gone` mqadmin has deleted."""
    return Path(shutil.copytree(golden("field-deleted-498"), tmp_path / "store"))


UNKNOWN: dict[str, Change] = {
    "the table is damaged": lambda store: table_of(store).write_text("{"),
    "there is no table": lambda store: table_of(store).unlink(),
    "the table is older than the messages": lambda store: change_table(store, newest_ms(store, "Gone") - 1),
    "the table does not say when it was changed": lambda store: table_of(store).write_text(
        json.dumps(json.loads(table_of(store).read_text()) | {"dataVersion": None})
    ),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_without_a_current_table_of_topics_it_is_undecided_whether_one_was_deleted(
    deleted: Path, change: Change
) -> None:
    change(deleted)
    verdict = verified(deleted)
    missing = [finding for finding in verdict.findings if finding.kind == "deleted_or_lost_queue"]

    assert [finding.file for finding in missing] == ["consumequeue/Gone"]
    assert "undecided" in missing[0].cause
    assert verdict.exit_code is ExitCode.DAMAGE
    assert inspect_store(str(deleted), (), BrokerConf(), deep=False, progress=silent).problems.severity.is_alarm
    assert ingest_store(deleted, deleted.parent / "lake").contradictions == 0


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_repair_makes_no_queue_of_a_topic_that_may_be_deleted(deleted: Path, change: Change) -> None:
    """A broker that starts serves such a queue, and a group that reads its topic gets deleted messages."""
    change(deleted)
    shutil.rmtree(deleted / "consumequeue" / "Orders" / "1")
    summary = repaired(deleted)

    assert not any((deleted / queue).exists() for queue in GONE)
    assert (deleted / "consumequeue" / "Orders" / "1").is_dir()
    assert {str(Path(name).parent) for name in summary.undecided} == set(GONE)
    assert any("'Gone' was deleted, or its queues are lost" in note for note in summary.notes)
    assert summary.severity.is_alarm


def test_a_user_decides_that_a_topic_is_alive(deleted: Path) -> None:
    table_of(deleted).unlink()
    names = repaired(deleted).undecided
    repaired(deleted, *names)

    assert all((deleted / queue).is_dir() for queue in GONE)


def test_a_table_of_topics_that_cannot_be_read_here_leaves_queues_not_verified(
    situation: StoreOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy store of 5.5.1 with its configuration in RocksDB, and the extra that reads it not installed."""
    store = Path(shutil.copytree(situation("b551-configv2") / "store", tmp_path / "store"))
    assert verified(store).severity is Severity.HEALTHY
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    verdict = verified(store)

    assert verdict.parts["queues"].findings == []
    assert verdict.parts["queues"].severity is Severity.NOT_VERIFIED
    assert "rocketmq-lake[rocksdb]" in " ".join(verdict.parts["queues"].doubts)
    assert ingest_store(store, tmp_path / "lake").contradictions == 0
    assert not repair(RepairRequest(str(store), tmp_path / "repair"), OneByOne()).plan


def test_queues_that_are_all_lost_are_made_again_without_a_table_of_topics(deleted: Path) -> None:
    """A broker that starts without any queue makes all of them again, too."""
    table_of(deleted).unlink()
    shutil.rmtree(deleted / "consumequeue")
    repaired(deleted)

    assert (deleted / "consumequeue" / "Orders" / "0").is_dir()


@pytest.fixture
def restarted(golden: StoreOf, tmp_path: Path) -> Path:
    """Return a store whose queue `T1` 0 began at 0 once more: 20 messages are of before, 6 of after."""
    store = Path(shutil.copytree(golden("b551-base"), tmp_path / "store"))
    data = b"".join(path.read_bytes() for path in sorted((store / T1).iterdir()))
    units = [data[at : at + UNIT.size] for at in range(0, 26 * UNIT.size, UNIT.size)]
    shutil.rmtree(store / T1)
    (store / T1).mkdir()
    for number, unit in enumerate(units[20:]):
        at = decode_unit(unit).physical_offset
        segment = max(path for path in (store / "commitlog").iterdir() if int(path.name) <= at)
        overwrite(segment, at - int(segment.name) + HEAD.offset("queue_offset"), number.to_bytes(8))
    (store / T1 / name_of_offset(0)).write_bytes(b"".join(units[20:]).ljust(FILE, b"\0"))
    return store


def last_before(store: Path) -> int:
    """Return when the last message from before the restart was stored."""
    records = [record for record, _ in stored_records(store) if (record.topic, record.queue_id) == ("T1", 0)]
    return max(record.store_timestamp for record in records[:20])


def test_a_queue_that_was_lost_and_begun_again_is_told_by_a_table_that_has_not_changed_since(restarted: Path) -> None:
    """Its messages from before are consumed by nobody: the topic was there all the time."""
    change_table(restarted, last_before(restarted) - 1)
    verdict = verified(restarted)

    assert [(finding.kind, finding.file, finding.times) for finding in verdict.findings] == [
        ("queue_lost_and_restarted", f"{T1}/{name_of_offset(0)}", 20)
    ]
    assert verdict.severity is Severity.CONTRADICTION
    assert ingest_store(restarted, restarted.parent / "lake").contradictions == 20


def test_a_topic_that_was_deleted_and_created_again_is_known_from_the_table_before_the_last_change(
    restarted: Path,
) -> None:
    """The last change has created the topic, and it was absent before, later than its older messages."""
    time = last_before(restarted)
    change_table(restarted, time + 1, backup=".bak", without="T1")
    change_table(restarted, time + 2)
    verdict = verified(restarted)

    assert verdict.findings == []
    assert [(fact.kind, fact.file, fact.times) for fact in verdict.parts["queues"].facts] == [
        ("deleted_topic", f"{T1}/{name_of_offset(0)}", 20)
    ]


def test_a_queue_that_began_again_is_undecided_once_the_table_has_changed(restarted: Path) -> None:
    time = last_before(restarted)
    change_table(restarted, time + 1, backup=".bak")
    change_table(restarted, time + 2)
    verdict = verified(restarted)
    (finding,) = verdict.findings

    assert (finding.kind, finding.times) == ("deleted_or_lost_queue", 20)
    assert "undecided" in finding.cause
    assert verdict.severity is Severity.GAP
    assert ingest_store(restarted, restarted.parent / "lake").contradictions == 0


def test_inspect_sees_a_lost_queue_folder_in_the_middle_of_a_small_log(tmp_path: Path) -> None:
    """A broker's own segments are of 1 GiB: a small log is one, whose first records may be of other queues."""
    broker = Broker(tmp_path / "store", segment_size=1 << 20, dispatches=True)
    for topic, count in (("Bills", 400), ("Orders", 20), ("Bills", 20)):
        broker.append(
            a_record(bytes(200), topic=topic, properties={"TAGS": "TagA"}, store_timestamp=STORED + number)
            for number in range(count)
        )
    (broker.root / "abort").unlink()
    (broker.root / "config").mkdir()
    table = {"topicConfigTable": {"Bills": {}, "Orders": {}}, "dataVersion": {"timestamp": STORED - 1, "counter": 2}}
    table_of(broker.root).write_text(json.dumps(table))
    shutil.rmtree(broker.root / "consumequeue" / "Orders")
    problems = inspect_store(str(broker.root), (), BrokerConf(), deep=False, progress=silent).problems

    assert [(problem.severity, problem.file) for problem in problems if problem.severity.is_alarm] == [
        (Severity.GAP, "consumequeue/Orders/0")
    ]


def ask_the_lake(store: Path, change: Change) -> RepairSummary:
    """Fill a lake from a store, change the store, and repair it with the lake."""
    ingest_store(store, store.parent / "lake")
    change(store)
    return repaired(store, lake=Lake(str(store.parent / "lake")))


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_the_lakes_table_of_topics_tells_that_a_topic_was_deleted(deleted: Path, change: Change) -> None:
    summary = ask_the_lake(deleted, change)

    assert {fact.file for fact in summary.found.parts["queues"].facts} == set(GONE)
    assert not [finding for finding in summary.found.findings if finding.kind == "deleted_or_lost_queue"]
    assert not any((deleted / queue).exists() for queue in GONE)
    assert summary.undecided == []
    assert any("'Gone', which was deleted, the lake has 0 messages" in note for note in summary.notes)


def lose_orders(store: Path) -> None:
    """Leave the queue of another topic: without any, a broker makes all of them again."""
    shutil.rmtree(store / "consumequeue" / "Orders")
    (store / "consumequeue" / "TBW102" / "0").mkdir(parents=True)
    (store / "consumequeue" / "TBW102" / "0" / name_of_offset(0)).write_bytes(bytes(1000))


def begin_table_anew(store: Path) -> None:
    """Write the table as a broker does that has lost it: it counts its changes from the start."""
    table = json.loads(table_of(store).read_text())
    table["topicConfigTable"].pop("Orders")
    table["dataVersion"] |= {"timestamp": newest_ms(store, "Orders") + 1_000_000, "counter": 1}
    table_of(store).write_text(json.dumps(table))


@pytest.mark.parametrize("change", [begin_table_anew, lambda store: table_of(store).unlink()], ids=["anew", "lost"])
def test_queues_of_a_topic_that_the_lake_knows_come_back(deleted: Path, change: Change) -> None:
    healthy = {path.name: path.read_bytes() for path in (deleted / "consumequeue" / "Orders" / "0").iterdir()}

    def lose(store: Path) -> None:
        lose_orders(store)
        change(store)

    summary = ask_the_lake(deleted, lose)

    assert {path.name: path.read_bytes() for path in (deleted / "consumequeue" / "Orders" / "0").iterdir()} == healthy
    assert not any((deleted / queue).exists() for queue in GONE)
    assert any("the lake's table of topics" in note for note in summary.notes)


def test_an_old_lake_does_not_tell_whether_a_topic_was_deleted(deleted: Path) -> None:
    def remove_later(store: Path) -> None:
        change_table(store, newest_ms(store, "Gone") - 1)

    change_table(deleted, newest_ms(deleted, "Gone") - 2)
    summary = ask_the_lake(deleted, remove_later)

    assert {str(Path(name).parent) for name in summary.undecided} == set(GONE)
    assert any("; the lake has no table that tells" in note for note in summary.notes)
    assert any("'Gone', which was deleted or lost its queues, the lake has 0" in note for note in summary.notes)


def test_a_table_that_the_lake_recorded_tells_of_a_topic_that_was_created_again(restarted: Path) -> None:
    """Its last change is another one: the backup does not name the deletion any more."""
    time = last_before(restarted)
    change_table(restarted, time + 1, without="T1")
    data = table_of(restarted).read_bytes()
    table = json.loads(data)
    table["topicConfigTable"]["T1"] = {}
    table_of(restarted).write_text(json.dumps(table))
    change_table(restarted, time + 2, backup=".bak")
    change_table(restarted, time + 3)

    def fate(*recorded: bytes) -> Fate:
        return topic_evidence(list_store(str(restarted)), topics_in(recorded)).fate_of_earlier("T1", time)

    assert fate() is Fate.UNDECIDED
    assert fate(data) is Fate.DELETED
    table_of(restarted).unlink()
    assert fate(data) is Fate.UNDECIDED
