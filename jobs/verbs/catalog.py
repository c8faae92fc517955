"""`catalog`: the statements that make a lake's tables known by their names to Spark, Unity, Glue or Hive."""

import re

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.failures import shown_as_usage
from jobs.command.places import LAKE
from jobs.console.exit_codes import ExitCode
from jobs.console.terminal import printable_lines
from jobs.launch.arguments import file_system_options
from jobs.storage.locations import normalise
from rmq_formats.errors import NotAStore

_KINDS = ("spark", "unity", "glue", "hive")
_NAME = re.compile(r"\w+(\.\w+)*")


def _checked(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r}: letters, digits and _ are names, with dots between them", ctx, parameter)
    return value


@click.command(epilog="\b\nExamples:\n  rmq-lake catalog /data/lake | spark-sql …\n  "
               "rmq-lake catalog s3a://lake/rocketmq --for unity --schema main.rocketmq")  # fmt: skip
@click.argument("lake", metavar="LAKE", type=LAKE)
@click.option("--for", "kind", type=click.Choice(_KINDS), default="spark", show_default=True, help="Whose catalog.")
@click.option(
    "--schema", metavar="NAME", default="rocketmq", show_default=True, callback=_checked,
    help="Schema (database) that the tables get their names in; with Unity's catalog before it.",
)  # fmt: skip
@answer_options
def command(*, lake: str, kind: str, schema: str, answer: Answer) -> ExitCode:
    """
    Print the SQL statements that make every table of LAKE known to a catalog by its name.

    The tables stay where they are, and runs go on as before. spark: Spark's own catalog, also over a Hive metastore;
    unity: Databricks and Unity; glue: Athena's statements; hive: Hive itself, with Delta's storage handler. Columns
    and their comments come from Delta's log, but Hive's statements have them.
    """
    from jobs.lake.catalog import CatalogKind, NoSuchPlaceError, statements
    from jobs.lake.lake import Lake
    from jobs.typed.typings import typed_tables

    place = Lake(normalise(lake), file_system_options())
    with shown_as_usage(NoSuchPlaceError):
        found = list(statements(place, CatalogKind(kind), schema, typed_tables(place)))
    if not found:
        reason = "no lake: it has none of our tables"
        raise NotAStore(reason, None, place.location)
    if answer.as_json:
        answer.give([one._asdict() for one in found], ())
    elif not answer.quiet:
        for one in found:  # as it is, however wide the terminal: a text must not be broken
            click.echo(f"{printable_lines(one.text)};")
    return ExitCode.CLEAN
