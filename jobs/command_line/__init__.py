"""The command line: options, configuration, errors, and the table of commands."""

from jobs.command_line.table import COMMAND_TABLE, CommandEntry

__all__ = [
    "COMMAND_TABLE",
    "CommandEntry",
]
