"""The table of commands. It imports only the standard library: commands are known before anything heavy is loaded."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    import click


class CommandEntry(NamedTuple):
    """One command of the tool."""

    name: str
    entry_point: str  # module and function
    uses_spark: bool  # it runs on Spark if the user selects it
    help: str  # one line in the list of commands
    interrupt_advice: str = "Nothing was written; run the same command again."  # what to do after it was interrupted

    def load(self) -> "click.Command":
        """Import the module of the command, and return the command."""
        return cast("click.Command", resolve_name(self.entry_point))


_EXACT = "Nothing is lost or duplicated: run the same command again."
_EMPTY = "The store is unchanged; start again with an empty --out DIR."
_ALL = (
    ("demo", "jobs.demo.tour:demo", True, "Run a guided tour on a small store of a real broker.",
     "Start again in an empty directory."),
    ("inspect", "jobs.commands.viewers:inspect", False, "Show what a store contains, and recommend the next command."),
    ("dump", "jobs.commands.viewers:dump", False, "Decode files of a store."),
    ("ingest", "jobs.commands.ingest:ingest", True, "Append a store's new messages to Delta tables exactly once.",
     _EXACT),
    ("verify", "jobs.commands.verify:verify", True,
     "Compare log, queues, index files and configuration with each other."),
    ("rebuild-index", "jobs.commands.rebuild:rebuild_index", True, "Rebuild a store's index files.", _EMPTY),
    ("rebuild-consumequeue", "jobs.commands.rebuild:rebuild_consumequeue", True, "Rebuild a store's queues.", _EMPTY),
    ("restore", "jobs.commands.lake:restore", True, "Restore a store from a lake, byte for byte.",
     "Run the same command with --resume to continue with the missing segments."),
    ("repair", "jobs.commands.verify:repair", True, "Plan the repair of a store; --apply carries it out.",
     "Run the same command again to continue, or with --undo to revert the changes."),
    ("diff", "jobs.commands.verify:diff", True, "Compare a store with a lake, or two stores, and explain differences."),
    ("query", "jobs.commands.query:query", False, "Find messages as mqadmin does, without a running broker."),
    ("browse", "jobs.commands.viewers:browse", False, "Browse a store or a lake in a local web browser.",
     "Run the same command to open the pages again."),
    ("export", "jobs.commands.export:export", True, "Export messages, and decompress their bodies."),
    ("type", "jobs.commands.type:type_bodies", True, "Decode message bodies into typed tables.", _EXACT),
    ("optimize", "jobs.commands.lake:optimize", True, "Compact a lake's tables and delete obsolete files.",
     "Every table is in a consistent state; run the same command again to process the remaining tables."),
    ("catalog", "jobs.commands.lake:catalog", False, "Print SQL that registers a lake in a catalog."),
)  # fmt: skip

COMMAND_TABLE = {row[0]: CommandEntry(*row) for row in _ALL}
