"""
The verbs: one row each, read by the launcher (is a JVM needed?) and by the command line (module and help).

This module imports the standard library only, so that both know the verbs before anything heavy is loaded.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """One command of the tool."""

    name: str
    module: str  # has `command: click.Command`
    needs_spark: bool
    help: str  # one line in the list of verbs
    again: str = "Nothing was written; the same command starts again."  # what to do after it was interrupted


_ALL = (
    Verb(
        "demo", "jobs.demo", needs_spark=True,
        help="The whole tour, on a real broker's small store.",
        again="Begin again in an empty directory.",
    ),
    Verb("inspect", "jobs.verbs.inspect", needs_spark=False, help="Say what a store holds and what to run next."),
    Verb("dump", "jobs.verbs.dump", needs_spark=False, help="Print any single file of a store, every byte named."),
    Verb(
        "ingest", "jobs.verbs.ingest", needs_spark=True,
        help="Bring what is new in a store into Delta tables, once.",
        again="Nothing is lost or doubled: the same command starts again.",
    ),
    Verb("verify", "jobs.verbs.verify", needs_spark=True, help="Compare log, queues and index files with each other."),
    Verb(
        "rebuild-index", "jobs.verbs.rebuild_index", needs_spark=True,
        help="Write a store's index files again.",
        again="The store is as it was; begin again with an empty --out DIR.",
    ),
    Verb(
        "rebuild-consumequeue", "jobs.verbs.rebuild_consumequeue", needs_spark=True,
        help="Write a store's queues again.",
        again="The store is as it was; begin again with an empty --out DIR.",
    ),
    Verb(
        "restore", "jobs.verbs.restore", needs_spark=True,
        help="Give a store back from the lake, byte for byte.",
        again="The same command with --resume goes on with the segments that are missing.",
    ),
    Verb(
        "repair", "jobs.verbs.repair", needs_spark=True,
        help="Plan what makes a damaged store right, and do it if asked.",
        again="The same command starts again; with --undo it takes back what was done.",
    ),
    Verb("diff", "jobs.verbs.diff", needs_spark=True, help="Say what a store and a lake have of each other, and why."),
    Verb("query", "jobs.verbs.query", needs_spark=False, help="Find messages as mqadmin does, with the broker down."),
    Verb("export", "jobs.verbs.export", needs_spark=True, help="Write messages out, bodies decompressed."),
    Verb(
        "optimize", "jobs.verbs.optimize", needs_spark=True,
        help="Compact a lake's tables and remove what is obsolete.",
        again="Every table is whole; the same command does what is left.",
    ),
    Verb(
        "catalog", "jobs.verbs.catalog", needs_spark=False,
        help="Print the SQL that names a lake's tables in a catalog.",
    ),
)  # fmt: skip

VERBS = {verb.name: verb for verb in _ALL}
