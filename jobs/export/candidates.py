"""
The candidates of a condition, as Spark asks for them: rows of items with their numbers.

Spark starts a process of its own for each of its questions about a source, so this module imports nothing that reads a
log or a lake: who only plans does without.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from pyspark.sql import datasource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "rocketmq-candidates"


class Plan(NamedTuple):
    """What is read, for whom the items themselves are only bytes."""

    items: tuple[bytes, ...]
    bounds: tuple[Mapping[str, tuple[Any, Any]], ...]  # of each item
    columns: tuple[str, ...]
    limit: int  # bytes of a body
    undecoded: Path  # where bodies are noted that are not as their producers sent them

    @property
    def may_leave_out_items(self) -> bool:
        """Whether anything is known of the columns that the condition names; else Spark need not ask, in a process."""
        return any(name in self.columns for bounds in self.bounds for name in bounds)


class Candidates(datasource.DataSource):
    """Rows of items with their numbers."""

    plan: ClassVar[Plan]

    @classmethod
    def of(cls, plan: Plan) -> "type[Candidates]":
        """Return the source of a plan, which Spark takes along with the class."""
        return type(cls.__name__, (cls,), {"plan": plan})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return the reader of the items."""
        del schema
        return (SelectiveReader if self.plan.may_leave_out_items else CandidatesReader)(self.plan)


class ItemPartition(datasource.InputPartition):
    """One item."""

    def __init__(self, number: int, item: bytes) -> None:
        super().__init__(number)
        self.number = number
        self.item = item


class CandidatesReader(datasource.DataSourceReader):
    """One partition an item."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._filters: list[datasource.Filter] = []

    def partitions(self) -> Sequence[datasource.InputPartition]:
        """Return the items that may hold a chosen row."""
        return [
            ItemPartition(number, item)
            for number, (item, bounds) in enumerate(zip(self._plan.items, self._plan.bounds, strict=True))
            if all(_may_hold(bounds, filter_) for filter_ in self._filters)
        ]

    def read(self, partition: datasource.InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the columns that the condition names, and the rows' numbers."""
        from jobs.export.candidate_rows import numbered

        planned = cast("ItemPartition", partition)  # Spark hands back what `partitions` returned
        item = pickle.loads(planned.item)  # noqa: S301 - written by `choose`
        return numbered(planned.number, item, self._plan.columns, self._plan.limit, self._plan.undecoded)


class SelectiveReader(CandidatesReader):
    """The reader that leaves out items; Spark refuses such a one where it does not ask."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterator[datasource.Filter]:
        """Note what is asked for; Spark filters the rows all the same."""
        self._filters = [*filters]
        yield from filters


def _may_hold(bounds: Mapping[str, tuple[Any, Any]], asked: datasource.Filter) -> bool:
    """Return whether a value between the bounds of its column may be what is asked for."""
    low, high = bounds.get(".".join(getattr(asked, "attribute", ())), (None, None))
    if isinstance(asked, datasource.EqualTo | datasource.In):
        values = [asked.value] if isinstance(asked, datasource.EqualTo) else asked.value
        return any((low is None or low <= value) and (high is None or value <= high) for value in values)
    if isinstance(asked, datasource.GreaterThan | datasource.GreaterThanOrEqual):
        return high is None or bool(high >= asked.value)
    if isinstance(asked, datasource.LessThan | datasource.LessThanOrEqual):
        return low is None or bool(low <= asked.value)
    return True
