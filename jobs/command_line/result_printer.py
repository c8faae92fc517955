"""
How a command prints its result, as text or JSON, and the options `--json`, `--quiet` and `--verbose`.

Results go to standard output, progress and errors to standard error. The last line of a text is the result.
"""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from shlex import quote
from time import monotonic

import click

from jobs.command_line.engine import get_chosen_engine
from jobs.console.lines import line_width_limit, printable_with_colors, wrap_line
from jobs.console.log import mask_secrets
from jobs.console.process import tool_command
from jobs.console.progress import reset_one_time_work
from jobs.console.result import ExitCode, RatedOutcome, Result, Severity
from jobs.options.declaration import bundle, flag
from jobs.options.values import json_option, quiet_option
from jobs.store.release import ASSUMED, DETECTED

COMMAND_LINE_META_KEY = "rmq-lake.typed"  # key in a context's meta: the arguments after the program name
_WORDS = {severity.value.upper(): severity for severity in Severity}
# `Determined.origin_text` of a release: one word, then up to a dozen marks to the end of the line, which are left out.
_MARKS = re.compile(rf"(RocketMQ .*\((?:{DETECTED}|{ASSUMED})): .*\)$")


@dataclass(frozen=True, slots=True)
class ResultPrinter:
    """Prints the result of a command, in the form that the command line selects; also measures the time."""

    as_json: bool = json_option()
    quiet: bool = quiet_option()
    verbose: bool = flag("Also list the evidence for the broker's release.", is_shared=True)
    start_time: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        reset_one_time_work()

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return round(monotonic() - self.start_time, 3)

    def print_json_or_lines(
        self, values: object, lines: Iterable[str], result: Result | None = None, *, indent: int | None = 1
    ) -> ExitCode:
        """
        Print *values* as JSON, with the seconds unless they have them, and the engine; or *lines* and the result.

        Returns the exit code for the severity of the result.
        """
        if self.as_json:
            if isinstance(values, dict):
                choice = get_chosen_engine()
                seconds = {"seconds": result.seconds} if result is not None and "seconds" not in values else {}
                values = {**values, **seconds, **({"engine": choice.to_dict()} if choice is not None else {})}
            click.echo(mask_secrets(json.dumps(values, indent=indent)))
        elif not self.quiet:
            command = click.get_current_context().info_name or ""
            self.print_lines([*lines, *([result.line(command)] if result is not None else [])])
        return ExitCode.CLEAN if result is None else result.severity.exit_code

    def print_outcome(self, outcome: RatedOutcome, lines: Iterable[str], *, with_byte_count: bool = False) -> ExitCode:
        """Print the outcome of a command, as JSON or as *lines* and the result, and return its exit code."""
        result = outcome.result(self.seconds)
        self.print_json_or_lines(
            {**outcome.to_dict(), **({"bytes": result.size} if with_byte_count else {})}, lines, result
        )
        return outcome.exit_code

    def print_first_lines(self, lines: Iterable[str]) -> None:
        """Print the first *lines* of a text, before the result is known."""
        if not (self.as_json or self.quiet):
            self.print_lines(lines)

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print more lines of text; to standard error if standard output is a JSON document."""
        width = line_width_limit(sys.stderr if self.as_json else sys.stdout)
        for line in lines:
            text = line if self.verbose else _MARKS.sub(r"\1)", line)
            word = text.strip().partition(" ")[0]
            if word in _WORDS:
                text = text.replace(word, _WORDS[word].style(word), 1)
            text = printable_with_colors(mask_secrets(text))  # `click.echo` drops colors outside a terminal
            for piece in wrap_line(text, width):
                click.echo(piece, err=self.as_json)


def typed_command_text(*added_words: str, dropped_word: str = "", replacement: tuple[str, str] = ("", "")) -> str:
    """Return the command as typed, ready to paste, with words added, an option dropped, or a value replaced."""
    context = click.get_current_context()
    words = [
        word for word in context.meta.get(COMMAND_LINE_META_KEY, [context.info_name or ""]) if word != dropped_word
    ]
    old, new = replacement
    values = {old: new, f"--out={old}": f"--out={new}"}
    return " ".join([tool_command(), *map(quote, (*(values.get(word, word) for word in words), *added_words))])


verbose_printer_options = bundle(ResultPrinter)  # for commands that print the evidence for the broker's release
printer_options = bundle(ResultPrinter, verbose=False)
