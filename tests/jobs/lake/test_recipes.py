"""Every recipe of docs/recipes.md runs, and finds something."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_formats.commitlog.record import Host
from rmq_formats.message_id import encode_offset_id
from tests.support.recipe_data import make_recipe_data
from tests.support.recipes import RECIPES, TEXT, show_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store and a lake that have an answer for every recipe."""
    return make_recipe_data(tmp_path_factory.mktemp("recipes"))


def test_the_offset_id_of_the_recipe_is_that_of_the_first_message() -> None:
    """The test's store begins with it."""
    assert encode_offset_id(Host(bytes([10, 0, 0, 1]), 10911), 0) in TEXT


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_a_recipe_runs_and_finds_something(number: int, data: Path, spark: "SparkSession") -> None:
    """As the document has it, but for the two paths."""
    show_tables(spark, data)

    assert RECIPES[number].rows(spark, data) > 0


def test_no_recipe_reads_files_that_the_table_may_no_longer_have() -> None:
    """After a merge a folder holds the small files and the large one: a reader of `*.parquet` counts rows twice."""
    assert "*.parquet" not in TEXT
    assert "read_parquet" not in TEXT
