"""`diff`: records that only a store or only a lake has, with the cause. Nothing is written."""

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import StoreRun, engine_option
from jobs.command.options import StorePlace, label_option, limit_option, max_rate_option, store_options
from jobs.command.places import LAKE
from jobs.console.exit_codes import ExitCode


@click.command(epilog="\b\nExamples:\n  rmq-lake diff /data/rocketmq/store /data/lake\n  "
               "rmq-lake diff STORE LAKE --json")  # fmt: skip
@store_options
@click.argument("lake", metavar="LAKE", type=LAKE)
@label_option
@limit_option("differences to print, the worst first")
@max_rate_option
@engine_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *, place: StorePlace, lake: str, broker: str | None, limit: int, max_rate: int | None, engine: str, answer: Answer
) -> ExitCode:
    """
    Compare the log of STORE with LAKE, record by record and byte for byte, and explain the differences.

    Records that have expired, are not ingested yet, or were not selected are not findings (exit code 0). Lost or
    damaged ones are (3), and so are different records at the same offset (4).
    """
    run = StoreRun(place, engine, max_rate, warm="jobs.diff.segment")
    from jobs.diff.run import DiffRequest, diff

    name = broker or run.conf.broker_name
    request = DiffRequest(place.store, run.lake(lake), name, commitlog=run.commitlog, care=run.care)
    summary = diff(request, run.workers)
    return answer.end(summary, summary.lines(limit), has_bytes=True)
