"""
The products of `ingest` (messages, queues, index, …), and the protocol that they implement.

    start(run, state) ─► collector(range), in the task of each range ─► finish(outcomes) ─► files, state of the next run

All collectors of a range share one pass over its pieces. A product stores its state for the next run as JSON in the
manifest of this run; the files that it writes are not part of any table until the run is committed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from jobs.console.amounts import names_text
from jobs.lake.commit import ExpiredRows
from jobs.lake.lake import Lake
from jobs.lake.table_file import AddedFile, FileNaming, TableFile
from jobs.lake.tables import MESSAGES, Table
from jobs.storage.local import make_directory
from jobs.storage.locations import is_local, local_path
from jobs.storage.scratch import Scratch
from jobs.store.chain import NewCollector, RangeOutcome
from jobs.store.queue_storage import is_about_queue_database
from jobs.store.release import Determined, Writers
from jobs.store.request import GivenSettings
from jobs.store.selection import Selection
from jobs.store.store import Store
from jobs.store.workers import Workers
from rmq_formats.errors import FormatError, is_disk_error
from rmq_formats.properties import MAX_LONG

State = Mapping[str, Any]  # JSON
_OFFSETS = frozenset({"dispatched", "boundary", "to_offset"})  # keys in states


class RangeResult(Protocol):
    """The result of a product's collector for a range, with files of which a run deletes those that it does not use."""

    @property
    def files(self) -> Mapping[str, AddedFile]:
        """Uncommitted files, by table."""

    @property
    def scratch_files(self) -> tuple[str, ...]:
        """Files of the run's scratch, which are deleted before its commit."""


@dataclass(frozen=True, slots=True)
class RunOutput:
    """The lake to which a run writes, and the store's name there."""

    lake: Lake
    naming: FileNaming
    broker: str
    started_at: datetime

    def new_file(self, table: Table, part: str, **constants: str | int | datetime) -> TableFile:
        """Return a file of this run, which its first rows create; *constants* are column values."""
        whose: dict[str, str | int | datetime] = {"broker": self.broker, "store_id": self.naming.store_id}
        return TableFile(self.lake, table, self.naming.new_file_name(part), whose | constants)

    @property
    def scratch(self) -> Scratch:
        """The location of scratch files; those of a killed run are found by the next run."""
        return Scratch(self.lake.locate(MESSAGES.name), self.lake.options)

    def create_scratch(self) -> Scratch:
        """Return `scratch` after creating its directory."""
        scratch = self.scratch
        if is_local(scratch.location):
            make_directory(Path(local_path(scratch.location)))
        return scratch

    def delete_scratch(self, results: Iterable[RangeResult]) -> None:
        """Delete the scratch files of a range."""
        for name in (name for result in results for name in result.scratch_files):
            self.scratch.delete(name)

    def discard(self, results: Sequence[RangeResult]) -> None:
        """Delete all files of a range that was not accepted."""
        for table, action in (item for result in results for item in result.files.items()):
            self.lake.delete(f"{table}/{action.path}")
        self.delete_scratch(results)

    def write_config(self, table: Table, rows: Iterable[Mapping[str, object]], to_offset: int) -> AddedFile | None:
        """Write a file of rows about the broker's configuration; None if there are no rows."""
        with self.new_file(table, "config", to_offset=to_offset, run=self.naming.run) as file:
            file.write_rows(rows)
            return file.close()

    def write(self, table: Table, part: str, batches: Iterable[pa.RecordBatch]) -> AddedFile | None:
        """Write a file of these rows; None if there are no rows."""
        return self.new_file(table, part).write_all(batches)


class ChangedQueues(NamedTuple):
    """The topics whose queues may have new units, if the new part of the log was scanned before."""

    topics: frozenset[str]
    scanned_to: int  # later records may name other topics


