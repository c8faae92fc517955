"""`repair`: corrected files for a damaged store, made next to it, and put in place if asked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options, typed_command
from jobs.command.configuration import verb
from jobs.command.engine import StoreRun, engine_option
from jobs.command.options import (
    StorePlace,
    StoreSettings,
    flag,
    label_option,
    option,
    options_as_words,
    settings_and_rate_options,
    store_options,
)
from jobs.command.places import LAKE, OUTPUT_DIRECTORY, refuse_nonempty_directory
from jobs.console.amounts import counted
from jobs.console.process import tool_command
from jobs.console.result import ExitCode, Result, Severity, Step
from jobs.diagnosis.broker_start import start_lines
from jobs.repair.journal import JOURNAL
from jobs.verbs.rebuild import refuse_running_broker

if TYPE_CHECKING:
    from jobs.repair.run import RepairSummary
    from jobs.verify.verdict import Verdict

_SHOWN = 5
_NOT_OF_INGEST = {"--consume-queue-size", "--time-zone"}
_CONF = ("--broker-conf", "BROKER.CONF")


@verb(
    "repair /data/rocketmq/store --out /data/repair --lake /data/lake",
    "repair STORE --out DIR --lake LAKE --apply",
    "repair STORE --out DIR --undo",
)
def repair(  # noqa: PLR0913 - one argument an option
    *,
    place: StorePlace = store_options,
    out: Path = option(
        "DIR",
        "The directory for new files and the journal: empty, new, or that of an earlier repair.",
        OUTPUT_DIRECTORY,
        required=True,
    ),
    lake: str | None = option("LAKE", "The lake from which lost and damaged segments are restored.", LAKE),
    broker: str | None = label_option,
    applies: bool = flag("Install the files in the store of the stopped broker; keep a backup.", names="--apply"),
    bridges: bool = flag(
        "Write marked records over lost bytes of the log, so that the broker keeps the messages after them.",
        names="--bridge",
    ),
    deliver_empty: bool = flag(
        "With --bridge: also bridge ranges where consumers receive an all-zero message for a lost one."
    ),
    older: bool = flag(
        "Also restore segments from LAKE that precede the first segment of STORE, if they were lost and had not "
        "expired."
    ),
    accepted: tuple[str, ...] = option(
        "FILE",
        "Rebuild FILE, which the plan calls undecided, from the log, if you know that the log is right. May be "
        "repeated.",
        names="--accept",
        multiple=True,
    ),
    undoes: bool = flag("Restore the files that repairs with this DIR have replaced.", names="--undo"),
    settings: StoreSettings = settings_and_rate_options,
    engine: str = engine_option,
    answer: Answer = answer_options,
) -> ExitCode:
    """
    Write corrected files for STORE into DIR, and print the plan: segments from LAKE, queues, index files, checkpoint.

    Without --apply, STORE is only read. With --apply, the command also installs the files in STORE, while it holds the
    broker's lock, and verifies STORE again. --undo restores the replaced files.
    """
    if deliver_empty and not bridges:
        raise click.UsageError("--deliver-empty belongs to --bridge")
    if applies and undoes:
        raise click.UsageError("--apply and --undo exclude each other")
    if applies or undoes:
        refuse_running_broker(place.store)
    if undoes:
        return _undone(place.store, out, answer)
    if not (out / JOURNAL).exists():
        refuse_nonempty_directory(str(out))
    run = StoreRun(place, engine, settings.max_rate, warm="jobs.repair.run")
    from jobs.repair.run import RepairRequest, repair

    request = RepairRequest(
        place.store,
        out.absolute(),
        run.lake(lake) if lake is not None else None,
        broker or run.conf.broker_name,
        settings.given_settings(run.conf),
        applies,
        bridges,
        deliver_empty,
        older,
        frozenset(accepted),
        commitlog=run.commitlog,
        care=run.care,
        options=options_as_words(place, settings),
    )
    summary = repair(request, run.workers)
    next_lines = _next(summary, place.store, applies=applies, has_lake=lake is not None)
    return answer.print_outcome(summary, [*summary.lines(_SHOWN), *next_lines, *start_lines(summary.start)])


def _next(summary: "RepairSummary", store: str, *, applies: bool, has_lake: bool) -> Iterator[str]:
    if summary.withheld is not None:
        yield from (
            _about_bridges(summary)
            if summary.delivered
            else _to_safety(store, summary.found.options, has_lake=has_lake)
        )
        return
    if summary.asks_for_sizes:
        options: tuple[str, ...] = _CONF
        words = "with the configuration of the broker, which says how large its files are"
        if summary.defaults:
            words, options = "if the broker has RocketMQ's defaults; else with its own numbers", tuple(summary.defaults)
        yield from Step(words, (typed_command(*options),)).lines()
        return
    if summary.asks_for_release:
        yield from Step("with the release of the broker", (typed_command("--release", "X.Y.Z"),)).lines()
    if summary.files and applies:
        yield from Step("undo the repair, if it does not help", (typed_command("--undo", besides="--apply"),)).lines()
    elif summary.files:
        yield from Step("install it in the store, with the broker stopped", (typed_command("--apply"),)).lines()
    elif not summary.blanks:
        yield from _by_hand(summary.found, has_lake=has_lake)
    yield from _about_bridges(summary)
    if summary.blanks:
        words = "if consumers shall get the messages of the log that blanks in a queue keep from them"
        yield from Step(
            words, (typed_command(*(word for name in summary.blanks for word in ("--accept", name))),)
        ).lines()


def _about_bridges(summary: "RepairSummary") -> Iterator[str]:
    if summary.delivered:
        yield from Step("accept what consumers receive", (typed_command("--deliver-empty"),)).lines()
    elif summary.at_risk:
        messages = counted(summary.at_risk, "whole message")
        words = (
            f"keep {messages} that the broker deletes when it starts, by marked records over the lost bytes before them"
        )
        yield from Step(words, (typed_command("--bridge"),)).lines()


def _to_safety(store: str, options: Sequence[str], *, has_lake: bool) -> list[str]:
    keep = Step("another lake may have the lost messages, or a slave: ingest it into a lake")
    if not has_lake:
        words = "save the messages; a lake that has the lost ones can restore them (--lake)"
        pairs = zip(options[::2], options[1::2], strict=True)
        again = " ".join(quote(word) for pair in pairs if pair[0] not in _NOT_OF_INGEST for word in pair)
        keep = Step(words, (" ".join(filter(None, (tool_command(), "ingest", quote(store), again, "--lake LAKE"))),))
    words = "or write marked records over the lost ranges, so that the broker keeps the rest"
    return [*keep.lines(), *Step(words, (typed_command("--bridge"),)).lines("")]


def _by_hand(found: "Verdict", *, has_lake: bool) -> Iterator[str]:
    from jobs.verify.verdict import advice

    for step, _ in advice(found):
        repair = f"{tool_command()} repair "
        commands = [one for one in step.commands if not one.startswith(repair) or ("--lake" in one and not has_lake)]
        if commands:
            yield from Step(step.words, tuple(commands)).lines()


def _undone(store: str, out: Path, answer: Answer) -> ExitCode:
    from jobs.repair.run import undo

    done = undo(store, out.absolute())
    result = Result(Severity.NOT_VERIFIED, f"{counted(len(done), 'part')} undone", answer.seconds, verdict="done")
    answer.print_json_or_lines({"store": store, "undone": done}, [store, *(f"  {line}" for line in done)], result)
    return ExitCode.CLEAN
