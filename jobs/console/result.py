"""
What a command found and how it ended: its exit code, how serious the facts are, its last line, and the next steps.

One vocabulary for all verbs, reports and scripts. A verb that looks at several things names the worst of them
(`worst_of`) by the word and in the colour of all verbs.
"""

from abc import abstractmethod
from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import NamedTuple, Self

import click

from jobs.console.amounts import duration_text, rate_text, size_text
from jobs.console.progress import seconds_made_once

_LEAST_ONCE_S = 1.0
_LEAST_FOR_A_RATE = 1 << 20  # bytes: fewer take no longer than the start does


class ExitCode(IntEnum):
    """How a command ended: part of the contract, for scripts branch on it."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 3
    MISMATCH = 4
    NOT_FOUND = 5
    HELD = 6
    INTERRUPTED = 130


class RequestError(ValueError):
    """A request that cannot be met as it was made: the command ends with USAGE, and the message says what to change."""


class AlreadyRunningError(Exception):
    """Another process does this work: the command ends with HELD."""


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


class Result(NamedTuple):
    """The work done, its amount and speed, and the severity of the findings."""

    severity: Severity
    what: str  # done: `65 messages, 168 index entries`
    seconds: float
    size: int = 0  # bytes of the log that were read; 0 where none were
    verdict: str = ""  # where the word of the severity says too much or too little

    @property
    def amount(self) -> str:
        """Work, amount and speed in words."""
        size = f", {size_text(self.size)}" if self.size else ""
        once = min(seconds_made_once(), self.seconds)
        rate = f", {rate_text(self.size, self.seconds - once)}" if self.size >= _LEAST_FOR_A_RATE else ""
        compiling = f" ({duration_text(once)} of them compiling, once)" if once >= _LEAST_ONCE_S else ""
        return f"{self.what}{size} in {duration_text(self.seconds)}{compiling}{rate}"

    @property
    def word(self) -> str:
        """The verdict."""
        return self.verdict or self.severity.value

    def line(self, verb: str) -> str:
        """Return the last line of a command; `click.echo` drops the colour where no terminal is."""
        return f"{verb}: {self.severity.styled(self.word)}: {self.amount}"


class Step(NamedTuple):
    """One thing to do: in words, and as commands to paste."""

    words: str
    commands: tuple[str, ...] = ()

    def lines(self, title: str = "NEXT") -> list[str]:
        """Return the lines of an answer: the words as a shell's comment, then the commands."""
        return [f"  {title:<10} # {self.words}", *(f"{'':<13}{command}" for command in self.commands)]
