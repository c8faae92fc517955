"""
The verbs: one row each, read by the launcher (may it run on a cluster?) and by the command line (module and help).

This module imports the standard library only, so that both know the verbs before anything heavy is loaded.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """One command of the tool."""

    name: str
    module: str  # has `command: click.Command`
    uses_spark: bool  # for work beyond a size, or when asked
    help: str  # one line in the list of verbs
    again: str = "Nothing was written; the same command starts again."  # what to do after it was interrupted


_ALL = (
    Verb(
        "demo", "jobs.demo", uses_spark=True,
        help="Run a guided tour on a small store of a real broker.",
        again="Begin again in an empty directory.",
    ),
    Verb("inspect", "jobs.verbs.inspect", uses_spark=False, help="Show the contents of a store and the next command."),
    Verb("dump", "jobs.verbs.dump", uses_spark=False, help="Print one file of a store, with every byte named."),
    Verb(
        "ingest", "jobs.verbs.ingest", uses_spark=True,
        help="Append a store's new messages to Delta tables, once.",
        again="Nothing is lost or doubled: the same command starts again.",
    ),
    Verb("verify", "jobs.verbs.verify", uses_spark=True, help="Compare log, queues and index files with each other."),
    Verb(
        "rebuild-index", "jobs.verbs.rebuild_index", uses_spark=True,
        help="Rebuild a store's index files.",
        again="The store is as it was; begin again with an empty --out DIR.",
    ),
    Verb(
        "rebuild-consumequeue", "jobs.verbs.rebuild_consumequeue", uses_spark=True,
        help="Rebuild a store's queues.",
        again="The store is as it was; begin again with an empty --out DIR.",
    ),
    Verb(
        "restore", "jobs.verbs.restore", uses_spark=True,
        help="Restore a store from the lake, byte for byte.",
        again="The same command with --resume continues with the segments that are missing.",
    ),
    Verb(
        "repair", "jobs.verbs.repair", uses_spark=True,
        help="Plan the repair of a store; --apply carries it out.",
        again="The same command starts again; with --undo it takes back what was done.",
    ),
    Verb("diff", "jobs.verbs.diff", uses_spark=True, help="Compare a store with a lake, and explain differences."),
    Verb("query", "jobs.verbs.query", uses_spark=False, help="Find messages as mqadmin does, with the broker down."),
    Verb(
        "browse", "jobs.verbs.browse", uses_spark=False,
        help="Browse a store or a lake in a local web browser.",
        again="The same command opens the pages again.",
    ),
    Verb("export", "jobs.verbs.export", uses_spark=True, help="Export messages with decompressed bodies."),
    Verb(
        "type", "jobs.verbs.type", uses_spark=True,
        help="Turn the bodies of topics into typed tables.",
        again="Nothing is lost or doubled: the same command starts again.",
    ),
    Verb(
        "optimize", "jobs.verbs.optimize", uses_spark=True,
        help="Compact a lake's tables and delete obsolete files.",
        again="Every table is whole; the same command does what is left.",
    ),
    Verb(
        "catalog", "jobs.verbs.catalog", uses_spark=False,
        help="Print SQL that registers a lake in a catalog.",
    ),
)  # fmt: skip

VERBS = {verb.name: verb for verb in _ALL}
