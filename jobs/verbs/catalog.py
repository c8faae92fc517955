"""`catalog`: a lake's tables by their names: statements for Spark, Unity, Glue or Hive, or registered in Iceberg's."""

import re
from typing import TYPE_CHECKING

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.iceberg import Registrations, iceberg_option
from jobs.command.places import LAKE
from jobs.console.amounts import counted
from jobs.console.exit_codes import ExitCode
from jobs.console.lines import printable_lines
from jobs.console.result import Result
from jobs.console.severity import Severity
from jobs.launch.arguments import file_system_options
from jobs.storage.locations import normalise
from rmq_formats.errors import NotAStore

if TYPE_CHECKING:
    from jobs.lake.iceberg import Target
    from jobs.lake.lake import Lake

_KINDS = ("spark", "unity", "glue", "hive")
_NO_LAKE = "no lake: it has none of our tables"
_NAME = re.compile(r"\w+(\.\w+)*")


def _checked(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r}: letters, digits and _ are names, with dots between them", ctx, parameter)
    return value


@click.command(epilog="\b\nExamples:\n  rmq-lake catalog /data/lake | spark-sql …\n  "
               "rmq-lake catalog s3a://lake/rocketmq --for unity --schema main.rocketmq")  # fmt: skip
@click.argument("lake", metavar="LAKE", type=LAKE)
@click.option(
    "--for", "kind", type=click.Choice(_KINDS), default="spark", show_default=True, help="The kind of catalog."
)
@click.option(
    "--schema", metavar="NAME", default="rocketmq", show_default=True, callback=_checked,
    help="Schema (database) of the tables; for Unity, CATALOG.SCHEMA.",
)  # fmt: skip
@iceberg_option
@answer_options
def command(*, lake: str, kind: str, schema: str, iceberg: "Target | None", answer: Answer) -> ExitCode:
    """
    Print SQL statements that register every table of LAKE in a catalog.

    The tables are not moved, and later runs need no change. spark: Spark's own catalog, also over a Hive
    metastore; unity: Databricks and Unity; glue: Athena's statements; hive: Hive itself, with Delta's storage handler.
    Catalogs read columns and comments from Delta's log; only Hive's statements list them. With --iceberg the tables are
    registered at once, and no statement is printed.
    """
    from jobs.lake.catalog import CatalogKind, statements
    from jobs.lake.lake import Lake
    from jobs.typed.typings import typed_tables

    place = Lake(normalise(lake), file_system_options())
    if iceberg is not None:
        return _register(place, iceberg, answer)
    found = list(statements(place, CatalogKind(kind), schema, typed_tables(place)))
    if not found:
        raise NotAStore(_NO_LAKE, None, place.location)
    if answer.as_json:
        answer.give([one._asdict() for one in found], ())
    elif not answer.quiet:
        for one in found:  # as it is, however wide the terminal: a text must not be broken
            click.echo(f"{printable_lines(one.text)};")
    return ExitCode.CLEAN


def _register(lake: "Lake", target: "Target", answer: Answer) -> ExitCode:
    """Register a lake in an Iceberg catalog, and say what that added and removed there."""
    registrations = Registrations(target)
    done = registrations.register(lake)
    registrations.raise_failure()
    if not done:
        raise NotAStore(_NO_LAKE, None, lake.location)
    lines = [
        f"  {one.table}: version {one.version:,}; {counted(one.added, 'file')} added, {one.removed:,} removed"
        for one in done
    ]
    added, removed = sum(one.added for one in done), sum(one.removed for one in done)
    what = f"{counted(len(done), 'table')} in {target}, {counted(added, 'file')} added, {removed:,} removed"
    result = Result(Severity.HEALTHY, what, answer.seconds, verdict="done")
    answer.give([one._asdict() for one in done], [lake.location, *lines], result)
    return ExitCode.CLEAN
