"""
Positions and configuration as a part of a store: each fault in each command that looks at a store.

The store is one of a real broker of 5.3.3. The group `cg` has received all 16 messages of `T1`, 8 in each of 2 queues.
"""

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.console.result import ExitCode
from jobs.requests.query import QueryTarget
from tests.golden import StoreOf
from tests.support.commands import Run, copy_store
from tests.support.pages import render_page

OFFSETS = "config/consumerOffset.json"


def read_positions(path: Path) -> dict[str, dict[str, int]]:
    """Return the offsets by reader and queue; brokers write the numbers of queues without quotes."""
    quoted = re.sub(r"([{,])(\d+):", r'\1"\2":', path.read_text())
    table: dict[str, dict[str, int]] = json.loads(quoted)["offsetTable"]
    return table


def write_positions(path: Path, table: dict[str, dict[str, int]]) -> None:
    path.write_text(json.dumps({"offsetTable": table}))


def delete_with_backup(path: Path) -> None:
    path.unlink()
    path.with_name(f"{path.name}.bak").unlink(missing_ok=True)


def set_offsets(store: Path, offset: int, *, queues: tuple[str, ...] = ("0", "1")) -> None:
    table = read_positions(store / OFFSETS)
    table["T1@cg"] |= dict.fromkeys(queues, offset)
    write_positions(store / OFFSETS, table)


def lose_queue(store: Path) -> None:
    table = read_positions(store / OFFSETS)
    del table["T1@cg"]["1"]
    write_positions(store / OFFSETS, table)


def damage_with_backup(store: Path) -> None:
    for name in (OFFSETS, f"{OFFSETS}.bak"):
        (store / name).write_bytes(b'{"offsetTable":{')


def lose_topic(store: Path) -> None:
    path = store / "config/topics.json"
    table = json.loads(path.read_bytes())
    del table["topicConfigTable"]["T1"]
    path.write_text(json.dumps(table))


def lose_backup(store: Path) -> None:
    (store / f"{OFFSETS}.bak").unlink()
    set_offsets(store, 0)


class Fault(NamedTuple):
    """A fault, and which commands end with exit code 3 because of it."""

    inject: Callable[[Path], object]
    text: str  # the consequence, as each of these commands states it
    is_repaired: bool = False  # from the lake, without `--positions lake`
    is_found_without_lake: bool = True


FAULTS = {
    "config/ is missing": Fault(
        lambda store: shutil.rmtree(store / "config"), "config/consumerOffset.json", is_repaired=True
    ),
    "positions are missing": Fault(
        lambda store: delete_with_backup(store / OFFSETS),
        "the consumer group cg will receive up to 16 messages again",
        is_repaired=True,
    ),
    "topics are missing": Fault(
        lambda store: delete_with_backup(store / "config/topics.json"), "start without topics", is_repaired=True
    ),
    "groups are missing": Fault(
        lambda store: delete_with_backup(store / "config/subscriptionGroup.json"),
        "start without consumer groups",
        is_repaired=True,
    ),
    "file and backup are unreadable": Fault(damage_with_backup, "the broker would not start", is_repaired=True),
    "no table": Fault(
        lambda store: (store / OFFSETS).write_text("{}"), "without the object offsetTable", is_repaired=True
    ),
    "a position past the end": Fault(
        lambda store: set_offsets(store, 108, queues=("0",)), "the group will skip up to 100 messages"
    ),
    "positions are zeroed": Fault(lambda store: set_offsets(store, 0), "the group cg will receive 16 messages again"),
    "positions are zeroed, without a backup": Fault(
        lose_backup, "the group cg will receive 16 messages again", is_found_without_lake=False
    ),
    "a group lost a queue": Fault(lose_queue, "the group cg will receive 8 messages again"),
    "a topic with queues is not in the file": Fault(lose_topic, "lacks T1"),
}


@pytest.fixture
def store(golden: StoreOf, tmp_path: Path) -> Path:
    return copy_store(golden("b533-retry"), tmp_path)


