"""The result of a command: exit code, severity (of all commands, reports and scripts), last line, and next steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple, Self

from jobs.console.amounts import duration_text, rate_text, size_text
from jobs.console.lines import styled_text
from jobs.console.progress import seconds_of_one_time_work

_LEAST_ONCE_S = 1.0
_LEAST_FOR_A_RATE = 1 << 20  # bytes: reading fewer takes no longer than the start


class ExitCode(IntEnum):
    """The exit code of a command; scripts rely on these values."""

    CLEAN = 0
    FAILED = 1
    USAGE = 2
    DAMAGE = 3
    MISMATCH = 4
    NOT_FOUND = 5
    HELD = 6
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141  # as a program that SIGPIPE ends


class RequestError(ValueError):
    """A request that cannot be carried out: the command ends with USAGE, and the message says what to change."""


class OtherRunActiveError(Exception):
    """Another run of the same store is active, or was faster: the command ends with HELD."""


class Severity(Enum):
    """How serious a fact about a store is, in ascending order; the value is the word for users and scripts."""

    # Everything was compared, and agrees.
    HEALTHY = "healthy", "green", ExitCode.CLEAN
    # No problem was found, but only `verify` can confirm that there is none.
    NOT_VERIFIED = "not verified", "cyan", ExitCode.CLEAN
    # With a number: the amount that a running or killed broker has not dispatched yet.
    BEHIND = "behind", "blue", ExitCode.CLEAN
    # Bytes, units or entries are missing.
    GAP = "gap", "yellow", ExitCode.DAMAGE
    # Existing bytes cannot be those that were written.
    DAMAGE = "damage", "red", ExitCode.DAMAGE
    # Queues or index files contradict the log.
    CONTRADICTION = "contradiction", "magenta", ExitCode.MISMATCH
    # An error of access or settings, which is no evidence about the store.
    NOT_ACCESSIBLE = "not accessible", "bright_black", ExitCode.FAILED

    _value_: str
    color: str  # the color in a terminal and in a report
    exit_code: ExitCode  # the exit code of a command that found this, and nothing worse

    def __new__(cls, word: str, color: str, exit_code: ExitCode) -> Self:
        """Create a member; its value is the word."""
        member = object.__new__(cls)
        member._value_, member.color, member.exit_code = word, color, exit_code
        return member

    @property
    def rank(self) -> int:
        """The position in the order; 0 is healthy."""
        return list(Severity).index(self)

    @property
    def is_alarm(self) -> bool:
        """Whether the user must act."""
        return self.exit_code is not ExitCode.CLEAN

    def style(self, text: str | None = None) -> str:
        """Return *text*, or the severity's word, in a color for `ResultPrinter.print_lines`."""
        return styled_text(self.value if text is None else text, self.color, bold=self.is_alarm)

    def __str__(self) -> str:
        return str(self.value)


class RatedOutcome(ABC):
    """A result whose severity is the worst that the command met."""

    __slots__ = ()

    @property
    @abstractmethod
    def severity(self) -> Severity:
        """The worst severity met."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command; it depends on the findings, not on the work done."""
        return self.severity.exit_code

    @abstractmethod
    def to_dict(self) -> Mapping[str, object]:
        """Return the JSON form."""

    @abstractmethod
    def result(self, seconds: float) -> "Result":
        """Return the last line of the text, for a command that took *seconds*."""


def worst_severity(severities: Iterable[Severity]) -> Severity:
    """Return the worst of *severities*; healthy if there are none."""
    return max(severities, key=lambda severity: severity.rank, default=Severity.HEALTHY)


def worst_severity_met(minimum: Severity = Severity.NOT_VERIFIED, **met: object) -> Severity:
    """Return the worst severity whose keyword argument is true, else *minimum*."""
    return worst_severity([minimum, *(Severity[name.upper()] for name, found in met.items() if found)])


class Result(NamedTuple):
    """The work that a command did, its amount and speed, and the severity of the findings."""

    severity: Severity
    work_done: str  # such as `65 messages, 168 index entries`
    seconds: float
    size: int = 0  # bytes of the log that were read, or 0
    verdict: str = ""  # replaces the word of the severity if it is not accurate

    @property
    def amount_text(self) -> str:
        """The work, the amount and the speed, as text."""
        size = f", {size_text(self.size)}" if self.size else ""
        once = min(seconds_of_one_time_work(), self.seconds)
        rate = f", {rate_text(self.size, self.seconds - once)}" if self.size >= _LEAST_FOR_A_RATE else ""
        compiling = f", including {duration_text(once)} of one-time compilation" if once >= _LEAST_ONCE_S else ""
        return f"{self.work_done}{size} ({duration_text(self.seconds)}{compiling}{rate})"

    @property
    def verdict_text(self) -> str:
        """The verdict."""
        return self.verdict or self.severity.value

    def line(self, command: str) -> str:
        """Return the last line of a command; `click.echo` drops the color outside a terminal."""
        return f"{command}: {self.severity.style(self.verdict_text)}: {self.amount_text}"


class RecommendedStep(NamedTuple):
    """A recommended action: a description, and commands to paste."""

    description: str
    commands: tuple[str, ...] = ()

    def lines(self, title: str = "NEXT") -> list[str]:
        """Return the lines to print: the description as a shell comment, then the commands."""
        return [f"  {title:<10} # {self.description}", *(f"{'':<13}{command}" for command in self.commands)]
