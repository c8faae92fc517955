"""Every recipe of docs/recipes.md runs, and finds something."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_formats.commitlog.record import Host
from rmq_formats.message_id import encode_offset_id
from tests.support.query_lakes import write_entries, write_messages
from tests.support.query_stores import RELEASE, Sent, stored, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEXT = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
_RECIPES = re.findall(r"```(sql|python)\n(.*?)```", _TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store and a lake that have an answer for every recipe."""
    root = tmp_path_factory.mktemp("recipes")
    half = Sent(topic="RMQ_SYS_TRANS_HALF_TOPIC", keys=("h",))
    messages = [
        Sent(keys=(f"k{n}",), unique_key=f"id{n}", body=b'{"order": 7}', properties=(("region", f"r{n % 2}"),))
        for n in range(10)
    ]
    records = stored([*messages, half])
    # The queue misses one number in the middle.
    gap = [record._replace(queue_offset=record.queue_offset + (record.queue_offset > 5)) for record in records]
    write_store(root / "store", gap)
    write_messages(root / "lake", root / "store", RELEASE)
    write_entries(root / "lake", gap, RELEASE)
    return root


def test_the_offset_id_of_the_recipe_is_that_of_the_first_message() -> None:
    """The test's store begins with it."""
    assert encode_offset_id(Host(bytes([10, 0, 0, 1]), 10911), 0) in _TEXT


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(_RECIPES)))
def test_a_recipe_runs_and_finds_something(number: int, data: Path, spark: "SparkSession") -> None:
    """As it stands in the document, but for the two paths."""
    for name in ("messages", "index_entries"):
        spark.read.format("delta").load(str(data / "lake" / name)).createOrReplaceTempView(name)
    language, text = _RECIPES[number]
    recipe = text.replace("/data/", f"{data}/")
    if language == "sql":
        rows: Any = spark.sql(recipe).collect()
        assert rows or recipe.startswith("CREATE")
        return
    names: dict[str, Any] = {"spark": spark}
    exec(recipe, names)  # noqa: S102 - our own document
    result = names["result"]
    found = result.collect() if hasattr(result, "collect") else result
    assert len(found) > 0
