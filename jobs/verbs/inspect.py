"""`inspect`: what is in this store, whether it is well, who wrote it, and what to run next."""

if __name__ == "inspect":  # `spark-submit jobs/verbs/….py`: Python takes this file for the module of its library
    raise SystemExit("rmq-lake: a verb's file is no program: spark-submit jobs/main.py VERB …")

from collections.abc import Sequence

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.options import StorePlace, store_options
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.progress import Progress, Work
from jobs.diagnosis.broker_start import shallow_outcome
from jobs.inspect.dispatch import SampledQueues, compare_index
from jobs.inspect.index import inspect_index
from jobs.inspect.left_over import note_left_over
from jobs.inspect.log import LogInspector
from jobs.inspect.lost_ends import note_lost_ends
from jobs.inspect.problems import Problems
from jobs.inspect.queues import inspect_queues
from jobs.inspect.report import StoreReport
from jobs.inspect.state import inspect_state, topics_of
from jobs.inspect.text import dashboard
from jobs.launch.arguments import file_system_options
from jobs.store.release import Marks, writers_of
from jobs.store.store import Store, list_store
from rmq_formats.broker_conf import BrokerConf
from rmq_formats.broker_start import StartOutcome
from rmq_formats.commitlog.record import MessageRecord

_EPILOG = """\
\b
Examples:
  rmq-lake inspect /data/rocketmq/store
  rmq-lake inspect --deep --json /backup/store | jq .problems
  rmq-lake inspect --broker-conf broker.conf /data/rocketmq/store

\b
Exit codes: 0 nothing wrong was seen; not verified · 1 no access · 2 usage, or there is no store · 3 damage or a gap
"""


@click.command(epilog=_EPILOG)
@store_options
@click.option("--deep", is_flag=True, help="Walk every record of the log, not heads and tails only.")
@answer_options
def command(*, place: StorePlace, deep: bool, answer: Answer) -> ExitCode:
    """
    Say what STORE holds: segments and how each ends, queues, index files, checkpoint, who wrote it, what to run next.

    Reads heads and tails of files, so that it takes seconds on any store; --deep walks the whole log.
    """
    conf = place.conf()
    report = inspect_store(place.store, place.log_directories(conf), conf, deep=deep, walked=_Walked())
    # Only the progress line asks for --quiet: the report is what was asked for.
    answer._replace(quiet=False).give(report.as_values(), dashboard(report).split("\n"))
    return worst(problem.severity.exit_code for problem in report.problems)


def inspect_store(
    root: str, commitlog: Sequence[str], conf: BrokerConf, *, deep: bool, walked: "_Walked"
) -> StoreReport:
    """Look at a store, part by part."""
    store = list_store(root, commitlog=commitlog, options=file_system_options())
    problems, marks, sampled = Problems(), Marks(), SampledQueues()

    def see(record: MessageRecord) -> None:
        marks.see(record)
        sampled.see(record)

    state = inspect_state(store, marks, problems)
    queues = inspect_queues(store, problems)
    index = inspect_index(store, marks, problems)
    known = [*queues.known_records(), *(() if index.last_offset is None else (index.last_offset,))]
    walked.total = store.log_size if deep else 0
    log = LogInspector(store, problems, known, see, walked.passed, state.epochs).inspect(deep=deep)
    walked.close()
    report = StoreReport(store.root, log, queues, index, state, marks.eras(), problems, deep=deep)
    if len(state.epochs) > 1:
        note_left_over(store, report)
    sampled.compare(queues, topics_of(store, problems), problems)
    is_closed = state.process is None and state.abort is None
    compare_index(store, index, problems, log.end_offset if is_closed else None)
    if is_closed:
        note_lost_ends(store, report)
    if state.process is None:
        report.start = _start(store, report, conf)
    return report


def _start(store: Store, report: StoreReport, conf: BrokerConf) -> StartOutcome:
    """Return what a start of the broker would do, and note what of it nothing else has said."""
    writers = writers_of(report.eras, ()).value
    start = shallow_outcome(store, writers, conf, deep=report.deep)
    if start.refuses is not None:
        report.problems.damage(f"{store.root}/{start.refuses.file}", "for its length or name the broker does not start")
    if start.cuts_at is not None:
        file = next(one.file for one in reversed(report.log.segments) if one.base_offset <= start.cuts_at)
        report.problems.damage(file, "the broker would cut the log here, at its next start", start.cuts_at)
    return start


class _Walked:
    """The progress of a walk over the log."""

    def __init__(self) -> None:
        self.total = 0
        self._done = 0
        self._progress: Progress | None = None

    def passed(self, size: int) -> None:
        """Note that so many bytes more were walked."""
        self._done += size
        self._progress = self._progress or Progress(Work("walking the log", self.total))
        self._progress.show(self._done)

    def close(self) -> None:
        """Leave the line to the report."""
        if self._progress is not None:
            self._progress.close()
