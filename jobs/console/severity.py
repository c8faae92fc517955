"""
How serious a fact is: the one vocabulary of all verbs, reports and exit codes.

A verb that looks at several things names the worst of them (`worst_of`) by the word and in the colour of all verbs.
"""

from abc import abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import Self

import click

from jobs.console.exit_codes import ExitCode


class Severity(Enum):
    """How serious a fact about a store is, the worst last; the value is the word for people and scripts."""

    # Everything was compared, and agrees.
    HEALTHY = "healthy", "green", ExitCode.CLEAN
    # Nothing wrong was seen, but only `verify` could tell.
    NOT_VERIFIED = "not verified", "cyan", ExitCode.CLEAN
    # A number: how much a running broker, or one that was killed, has not dispatched yet.
    BEHIND = "behind", "blue", ExitCode.CLEAN
    # Bytes, units or entries are missing.
    GAP = "gap", "yellow", ExitCode.DAMAGE
    # Existing bytes cannot be those that were written.
    DAMAGE = "damage", "red", ExitCode.DAMAGE
    # Queues or index files do not say what the log says.
    CONTRADICTION = "contradiction", "magenta", ExitCode.MISMATCH
    # An error of access or settings, which says nothing about the store.
    NOT_ACCESSIBLE = "not accessible", "bright_black", ExitCode.FAILED

    _value_: str
    colour: str  # in a terminal and in a report
    exit_code: ExitCode  # of a command that found this, and nothing worse

    def __new__(cls, word: str, colour: str, exit_code: ExitCode) -> Self:
        """Make a member whose value is the word alone."""
        member = object.__new__(cls)
        member._value_, member.colour, member.exit_code = word, colour, exit_code
        return member

    @property
    def rank(self) -> int:
        """The place in the order, 0 for nothing wrong."""
        return list(Severity).index(self)

    @property
    def is_alarm(self) -> bool:
        """Whether someone has to do something."""
        return self.exit_code is not ExitCode.CLEAN

    def styled(self, text: str | None = None) -> str:
        """Return *text*, or the word itself, in the colour; `click.echo` drops it where no terminal is."""
        return click.style(self.value if text is None else text, fg=self.colour, bold=self.is_alarm or None)

    def __str__(self) -> str:
        return str(self.value)


class Judged:
    """The result of a command, as serious as the worst that it met."""

    __slots__ = ()

    @property
    @abstractmethod
    def severity(self) -> Severity:
        """The worst severity met."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command: by the findings, not by the work done."""
        return self.severity.exit_code


def worst_of(severities: Iterable[Severity]) -> Severity:
    """Return the worst of *severities*; healthy where there are none."""
    return max(severities, key=lambda severity: severity.rank, default=Severity.HEALTHY)


def worst_met(least: Severity = Severity.NOT_VERIFIED, **met: object) -> Severity:
    """Return the worst severity whose keyword argument is true, else *least*."""
    return worst_of([least, *(Severity[name.upper()] for name, found in met.items() if found)])
