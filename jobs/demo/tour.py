"""
`demo`: a guided tour of all commands on small stores written by real brokers (Apache RocketMQ 5.5.1).

Each step is an ordinary command line, which is printed and then run. The result of each step is checked, so a tour that
fails is reported.
"""

import shlex
import tarfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import mkdtemp
from textwrap import fill
from typing import Any

import click

from jobs.command_line.configuration import declare_command
from jobs.console.amounts import count_text
from jobs.console.process import tool_command
from jobs.console.result import ExitCode
from jobs.launch.engine import SetupError, why_spark_cannot_start
from jobs.options.declaration import argument
from jobs.options.places import OUTPUT_DIRECTORY, refuse_nonempty_directory

ARCHIVED_STORE = "b551-base"
ARCHIVE = "store.tar.xz"
ARCHIVED_ORDERS, ORDERS_ARCHIVE = "b551-orders", "orders.tar.xz"
TOPIC, KEY = "T1", "k1"
CHECKED_MESSAGE_ID = "0A010203075F4E0E2F2A638069920038"  # a transaction whose state the broker had to check
TYPES = """\
[topic."Orders"]
format = "json"
schema = "id bigint NOT NULL, customer string, total decimal(10,2)"
"""
QUERY = """\
SELECT customer, count(*) AS orders, sum(total) AS total
FROM orders GROUP BY customer ORDER BY customer"""
LOST_FILE_NUMBER = 7  # the index file that the tour deletes, counted from the oldest


# Files and directories of the tour: the store and the lake, and those of a broker whose bodies are JSON.
STORE, LAKE, ORDERS, ORDERS_LAKE = "store", "lake", "orders", "orders-lake"
TYPES_FILE = "types.toml"  # the types of these bodies
REBUILT, ASIDE = "index", "lost"  # directories of the rebuilt index file, and of the lost one, kept to compare

TourAction = Callable[[Path], str]  # changes the files of the tour in a directory; returns a description


def list_steps(directory: Path, *, with_spark: bool = True) -> Iterator[tuple[str, str, tuple[str, ...] | TourAction]]:
    """Yield the steps in order: a name, the purpose, and a command line or a function that changes the files."""
    store, lake, rebuilt, types = (str(directory / name) for name in (STORE, LAKE, REBUILT, TYPES_FILE))
    query = ("query", "by-key", "-t", TOPIC, "-k", KEY, "--quiet")
    on_spark = ("--engine", "spark") if with_spark else ()
    rebuild = ("rebuild-index", store, "--out", rebuilt, "--lost-only")
    yield ("inspect", "What is in this directory?", ("inspect", store))
    yield (
        "ingest",
        "Every message and every queue unit becomes exactly one row.",
        ("ingest", store, "--lake", lake, *on_spark),
    )
    yield ("again", "A second run finds nothing new, which is the normal case.", ("ingest", store, "--lake", lake))
    yield ("verify", "Do log, queues and index files agree?", ("verify", store))
    yield (
        "query",
        f"Find the message with the key {KEY}, as mqadmin does, but without a broker.",
        (*query, "--store", store),
    )
    yield ("lose", "Move an index file away, to simulate its loss after a kill -9.", _lose)
    yield (
        "miss",
        "A broker now finds fewer messages with this key, without an error. rmq-lake searches the log instead.",
        (*query[:-1], "--store", store),
    )
    yield ("rebuild", "Rebuild the file from the log, and install it.", (*rebuild, "--install", *on_spark))
    yield ("compare", "Is it the file that the broker wrote?", _compare)
    yield ("find", f"Now {KEY} is found again.", (*query, "--store", store))
    yield (
        "lake",
        "The same query on the lake, which keeps messages after the broker has deleted its files.",
        (*query, "--lake", lake),
    )
    lake = str(directory / ORDERS_LAKE)
    yield ("orders", "Another broker's message bodies are JSON.", ("ingest", str(directory / ORDERS), "--lake", lake))
    yield ("declare", "A file declares their columns.", _declare)
    yield (
        "type",
        "Each body is now a row of a table; an invalid one is a dead letter, with the reason.",
        ("type", lake, "--types", types),
    )
    yield ("ask", "One SQL query, with the same result in Spark, DuckDB, Polars and other engines.", _ask)


def _declare(directory: Path) -> str:
    (directory / TYPES_FILE).write_text(TYPES, encoding="utf-8")
    return f"{directory / TYPES_FILE}:\n\n{TYPES.rstrip()}"


