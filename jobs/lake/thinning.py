"""
Thinning of recorded states: which versions of consumer offsets a lake keeps.

A run every few minutes records the offsets of consumers more than 100,000 times a year. All states of the last days are
kept, then the newest one of each hour, then the newest one of each day. A row has the state of one thing in one run,
and stays valid until the next row of the same thing. So a period loses all rows of a thing but the newest one: the
state at the end of each period, and after it, does not change. Within a period, readers find the state at the end of
the previous period, or partly a newer one. A position is never newer than it really was at that time.

Files are rewritten when half of their states are no longer kept, so that each row is rewritten a few times in all.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.lake.commit import read_rows
from jobs.lake.lake import Lake
from jobs.lake.run_rows import PREPARED_STATE
from jobs.lake.snapshot_files import SnapshotFile
from jobs.lake.tables import CONFIG_FILES, RUNS, Table
from jobs.store.broker_config import OFFSET_FILES

THINNED_PREFIX = "thinned-"  # name prefix of files whose states were thinned out
_NAME = re.compile(rf"{THINNED_PREFIX}(\d+)-.*")  # with the number of states that were kept
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
# The width of a period, and its age from which only its newest state is kept.
_PERIODS = ((_HOUR_MS, 3 * _DAY_MS), (_DAY_MS, 30 * _DAY_MS))
_MOST_ROWS, _MOST_BYTES = 2 << 20, 128 << 20  # that are sorted in memory
_ROWS_AT_ONCE = 1 << 16
_MANY_FILES = 16  # thinned files that will not change any more are merged once there are this many
_Integers = npt.NDArray[np.int64]


class RunPeriods(NamedTuple):
    """The runs of a store, in order, and for each one the number of the period of which one state is kept."""

    store_id: str
    runs: _Integers
    periods: _Integers
    final_run: int  # the periods of runs before this one do not change any more

    @classmethod
    def read(cls, lake: Lake, store_id: str, now_ms: int) -> Self:
        """Read when the runs of a store were prepared."""
        wanted = (pc.field("store_id") == store_id) & (pc.field("state") == PREPARED_STATE)
        times = {run: int(time.timestamp() * 1000) for run, time in read_rows(lake, RUNS.name, ["run", "time"], wanted)}
        return cls.from_times(store_id, times, now_ms)

    @classmethod
    def from_times(cls, store_id: str, times_ms: dict[int, int], now_ms: int) -> Self:
        """Divide runs into periods by their times; a clock that was set back counts as one that stood still."""
        runs = np.array(sorted(times_ms), np.int64)
        times = np.maximum.accumulate(np.array([times_ms[run] for run in runs.tolist()], np.int64))
        width = np.zeros(len(runs), np.int64)  # 0: every run is a period
        for width_ms, age_ms in _PERIODS:
            ends = (times // width_ms + 1) * width_ms
            width[now_ms - ends >= age_ms] = width_ms
        start = np.where(width > 0, times // np.maximum(width, 1) * width, -1)
        is_first = np.ones(len(runs), np.bool_)
        is_first[1:] = (width[1:] == 0) | (width[1:] != width[:-1]) | (start[1:] != start[:-1])
        is_final = width == _PERIODS[-1][0]
        final_run = int(runs[is_final][-1]) if is_final.any() else 0
        return cls(store_id, runs, np.cumsum(is_first), final_run)

    def find_periods(self, runs: _Integers) -> _Integers:
        """Return the period of each of these runs; 0 for an unknown one."""
        if not len(self.runs):
            return np.zeros(len(runs), np.int64)
        places = np.minimum(np.searchsorted(self.runs, runs), len(self.runs) - 1)
        return np.where(self.runs[places] == runs, self.periods[places], 0)

    def count_states(self, first_run: int, last_run: int) -> tuple[int, int]:
        """Return how many states there were from *first_run* to *last_run*, and how many of them are kept."""
        first, end = np.searchsorted(self.runs, first_run), np.searchsorted(self.runs, last_run, "right")
        if first >= end:
            return 0, 0
        return int(end - first), int(self.periods[end - 1] - self.periods[first] + 1)


def plan_thinning(
    periods: RunPeriods, stored: Iterable[SnapshotFile], file_bytes: int, most_bytes: int | None
) -> list[tuple[list[SnapshotFile], str, None]]:
    """
    Group the files of a store that are rewritten, and name the new files; *most_bytes* limits their total size.

    Small files are grouped up to *file_bytes*.
    """
    whose = periods.store_id
    mine = [
        file
        for file in stored
        if file.row_count and file.minimum("store_id", "") == whose == file.maximum("store_id", "")
    ]
    mine.sort(key=lambda file: (file.minimum("run", 0), file.path))
    chosen = [file for file in mine if _have_lost_half(periods, [file])]
    groups = [*_group_files(chosen, file_bytes)]
    others = _group_files((file for file in mine if file not in chosen), file_bytes)
    groups += [group for group in others if _have_lost_half(periods, group) or _is_worth_merging(periods, group)]
    planned: list[tuple[list[SnapshotFile], str, None]] = []
    size = 0
    for group in groups:
        size += sum(file.size for file in group)
        if planned and most_bytes is not None and size > most_bytes:
            break
        _, kept = periods.count_states(*_find_runs(group))
        planned.append((group, f"{THINNED_PREFIX}{kept}-{uuid4()}.parquet", None))
    return planned


def _have_lost_half(periods: RunPeriods, files: Sequence[SnapshotFile]) -> bool:
    there = 0
    for file in files:
        found = _NAME.fullmatch(file.path)
        there += int(found[1]) if found else periods.count_states(*_find_runs([file]))[0]
    return 2 * periods.count_states(*_find_runs(files))[1] <= there


def _is_worth_merging(periods: RunPeriods, files: Sequence[SnapshotFile]) -> bool:
    """Return whether these are many thinned files of states that will not change any more."""
    is_final = all(file.maximum("run", periods.final_run + 1) <= periods.final_run for file in files)
    return is_final and len(files) >= _MANY_FILES and all(_NAME.fullmatch(file.path) for file in files)


def _find_runs(files: Sequence[SnapshotFile]) -> tuple[int, int]:
    return min(file.minimum("run", 0) for file in files), max(file.maximum("run", 0) for file in files)


def _group_files(files: Iterable[SnapshotFile], most_bytes: int) -> Iterator[list[SnapshotFile]]:
    group: list[SnapshotFile] = []
    for file in files:
        if group and sum(one.size for one in group) + file.size > most_bytes:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def arrange_states(
    rows: Iterable[pa.RecordBatch], table: Table, periods: RunPeriods | None = None
) -> Iterator[pa.RecordBatch]:
    """
    Yield rows of states by thing and run, which compresses well; with *periods*, without the states that are not kept.

    Many rows are arranged in parts, each of which keeps a state of each period.
    """
    held: list[pa.RecordBatch] = []
    for batch in rows:
        held.append(batch)
        if sum(map(len, held)) >= _MOST_ROWS or sum(one.nbytes for one in held) >= _MOST_BYTES:
            yield from _sort_and_thin(pa.concat_batches(held), table, periods)
            held = []
    if held:
        yield from _sort_and_thin(pa.concat_batches(held), table, periods)


def _sort_and_thin(rows: pa.RecordBatch, table: Table, periods: RunPeriods | None) -> Iterator[pa.RecordBatch]:
    """Yield rows by state key and run; of thinned rows, only the newest of each period."""
    keys = [_rank(rows.column(name)) for name in ("store_id", *table.state_key)]
    runs = pc.fill_null(rows.column("run"), -1).to_numpy(zero_copy_only=False)
    order = np.lexsort((runs, *reversed(keys)))
    if periods is not None:
        of_row = periods.find_periods(runs)
        is_newest = np.ones(len(order), np.bool_)
        is_newest[:-1] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in (*keys, of_row)])
        order = order[is_newest | ~_mask_thinned(rows, table)[order] | (of_row[order] == 0)]
    for start in range(0, len(order), _ROWS_AT_ONCE):
        yield rows.take(pa.array(order[start : start + _ROWS_AT_ONCE]))


def _mask_thinned(rows: pa.RecordBatch, table: Table) -> npt.NDArray[np.bool_]:
    """Return which rows are thinned out: of the configuration files, only those of offsets change all the time."""
    if table.name != CONFIG_FILES.name:
        return np.ones(rows.num_rows, np.bool_)
    ends = "|".join(map(re.escape, OFFSET_FILES))
    is_thinned = pc.match_substring_regex(rows.column("name"), f"({ends})$")
    found: npt.NDArray[np.bool_] = pc.fill_null(is_thinned, fill_value=False).to_numpy(zero_copy_only=False)
    return found


def _rank(column: pa.Array) -> _Integers:
    """Return integers in the order of the values of a column."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))
    found: _Integers = ranks[encoded.indices.to_numpy()]
    return found
