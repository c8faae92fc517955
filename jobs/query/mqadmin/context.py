"""The source and the output of a line of mqadmin."""

from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.query.output import Printer
from jobs.query.source import Answer, Reason, Source


class Context(NamedTuple):
    """The source and the printer of one command."""

    source: Source
    printer: Printer
    broker: str | None = None  # its name, where it is known
    now_ms: int | None = None  # for windows that count from now
    any_host: bool = False

    def finish(self, answer: Answer | None = None) -> ExitCode:
        """End a command whose rows, or those of *answer*, are printed."""
        return self.printer.finish(answer or Answer(), self.source)

    def refuse(self, reason: Reason) -> ExitCode:
        """End a command without an answer."""
        return self.finish(Answer(reason=reason))
