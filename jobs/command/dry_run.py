"""What `--dry-run` of the verbs that write a new directory has in common: say it, as text or as JSON."""

import json
from collections.abc import Iterator
from typing import Any, Protocol

import click

from jobs.console.exit_codes import ExitCode
from jobs.console.log import say


class DryRun(Protocol):
    """What a run would do."""

    @property
    def exit_code(self) -> ExitCode:
        """How the run would end, as far as that is known without it."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the form that scripts read."""
        ...

    def lines(self) -> Iterator[str]:
        """Yield what people read."""
        ...


def say_dry_run(dry_run: DryRun, *, as_json: bool, quiet: bool) -> ExitCode:
    """Say what would be done, and return what the run would."""
    if as_json:
        click.echo(json.dumps(dry_run.describe(), indent=1))
    elif not quiet:
        say("\n".join(dry_run.lines()))
    return dry_run.exit_code
