"""
Index files made of a row's keys as these come, in the order of the row.

No key waits in a file until all are counted: where one index file is full, the next one begins. Only names need the
whole row, and of its keys no more than the first and the last one of each file.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jobs.products.index.file_builder import MOST_PARTS, Attempt, BuiltFile
from jobs.products.index.key_row import (
    KeyBlock,
    KeyRoom,
    KeyRow,
    RangeKeys,
    RowPart,
    ScratchKeys,
    collect_range,
    row_of,
)
from jobs.storage.scratch import Scratch
from jobs.store.chain import Outcome
from jobs.store.retention import ListedLog
from jobs.store.workers import OneByOne
from rmq_formats.indexfile.build import FileBuilder
from rmq_formats.indexfile.divided import Division
from rmq_formats.indexfile.kernels import RuleTable
from rmq_formats.indexfile.layout import Geometry, IndexHeader
from rmq_formats.release import Rules

RANGE_SIZE = 32 << 20  # bytes of a log whose keys are in memory, as a rule
_HELD = 1 << 19  # keys of a range in memory; where there are more, they are in a scratch file
_HASHED_AT_ONCE = 2  # files
_UNFINISHED = 8  # files at most: each is open


class _FullFile(NamedTuple):
    attempt: Attempt
    header: IndexHeader
    finished: Future[None]


class RowFiles:
    """The index files of a row, without names; its `with` block deletes those that have none by then."""

    page = 1  # a plan asks for single keys, the first and the last of a file

    def __init__(self, directory: Path, geometry: Geometry, rules: Rules, cores: int) -> None:
        """Begin; as many threads as *cores* read, half as many chain, and two give files their hashes."""
        self._directory = directory
        self._geometry = geometry
        self._rules = rules
        self._cores = cores
        parts = min(max(cores // 2, 1), MOST_PARTS)
        self._chaining = ThreadPoolExecutor(parts)  # starts no thread before there is work for one
        self._division = Division(self._chaining, parts) if parts > 1 else None
        self._finishing = ThreadPoolExecutor(_HASHED_AT_ONCE)
        self._attempts = ExitStack()
        self._files: list[_FullFile] = []
        self._open: tuple[Attempt, FileBuilder] | None = None
        self._borders: dict[tuple[str, int], NDArray[np.void]] = {}

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the threads, which have files open, then leave no file without a name."""
        self._chaining.shutdown()
        self._finishing.shutdown(cancel_futures=True)
        self._attempts.close()

    def fill(self, workers: OneByOne, log: ListedLog, scratch: Scratch) -> KeyRow | None:
        """Put all keys of a log into files and return their row; None if retention deletes what has been read."""
        log = log.narrow()
        task = partial(collect_range, rules=self._rules, room=KeyRoom(scratch, _HELD))
        outcomes: list[Outcome[RangeKeys]] = []
        with closing(workers.in_turn(log.ranges, task, lambda span: scratch.delete(span.file), self._cores)) as read:
            for outcome in read:
                if outcome.seen.was_deleted:
                    return None
                span = outcome.payload
                self._add_all(span, scratch)
                outcomes.append(outcome._replace(payload=span._replace(held=None)))
        if self._open is not None:
            self._close(*self._open)
        return row_of(self, log, outcomes)

    def _add_all(self, span: RangeKeys, scratch: Scratch) -> None:
        if span.held is not None:
            self._add(span.held, span.file, 0)
            return
        first = 0
        for block in ScratchKeys(scratch).blocks(RowPart(span.file, 0, span.keys)):
            self._add(block.keys, span.file, first)
            first += len(block.keys)
        scratch.delete(span.file)

    def _add(self, keys: NDArray[np.void], run: str, first: int) -> None:
        """Put keys of a run, from number *first* on, into files."""
        while len(keys):
            if self._open is None:
                self._note(keys[:1], run, first)
            attempt, builder = self._open = self._open or self._begun()
            count = min(builder.room, len(keys))
            if count == builder.room:
                self._note(keys[count - 1 : count], run, first + count - 1)
            builder.add(keys[:count])
            if not builder.room:
                self._close(attempt, builder)
            keys, first = keys[count:], first + count

    def _note(self, key: NDArray[np.void], run: str, number: int) -> None:
        self._borders[run, number] = key.copy()

    def _begun(self) -> tuple[Attempt, FileBuilder]:
        attempt = self._attempts.enter_context(Attempt(self._directory, self._geometry))
        previous = self._files[-1].header if self._files else None
        return attempt, FileBuilder(self._geometry, RuleTable.of(self._rules), attempt.write, previous, self._division)

    def _close(self, attempt: Attempt, builder: FileBuilder) -> None:
        header = builder.finish()
        self._files.append(_FullFile(attempt, header, self._finishing.submit(attempt.finish)))
        self._open = None
        for file in self._files[:-_UNFINISHED][-1:]:
            file.finished.result()

    def named(self, names: Sequence[str]) -> list[BuiltFile]:
        """Give the files their names, in order."""
        for file in self._files:
            file.finished.result()
        return [
            file.attempt.named(self._directory, name, file.header)
            for file, name in zip(self._files, names, strict=False)
        ]

    def blocks(self, part: RowPart, *, with_texts: bool = False) -> Iterator[KeyBlock]:
        """Yield a key that is the first or the last one of its file: all that a plan asks for."""
        del with_texts
        if part.keys:
            yield KeyBlock(self._borders[part.file, part.first])
