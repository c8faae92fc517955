"""The report of `inspect`: the contents of a store, its problems, and the commands to run next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import NamedTuple

from jobs.console.amounts import count_text
from jobs.console.result import Severity, worst_severity
from jobs.inspect.usage_report import Usage
from jobs.store.pending_messages import TimerState
from jobs.store.store import StoredFile
from rmq_formats.broker_conf import Epoch
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.segment import Framing
from rmq_formats.consumequeue.dispatch import QueueKind
from rmq_formats.detection import Era
from rmq_formats.errors import FormatError, UnsupportedFormat, is_disk_error
from rmq_formats.indexfile.layout import Geometry, IndexHeader

_TOPICS_IN_ROCKSDB = frozenset({"config/topics", "config/metadata"})
_LOST = frozenset({Severity.DAMAGE, Severity.GAP})


class Problem(NamedTuple):
    """One problem; *offset* is the physical offset in the log, or the position in another file."""

    severity: Severity
    file: str
    text: str
    offset: int | None = None


class Problems(list[Problem]):
    """The problems found so far."""

    misses_listed_file = False  # a file was deleted after it was listed

    def add_damage(self, file: str, text: str, offset: int | None = None) -> None:
        """Note bytes that are not as they were written."""
        self.append(Problem(Severity.DAMAGE, file, text, offset))

    def add_gap(self, file: str, text: str, offset: int | None = None) -> None:
        """Note missing bytes, units or entries."""
        self.append(Problem(Severity.GAP, file, text, offset))

    def add_note(self, file: str, text: str, offset: int | None = None) -> None:
        """Note an unusual fact that may need attention; nothing is lost."""
        self.append(Problem(Severity.NOT_VERIFIED, file, text, offset))

    @contextmanager
    def noting_errors(self, file: str) -> Iterator[None]:
        """Note the error that stops the block from reading *file*, and continue after the block."""
        try:
            yield
        except UnsupportedFormat as error:  # a library of RocksDB is missing
            self.add_note(file, error.reason)
        except FormatError as error:
            self.add_damage(error.file or file, error.reason, error.offset)
        except FileNotFoundError:
            self.misses_listed_file = True
        except OSError as error:  # any: it is reported as a problem of this file
            how = "no access" if isinstance(error, PermissionError) else "cannot be read"
            severity = Severity.DAMAGE if is_disk_error(error) else Severity.NOT_ACCESSIBLE
            inner = error.filename if isinstance(error.filename, str) and not error.filename.endswith(file) else file
            self.append(Problem(severity, inner, f"{how}: {error.strerror or error}"))


@dataclass(slots=True, eq=False)  # reports are not compared; each method that is generated takes time at each start
class SegmentReport:
    """One file of the log."""

    file: str
    base_offset: int
    size: int
    framing: Framing = Framing.PLAIN
    end: str = "unknown"  # sealed, open, damaged, misnamed; "preallocated" for zeros after the newest segment
    end_offset: int | None = None  # the end of its records
    first_store_timestamp: int | None = None
    last_store_timestamp: int | None = None
    records: int | None = None  # counted by a walk


@dataclass(slots=True, eq=False)
class LogReport:
    """The whole log."""

    segments: list[SegmentReport] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int | None = None
    first_store_timestamp: int | None = None
    last_store_timestamp: int | None = None
    waiting_bytes: int = 0  # a record that is not complete yet
    lost_bytes: int = 0  # after the end of the log, as queues and index files show: lost, or not copied
    left_over_bytes: int = 0  # records after the end of the log, from before it was truncated
    records: int | None = None
    topics: dict[str, int] = field(default_factory=dict)  # records by topic, where the log was walked


@dataclass(slots=True, eq=False)
class QueueReport:
    """One queue."""

    kind: QueueKind
    topic: str
    queue_id: int
    files: int
    bytes: int
    first_unit: int = 0  # number of the first unit on disk
    next_unit: int = 0  # number of the unit that the broker writes next
    min_offset: int = 0  # the offset that mqadmin's topicStatus prints: units of deleted segments are left out
    max_offset: int = 0
    first_physical_offset: int | None = None
    last_physical_offset: int | None = None
    left_over: int = 0  # units at the end whose messages were truncated after a promotion; not among the others

    @property
    def unit_count(self) -> int:
        """The number of units on disk."""
        return self.next_unit - self.first_unit


@dataclass(slots=True, eq=False)
class QueuesReport:
    """All queues."""

    queues: list[QueueReport] = field(default_factory=list)
    ext_files: int = 0
    in_rocksdb: bool = False
    units_in_rocksdb: int = 0  # units of queues that have no files
    deleted_topics: set[str] = field(default_factory=set)  # deleted topics whose messages are still in the log

    @property
    def topics(self) -> set[str]:
        """The topics that have queues."""
        return {queue.topic for queue in self.queues}


@dataclass(slots=True, eq=False)
class IndexReport:
    """All index files."""

    files: list[tuple[StoredFile, IndexHeader]] = field(default_factory=list)
    geometry: Geometry | None = None  # None if it is unknown
    geometry_origin: str = "unknown"

    @property
    def last_offset(self) -> int | None:
        """The physical offset of the newest message that the index names."""
        return max((header.end_physical_offset for _, header in self.files if header.entry_count), default=None)


@dataclass(slots=True, eq=False)
class RocksReport:
    """Rows other than queue units that a broker of 5.4.0+ keeps in RocksDB."""

    index_rows: int = 0  # at most MOST_COUNTED
    pending_transactions: int = 0
    oldest_transaction: int | None = None  # physical offset of its half message
    waiting_timers: int = 0
    first_due: int | None = None  # ms
    last_due: int | None = None


@dataclass(slots=True, eq=False)
class StateReport:
    """The content of the small files of a store."""

    broker: str = "shut down cleanly"
    process: int | None = None  # the process that holds the lock
    abort: str | None = None  # content of the file, if it exists
    checkpoint: dict[str, int] | None = None
    unknown_files: int = 0
    replica: str | None = None  # in controller mode, the cluster, the broker and the replica's number
    epochs: tuple[Epoch, ...] = ()  # in controller mode, the masters and the offsets at which they began
    # The number and total size of the files of one kind in one directory below the root ("" is the root itself).
    folders: list[tuple[str, str, int, int]] = field(default_factory=list)
    log_folders: tuple[str, ...] = ()  # directories with files named like segments, which were not given
    rocksdb: RocksReport | None = None  # index, transactions and timer messages in RocksDB
    timers: TimerState | None = None  # timer messages in files


@dataclass(slots=True, eq=False)
class StoreReport:
    """The contents of a store, and its problems."""

    store: str
    log: LogReport
    queues: QueuesReport
    index: IndexReport
    state: StateReport
    eras: tuple[Era, ...]
    problems: Problems = field(default_factory=Problems)
    deep: bool = False
    options: Sequence[str] = ()  # where the log and the broker's configuration are; recommended commands repeat them
    start: StartOutcome | None = None  # the outcome of a start of the broker; None while a broker runs
    usage: Usage | None = None  # with `--usage`

    @property
    def health(self) -> Severity:
        """The worst severity found; `inspect` compares only a part, so it never reports a store as healthy."""
        return worst_severity((Severity.NOT_VERIFIED, *(problem.severity for problem in self.problems)))

    @property
    def has_index(self) -> bool:
        """Whether there is an index, in files or in RocksDB."""
        return bool(self.index.files or (self.state.rocksdb and self.state.rocksdb.index_rows))

    def next_steps(self) -> list[tuple[str, str]]:
        """Return the commands to run next, with reasons."""
        store = " ".join(map(quote, (self.store, *self.options)))
        # A file that is damaged or missing, and can be rebuilt from the log.
        made = tuple(f"{self.store}/{name}" for name in ("consumequeue/", "batchconsumequeue/", "index", "checkpoint"))
        refused = self.start and self.start.unloadable_file
        repairs = bool(refused and refused.is_last and refused.size < refused.expected_size) or any(
            one.severity in _LOST and one.file.startswith(made) for one in self.problems
        )
        damage = next((problem for problem in self.problems if problem.severity is Severity.DAMAGE), None)
        steps = []
        if self.log.lost_bytes:
            why = "show the messages after the end of the log that a lake can restore (read-only)"
            steps.append((f"repair {store} --lake LAKE --out REPAIR", why))
        if self.state.log_folders:
            directories = quote(",".join(self.state.log_folders))
            steps.append((f"inspect {store} --commitlog {directories}", "read these directories as the log"))
        if damage is not None and damage.offset is not None:
            steps.append(
                (f"dump --from {damage.offset} --limit 3 {quote(damage.file)}", "show the first damaged range")
            )
        if not self.deep and self.log.segments:
            steps.append((f"inspect --deep {store}", "read every record"))
        if self.log.segments:
            if not self.has_index and not repairs:
                steps.append((f"rebuild-index {store} --out DIR", "the store has no index"))
            # A broker with queues in RocksDB has its topics there as well. It reads no files, and writes the rows.
            are_in_files = _TOPICS_IN_ROCKSDB.isdisjoint(directory for directory, *_ in self.state.folders)
            if not self.queues.queues and not self.queues.in_rocksdb and are_in_files:
                steps.append((f"rebuild-consumequeue {store} --out DIR", "the store has no queues"))
            if repairs:
                steps.append((f"repair {store} --out REPAIR", "show the planned repairs (read-only)"))
            steps += self._steps_before_start(store)
            steps.append((f"verify {store}", "compare log, queues and index with each other"))
            steps.append((f"ingest {store} --lake LAKE", "load the messages into tables"))
        return steps

    def _steps_before_start(self, store: str) -> list[tuple[str, str]]:
        """Return the commands that keep the broker's next start from deleting messages or keys."""
        start = self.start and (self.start.after_repair or self.start)
        if start and start.cuts_at is not None and start.deletes_messages:
            messages = count_text(start.deletes_messages, "intact message")
            lake = "restore the lost bytes from a lake, if there is one (read-only)"
            why = f"or plan bridge records over the lost bytes: the broker then keeps the {messages} after them"
            repair = f"repair {store} --out REPAIR"
            return [(f"{repair} --lake LAKE", lake), (f"{repair} --bridge", why)]
        if start and start.cuts_at is None and start.loses_keys is not None:
            options = "--out NEW-INDEX --lost-only --install --advance-checkpoint"
            why = "keep the keys of the index files that the broker deletes when it starts (run it before the start)"
            return [(f"rebuild-index {store} {options}", why)]
        return []

    def to_dict(self) -> dict[str, object]:
        """Return the report for JSON."""
        units = sum(queue.unit_count for queue in self.queues.queues)
        directories = [dict(zip(("folder", "kind", "files", "bytes"), one, strict=True)) for one in self.state.folders]
        hash_slots, index_num = self.index.geometry or (None, None)
        files = [{"file": one.location, "size": one.size, **header._asdict()} for one, header in self.index.files]
        timers: dict[str, object] | None = None
        if self.state.timers is not None:
            first, last = self.state.timers.due_range_ms
            waiting = self.state.timers.waiting_count
            timers = {"wheel": self.state.timers.wheel, "waiting": waiting, "first_due": first, "last_due": last}
        return {
            "store": self.store,
            "health": str(self.health),
            "broker": None if self.start is None else self.start.to_dict(),
            "state": asdict(self.state) | {"folders": directories, "timers": timers},
            "log": asdict(self.log),
            "queues": asdict(self.queues) | {"units": units, "deleted_topics": sorted(self.queues.deleted_topics)},
            "index": {
                "files": files,
                "hash_slots": hash_slots,
                "index_num": index_num,
                "geometry_origin": self.index.geometry_origin,
            },
            "releases": [
                {
                    "from_offset": era.first_offset,
                    "lowest": str(era.oldest_release),
                    "highest": str(era.newest_release),
                    "candidates": [str(release) for release in era.candidates],
                    "marks": [{"reason": mark.reason, "offset": mark.offset} for mark in era.marks],
                }
                for era in self.eras
            ],
            "usage": None if self.usage is None else self.usage.to_dict(),
            "problems": [problem._asdict() | {"severity": str(problem.severity)} for problem in self.problems],
            "next": [{"run": command, "why": why} for command, why in self.next_steps()],
        }
