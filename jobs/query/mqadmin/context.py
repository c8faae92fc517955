"""The source and the output of a line of mqadmin."""

from typing import NamedTuple

from jobs.console.exit_codes import ExitCode
from jobs.query import reasons
from jobs.query.output import Printer
from jobs.query.source import Answer, Reason, Source


class Context(NamedTuple):
    """The source and the printer of one command."""

    source: Source
    printer: Printer
    now_ms: int | None = None  # for windows that count from now
    any_host: bool = False

    @property
    def broker_name(self) -> str:
        """The broker's name as it is printed."""
        return self.source.broker or "broker"

    def other_broker(self, named: str) -> ExitCode | None:
        """End a command about a broker that this one is not; None where it is, or may be."""
        broker = self.source.broker
        return None if broker in {None, named} else self.printer.empty(reasons.other_name(str(broker), named))

    def finish(self, answer: Answer | None = None) -> ExitCode:
        """End a command whose rows, or those of *answer*, are printed."""
        return self.printer.finish(answer or Answer(), self.source)

    def refuse(self, reason: Reason) -> ExitCode:
        """End a command without an answer."""
        return self.finish(Answer(reason=reason))
