"""`type`: bodies of topics as typed tables, and dead letters for those that do not fit."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, Stopwatch, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.failures import shown_as_usage
from jobs.command.places import CHANGED_LAKE
from jobs.console.amounts import counted
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.console.result import Result
from jobs.console.severity import Severity

if TYPE_CHECKING:
    from jobs.typed.run import Summary

_SHOWN = 5  # reasons of a topic


@click.command(epilog="\b\nExamples:\n  rmq-lake type /data/lake --types types.toml\n  "
               "rmq-lake type /data/lake --types types.toml --retype Orders")  # fmt: skip
@click.argument("lake", metavar="LAKE", type=CHANGED_LAKE)
@click.option(
    "--types", "declared", required=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Which topics are typed, and how: see docs/typed.md.",
)  # fmt: skip
@click.option(
    "--retype", multiple=True, metavar="TOPIC",
    help="Make the topic's table again from all of its messages, as FILE declares it now; may be repeated.",
)  # fmt: skip
@engine_option
@answer_options
def command(*, lake: str, declared: Path, retype: tuple[str, ...], engine: str, answer: Answer) -> ExitCode:
    """
    Type the bodies of topics: each is a row of LAKE/typed/TOPIC, or of LAKE/dead_letters with the reason.

    Only messages that are new since the last time are read. Each is in one of the two tables, never in both.
    """
    watch = Stopwatch()

    # Beside the start of a JVM, Python imports what is needed; but what the user wrote is judged first.
    from jobs.typed.installed import check_installed

    check_installed(str(declared))
    from jobs.typed.declaration import DeclarationError, read_types

    with shown_as_usage(DeclarationError):
        types = read_types(declared)
    unknown = sorted(set(retype) - {one.topic for one in types})
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: {declared} declares no such topic", param_hint="--retype")
    ready = start_workers(engine, lake, warm="jobs.typed.task")
    from jobs.lake.lake import Lake
    from jobs.lake.runs import HeldByOtherError
    from jobs.storage.locations import normalise
    from jobs.typed.run import TypeRequest, type_lake

    workers = ready()
    request = TypeRequest(Lake(normalise(lake), workers.options), types, retype, str(declared))
    try:
        with shown_as_usage(DeclarationError):
            summary = type_lake(request, workers)
    except HeldByOtherError as error:
        say(f"rmq-lake: {lake}: {error}")
        return ExitCode.HELD
    result = Result(Severity.HEALTHY, _what(summary), watch.seconds, verdict="done")
    values = {
        "number": summary.number,
        "recovered": summary.recovered,
        "topics": [one._asdict() for one in summary.topics],
        "seconds": result.seconds,
    }
    answer.give(values, [lake, *_lines(summary)], result)
    return ExitCode.CLEAN


def _what(summary: "Summary") -> str:
    if not (summary.rows or summary.dead_letters):
        return "no new message of these topics"
    return f"{counted(summary.rows, 'typed row')}, {counted(summary.dead_letters, 'dead letter')}"


def _lines(summary: "Summary") -> list[str]:
    lines = []
    if summary.recovered is not None:
        lines.append(f"  typing {summary.recovered} was cut off, and is finished now")
    for topic in summary.topics:
        how = " (typed again)" if topic.retyped else " (rows that the log does not hold any more are removed)"
        lines.append(
            f"  {topic.topic} → {topic.table}: {counted(topic.rows, 'row')}, "
            f"{counted(topic.dead_letters, 'dead letter')}" + how * topic.removed
        )
        shown = list(topic.reasons.items())[:_SHOWN]
        lines += [f"    {count:,} times: {reason}" for reason, count in shown]
        if len(topic.reasons) > _SHOWN:
            lines.append(f"    … {len(topic.reasons) - _SHOWN} more reasons (--json has them)")
    return lines