def read_files(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_each_command_reports_each_fault_with_its_consequence(
    store: Path, tmp_path: Path, run: Run, fault: Fault
) -> None:
    """And a repair from a lake restores files that are missing or unreadable, and never moves a position back."""
    lake, out = tmp_path / "lake", tmp_path / "repair"
    run("ingest", store, "--lake", lake)
    before = read_files(store)
    fault.inject(store)
    faulty = read_files(store)
    found = {
        "inspect": run("inspect", store),
        "verify": run("verify", store),
        "diff": run("diff", store, lake),
        "repair": run("repair", store, "--lake", lake, "--out", out),
    }

    alarms = {name for name, outcome in found.items() if outcome.code in {ExitCode.DAMAGE, ExitCode.MISMATCH}}
    stating = {name for name, outcome in found.items() if fault.text in outcome.out}
    expected = {"inspect", "verify", "diff", "repair"} if fault.is_found_without_lake else {"diff", "repair"}
    page = unescape(render_page(QueryTarget(store=str(store)), "/groups").text)

    assert alarms == expected
    assert stating == expected
    assert (fault.text in page) is fault.is_found_without_lake
    assert read_files(store) == faulty

    run("repair", store, "--lake", lake, "--out", out, "--apply")
    after = read_files(store)
    wanted = before if fault.is_repaired else faulty

    assert {path: after.get(path) for path in before if path.suffix != ".bak"} == {
        path: data for path, data in wanted.items() if path.suffix != ".bak"
    }
    run("repair", store, "--out", out, "--undo")

    assert read_files(store) == faulty


def repair(run: Run, store: Path, tmp_path: Path, *options: str | Path) -> str:
    """Apply a repair, and return what it printed; undo it and check that it returns every byte before that."""
    out = tmp_path / "repair"
    before = read_files(store)
    printed = run("repair", store, "--out", out, *options, "--apply").out
    after = read_files(store / "config")
    run("repair", store, "--out", out, "--undo")
    assert read_files(store) == before
    run("repair", store, "--out", out, *options, "--apply")
    assert read_files(store / "config") == after
    return printed


@pytest.mark.parametrize("change", [lose_backup, lose_queue, lambda store: set_offsets(store, 3, queues=("1",))])
def test_positions_are_set_to_the_larger_ones_of_the_lake_only_if_requested(
    store: Path, tmp_path: Path, run: Run, change: Callable[[Path], object]
) -> None:
    lake = tmp_path / "lake"
    run("ingest", store, "--lake", lake)
    change(store)
    table = read_positions(store / OFFSETS)
    table["%RETRY%cg@cg"]["0"] = 4  # after that of the lake
    write_positions(store / OFFSETS, table)
    repair(run, store, tmp_path, "--lake", lake, "--positions", "lake")

    expected = {"%RETRY%cg@cg": {"0": 4}, "T1@cg": {"0": 8, "1": 8}}

    assert read_positions(store / OFFSETS) == expected
    assert run("diff", store, lake).code in {ExitCode.CLEAN, ExitCode.MISMATCH}


def test_positions_of_the_lake_are_not_set_past_the_end_of_a_queue(store: Path, tmp_path: Path, run: Run) -> None:
    """The lake may have recorded a wrong position, or the queue was truncated since."""
    lake = tmp_path / "lake"
    set_offsets(store, 500)
    run("ingest", store, "--lake", lake)
    set_offsets(store, 2)
    repair(run, store, tmp_path, "--lake", lake, "--positions", "lake")

    assert read_positions(store / OFFSETS)["T1@cg"] == {"0": 8, "1": 8}


def test_a_lost_file_of_positions_never_moves_a_group_back_behind_its_backup(
    store: Path, tmp_path: Path, run: Run
) -> None:
    """The broker would load the backup, which was written after the lake's version."""
    lake, backup = tmp_path / "lake", store / f"{OFFSETS}.bak"
    set_offsets(store, 5)
    backup.unlink()
    run("ingest", store, "--lake", lake)
    set_offsets(store, 7, queues=("1",))
    newer = (store / OFFSETS).read_bytes()
    (store / OFFSETS).rename(backup)
    repair(run, store, tmp_path, "--lake", lake)

    assert (store / OFFSETS).read_bytes() == newer


def test_versions_of_positions_that_are_each_ahead_in_a_queue_are_merged(store: Path, tmp_path: Path, run: Run) -> None:
    lake, backup = tmp_path / "lake", store / f"{OFFSETS}.bak"
    run("ingest", store, "--lake", lake)
    table = read_positions(store / OFFSETS)
    write_positions(backup, {"%RETRY%cg@cg": {"0": 4}, "T1@cg": {"0": 3}, "T2@other": {"5": 1}})
    (store / OFFSETS).unlink()
    printed = repair(run, store, tmp_path, "--lake", lake)

    expected = {"%RETRY%cg@cg": {"0": 4}, "T1@cg": {"0": 8, "1": 8}, "T2@other": {"5": 1}}

    assert table["T1@cg"] == {"0": 8, "1": 8}
    assert read_positions(store / OFFSETS) == expected
    assert "config/consumerOffset.json is written from the lake and its backup" in printed


@pytest.mark.parametrize("name", ["consumerOffset.json", "topics.json", ""])
def test_a_repair_copies_lost_files_from_a_replica_byte_for_byte(
    golden: StoreOf, store: Path, tmp_path: Path, run: Run, name: str
) -> None:
    replica = golden("b533-retry")
    for path in (store / "config").glob(f"{name}*"):
        path.unlink()
    printed = repair(run, store, tmp_path, "--positions-from", replica)

    restored = {path.name: path.read_bytes() for path in (store / "config").glob("*.json")}

    assert restored == {path.name: path.read_bytes() for path in (replica / "config").glob("*.json")}
    assert "is written from the replica" in printed
    assert run("verify", store).code == ExitCode.CLEAN


def test_a_store_of_another_broker_is_no_replica(golden: StoreOf, store: Path, tmp_path: Path, run: Run) -> None:
    (store / OFFSETS).unlink()
    code, _, err = run("repair", store, "--out", tmp_path / "repair", "--positions-from", golden("b551-retry"))

    assert code == ExitCode.USAGE
    assert "not a replica of this store: their logs differ at offset 0" in err


def test_positions_of_a_lake_need_a_lake(store: Path, tmp_path: Path, run: Run) -> None:
    code, _, err = run("repair", store, "--out", tmp_path / "repair", "--positions", "lake")

    assert code == ExitCode.USAGE
    assert "--positions lake requires --lake" in err


HOSTILE = {
    "nested deeply": b"[" * 100_000,
    "nested objects": b'{"offsetTable":' * 50_000,
    "a list": b"[1,2]",
    "a huge number": b'{"offsetTable":{"T1@cg":{"0":1e999}}}',
    "many digits": b'{"offsetTable":{"T1@cg":{"0":' + b"9" * 5000 + b"}}}",
    "more than 64 bits": b'{"offsetTable":{"T1@cg":{"0":9223372036854775808}}}',
    "a huge queue id": b'{"offsetTable":{"T1@cg":{"99999999999":1}}}',
    "a text": b'{"offsetTable":"T1@cg"}',
    "a list in place of offsets": b'{"offsetTable":{"T1@cg":[8,8]}}',
    "a truth value": b'{"offsetTable":{"T1@cg":{"0":true}}}',
    "a queue that is not a number": b'{"offsetTable":{"T1@cg":{"x":8}}}',
    "not UTF-8": b'{"offsetTable":{"\xff\xfe',
    "UTF-16": '{"offsetTable":{}}'.encode("utf-16"),
    "zeros": bytes(300),
    "empty": b"",
    "spaces": b"  \n",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_content_that_no_broker_writes_is_reported_and_restored(
    store: Path, tmp_path: Path, run: Run, data: bytes
) -> None:
    lake = tmp_path / "lake"
    run("ingest", store, "--lake", lake)
    before = (store / OFFSETS).read_bytes()
    (store / OFFSETS).write_bytes(data)

    codes = [run("inspect", store).code, run("verify", store).code, run("diff", store, lake).code]

    assert codes == [ExitCode.DAMAGE] * 3
    repair(run, store, tmp_path, "--lake", lake)

    assert (store / OFFSETS).read_bytes() == before


def test_of_two_values_of_a_name_the_last_one_counts(store: Path, run: Run) -> None:
    """As in a broker."""
    path = store / OFFSETS
    path.write_text(path.read_text().replace('"T1@cg":{0:8,', '"T1@cg":{0:1,0:8,'))

    assert run("verify", store).code == ExitCode.CLEAN


DATABASE = "config/consumerOffsets"  # of a broker with storeType=defaultRocksDB


def write_database_of_new_broker(store: Path, situation: StoreOf) -> None:
    """Write the database as a broker of 5.5.0 has it before the first group consumes."""
    shutil.rmtree(store / DATABASE)
    shutil.copytree(situation("field-rocksonly-550") / "store" / DATABASE, store / DATABASE)


@pytest.mark.parametrize(
    ("inject", "found"),
    [
        (lambda store, _: shutil.rmtree(store / DATABASE), f"missing_configuration: {DATABASE} database: missing"),
        (write_database_of_new_broker, "the group G will receive 60 messages again, or will skip 20 messages"),
    ],
    ids=["lost", "an earlier version"],
)
def test_positions_in_rocksdb_are_reported_and_not_changed(
    situation: StoreOf, tmp_path: Path, run: Run, inject: Callable[[Path, StoreOf], object], found: str
) -> None:
    """The group G has received 30 of 40 messages of `Orders` in each of 2 queues."""
    store = copy_store(situation("b551-rockscq-clean") / "store", tmp_path)
    lake = tmp_path / "lake"
    out = tmp_path / "out"
    run("ingest", store, "--lake", lake)
    inject(store, situation)
    before = read_files(store)

    compared = run("diff", store, lake)

    assert compared.code == ExitCode.DAMAGE
    assert found in compared.out
    assert OFFSETS not in compared.out

    repaired = run("repair", store, "--lake", lake, "--out", out, "--positions", "lake", "--apply")

    assert repaired.code == ExitCode.DAMAGE
    assert f"{DATABASE}: the positions of 2 groups are behind those in the lake. They were not changed" in repaired.out
    assert "`repair` does not write RocksDB databases" in repaired.out
    assert "--positions lake" not in repaired.out
    assert read_files(store) == before
