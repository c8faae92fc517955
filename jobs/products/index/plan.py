"""Which keys each index file of a store holds, and how it is made of them: for rows, for files, and for comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.products.index.file_builder import IndexRecipe
from jobs.products.index.key_row import KeyRow
from jobs.products.index.placement import Anchor, Planned, RowShape, plan_files
from jobs.products.index.survivors import Survivor, header_before
from jobs.storage.model import Storage
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import Rules


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The index files of a log by the rules of their broker."""

    storage: Storage
    row: KeyRow
    geometry: Geometry
    rules: Rules
    empty_index_count: int = 1

    def missing(self, kept: Sequence[Survivor] = (), *, completes: bool = False) -> list[Planned]:
        """Return the files that are missing next to those *kept*; *completes* if the last of them gets later keys."""
        row = self.row
        anchors = [self._anchor(survivor, survivor.end) for survivor in kept]
        if completes:
            anchors[-1] = self._anchor(kept[-1], self.completed_end(kept[-1]))
        shape = RowShape(len(row), row.ends_without_keys, row.start_offset == 0)
        return plan_files(shape, self.geometry.capacity, anchors)

    def completed_end(self, survivor: Survivor) -> int:
        """Return the end of the newest file in the row once it has all keys that it has room for."""
        room = self.geometry.capacity - survivor.real.header.entry_count
        return min(survivor.end + room, len(self.row))

    def recipe(self, start: int, end: int, previous: IndexHeader | None = None) -> IndexRecipe:
        """Return the recipe of a new file with keys number *start* to *end*; *previous* if no key comes before it."""
        parts, before = tuple(self.row.parts(start, end)), header_before(self.row, start) or previous
        count, source = self.empty_index_count, self.row.source
        return IndexRecipe(self.geometry, self.rules, source, parts, before, count, storage=self.storage)

    def recipe_of(self, survivor: Survivor, end: int | None = None) -> IndexRecipe:
        """Return the recipe of a file as it should be, or, with later keys, up to number *end* of the row."""
        count, parts, tail = self.empty_index_count, survivor.parts(self.row), 0
        if end is None:
            count, tail = min(survivor.real.header.index_count, 1), survivor.tail  # either count before its first put
        else:
            parts += self.row.parts(survivor.end, end)
        return IndexRecipe(
            self.geometry, self.rules, self.row.source, tuple(parts), survivor.previous, count, survivor.real,
            survivor.head, tail, self.storage,
        )  # fmt: skip

    def _anchor(self, survivor: Survivor, end: int) -> Anchor:
        entries = survivor.real.header.entry_count + end - survivor.end
        return Anchor(survivor.start, end, entries >= self.geometry.capacity, survivor.begins)
