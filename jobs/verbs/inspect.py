"""`inspect`: what is in this store, whether it is well, who wrote it, and what to run next."""

import json
import sys
from collections.abc import Sequence
from time import monotonic

import click

from jobs.command.configuration import config_option
from jobs.command.options import StorePlace, json_option, quiet_option, store_options
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.log import say
from jobs.inspect.dispatch import SampledQueues, compare_index
from jobs.inspect.index import inspect_index
from jobs.inspect.left_over import note_left_over
from jobs.inspect.log import LogInspector
from jobs.inspect.marks import MarkCollector
from jobs.inspect.problems import Problems
from jobs.inspect.queues import inspect_queues
from jobs.inspect.report import StoreReport
from jobs.inspect.state import inspect_state, topics_of
from jobs.inspect.text import dashboard
from jobs.launch.arguments import file_system_options
from jobs.store.store import list_store
from rmq_formats.commitlog.record import MessageRecord

_EPILOG = """\
\b
Examples:
  rmq-lake inspect /data/rocketmq/store
  rmq-lake inspect --deep --json /backup/store | jq .problems
  rmq-lake inspect --broker-conf broker.conf /data/rocketmq/store

\b
Exit codes: 0 nothing wrong was seen; not verified · 1 there is no store, or no access · 2 usage · 3 damage or a gap
"""
_MIB = 1 << 20


@click.command(epilog=_EPILOG)
@store_options
@click.option("--deep", is_flag=True, help="Walk every record of the log, not heads and tails only.")
@json_option
@quiet_option
@config_option
def command(*, place: StorePlace, deep: bool, as_json: bool, quiet: bool) -> ExitCode:
    """
    Say what STORE holds: segments and how each ends, queues, index files, checkpoint, who wrote it, what to run next.

    Reads heads and tails of files, so that it takes seconds on any store; --deep walks the whole log.
    """
    report = inspect_store(place.store, place.log_directories(place.conf()), deep=deep, progress=_Progress(quiet=quiet))
    click.echo(json.dumps(report.as_values(), indent=1) if as_json else dashboard(report))
    return worst(problem.severity.exit_code for problem in report.problems)


def inspect_store(root: str, commitlog: Sequence[str], *, deep: bool, progress: "_Progress") -> StoreReport:
    """Look at a store, part by part."""
    store = list_store(root, commitlog=commitlog, options=file_system_options())
    problems, marks, sampled = Problems(), MarkCollector(), SampledQueues()

    def see(record: MessageRecord) -> None:
        marks.see(record)
        sampled.see(record)

    state = inspect_state(store, marks, problems)
    queues = inspect_queues(store, problems)
    index = inspect_index(store, marks, problems)
    known = [*queues.known_records(), *(() if index.last_offset is None else (index.last_offset,))]
    progress.total = sum(segment.size for segment in store.segments) if deep else 0
    log = LogInspector(store, problems, known, see, progress.passed, state.epochs).inspect(deep=deep)
    if len(state.epochs) > 1:
        note_left_over(store, state, queues, index, log, problems)
    sampled.compare(queues, topics_of(store, problems), problems)
    is_closed = state.process is None and state.abort is None
    compare_index(store, index, problems, log.end_offset if is_closed else None)
    return StoreReport(store.root, log, queues, index, state, marks.eras(), problems, deep=deep)


class _Progress:
    """A line on standard error now and then, while a log is walked."""

    def __init__(self, *, quiet: bool) -> None:
        """Count from nothing; *quiet* says nothing."""
        self.total = 0
        self._done = 0
        self._quiet = quiet
        self._began = monotonic()
        self._next = self._began + 2
        self._interval = 1 if sys.stderr.isatty() else 10

    def passed(self, size: int) -> None:
        """Note that so many bytes more were walked."""
        self._done += size
        now = monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + self._interval
        speed = self._done / (now - self._began)
        of_total = f" of {self.total / _MIB:,.0f}" if self.total else ""
        left = f", about {max(self.total - self._done, 0) / speed:.0f} s left" if self.total else ""
        say(f"walked {self._done / _MIB:,.0f}{of_total} MiB, {speed / _MIB:.0f} MiB/s{left}")
