"""Every recipe of docs/tables.md runs, and finds something."""

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden import SITUATIONS, StoreOf
from tests.support.lakes import ingest_store
from tests.support.recipes import RECIPES, TEXT, Recipe, make_recipe_data, show_tables
from tests.support.scenes import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLE_OF = {"store": "messages", "tiered": "tiered"}


def show(session: "SparkSession", lake: Path, table: str = "messages") -> None:
    session.read.format("delta").load(str(lake / table)).createOrReplaceTempView(table)


def recipe_with(text: str) -> Recipe:
    (recipe,) = (one for one in RECIPES if text in one.text)
    return recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recipe_data(tmp_path_factory.mktemp("recipes"))


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_a_recipe_runs_and_finds_something(number: int, data: Path, own_session: "SparkSession") -> None:
    show_tables(own_session, data)

    assert RECIPES[number].rows(own_session, data) > 0


BY_CUSTOMER = [number for number, recipe in enumerate(RECIPES) if "'c3'" in recipe.text or '"c3"' in recipe.text]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", BY_CUSTOMER)
def test_the_text_of_a_body_is_the_same_in_every_engine(number: int, data: Path, own_session: "SparkSession") -> None:
    show_tables(own_session, data)

    assert sorted(RECIPES[number].answer(own_session, data)) == [("Orders", 0, 7, "6"), ("Orders", 0, 8, "7")]


def test_every_engine_has_its_recipe_for_the_text_of_a_body() -> None:
    assert len(BY_CUSTOMER) == 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-timerwheel", "b551-timerrocks"])
def test_what_becomes_of_timer_messages_is_what_the_broker_said(
    situation: StoreOf, name: str, tmp_path: Path, own_session: "SparkSession"
) -> None:
    """The one counted 21 that wait, the other has 21 rows for them in RocksDB; ten of them are rolled."""
    ingest_store(situation(name) / "store", tmp_path / "lake", "b")
    show(own_session, tmp_path / "lake")
    states = Counter(row[-1] for row in recipe_with("'taken back'").answer(own_session, tmp_path))

    assert states == {"waiting": 21, "delivered": 6, "taken back": 1}


def test_a_compacted_topic_comes_down_to_the_newest_message_of_each_key(
    situation: StoreOf, tmp_path: Path, own_session: "SparkSession"
) -> None:
    """The broker has compacted up to 161, in its own time; the log goes on to 169."""
    ingest_store(situation("b551-compaction") / "store", tmp_path / "lake", "b")
    messages = own_session.read.format("delta").load(str(tmp_path / "lake/messages")).where("topic = 'Comp'")
    messages = messages.replace("Comp", "Orders", ["topic"])
    newest = []
    for end in (162, 170):
        messages.where(f"queue_offset < {end}").createOrReplaceTempView("messages")
        newest.append(sorted(row[3] for row in recipe_with("compacted topic").answer(own_session, tmp_path)))

    assert newest == [[*range(155, 162)], [*range(163, 170)]]


@pytest.mark.sample(0, always=["1"])
@pytest.mark.parametrize("expired", [0, 1])
def test_the_log_of_a_broker_and_its_tier_are_its_full_history_once(
    situation: StoreOf, expired: int, tmp_path: Path, own_session: "SparkSession"
) -> None:
    place = Path(shutil.copytree(situation("b550-tiered"), tmp_path / "place"))
    ingest_store(place / "store", tmp_path / "history", "b")
    for segment in sorted((place / "store/commitlog").iterdir())[:expired]:
        segment.unlink()
    for name in ("store", "tiered"):
        ingest_store(place / name, tmp_path / "lake", "b")
        show(own_session, tmp_path / "lake", TABLE_OF[name])
    own_session.sql(recipe_with("VIEW one_log").text)
    columns = ("topic", "queue_id", "queue_offset", "store_timestamp", "uniq_key", "body")
    one_log = sorted(map(tuple, own_session.table("one_log").select(*columns).collect()))
    history = own_session.read.format("delta").load(str(tmp_path / "history/messages")).select(*columns)
    origins = {row.origin for row in own_session.table("one_log").select("origin").distinct().collect()}

    assert sorted(map(tuple, history.collect())) == one_log
    assert ({"broker", "tier"} if expired else {"broker"}) == origins


def test_no_recipe_reads_files_that_the_table_may_no_longer_have() -> None:
    """After a merge a folder holds the small files and the large one: a reader of `*.parquet` counts rows twice."""
    assert "*.parquet" not in TEXT
    assert "read_parquet" not in TEXT


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-types", "b514-types"])
def test_no_queue_offset_of_a_healthy_store_is_missing(
    golden: StoreOf, name: str, tmp_path: Path, own_session: "SparkSession"
) -> None:
    """A batch in one record has several of them."""
    ingest_store(golden(name), tmp_path / "lake")
    show(own_session, tmp_path / "lake")

    assert recipe_with("AS missing").answer(own_session, tmp_path) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["b551-transrocks", "b551-base"])
def test_transactions_that_were_never_committed_are_those_of_the_view(
    situation: StoreOf, golden: StoreOf, name: str, tmp_path: Path, own_session: "SparkSession"
) -> None:
    ingest_store(situation(name) / "store" if name in SITUATIONS else golden(name), tmp_path / "lake")
    show(own_session, tmp_path / "lake")
    view = (ROOT / "jobs/lake/views/transactions.sql").read_text(encoding="utf-8")
    states = own_session.sql(view).where("state IN ('open', 'rolled back')")

    found = {row.uniq_key for row in own_session.sql(recipe_with("never committed").text).collect()}
    assert found
    assert found == {row.uniq_key for row in states.collect()}
