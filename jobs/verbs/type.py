"""`type`: bodies of topics as typed tables, and dead letters for those that do not fit."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.engine import engine_option, start_workers
from jobs.command.places import CHANGED_LAKE
from jobs.console.amounts import counted
from jobs.console.exit_codes import ExitCode
from jobs.console.log import say
from jobs.console.result import Result
from jobs.console.severity import Severity
from jobs.launch.failures import held_by_other, shown_as_usage

if TYPE_CHECKING:
    from jobs.typed.run import Summary

_SHOWN = 5  # reasons of a topic


@click.command(epilog="\b\nExamples:\n  rmq-lake type /data/lake --types types.toml\n  "
               "rmq-lake type /data/lake --types types.toml --retype Orders\n  "
               "rmq-lake type /data/lake --types types.toml --retry\n  "
               "rmq-lake type /data/lake --infer -t Orders > types.toml")  # fmt: skip
@click.argument("lake", metavar="LAKE", type=CHANGED_LAKE)
@click.option(
    "--types", "declared", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The topics to type, and their columns: see docs/typed.md.",
)  # fmt: skip
@click.option(
    "--retype", multiple=True, metavar="TOPIC",
    help="Make the topic's table again from all of its messages, as FILE declares it now; may be repeated.",
)  # fmt: skip
@click.option("--retry", is_flag=True, help="Type dead letters again: those that FILE accepts now become rows.")
@click.option("--infer", is_flag=True, help="Print the types that the bodies of TOPIC have, and how many do not fit.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="With --infer: the topic.")
@engine_option
@answer_options
def command(  # noqa: PLR0913 - one argument an option
    *,
    lake: str,
    declared: Path | None,
    retype: tuple[str, ...],
    retry: bool,
    infer: bool,
    topics: tuple[str, ...],
    engine: str,
    answer: Answer,
) -> ExitCode:
    """
    Turn the bodies of topics into typed rows of LAKE/typed/TOPIC.

    A body that does not fit becomes a row of LAKE/dead_letters, with the reason; no body is in both tables. Only
    messages that are new since the last time are read. With --infer nothing is written: the types that fit all messages
    of a topic are printed, in the form of FILE.
    """
    from jobs.typed.installed import check_installed

    check_installed(lake)
    if infer:
        if declared is not None or retype or retry or not topics:
            raise click.UsageError("--infer goes with -t TOPIC, and without --types, --retype and --retry")
        return _infer(lake, topics, engine, answer)
    if declared is None or topics:
        raise click.UsageError("give --types FILE, or --infer -t TOPIC")
    return _type(lake, declared, retype, engine, answer, retry=retry)


def _type(  # noqa: PLR0913 - one argument an option
    lake: str, declared: Path, retype: tuple[str, ...], engine: str, answer: Answer, *, retry: bool
) -> ExitCode:
    from jobs.typed.declaration import DeclarationError, read_types

    # The user's own words are judged before a JVM starts.
    with shown_as_usage(DeclarationError):
        types = read_types(declared)
    unknown = sorted(set(retype) - {one.topic for one in types})
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: {declared} declares no such topic", param_hint="--retype")
    ready = start_workers(engine, lake, warm="jobs.typed.task")
    from jobs.lake.lake import Lake
    from jobs.storage.locations import normalise
    from jobs.typed.run import TypeRequest, type_lake

    workers = ready()
    request = TypeRequest(Lake(normalise(lake), workers.options), types, retype, str(declared), retry)
    try:
        with shown_as_usage(DeclarationError):
            summary = type_lake(request, workers)
    except held_by_other() as error:
        say(f"rmq-lake: {lake}: {error}")
        return ExitCode.HELD
    result = Result(Severity.HEALTHY, _what(summary, retry=retry), answer.seconds, verdict="done")
    values = {
        "number": summary.number,
        "recovered": summary.recovered,
        "topics": [one._asdict() for one in summary.topics],
        "absent": sorted(summary.absent),
    }
    answer.give(values, [lake, *_lines(summary)], result)
    return ExitCode.CLEAN


def _infer(lake: str, topics: tuple[str, ...], engine: str, answer: Answer) -> ExitCode:
    ready = start_workers(engine, lake, warm="jobs.typed.task")
    from jobs.lake.lake import Lake
    from jobs.storage.locations import normalise
    from jobs.typed.infer import infer

    workers = ready()
    found = {topic: infer(Lake(normalise(lake), workers.options), topic, workers) for topic in topics}
    text = "\n".join(proposal.text(topic) for topic, proposal in found.items())
    if answer.as_json:
        answer.give({"proposal": text}, ())
    else:  # as it is, however wide the terminal: it is a file
        click.echo(text, nl=False)
    return ExitCode.CLEAN if all(proposal.type for proposal in found.values()) else ExitCode.NOT_FOUND


def _what(summary: "Summary", *, retry: bool) -> str:
    rows, dead_letters, accepted = (
        sum(counts)
        for counts in zip(*((one.rows, one.dead_letters, one.accepted) for one in summary.topics), strict=True)
    )
    said = [counted(rows, "typed row"), counted(dead_letters, "dead letter")] if rows or dead_letters else []
    said += [f"{counted(accepted, 'dead letter')} typed"] if accepted else []
    return ", ".join(said) or "no new message of these topics" + ", and no dead letter fits now" * retry


def _lines(summary: "Summary") -> list[str]:
    lines = []
    if summary.recovered is not None:
        lines.append(f"  typing {summary.recovered} was cut off, and is finished now")
    for topic in summary.topics:
        if topic.topic in summary.absent:
            lines.append(f"  {topic.topic}: no table: the lake has no message of this topic. Is its name misspelled?")
            continue
        how = " (typed again)" if topic.retyped else " (rows that the log does not hold any more are removed)"
        lines.append(
            f"  {topic.topic} → {topic.table}: {counted(topic.rows, 'row')}, "
            f"{counted(topic.dead_letters, 'dead letter')}" + how * topic.removed
        )
        if topic.accepted:
            lines.append(f"    {counted(topic.accepted, 'dead letter')} of before typed")
        shown = list(topic.reasons.items())[:_SHOWN]
        lines += [f"    {counted(count, 'time')}: {reason}" for reason, count in shown]
        if len(topic.reasons) > _SHOWN:
            lines.append(f"    … {len(topic.reasons) - _SHOWN} more reasons (--json has them)")
    return lines
