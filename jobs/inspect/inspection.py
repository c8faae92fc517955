"""The inspection of a store: all parts, in the order in which one tells the next where to look, and the verdict."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from shlex import quote

from jobs.console.severity import Severity
from jobs.diagnosis.broker_start import shallow_outcome
from jobs.dump.file import time_text
from jobs.inspect.dispatch import SampledQueues, compare_index, first_keyed
from jobs.inspect.index import IndexReport, inspect_index
from jobs.inspect.log import LogInspector, LogReport
from jobs.inspect.problems import Problems
from jobs.inspect.queues import QueuesReport, drop_left_over, inspect_queues
from jobs.inspect.state import StateReport, inspect_state, topics_of
from jobs.launch.arguments import file_system_options
from jobs.store.epochs import Leftovers
from jobs.store.log_ends import lost_ends
from jobs.store.record_places import segment_bytes
from jobs.store.release import Marks, writers_of
from jobs.store.store import Store, list_store, with_queues_of_now
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import MessageRecord
from rmq_formats.detection import Era

_LOST = frozenset({Severity.DAMAGE, Severity.GAP})


@dataclass(slots=True)
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
    start: StartOutcome | None = None  # the outcome of a start of the broker; None while a broker runs

    @property
    def health(self) -> Severity:
        """The worst that was found; heads and tails never say more than that nothing wrong was seen."""
        return self.problems.severity

    @property
    def has_index(self) -> bool:
        """Whether there is an index, in files or in RocksDB."""
        return bool(self.index.files or (self.state.rocksdb and self.state.rocksdb.index_rows))

    def next_steps(self) -> list[tuple[str, str]]:
        """Return the commands to run next, with reasons."""
        store = quote(self.store)
        damage = next((problem for problem in self.problems if problem.severity is Severity.DAMAGE), None)
        steps = []
        if self.state.log_folders:
            folders = quote(",".join(self.state.log_folders))
            steps.append((f"inspect --commitlog {folders} {store}", "take these folders for the log"))
        if damage is not None and damage.offset is not None:
            steps.append((f"dump --from {damage.offset} --limit 3 {quote(damage.file)}", "look at the first damage"))
        if not self.deep and self.log.segments:
            steps.append((f"inspect --deep {store}", "walk every record"))
        if self.log.segments:
            repairs = self._has_files_to_repair()
            if not self.has_index and not repairs:
                steps.append((f"rebuild-index {store} --out DIR", "there is no index"))
            if not self.queues.queues and not self.queues.in_rocksdb:
                steps.append((f"rebuild-consumequeue {store} --out DIR", "there are no queues"))
            if repairs:
                steps.append((f"repair {store} --out REPAIR", "see the planned repairs; reads only"))
            steps.append((f"verify {store}", "compare log, queues and index with each other"))
            steps.append((f"ingest {store} --lake LAKE", "bring the messages into tables"))
        return steps

    def _has_files_to_repair(self) -> bool:
        """Return whether a file is damaged or missing that can be made from the log again."""
        made = tuple(f"{self.store}/{name}" for name in ("consumequeue/", "batchconsumequeue/", "index", "checkpoint"))
        refused = self.start and self.start.refuses
        return bool(refused and refused.is_last and refused.length < refused.expected) or any(
            one.severity in _LOST and one.file.startswith(made) for one in self.problems
        )

    def as_values(self) -> dict[str, object]:
        """Return the report for JSON."""
        return {
            "store": self.store,
            "health": str(self.health),
            "broker": None if self.start is None else self.start.describe(),
            "state": asdict(self.state),
            "log": asdict(self.log),
            "queues": asdict(self.queues)
            | {
                "units": sum(queue.units for queue in self.queues.queues),
                "deleted_topics": sorted(self.queues.deleted_topics),
            },
            "index": asdict(self.index),
            "releases": [
                {
                    "from_offset": era.first_offset,
                    "lowest": str(era.lowest),
                    "highest": str(era.highest),
                    "candidates": [str(release) for release in era.candidates],
                    "marks": [{"reason": mark.reason, "offset": mark.offset} for mark in era.marks],
                }
                for era in self.eras
            ],
            "problems": [problem.as_values() for problem in self.problems],
            "next": [{"run": command, "why": why} for command, why in self.next_steps()],
        }


def inspect_store(
    root: str, commitlog: Sequence[str], conf: BrokerConf, *, deep: bool, progress: Callable[[int, int], None]
) -> StoreReport:
    """Look at a store, part by part; *progress* hears how many bytes of how many were walked."""
    store = list_store(root, commitlog=commitlog, options=file_system_options())
    problems, marks, sampled = Problems(), Marks(), SampledQueues()

    def see(record: MessageRecord) -> None:
        marks.see(record)
        sampled.see(record)

    state = inspect_state(store, marks, problems)
    queues = inspect_queues(store, problems)
    index = inspect_index(store, marks, problems)
    known = [*queues.known_records(), *(() if index.last_offset is None else (index.last_offset,))]
    log = LogInspector(store, problems, known, see, progress, state.epochs).inspect(deep=deep)
    report = StoreReport(store.root, log, queues, index, state, marks.eras(), problems, deep=deep)
    if len(state.epochs) > 1:
        _note_left_over(store, report)
    is_closed = state.process is None and state.abort is None
    topics = topics_of(store, problems)
    lacking = sampled.compare(queues, topics)
    if lacking and not is_closed:  # a broker may have made files since they were listed
        lacking = sampled.compare(inspect_queues(with_queues_of_now(store), Problems()), topics)
    # Of a queue whose files may not be read, the units are not known.
    closed_files = [one.file for one in problems if one.severity is Severity.NOT_ACCESSIBLE]
    problems += [one for one in lacking if not any(f"/{one.file}/" in file for file in closed_files)]
    if index.files:
        compare_index(store, index, problems, log.end_offset if is_closed else None)
    elif not report.has_index:
        _note_lost_index(store, report, conf, is_closed=is_closed)
    if is_closed:
        _note_lost_ends(store, report)
    if state.process is None:
        report.start = _start(store, report, conf)
    return report


def _note_lost_index(store: Store, report: StoreReport, conf: BrokerConf, *, is_closed: bool) -> None:
    """Note that there should be index files: by the checkpoint, or by the broker's configuration."""
    place, indexed = f"{store.root}/index", (report.state.checkpoint or {}).get("index_timestamp", 0)
    if indexed > 0:
        noted = f"the checkpoint has noted down that there were some up to {time_text(indexed)}"
        report.problems.gap(place, f"no file, and {noted}")
    elif is_closed and conf.is_given and conf.makes_index_files and report.log.end_offset:
        keyed = first_keyed(store, store.start_offset, report.log.end_offset)
        if keyed is not None:
            text = "no file, and the broker's configuration switches index files on: messages with keys begin"
            report.problems.gap(place, text, keyed)


