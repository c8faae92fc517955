"""`inspect` and `browse`: the contents of a store, in a terminal and as pages in a browser; read-only."""

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click

from jobs.command.answer import Answer, answer_options
from jobs.command.configuration import config_option
from jobs.command.options import (
    StorePlace,
    broker_conf_option,
    commitlog_option,
    examples,
    flag,
    one_release_option,
    option,
    store_options,
)
from jobs.command.places import STORE_OR_LAKE
from jobs.console.exit_codes import ExitCode, worst
from jobs.console.progress import LateProgress
from jobs.launch.arguments import file_system_options
from jobs.launch.engine import SetupError
from rmq_formats.release import Release

_NEEDED = ("jinja2", "starlette", "uvicorn")  # by the pages


@click.command(
    epilog=examples(
        "inspect /data/rocketmq/store",
        "inspect --deep --json /backup/store | jq .problems",
        "inspect --broker-conf broker.conf /data/rocketmq/store",
        exit_codes="0 no problem seen (not verified) · 1 no access · 2 usage, or there is no store · 3 damage or a gap",
    )
)
@store_options
@flag("--deep", "Read every record of the log, not only heads and tails of files.")
@answer_options
def inspect(*, place: StorePlace, deep: bool, answer: Answer) -> ExitCode:
    """
    Show the segments of a store, its queues, index files and checkpoint, the broker's release, and the next command.

    Only the heads and tails of files are read, which takes seconds on any store; --deep reads the whole log.
    """
    from jobs.inspect.inspection import inspect_store
    from jobs.inspect.text import dashboard

    conf = place.conf()
    with closing(LateProgress("walking the log")) as walk:
        report = inspect_store(place.store, place.log_directories(conf), conf, deep=deep, progress=walk)
    # Only the progress line asks for --quiet: the report is the answer.
    replace(answer, quiet=False).give(report.as_values(), dashboard(report, verbose=answer.verbose).split("\n"))
    return worst(problem.severity.exit_code for problem in report.problems)


@click.command(
    epilog=examples(
        "browse /data/rocketmq/store",
        "browse --port 8080 --no-open LAKE      # on a server; then: ssh -L 8080:127.0.0.1:8080 SERVER",
        exit_codes="0 ended by Ctrl-C · 1 failed · 2 usage",
    )
)
@click.argument("location", metavar="STORE|LAKE", type=STORE_OR_LAKE)
@option("--port", "N", "Port of 127.0.0.1; default: a free one.", click.IntRange(0, 65535), default=0)
@flag("--no-open", "Print the address without opening a browser.")
@commitlog_option
@broker_conf_option
@option("--broker", "NAME", "For a lake: the label of the broker to show, or the id of its store.")
@one_release_option
@config_option
def browse(  # noqa: PLR0913 - one argument an option
    *,
    location: str,
    port: int,
    no_open: bool,
    commitlog: tuple[str, ...] | None,
    broker_conf: Path | None,
    broker: str | None,
    release: str | None,
) -> ExitCode:
    """
    Serve read-only pages of a store or a lake on 127.0.0.1: files, messages, topics, groups, tables.

    Prints one line with the address, which includes a token. Ctrl-C ends the server.
    """
    if not all(map(find_spec, _NEEDED)):
        raise SetupError(f"the pages need {', '.join(_NEEDED)}: pip install 'rocketmq-lake[browse]'")
    from jobs.browse.server import serve
    from jobs.query.lake_tables import is_lake
    from jobs.query.place import Place

    store, lake = (None, location) if is_lake(location, file_system_options()) else (location, None)
    named = Release.of(release) if release else None
    return serve(Place(store, lake, commitlog, broker_conf, broker, named), port, opens=not no_open)
