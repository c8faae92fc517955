"""
Which rows a condition in Spark's SQL chooses: Spark sees the columns that it names, and answers with row numbers.

The rows themselves stay where they are: tasks read them again and write those with these numbers. So no message passes
through the JVM, a body only where the condition looks at it, and nothing is needed that only pandas has.
"""

import pickle
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.export.candidate_rows import ITEM, NUMBERS, ROW, ROWS, UNDECODED, Chosen, numbered_rows, schema_of
from jobs.export.candidates import FORMAT, AllCandidates, Candidates, Plan
from jobs.export.items import BODY_TEXT, COLUMNS, Item
from rmq_formats.errors import UnsupportedFormat

if TYPE_CHECKING:
    from pyspark.sql.udtf import UserDefinedTableFunction

_STAR = re.compile(r"[(,]\s*\*")  # hash(*): of all columns


class Condition(NamedTuple):
    """A condition that Spark accepts, and the columns that it may look at."""

    text: str
    columns: tuple[str, ...]


def condition_of(spark: SparkSession, text: str) -> Condition:
    """Return a condition on the columns of `messages` and body_text; `UnsupportedFormat` when it is none to Spark."""
    every = (*COLUMNS, BODY_TEXT)
    try:
        _ = spark.createDataFrame([], _spark_schema(every)).where(text).schema
    except (AnalysisException, ParseException) as error:
        raise UnsupportedFormat(str(error).splitlines()[0]) from error
    # A name that is somewhere in the text may be a column's: one that is read in vain does no harm.
    words = {word.lower() for word in re.findall(r"\w+", text)}
    named = tuple(name for name in every if name in words)
    # Without any column, as in rand() < 0.1, a batch would have no rows.
    return Condition(text, every if _STAR.search(text) else named or ("physical_offset",))


def choose(spark: SparkSession, condition: Condition, items: Sequence[Item], folder: Path, limit: int) -> Chosen:
    """Write the numbers of the chosen rows below *folder*, and return the choice of these rows."""
    undecoded = folder / UNDECODED
    undecoded.mkdir(parents=True)
    packed, bounds = tuple(map(pickle.dumps, items)), tuple(item.bounds for item in items)
    plan = Plan(packed, bounds, condition.columns, limit, undecoded)
    _share_workers(spark)
    schema = StructType([*_spark_schema(condition.columns), *from_arrow_schema(pa.schema(NUMBERS))])
    frame = (_selected if plan.may_leave_out_items else _all)(spark, plan, schema)
    numbers = frame.where(condition.text).select(ITEM, ROW)
    numbers.write.partitionBy(ITEM).parquet((folder / ROWS).as_uri())
    return partial(numbered_rows, folder)


def _selected(spark: SparkSession, plan: Plan, schema: StructType) -> DataFrame:
    """Return the rows of the items that Spark does not leave out."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Candidates.of(plan))
    return spark.read.format(FORMAT).schema(schema).load()


def _all(spark: SparkSession, plan: Plan, schema: StructType) -> DataFrame:
    """Return the rows of all items, by a function that needs no pandas, unlike `mapInArrow`."""
    numbers = spark.range(0, len(plan.items), 1, max(len(plan.items), 1))
    read = cast("UserDefinedTableFunction", arrow_udtf(AllCandidates.of(plan), returnType=schema))
    return read(numbers.asTable())


def _share_workers(spark: SparkSession) -> None:
    """
    Let the processes that find the candidates write the parts: Spark keeps idle ones, with their loaded modules.

    It starts others for tasks with another environment, in which SQL's tasks say how their errors look. The other
    difference, a seed, `jobs.launch.session` takes away before any worker starts.
    """
    spark.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")


def _spark_schema(columns: Sequence[str]) -> StructType:
    return from_arrow_schema(schema_of(columns))
