"""`inspect`: the contents and the health of a store, its release, and the command to run next."""

if __name__ == "inspect":  # `spark-submit jobs/verbs/….py`: Python takes this file for the module of its library
    raise SystemExit("rmq-lake: a verb's file is no program: spark-submit jobs/main.py VERB …")

from contextlib import closing
from dataclasses import replace

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.options import StorePlace, store_options
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.progress import LateProgress
from jobs.inspect.inspection import inspect_store
from jobs.inspect.text import dashboard

_EPILOG = """\
\b
Examples:
  rmq-lake inspect /data/rocketmq/store
  rmq-lake inspect --deep --json /backup/store | jq .problems
  rmq-lake inspect --broker-conf broker.conf /data/rocketmq/store

\b
Exit codes: 0 no problem seen (not verified) · 1 no access · 2 usage, or there is no store · 3 damage or a gap
"""


@click.command(epilog=_EPILOG)
@store_options
@click.option("--deep", is_flag=True, help="Read every record of the log, not only heads and tails of files.")
@answer_options
def command(*, place: StorePlace, deep: bool, answer: Answer) -> ExitCode:
    """
    Show the segments of a store, its queues, index files and checkpoint, the broker's release, and the next command.

    Only the heads and tails of files are read, which takes seconds on any store; --deep reads the whole log.
    """
    conf = place.conf()
    with closing(LateProgress("walking the log")) as walk:
        report = inspect_store(place.store, place.log_directories(conf), conf, deep=deep, progress=walk)
    # Only the progress line asks for --quiet: the report is the answer.
    replace(answer, quiet=False).give(report.as_values(), dashboard(report, verbose=answer.verbose).split("\n"))
    return worst(problem.severity.exit_code for problem in report.problems)
