"""`diff`: records that only a store or only a lake has, with the cause. Nothing is written."""

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.options import StorePlace, label_option, limit_option, max_rate_option, store_options
from jobs.command.places import LAKE
from jobs.console.exit_codes import ExitCode
from jobs.launch.failures import shown_as_usage
from jobs.store.beside_broker import care_beside


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
    Compare the log of STORE with LAKE, record by record and byte for byte, and say why one lacks what the other has.

    Records that are expired, not ingested yet, or not chosen are no finding (exit code 0); lost or damaged ones are
    (3), and so are other records at the same place (4).
    """
    conf = place.conf()
    care = care_beside(place.store, max_rate)
    ready = start_workers(engine, *place.log_places(conf), half=care is not None, warm="jobs.diff.segment")

    # Beside the start of a JVM, Python imports what is needed.
    from jobs.diff.run import DiffRequest, NotInLakeError, diff
    from jobs.lake.lake import Lake
    from jobs.storage.locations import normalise

    workers = ready()
    request = DiffRequest(
        place.store,
        Lake(normalise(lake), workers.options),
        broker or conf.broker_name,
        commitlog=place.log_directories(conf),
        care=care,
    )
    with shown_as_usage(NotInLakeError):
        summary = diff(request, workers)
    result = summary.result(answer.seconds)
    answer.give({**summary.describe(), "bytes": result.size}, summary.lines(limit), result)
    return summary.exit_code
