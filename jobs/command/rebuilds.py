"""The options that the rebuilding verbs share, and how files are put into a store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from jobs.command.answer import Answer, typed
from jobs.command.failures import shown_as_usage
from jobs.command.options import bundled
from jobs.console.exit_codes import ExitCode
from jobs.console.lines import NOT_DONE, headed
from jobs.console.program import program
from jobs.store.beside_broker import broker_process

if TYPE_CHECKING:
    from jobs.rebuild.dry_run import DryRun
    from jobs.rebuild.install import Installation

_Command = TypeVar("_Command", bound=Callable[..., object])


class RebuildForm(NamedTuple):
    """Which files are rebuilt, and whether they are written and installed, as given on the command line."""

    lost_only: bool
    wants_install: bool
    dry_run: bool

    @property
    def only_says(self) -> bool:
        """Whether nothing is written."""
        return self.dry_run and not self.wants_install


def rebuild_options(kept: str) -> Callable[[_Command], _Command]:
    """Return the options; *kept* says what `--lost-only` keeps."""
    return bundled(
        "how",
        RebuildForm,
        click.option("--lost-only", is_flag=True, help=kept),
        click.option("--install", "wants_install", is_flag=True, help="Put the files into the stopped broker's store."),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Say what would be built, and write nothing; with --install, build into DIR, and leave the store "
            "as it is.",
        ),
    )


def say_dry_run(would: "DryRun", answer: Answer, seconds: float) -> ExitCode:
    """Print the dry run, and return the exit code that the rebuild would end with."""
    answer.give({**would.describe(), "seconds": seconds}, would.lines(), would.result(seconds))
    return would.exit_code


def refuse_beside_broker(store: str) -> None:
    """Refuse at once to change the store of a running broker."""
    if broker_process(store) is not None:
        raise click.UsageError(f"{store}: the broker runs (it holds the file `lock`); stop it first")


def put_in_place(store: str, plan: Callable[[], "Sequence[Installation]"], answer: Answer, *, dry_run: bool) -> bool:
    """Print the planned changes, make them while the broker cannot start, and return whether they were made."""
    from jobs.rebuild.install import RefusedError, broker_kept_out, install

    with shown_as_usage(RefusedError, before="not installed: "), broker_kept_out(store):
        plans = plan()
        lines = [line for one in plans for line in one.describe()]
        answer.add(headed(NOT_DONE if dry_run else "INSTALL", lines))
        for one in plans if not dry_run else ():
            install(one)
    return not dry_run


def next_after_install(store: str) -> Iterator[str]:
    """Yield the lines that say what to do after files were put into a store."""
    yield "  NEXT       # compare all of it, before the broker starts"
    yield f"             {program()} verify {quote(store)}"


def next_after_build(out: str, *more: str) -> Iterator[str]:
    """Yield the lines that say how files that are only in *out* come into the store: the same command, and *more*."""
    yield "  NEXT       # have them put into the store, with the broker stopped"
    new = out.rstrip("/") + "-2"
    yield f"             {typed(*more, '--install', renamed=(out, new))}"


def replaced_lines(places: Iterable[str], *, installed: bool) -> Iterator[str]:
    """Yield a line for each file of the store that a new one takes the place of."""
    yield from (f"  {'REPLACED' if installed else 'WOULD REPLACE'} {place} of the store" for place in places)
