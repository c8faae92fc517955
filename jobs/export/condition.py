"""
Which rows a condition in Spark's SQL chooses: Spark sees the columns that it names, and answers with row numbers.

The rows themselves stay where they are: tasks read them again and write those with these numbers. So no message passes
through the JVM, a body only where the condition looks at it, and nothing is needed that only pandas has.
"""

import json
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.export.bodies import NEEDED, LeftOut, Undecoded, slices
from jobs.export.candidates import FORMAT, Candidates, Plan
from jobs.export.items import COLUMNS, Item
from jobs.export.parts import BODY_TEXT
from jobs.lake.tables import MESSAGES
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import UnsupportedFormat

_ITEM, _ROW = "_item", "_row"
_TEXT = pa.field(BODY_TEXT, pa.string())
_NUMBERS = (pa.field(_ITEM, pa.int32()), pa.field(_ROW, pa.int64()))
_STAR = re.compile(r"[(,]\s*\*")  # hash(*): of all columns


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that Spark accepts, and the columns that it may look at."""

    text: str
    columns: tuple[str, ...]

    @property
    def needs_body(self) -> bool:
        """Whether bodies have to be decompressed to answer it."""
        return bool({"body", BODY_TEXT} & {*self.columns})


def condition_of(spark: SparkSession, text: str) -> Condition:
    """Return a condition on the columns of `messages` and body_text; `UnsupportedFormat` when it is none to Spark."""
    every = (*COLUMNS, BODY_TEXT)
    try:
        _ = spark.createDataFrame([], _spark_schema(every)).where(text).schema
    except (AnalysisException, ParseException) as error:
        raise UnsupportedFormat(str(error).splitlines()[0]) from error
    # A name that is somewhere in the text may be a column's: one that is read in vain does no harm.
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return Condition(text, every if _STAR.search(text) else tuple(name for name in every if name in words))


def choose(spark: SparkSession, condition: Condition, items: Sequence[Item], folder: Path, limit: int) -> None:
    """Write the numbers of the chosen rows below *folder*, which `chosen_rows` reads."""
    undecoded = folder / "undecoded"
    undecoded.mkdir(parents=True)
    plan = folder / "items"
    packed, bounds = tuple(map(pickle.dumps, items)), tuple(item.bounds for item in items)
    plan.write_bytes(pickle.dumps(Plan(packed, bounds, condition.columns, limit, undecoded)))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Candidates)
    schema = StructType([*_spark_schema(condition.columns), *from_arrow_schema(pa.schema(_NUMBERS))])
    frame = spark.read.format(FORMAT).schema(schema).option("items", str(plan)).load()
    numbers = frame.where(condition.text).select(_ITEM, _ROW)
    numbers.write.partitionBy(_ITEM).parquet((folder / "rows").as_uri())


def chosen_rows(folder: Path, item: int) -> NDArray[np.int64]:
    """Return the numbers of the rows of an item that were chosen, in order."""
    paths = (folder / "rows" / f"{_ITEM}={item}").glob("*.parquet")
    numbers = [pq.ParquetFile(path).read([_ROW]).column(_ROW).to_numpy() for path in paths]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *numbers]))


def undecoded_of(folder: Path) -> Undecoded:
    """Return the bodies that could not be looked at as their producers sent them."""
    found = Undecoded()
    for path in sorted((folder / "undecoded").iterdir(), key=lambda path: int(path.name)):
        count, places = json.loads(path.read_text())
        found.add(Undecoded(count, [LeftOut(*place) for place in places]))
    return found


def _spark_schema(columns: Sequence[str]) -> StructType:
    return from_arrow_schema(_schema(columns))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([_TEXT if name == BODY_TEXT else MESSAGES.plain_schema.field(name) for name in columns])


def numbered(number: int, item: Item, plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the columns of an item's rows that a condition names, and the rows' numbers."""
    row = 0
    undecoded = Undecoded()
    for batch in candidates(item, plan.columns, plan.limit, undecoded):
        numbers = [
            pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows),
            pa.array(np.arange(row, row + batch.num_rows)),
        ]
        schema = pa.schema([*batch.schema, *_NUMBERS])
        yield pa.RecordBatch.from_arrays([*batch.columns, *numbers], schema=schema)
        row += batch.num_rows
    if undecoded.count:
        (plan.undecoded / str(number)).write_text(json.dumps([undecoded.count, undecoded.places]))


def candidates(item: Item, columns: Sequence[str], limit: int, undecoded: Undecoded) -> Iterator[pa.RecordBatch]:
    """Yield some columns of an item's rows, bodies as their producers sent them; note those that are not."""
    schema = _schema(columns)
    needs_body = bool({"body", BODY_TEXT} & {*columns})
    wanted = {*columns, *(NEEDED if needs_body else ("physical_offset",))} - {BODY_TEXT}
    for batch in item.read([name for name in COLUMNS if name in wanted]):
        if isinstance(batch, Piece):
            continue
        for part, bodies in slices(batch, limit) if needs_body else [(batch, [])]:
            undecoded.note(part, bodies)
            made = {
                "body": lambda bodies=bodies: pa.array([body.data for body in bodies], pa.binary()),
                BODY_TEXT: lambda bodies=bodies: pa.array([body.text for body in bodies], pa.string()),
            }
            arrays = [
                made[field.name]() if field.name in made else part.column(field.name).cast(field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
