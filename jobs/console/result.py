"""The result of a command in one line, and the next steps: the same in a terminal and in a report."""

from typing import NamedTuple

from jobs.console.amounts import duration_text, rate_text, size_text
from jobs.console.progress import seconds_made_once
from jobs.console.severity import Severity

_LEAST_ONCE_S = 1.0
_LEAST_FOR_A_RATE = 1 << 20  # bytes: fewer take no longer than the start does


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
