"""
Which rows a condition in Spark's SQL chooses: Spark sees the columns that it names, and answers with row numbers.

The rows themselves stay where they are: tasks read them again and write those with these numbers. So no message passes
through the JVM, a body only where the condition looks at it, and nothing is needed that only pandas has.
"""

import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from jobs.export.bodies import NEEDED, Undecoded, slices
from jobs.export.items import COLUMNS, Bounds, Item
from jobs.export.parts import BODY_TEXT
from jobs.lake.tables import MESSAGES
from rmq_formats.commitlog.segment import Piece
from rmq_formats.errors import UnsupportedFormat

_FORMAT = "rocketmq-candidates"
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
    # A name that stands somewhere in the text may be a column's: one that is read in vain does no harm.
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return Condition(text, every if _STAR.search(text) else tuple(name for name in every if name in words))


def choose(spark: SparkSession, condition: Condition, items: Sequence[Item], folder: Path, limit: int) -> None:
    """Write the numbers of the chosen rows below *folder*, which `chosen_rows` reads."""
    (folder / "undecoded").mkdir(parents=True)
    plan = folder / "items"
    plan.write_bytes(pickle.dumps((items, condition.columns, limit)))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Candidates)
    schema = StructType([*_spark_schema(condition.columns), *from_arrow_schema(pa.schema(_NUMBERS))])
    frame = spark.read.format(_FORMAT).schema(schema).option("items", str(plan)).load()
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
        found.add(pickle.loads(path.read_bytes()))  # noqa: S301 - written by a task of ours
    return found


def _spark_schema(columns: Sequence[str]) -> StructType:
    return from_arrow_schema(_schema(columns))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([_TEXT if name == BODY_TEXT else MESSAGES.plain_schema.field(name) for name in columns])


class Candidates(DataSource):
    """Rows of items with their numbers, as Spark asks for them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return _FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the items that the option names."""
        del schema
        plan = Path(self.options["items"])
        items, columns, limit = pickle.loads(plan.read_bytes())  # noqa: S301 - written by `choose`
        return CandidatesReader(items, columns, limit, plan.parent / "undecoded")


class ItemPartition(InputPartition):
    """One item."""

    def __init__(self, number: int, item: Item) -> None:
        super().__init__(number)
        self.number = number
        self.item = item


class CandidatesReader(DataSourceReader):
    """One partition an item."""

    def __init__(self, items: Sequence[Item], columns: Sequence[str], limit: int, undecoded: Path) -> None:
        self._items = items
        self._columns = columns
        self._limit = limit
        self._undecoded = undecoded
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Note what is asked for; Spark filters the rows all the same."""
        self._filters = [*filters]
        yield from filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the items that may hold a chosen row."""
        return [
            ItemPartition(number, item)
            for number, item in enumerate(self._items)
            if all(_may_hold(item.bounds, filter_) for filter_ in self._filters)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the columns that the condition names, and the rows' numbers."""
        planned = cast("ItemPartition", partition)  # Spark hands back what `partitions` returned
        row = 0
        undecoded = Undecoded()
        for batch in candidates(planned.item, self._columns, self._limit, undecoded):
            numbers = [
                pa.repeat(pa.scalar(planned.number, pa.int32()), batch.num_rows),
                pa.array(np.arange(row, row + batch.num_rows)),
            ]
            schema = pa.schema([*batch.schema, *_NUMBERS])
            yield pa.RecordBatch.from_arrays([*batch.columns, *numbers], schema=schema)
            row += batch.num_rows
        if undecoded.count:
            (self._undecoded / str(planned.number)).write_bytes(pickle.dumps(undecoded))


def _may_hold(bounds: Bounds, asked: Filter) -> bool:
    """Return whether a value between the bounds of its column may be what is asked for."""
    low, high = bounds.get(".".join(getattr(asked, "attribute", ())), (None, None))
    if isinstance(asked, EqualTo | In):
        values = [asked.value] if isinstance(asked, EqualTo) else asked.value
        return any((low is None or low <= value) and (high is None or value <= high) for value in values)
    if isinstance(asked, GreaterThan | GreaterThanOrEqual):
        return high is None or bool(high >= asked.value)
    if isinstance(asked, LessThan | LessThanOrEqual):
        return low is None or bool(low <= asked.value)
    return True


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
