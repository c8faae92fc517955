"""
Index entries gathered by their hash, so that a lookup opens few files however many index files there were.

Each index file of a broker has hashes of the whole range, and so has each file of a run. The range is halved again and
again like a binary tree; a file belongs to the smallest *node* that holds all of its hashes, in steps of three halves.
Where a node has many files, their rows move to files of the nodes below it: each holds an eighth of the range or less.
So a row is rewritten once for each step down, log8(files) times in all, and a lookup opens fewer than MANY files a
step. New files stay in the root node until there are enough of them to move rows down.

Measured against `optimize` of deltalake, with 96 files of 20,000 entries of two stores and four rounds: a lookup opens
4.0 files here, 22.8 after `z_order` (which rewrote three times the bytes) and 32 after `compact`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobs.lake.commit import open_table
from jobs.lake.compaction import Group, Merge, clustered_name, is_clustered, rewritten
from jobs.lake.features import needs_spark
from jobs.lake.lake import Lake
from jobs.lake.snapshot_files import RowGroup, StoredFile, row_groups
from jobs.lake.tables import Table
from jobs.lake.writers import Saved

MANY = 4  # files of one node from which on they are merged
_TOGETHER = 8  # files that are read together
_MOST_ROWS = 2 << 20  # of a new file, which is sorted in memory
_STEP = 3  # halvings
_BITS = 31  # hashes are not negative


class Node(NamedTuple):
    """The hashes from *low* to before *low* + *width*."""

    low: int
    width: int

    @property
    def high(self) -> int:
        """The hash after the last one."""
        return self.low + self.width

    @property
    def limits(self) -> tuple[int, int]:
        """The first hash and the last one."""
        return self.low, self.high - 1

    def below(self) -> "list[Node]":
        """Return the nodes of the next step; none where a node is too narrow."""
        width = self.width >> _STEP
        return [Node(low, width) for low in range(self.low, self.high, width)] if width else []


_TOP = Node(0, 1 << _BITS)


def cluster(lake: Lake, table: Table, merge: Merge) -> Saved:
    """Move rows down until no node has MANY files; each round is a commit of its own, right if it is the last."""
    if table.sorted_by is None:
        raise ValueError(f"{table.name} is in the order of the log")
    column = table.sorted_by
    snapshot = open_table(lake, table.name)
    if snapshot is None or needs_spark(snapshot):  # Delta clusters such a table itself, or its owner wants none
        return Saved(table.name)

    def plan(rows: Table, stored: Sequence[StoredFile]) -> list[Group]:
        return [
            Group(lake, rows, tuple(some), clustered_name(), part.limits)
            for node, some in _crowded(stored, column)
            for part in _parts(
                node, [group for file in some for group in row_groups(lake, table, file, column, _TOP.limits)]
            )
        ]

    saved = Saved(table.name)
    while True:
        done = rewritten(lake, table, plan, merge)
        if not done.merged:
            return saved
        saved = saved.and_then(done)


def _crowded(stored: Sequence[StoredFile], column: str) -> Iterator[tuple[Node, list[StoredFile]]]:
    """Yield nodes with many files of one store, some of the files at a time."""
    of_node: dict[tuple[str, Node], list[StoredFile]] = defaultdict(list)
    for file in sorted(stored, key=lambda one: one.path):
        store = file.low("store_id", "")
        if file.rows and store and store == file.high("store_id", ""):
            of_node[store, _node(file, column)].append(file)
    for (_, node), there in of_node.items():
        for start in range(0, len(there) if len(there) >= MANY else 0, _TOGETHER):
            some = there[start : start + _TOGETHER]
            if len(some) > 1:
                yield node, some


def _node(file: StoredFile, column: str) -> Node:
    """Return the node of a file; a run's own file belongs to the topmost one, however few hashes it has."""
    low, high = file.low(column, 0), file.high(column, _TOP.high - 1)
    if not is_clustered(file) or not 0 <= low <= high < _TOP.high:
        return _TOP
    # The leading bits that both limits share lead down the tree as far as one node has both: _STEP bits a step.
    steps = (_BITS - (low ^ high).bit_length()) // _STEP
    width = _TOP.width >> _STEP * steps
    return Node(low // width * width, width)


def _parts(node: Node, groups: Sequence[RowGroup]) -> Iterator[Node]:
    """Yield the nodes, this one or some below it, whose rows a task can sort in memory."""
    inside = [group for group in groups if group.low < node.high and group.high >= node.low]
    rows = sum(_share(group, node) * group.rows for group in inside)
    below = node.below()
    if rows <= _MOST_ROWS or not below:
        yield node
        return
    for part in below:
        yield from _parts(part, inside)


def _share(group: RowGroup, node: Node) -> float:
    """Return which part of a row group's rows is in a node, if its hashes are spread evenly."""
    common = min(group.high + 1, node.high) - max(group.low, node.low)
    return common / (group.high + 1 - group.low)
