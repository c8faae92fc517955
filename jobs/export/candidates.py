"""
The candidates of a condition: rows of items with their numbers, as a source that leaves out items, or all of them.

Spark starts a process of its own for each of its questions about a source, and keeps it for a minute. Where
nothing can be left out, no source is used; and this module imports nothing that reads a log or a lake, which
planning does not need.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.sql import datasource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "rocketmq-candidates"


class Plan(NamedTuple):
    """The items to read, pickled: Spark need not know their types."""

    items: tuple[bytes, ...]
    bounds: tuple[Mapping[str, tuple[Any, Any]], ...]  # of each item
    columns: tuple[str, ...]
    limit: int  # bytes of a body
    undecoded: Path  # where bodies are noted that are not as their producers sent them

    @property
    def may_leave_out_items(self) -> bool:
        """Whether anything is known of the columns that the condition names."""
        return any(name in self.columns for bounds in self.bounds for name in bounds)

    def rows(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Yield the columns that the condition names, and the rows' numbers, of one item."""
        from jobs.export.condition import numbered

        item = pickle.loads(self.items[number])  # noqa: S301 - written by `chooser`
        return numbered(number, item, self.columns, self.limit, self.undecoded)


class AllCandidates:
    """Rows of the items whose numbers a table has: a table function, as Spark calls it."""

    plan: ClassVar[Plan]

    def eval(self, numbers: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the items whose numbers are in the first column."""
        for number in numbers.column(0).to_pylist():
            yield from self.plan.rows(number)


class Candidates(datasource.DataSource):
    """Rows of items with their numbers."""

    plan: ClassVar[Plan]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return the reader of the items."""
        del schema
        return CandidatesReader(self.plan)


class CandidatesReader(datasource.DataSourceReader):
    """One partition an item."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._filters: list[datasource.Filter] = []

    def partitions(self) -> Sequence[datasource.InputPartition]:
        """Return the items that may hold a chosen row."""
        return [
            datasource.InputPartition(number)
            for number, bounds in enumerate(self._plan.bounds)
            if all(_may_hold(bounds, filter_) for filter_ in self._filters)
        ]

    def read(self, partition: datasource.InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the columns that the condition names, and the rows' numbers."""
        # Of no partition at all, when all items are left out, Spark makes one of None.
        return iter(()) if partition.value is None else self._plan.rows(partition.value)

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterator[datasource.Filter]:
        """Note the filters; Spark applies them to the rows all the same."""
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
