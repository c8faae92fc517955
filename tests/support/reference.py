"""
Document the command line, the tables and `--json`: `python -m tests.support.reference` writes the generated files.

These are the schemas of `--json` (see tests/support/schemas.py), and parts of two pages.

The text between them is written by hand, in docs/reference/commands.md and docs/reference/tables.md.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import Path

import click
from deltalake.schema import Field

from jobs.command_line import COMMAND_TABLE
from jobs.command_line.cli import rmq_lake
from jobs.command_line.configuration import configurable_parameters, leaf_commands
from jobs.console.result import ExitCode
from jobs.ingest import Summary
from jobs.lake.catalog import column_comment
from jobs.lake.lake import list_views
from jobs.lake.tables import MESSAGES, PROVENANCE_COLUMNS, TABLES, Table, sql_type
from jobs.launch.cache import CONF_DIRECTORY
from jobs.metrics import INGEST_PREFIX, TYPE_PREFIX, metric_values, type_metric_values
from jobs.typed.ddl import typed_table
from tests.support.commands import ROOT
from tests.support.schemas import write_schemas

_ARGUMENTS = {
    "STORE": "The store",
    "LAKE": "The lake",
    "STORE|LAKE": "The store or lake",
    "[DIR]": "The directory for all files",
    "FILE…": "The files to decode",
    "ID": "The message id",
    "[ID]": "The message id",
    "[STATEMENT]": "The SQL statement",
    "COMMAND [OPTIONS]…": "The mqadmin command line",
}
COMMANDS_PAGE, TABLES_PAGE = ROOT / "docs" / "reference" / "commands.md", ROOT / "docs" / "reference" / "tables.md"


def _table(*rows: tuple[str, ...]) -> str:
    head, *others = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others]) + "\n"


def _command(click_command: click.Command, names: tuple[str, ...], parent: click.Context) -> Iterator[str]:
    ctx = click.Context(click_command, info_name=names[-1], parent=parent)
    yield f"## {' '.join(names)}\n"
    yield f"`{click_command.get_usage(ctx).removeprefix('Usage: ')}`\n"
    intro = f"{cleandoc(click_command.help or '')}\n\n{click_command.epilog or ''}".replace("\b\n", "")
    text, _, more = intro.partition("Examples:\n")
    yield f"{text.strip()}\n"
    if more:
        examples, _, below = more.partition("\n\n")
        yield "\n".join(["```sh", *map(str.strip, examples.strip().splitlines()), "```\n"])
        if below.strip():
            yield f"{below.strip()}\n"
    if isinstance(click_command, click.Group):
        for name, command in click_command.commands.items():
            yield from _command(command, (*names, name), ctx)
    else:
        rows = [_row(parameter, ctx) for parameter in configurable_parameters(click_command)]
        shared = [row for row in rows if row in _rows_of_several_commands()]
        yield _table(("option", "meaning", "default"), *(row for row in rows if row not in shared))
        if shared:
            names_of_shared = ", ".join(f"`{_name_of(row)}`" for row in shared)
            yield f"[Shared options](#shared-options): {names_of_shared}.\n"


# A row that this many commands have is printed once.
_SHARED = 4


@cache
def _rows_of_several_commands() -> tuple[tuple[str, ...], ...]:
    """Return the rows of options that several commands have; of an option with several meanings, the most frequent."""
    counts: Counter[tuple[str, ...]] = Counter()
    for names, click_command in (
        found for name, command in COMMAND_TABLE.items() for found in leaf_commands(command.load(), (name,))
    ):
        ctx = click.Context(click_command, info_name=names[-1])
        options = [one for one in configurable_parameters(click_command) if isinstance(one, click.Option)]
        counts.update(_row(option, ctx) for option in options)
    rows: dict[str, tuple[str, ...]] = {}
    for row, number in counts.most_common():
        if number >= _SHARED:
            rows.setdefault(_name_of(row), row)
    return tuple(sorted(rows.values()))


def _name_of(row: tuple[str, ...]) -> str:
    return row[0].partition(" ")[0].strip("`,")


def _row(parameter: click.Parameter, ctx: click.Context) -> tuple[str, ...]:
    if not isinstance(parameter, click.Option):
        metavar = parameter.make_metavar(ctx)
        return (f"`{metavar}`", _ARGUMENTS[metavar], "required" if parameter.required else "optional")
    metavar = "" if parameter.is_flag else f" {parameter.make_metavar(ctx)}"
    given = parameter.get_default(ctx, call=False)
    default = str(given) if isinstance(given, str | int) and not parameter.is_flag else ""
    form = f"`{', '.join(parameter.opts)}{metavar}`"
    return (form, (parameter.help or "").rstrip("."), "required" if parameter.required else default)


def fill_page(page: Path, parts: Iterable[tuple[str, str, str]]) -> str:
    """Return the text of a page with new parts, each between two texts that are written by hand."""
    text = page.read_text(encoding="utf-8")
    for before, after, part in parts:
        head, found, rest = text.partition(before)
        assert found, f"{page} lacks {before!r}: restore it with git"
        text = f"{head}{before}{part}{rest[rest.index(after) :] if after else ''}"
    return text


def commands_page() -> str:
    return fill_page(COMMANDS_PAGE, _parts_of_commands())


def _parts_of_commands() -> Iterator[tuple[str, str, str]]:
    rows = [(f"`{command.name}`", command.help) for command in COMMAND_TABLE.values()]
    yield "## Commands\n\n", "\nA command with the option `--engine`", _table(("command", "purpose"), *rows)
    ours = [option for option in rmq_lake.params if isinstance(option, click.Option)]
    options = _table(("option", "meaning"), *((f"`{option.opts[0]}`", option.help or "") for option in ours))
    root = click.Context(rmq_lake, info_name="rmq-lake")
    sections = [part for name, command in COMMAND_TABLE.items() for part in _command(command.load(), (name,), root)]
    shared = _table(("option", "meaning", "default"), *_rows_of_several_commands())
    text = "## Shared options\n\nThe section of each command lists which of these options it accepts.\n"
    yield "Options before the command name:\n\n", "\n## Exit codes\n", "\n".join([options, text, shared, *sections])
    yield "```toml\n", "```\n", (CONF_DIRECTORY / "job.toml").read_text(encoding="utf-8")
    gauges = [(name, meaning) for name, (_, meaning) in metric_values(Summary("", "", "")).items()]
    yield "are those of the last step.\n\n", "\n`type --metrics FILE` writes", _gauges(INGEST_PREFIX, gauges)
    gauges = [(name, meaning) for name, (meaning, _) in type_metric_values([], ExitCode.CLEAN).items()]
    yield "have the label `topic`.\n\n", "\n## JSON\n", _gauges(TYPE_PREFIX, gauges)


def _gauges(prefix: str, gauges: Sequence[tuple[str, str]]) -> str:
    return _table(("gauge", "meaning"), *((f"`{prefix}_{name}`", meaning.rstrip(".")) for name, meaning in gauges))


# --- columns of tables ---

_COLUMN_HEAD = ("| column | type | meaning |", "|---|---|---|")
_IN_EVERY_TABLE = ("broker", "store_id")
_COMMENTS = {field.name: column_comment(field) for field in MESSAGES.delta_schema.fields}
_OF_TYPED_ROWS = [*_IN_EVERY_TABLE, *(field.name for field in PROVENANCE_COLUMNS)]


def tables_page() -> str:
    in_every_table = (_column(field) for field in MESSAGES.delta_schema.fields if field.name in _IN_EVERY_TABLE)
    sections = (line for table in (*TABLES, typed_table("typed/TOPIC", ())) for line in _section(table))
    columns = "\n".join([*_COLUMN_HEAD, *in_every_table, "", *sections])
    views = [
        (view.name, view.row_meaning.removeprefix("Each row is ").removesuffix("."), ", ".join(view.tables))
        for view in list_views()
    ]
    parts = [
        ("not repeated below:\n\n", "\nThese are followed by", columns),
        ("prints the statements that create the views.\n\n", "", _table(("view", "each row is", "reads"), *views)),
    ]
    return fill_page(TABLES_PAGE, parts)


def _section(table: Table) -> Iterator[str]:
    yield f"## {table.name}\n"
    yield f"Each row is {table.row_meaning}.\n"
    yield from _COLUMN_HEAD
    shared: dict[str, str] = {}
    if table.name in {"superseded_messages", "tiered"}:
        shared = _COMMENTS
        missing = [f"`{name}`" for name in shared if name not in table.schema.names]
        exception = f" except {' and '.join(missing)}" if missing else ""
        yield f"| all columns of [messages](#messages){exception} | | as in `messages`, unless listed below |"
    elif table.schema.names[: len(_OF_TYPED_ROWS)] == _OF_TYPED_ROWS:
        shared = {name: _COMMENTS[name] for name in _OF_TYPED_ROWS}
        names = ", ".join(f"`{name}`" for name in _OF_TYPED_ROWS if name not in _IN_EVERY_TABLE)
        yield f"| {names} | | as in [messages](#messages) |"
    for field in table.delta_schema.fields:
        if field.name not in _IN_EVERY_TABLE and column_comment(field) != shared.get(field.name):
            yield _column(field, table)
    yield ""


def _column(field: Field, table: Table = MESSAGES) -> str:
    meaning = column_comment(field).replace("|", "\\|")
    type_ = sql_type(table.schema_without_dictionaries.field(field.name).type)
    return f"| {field.name} | `{type_}` | {meaning} |"


if __name__ == "__main__":
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")
    TABLES_PAGE.write_text(tables_page(), encoding="utf-8")
    write_schemas()