@dataclass(frozen=True, slots=True)
class Run:
    """The facts with which a run's products are started."""

    workers: Workers
    store: Store
    output: RunOutput
    writers: Determined[Writers]
    given_settings: GivenSettings  # the user's settings of the store's rules
    selection: Selection
    from_offset: int  # the start of the new part of the log
    unmatched_patterns: tuple[str, ...] = ()  # patterns of the selection that no known topic matches
    step_bytes: int | None = None  # bytes of the log to read, if the run is limited to a step
    log_truncated_at: int | None = None  # the offset at which the broker truncated its log since the last run
    only_missing: bool = False  # leave out records that the lake has
    backfilled_topics: frozenset[str] = frozenset()  # only records that would be left out if these were excluded
    expired: ExpiredRows | None = None  # rows that `optimize --keep` has removed; the run does not add them again
    expired_until: int = MAX_LONG  # no message at or after this offset has expired yet
    changed_queues: ChangedQueues | None = None  # if only these queues need to be probed


Gap = tuple[int, int, str]  # start and end of a range that the lake will lack, fully or in part, and why


@dataclass(slots=True)
class FinishedProduct:
    """The files and figures of a product after the log was read."""

    files: dict[str, list[AddedFile]] = field(default_factory=dict)  # additional files, by table
    state: State | None = None  # the state saved for the next run
    units: Mapping[str, int] = field(default_factory=dict)  # the number of queue units, by the result of the join
    undispatched_bytes: int = 0  # bytes of the log that the broker has not dispatched yet
    gaps: Sequence[Gap] = ()
    notes: Sequence[str] = ()  # remarks for the user
    contradictions: int = 0  # units that contradict the log, and missing units
    unreadable: Sequence[str] = ()  # messages about damaged databases that were not read

    def add(self, table: Table, *actions: AddedFile | None) -> None:
        """Add files of a table."""
        found = [action for action in actions if action is not None]
        if found:
            self.files.setdefault(table.name, []).extend(found)


R = TypeVar("R", bound=RangeResult)


@dataclass(frozen=True, slots=True)
class StartedProduct(Generic[R]):
    """A product in a run: the offset from which it reads the log, and the factory of its collectors."""

    from_offset: int
    collector: NewCollector[R] | None  # None: the product does not need the log
    # Completes the product on the driver, with its collector's result for each accepted range, and the offset at which
    # the next run continues.
    finish: Callable[[Sequence[RangeOutcome[R]], int], FinishedProduct]


def start_or_leave_out(
    start: Callable[[Run, State | None], StartedProduct[R]], tables: Sequence[str], run: Run, state: State | None
) -> StartedProduct[R]:
    """
    Start a product that writes *tables*.

    If the disk cannot read a file that it needs, or the database of the queues is damaged, the run leaves the product
    out; the next run that can read them continues there.
    """

    def leave_out(error: FormatError | OSError) -> FinishedProduct:
        store = run.store
        if isinstance(error, FormatError):
            is_known = is_about_queue_database(error, store)
        else:
            files = (*store.queue_files, *store.index_files, *store.other_files)
            is_known = is_disk_error(error) and any(file.location == error.filename for file in files)
        if not is_known:
            raise error
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        text = f"{text}. No rows were added to {names_text(tables)}; the next run that can read it adds them"
        return FinishedProduct(state=state, unreadable=[text])

    if state is not None and run.log_truncated_at is not None:  # also for the next run, if this one leaves it out
        state = {name: min(value, run.log_truncated_at) if name in _OFFSETS else value for name, value in state.items()}
    try:
        started = start(run, state)
    except (FormatError, OSError) as error:  # of the store's files: reported; any other one is raised
        left_out = leave_out(error)
        return StartedProduct(run.from_offset, None, lambda _outcomes, _to_offset: left_out)

    def finish(outcomes: Sequence[RangeOutcome[R]], to_offset: int) -> FinishedProduct:
        try:
            return started.finish(outcomes, to_offset)
        except (FormatError, OSError) as error:  # as above
            return leave_out(error)

    return replace(started, finish=finish)
