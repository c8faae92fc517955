"""The options that the rebuilding verbs share, and how files are put into a store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from jobs.command.answer import Answer, typed
from jobs.command.options import StorePlace, bundled
from jobs.console.exit_codes import ExitCode
from jobs.console.lines import NOT_DONE, headed
from jobs.console.program import program
from jobs.console.result import Result, Step
from jobs.launch.failures import shown_as_usage
from jobs.storage.locations import local_path
from jobs.store.beside_broker import broker_process

if TYPE_CHECKING:
    from jobs.rebuild.install import Installation
    from jobs.store.beside_broker import HeldStore

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
        click.option(
            "--install", "wants_install", is_flag=True, help="Install the files in the store of the stopped broker."
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print which files would be built, and write nothing; with --install, build into DIR, and leave the "
            "store unchanged.",
        ),
    )


def refuse_beside_broker(store: str) -> None:
    """Refuse to change the store of a running broker."""
    if broker_process(store) is not None:
        raise click.UsageError(f"{store}: the broker runs (it holds the file `lock`); stop it first")


def held_for_install(place: StorePlace, out: str, how: RebuildForm) -> "AbstractContextManager[HeldStore | None]":
    """Return a block in which the store's broker cannot start; one that does nothing where nothing is installed."""
    if not how.wants_install or how.dry_run:
        return nullcontext()
    return _held(place, out)


@contextmanager
def _held(place: StorePlace, out: str) -> Iterator["HeldStore"]:
    from jobs.store.beside_broker import RefusedError, hold_store

    with (
        shown_as_usage(RefusedError, before="not installed: "),
        hold_store(place.store, Path(local_path(out)), place.log_directories(place.conf())) as held,
        held.explaining_errors(),
    ):
        yield held


def put_in_place(plan: Callable[[], "Sequence[Installation]"], answer: Answer, held: "HeldStore | None") -> bool:
    """Print the planned changes, make them in a store that is *held*, and return whether they were made."""
    from jobs.rebuild.install import install
    from jobs.store.beside_broker import RefusedError

    with shown_as_usage(RefusedError, before="not installed: "):
        plans = plan()
        lines = [line for one in plans for line in one.describe(is_done=held is not None)]
        answer.add(headed(NOT_DONE if held is None else "INSTALL", lines or ["nothing to put in place"]))
        if held is None:
            answer.add(f"  NOTE cannot be put in place now: {reason}" for one in plans for reason in one.obstacles)
            return False
        for one in plans:
            held.refuse_changes()
            try:
                install(one)
            finally:  # an error after the exchange must not be explained by the files that this command has put there
                held.installed |= one.changed
    return True


class Rebuilt(NamedTuple):
    """The outcome of a rebuild, for the end of its answer."""

    store: str
    out: str
    replaced: Sequence[str]  # files of the store that new ones take the place of
    installed: bool
    to_install: Sequence[str] | None  # further options of the command that puts the files in place; None: there is none
    options: Sequence[str] = ()  # of the store, as given


def give_rebuilt(rebuilt: Rebuilt, values: Mapping[str, object], result: Result, answer: Answer) -> ExitCode:
    """Print the end of the answer: replaced files, the command to run next, the result; return the exit code."""
    done = "REPLACED" if rebuilt.installed else "WOULD REPLACE"
    lines = [f"  {done} {place} of the store" for place in rebuilt.replaced]
    if rebuilt.installed:
        verify = " ".join([program(), "verify", *map(quote, (rebuilt.store, *rebuilt.options))])
        lines += Step("compare all of it, before the broker starts", (verify,)).lines()
    elif rebuilt.to_install is not None:
        again = typed(*rebuilt.to_install, "--install", renamed=(rebuilt.out, rebuilt.out.rstrip("/") + "-2"))
        lines += Step("have them put into the store, with the broker stopped", (again,)).lines()
    told = {"installed": rebuilt.installed, "severity": result.severity.value}
    answer.give({**values, **told}, lines, result)
    return result.severity.exit_code
