"""Runs the recipes of docs/tables.md; `python -m tests.support.recipes DATA` needs nothing but what users have."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


class Recipe(NamedTuple):
    """One block of the page."""

    language: str
    text: str

    def rows(self, spark: "SparkSession", data: Path) -> int:
        """Run the recipe as the page has it, but for the two paths; return how many rows it gives."""
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
    """Name the tables as the page's first recipes do, for whoever runs one alone."""
    for name in ("messages", "index_entries", "runs", "consumer_offsets", "traces", "tiered"):
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
