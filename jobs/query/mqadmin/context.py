"""The source and the output of a line of mqadmin."""

from typing import NamedTuple

from jobs.query.output import Printer
from jobs.query.source import Source


class Context(NamedTuple):
    """The source and the printer of one command."""

    source: Source
    printer: Printer
    broker: str | None = None  # its name, where it is known
    now_ms: int | None = None  # for windows that count from now
    any_host: bool = False
