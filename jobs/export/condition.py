"""
Evaluates a condition in Spark SQL: Spark gets only the columns in the condition, and returns row numbers.

The rows themselves are not sent to Spark: tasks read them again and write those with these numbers. So messages do not
pass through the JVM, bodies only if the condition uses them, and pandas is not needed.
"""

import json
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.export.candidates import SOURCE_NAME, AllCandidates, CandidatePlan, Candidates
from jobs.export.items import (
    BODY_COLUMNS,
    BODY_TEXT,
    COLUMNS,
    SCHEMA,
    ExportDefect,
    Item,
    Undecoded,
    decoded_slices,
    rows_of,
    with_bodies,
)
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import UnsupportedFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from pyspark.sql.udtf import UserDefinedTableFunction

_STAR = re.compile(r"[(,]\s*\*")  # hash(*): of all columns
_ITEM, _ROW = "_item", "_row"
_NUMBERS = (pa.field(_ITEM, pa.int32()), pa.field(_ROW, pa.int64()))
_ROWS, _UNDECODED = "rows", "undecoded"  # folders of row numbers, and of bodies that could not be decompressed

Rows = Iterator[pa.RecordBatch]
SelectRows = Callable[[int, Rows], Rows]  # of the rows of an item, which has a number, those that are wanted
# Returns which rows of items are wanted; it writes files for that below a folder. The limit is that of a body's bytes.
EvaluateCondition = Callable[[Sequence[Item], Path, int], SelectRows]


def compile_condition(spark: "SparkSession", text: str) -> EvaluateCondition:
    """Return a row selector for a condition on columns of `messages` and body_text; it may be `UnsupportedFormat`."""
    from pyspark.errors import AnalysisException, ParseException

    every = (*COLUMNS, BODY_TEXT)
    try:
        _ = spark.createDataFrame([], _spark_schema(every)).where(text).schema
    except (AnalysisException, ParseException) as error:
        raise UnsupportedFormat(str(error).splitlines()[0]) from error
    # Any name in the text may be a column; reading a column that is not needed does no harm.
    words = {word.lower() for word in re.findall(r"\w+", text)}
    named = tuple(name for name in every if name in words)
    # Without any column, as in rand() < 0.1, a batch would have no rows.
    columns = every if _STAR.search(text) else named or ("physical_offset",)
    return partial(_choose, spark, text, columns)


def _choose(  # noqa: PLR0913, PLR0917 - bound by `compile_condition`
    spark: "SparkSession", text: str, columns: tuple[str, ...], items: Sequence[Item], folder: Path, limit: int
) -> SelectRows:  # fmt: skip
    from pyspark.sql.types import StructType

    undecoded = folder / _UNDECODED
    undecoded.mkdir(parents=True)
    packed, bounds = tuple(map(pickle.dumps, items)), tuple(item.bounds for item in items)
    plan = CandidatePlan(packed, bounds, columns, limit, undecoded)
    # The processes that evaluate the condition should also write the parts. Spark reuses idle processes, with their
    # loaded modules, only for tasks with the same environment, and for SQL's tasks it sets the format of errors there.
    # The other difference, a seed, is removed by `jobs.launch.session` before any worker starts.
    spark.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
    schema = StructType([*_spark_schema(columns), *_spark_schema((_ITEM, _ROW))])
    if plan.may_leave_out_items:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        spark.dataSource.register(_with_plan(Candidates, plan))
        frame = spark.read.format(SOURCE_NAME).schema(schema).load()
    else:
        frame = _all(spark, plan, schema)
    numbers = frame.where(text).select(_ITEM, _ROW)
    numbers.write.partitionBy(_ITEM).parquet((folder / _ROWS).as_uri())
    return partial(select_rows, folder)


def _with_plan(kind: type, plan: CandidatePlan) -> type:
    """Return a subclass with a plan: Spark creates the object without arguments, and pickles the class with it."""
    return type(kind.__name__, (kind,), {"plan": plan})


