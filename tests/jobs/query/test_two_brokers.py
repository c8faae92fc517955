"""Stores of a lake that share topics, queue ids, offsets and a label: each answer comes from one of them."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.browse.lake_lists import LakeLists
from jobs.console.result import ExitCode
from jobs.query import ListConditions
from jobs.query.lake_source import open_lake_stores
from tests.support.commands import Run, overwrite
from tests.support.lakes import ingest_store, rows_of
from tests.support.query_stores import Sent, stored, write_store

STORES = {"a": "broker-a", "b": "broker-b", "c": "broker-a"}  # c: the first broker with a new store
FORMS = {"release": "5.5.1", "hash_slots": 7, "index_num": 9}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of three stores, in which each body, key and id contains the name of its store."""
    directory = tmp_path_factory.mktemp("two")
    for name, label in STORES.items():
        topics = ("Orders", "Other") if name != "b" else ("Orders", "Alone")
        sent = [
            Sent(topics[n % 2], ("all", f"{name}{n}"), f"{name}-id{n}", "tag", body=f'{{"id": "{name}{n}"}}'.encode())
            for n in range(12)
        ]
        # A store follows another one of its broker only if its messages are newer.
        later = 3_600_000 if name == "c" else 0
        records = [record._replace(store_timestamp=record.store_timestamp + later) for record in stored(sent)]
        store = write_store(directory / name, records)
        ingest_store(store, directory / "lake", label, **FORMS)
    return directory / "lake"


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", ["abc", "bac"])
@pytest.mark.parametrize("name", STORES)
def test_each_command_reads_only_the_rows_of_one_store(
    name: str, order: str, run: Run, lake: Path, tmp_path: Path
) -> None:
    """Another lake of the same stores has different store ids."""
    whole, bad, lake_of_all = lake.parent / name, tmp_path / "bad", tmp_path / "lake"
    for store in order:
        ingest_store(lake.parent / store, lake_of_all, STORES[store], **FORMS)
    for log in lake_of_all.glob("*/_delta_log"):
        DeltaTable(log.parent).optimize.compact()  # after that, a file has rows of several stores
    known = {row["uniq_key"]: row for row in rows_of(lake_of_all)}
    of_store = known[f"{name}-id6"]
    shutil.copytree(whole, bad)
    segment = f"commitlog/{0:020}"
    overwrite(bad / segment, of_store["physical_offset"] + 90, b"?")
    (tmp_path / "types.toml").write_text('topic.Orders = {format = "json", schema = "id string"}')
    forms = shlex.split("--hash-slots 7 --index-num 9 --release 5.5.1")
    place = ("--broker", of_store["store_id"], "--out")
    compared = run("diff", bad, lake_of_all, "--json").document
    codes = [
        run("restore", lake_of_all, *place, tmp_path / "restored").code,
        run("repair", bad, "--lake", lake_of_all, "--out", tmp_path / "repaired", *forms).code,
        run("verify", bad, "--findings-lake", lake_of_all, *forms).code,
        run("export", "--lake", lake_of_all, *place, tmp_path / "exported").code,
        run("type", lake_of_all, "--types", tmp_path / "types.toml").code,
    ]

    assert [ExitCode.CLEAN, ExitCode.DAMAGE, ExitCode.DAMAGE, ExitCode.CLEAN, ExitCode.CLEAN] == codes
    assert 11 == compared["equal"]
    assert 1 == len(compared["differences"])
    assert of_store["store_id"] == compared["store_id"]
    for path in (Path("restored", "commitlog"), Path("repaired", "work", "log")):
        assert (whole / segment).read_bytes() == (tmp_path / path / Path(segment).name).read_bytes()

    assert {of_store["store_id"]} == {row["store_id"] for row in rows_of(lake_of_all, "findings", "offset")}
    exported = map(json.loads, (tmp_path / "exported").read_text().splitlines())

    assert sorted(f"{name}-id{n}" for n in range(12)) == sorted(row["message_id"] for row in exported)
    typed = {(row["uniq_key"], row["store_id"], row["id"]) for row in rows_of(lake_of_all, "typed/Orders")}

    assert {
        (f"{one}-id{n}", known[f"{one}-id{n}"]["store_id"], f"{one}{n}") for one in "abc" for n in range(0, 12, 2)
    } == typed


@pytest.mark.parametrize("most_counted", [0, 1000])
def test_a_histogram_counts_the_messages_of_one_store(
    most_counted: int, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.browse.lake_lists._MOST_COUNTED", most_counted)
    found = [LakeLists(source).histogram(ListConditions()) for source in open_lake_stores(str(lake))]

    assert [12, 12, 12] == [sum(histogram.counts) for histogram in found if histogram is not None]