def _ask(directory: Path) -> str:
    """Query the lake in this process, with the SQL engine of `deltalake`."""
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(directory / ORDERS_LAKE / "typed" / "Orders"))
    found = QueryBuilder().register("orders", table).execute(QUERY).read_all()
    lines = [found.column_names, *zip(*(column.to_pylist() for column in found.columns), strict=True)]
    return "\n".join([QUERY, *("  ".join(f"{value!s:<8}" for value in line).rstrip() for line in lines)])


def _lose(directory: Path) -> str:
    lost = sorted((directory / STORE / "index").iterdir())[LOST_FILE_NUMBER]
    (directory / ASIDE).mkdir()
    lost.rename(directory / ASIDE / lost.name)
    return f"moved {lost.name} out of {directory / STORE / 'index'}"


def _compare(directory: Path) -> str:
    (lost,) = (directory / ASIDE).iterdir()
    made = [path for path in (directory / REBUILT).iterdir() if path.name.isdecimal()]
    if [path.read_bytes() for path in made] != [lost.read_bytes()]:
        names = [path.name for path in made]
        raise SetupError(f"demo: {names} in {directory / REBUILT} do not have the same bytes as {lost.name}")
    digest = sha256(lost.read_bytes()).hexdigest()
    return f"identical, byte for byte: the lost {lost.name}\nand the rebuilt file both have SHA-256 {digest[:16]}…"


def unpack(directory: Path) -> None:
    """Unpack the bundled stores into *directory*."""
    for archive, name, place in ((ARCHIVE, ARCHIVED_STORE, STORE), (ORDERS_ARCHIVE, ARCHIVED_ORDERS, ORDERS)):
        with as_file(files(__package__) / archive) as path:
            extract(path, directory)
        (directory / name).rename(directory / place)


def extract(archive: Path, directory: Path) -> None:
    """Extract a bundled archive into *directory*."""
    # The filter refuses members outside of the directory. It exists since Python 3.11.4.
    filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(directory, **filtered)  # noqa: S202 - our own archives


def run_tour(directory: Path, call: Callable[[tuple[str, ...]], ExitCode], *, with_spark: bool = True) -> None:
    """Run every step, and stop at the first one that fails."""
    steps = list(list_steps(directory, with_spark=with_spark))
    for number, (name, says, step) in enumerate(steps, 1):
        click.secho(f"\n{fill(f'── {number} of {len(steps)}: {says}', 80)}", bold=True)
        if callable(step):
            click.echo(step(directory))
            continue
        click.secho(f"$ {tool_command()} {shlex.join(step)}", fg="green")
        code = call(step)
        if code is not ExitCode.CLEAN:
            raise SetupError(f"demo: step {name!r} ended with exit code {code}")
        if "--engine" in step:
            from jobs.store.spark_workers import pop_task_counts

            tasks, ranges = pop_task_counts()
            click.echo(
                f"Spark ran {count_text(tasks, 'task')} for this, {ranges:,} of them on ranges of the log. "
                "A step this\nsmall does not need Spark: without `--engine spark`, the command would run in\nits own "
                "process."
            )


@declare_command("demo", "demo /tmp/tour    # writes all files to /tmp/tour", is_configured=False)
def demo(*, directory: Path | None = argument("[DIR]", OUTPUT_DIRECTORY, required=False)) -> ExitCode:
    """
    Run a guided tour of the commands on a small store that a real broker wrote.

    All files are written to DIR, which must be empty or must not exist. Without DIR, a temporary directory is created.
    The files are not deleted. Two steps run on Spark; without Java or Spark, they run in one process.
    """
    from jobs.command_line import cli

    no_spark = why_spark_cannot_start()
    target = (directory or Path(mkdtemp(prefix="rocketmq-lake-demo-"))).absolute()
    target.mkdir(parents=True, exist_ok=True)
    refuse_nonempty_directory(str(target), "DIR")
    click.echo(f"A store that Apache RocketMQ 5.5.1 wrote, in {target}")
    if no_spark:
        click.echo(fill(f"Every step runs in one process, because Spark cannot start. {no_spark}", 80))
    unpack(target)
    run_tour(target, cli.run_nested, with_spark=not no_spark)
    click.secho("\nThis is the end of the tour.", bold=True)
    click.echo(f"The tables are in {target / LAKE}, the store in {target / STORE}.")
    click.echo("The history of one message, whose transaction the broker had to check:")
    click.echo(f"{tool_command()} query story {CHECKED_MESSAGE_ID} --lake {shlex.quote(str(target / LAKE))}")
    click.echo("To browse the data in a web browser:")
    click.echo(f"{tool_command()} browse {shlex.quote(str(target / LAKE))}")
    if directory is None:
        click.echo(f"To delete everything: rm -r {shlex.quote(str(target))}")
    return ExitCode.CLEAN
