"""Run the recipes of the guides, with only users' packages: `python -m tests.support.recipes DATA`."""

import json
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake import write_deltalake

from jobs.lake.tables import TIERED
from jobs.store.selection import Selection
from rmq_formats.commitlog.layout import COMPRESSED
from rmq_formats.trace import TRACE_TOPIC
from tests.support.lakes import table_of
from tests.support.query_stores import Sent, stored, write_lake, write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GUIDES = Path(__file__).parents[2] / "docs" / "guides"
TEXT = "".join((_GUIDES / name).read_text(encoding="utf-8") for name in ("engines.md", "sql-recipes.md"))


class Recipe(NamedTuple):
    """A code block of a page."""

    language: str
    text: str

    def rows(self, spark: "SparkSession", data: Path) -> int:
        """Run the recipe with the paths of *data*, and return the number of its rows."""
        return len(self.answer(spark, data)) + self.text.startswith("CREATE")

    def answer(self, spark: "SparkSession", data: Path) -> list[tuple[Any, ...]]:
        text = self.text.replace("/data/", f"{data}/")
        if self.language == "sql":
            return list(map(tuple, spark.sql(text).collect()))
        names: dict[str, Any] = {"spark": spark}
        exec(text, names)  # noqa: S102 - our own document
        result = names["result"]
        if hasattr(result, "collect"):
            result = result.collect()
        if hasattr(result, "fetchall"):
            return list(result.fetchall())
        return list(result.rows() if hasattr(result, "rows") else map(tuple, result))


RECIPES = [Recipe(*found) for found in re.findall(r"```(sql|python)\n(.*?)```", TEXT, re.DOTALL)]


def show_tables(spark: "SparkSession", data: Path) -> None:
    """Create the views of the page's first recipes, so that each other recipe can run alone."""
    for name in ("messages", "index_entries", "runs", "consumer_offsets", "traces"):
        spark.read.format("delta").load(str(data / "lake" / name)).createOrReplaceTempView(name)
    for recipe in RECIPES:
        if "VIEW message_texts" in recipe.text and recipe.language == "sql":
            spark.sql(recipe.text)


def main() -> None:
    from jobs.launch.session import spark_session

    data = Path(sys.argv[1])
    spark = spark_session("recipes")
    print(json.dumps([recipe.rows(spark, data) for recipe in RECIPES]))


if __name__ == "__main__":
    main()


def make_recipe_data(root: Path) -> Path:
    late = Sent(
        topic="rmq_sys_wheel_timer",
        unique_key="late",
        properties=(("TIMER_OUT_MS", "1795271991000"), ("REAL_TOPIC", "Orders"), ("REAL_QID", "0")),
    )
    half = Sent(topic="RMQ_SYS_TRANS_HALF_TOPIC", keys=("h",))
    messages = [
        Sent(
            keys=(f"k{n}",),
            unique_key=f"id{n}",
            body=(bytes, zlib.compress)[n % 2](f'{{"order": {n}, "customer": "c{n // 2}"}}'.encode()),
            properties=(("region", f"r{n % 2}"),),
            sys_flag=COMPRESSED * (n % 2),
        )
        for n in range(10)
    ]
    lines = "Pub\x011\x01R\x01P\x01Orders\x01id1\x01null\x01null\x01host\x014\x017\x010\x01true\x02"
    trace = Sent(TRACE_TOPIC, body=f"{lines}SubAfter\x01Q\x01id2\x013\x01true\x01null\x010\x012\x01G\x02".encode())
    records = stored([*messages, half, late, trace])
    # The queue has a gap of one message.
    gap = [record._replace(queue_offset=record.queue_offset + (record.queue_offset > 5)) for record in records]
    write_store(root / "store", gap)
    (root / "store/config").mkdir()
    (root / "store/config/consumerOffset.json").write_text('{"offsetTable":{"Orders@G":{0:2}}}')
    write_lake(root / "store", root / "lake", selection=Selection(with_inflated=True))
    copies = table_of(root / "lake/messages")
    copies = copies.append_column("generation", pa.repeat(pa.scalar(0, pa.int32()), copies.num_rows))
    write_deltalake(root / "lake/tiered", copies.select(TIERED.schema.names))
    return root
