"""The options that the rebuilding verbs share, and how files are put into a store."""

from collections.abc import Callable, Iterable, Iterator
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import click

from jobs.command.answer import Answer
from jobs.command.failures import shown_as_usage
from jobs.command.options import bundled
from jobs.console.exit_codes import ExitCode
from jobs.console.lines import NOT_DONE, headed
from jobs.console.program import program
from jobs.store.beside_broker import broker_process

if TYPE_CHECKING:
    from jobs.rebuild.dry_run import DryRun

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


class Plan(Protocol):
    """Changes to a store, before they are made."""

    def describe(self) -> Iterator[str]:
        """Say it, a line each."""


_Plan = TypeVar("_Plan", bound=Plan)


def refuse_beside_broker(store: str) -> None:
    """Refuse at once what could not be installed in the end."""
    if broker_process(store) is not None:
        raise click.UsageError(f"{store}: the broker runs (it holds the file `lock`); stop it first")


def put_in_place(
    store: str, plan: Callable[[], _Plan], install: Callable[[_Plan], object], answer: Answer, *, dry_run: bool
) -> bool:
    """Print the planned changes, make them while the broker cannot start, and return whether they were made."""
    from jobs.rebuild.install import RefusedError, broker_kept_out

    with shown_as_usage(RefusedError, before="not installed: "), broker_kept_out(store):
        planned = plan()
        answer.add(headed(NOT_DONE if dry_run else "INSTALL", planned.describe()))
        if not dry_run:
            install(planned)
    return not dry_run


def next_after_install(store: str) -> Iterator[str]:
    """Yield the lines that say what to do after files were put into a store."""
    yield "  NEXT       # compare all of it, before the broker starts"
    yield f"             {program()} verify {quote(store)}"


def replaced_lines(places: Iterable[str], *, installed: bool) -> Iterator[str]:
    """Yield a line for each file of the store that a new one takes the place of."""
    yield from (f"  {'REPLACED' if installed else 'WOULD REPLACE'} {place} of the store" for place in places)
