"""`restore`: a broker's store, given back by the lake."""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.options import LOG_PLACE, POSITIVE, StoreForm, examples, flag, form_options, option
from jobs.command.places import LAKE, NEW_STORE, refuse_used
from jobs.console.exit_codes import ExitCode
from jobs.console.moments import GivenTime
from jobs.console.process import program
from jobs.console.result import Step
from jobs.storage.locations import normalise
from rmq_formats.broker_conf import BrokerConf

_NO_TOPICS = (
    "a log of some topics alone has gaps, and a broker (4.5.2, 4.9.8 and 5.1.4 were tried) cuts its log off at the "
    "first one in its three newest files. Restore the whole log, or bring the messages of a topic out with:\n"
    "  rmq-lake export --lake LAKE -t TOPIC --out FILE"
)


def _refuse_topics(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    if value:
        raise click.BadParameter(_NO_TOPICS, ctx, parameter)


@click.command(
    epilog=examples(
        "restore /data/lake --broker broker-a --out /data/restored",
        "restore LAKE --out DIR --until '2026-11-17 12:00'",
        "restore LAKE --out DIR --resume",
    )
)
@click.argument("lake", metavar="LAKE", type=LAKE)
@option("--broker", "NAME", "The broker's label in the lake, or the id of its store.")
@option("--out", "DIR", "An empty or new directory.", NEW_STORE, required=True)
@option("--from start", "OFFSET|TIME", "Leave out segments that end before this offset or time.", LOG_PLACE)
@option("--until", "OFFSET|TIME", "End the log before the first record at or after this offset or time.", LOG_PLACE)
@click.option("-t", "--topic", multiple=True, hidden=True, expose_value=False, callback=_refuse_topics)
@option(
    "--segment-size",
    "BYTES",
    "mappedFileSizeCommitLog; by default the distance between the segments that the lake has.",
    POSITIVE,
)
@flag("--no-queues", "Write no ConsumeQueue files; the broker rebuilds them at its start, more slowly.")
@flag("--no-index", "Write no index files.")
@flag("--resume", "Continue a restore that was interrupted.")
@form_options
@engine_option
@answer_options
def restore(  # noqa: PLR0913 - one argument an option
    *,
    lake: str,
    broker: str | None,
    out: Path,
    start: int | GivenTime | None,
    until: int | GivenTime | None,
    segment_size: int | None,
    no_queues: bool,
    no_index: bool,
    resume: bool,
    form: StoreForm,
    engine: str,
    answer: Answer,
) -> ExitCode:
    """
    Write a broker's store into DIR from LAKE alone: log and configuration byte for byte, queues and index files.

    A broker can then start on DIR. A time without a zone is this machine's local time.
    """
    if not resume:
        refuse_used(str(out))
    ready = start_workers(engine, lake, warm="jobs.restore.segment")
    from jobs.lake.lake import Lake
    from jobs.restore.plan import offset_at
    from jobs.restore.run import RestoreRequest, find_store, restore

    workers = ready()
    source = Lake(normalise(lake), workers.options)
    store_id = find_store(source, broker).store_id

    def resolved(place: int | GivenTime | None) -> int | None:
        return offset_at(source, store_id, place.milliseconds()) if isinstance(place, GivenTime) else place

    request = RestoreRequest(
        source,
        out.absolute(),
        store_id,
        resolved(start) or 0,
        resolved(until),
        segment_size,
        form.wanted(BrokerConf()),
        with_queues=not no_queues,
        with_index=not no_index,
        resume=resume,
    )
    summary = restore(request, workers)
    return answer.end(summary, [*summary.lines(), *_next(out)], has_bytes=True)


def _next(out: Path) -> Iterator[str]:
    """Yield the lines that say what to do before a broker starts on the restored store."""
    yield from Step("compare its log, queues and index files", (f"{program()} verify {quote(str(out))}",)).lines()
    user = out.stat().st_uid
    words = f"the files belong to user {user}; give them to the user of the broker, and only then start it"
    yield from Step(words, (f"chown -R USER:GROUP {quote(str(out))}",)).lines("")
