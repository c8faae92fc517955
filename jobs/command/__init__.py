"""The command line: options, configuration, errors, and the table of commands."""

from jobs.command.table import VERBS, Verb

__all__ = [
    "VERBS",
    "Verb",
]
