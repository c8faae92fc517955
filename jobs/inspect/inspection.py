"""The inspection of a store: all parts, in the order in which one tells the next where to look, and the verdict."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from jobs.console.result import Severity
from jobs.diagnosis.broker_start import shallow_outcome
from jobs.dump.file import time_text
from jobs.inspect.index import compare_index, first_keyed, inspect_index
from jobs.inspect.log import LogInspector
from jobs.inspect.queues import Sampled, compare_queues, drop_left_over, inspect_queues, sample
from jobs.inspect.report import Problems, StoreReport
from jobs.inspect.state import inspect_state, topics_of
from jobs.launch.arguments import file_system_options
from jobs.store.epochs import Leftovers
from jobs.store.log_ends import lost_ends
from jobs.store.record_places import segment_bytes
from jobs.store.release import Marks, writers_of
from jobs.store.store import Store, list_again, list_store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import MessageRecord


def inspect_store(
    root: str, commitlog: Sequence[str], conf: BrokerConf, *, deep: bool, progress: Callable[[int, int], None]
) -> StoreReport:
    """Look at a store, part by part; *progress* hears how many bytes of how many were walked."""
    store = list_store(root, commitlog=commitlog, options=file_system_options())
    problems, marks, sampled = Problems(), Marks(), Sampled()

    def see(record: MessageRecord) -> None:
        marks.see(record)
        sample(record, sampled)

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
    lacking = compare_queues(sampled, queues, topics)
    if lacking and not is_closed:  # a broker may have made files since they were listed
        lacking = compare_queues(sampled, inspect_queues(list_again(store), Problems()), topics)
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
        leftovers = Leftovers(
            state.epochs, lambda segment: segment_bytes(segment, stack.enter_context(store.open(segment)))
        )

        def is_left_over(offset: int) -> bool:
            segment = store.segment_at(offset)
            return segment is not None and leftovers.has(segment, offset)

        units = drop_left_over(report.queues, store, is_left_over)
        if units:
            text = f"{units} units at the ends of queues are of messages that a promotion took back: {since}"
            problems.note(store.root, text)
    if log.end_offset is not None and index.last_offset is not None and index.last_offset >= log.end_offset:
        text = (
            f"index files name messages up to offset {index.last_offset}, after the end of the log at "
            f"{log.end_offset}, and may lack those that the new master stored ({since})"
        )
        problems.note(store.root, text)


def _note_lost_ends(store: Store, report: StoreReport) -> None:
    problems, index, log = report.problems, report.index, report.log
    if not store.segments:
        if not report.state.log_folders and (report.queues.queues or index.files):
            text = "no segment: the log lies elsewhere (--commitlog, --broker-conf), or all of it was deleted"
            problems.gap(f"{store.root}/commitlog", text)
        return
    newest = max(report.known_records(), default=-1)
    with suppress(OSError):  # said where queues and index files were looked at
        for lost in lost_ends(store, newest, log.end_offset):
            is_start = lost.end == store.start_offset
            problems.gap(store.segments[0 if is_start else -1].location, lost.text)
