"""How a verb answers: as text or as JSON. With it every verb ends: `--json`, `--quiet`, `--config`, `--show-config`."""

import json
from collections.abc import Callable
from typing import NamedTuple

import click

from jobs.command.configuration import config_option
from jobs.command.options import bundled, composed, json_option, quiet_option
from jobs.console.log import say


class Answer(NamedTuple):
    """How a verb answers, as the command line says."""

    as_json: bool = False
    quiet: bool = False

    def give(self, values: object, text: str, say: Callable[[str], object] = say, *, indent: int | None = 1) -> None:
        """Print *values* as JSON, or else *say* the text; by default on standard error: what was made is the answer."""
        if self.as_json:
            click.echo(json.dumps(values, indent=indent))
        elif not self.quiet:
            say(text)


answer_options = composed(bundled("answer", Answer, json_option, quiet_option), config_option)
