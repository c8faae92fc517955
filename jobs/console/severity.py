"""
How serious a fact is: the one vocabulary of all verbs, reports and exit codes.

A verb that looks at several things says the worst of them (`worst_of`), in the word and the colour that the others use.
"""

from abc import abstractmethod
from collections.abc import Iterable
from enum import Enum

import click

from jobs.console.exit_codes import ExitCode


class Severity(Enum):
    """How serious a fact about a store is, the worst last; the value is the word for people and scripts."""

    HEALTHY = "healthy"  # everything was compared, and agrees
    NOT_VERIFIED = "not verified"  # nothing wrong was seen, but only `verify` could tell
    BEHIND = "behind"  # a number: what a running broker, or one that was killed, has not dispatched yet
    GAP = "gap"  # bytes, units or entries that are not there
    DAMAGE = "damage"  # bytes that are there and cannot be what was written
    CONTRADICTION = "contradiction"  # queues or index files that do not say what the log says
    NOT_ACCESSIBLE = "not accessible"  # an error of access or settings: says nothing about the store

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that found this, and nothing worse."""
        return _EXIT_CODES[self]

    @property
    def colour(self) -> str:
        """The colour in a terminal and in a report."""
        return _COLOURS[self]

    @property
    def rank(self) -> int:
        """The place in the order, 0 for nothing wrong."""
        return _ORDER.index(self)

    @property
    def is_alarm(self) -> bool:
        """Whether someone has to do something."""
        return self.exit_code is not ExitCode.CLEAN

    def styled(self, text: str | None = None) -> str:
        """Return *text*, or the word itself, in the colour; `click.echo` drops it where no terminal is."""
        return click.style(self.value if text is None else text, fg=self.colour, bold=self.is_alarm or None)

    def __str__(self) -> str:
        return self.value


_ORDER = tuple(Severity)

_EXIT_CODES = {
    Severity.HEALTHY: ExitCode.CLEAN,
    Severity.NOT_VERIFIED: ExitCode.CLEAN,
    Severity.BEHIND: ExitCode.CLEAN,
    Severity.GAP: ExitCode.DAMAGE,
    Severity.DAMAGE: ExitCode.DAMAGE,
    Severity.CONTRADICTION: ExitCode.MISMATCH,
    Severity.NOT_ACCESSIBLE: ExitCode.FAILED,
}

_COLOURS = {
    Severity.HEALTHY: "green",
    Severity.NOT_VERIFIED: "cyan",
    Severity.BEHIND: "blue",
    Severity.GAP: "yellow",
    Severity.DAMAGE: "red",
    Severity.CONTRADICTION: "magenta",
    Severity.NOT_ACCESSIBLE: "bright_black",
}


class Judged:
    """The result of a command, as serious as the worst that it met."""

    __slots__ = ()

    @property
    @abstractmethod
    def severity(self) -> Severity:
        """The worst severity met."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command: what was found, not whether its work was done."""
        return self.severity.exit_code


def worst_of(severities: Iterable[Severity]) -> Severity:
    """Return the worst of *severities*; healthy where there are none."""
    return max(severities, key=lambda severity: severity.rank, default=Severity.HEALTHY)


def worst_met(least: Severity = Severity.NOT_VERIFIED, **met: object) -> Severity:
    """Return the worst severity whose keyword argument is true, else *least*."""
    return worst_of([least, *(Severity[name.upper()] for name, found in met.items() if found)])