def _all(spark: "SparkSession", plan: CandidatePlan, schema: "StructType") -> "DataFrame":
    """Return the rows of all items, with a table function, which unlike `mapInArrow` does not need pandas."""
    from pyspark.sql.functions import arrow_udtf

    numbers = spark.range(0, len(plan.items), 1, max(len(plan.items), 1))
    read = cast("UserDefinedTableFunction", arrow_udtf(_with_plan(AllCandidates, plan), returnType=schema))
    return read(numbers.asTable())


def _schema_of(columns: Sequence[str]) -> pa.Schema:
    numbers = {field.name: field for field in _NUMBERS}
    return pa.schema([numbers.get(name) or SCHEMA.field(name) for name in columns])


def _spark_schema(columns: Sequence[str]) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_schema_of(columns))


def rows_with_numbers(number: int, item: Item, columns: Sequence[str], limit: int, notes: Path) -> Rows:
    """Yield *columns* of an item's rows, and the row numbers; note below *notes* which bodies stay compressed."""
    row = 0
    undecoded = Undecoded()
    for batch in condition_columns(item, columns, limit, undecoded):
        numbers = [
            pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows),
            pa.array(np.arange(row, row + batch.num_rows)),
        ]
        schema = pa.schema([*batch.schema, *_NUMBERS])
        yield pa.RecordBatch.from_arrays([*batch.columns, *numbers], schema=schema)
        row += batch.num_rows
    pa.default_memory_pool().release_unused()  # the same process writes parts next, with columns of other sizes
    if undecoded.count:
        (notes / str(number)).write_text(json.dumps([undecoded.count, undecoded.places]))


def condition_columns(item: Item, columns: Sequence[str], limit: int, undecoded: Undecoded) -> Rows:
    """Yield columns of an item's rows, with bodies as their producers sent them; note those that cannot be decoded."""
    needs_body = bool({"body", BODY_TEXT} & {*columns})
    wanted = {*columns, *(BODY_COLUMNS if needs_body else ("physical_offset",))} - {BODY_TEXT}
    rows = rows_of(item, [name for name in COLUMNS if name in wanted])
    if not needs_body:
        schema = _schema_of(columns)
        yield from (batch.select(schema.names).cast(schema) for batch in rows if not isinstance(batch, Piece))
        return
    # Through functions, as the variable of a loop would hold a batch while the next one is read.
    yield from chain.from_iterable(map(partial(_shown, columns, limit, undecoded), rows))


def _shown(columns: Sequence[str], limit: int, undecoded: Undecoded, rows: pa.RecordBatch | Piece) -> Rows:
    if not isinstance(rows, Piece):
        for part, bodies in decoded_slices(rows, limit):
            undecoded.note(part, bodies)
            yield with_bodies(part, bodies, _schema_of(columns))


def select_rows(folder: Path, number: int, rows: Rows) -> Rows:
    """Yield the rows of an item whose numbers are stored below *folder*."""
    paths = (folder / _ROWS / f"{_ITEM}={number}").glob("*.parquet")
    parts = [pq.ParquetFile(path).read([_ROW]).column(_ROW).to_numpy() for path in paths]
    numbers = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    start = 0  # number of the batch's first row
    for batch in rows if numbers.size else ():
        first, last = np.searchsorted(numbers, (start, start + batch.num_rows))
        wanted, start = numbers[first:last] - start, start + batch.num_rows
        if wanted.size:
            yield batch if wanted.size == batch.num_rows else batch.take(pa.array(wanted))
        del batch
        if start > numbers[-1]:
            return


def undecoded_of(folder: Path) -> Undecoded:
    """Return the bodies that the condition could not see as their producers sent them."""
    found = Undecoded()
    for path in sorted((folder / _UNDECODED).glob("*"), key=lambda path: int(path.name)):
        count, places = json.loads(path.read_text())
        found.add(Undecoded(count, [ExportDefect(*place) for place in places]))
    return found
