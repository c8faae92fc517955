"""The whole look at a store: all parts, in the order in which one tells the next where to look."""

from collections.abc import Callable, Sequence

from jobs.diagnosis.broker_start import shallow_outcome
from jobs.dump.items import time_text
from jobs.inspect.dispatch import SampledQueues, compare_index
from jobs.inspect.index import inspect_index
from jobs.inspect.left_over import note_left_over
from jobs.inspect.log import LogInspector
from jobs.inspect.lost_ends import note_lost_ends
from jobs.inspect.problems import Problems
from jobs.inspect.queues import inspect_queues
from jobs.inspect.report import StoreReport
from jobs.inspect.state import inspect_state, topics_of
from jobs.launch.arguments import file_system_options
from jobs.store.release import Marks, writers_of
from jobs.store.store import Store, list_store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import MessageRecord


def inspect_store(
    root: str, commitlog: Sequence[str], conf: BrokerConf, *, deep: bool, progress: Callable[[int, int], None]
) -> StoreReport:
    """Look at a store, part by part; *progress* hears how many bytes of how many were walked."""
    store = list_store(root, commitlog=commitlog, options=file_system_options())
    problems, marks, sampled = Problems(), Marks(), SampledQueues()
    total, done = store.log_size if deep else 0, 0

    def passed(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    def see(record: MessageRecord) -> None:
        marks.see(record)
        sampled.see(record)

    state = inspect_state(store, marks, problems)
    queues = inspect_queues(store, problems)
    index = inspect_index(store, marks, problems)
    known = [*queues.known_records(), *(() if index.last_offset is None else (index.last_offset,))]
    log = LogInspector(store, problems, known, see, passed, state.epochs).inspect(deep=deep)
    report = StoreReport(store.root, log, queues, index, state, marks.eras(), problems, deep=deep)
    if len(state.epochs) > 1:
        note_left_over(store, report)
    sampled.compare(queues, topics_of(store, problems), problems)
    is_closed = state.process is None and state.abort is None
    compare_index(store, index, problems, log.end_offset if is_closed else None)
    indexed = (state.checkpoint or {}).get("index_timestamp", 0)
    if indexed > 0 and not index.files and not (state.rocksdb and state.rocksdb.index_rows):
        text = f"no file, and the checkpoint has noted down that there were some up to {time_text(indexed)}"
        problems.gap(f"{store.root}/index", text)
    if is_closed:
        note_lost_ends(store, report)
    if state.process is None:
        report.start = _start(store, report, conf)
    return report


def _start(store: Store, report: StoreReport, conf: BrokerConf) -> StartOutcome:
    """Return the outcome of a start of the broker, and note those parts of it that no problem states yet."""
    writers = writers_of(report.eras, ()).value
    start = shallow_outcome(store, writers, conf, deep=report.deep)
    refused = None if start.refuses is None else f"{store.root}/{start.refuses.file}"
    if refused is not None and not any(one.file == refused and one.severity.is_alarm for one in report.problems):
        report.problems.damage(refused, "for its length or name the broker does not start")
    if start.cuts_at is not None:
        file = next(one.file for one in reversed(report.log.segments) if one.base_offset <= start.cuts_at)
        report.problems.damage(file, "the broker would cut the log here, at its next start", start.cuts_at)
    return start
