"""What `--dry-run` of the verbs that write a new directory has in common: say it, in one form or the other."""

import json
from collections.abc import Iterator
from typing import Any, Protocol

import click

from jobs.console.exit_codes import ExitCode
from jobs.console.log import say


class Foreseen(Protocol):
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


def tell(foreseen: Foreseen, *, as_json: bool, quiet: bool) -> ExitCode:
    """Say what would be done, and return what the run would."""
    if as_json:
        click.echo(json.dumps(foreseen.describe(), indent=1))
    elif not quiet:
        say("\n".join(foreseen.lines()))
    return foreseen.exit_code