def _start(store: Store, report: StoreReport, conf: BrokerConf) -> StartOutcome:
    """Return the outcome of a start of the broker, and note those parts of it that no problem states yet."""
    writers = writers_of(report.eras, ()).value
    start = shallow_outcome(store, writers, conf, deep=report.deep)
    refused = start.refuses or start.leaves_out
    file = "" if refused is None else f"{store.root}/{refused.file}"
    if refused is not None and not any(one.file == file and one.severity.is_alarm for one in report.problems):
        does = "does not start" if start.refuses else "leaves out this file and all files after it"
        report.problems.damage(file, f"for its length or name the broker {does}")
    if start.cuts_at is not None:
        file = next(one.file for one in reversed(report.log.segments) if one.base_offset <= start.cuts_at)
        report.problems.damage(file, "the broker would cut the log here, at its next start", start.cuts_at)
    return start


def _note_left_over(store: Store, report: StoreReport) -> None:
    """Note units and index entries of messages that a promotion took back: these are not damage."""
    state, index, log, problems = report.state, report.index, report.log, report.problems
    epoch = state.epochs[-1]
    since = f"epoch {epoch.number} begins at offset {epoch.start_offset}"
    with ExitStack() as stack, problems.noted(store.root):
        units = drop_left_over(report.queues, store, _is_left_over(store, state, stack))
        if units:
            text = f"{units} units at the ends of queues are of messages that a promotion took back: {since}"
            problems.note(store.root, text)
    if log.end_offset is not None and index.last_offset is not None and index.last_offset >= log.end_offset:
        text = (
            f"index files name messages up to offset {index.last_offset}, after the end of the log at "
            f"{log.end_offset}, and may lack those that the new master stored ({since})"
        )
        problems.note(store.root, text)


def _is_left_over(store: Store, state: StateReport, stack: ExitStack) -> Callable[[int], bool]:
    leftovers = Leftovers(
        state.epochs, lambda segment: segment_bytes(segment, stack.enter_context(store.open(segment)))
    )

    def is_left_over(offset: int) -> bool:
        segment = store.segment_at(offset)
        return segment is not None and leftovers.has(segment, offset)

    return is_left_over


def _note_lost_ends(store: Store, report: StoreReport) -> None:
    problems, index, log = report.problems, report.index, report.log
    if not store.segments:
        if not report.state.log_folders and (report.queues.queues or index.files):
            text = "no segment: the log lies elsewhere (--commitlog, --broker-conf), or all of it was deleted"
            problems.gap(f"{store.root}/commitlog", text)
        return
    indexed = () if index.last_offset is None else (index.last_offset,)
    newest = max([*report.queues.known_records(), *indexed], default=-1)
    with suppress(OSError):  # said where queues and index files were looked at
        for lost in lost_ends(store, newest, log.end_offset):
            is_start = lost.end == store.start_offset
            problems.gap(store.segments[0 if is_start else -1].location, lost.text)
