"""
A Spark source or table function with the rows of items and their numbers, for evaluating a condition.

For each query about a data source, Spark starts a process and keeps it for a minute. So if no item can be skipped, a
table function is used instead. This module does not import anything that reads a log or a lake, because planning does
not need it.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.sql import datasource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_NAME = "rocketmq-candidates"


class CandidatePlan(NamedTuple):
    """The items to read, pickled, so that Spark need not import their types."""

    items: tuple[bytes, ...]
    bounds: tuple[Mapping[str, tuple[Any, Any]], ...]  # of each item
    columns: tuple[str, ...]
    limit: int  # bytes of a body
    undecoded: Path  # folder for notes on bodies that could not be decompressed

    @property
    def may_leave_out_items(self) -> bool:
        """Whether items can be skipped: bounds are known for a column of the condition."""
        return any(name in self.columns for bounds in self.bounds for name in bounds)

    def rows(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Yield the condition's columns, and the row numbers, of one item."""
        from jobs.export.condition import rows_with_numbers

        item = pickle.loads(self.items[number])  # noqa: S301 - written by `compile_condition`
        return rows_with_numbers(number, item, self.columns, self.limit, self.undecoded)


class AllCandidates:
    """A Spark table function: rows of the items whose numbers are passed to it."""

    plan: ClassVar[CandidatePlan]

    def eval(self, numbers: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the items whose numbers are in the first column."""
        for number in numbers.column(0).to_pylist():
            yield from self.plan.rows(number)


class Candidates(datasource.DataSource):
    """A Spark data source: rows of items, with row numbers."""

    plan: ClassVar[CandidatePlan]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE_NAME

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return the reader of the items."""
        del schema
        return CandidatesReader(self.plan)


class CandidatesReader(datasource.DataSourceReader):
    """Reads one item per partition."""

    def __init__(self, plan: CandidatePlan) -> None:
        self._plan = plan
        self._filters: list[datasource.Filter] = []

    def partitions(self) -> Sequence[datasource.InputPartition]:
        """Return the items that may contain a matching row."""
        return [
            datasource.InputPartition(number)
            for number, bounds in enumerate(self._plan.bounds)
            if all(_may_hold(bounds, filter_) for filter_ in self._filters)
        ]

    def read(self, partition: datasource.InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the condition's columns, and the row numbers."""
        # If there are no partitions, because all items are left out, Spark creates one partition, which is None.
        return iter(()) if partition.value is None else self._plan.rows(partition.value)

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterator[datasource.Filter]:
        """Remember the filters to skip items; Spark still applies them to the rows."""
        self._filters = [*filters]
        yield from filters


def _may_hold(bounds: Mapping[str, tuple[Any, Any]], asked: datasource.Filter) -> bool:
    # Only a certain filter leaves an item out, not an unknown bound or another filter: Spark also filters the rows.
    low, high = bounds.get(".".join(getattr(asked, "attribute", ())), (None, None))
    if isinstance(asked, datasource.EqualTo | datasource.In):
        values = [asked.value] if isinstance(asked, datasource.EqualTo) else asked.value
        return any((low is None or low <= value) and (high is None or value <= high) for value in values)
    if isinstance(asked, datasource.GreaterThan | datasource.GreaterThanOrEqual):
        return high is None or bool(high >= asked.value)
    if isinstance(asked, datasource.LessThan | datasource.LessThanOrEqual):
        return low is None or bool(low <= asked.value)
    return True
